"""The tables and the figure of docs/results/compare.md, from what `airlock compare` wrote.

python docs/results/compare.py DIR/results.json NAME

Prints the tables as Markdown and writes compare-NAME.svg beside this file: accuracy against ε, a panel a channel.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from plot import Line, Panel, write

from airlock.comparison import Comparison, Row
from airlock.comparison.values import BASELINE, PUBLIC

HERE = Path(__file__).resolve().parent
BESIDE = {BASELINE: "without privacy", PUBLIC: "public records alone"}
CHANNELS = ("weights", "twin", "student", "features", "answers")


def main() -> None:
    """Read the results, print the tables, write the picture."""
    found = Comparison.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n".join([*accuracies(found), "", *verdicts(found), "", *missing(found)]))
    write(HERE / f"compare-{sys.argv[2]}.svg", f"All channels on {found.data.name}", panels(found), columns=3)


def accuracies(found: Comparison) -> list[str]:
    """A line a method, a column an ε; then what the strongest attack of all seeds made of it, and bytes."""
    rows = {(row.method, row.epsilon_asked): row for row in found.rows()}
    epsilons = sorted({epsilon for _, epsilon in rows if epsilon is not None})
    lines = [f"| | promise | {' | '.join(f'ε = {one:g}' for one in epsilons)} | AUC, at most | bytes | seconds |"]
    lines.append("|---" * (len(epsilons) + 5) + "|")
    for method in dict.fromkeys(method for method, _ in rows):
        own = [row for (name, _), row in rows.items() if name == method]
        cells = [_accuracy(rows.get((method, one)) or rows.get((method, None))) for one in epsilons]
        auc = max((row.auc for row in own if row.auc is not None), default=None)
        size = max((row.bytes for row in own if row.bytes is not None), default=0)
        seconds = sum(row.seconds for row in own) / len(own)
        ending = f"{'' if auc is None else f'{auc:.3f}'} | {f'{size:,}' if size else ''} | {seconds:.0f}"
        name = BESIDE.get(method, f"`{method}`")
        lines.append(f"| {name} | {_standing(found, own)} | {' | '.join(cells)} | {ending} |")
    return lines


def _accuracy(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{100 * row.accuracy:.1f}" + (f" ± {50 * (row.highest - row.lowest):.1f}" if row.seeds > 1 else "")


def _standing(found: Comparison, rows: list[Row]) -> str:
    stands = {found.standing(row) for row in rows}
    return "refuted" if "refuted" in stands else "none" if rows[0].method == BASELINE else stands.pop()


def verdicts(found: Comparison) -> list[str]:
    """What the court found."""
    lines = ["| | tried at ε | verdict | ε above, 95% | would have shown | pairs | seconds |", "|---" * 7 + "|"]
    for one in found.court:
        verdict = one.error or ("refuted" if one.refuted else "not refuted")
        shown = "nothing" if one.would_show is None else f"ε ≥ {one.would_show:.2f}"
        lines.append(f"| `{one.method}` | {one.claim_epsilon:g} | {verdict} | {one.lower_bound:.2f} | {shown} | "
                     f"{one.pairs:,} | {one.seconds:.0f} |")  # fmt: skip
    return lines


def missing(found: Comparison) -> list[str]:
    """What was skipped, failed or dropped."""
    lines = [f"- Skipped: {one.method} {list(one.epsilons) or ''}: {one.reason}" for one in found.skipped]
    lines += [f"- Failed: {one.method}, seed {one.seed}: {one.error}" for one in found.cells if one.error]
    lines += [f"- Dropped: {what}: {reason}" for what, reason in found.left_out()]
    minutes = f"{found.seconds / 60:.1f} minutes of {len(found.cells)} cells and the court, added up"
    return [*lines, f"- {minutes}, version {found.version}. {found.advice.sentence}"]


def panels(found: Comparison) -> list[Panel]:
    """Accuracy against ε: what is proven with circles, what is claimed dashed with triangles."""
    rows, made = found.rows(), []
    epsilons = sorted({row.epsilon_asked for row in rows if row.epsilon_asked is not None})
    levels = {row.method: 100 * row.accuracy for row in rows if row.method in BESIDE}
    for channel in CHANNELS:
        own = [row for row in rows if row.channel == channel]
        if not own:
            continue
        lines = [Line(BESIDE[name], [(one, level) for one in epsilons], "none") for name, level in levels.items()]
        for method in dict.fromkeys(row.method for row in own):
            asked = {row.epsilon_asked: 100 * row.accuracy for row in own if row.method == method}
            points = [(one, asked.get(one, asked.get(None))) for one in epsilons]
            mark = "circle" if next(row for row in own if row.method == method).status == "proven" else "triangle"
            lines.append(Line(method.partition("/")[2], [(x, y) for x, y in points if y is not None], mark))
        low = 10 * math.floor(min(y for line in lines for _, y in line.points) / 10)
        made.append(Panel(channel, "ε", lines, low, 100, logarithmic=True, ticks=epsilons))
    return made


if __name__ == "__main__":
    main()

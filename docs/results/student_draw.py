"""Draws Figures 2 and 3 of docs/results/student.md from the rows that student.py and student_masked.py printed.

python docs/results/student_draw.py rows.jsonl

Writes student-figure2.svg (what each setting of `published` does) and student-figure3.svg (`private-teacher`: accuracy
against ε) beside this file, and prints the first as a table; what is not among the rows is left out. Of rows that
differ in the seed alone the mean is taken.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from plot import Line, Panel, write

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
# What a row of Figure 2 varies; all else is as in its config.
VARIED = ("hint_epochs", "rounds", "distil_epochs", "query_batch", "noise_scale", "select_rate", "select", "bound")
NAMES = {
    "mnist-masked": "MNIST, 6 and 9 private only",
    "mnist": "MNIST, 40% public",
    "cifar10": "CIFAR-10, 80% public",
    "digits-masked": "8 × 8 digits, 6 and 9 private only",
    "digits": "8 × 8 digits, 40% public",
}
PAPER = {"mnist-masked": [(5.2, 80.93), (8.7, 88.48), (29.8, 90.35)]}  # Table 1, at claimed ε; nothing is proven


def main() -> None:
    """Read the rows, write the pictures, print the table."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    second = [row for row in rows if "figure2" in row.get("config", "")]
    third = [row for row in rows if "private-teacher" in row.get("config", "")]
    if second:
        write(HERE / "student-figure2.svg", "What each setting does", _second(second), columns=3)
        print("\n".join(_table(second)))
    if third:
        write(HERE / "student-figure3.svg", "Accuracy against ε", _third(third))


def _second(rows: list[Row]) -> list[Panel]:
    middle = [row for row in rows if not changed(row)]
    panels = []
    for title, across, key, unit in (
        ("(a) Hint epochs", "T_h", "hint_epochs", 10),
        ("(b) Distillation epochs in all", "R · T_d", "total", 20),
        ("(c) Batch size of queries", "S", "query_batch", 512),
        ("(d) Noise scale", "σ", "noise_scale", 10),
        ("(e) Share of public records asked", "share", "select_rate", 0.2),
        ("(f) Norm bound of the loss", "B", "bound", None),
    ):
        points = [(float(unit), _score(middle))] if unit is not None else []
        own: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for name, found in _groups(rows, key).items():
            own[name] = sorted({*found, *points} if name in ("", "R = 5", "k-centre") else found)
        lines = [Line(name or "student", found, "circle") for name, found in own.items()]
        if key == "bound":
            level = _score(middle)
            lines.append(Line("adaptive", [(x, level) for x, _ in lines[0].points], "none"))
        every = [y for line in lines for _, y in line.points]
        if not every:
            continue
        ticks = sorted({x for line in lines for x, _ in line.points} - {20.0 if key == "noise_scale" else math.nan})
        low = math.floor(min(every))
        high = low + 2 * math.ceil((max(every) - low + 0.01) / 2)
        logs = key in ("query_batch", "noise_scale", "bound", "select_rate")
        panels.append(Panel(title, across, lines, low, high, logarithmic=logs, ticks=ticks))
    return panels


def _groups(rows: list[Row], key: str) -> dict[str, list[tuple[float, float]]]:
    """Points of a panel, by the line that they belong to."""
    found: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        own = changed(row)
        if key == "total" and set(own) == {"rounds", "distil_epochs"}:
            found[f"R = {own['rounds']}", own["rounds"] * own["distil_epochs"]].append(row)
        elif key == "select_rate" and set(own) & {"select", "select_rate"}:
            found[own.get("select", "k-centre"), own.get("select_rate", 0.2)].append(row)
        elif set(own) == {key}:
            found["", own[key]].append(row)
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (name, x), own_rows in sorted(found.items()):
        lines[name].append((x, _score(own_rows)))
    return lines


def _third(rows: list[Row]) -> list[Panel]:
    panels = []
    for words, name in NAMES.items():
        own = [row for row in rows if _data(row) == words]
        if not own:
            continue
        lines = [
            Line("student, proven ε", _by_epsilon(own, lambda row: row["student"]["overall"]), "circle"),
            Line("its teacher", _by_epsilon(own, lambda row: row["teacher_accuracy"]), "circle"),
            Line("student by itself", _by_epsilon(own, lambda row: row["base"]["overall"]), "none"),
        ]
        if words in PAPER:
            lines.append(Line("paper, claimed ε", PAPER[words], "triangle"))
        if "unseen" in own[0]["student"]:
            lines.append(Line("student, 6 and 9", _by_epsilon(own, lambda row: row["student"]["unseen"]), "circle"))
        every = [y for line in lines for _, y in line.points]
        low = 4 * math.floor(min(every) / 4)
        high = low + 4 * math.ceil((max(every) - low) / 4)
        ticks = sorted({x for line in lines for x, _ in line.points})
        panels.append(Panel(name, "ε", lines, low, high, logarithmic=True, ticks=ticks))
    return panels


def _by_epsilon(rows: list[Row], what: Callable[[Row], float]) -> list[tuple[float, float]]:
    found: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        found[round(row["epsilon"], 2)].append(100 * what(row))
    return sorted((epsilon, fmean(values)) for epsilon, values in found.items())


def _data(row: Row) -> str:
    words = str(row["config"]).removeprefix("student-private-teacher-")
    return words.partition("-eps")[0]


def _table(rows: list[Row]) -> list[str]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        own = changed(row)
        found[", ".join(f"{key} = {value}" for key, value in own.items()) or "as in the config"].append(row)
    middle = _score([row for row in rows if not changed(row)])
    lines = ["| changed | student | against the config | hint, distillation batches clipped |", "|---|---|---|---|"]
    for name, own_rows in found.items():
        score = _score(own_rows)
        clipped = ", ".join(f"{100 * fmean(row['clipped'].get(stage, 0.0) for row in own_rows):.0f}%"
                            for stage in sorted(own_rows[0]["clipped"]))  # fmt: skip
        lines.append(f"| {name} | {score:.2f} | {score - middle:+.2f} | {clipped} |")
    return lines


def changed(row: Row) -> Row:
    """What this row of Figure 2 has otherwise than its config."""
    return {key: row[key] for key in VARIED if key in row}


def _score(rows: Sequence[Row]) -> float:
    return fmean(row["student"] for row in rows) if rows else math.nan


if __name__ == "__main__":
    main()

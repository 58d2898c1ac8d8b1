"""`airlock plan`: the guarantee before any data is read.

The curve of ε is drawn in the terminal, with braille dots if they can be shown, otherwise with plain characters or as a
few rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.features import choice, chosen_json
from airlock.cli.terminal import (
    ConfigArgument,
    DataDirOption,
    DeltaOption,
    EpsilonOption,
    JsonOption,
    SeedOption,
    SetOption,
    VaultOption,
    overrides,
    print_json,
    print_lines,
    print_table,
    protects,
    shown,
    translate_errors,
)
from airlock.errors import ConfigError, Refused

if TYPE_CHECKING:
    from airlock.accounting import Curve
    from airlock.config import ReleaseConfig
    from airlock.methods import Plan
    from airlock.training.front_ends.choose import Chosen

# The curve in the terminal.

_ROWS, _WIDEST, _NARROWEST = 10, 76, 40
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of a braille cell: by column, from the top
_LISTED = 6


def chart(curve: Curve, width: int, *, plain: bool = False) -> str:
    """The curve as lines of text, none longer than `width`.

    Args:
        curve: What to draw.
        width: Columns of the terminal; below 40 a few points are listed instead.
        plain: Draw with ASCII characters only.
    """
    from airlock.bundle.rendering.svg import from_zero, label

    if width < _NARROWEST:
        return "\n".join([f"{curve.says}:", *_listed(curve)])
    xs, ys = from_zero(curve.points[-1].at, 7).ticks, from_zero(curve.points[-1].epsilon, 6).ticks
    below, beside = [label(x, xs) for x in xs], [label(y, ys) for y in ys]
    margin = max(map(len, beside)) + 1
    columns = min(width, _WIDEST) - margin - 3 - len(below[-1]) - len(curve.unit)
    rows = {_ROWS - round(_ROWS * i / (len(ys) - 1)): text for i, text in enumerate(beside)}
    places = [round(i * (columns - 1) / (len(xs) - 1)) for i in range(len(xs))]
    bar, tick, corner, flat, mark = "|++-+" if plain else "│┤└─┬"
    lines = [
        f"{rows.get(i, ''):>{margin}}{tick if i in rows else bar}{cells}".rstrip()
        for i, cells in enumerate(_cells(curve, columns, xs[-1], ys[-1], plain))
    ]
    floor = "".join(mark if i in places[1:] else flat for i in range(columns))
    lines.append(f"{rows[_ROWS]:>{margin}}{corner}{floor}")
    lines.append(f"{_spread(below, [margin + 1 + place for place in places])} {curve.unit}")
    return "\n".join([curve.says, *lines, *_ends(curve)])


def _ends(curve: Curve) -> list[str]:
    """Where it starts and ends, in numbers."""
    first, last = curve.points[0], curve.points[-1]
    lines = [f"ε is {first.epsilon:.4g} before the first step."] if first.steps == 0 else []
    way = f"{last.steps:,} steps" + ("" if curve.unit == "steps" else f" ({last.at:.4g} {curve.unit})")
    return [*lines, f"ε is {last.epsilon:.4f} after all {way}."]


def _listed(curve: Curve) -> list[str]:
    """A few of the points, including the first and the last."""
    picked = sorted({round(i * (len(curve.points) - 1) / (_LISTED - 1)) for i in range(_LISTED)})
    return [f"{curve.points[i].at:>9.4g}  {curve.points[i].epsilon:.4f}" for i in picked]


def _cells(curve: Curve, columns: int, right: float, top: float, plain: bool) -> Iterator[str]:
    """The rows of the drawing from the top; a cell is two dots wide and four high."""
    cells = [[0] * columns for _ in range(_ROWS)]
    for x, y in _line(curve, 2 * columns, 4 * _ROWS, right, top):
        cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    for row in cells:
        yield "".join(("*" if plain else chr(0x2800 + bits)) if bits else " " for bits in row)


def _line(curve: Curve, width: int, height: int, right: float, top: float) -> Iterator[tuple[int, int]]:
    """The dots of a line through all points, without gaps; (0, 0) is the upper left one."""
    import numpy as np

    at, epsilon = [p.at for p in curve.points], [p.epsilon for p in curve.points]
    before = None
    for x in range(round(at[0] / right * (width - 1)), round(at[-1] / right * (width - 1)) + 1):
        share = float(np.interp(x / (width - 1) * right, at, epsilon)) / top
        y = min(height - 1, round((1 - share) * height))
        for step in range(y, max(y + 1, y if before is None else before)):
            yield x, step
        before = y


def _spread(texts: Sequence[str], places: Sequence[int]) -> str:
    """Every text centred at its place; one that would touch the previous text is left out."""
    line = ""
    for text, place in zip(texts, places, strict=True):
        start = max(0, place - len(text) // 2)
        if start > len(line) or not line:
            line = line.ljust(start) + text
    return line


# The command.


NOT_COVERED = "NOT COVERED: "  # how an assumption begins that says who or what the guarantee leaves out
NO_CURVE = "There is no curve of ε: nothing is guaranteed after any number of steps; a paper's claim is not plotted."


@translate_errors
def plan(
    config: Path = ConfigArgument,
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    figure: Path | None = typer.Option(
        None, "--figure", help="Also plot ε over the course of the run in this SVG file.", show_default=False
    ),
    characterised: Path | None = typer.Option(
        None,
        "--characterised",
        help="A file from `airlock features characterise`: say which layers and channels meet the limits, and why.",
        show_default=False,
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Say what a release would cost, before any record is read."""
    from airlock.bundle.rendering.charts import draw_curve
    from airlock.bundle.rendering.svg import check_figure, write_figure
    from airlock.config import load
    from airlock.methods import is_free
    from airlock.pipeline import plan_in_register

    if figure is not None:
        check_figure(figure)
    asked = load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed))
    chosen = _chosen(asked, characterised, figure)
    made, counted = plan_in_register(asked, data_dir, vault)
    parts = _parts(asked, data_dir)
    curve = made.curve()
    if figure is not None and chosen is None:
        write_figure(figure, draw_curve(_drawable(made, curve), f"Plan: {made.channel}/{made.method}"))
    if as_json:
        print_json(
            {
                "channel": made.channel,
                "method": made.method,
                "method_chosen": is_free(asked),
                "guarantee": made.guarantee.to_dict(),
                "details": dict(made.details),
                "parts": parts,
                "curve": curve.to_dict() if curve else None,
            }
            | ({"chosen": chosen_json(chosen)} if chosen else {})
            | ({"register": asdict(counted)} if counted else {})
            | _search_json(made)
        )
        if counted and not (counted.fits or counted.resumes):
            raise counted.refusal()
        return
    _print_table(made, parts, is_free(asked))
    _print_search(asked, made)
    if chosen and "chosen" not in made.details:
        print_lines(lambda width, plain: chosen.why)
    if curve:
        print_lines(lambda width, plain: chart(curve, width, plain=plain))
    elif math.isinf(made.guarantee.epsilon):
        print_lines(lambda width, plain: NO_CURVE)
    if counted:
        print_lines(lambda width, plain: counted.sentence())
        if not (counted.fits or counted.resumes):
            raise counted.refusal()
    if figure is not None:
        print_lines(lambda width, plain: f"Figure: {shown(figure)}")


def _chosen(config: ReleaseConfig, file: Path | None, figure: Path | None) -> Chosen | None:
    """Layers and channels by the config's limits, from public measurements; the figure shows these."""
    if config.channel != "features":
        if file is not None:
            raise ConfigError("--characterised with the channel features", f"'{config.channel}'")
        return None
    named = file or config.settings.get("characterised")
    if named is None:
        return None
    from airlock.training.front_ends.characterised import Characterised

    return choice(Characterised.read(Path(named)), config, figure)


def _drawable(made: Plan, curve: Curve | None) -> Curve:
    if curve is not None:
        return curve
    what = f"an ε to plot for {made.channel}/{made.method}"
    if math.isfinite(made.guarantee.epsilon):
        raise Refused(what, "one that does not accumulate in steps", do="Leave out --figure.")
    why = "A figure of a claim would look like a guarantee."
    raise Refused(what, "no bound", why, "Leave out --figure, or use a proven method.")


NEXT = "the mean cross-entropy of a text's next tokens; what is cut off or empty does not count"
CHOSEN = "chosen from public facts, since the config names none; to fix it, write method = "


def _parts(config: ReleaseConfig, data_dir: Path | None) -> dict[str, Any]:
    """The expected sizes of the parts, and why no attack could be made, if so; from public figures alone."""
    from airlock.auditing.members import too_few
    from airlock.auditing.regression_errors import in_unit
    from airlock.data import describe
    from airlock.data.split import Part

    facts = describe(config, data_dir)
    names: tuple[Part, ...] = ("private", "public", "test", "holdout")
    sizes = {name: facts.expected(name, config.split) for name in names}
    target = facts.target
    predicts = {} if target is None else {"predicts": f"{in_unit(target.min, target)} to {in_unit(target.max, target)}"}
    predicts |= {"loss": NEXT} if facts.task == "language" else {}
    reads = {} if facts.vocabulary is None else {
        "reads": {"tokens": facts.shape[0], "vocabulary": facts.vocabulary, "tokenizer": facts.tokenizer}
    }  # fmt: skip
    return {"counted": facts.counted, "sizes": sizes, "no_attacks": too_few(facts, config.split), **predicts, **reads}


def _print_table(made: Plan, parts: dict[str, Any], chosen: bool) -> None:
    promise = made.guarantee
    left_out = [line.removeprefix(NOT_COVERED) for line in promise.assumptions if line.startswith(NOT_COVERED)]
    rows: list[tuple[str, Any]] = [
        ("what leaves", made.leaves),
        *([("method", f'{made.method}: {CHOSEN}"{made.method}"')] if chosen else []),
        ("status", promise.status),
        ("protects", protects(promise.unit, promise.relation)),
        *(("not covered", line) for line in left_out),
        ("ε", f"{promise.epsilon:.4f}" if math.isfinite(promise.epsilon) else "no bound"),
        ("δ", f"{promise.delta:g}"),
        ("accountant", f"{promise.accountant_used}, {promise.accountant_version}"),
        ("sampling", promise.sampling),
        ("parts, about", ", ".join(f"{size:,} {name}" for name, size in parts["sizes"].items() if size)),
        *([("no attacks", parts["no_attacks"])] if parts["no_attacks"] else []),
        *([("predicts a number, from", parts["predicts"])] if "predicts" in parts else []),
        *([("loss of a record", parts["loss"])] if "loss" in parts else []),
        *(_about_texts(parts["reads"]) if "reads" in parts else []),
        *((key.replace("_", " "), _number(value)) for key, value in made.details.items()),
    ]
    print_table(f"Plan: {made.channel}/{made.method}", ["", ""], [[key, str(value)] for key, value in rows])


def _about_texts(reads: dict[str, Any]) -> list[tuple[str, str]]:
    """What a text becomes, and by which public tokenizer."""
    said = f"its first {reads['tokens']:,} tokens, of {reads['vocabulary'] - 1:,}"
    return [("reads of a text", said), ("tokenizer, SHA-256", str(reads["tokenizer"]))]


def _search_json(made: Plan) -> dict[str, Any]:
    from airlock.methods.search import SearchFigures

    own = made.figures
    return {"search": {**vars(own), "candidates": list(own.candidates)}} if isinstance(own, SearchFigures) else {}


def _print_search(config: ReleaseConfig, made: Plan) -> None:
    """What is searched, what the search costs, and what it would cost if it were paid for in other ways."""
    from airlock.bundle.rendering.text import candidate
    from airlock.methods.search import SearchFigures

    own = made.figures
    if not isinstance(own, SearchFigures) or config.tune is None:
        return
    rows = [
        ["candidates", "\n".join(candidate(one) for one in own.candidates)],
        ["runs", f"{own.mean:g} on average, drawn at random with shape {own.shape:g}; how many stays secret"],
        ["each run is planned with", f"ε = {own.run_epsilon:g}"],
        ["one score costs a test record", f"ε = {own.score_epsilon:g}"],
        ["the search costs", f"ε = {own.costs['search']:.4f}"],
        [f"tuning_runs = {math.ceil(own.mean)}, each paid for, would cost", f"ε = {own.costs['every run']:.4f}"],
        ["a card that hides the search would say", f"ε = {own.costs['unpaid']:.4f}, which is false"],
    ]
    print_table("Search: the details above are those of the first candidate", ["", ""], rows)


def _number(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

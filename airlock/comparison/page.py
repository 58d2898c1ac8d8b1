"""A comparison as one page: which way out it would choose and why, the figures behind it, and what was not tested.

In: a `Comparison`. Out: one HTML file that loads nothing. It can be read, printed and signed off without its script,
which sorts the table and changes the colours. Every value is escaped where it is printed.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jinja2 import Environment
from markupsafe import Markup

from airlock.bundle.rendering import formatting, page
from airlock.bundle.rendering.page import BADGES, day, file_size, percent, tight
from airlock.comparison import charts
from airlock.comparison.results import Comparison, replace_file
from airlock.comparison.values import (
    PUBLIC,
    WORDS,
    Attacked,
    Cell,
    Need,
    Row,
    Standing,
    Verdict,
    words_for,
    worst_attack,
)

NAME = "report.html"
PLAIN = "weights/gaussian"  # plain DP-SGD, with which every channel is compared
CHANNELS = {
    "weights": "a model trained under noise",
    "twin": "a model put together from many",
    "student": "a compact model",
    "features": "features instead of records",
    "answers": "answers to questions",
}
INSIDE = "Keep inside"
MAY_BE_SHOWN = (
    "{name} is a public set of records, so this page may be shown. The same page about your own records may not: it "
    "would be computed from private records and covered by no ε."
)
RECEIVES = {
    "white-box": "the receiver gets the thing itself (white-box)",
    "black-box": "the receiver may only ask (black-box)",
    None: "nothing was said about who receives it",
}


@dataclass(frozen=True)
class Shown:
    """One line of the table: a row, how its promise stands, and the strongest attack on it over the seeds."""

    number: int
    row: Row
    standing: Standing
    auc_low: float | None
    auc_high: float | None
    verdict: Verdict | None

    @property
    def says(self) -> str:
        """The line in a sentence, for those who hear the figures."""
        row = self.row
        at = "" if row.epsilon_asked is None else f" at ε = {row.epsilon_asked:g}"
        score = "" if row.auc is None else f", AUC of the strongest attack {row.auc:.2f}"
        return (
            f"{words_for(row.method)}{at}: accuracy {percent(row.accuracy)} ({percent(row.low)} to {percent(row.high)})"
            f"{score}, {charts.WORDS[self.standing]}."
        )


@dataclass(frozen=True)
class Way:
    """One method among those of its channel: what leaves, whom it protects, what it costs."""

    number: int
    method: str
    standing: Standing
    leaves: str
    protects: str
    seconds: float
    bytes: int | None
    parameters: int | None
    queries: int | None
    verdict: Verdict | None
    others: tuple[Attacked, ...]  # what was done beside asking who is a member


@dataclass(frozen=True)
class Gap:
    """Something that was not tested, and why."""

    what: str
    reason: str


def write_page(folder: Path, found: Comparison) -> Path:
    """The page, for its owner alone, whole or not at all."""
    place = folder / NAME
    replace_file(place, render(found))
    return place


def render(found: Comparison) -> str:
    """The page."""
    script = (
        importlib.resources.files("airlock.comparison").joinpath("templates/compare.js").read_text(encoding="utf-8")
    )
    shown = lines(found)
    chosen = found.advice.method
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            found=found,
            themed=True,
            script=Markup(script),
            allowed=Markup(page.allow_script(script)),
            badge=BADGES["proven" if chosen else "unproven"],
            first_lines=first_lines(found),
            inside=INSIDE if not found.data.named else "Public data",
            need=need_words(found.need),
            lines=shown,
            standings=[one for one in charts.WORDS if any(line.standing == one for line in shown)],
            accuracy=accuracy_figures(found, shown),
            attacks=attack_figures(found, shown),
            ways=ways(found, shown),
            gaps=gaps(found),
            untried=untried(found.cells),
        )
    )


def first_lines(found: Comparison) -> tuple[str, ...]:
    """What must be said before any figure: whether this may leave, and what looking at it costs."""
    if not found.data.named:
        return found.notes
    return (MAY_BE_SHOWN.format(name=found.data.name), *found.notes[1:])


def need_words(need: Need) -> str:
    """The need that was stated, in one sentence."""
    parts = [RECEIVES[need.receives]]
    parts.append("it may run anywhere" if need.runs_on == "any" else f"it runs on a {need.runs_on}")
    if need.queries is not None:
        parts.append(f"at least {need.queries:,} questions will be asked")
    if need.public is not None:
        parts.append("there are public records of the same kind" if need.public else "there are no public records")
    if need.epsilon is not None:
        parts.append(f"ε = {need.epsilon:g}")
    return f"The stated need: {'; '.join(parts)}."


def lines(found: Comparison) -> list[Shown]:
    """Every method at every ε, by ε and then by accuracy; what has no ε stands last."""
    numbers: dict[str, int] = {}
    shown = []
    for row in found.rows():
        attacks = _strongest(found.cells, row)
        shown.append(
            Shown(
                number=numbers.setdefault(row.method, len(numbers) + 1),
                row=row,
                standing=found.standing(row),
                auc_low=fmean(one.low for one in attacks) if attacks else None,
                auc_high=fmean(one.high for one in attacks) if attacks else None,
                verdict=found.verdict(row.method),
            )
        )
    return sorted(shown, key=lambda line: (line.row.epsilon_asked or math.inf, -line.row.accuracy))


def _strongest(cells: Iterable[Cell], row: Row) -> list[Attacked]:
    """The strongest attack on each seed of a row."""
    own = [cell for cell in cells if (cell.method, cell.epsilon_asked) == (row.method, row.epsilon_asked)]
    return [worst for cell in own if cell.accuracy is not None and (worst := worst_attack(cell))]


def accuracy_figures(found: Comparison, shown: Sequence[Shown]) -> list[Markup]:
    """One panel a channel, on a scale of its own; models without noise and plain DP-SGD are in each."""
    if not shown:
        return []
    epsilons = found.epsilons or (1.0,)
    open_levels = [charts.Level(words_for(line.row.method), _point(line)) for line in shown if _is_aside(line.row)]
    plain = charts.Line("DP-SGD", _points(shown, PLAIN), aside=True)
    drawn: list[Markup] = []
    for channel in _channels(shown):
        own = _methods(shown, channel)
        seen = [line.row for line in shown if _is_aside(line.row) or line.row.method in (PLAIN, *own)]
        across = charts.span(value for row in seen for value in (row.low, row.high))
        methods = [charts.Line(_short(method), _points(shown, method)) for method in own]
        levels = [
            charts.Level(_short(line.row.method), _point(line))
            for line in shown
            if line.row.channel == channel and line.row.epsilon_asked is None
        ]
        beside = [] if PLAIN in own else [plain]
        drawn.append(
            Markup(
                charts.draw_accuracy(
                    f"accuracy-{len(drawn)}", _title(channel), [*methods, *beside], [*open_levels, *levels], epsilons,
                    across,
                )
            )
        )  # fmt: skip
    return drawn


def attack_figures(found: Comparison, shown: Sequence[Shown]) -> list[Markup]:
    """One panel an ε, all methods in each; what has no ε is in every one."""
    known = [line for line in shown if line.row.auc is not None]
    if not known:
        return []
    score = charts.span(
        [0.5, *(value for line in known for value in (line.auc_low, line.auc_high) if value is not None)]
    )
    drawn: list[Markup] = []
    for epsilon in found.epsilons:
        here = [line for line in known if line.row.epsilon_asked in (None, epsilon)]
        if any(line.row.epsilon_asked is not None for line in here):
            points = [_attacked(line) for line in here]
            across = charts.span(line.row.accuracy for line in here)
            name, title = f"attacks-{len(drawn)}", f"At ε = {epsilon:g}"
            drawn.append(Markup(charts.draw_attacks(name, title, points, across, score)))
    return drawn


def _channels(shown: Sequence[Shown]) -> list[str]:
    """Those that have a row, in the order of the house, then any other."""
    found = {line.row.channel for line in shown if not _is_aside(line.row)}
    return [*(name for name in CHANNELS if name in found), *sorted(found - set(CHANNELS))]


def _methods(shown: Sequence[Shown], channel: str) -> list[str]:
    """Those of a channel, in the order in which they were run."""
    own = {line.number: line.row.method for line in shown if line.row.channel == channel}
    return [own[number] for number in sorted(own)]


def _title(channel: str) -> str:
    return f"{channel}: {CHANNELS[channel]}" if channel in CHANNELS else channel


def _points(shown: Sequence[Shown], method: str) -> list[charts.Point]:
    return [_point(line) for line in shown if line.row.method == method and line.row.epsilon_asked is not None]


def _point(line: Shown) -> charts.Point:
    row = line.row
    return charts.Point(
        row.epsilon_asked or 1.0, row.accuracy, row.low, row.high, line.standing, _short(row.method), line.says
    )


def _attacked(line: Shown) -> charts.Point:
    row = line.row
    return charts.Point(
        row.auc or 0.5, row.accuracy, row.low, row.high, line.standing, str(line.number), line.says, line.auc_low,
        line.auc_high,
    )  # fmt: skip


def ways(found: Comparison, shown: Sequence[Shown]) -> list[tuple[str, list[Way]]]:
    """Every channel that was run, with its methods."""
    by_name = {line.row.method: line for line in shown}
    groups = []
    for channel in _channels(shown):
        groups.append((_title(channel), [_way(found, by_name[one], shown) for one in _methods(shown, channel)]))
    return groups


def _way(found: Comparison, line: Shown, shown: Sequence[Shown]) -> Way:
    rows = [other.row for other in shown if other.row.method == line.row.method]
    standings = [other.standing for other in shown if other.row.method == line.row.method]
    first = next(cell for cell in found.cells if cell.method == line.row.method and cell.accuracy is not None)
    return Way(
        number=line.number,
        method=line.row.method,
        standing="refuted" if "refuted" in standings else line.standing,
        leaves=first.leaves,
        protects=first.protects,
        seconds=fmean(row.seconds for row in rows),
        bytes=max((row.bytes for row in rows if row.bytes is not None), default=None),
        parameters=max((row.parameters for row in rows if row.parameters is not None), default=None),
        queries=min((row.queries for row in rows if row.queries is not None), default=None),
        verdict=line.verdict,
        others=tuple(one for one in first.attacks if one.aim != "membership"),
    )


def gaps(found: Comparison) -> list[Gap]:
    """All that was not tested: methods that do not fit, cells that failed or were dropped, claims not tried."""
    listed = [Gap(words_for(one.method, one.epsilons), one.reason) for one in found.skipped]
    listed += [Gap(f"{_cell(one)} failed", one.error) for one in found.cells if one.error is not None]
    listed += [Gap(what, reason) for what, reason in found.left_out()]
    listed += [Gap(f"{one.method}, trial before the court", one.error) for one in found.court if one.error is not None]
    tried = {one.method for one in found.court} | {one.method for one in found.dropped if one.seed is None}
    methods = dict.fromkeys(cell.method for cell in found.cells if not _is_aside(cell))
    listed += [Gap(f"{one}, trial before the court", "No trial was made.") for one in methods if one not in tried]
    return listed


def untried(cells: Iterable[Cell]) -> list[Gap]:
    """Attacks that were not made, each once, with the methods that it is about as `what`."""
    about: dict[str, dict[str, None]] = {}
    for cell in cells:
        for sentence in cell.not_tested:
            about.setdefault(sentence, {})[words_for(cell.method)] = None
    every = {words_for(cell.method) for cell in cells if cell.accuracy is not None and cell.method != PUBLIC}
    return [
        Gap("every method" if set(methods) >= every else ", ".join(methods), sentence)
        for sentence, methods in about.items()
    ]


def _cell(one: Cell) -> str:
    asked = () if one.epsilon_asked is None else (one.epsilon_asked,)
    return f"{words_for(one.method, asked)}, seed {one.seed}"


def _is_aside(one: Cell | Row) -> bool:
    """Whether it is there to be compared with, and is no way out."""
    return one.method in WORDS


def _short(method: str) -> str:
    return words_for(method).rpartition("/")[2]


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, in two parts at most."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@functools.cache
def _environment() -> Environment:
    environment = page.room_environment("comparison")
    environment.filters |= {
        "percent": percent,
        "tight": tight,
        "day": day,
        "size": file_size,
        "duration": duration,
        "method": words_for,
        "epsilon": formatting.epsilon_up,
        "short": formatting.short,
        "glyph": lambda standing: Markup(charts.glyph(standing)),
        "standing": lambda standing: charts.WORDS[standing],
    }
    return environment

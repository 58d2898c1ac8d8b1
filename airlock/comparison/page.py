"""The results of a comparison, and the page that shows them: the recommended method and why, and what was not tested.

Nothing in a `Comparison` is covered by an ε: accuracies and attack figures of many runs were computed from private
records. Its `notes` say so, and must be shown wherever it is shown.

The page (`render`) is one HTML file that loads nothing else. It can be read, printed and signed off without its script,
which only sorts the table and changes the colours. Every value is escaped where it is printed. A notebook displays a
comparison as its page.
"""

from __future__ import annotations

import csv
import datetime
import functools
import importlib.resources
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jinja2 import Environment
from markupsafe import Markup

from airlock.bundle.files import replace_file
from airlock.bundle.rendering import formatting, page, svg
from airlock.bundle.rendering.page import day, file_size, percent, tight
from airlock.bundle.rendering.strength import strength
from airlock.bundle.rendering.text import UNITS, Mark, mark
from airlock.comparison import charts
from airlock.comparison.bars import Shown, accuracy_bars, attack_bars, is_aside
from airlock.comparison.choices import choices
from airlock.comparison.values import (
    PUBLIC,
    Advice,
    AttackSummary,
    Cell,
    ComparedData,
    Dropped,
    MethodVerdict,
    Need,
    Row,
    Seconds,
    Skipped,
    Standing,
    rows_of,
    words_for,
    worst_attack,
)
from airlock.config import Count, Delta, Epsilon, Frozen

COMPUTED_FROM_RECORDS = (
    "These results were computed from private records, by many runs that no ε covers: they are for the holder of the "
    "records and must stay inside, unless the records are public."
)
CHOICE_DEPENDS = (
    "Choosing a method by these results is a choice that depends on the records. The ε of the release that is made "
    "next does not count it, and tuning_runs does not either: that pays for repeated runs of one method. "
    "airlock compare --pay makes such a choice between methods itself, airlock tune also between settings, and "
    "their ε pays for it."
)
NOTES = (COMPUTED_FROM_RECORDS, CHOICE_DEPENDS)
NO_BETTER = (
    "No better than blind guessing, which is right {blind} of the time: {names}. Their accuracy says nothing, however "
    "high it is; `airlock gate` rejects such a release."
)
SAYS_STRENGTH = (
    "Proven, {joined}, at this ε: whoever guesses whether {used}, right half the time without the release, is "
    "right at most {guess} of the time with it: {means}."
)
NAME = "report.html"
PLAIN = "weights/gaussian"  # plain DP-SGD, the reference for every channel
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
    "white-box": "the receiver gets the model",
    "black-box": "the receiver may only ask",
    None: "nothing was said about who receives it",
}


class Comparison(Frozen):
    """All results of a comparison.

    Args:
        data: What is public about the records.
        epsilons: The requested values of ε.
        delta: The δ of every guarantee.
        seeds: The requested seeds.
        cells: Every finished run, in the order of the matrix.
        skipped: Methods that do not apply.
        dropped: Cells that were not run.
        court: Verdicts on the claims.
        need: What the release is for.
        advice: The chooser's recommendation.
        version: The version of Airlock.
        started: The start time, in UTC.
        seconds: The total time of all cells; longer than the wall-clock time if several ran at once.
        complete: Whether every cell of the matrix was run.
        notes: What must be said wherever these results are shown.
    """

    data: ComparedData
    epsilons: tuple[Epsilon, ...]
    delta: Delta
    seeds: tuple[Count, ...]
    cells: tuple[Cell, ...]
    skipped: tuple[Skipped, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    court: tuple[MethodVerdict, ...] = ()
    need: Need = Need()
    advice: Advice
    version: str
    started: datetime.datetime
    seconds: Seconds
    complete: bool = True
    notes: tuple[str, ...] = NOTES

    def __repr__(self) -> str:
        runs = f"{len(self.cells)} runs{'' if self.complete else ', not all that were planned'}"
        return f"{self.data.name}, {runs}: {self.advice.sentence} {self.notes[0]}"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return page.in_notebook(repr(self), render(self))

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity; missing values are null."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """One line per cell, including failed ones; claims have their own column."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([*_COLUMNS, "standing", "attack", "attack_auc", "attack_low", "attack_high"])
        for cell in self.cells:
            worst = worst_attack(cell)
            found = ("", "", "", "") if worst is None else (worst.name, worst.auc, worst.low, worst.high)
            values = [getattr(cell, name) for name in _COLUMNS]
            lines.writerow(["" if value is None else value for value in (*values, self.standing(cell), *found)])
        return text.getvalue()

    def rows(self) -> tuple[Row, ...]:
        """Every method at every ε, aggregated over its seeds, in the order of the cells; failed cells are left out."""
        return rows_of(self.cells)

    def no_better(self) -> str:
        """Which methods are no better than a blind guess, in a sentence; empty if none is."""
        found = [row for row in self.rows() if row.no_better and row.method != PUBLIC]
        if not found:
            return ""
        blind = max(1.0 / len(self.data.classes), *(row.majority or 0.0 for row in found))
        names = (words_for(row.method, () if row.epsilon_asked is None else (row.epsilon_asked,)) for row in found)
        return NO_BETTER.format(blind=percent(blind), names=", ".join(names))

    def left_out(self) -> list[tuple[str, str]]:
        """Dropped cells grouped by method, and why they were dropped."""
        runs: dict[tuple[str, str, bool], dict[float | None, list[int | None]]] = {}
        for one in self.dropped:
            which = one.method, one.reason, one.seed is None
            runs.setdefault(which, {}).setdefault(one.epsilon_asked, []).append(one.seed)
        found = []
        for (method, reason, _), by_epsilon in runs.items():
            by_seeds: dict[tuple[int | None, ...], list[float]] = {}
            for epsilon, seeds in by_epsilon.items():
                by_seeds.setdefault(tuple(seeds), []).extend(() if epsilon is None else (epsilon,))
            for own, epsilons in by_seeds.items():
                found.append((f"{words_for(method, epsilons)}, {_seeds(own)}", reason))
        return found

    def verdict(self, method: str) -> MethodVerdict | None:
        """The court's verdict on a method; None if it was not tried."""
        return next((one for one in self.court if one.method == method and one.error is None), None)

    def standing(self, one: Cell | Row) -> Standing:
        """The status, or "refuted" if the court or an attack has refuted the guarantee or the claim."""
        stated = one.epsilon if one.epsilon is not None else one.claim_epsilon
        by_attack = stated is not None and one.epsilon_measured is not None and one.epsilon_measured > stated
        found = self.verdict(one.method)
        return "refuted" if by_attack or (found is not None and found.refuted) else one.status


_COLUMNS = (
    "method", "channel", "status", "epsilon_asked", "epsilon", "claim_epsilon", "seed", "accuracy", "low", "high",
    "correct", "records", "majority", "balanced_accuracy", "scores_auc", "use",
    "epsilon_measured", "seconds", "bytes", "parameters", "answer_milliseconds", "queries", "error",
)  # fmt: skip


def _seeds(seeds: tuple[int | None, ...]) -> str:
    if seeds == (None,):
        return "trial before the court"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


# The page.


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
    verdict: MethodVerdict | None
    others: tuple[AttackSummary, ...]  # attacks other than membership inference


@dataclass(frozen=True)
class Gap:
    """Something that was not tested, and why."""

    what: str
    reason: str


def write_page(folder: Path, found: Comparison) -> Path:
    """Write the page atomically, readable only by its owner."""
    place = folder / NAME
    replace_file(place, render(found))
    return place


def render(found: Comparison) -> str:
    """The page."""
    script = (
        importlib.resources.files("airlock.comparison").joinpath("templates/compare.js").read_text(encoding="utf-8")
    )
    shown = lines(found)
    epsilon = chart_epsilon(found)
    blind = max([1.0 / max(1, len(found.data.classes)), *(line.row.majority or 0.0 for line in shown)])
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            found=found,
            themed=True,
            script=Markup(script),
            allowed=Markup(page.allow_script(script)),
            state=state(found),
            strength=strength_words(found),
            first_lines=first_lines(found),
            inside=INSIDE if not found.data.named else "Public data",
            need=need_words(found.need),
            no_better=found.no_better(),
            choices=choices(found.advice, found.rows(), len(found.data.classes)),
            epsilon=epsilon,
            bars=accuracy_bars(shown, epsilon, blind) if shown else None,
            attack_bars=attack_bars(shown, epsilon) if any(line.row.auc is not None for line in shown) else None,
            lines=shown,
            standings=[one for one in charts.WORDS if any(line.standing == one for line in shown)],
            accuracy=accuracy_figures(found, shown),
            ways=ways(found, shown),
            gaps=gaps(found),
            untried=untried(found.cells),
        )
    )


def chart_epsilon(found: Comparison) -> float:
    """The ε that is drawn: that of the choice, else the middle one of those compared."""
    if found.advice.epsilon is not None:
        return found.advice.epsilon
    return sorted(found.epsilons)[(len(found.epsilons) - 1) // 2] if found.epsilons else 1.0


def state(found: Comparison) -> Mark:
    """Colour and shape of the page: green only for a proof that is strong at the ε of the choice."""
    if found.advice.method is None or found.advice.epsilon is None:
        return "unproven"
    return mark("proven", strength(found.advice.epsilon, found.delta), ())


def strength_words(found: Comparison) -> str:
    """How much the ε of the choice promises; empty if nothing is chosen."""
    advice = found.advice
    if advice.method is None or advice.epsilon is None:
        return ""
    level = strength(advice.epsilon, found.delta)
    guess = formatting.percent_up(formatting.best_guess(advice.epsilon, found.delta))
    return SAYS_STRENGTH.format(
        joined=level.joined, used=UNITS[found.data.unit]["used"], guess=guess, means=level.means
    )


def first_lines(found: Comparison) -> tuple[str, ...]:
    """What must precede any figure: whether this may leave, and what looking at it costs."""
    if not found.data.named:
        return found.notes
    return (MAY_BE_SHOWN.format(name=found.data.name), *found.notes[1:])


def need_words(need: Need) -> str:
    """The stated need, in one sentence."""
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
    """Every method at every ε, sorted by ε and then by accuracy; rows without an ε come last."""
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


def _strongest(cells: Iterable[Cell], row: Row) -> list[AttackSummary]:
    """The strongest attack on each seed of a row."""
    own = [cell for cell in cells if (cell.method, cell.epsilon_asked) == (row.method, row.epsilon_asked)]
    return [worst for cell in own if cell.accuracy is not None and (worst := worst_attack(cell))]


def accuracy_figures(found: Comparison, shown: Sequence[Shown]) -> list[Markup]:
    """One panel per channel, each with its own scale; models without noise and plain DP-SGD are in every panel."""
    if not shown:
        return []
    epsilons = found.epsilons or (1.0,)
    open_levels = [
        charts.ReferenceLevel(words_for(line.row.method), _point(line)) for line in shown if is_aside(line.row)
    ]
    plain = charts.Series("DP-SGD", _points(shown, PLAIN), aside=True)
    drawn: list[Markup] = []
    for channel in _channels(shown):
        own = _methods(shown, channel)
        seen = [line.row for line in shown if is_aside(line.row) or line.row.method in (PLAIN, *own)]
        across = svg.span(value for row in seen for value in (row.low, row.high))
        methods = [charts.Series(_short(method), _points(shown, method)) for method in own]
        levels = [
            charts.ReferenceLevel(_short(line.row.method), _point(line))
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


def _channels(shown: Sequence[Shown]) -> list[str]:
    """The channels that have a row: Airlock's own in their usual order, then any others."""
    found = {line.row.channel for line in shown if not is_aside(line.row)}
    return [*(name for name in CHANNELS if name in found), *sorted(found - set(CHANNELS))]


def _methods(shown: Sequence[Shown], channel: str) -> list[str]:
    """The methods of a channel, in the order in which they were run."""
    own = {line.number: line.row.method for line in shown if line.row.channel == channel}
    return [own[number] for number in sorted(own)]


def _title(channel: str) -> str:
    return f"{channel}: {CHANNELS[channel]}" if channel in CHANNELS else channel


def _points(shown: Sequence[Shown], method: str) -> list[charts.DataPoint]:
    return [_point(line) for line in shown if line.row.method == method and line.row.epsilon_asked is not None]


def _point(line: Shown) -> charts.DataPoint:
    row = line.row
    return charts.DataPoint(row.epsilon_asked or 1.0, row.accuracy, row.low, row.high, line.standing, line.says)


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
    """Everything that was not tested: methods that do not apply, cells that failed or were dropped, untried claims."""
    listed = [Gap(words_for(one.method, one.epsilons), one.reason) for one in found.skipped]
    listed += [Gap(f"{_cell(one)} failed", one.error) for one in found.cells if one.error is not None]
    listed += [Gap(what, reason) for what, reason in found.left_out()]
    listed += [Gap(f"{one.method}, trial before the court", one.error) for one in found.court if one.error is not None]
    tried = {one.method for one in found.court} | {one.method for one in found.dropped if one.seed is None}
    methods = dict.fromkeys(cell.method for cell in found.cells if not is_aside(cell))
    listed += [Gap(f"{one}, trial before the court", "No trial was made.") for one in methods if one not in tried]
    return listed


def untried(cells: Iterable[Cell]) -> list[Gap]:
    """Attacks that were not run, each once, with the methods concerned as `what`."""
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


def _short(method: str) -> str:
    return words_for(method).rpartition("/")[2]


def duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours, using at most two units."""
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

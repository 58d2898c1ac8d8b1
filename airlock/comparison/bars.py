"""A row of a chart for every method at one ε: its name, its figure, and where that lies beside the others.

Every method has a row of its own, so that no mark covers another and each has its name beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from airlock.bundle.rendering import svg
from airlock.bundle.rendering.page import percent
from airlock.comparison import charts
from airlock.comparison.values import WORDS, Cell, MethodVerdict, Row, Standing, words_for

UNPROVEN = "Not proven: no promise, however accurate"
ATTACKED = ", the strongest attack names the used one of two {share} of the time"


@dataclass(frozen=True)
class Shown:
    """One line of the table: a row, the standing of its guarantee, and the strongest attack on it over the seeds."""

    number: int
    row: Row
    standing: Standing
    auc_low: float | None
    auc_high: float | None
    verdict: MethodVerdict | None

    @property
    def says(self) -> str:
        """The line as a sentence, for screen readers."""
        row = self.row
        at = "" if row.epsilon_asked is None else f" at ε = {row.epsilon_asked:g}"
        score = "" if row.auc is None else ATTACKED.format(share=percent(row.auc))
        return (
            f"{words_for(row.method)}{at}: accuracy {percent(row.accuracy)} ({percent(row.low)} to {percent(row.high)})"
            f"{score}, {charts.WORDS[self.standing]}."
        )


@dataclass(frozen=True)
class Bar:
    """One row of a chart: a method, its drawing, and its figure as text."""

    line: Shown
    drawing: Markup
    figure: str
    note: str = ""


Bars = list[tuple[str, list[Bar]]]


def accuracy_bars(shown: Sequence[Shown], epsilon: float, blind: float) -> tuple[svg.Range, Bars]:
    """The accuracy of every method at one ε, by what is promised; the dashed line is a blind guess."""
    here = [line for line in shown if line.row.epsilon_asked in (None, epsilon)]
    across = svg.span([blind, *(value for line in here for value in (line.row.low, line.row.high))])

    def bar(line: Shown) -> Bar:
        row = line.row
        point = charts.DataPoint(0.0, row.accuracy, row.low, row.high, line.standing, line.says)
        note = "no better than guessing" if row.no_better else ""
        return Bar(line, Markup(charts.draw_bar(point, across, blind)), percent(row.accuracy), note)

    return across, _grouped(bar(line) for line in sorted(here, key=lambda line: -line.row.accuracy))


def attack_bars(shown: Sequence[Shown], epsilon: float) -> tuple[svg.Range, Bars]:
    """How often the strongest attack names the used one of two, for every method at one ε."""
    here = [line for line in shown if line.row.epsilon_asked in (None, epsilon) and line.row.auc is not None]
    ends = [value for line in here for value in (line.auc_low, line.auc_high) if value is not None]
    across = svg.span([0.5, *ends])

    def bar(line: Shown) -> Bar:
        value = line.row.auc or 0.5
        low, high = line.auc_low or value, line.auc_high or value
        point = charts.DataPoint(0.0, value, low, high, line.standing, line.says)
        drawing = Markup(charts.draw_bar(point, across, 0.5))
        return Bar(line, drawing, percent(value), f"{percent(low)} to {percent(high)}")

    return across, _grouped(bar(line) for line in sorted(here, key=lambda line: line.row.auc or 0.5))


def _grouped(bars: Iterable[Bar]) -> Bars:
    """What is proven, what is not, and what is there for comparison only."""
    made = list(bars)
    groups = (
        ("Proven", [one for one in made if not is_aside(one.line.row) and one.line.standing == "proven"]),
        (UNPROVEN, [one for one in made if not is_aside(one.line.row) and one.line.standing != "proven"]),
        ("For comparison; these do not leave", [one for one in made if is_aside(one.line.row)]),
    )
    return [(title, own) for title, own in groups if own]


def is_aside(one: Cell | Row) -> bool:
    """Whether it is only a reference and cannot be released."""
    return one.method in WORDS

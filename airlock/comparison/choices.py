"""Three choices from measured results: the most accurate method, the smallest, the fastest to serve; and why each.

Only methods that the chooser would recommend take part (`advise`): proven, fit for the need, run at the ε of the
choice. A small or fast one is of no use if it gives up what makes the best one useful, so it has to keep nine tenths of
what the best gains over a blind guess. Times of single answers differ a little from run to run: of those within a tenth
of the fastest, the most accurate is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airlock.bundle.rendering.page import file_size, percent
from airlock.comparison.values import Advice, Row

KEPT = 0.9  # of what the best gains over a blind guess
SAME_TIME = 1.1  # two timings of one network may differ by this factor
SMALLEST, FASTEST = "Smallest", "Fastest to serve"
NO_FIGURE = "No figure: in the methods that fit no network leaves, or none was timed."


@dataclass(frozen=True)
class Choice:
    """One way to choose: what is chosen and why.

    Args:
        title: What it is best at.
        method: As CHANNEL/METHOD; None where nothing can be said.
        figure: The figure that decided, in a few words.
        why: Why this one, and what it costs.
        advised: Whether it is the chooser's advice.
    """

    title: str
    method: str | None
    figure: str
    why: str
    advised: bool = False


def choices(advice: Advice, rows: Sequence[Row], classes: int) -> tuple[Choice, ...]:
    """Best, smallest, and fastest to serve; empty if no method that fits has a result."""
    fits = {one.method for one in advice.ranking if one.recommended}
    known = [row for row in rows if row.method in fits and row.epsilon_asked == advice.epsilon and not row.no_better]
    if not known:
        return ()
    best = max(known, key=lambda row: row.accuracy)
    blind = max(1.0 / max(1, classes), best.majority or 0.0)
    enough = [row for row in known if row.accuracy - blind >= KEPT * (best.accuracy - blind)]
    return (
        _best(best, known, advice),
        _of(SMALLEST, _smallest(enough), best, advice),
        _of(FASTEST, _fastest(enough), best, advice),
    )


def size_of(row: Row) -> str:
    """The size of what leaves, in words."""
    return file_size(row.bytes)


def time_of(row: Row) -> str:
    """The time of one answer, in words."""
    return "not timed" if row.answer_milliseconds is None else f"{row.answer_milliseconds:.2g} ms an answer"


def _smallest(rows: Sequence[Row]) -> Row | None:
    return min(
        (row for row in rows if row.parameters is not None and row.bytes is not None),
        key=lambda row: (row.bytes or 0, -row.accuracy),
        default=None,
    )


def _fastest(rows: Sequence[Row]) -> Row | None:
    timed = [row for row in rows if row.answer_milliseconds is not None]
    if not timed:
        return None
    least = min(row.answer_milliseconds or 0.0 for row in timed)
    alike = [row for row in timed if (row.answer_milliseconds or 0.0) <= SAME_TIME * least]
    return max(alike, key=lambda row: row.accuracy)


def _best(best: Row, known: Sequence[Row], advice: Advice) -> Choice:
    alike = [row.method for row in known if row is not best and row.high >= best.low]
    many = "The only method that fits." if len(known) == 1 else f"The most accurate of {len(known)} that fit."
    doubt = f" {', '.join(alike)} may be as good: the intervals overlap." if alike else ""
    figure = f"{percent(best.accuracy)} right ({percent(best.low)} to {percent(best.high)})"
    return Choice("Best", best.method, figure, many + doubt, best.method == advice.method)


def _of(title: str, row: Row | None, best: Row, advice: Advice) -> Choice:
    """A choice by another figure than accuracy, beside the best."""
    if row is None:
        return Choice(title, None, "", NO_FIGURE)
    small = title == SMALLEST
    own, other = (size_of(row), size_of(best)) if small else (time_of(row), time_of(best))
    more = "smaller" if small else "faster"
    if row.method == best.method:
        why = f"The best one: no other is {more} and keeps nine tenths of what it gains over guessing."
    else:
        less = 100 * (best.accuracy - row.accuracy)
        why = f"Instead of {other} for {best.method}; {percent(row.accuracy)} right, {less:.1f} points less."
    return Choice(title, row.method, own, why, row.method == advice.method)

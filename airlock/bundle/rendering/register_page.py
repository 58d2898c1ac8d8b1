"""The page of a register: what left, what it cost, what is left, and a curve of the budget over time.

In: an `Account`. Out: a page that needs no network and no script. It stays inside: it names receivers, dates and runs
that failed, which no card does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from markupsafe import Markup

from airlock.bundle.register import Account
from airlock.bundle.rendering import svg
from airlock.bundle.rendering.page import day, environment

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 300, 56, 16, 24, 44
_soft = partial(svg.text, class_="soft")


def render(read: Account) -> str:
    """The page."""
    share = round(100 * (1 - read.spent / read.budget.units), 1)
    rows, left = [], read.budget.units
    for one in read.charged:
        left -= one.spent
        rows.append((_date(one.at), one, read.budget.share(one.spent), read.budget.share(left)))
    return (
        environment()
        .get_template("register.html.j2")
        .render(
            read=read,
            share=share,
            state="good" if share > 20 else ("warn" if share > 0 else "bad"),
            rows=rows,
            curve=Markup(draw_budget(read)),  # its texts are escaped where they are written
            so_far=read.budget.loss_bound(read.spent),
        )
    )


def draw_budget(read: Account) -> str:
    """What was left after each charge and each return, as steps over time; from the first charge to the last change."""
    places = _steps(read)
    ys = svg.from_zero(read.budget.epsilon, 6)
    first, last = places[0][0], max(places[-1][0], places[0][0] + 1)
    bottom = _HEIGHT - _BOTTOM

    def place(at: int, left: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at - first) / (last - first)
        return round(across, 1), ys.place(left, bottom, _TOP - bottom)

    line, before = [], places[0][1]
    for at, left in places:
        line += [place(at, before), place(at, left)]
        before = left
    parts = [
        *(svg.line(place(first, y), place(last, y), class_="grid") for y in ys.ticks),
        *(_soft(_LEFT - 8, place(first, y)[1] + 5, svg.label(y, ys.ticks), "end") for y in ys.ticks),
        _soft(_LEFT, _HEIGHT - 12, _date(first)),
        _soft(_WIDTH - _RIGHT, _HEIGHT - 12, _date(last), "end"),
        svg.polyline(line, class_="budget"),
    ]
    says = f"From {_date(first)} to {_date(last)}, what is left fell to {before:.2f} of {read.budget.epsilon:g}."
    return svg.figure("What is left of the budget", says, (_WIDTH, _HEIGHT), parts, name="budget", kind="curve")


def _steps(read: Account) -> Sequence[tuple[int, float]]:
    """Times and what was left then; a return is a step back up."""
    changes = [(one.at, -one.units) for one in read.charged]
    changes += [(one.ended, one.units) for one in read.charged if one.state == "returned"]
    left, places = read.budget.units, []
    for at, change in sorted(changes):
        left += change
        places.append((at, read.budget.share(left)))
    start = places[0][0] if places else 0
    return [(start, read.budget.epsilon), *places]


def _date(milliseconds: int) -> str:
    return day(datetime.fromtimestamp(milliseconds / 1000, UTC).date())

"""A curve of ε in the terminal: braille dots where they can be shown, plain characters or a few rows where not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airlock.accounting import Curve

_ROWS, _WIDEST, _NARROWEST = 10, 76, 40
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille cell: by column, from the top
_LISTED = 6


def chart(curve: Curve, width: int, *, plain: bool = False) -> str:
    """The curve as lines of text, none longer than `width`.

    Args:
        curve: What to draw.
        width: Columns of the terminal; below 40 a few points are listed instead.
        plain: Draw with ASCII characters alone.
    """
    from airlock.bundle.rendering.charts import label, ticks

    if width < _NARROWEST:
        return "\n".join([f"{curve.says}:", *_listed(curve)])
    xs, ys = ticks(curve.points[-1].at, 7), ticks(curve.points[-1].epsilon, 6)
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
    """Where it begins and ends, in figures."""
    first, last = curve.points[0], curve.points[-1]
    lines = [f"ε is {first.epsilon:.4g} before the first step."] if first.steps == 0 else []
    way = f"{last.steps:,} steps" + ("" if curve.unit == "steps" else f" ({last.at:.4g} {curve.unit})")
    return [*lines, f"ε is {last.epsilon:.4f} after all {way}."]


def _listed(curve: Curve) -> list[str]:
    """A few of the points, the first and the last among them."""
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
    """Every text centred at its place; one that would touch the text before it is left out."""
    line = ""
    for text, place in zip(texts, places, strict=True):
        start = max(0, place - len(text) // 2)
        if start > len(line) or not line:
            line = line.ljust(start) + text
    return line

"""Small panels as SVG: lines over histograms. What is claimed and does not hold is dashed, with hollow triangles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

COLOURS = ("#1d4f91", "#b3471d", "#4b7f52", "#8a6d1f", "#5f4b8b", "#2b2b2b", "#b0467f")
INK, GRID = "#12171c", "#d5dbe0"
WIDE, HIGH = 380, 346  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 40, 108
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A series: its name, its points, and how it is drawn."""

    name: str
    points: Points
    mark: str = "triangle"  # triangle: claimed; circle: proven or measured; dot: points without a line; none: a line


@dataclass(frozen=True)
class Panel:
    """One picture with its axes.

    Args:
        title: Above it.
        across: What the horizontal axis is.
        lines: What is drawn, in the order of the colours.
        low: Of the vertical axis.
        high: Of the vertical axis.
        logarithmic: Whether the horizontal axis is.
        ticks: Of the horizontal axis.
        bars: Heights from left to right, as (from, to, height), behind the lines.
        unit: Behind the figures of the vertical axis.
    """

    title: str
    across: str
    lines: Sequence[Line]
    low: float
    high: float
    logarithmic: bool = False
    ticks: Sequence[float] = ()
    bars: Sequence[tuple[float, float, float]] = ()
    unit: str = "%"
    names: Sequence[str] = field(default=())

    def parts(self) -> list[str]:
        """The elements of the panel."""
        every = [x for line in self.lines for x, _ in line.points] + [x for bar in self.bars for x in bar[:2]]
        scale = math.log if self.logarithmic else float
        first, last = scale(min(every)), scale(max(every))

        def x(value: float) -> float:
            return round(LEFT + (WIDE - LEFT - RIGHT) * (scale(value) - first) / (last - first or 1), 1)

        def y(value: float) -> float:
            share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
            return round(HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * share, 1)

        found = [text(LEFT - 36, 20, self.title, weight="bold")]
        for step in range(5):
            value = self.low + (self.high - self.low) * step / 4
            found.append(f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(value)}" y2="{y(value)}" stroke="{GRID}"/>')
            found.append(text(LEFT - 6, y(value) + 4, f"{value:.4g}{self.unit}", "end"))
        names = self.names or [f"{tick:g}" for tick in self.ticks]
        found += [text(x(t), HIGH - BOTTOM + 18, n, "middle") for t, n in zip(self.ticks, names, strict=True)]
        found.append(text((LEFT + WIDE - RIGHT) / 2, HIGH - BOTTOM + 38, self.across, "middle"))
        found += [
            f'<rect x="{x(a)}" y="{y(h)}" width="{round(x(b) - x(a), 1)}" height="{round(y(self.low) - y(h), 1)}" '
            'fill="#c3d0dc" stroke="#fff"/>'
            for a, b, h in self.bars
        ]
        for place, line in enumerate(self.lines):
            found += _line([(x(a), y(b)) for a, b in line.points], COLOURS[place], line.mark)
            column, row = place % 2, place // 2
            left, base = LEFT - 30 + 180 * column, HIGH - BOTTOM + 58 + 17 * row
            found += _line([(left, base - 4), (left + 20, base - 4)], COLOURS[place], line.mark, marks=1)
            found.append(text(left + 28, base, line.name))
        return found


def _line(points: Points, colour: str, mark: str, marks: int | None = None) -> list[str]:
    dashes = ' stroke-dasharray="6 4"' if mark == "triangle" else ""
    way = " ".join(f"{a},{b}" for a, b in points)
    found = [f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>']
    found = [] if mark == "dot" else found
    at = points if marks is None else [(sum(a for a, _ in points) / len(points), points[0][1])]
    for a, b in at:
        if mark == "circle":
            found.append(f'<circle cx="{a}" cy="{b}" r="4" fill="{colour}"/>')
        elif mark == "dot":
            found.append(f'<circle cx="{a}" cy="{b}" r="3" fill="{colour}" fill-opacity="0.7"/>')
        elif mark == "triangle":
            corners = f"{a},{b - 5} {a - 4.5},{b + 4} {a + 4.5},{b + 4}"
            found.append(f'<polygon points="{corners}" fill="#fff" stroke="{colour}" stroke-width="1.6"/>')
    return found


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{INK}" font-weight="{weight}">{escape(words)}</text>'


def write(path: Path, title: str, panels: Sequence[Panel], columns: int = 2) -> None:
    """Panels side by side, in rows."""
    rows = -(-len(panels) // columns)
    named = max(-(-len(panel.lines) // 2) for panel in panels)
    tall = HIGH + 17 * max(0, named - 3)  # a panel has room for three rows of names
    wide, high = WIDE * min(columns, len(panels)), tall * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'role="img" font-family="system-ui, Liberation Sans, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    for place, panel in enumerate(panels):
        parts.append(f'<g transform="translate({WIDE * (place % columns)} {tall * (place // columns)})">')
        parts += [*panel.parts(), "</g>"]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")

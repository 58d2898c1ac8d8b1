"""The charts of a comparison: SVG (`bundle.rendering.svg`) in the colours of the page around it.

In: rows of results. Out: panels with text for screen readers. Proven, claimed, refuted, merely measured and non-private
results differ in colour and shape. Panels share their axes, so that they can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from airlock.bundle.rendering import svg
from airlock.bundle.rendering.svg import Range
from airlock.comparison.values import Standing

WORDS: dict[Standing, str] = {
    "proven": "proven",
    "claimed": "only claimed",
    "refuted": "refuted",
    "empirical": "only measured",
    "none": "not private",
}
# Centred on (0, 0), about 12 wide; the page fills or strokes them by class.
_SHAPES: dict[Standing, str] = {
    "proven": '<circle r="5"/>',
    "claimed": '<path d="M0-6.2L6 4.6H-6z"/>',
    "refuted": '<path d="M-4.6-4.6l9.2 9.2M-4.6 4.6l9.2-9.2"/>',
    "empirical": '<path d="M0-6.2L6.2 0 0 6.2-6.2 0z"/>',
    "none": '<rect x="-4.7" y="-4.7" width="9.4" height="9.4"/>',
}
_WIDTH, _HEIGHT = 360, 262
_MIDDLE = 13.0  # of a bar
_LEFT, _TOP, _BOTTOM = 42, 32, 46
_ROW = 14.0  # between two lines of text


@dataclass(frozen=True)
class DataPoint:
    """One method at one ε.

    Args:
        x: The requested ε.
        y: Accuracy, or in a bar any other figure.
        low: Lower end of its interval.
        high: Upper end.
        standing: Determines colour and shape.
        says: The text for screen readers and tooltips.
    """

    x: float
    y: float
    low: float
    high: float
    standing: Standing
    says: str


@dataclass(frozen=True)
class Series:
    """One method over ε. `aside`: a reference line, thin and without marks."""

    name: str
    points: Sequence[DataPoint]
    aside: bool = False


@dataclass(frozen=True)
class ReferenceLevel:
    """A level that does not depend on ε, drawn across the whole panel."""

    name: str
    point: DataPoint


def glyph(standing: Standing) -> str:
    """The shape alone, for text and tables, where the word is next to it."""
    shape = _SHAPES[standing]
    return (
        f'<svg class="glyph s-{standing}" viewBox="-7 -7 14 14" aria-hidden="true" focusable="false"><g class="dot">'
        f"{shape}</g></svg>"
    )


def draw_accuracy(
    name: str,
    title: str,
    lines: Sequence[Series],
    levels: Sequence[ReferenceLevel],
    epsilons: Sequence[float],
    across: Range,
) -> str:
    """Accuracy over ε on a logarithmic axis, with intervals; a name at the end of each line.

    Args:
        name: Makes the identifiers of this figure unique within a page.
        title: The title above it.
        lines: The methods, and the reference lines.
        levels: Results that have no ε.
        epsilons: The values on the x-axis, in any order.
        across: The range of accuracy.
    """
    right = 118  # room for the longest name
    frame = _Frame(right, across)
    x_of = _logarithmic(sorted(epsilons), frame)
    parts = frame.grid()
    for value in sorted(epsilons):
        parts += frame.tick(x_of(value), f"{value:g}")
    parts.append(_text((_LEFT + _WIDTH - right) / 2, _HEIGHT - 8, "ε asked for (logarithmic)", "middle", "soft"))
    ends: list[tuple[float, str, str]] = []
    for level in levels:
        parts.append(_level(level, frame))
        ends.append((frame.y(level.point.y), level.name, f"s-{level.point.standing}"))
    drawn = [line for line in lines if line.points]
    for number, line in enumerate(drawn):
        shift = 0.0 if line.aside else 5.0 * (number - (len(drawn) - 1) / 2)
        last = max(line.points, key=lambda point: point.x)
        parts += _line(line, number, shift, x_of, frame)
        ends.append((frame.y(last.y), line.name, "soft" if line.aside else f"s-{last.standing}"))
    parts += _names(ends, _WIDTH - right + 10)
    says = [point.says for line in drawn if not line.aside for point in line.points]
    says += [level.point.says for level in levels]
    return _panel(name, title, f"Accuracy over ε. {' '.join(says)}", parts)


def draw_bar(point: DataPoint, across: Range, level: float | None = None) -> str:
    """One result on a scale as wide as its cell: interval, mark, and the level it has to beat; read out as `says`.

    Args:
        point: Its `y`, `low` and `high` are drawn.
        across: The range of the scale.
        level: Where the dashed line is; None for no line.
    """

    def at(value: float) -> str:
        share = (value - across.low) / (across.high - across.low)
        return f"{100 * min(1.0, max(0.0, share)):.2f}%"

    parts = [svg.element("line", class_="axis", x1="0%", x2="100%", y1=_MIDDLE, y2=_MIDDLE)]
    if level is not None and across.low <= level <= across.high:
        parts.append(svg.element("line", class_="chance", x1=at(level), x2=at(level), y1=0, y2=2 * _MIDDLE))
    parts.append(svg.element("line", class_="reach", x1=at(point.low), x2=at(point.high), y1=_MIDDLE, y2=_MIDDLE))
    dot = svg.element("g", _SHAPES[point.standing], class_="dot")
    parts.append(svg.element("svg", dot, x=at(point.y), y=_MIDDLE, overflow="visible"))
    content = f"<title>{escape(point.says)}</title>{''.join(parts)}"
    kind = f"bar s-{point.standing}"
    return svg.element("svg", content, class_=kind, width="100%", height=2 * _MIDDLE, role="img", aria_label=point.says)


@dataclass(frozen=True)
class _Frame:
    """The plot inside a panel."""

    right: float
    across: Range
    height: float = _HEIGHT

    @property
    def wide(self) -> float:
        return _WIDTH - _LEFT - self.right

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM

    def y(self, value: float) -> float:
        """The y coordinate of a value, clamped to the plot."""
        share = (value - self.across.low) / (self.across.high - self.across.low)
        return round(self.bottom - (self.bottom - _TOP) * min(1.0, max(0.0, share)), 1)

    def grid(self) -> list[str]:
        parts = []
        for value in self.across.ticks:
            y = self.y(value)
            parts.append(svg.element("path", class_="grid", d=f"M{_LEFT} {y}h{self.wide:g}"))
            parts.append(_text(_LEFT - 6, y + 4, f"{100 * value:.4g}%", "end", "soft"))
        return parts

    def tick(self, x: float, words: str) -> list[str]:
        mark = svg.element("path", class_="tick", d=f"M{x} {self.bottom}v5")
        return [mark, _text(x, self.bottom + 18, words, "middle", "soft")]


def _logarithmic(epsilons: Sequence[float], frame: _Frame) -> Callable[[float], float]:
    """The x coordinate of an ε, with a margin at both ends; a single ε is centred."""
    known = [math.log(value) for value in epsilons if value > 0] or [0.0]
    first, wide = min(known), max(known) - min(known)

    def place(value: float) -> float:
        share = (math.log(max(value, 1e-9)) - first) / wide if wide else 0.5
        return round(_LEFT + 18 + (frame.wide - 36) * min(1.05, max(-0.05, share)), 1)

    return place


def _line(line: Series, number: int, shift: float, x_of: Callable[[float], float], frame: _Frame) -> list[str]:
    """Intervals, the line and its marks; a reference has only the line."""
    points = sorted(line.points, key=lambda point: point.x)
    way = [(x_of(point.x) + shift, frame.y(point.y)) for point in points]
    if line.aside:
        return [svg.polyline(way, class_="aside")]
    dashes = svg.DASHES[number % len(svg.DASHES)]
    parts = [svg.polyline(way, class_=f"way s-{points[-1].standing}", stroke_dasharray=dashes)]
    for point, (x, y) in zip(points, way, strict=True):
        low, high = frame.y(point.low), frame.y(point.high)
        ends = f"M{x - 3:g} {low}h6M{x - 3:g} {high}h6M{x:g} {low}V{high}"
        parts.append(_said(point, svg.element("path", class_="whisker", d=ends) + _dot(point.standing, x, y)))
    return parts


def _said(point: DataPoint, drawn: str) -> str:
    """The drawing of a point, with its colour and its text."""
    return svg.named(drawn, point.says, class_=f"s-{point.standing}")


def _level(level: ReferenceLevel, frame: _Frame) -> str:
    point, high, low = level.point, frame.y(level.point.high), frame.y(level.point.low)
    band = svg.element("rect", class_="band", x=_LEFT, y=high, width=frame.wide, height=max(1.0, low - high))
    across = svg.element("path", class_="level", d=f"M{_LEFT} {frame.y(point.y)}h{frame.wide:g}")
    return _said(point, band + across + _dot(point.standing, _LEFT + frame.wide, frame.y(point.y)))


def _names(ends: Sequence[tuple[float, str, str]], x: float) -> list[str]:
    """Names at the ends of their lines, pushed apart so that none covers another."""
    rows = sorted(ends)
    places: list[float] = []
    for y, _, _ in rows:
        places.append(max(y, places[-1] + _ROW) if places else y)
    over = max(0.0, places[-1] - (_HEIGHT - _BOTTOM)) if places else 0.0
    return [
        _text(x, y - over + 4, _short(name), "start", kind) for y, (_, name, kind) in zip(places, rows, strict=True)
    ]


def _dot(standing: Standing, x: float, y: float) -> str:
    return svg.element("g", _SHAPES[standing], class_="dot", transform=f"translate({x:g} {y:g})")


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "ink") -> str:
    return svg.text(x, y, words, anchor, class_=kind)


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _panel(name: str, title: str, says: str, parts: Sequence[str], height: float = _HEIGHT) -> str:
    heading = _text(_LEFT - 34, 16, title, kind="ink name")
    return svg.figure(title, says, (_WIDTH, height), [heading, *parts], name=name, kind="chart")

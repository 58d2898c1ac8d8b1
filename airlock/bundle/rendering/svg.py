"""Charts as plain SVG, drawn without a library and shown without a network: what all charts in Airlock share.

All text is escaped where it is written. Each figure has a title and a description for screen readers.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from airlock.bundle.files import output_error
from airlock.errors import OutputError

SUFFIX = ".svg"
INK, SOFT, GRID, BLUE, RUST = "#12171c", "#46525d", "#d5dbe0", "#1d4f91", "#b3471d"
DASHES = ("", "9 4", "2 3", "11 3 2 3", "5 5", "1 4", "14 4", "8 3 2 3 2 3")  # so that lines differ in more than colour
_NAMESPACE = "http://www.w3.org/2000/svg"
_FONT = {"font_family": "system-ui, Liberation Sans, sans-serif", "font_size": "14"}

Places = Iterable[tuple[float, float]]


def element(tag: str, content: str = "", /, **attributes: str | float | None) -> str:
    """One element around markup that is already escaped; in attribute names, _ becomes - and a trailing _ is dropped.

    Attributes that are None are left out.
    """
    given = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    return f"<{tag}{given}>{content}</{tag}>" if content else f"<{tag}{given}/>"


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:g}"


def text(x: float, y: float, words: str, anchor: str = "start", **attributes: str | float | None) -> str:
    """Text at a point, which is its start, middle or end."""
    return element("text", escape(words) or " ", x=x, y=y, text_anchor=anchor, **attributes)


def line(start: tuple[float, float], end: tuple[float, float], **attributes: str | float | None) -> str:
    """A line from one point to another."""
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], **attributes)


def polyline(places: Places, **attributes: str | float | None) -> str:
    """A line through all of these points."""
    return element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in places), **attributes)


def named(content: str, says: str, **attributes: str | float | None) -> str:
    """A group with a title, for screen readers and tooltips."""
    return element("g", f"<title>{escape(says)}</title>{content}", **attributes)


def figure(
    title: str, says: str, size: tuple[float, float], parts: Sequence[str], *, name: str = "", kind: str | None = None
) -> str:
    """The whole figure, with a title and a description for screen readers.

    Args:
        title: The title of the figure.
        says: What it shows, in sentences.
        size: Width and height.
        parts: What is drawn, from back to front.
        name: Makes the identifiers unique if a page has several figures; not needed for a standalone figure.
        kind: The CSS class through which the page sets its size and colours; a standalone figure sets its own.
    """
    width, height = (f"{side:g}" for side in size)
    own = {"class_": kind} if kind else {"xmlns": _NAMESPACE, "width": width, "height": height, **_FONT}
    spoken = {"aria_labelledby": f"{name}-t {name}-d"} if name else {}
    told = element("title", escape(title) or " ", id=f"{name}-t" if name else None)
    told += element("desc", escape(says) or " ", id=f"{name}-d" if name else None)
    content = "\n".join(["", told, *parts, ""])
    return element("svg", content, viewBox=f"0 0 {width} {height}", role="img", **own, **spoken) + "\n"


# Axes.


@dataclass(frozen=True)
class Range:
    """The ends and ticks of an axis."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, start: float, length: float) -> float:
        """The position of a value on an axis with this start and length; a negative length goes up."""
        return round(start + length * (value - self.low) / (self.high - self.low), 2)


def span(values: Iterable[float], step: float = 0.1, least: float = 0.0, most: float = 1.0) -> Range:
    """A range with round ends that contains all values, with three to seven ticks."""
    found = [value for value in values if math.isfinite(value)] or [least, most]
    for wide in (step / 10, step / 5, step / 2, step, 2 * step, 5 * step):
        first = max(math.floor(min(found) / wide + 1e-9), math.ceil(least / wide - 1e-9))
        last = min(math.ceil(max(found) / wide - 1e-9), math.floor(most / wide + 1e-9))
        if last - first <= 6:
            break
    if first == last:  # a single value on a tick: extend the range downwards at the top, upwards otherwise
        first, last = (first - 1, last) if (last + 1) * wide > most + 1e-9 else (first, last + 1)
    return Range(first * wide, last * wide, tuple(round(n * wide, 6) for n in range(first, last + 1)))


def from_zero(end: float, most: int) -> Range:
    """At most `most` round ticks from 0, evenly spaced, the last at or just beyond `end`."""
    if end < 1e-9:
        return Range(0.0, 1.0, (0.0, 1.0))
    size = 10.0 ** math.floor(math.log10(end / most))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if math.ceil(end / (size * factor) - 1e-9) < most)
    found = tuple(step * i for i in range(math.ceil(end / step - 1e-9) + 1))
    return Range(0.0, found[-1], found)


def label(value: float, among: Sequence[float]) -> str:
    """The label of a tick, with as many decimals as the distance between ticks needs."""
    decimals = max(0, -math.floor(math.log10(among[1] - among[0]) + 1e-9))
    return f"{value:,.{decimals}f}"


# Files.


def check_figure(path: Path) -> None:
    """Check that a figure can be written there, before any work is done.

    Raises:
        OutputError: Its name does not end in .svg, it is a folder, or its folder cannot be written to.
    """
    if path.suffix.lower() != SUFFIX:
        raise OutputError(
            f"a figure whose name ends in {SUFFIX}",
            f"'{path.name}'",
            "It is drawn as SVG, which every browser opens and prints.",
            f"Use a name such as plan{SUFFIX}.",
        )
    if path.is_dir():
        raise OutputError("a file for the figure", f"{path}, which is a folder", do="Give a file name.")
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise output_error(error, path) from error


def write_figure(path: Path, svg: str) -> None:
    """Write a figure atomically, replacing any file of this name."""
    check_figure(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(svg, encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error

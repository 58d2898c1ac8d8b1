"""Figures as plain SVG, which needs no library to draw and no network to show: what all charts of the house share.

Every word is escaped where it is written. A figure has a title and a description, so that it can be read aloud.
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
DASHES = ("", "9 4", "2 3", "11 3 2 3", "5 5", "1 4", "14 4", "8 3 2 3 2 3")  # lines differ by more than colour
_NAMESPACE = "http://www.w3.org/2000/svg"
_FONT = {"font_family": "system-ui, Liberation Sans, sans-serif", "font_size": "14"}

Places = Iterable[tuple[float, float]]


def element(tag: str, content: str = "", /, **attributes: str | float | None) -> str:
    """One element around markup that is escaped already; of an attribute's name, _ stands for - or ends it.

    An attribute that is None is left out.
    """
    given = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    return f"<{tag}{given}>{content}</{tag}>" if content else f"<{tag}{given}/>"


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:g}"


def text(x: float, y: float, words: str, anchor: str = "start", **attributes: str | float | None) -> str:
    """Words at a place, which is where they start, their middle or their end."""
    return element("text", escape(words) or " ", x=x, y=y, text_anchor=anchor, **attributes)


def line(start: tuple[float, float], end: tuple[float, float], **attributes: str | float | None) -> str:
    """From one place to another."""
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], **attributes)


def polyline(places: Places, **attributes: str | float | None) -> str:
    """Through all of these places."""
    return element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in places), **attributes)


def named(content: str, says: str, **attributes: str | float | None) -> str:
    """A group that says something when it is read aloud or pointed at."""
    return element("g", f"<title>{escape(says)}</title>{content}", **attributes)


def figure(
    title: str, says: str, size: tuple[float, float], parts: Sequence[str], *, name: str = "", kind: str | None = None
) -> str:
    """The whole figure; whoever cannot see it hears title and description.

    Args:
        title: Of the figure.
        says: What it shows, in sentences.
        size: Width and height.
        parts: What is drawn, from the back to the front.
        name: Makes the identifiers unique where several figures are in one page; a figure of its own has none.
        kind: The class by which the page around it gives it size and colours; without it, it has its own.
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
    """Of an axis: ends and ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, start: float, length: float) -> float:
        """Where a value lies on an axis that begins here and is so long; a negative length goes up."""
        return round(start + length * (value - self.low) / (self.high - self.low), 2)


def span(values: Iterable[float], step: float = 0.1, least: float = 0.0, most: float = 1.0) -> Range:
    """A range with round ends that holds all values, with three to seven ticks."""
    found = [value for value in values if math.isfinite(value)] or [least, most]
    for wide in (step / 10, step / 5, step / 2, step, 2 * step, 5 * step):
        first = max(math.floor(min(found) / wide + 1e-9), math.ceil(least / wide - 1e-9))
        last = min(math.ceil(max(found) / wide - 1e-9), math.floor(most / wide + 1e-9))
        if last - first <= 6:
            break
    if first == last:  # one value on a tick: the range reaches down from the top, up from elsewhere
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
    """A tick in figures, with as many decimals as the distance between ticks needs."""
    decimals = max(0, -math.floor(math.log10(among[1] - among[0]) + 1e-9))
    return f"{value:,.{decimals}f}"


# Files.


def check_figure(path: Path) -> None:
    """Whether a figure can be written there; asked before the work is done.

    Raises:
        OutputError: Its name does not end in .svg, it is a folder, or its folder cannot be written to.
    """
    if path.suffix.lower() != SUFFIX:
        raise OutputError(
            f"a figure whose name ends in {SUFFIX}",
            f"'{path.name}'",
            "It is drawn as SVG, which every browser opens and prints.",
            f"As in --figure plan{SUFFIX}.",
        )
    if path.is_dir():
        raise OutputError("a file for the figure", f"{path}, which is a folder", do="Name a file in it.")
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise output_error(error, path) from error


def write_figure(path: Path, svg: str) -> None:
    """Write a figure, whole or not at all; an older one of this name is replaced."""
    check_figure(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(svg, encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error

"""A curve of ε as a figure: plain SVG, which needs no library to draw and no network to show.

In: a `Curve` and a title. Out: a file that browsers, word processors and printers take. All of it is public.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path

from airlock.accounting import Curve
from airlock.bundle.files import output_error
from airlock.bundle.rendering.formatting import epsilon_up
from airlock.errors import OutputError

SUFFIX = ".svg"
_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 76, 62
_INK, _SOFT, _LINE, _BLUE = "#12171c", "#46525d", "#d5dbe0", "#1d4f91"


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


def write_figure(path: Path, curve: Curve, title: str) -> None:
    """Draw the curve into a file, whole or not at all; an older figure of this name is replaced."""
    check_figure(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(draw(curve, title), encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error


def draw(curve: Curve, title: str) -> str:
    """The figure as SVG: axes from 0, one line, and its end in figures."""
    xs, ys = ticks(curve.points[-1].at, 8), ticks(curve.points[-1].epsilon, 6)
    right, top = xs[-1], ys[-1]

    def across(at: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * at / right, 2)

    def up(epsilon: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * epsilon / top, 2)

    parts = [*_frame(curve, title), *_axes(curve.unit, xs, ys, across, up)]
    line = " ".join(f"{across(p.at)},{up(p.epsilon)}" for p in curve.points)
    end = curve.points[-1]
    parts += [
        f'<polyline points="{line}" fill="none" stroke="{_BLUE}" stroke-width="2.5" stroke-linejoin="round"/>',
        f'<circle cx="{across(end.at)}" cy="{up(end.epsilon)}" r="5" fill="{_BLUE}"/>',
        _text(across(end.at), up(end.epsilon) - 12, f"ε = {epsilon_up(end.epsilon)}", "end", _INK, "bold"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _frame(curve: Curve, title: str) -> list[str]:
    end = curve.points[-1]
    summary = f"{curve.says}; at the end, {end.at:.4g}, ε is {epsilon_up(end.epsilon)}."
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" font-family="system-ui, Liberation Sans, sans-serif" font-size="14">',
        f"<title>{escape(title)}</title><desc>{escape(summary)}</desc>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(_LEFT, 30, title, "start", _INK, "bold"),
        _text(_LEFT, 52, curve.says),
    ]


def _axes(
    unit: str, xs: list[float], ys: list[float], across: Callable[[float], float], up: Callable[[float], float]
) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(y)}" y2="{up(y)}" stroke="{_LINE if y else _SOFT}"/>'
        for y in ys
    ]
    parts += [_text(_LEFT - 10, up(y) + 5, label(y, ys), "end") for y in ys]
    parts += [f'<line x1="{across(x)}" x2="{across(x)}" y1="{bottom}" y2="{bottom + 5}" stroke="{_SOFT}"/>' for x in xs]
    parts += [_text(across(x), bottom + 22, label(x, xs), "middle") for x in xs]
    parts += [
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, unit, "middle"),
        _text(26, (_TOP + bottom) / 2 + 5, "ε", "middle", _INK, "bold"),
    ]
    return parts


def _text(x: float, y: float, words: str, anchor: str = "start", fill: str = _SOFT, weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def ticks(end: float, most: int) -> list[float]:
    """At most `most` round numbers from 0, evenly spaced, the last at or just beyond `end`."""
    if end < 1e-9:
        return [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(end / most))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if math.ceil(end / (size * factor) - 1e-9) < most)
    return [step * i for i in range(math.ceil(end / step - 1e-9) + 1)]


def label(value: float, among: list[float]) -> str:
    """A tick in figures, with as many decimals as the distance between ticks needs."""
    decimals = max(0, -math.floor(math.log10(among[1] - among[0]) + 1e-9))
    return f"{value:,.{decimals}f}"

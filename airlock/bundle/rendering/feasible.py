"""The points that a front end can be cut at, as a figure: what keeps to the limits, and which one was taken.

In: a choice from public measurements. Out: plain SVG. Layers go across, the PSNR of reconstructions goes up; a point is
labelled with its number of channels. Filled: keeps to all limits; hollow: does not; ringed: taken.
"""

from __future__ import annotations

import math
import os
from html import escape
from pathlib import Path

from airlock.bundle.files import output_error
from airlock.bundle.rendering.chart import check_figure
from airlock.methods.features.choose import Chosen, Limits, Option

_WIDTH, _HEIGHT = 720, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 28, 96, 62
_INK, _SOFT, _LINE, _BLUE, _RUST = "#12171c", "#46525d", "#d5dbe0", "#1d4f91", "#b3471d"


def write_feasible(path: Path, chosen: Chosen, limits: Limits, title: str) -> None:
    """Draw the choice into a file, whole or not at all; an older figure of this name is replaced."""
    check_figure(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(draw_feasible(chosen, limits, title), encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error


def draw_feasible(chosen: Chosen, limits: Limits, title: str) -> str:
    """The figure as SVG."""
    layers = sorted({p.layers for p in chosen.options})
    values = [p.psnr for p in chosen.options] + ([limits.psnr] if limits.psnr else [])
    low, high = math.floor(min(values) - 1), math.ceil(max(values) + 1)

    def across(m: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (layers.index(m) + 0.5) / len(layers), 1)

    def up(psnr: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (psnr - low) / (high - low), 1)

    parts = _frame(chosen, title)
    step = max(1, math.ceil((high - low) / 8))
    for value in range(low, high + 1, step):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(value)}" y2="{up(value)}" stroke="{_LINE}"/>')
        parts.append(_text(_LEFT - 10, up(value) + 5, str(value), "end"))
    parts += [_text(across(m), _HEIGHT - _BOTTOM + 22, str(m), "middle") for m in layers]
    parts.append(
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, "layers m (beside the points: channels D')", "middle")
    )
    parts.append(_text(_LEFT - 60, _TOP - 14, "PSNR in dB"))
    if limits.psnr is not None:
        y = up(limits.psnr)
        dashes = f'stroke="{_RUST}" stroke-dasharray="6 4"'
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" {dashes}/>')
        parts.append(_text(_LEFT + 4, y - 6, f"{limits.psnr:g} dB allowed", "start", _RUST, size=12))
    kept = set(chosen.feasible)
    for point in sorted(chosen.options, key=lambda p: p.psnr):
        parts += _point(point, across(point.layers), up(point.psnr), point in kept, point == chosen.option)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(chosen: Chosen, title: str) -> list[str]:
    lines = _wrapped(chosen.why, 96)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" font-family="system-ui, Liberation Sans, sans-serif" font-size="14">',
        f"<title>{escape(title)}</title><desc>{escape(chosen.why)}</desc>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(16, 26, title, "start", _INK, "bold"),
        *(_text(16, 46 + 17 * i, line, size=13) for i, line in enumerate(lines)),
    ]


def _point(point: Option, x: float, y: float, kept: bool, taken: bool) -> list[str]:
    fill, edge = (_BLUE, _BLUE) if kept else ("#fff", _SOFT)
    parts = [f'<circle cx="{x}" cy="{y}" r="10" fill="none" stroke="{_RUST}" stroke-width="2.5"/>'] if taken else []
    says = f"m = {point.layers}, D' = {point.channels}: {point.psnr:.1f} dB"
    says += f", accuracy {100 * point.utility:.1f}%" if point.utility is not None else ""
    circle = f'<circle cx="{x}" cy="{y}" r="5" fill="{fill}" stroke="{edge}"><title>{escape(says)}</title></circle>'
    weight = "bold" if taken else "normal"
    return [*parts, circle, _text(x + 14, y + 4, str(point.channels), "start", _INK if kept else _SOFT, weight, 12)]


def _wrapped(words: str, width: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _text(
    x: float, y: float, words: str, anchor: str = "start", fill: str = _SOFT, weight: str = "normal", size: int = 14
) -> str:
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'

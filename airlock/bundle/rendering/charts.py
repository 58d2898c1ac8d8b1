"""The figures of plans, choices and dossiers: plain SVG, which needs no library to draw and no network to show.

A curve of ε (`write_figure`). In: a `Curve` and a title. Out: a file that browsers, word processors and printers take.
All of it is public.

The points that a front end can be cut at (`write_feasible`). In: a choice from public measurements. Out: layers go
across, the PSNR of reconstructions goes up; a point is labelled with its number of channels. Filled: keeps to all
limits; hollow: does not; ringed: taken.

ROC curves (`draw_roc`), with logarithmic axes. In: attacks that carry a thinned curve. Out: the same figure for the
same attacks. Curves differ by colour and by dashes; colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Protocol

from airlock.accounting import Curve
from airlock.bundle.files import output_error
from airlock.bundle.rendering.formatting import epsilon_up
from airlock.errors import OutputError
from airlock.training.front_ends.choose import Chosen, Limits, Option

# A curve of ε.

SUFFIX = ".svg"
_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 76, 62
_INK, _SOFT, _LINE, _BLUE, _RUST = "#12171c", "#46525d", "#d5dbe0", "#1d4f91", "#b3471d"


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
    _write(path, draw_curve(curve, title))


def _write(path: Path, svg: str) -> None:
    check_figure(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(svg, encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error


def draw_curve(curve: Curve, title: str) -> str:
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
        *_opening(title, summary, _WIDTH, _HEIGHT),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(_LEFT, 30, title, "start", _INK, "bold"),
        _text(_LEFT, 52, curve.says),
    ]


def _opening(title: str, says: str, width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="system-ui, Liberation Sans, sans-serif" font-size="14">',
        f"<title>{escape(title)}</title><desc>{escape(says)}</desc>",
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


def _text(
    x: float, y: float, words: str, anchor: str = "start", fill: str = _SOFT, weight: str = "normal", size: int = 14
) -> str:
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" font-size="{size}"'
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


# The points that a front end can be cut at.

pass  # merged

_TALL = 460  # the height of this figure
_HEAD = 96  # above its axes: the reason takes several lines


def write_feasible(path: Path, chosen: Chosen, limits: Limits, title: str) -> None:
    """Draw the choice into a file, whole or not at all; an older figure of this name is replaced."""
    _write(path, draw_feasible(chosen, limits, title))


def draw_feasible(chosen: Chosen, limits: Limits, title: str) -> str:
    """The figure as SVG."""
    layers = sorted({p.layers for p in chosen.options})
    values = [p.psnr for p in chosen.options] + ([limits.psnr] if limits.psnr else [])
    low, high = math.floor(min(values) - 1), math.ceil(max(values) + 1)

    def across(m: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (layers.index(m) + 0.5) / len(layers), 1)

    def up(psnr: float) -> float:
        return round(_TALL - _BOTTOM - (_TALL - _HEAD - _BOTTOM) * (psnr - low) / (high - low), 1)

    parts = _choice_frame(chosen, title)
    step = max(1, math.ceil((high - low) / 8))
    for value in range(low, high + 1, step):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(value)}" y2="{up(value)}" stroke="{_LINE}"/>')
        parts.append(_text(_LEFT - 10, up(value) + 5, str(value), "end"))
    parts += [_text(across(m), _TALL - _BOTTOM + 22, str(m), "middle") for m in layers]
    parts.append(
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _TALL - 14, "layers m (beside the points: channels D')", "middle")
    )
    parts.append(_text(_LEFT - 60, _HEAD - 14, "PSNR in dB"))
    if limits.psnr is not None:
        y = up(limits.psnr)
        dashes = f'stroke="{_RUST}" stroke-dasharray="6 4"'
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" {dashes}/>')
        parts.append(_text(_LEFT + 4, y - 6, f"{limits.psnr:g} dB allowed", "start", _RUST, size=12))
    kept = set(chosen.feasible)
    for point in sorted(chosen.options, key=lambda p: p.psnr):
        parts += _choice_point(point, across(point.layers), up(point.psnr), point in kept, point == chosen.option)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _choice_frame(chosen: Chosen, title: str) -> list[str]:
    lines = _wrapped(chosen.why, 96)
    return [
        *_opening(title, chosen.why, _WIDTH, _TALL),
        f'<rect width="{_WIDTH}" height="{_TALL}" fill="#fff"/>',
        _text(16, 26, title, "start", _INK, "bold"),
        *(_text(16, 46 + 17 * i, line, size=13) for i, line in enumerate(lines)),
    ]


def _choice_point(point: Option, x: float, y: float, kept: bool, taken: bool) -> list[str]:
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


# ROC curves.

pass  # merged

_SIDE, _ORIGIN, _UPPER = 380, 78, 64  # of the square, and where it starts
_ROW = 22
_SMALLEST = 1e-3
# Told apart by everyone who tells light from dark, as far as colours can do that; the dashes do the rest.
_LIGHT = ("#1d4f91", "#a85000", "#0a6639", "#8a1c7c", "#a81419", "#46525d")
_DARK = ("#9cc4ff", "#ffb46b", "#74dda3", "#eb9be0", "#ff9d97", "#b6c1cb")
_DASHES = ("", "9 4", "2 3", "11 3 2 3", "5 5", "1 4", "14 4", "8 3 2 3 2 3")


class Curved(Protocol):
    """An attack with a curve: an `AttackResult`, or one on a card."""

    @property
    def name(self) -> str:
        """Short name."""

    @property
    def curve(self) -> Sequence[tuple[float, float]]:
        """Pairs of false and true positive rate, rising."""


def has_curve(attacks: Iterable[Curved]) -> bool:
    """Whether there is anything to draw."""
    return any(attack.curve for attack in attacks)


def draw_roc(attacks: Sequence[Curved], title: str = "What the attacks find") -> str:
    """The figure; attacks without a curve are left out."""
    drawn = [attack for attack in attacks if attack.curve]
    height = _UPPER + _SIDE + 70 + _ROW * len(drawn)
    parts = [*_roc_frame(title, drawn, height), *_roc_axes()]
    for number, attack in enumerate(drawn):
        parts += _roc_line(number, attack)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _roc_line(number: int, attack: Curved) -> list[str]:
    """A curve, and its row below the picture."""
    look = f'class="roc-line roc-{number % len(_LIGHT)}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'
    line = " ".join(f"{_roc_place(x)[0]},{_roc_place(y)[1]}" for x, y in attack.curve)
    row = _UPPER + _SIDE + 70 + _ROW * number
    return [
        f'<polyline {look} points="{line}"/>',
        f'<line {look} x1="{_ORIGIN}" x2="{_ORIGIN + 52}" y1="{row - 5}" y2="{row - 5}"/>',
        _roc_text(_ORIGIN + 64, row, attack.name),
    ]


def _roc_frame(title: str, drawn: Sequence[Curved], height: int) -> list[str]:
    says = "True positive rate over false positive rate, both axes logarithmic from 0.1% to 100%. " + " ".join(
        f"{attack.name}: {attack.curve[0][1]:.2%} of members found at {attack.curve[0][0]:.1%}." for attack in drawn
    )
    return [
        *_opening(title, says, _WIDTH, height),
        f"<style>{_roc_style()}</style>",
        f'<rect class="roc-paper" width="{_WIDTH}" height="{height}"/>',
        _roc_text(_ORIGIN, 26, title, weight="bold"),
        _roc_text(
            _ORIGIN, 47, "Members found, over non-members that are taken for members by mistake", kind="roc-soft"
        ),
    ]


def _roc_axes() -> list[str]:
    bottom, right = _UPPER + _SIDE, _ORIGIN + _SIDE
    parts = []
    for value in (0.001, 0.01, 0.1, 1.0):
        x, y = _roc_place(value)
        parts += [
            f'<line class="roc-grid" x1="{x}" x2="{x}" y1="{_UPPER}" y2="{bottom}"/>',
            f'<line class="roc-grid" x1="{_ORIGIN}" x2="{right}" y1="{y}" y2="{y}"/>',
            _roc_text(x, bottom + 20, f"{100 * value:g}%", "middle", "roc-soft"),
            _roc_text(_ORIGIN - 10, y + 5, f"{100 * value:g}%", "end", "roc-soft"),
        ]
    parts += [
        f'<line class="roc-chance" x1="{_ORIGIN}" y1="{bottom}" x2="{right}" y2="{_UPPER}"/>',
        _roc_text(right + 14, _UPPER + 5, "Below this line: guessing", kind="roc-soft"),
        _roc_text(_ORIGIN + _SIDE / 2, bottom + 40, "false positive rate", "middle", "roc-soft"),
        f'<text class="roc-soft" text-anchor="middle" transform="translate(20 {_UPPER + _SIDE / 2:g}) rotate(-90)">'
        "true positive rate</text>",
    ]
    return parts


def _roc_place(value: float) -> tuple[float, float]:
    """Across and down; what lies below the smallest shown rate lies on the axis."""
    share = 1.0 - math.log10(max(value, _SMALLEST)) / math.log10(_SMALLEST)
    return round(_ORIGIN + _SIDE * share, 2), round(_UPPER + _SIDE * (1.0 - share), 2)


def _roc_style() -> str:
    def scheme(paper: str, ink: str, soft: str, grid: str, colours: Sequence[str]) -> str:
        lines = "".join(f".roc-{number}{{stroke:{colour}}}" for number, colour in enumerate(colours))
        return (
            f".roc-paper{{fill:{paper}}}.roc-ink{{fill:{ink}}}.roc-soft{{fill:{soft}}}"
            f".roc-grid{{stroke:{grid}}}.roc-chance{{stroke:{soft};stroke-width:1.5;stroke-dasharray:3 4}}{lines}"
        )

    line = ".roc-line{fill:none;stroke-width:2.5;stroke-linejoin:round}"
    light = scheme("#fff", "#12171c", "#46525d", "#d5dbe0", _LIGHT)
    dark = scheme("#101418", "#eff3f6", "#b6c1cb", "#333d46", _DARK)
    return f"{line}{light}@media (prefers-color-scheme: dark){{{dark}}}"


def _roc_text(
    x: float, y: float, words: str, anchor: str = "start", kind: str = "roc-ink", weight: str = "normal"
) -> str:
    style = f'class="{kind}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'

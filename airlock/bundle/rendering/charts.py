"""The charts of plans, front-end choices and dossiers, drawn from public values or for the holder's eyes only.

A curve of ε (`draw_curve`). In: a `Curve` and a title. Out: a chart for browsers, word processors and printers.

The points where a front end can be cut (`draw_feasible`). In: a choice made from public measurements. Out: layers on
the x-axis, the PSNR of reconstructions on the y-axis; each point is labelled with its number of channels. Filled points
meet all limits, hollow ones do not, and the chosen one is ringed.

ROC curves (`draw_roc`), with logarithmic axes. In: attacks that carry a thinned curve. Out: a chart that is a pure
function of the attacks. Curves differ in colour and dash pattern; colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from airlock.auditing.result import AttackResult
from airlock.bundle.rendering import svg
from airlock.bundle.rendering.formatting import epsilon_up
from airlock.bundle.rendering.svg import BLUE, GRID, INK, RUST, SOFT

if TYPE_CHECKING:
    from airlock.accounting import Curve
    from airlock.training.front_ends.choose import Chosen, Limits, Option

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 76, 62
_WIDE = _WIDTH - _LEFT - _RIGHT
_soft, _bold = partial(svg.text, fill=SOFT), partial(svg.text, fill=INK, font_weight="bold")

# A curve of ε.


def draw_curve(curve: Curve, title: str) -> str:
    """Axes from 0, one line, and the value at its end."""
    end = curve.points[-1]
    xs, ys = svg.from_zero(end.at, 8), svg.from_zero(end.epsilon, 6)
    bottom = _HEIGHT - _BOTTOM

    def place(at: float, epsilon: float) -> tuple[float, float]:
        return xs.place(at, _LEFT, _WIDE), ys.place(epsilon, bottom, _TOP - bottom)

    parts = [
        _paper(_HEIGHT),
        _bold(_LEFT, 30, title),
        _soft(_LEFT, 52, curve.says),
        *(_across(place(0, y)[1], SOFT if y == 0 else GRID) for y in ys.ticks),
        *(_soft(_LEFT - 10, place(0, y)[1] + 5, svg.label(y, ys.ticks), "end") for y in ys.ticks),
        *(svg.line((place(x, 0)[0], bottom), (place(x, 0)[0], bottom + 5), stroke=SOFT) for x in xs.ticks),
        *(_soft(place(x, 0)[0], bottom + 22, svg.label(x, xs.ticks), "middle") for x in xs.ticks),
        _soft(_LEFT + _WIDE / 2, _HEIGHT - 14, curve.unit, "middle"),
        _bold(26, (_TOP + bottom) / 2 + 5, "ε", "middle"),
        svg.polyline(
            (place(p.at, p.epsilon) for p in curve.points),
            fill="none", stroke=BLUE, stroke_width=2.5, stroke_linejoin="round",
        ),
        svg.element("circle", cx=place(end.at, 0)[0], cy=place(0, end.epsilon)[1], r=5, fill=BLUE),
        _bold(place(end.at, 0)[0], place(0, end.epsilon)[1] - 12, f"ε = {epsilon_up(end.epsilon)}", "end"),
    ]  # fmt: skip
    says = f"{curve.says}; at the end, {end.at:.4g}, ε is {epsilon_up(end.epsilon)}."
    return svg.figure(title, says, (_WIDTH, _HEIGHT), parts)


def _paper(height: float) -> str:
    return svg.element("rect", width=_WIDTH, height=height, fill="#fff")


def _across(y: float, colour: str, dashes: str | None = None) -> str:
    return svg.line((_LEFT, y), (_WIDTH - _RIGHT, y), stroke=colour, stroke_dasharray=dashes)


# The points where a front end can be cut.

_TALL = 460  # the height of this figure
_HEAD = 96  # above its axes: the explanation takes several lines


def draw_feasible(chosen: Chosen, limits: Limits, title: str) -> str:
    """All measured points, those that meet the limits, and the chosen one."""
    layers = sorted({p.layers for p in chosen.options})
    values = [p.psnr for p in chosen.options] + ([limits.psnr] if limits.psnr else [])
    low, high = math.floor(min(values) - 1), math.ceil(max(values) + 1)
    ys = svg.Range(low, high, tuple(range(low, high + 1, max(1, math.ceil((high - low) / 8)))))
    bottom = _TALL - _BOTTOM

    def across(m: int) -> float:
        return round(_LEFT + _WIDE * (layers.index(m) + 0.5) / len(layers), 1)

    def up(psnr: float) -> float:
        return ys.place(psnr, bottom, _HEAD - bottom)

    parts = [_paper(_TALL), _bold(16, 26, title)]
    parts += [_soft(16, 46 + 17 * i, words, font_size=13) for i, words in enumerate(_wrapped(chosen.why, 96))]
    parts += [_across(up(value), GRID) for value in ys.ticks]
    parts += [_soft(_LEFT - 10, up(value) + 5, f"{value:g}", "end") for value in ys.ticks]
    parts += [_soft(across(m), bottom + 22, str(m), "middle") for m in layers]
    parts.append(_soft(_LEFT + _WIDE / 2, _TALL - 14, "layers m (beside the points: channels D')", "middle"))
    parts.append(_soft(_LEFT - 60, _HEAD - 14, "PSNR in dB"))
    if limits.psnr is not None:
        parts.append(_across(up(limits.psnr), RUST, "6 4"))
        allowed = f"{limits.psnr:g} dB allowed"
        parts.append(svg.text(_LEFT + 4, up(limits.psnr) - 6, allowed, fill=RUST, font_size=12))
    kept = set(chosen.feasible)
    for point in sorted(chosen.options, key=lambda p: p.psnr):
        parts.append(_option(point, across(point.layers), up(point.psnr), point in kept, point == chosen.option))
    return svg.figure(title, chosen.why, (_WIDTH, _TALL), parts)


def _option(point: Option, x: float, y: float, kept: bool, taken: bool) -> str:
    fill, edge = (BLUE, BLUE) if kept else ("#fff", SOFT)
    says = f"m = {point.layers}, D' = {point.channels}: {point.psnr:.1f} dB"
    says += f", accuracy {100 * point.utility:.1f}%" if point.utility is not None else ""
    ring = svg.element("circle", cx=x, cy=y, r=10, fill="none", stroke=RUST, stroke_width=2.5) if taken else ""
    dot = svg.element("circle", cx=x, cy=y, r=5, fill=fill, stroke=edge)
    style = {"fill": INK if kept else SOFT, "font_weight": "bold" if taken else "normal"}
    return svg.named(f"{ring}{dot}{svg.text(x + 14, y + 4, str(point.channels), font_size=12, **style)}", says)


def _wrapped(words: str, width: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# ROC curves.

_SIDE, _ORIGIN, _UPPER = 380, 78, 64  # the side of the square, and its origin
_ROW = 22
_SMALLEST = 1e-3
_ink, _pale = partial(svg.text, class_="roc-ink"), partial(svg.text, class_="roc-soft")
# Chosen to differ in lightness too, for colour-blind readers; dash patterns do the rest.
_LIGHT = ("#1d4f91", "#a85000", "#0a6639", "#8a1c7c", "#a81419", "#46525d")
_DARK = ("#9cc4ff", "#ffb46b", "#74dda3", "#eb9be0", "#ff9d97", "#b6c1cb")


def has_curve(attacks: Iterable[AttackResult]) -> bool:
    """Whether there is anything to draw."""
    return any(attack.curve for attack in attacks)


def draw_roc(attacks: Sequence[AttackResult], title: str = "What the attacks find") -> str:
    """The chart; attacks without a curve are left out."""
    drawn = [attack for attack in attacks if attack.curve]
    height = _UPPER + _SIDE + 70 + _ROW * len(drawn)
    parts = [
        f"<style>{_roc_style()}</style>",
        svg.element("rect", class_="roc-paper", width=_WIDTH, height=height),
        _ink(_ORIGIN, 26, title, font_weight="bold"),
        _pale(_ORIGIN, 47, "Members found, over non-members that are taken for members by mistake"),
        *_roc_axes(),
    ]
    for number, attack in enumerate(drawn):
        parts += _roc_line(number, attack)
    says = "True positive rate over false positive rate, both axes logarithmic from 0.1% to 100%. " + " ".join(
        f"{attack.name}: {attack.curve[0][1]:.2%} of members found at {attack.curve[0][0]:.1%}." for attack in drawn
    )
    return svg.figure(title, says, (_WIDTH, height), parts)


def _roc_line(number: int, attack: AttackResult) -> list[str]:
    """A curve, and its entry in the legend below."""
    look = {
        "class_": f"roc-line roc-{number % len(_LIGHT)}",
        "stroke_dasharray": svg.DASHES[number % len(svg.DASHES)],
    }
    row = _UPPER + _SIDE + 70 + _ROW * number
    return [
        svg.polyline(((_roc_place(x)[0], _roc_place(y)[1]) for x, y in attack.curve), **look),
        svg.line((_ORIGIN, row - 5), (_ORIGIN + 52, row - 5), **look),
        _ink(_ORIGIN + 64, row, attack.name),
    ]


def _roc_axes() -> list[str]:
    bottom, right = _UPPER + _SIDE, _ORIGIN + _SIDE
    parts = []
    for value in (0.001, 0.01, 0.1, 1.0):
        x, y = _roc_place(value)
        parts += [
            svg.line((x, _UPPER), (x, bottom), class_="roc-grid"),
            svg.line((_ORIGIN, y), (right, y), class_="roc-grid"),
            _pale(x, bottom + 20, f"{100 * value:g}%", "middle"),
            _pale(_ORIGIN - 10, y + 5, f"{100 * value:g}%", "end"),
        ]
    turned = f"translate(20 {_UPPER + _SIDE / 2:g}) rotate(-90)"
    return [
        *parts,
        svg.line((_ORIGIN, bottom), (right, _UPPER), class_="roc-chance"),
        _pale(right + 14, _UPPER + 5, "Below this line: guessing"),
        _pale(_ORIGIN + _SIDE / 2, bottom + 40, "false positive rate", "middle"),
        _pale(0, 0, "true positive rate", "middle", transform=turned),
    ]


def _roc_place(value: float) -> tuple[float, float]:
    """The x and y coordinates of a rate; rates below the smallest one shown are clamped to the axis."""
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

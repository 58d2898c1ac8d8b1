"""The ROC curves of a card's attacks as one figure with logarithmic axes: `roc.svg`.

In: attacks that carry a thinned curve. Out: plain SVG without script, the same for the same card, so that verification
draws it again and compares. Curves differ by colour and by dashes; colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

_WIDTH, _SIDE, _LEFT, _TOP = 720, 380, 78, 64
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
    height = _TOP + _SIDE + 70 + _ROW * len(drawn)
    parts = [*_frame(title, drawn, height), *_axes()]
    for number, attack in enumerate(drawn):
        parts += _one(number, attack)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _one(number: int, attack: Curved) -> list[str]:
    """A curve, and its row below the picture."""
    look = f'class="roc-line roc-{number % len(_LIGHT)}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'
    line = " ".join(f"{_place(x)[0]},{_place(y)[1]}" for x, y in attack.curve)
    row = _TOP + _SIDE + 70 + _ROW * number
    return [
        f'<polyline {look} points="{line}"/>',
        f'<line {look} x1="{_LEFT}" x2="{_LEFT + 52}" y1="{row - 5}" y2="{row - 5}"/>',
        _text(_LEFT + 64, row, attack.name),
    ]


def _frame(title: str, drawn: Sequence[Curved], height: int) -> list[str]:
    says = "True positive rate over false positive rate, both axes logarithmic from 0.1% to 100%. " + " ".join(
        f"{attack.name}: {attack.curve[0][1]:.2%} of members found at {attack.curve[0][0]:.1%}." for attack in drawn
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, Liberation Sans, sans-serif" font-size="14">',
        f"<title>{escape(title)}</title><desc>{escape(says)}</desc>",
        f"<style>{_style()}</style>",
        f'<rect class="roc-paper" width="{_WIDTH}" height="{height}"/>',
        _text(_LEFT, 26, title, weight="bold"),
        _text(_LEFT, 47, "Members found, over non-members that are taken for members by mistake", kind="roc-soft"),
    ]


def _axes() -> list[str]:
    bottom, right = _TOP + _SIDE, _LEFT + _SIDE
    parts = []
    for value in (0.001, 0.01, 0.1, 1.0):
        x, y = _place(value)
        parts += [
            f'<line class="roc-grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>',
            f'<line class="roc-grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>',
            _text(x, bottom + 20, f"{100 * value:g}%", "middle", "roc-soft"),
            _text(_LEFT - 10, y + 5, f"{100 * value:g}%", "end", "roc-soft"),
        ]
    parts += [
        f'<line class="roc-chance" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{_TOP}"/>',
        _text(right + 14, _TOP + 5, "Below this line: guessing", kind="roc-soft"),
        _text(_LEFT + _SIDE / 2, bottom + 40, "false positive rate", "middle", "roc-soft"),
        f'<text class="roc-soft" text-anchor="middle" transform="translate(20 {_TOP + _SIDE / 2:g}) rotate(-90)">'
        "true positive rate</text>",
    ]
    return parts


def _place(value: float) -> tuple[float, float]:
    """Across and down; what lies below the smallest shown rate lies on the axis."""
    share = 1.0 - math.log10(max(value, _SMALLEST)) / math.log10(_SMALLEST)
    return round(_LEFT + _SIDE * share, 2), round(_TOP + _SIDE * (1.0 - share), 2)


def _style() -> str:
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


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "roc-ink", weight: str = "normal") -> str:
    style = f'class="{kind}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'

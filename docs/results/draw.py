"""Draws docs/results/weights.svg from weights.csv: accuracy against ε, proven and claimed told apart by shape.

python docs/results/draw.py
"""

from __future__ import annotations

import csv
import math
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 70, 150
COLOURS = ("#1d4f91", "#4b7f52", "#b3471d", "#8a6d1f")
LOW, HIGH = 80.0, 100.0  # of the accuracy; what lies below is an arrow with its figure
FIRST, LAST = 0.04, 1.6  # of ε, on a logarithmic axis


def main() -> None:
    """Read the table, write the picture."""
    with (HERE / "weights.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    series = list(dict.fromkeys((row["series"], row["status"]) for row in rows))
    parts = [*_frame(), *_axes()]
    for place, (name, status) in enumerate(series):
        points = [(float(r["epsilon"]), float(r["accuracy"])) for r in rows if r["series"] == name]
        parts += _series(points, COLOURS[place], status == "proven")
        parts += _legend(place, name, status)
    (HERE / "weights.svg").write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _across(epsilon: float) -> float:
    share = math.log(epsilon / FIRST) / math.log(LAST / FIRST)
    return round(LEFT + (WIDTH - LEFT - RIGHT) * share, 1)


def _up(accuracy: float) -> float:
    share = (max(LOW, accuracy) - LOW) / (HIGH - LOW)
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)


def _frame() -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="system-ui, Liberation Sans, sans-serif" font-size="14">',
        "<title>MNIST: accuracy against ε</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 28, "MNIST: accuracy against ε at δ = 1e-5", weight="bold"),
        _text(LEFT, 50, "Round and filled: ε is proven. Triangle and dashed: ε is only claimed, and does not hold."),
    ]


def _axes() -> list[str]:
    parts = []
    for accuracy in range(int(LOW), int(HIGH) + 1, 5):
        y = _up(accuracy)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#d5dbe0"/>')
        parts.append(_text(LEFT - 8, y + 5, f"{accuracy}%", "end"))
    parts += [_text(_across(e), HEIGHT - BOTTOM + 22, f"{e:g}", "middle") for e in (0.05, 0.1, 0.3, 1)]
    return [*parts, _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 44, "ε (logarithmic)", "middle")]


def _series(points: list[tuple[float, float]], colour: str, proven: bool) -> list[str]:
    line = " ".join(f"{_across(e)},{_up(a)}" for e, a in points if a >= LOW)
    dashes = "" if proven else ' stroke-dasharray="6 5"'
    parts = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>']
    parts += [_mark(_across(e), _up(a), colour, proven) for e, a in points if a >= LOW]
    parts += [_text(_across(e), _up(a) - 6, f"↓ {a:.1f}%", fill=colour) for e, a in points if a < LOW]
    return parts


def _mark(x: float, y: float, colour: str, proven: bool) -> str:
    if proven:
        return f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>'
    corners = f"{x},{y - 7} {x - 6},{y + 5} {x + 6},{y + 5}"
    return f'<polygon points="{corners}" fill="#fff" stroke="{colour}" stroke-width="2"/>'


def _legend(place: int, name: str, status: str) -> list[str]:
    y = HEIGHT - BOTTOM + 72 + 20 * place
    return [_mark(LEFT + 8, y - 5, COLOURS[place], status == "proven"), _text(LEFT + 24, y, f"{name} ({status})")]


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal", fill: str = "#12171c") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{escape(words)}</text>'


if __name__ == "__main__":
    main()

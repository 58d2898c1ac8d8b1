"""Draws docs/results/weights.svg from reproduced/weights.jsonl: accuracy on MNIST against ε, proven, and claimed.

python docs/results/draw.py
"""

from __future__ import annotations

from pathlib import Path

from plot import Line, Panel, write

from airlock.reproduction import Found, KeptRow
from airlock.reproduction.weights import DATA, FIGURE_3, PRINTED, best

HERE = Path(__file__).resolve().parent
EPSILONS = (0.05, 0.1, 0.3, 1.0)


def main() -> None:
    """Read the rows, write the picture."""
    text = (HERE / "reproduced/weights.jsonl").read_text(encoding="utf-8")
    found = Found(tuple(map(KeptRow.from_json, text.splitlines())))
    head = {epsilon: found.figure("head", "others", data="mnist", epsilon=epsilon) for epsilon in FIGURE_3}
    lines = [Line("head, proven", [(e, 100 * one.mean) for e, one in head.items() if one], "circle")]
    for mechanism, name in (
        ("gaussian", "gaussian, proven"),
        ("optimised", "published, claimed"),
    ):
        ours = {
            e: best(found, "mnist", DATA["mnist"].rates, "others", epsilon=e, mechanism=mechanism) for e in FIGURE_3
        }
        points = [(e, 100 * one[0].mean) for e, one in ours.items() if one]
        lines += [Line(name, points, "circle" if mechanism == "gaussian" else "triangle")] if points else []
    printed = [(epsilon, 100 * PRINTED["mnist", epsilon, "optimised"][1]) for epsilon in FIGURE_3]
    lines.append(Line("the paper, claimed", printed))
    panel = Panel("MNIST, δ = 1e-5", "ε, proven or claimed", lines, 80.0, 100.0, True, EPSILONS)
    write(HERE / "weights.svg", "MNIST: accuracy against ε", [panel])


if __name__ == "__main__":
    main()

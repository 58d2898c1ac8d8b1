"""Draws the figures of docs/results/features.md from the rows that features.py printed.

python docs/results/features_draw.py rows.jsonl

Writes features-surface.svg (PSNR and accuracy by layers, and the trade-off; of the coarse stage), features-long.svg
(the same after a long training; of the stage "surface") and features-channels.svg (single channels, and draws with and
without pruning) beside this file; what is not among the rows is left out.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plot import Line, Panel, write

HERE = Path(__file__).resolve().parent
MOST = 6  # lines of a panel
NAMES = {"random": "any channels", "characterised": "pruned by accuracy", "lda": "by Fisher's criterion",
         "lda, more records": "Fisher, 50,000 records", "lda, more leaky": "Fisher, 48 leaky out",
         "lda, more of both": "Fisher, 48 and 80 out"}  # fmt: skip
Rows = list[dict[str, Any]]


def main() -> None:
    """Read the rows, write the pictures."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for stage, name in (("coarse", "surface"), ("surface", "long")):
        own = [row for row in rows if "m" in row and "channels" in row and row["stage"] == stage]
        if own:
            write(HERE / f"features-{name}.svg", "What prefixes leak and serve", _surface(own), columns=3)
    single = [row for row in rows if row["stage"] == "single"]
    draws = [row for row in rows if row["stage"] == "draws" and "setting" in row]
    panels = [_single(single[-1])] if single else []
    panels += [_draws(draws)] if draws else []
    if panels:
        write(HERE / "features-channels.svg", "Channels alone, and draws of channels", panels)


def _surface(rows: Rows) -> list[Panel]:
    layers, depths = sorted({row["m"] for row in rows}), sorted({row["channels"] for row in rows})
    found = {(row["m"], row["channels"]): (row["psnr"]["mean"], 100 * row["accuracy"]["mean"]) for row in rows}
    panels = []
    for place, (title, unit) in enumerate((("PSNR by layers", " dB"), ("Accuracy by layers", "%"))):
        lines = [
            Line(f"{depth} channels", [(m, found[m, depth][place]) for m in layers if (m, depth) in found], "circle")
            for depth in depths[:MOST]
        ]
        low, high = _range(pair[place] for pair in found.values())
        panels.append(Panel(title, "layers m", lines, low, high, ticks=layers, unit=unit))
    shown = layers if len(layers) <= MOST else [m for m in layers if m not in (3, 5)][:MOST]
    trade = [Line(f"m = {m}", [found[m, d] for d in depths if (m, d) in found], "circle") for m in shown]
    low, high = _range(pair[1] for pair in found.values())
    ticks = _ticks([pair[0] for pair in found.values()])
    panels.append(Panel("The trade-off", "PSNR in dB", trade, low, high, ticks=ticks, unit="%"))
    return panels


def _single(row: dict[str, Any]) -> Panel:
    points = [(psnr, 100 * accuracy) for _, accuracy, psnr, _ in row["channels"]]
    low, high = _range(y for _, y in points)
    title = f"Single channels, m = {row['m']} (correlation {row['correlation']:.2f})"
    line = Line("one channel", points, "dot")
    return Panel(title, "PSNR in dB", [line], low, high, ticks=_ticks([x for x, _ in points]), unit="%")


def _draws(rows: Rows) -> Panel:
    lines = [Line(NAMES[row["setting"]], [(p, 100 * u) for u, p in row["points"]], "dot") for row in rows]
    every = [point for line in lines for point in line.points]
    low, high = _range(y for _, y in every)
    return Panel("Draws of channels", "PSNR in dB", lines, low, high, ticks=_ticks([x for x, _ in every]), unit="%")


def _range(values: Iterable[float]) -> tuple[float, float]:
    """Round numbers around all of them, a multiple of four apart."""
    own = list(values)
    low = math.floor(min(own))
    return low, low + 4 * math.ceil((max(own) - low + 1e-9) / 4)


def _ticks(values: Sequence[float]) -> list[float]:
    step = max(1, math.ceil((max(values) - min(values)) / 6))
    return list(range(math.ceil(min(values)), math.floor(max(values)) + 1, step))


if __name__ == "__main__":
    main()

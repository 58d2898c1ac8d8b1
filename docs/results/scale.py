"""How cost grows, and a plan for 10⁹ records and 7·10⁹ parameters, from the rows of two benchmarks.

    airlock bench scale --json > scale.json; airlock bench storage --json > storage.json
    python docs/results/scale.py scale.json storage.json > docs/results/scale.jsonl
    python docs/results/scale.py docs/results/scale.jsonl          # the tables and the plan of scale.md

Every line of scale.jsonl is a row of a benchmark. What the plan assumes and no row measures is in `ASSUMED`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]

RECORDS, PARAMETERS, GPUS = 10**9, 7 * 10**9, 64
TOKENS, LOT, STEPS, ADAPTERS = 512, 65_536, 1000, 4 * 10**7
# An H200's peak in bfloat16 is 989 TFLOP/s; 40% of it is what large language models usually get.
ASSUMED = {"flops a second of a GPU": 400e12, "bytes a second between GPUs": 50e9}
# results/weights.md: private ÷ ordinary step of a transformer on one H200, the worst; 122 µs of noise for 1,199,882.
RATIO, NOISE = 1.63, 122e-6 / 1_199_882


def main() -> None:
    """Gather rows, or print what they say."""
    files = [Path(name) for name in sys.argv[1:]]
    if files[0].suffix == ".json":
        for file in files:
            for bench, rows in json.loads(file.read_text()).items():
                for row in rows:
                    print(json.dumps({"bench": bench, **row}, ensure_ascii=False))
        return
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    print("\n".join([*tables(rows), "", *plan(rows)]))


def tables(rows: list[Row]) -> list[str]:
    """One line per thing that was measured, and the speed of training from a file."""
    found = ["| what | against | from, to | seconds | slope |", "|---|---|---|---|---|"]
    for end in (row for row in rows if "slope" in row):
        own = [row for row in rows if "size" in row and _name(row) == _name(end)]
        sizes = f"{own[0]['size']:,}, {own[-1]['size']:,}"
        took = f"{own[0]['seconds']:g}, {own[-1]['seconds']:g}"
        found.append(f"| {end['what']} | {end['against']} | {sizes} | {took} | {end['slope']:.2f} |")
    found += ["", "| lot | cache | places told | speed, wall | speed, processor |", "|---|---|---|---|---|"]
    for row in (row for row in rows if row["bench"] == "storage"):
        speeds = f"{row['speed, wall']:.2f} | {row['speed, processor']:.2f}"
        found.append(f"| {row['lot']} | {row['cache']} | {row['places told']} | {speeds} |")
    return found


def plan(rows: list[Row]) -> list[str]:
    """The arithmetic, line by line."""
    divide = at(rows, "divide records, in a file", "records", RECORDS)
    draw = at(rows, "draw a lot", "records", RECORDS)
    noise = at(rows, "noise of a step", "parameters", PARAMETERS)
    each = next(row["bytes a record"] for row in rows if "bytes a record" in row)
    encoded = 4 * TOKENS * RECORDS
    flops, rate = 6 * PARAMETERS * LOT * TOKENS, GPUS * ASSUMED["flops a second of a GPU"]
    step = flops / rate * RATIO
    link = ASSUMED["bytes a second between GPUs"]
    lines = [
        ("hash and order the records, one core", f"{divide / 3600:.1f} h", _scaled(rows)),
        ("encoded records, in a file", f"{encoded / 1e12:.2f} TB", f"4 · {TOKENS} · 10⁹ bytes; twice while dividing"),
        ("memory while dividing", f"{each * RECORDS / 1e9:.0f} GB", f"{each} bytes a record, in every process"),
        ("draw a lot, one core", f"{draw:.1f} s a step", "in the thread that reads ahead"),
        ("read a lot", f"{4 * TOKENS * LOT / 1e6:.0f} MB a step", f"{LOT:,} · {4 * TOKENS} bytes, over all processes"),
        ("gradients, all weights", f"{step:.0f} s a step", f"6 · 7·10⁹ · {LOT:,} · {TOKENS} ÷ {rate:.3g} · {RATIO}"),
        ("gradients, adapters", f"{step * 4 / 6:.0f} s a step", "4 in place of 6: no gradients of weights"),
        ("noise, one core", f"{noise:.0f} s a step", "by the slope; on a GPU below"),
        ("noise, one H200", f"{NOISE * PARAMETERS:.2f} s a step", "122 µs for 1,199,882"),
        ("sums to the lead and back", f"{2 * 4 * PARAMETERS / link:.2f} s a step", "2 · 28 GB ÷ 50 GB/s"),
        ("of adapters", f"{2 * 4 * ADAPTERS / link * 1000:.0f} ms a step", "2 · 160 MB ÷ 50 GB/s"),
        ("memory of a GPU, all weights", f"{(4 + 8 + 4 + 8) * PARAMETERS / 1e9:.0f} GB", "(4 + 8 + 4 + 8) · 7·10⁹"),
        ("memory of a GPU, adapters", f"{(4 * PARAMETERS + 24 * ADAPTERS) / 1e9:.0f} GB", "4 · 7·10⁹ + 24 · 4·10⁷"),
        ("the whole, all weights", f"{step * STEPS / 3600:.0f} h", f"{STEPS:,} steps"),
        ("the whole, adapters", f"{step * 4 / 6 * STEPS / 3600:.0f} h", f"{STEPS:,} steps"),
    ]
    return ["| what | how much | arithmetic |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in lines)]


def at(rows: list[Row], what: str, against: str, size: int) -> float:
    """Seconds at a size beyond those measured: the largest, along the slope."""
    own = [row for row in rows if row.get("what") == what and row.get("against") == against]
    last = [row for row in own if "size" in row][-1]
    slope = next(row["slope"] for row in own if "slope" in row)
    return float(last["seconds"] * (size / last["size"]) ** slope)


def _scaled(rows: list[Row]) -> str:
    own = [row for row in rows if row.get("what") == "divide records, in a file"]
    last, slope = [row for row in own if "size" in row][-1], next(row["slope"] for row in own if "slope" in row)
    return f"{last['seconds']:g} s · (10⁹ ÷ {last['size']:,})^{slope:.2f}, {math.prod((4, TOKENS)):,} bytes each"


def _name(row: Row) -> tuple[str, str]:
    return row["what"], row["against"]


if __name__ == "__main__":
    main()

"""Accuracy of single models, of their average and of twins, by training stage and by ε, for one config of runs/.

python docs/results/twin.py runs/twin-published-digits-eps1.toml --epsilons 0.05,1,5 --epochs 1,5,20 --seeds 0,1,2

One collection is trained for each seed, in a temporary folder; every twin is drawn from it. Prints one JSON object a
seed and stage, and then a table of means (lowest to highest) in percent. What it prints follows from the records
without protection: it is for public benchmarks.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import torch

from airlock import data
from airlock.channels.twin.published import Published
from airlock.config import ReleaseConfig, load
from airlock.data import Records, Split
from airlock.mechanisms import Stream
from airlock.training import Run, count_correct
from airlock.training.collection import Slices
from airlock.training.resident import choose_device


def main() -> None:
    """Train, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--epsilons", type=_numbers, default=[0.05, 0.1, 0.5, 1.0, 5.0])
    parser.add_argument("--epochs", type=_numbers, default=[], help="stages; the last epoch is always one")
    parser.add_argument("--seeds", type=_numbers, default=[0])
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in airlock release")
    asked = parser.parse_args()
    changes = {key: _value(value) for key, _, value in (item.partition("=") for item in asked.set)}
    rows = []
    for seed in asked.seeds:
        config = load(asked.config, {**changes, "seed": int(seed)})
        rows += _measure(config, asked.epsilons, asked.epochs, asked.data_dir)
    _print_table(rows, asked.epsilons)


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _measure(
    config: ReleaseConfig, epsilons: list[float], epochs: list[float], data_dir: Path | None
) -> list[dict[str, object]]:
    facts = data.describe(config, data_dir)
    split = data.load(config, data_dir)
    channel = Published(config, facts)
    run = Run(device=choose_device(config.device), progress=_bar)
    steps, total = math.ceil(channel.records / channel.settings.batch_size), channel.recipe.steps
    stages = {min(total, max(1, round(epoch * steps))): epoch for epoch in epochs}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        found = channel.collection(split, run, Path(folder) / "c", tuple(stages))
        print(f"\ntrained in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        for stage in found.stages:
            epoch = stages.get(stage, channel.settings.epochs)
            row = {
                "seed": config.seed,
                "epoch": epoch,
                **_stage(config, channel, channel.aligned(found.at(stage), run.device), split, epsilons, run),
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def _bar(label: str, done: int, total: int) -> None:
    if done % max(1, total // 50) == 0:
        print(f"\r{label} {100 * done // total}%", end="", file=sys.stderr, flush=True)


def _stage(
    config: ReleaseConfig, channel: Published, slices: Slices, split: Split, epsilons: list[float], run: Run
) -> dict[str, object]:
    models = torch.cat([block for _, block in slices.blocks()], 1)
    singles = [_accuracy(slices, row, split.test, run) for row in models]
    row: dict[str, object] = {
        "single": sum(singles) / len(singles),
        "single_lowest": min(singles),
        "average": _accuracy(slices, slices.average(), split.test, run),
    }
    for epsilon in epsilons:
        drawer = Published(config.model_copy(update={"epsilon": epsilon}), channel.facts)
        begin = time.monotonic()
        net, made = drawer.twin(slices, Stream.from_system(), run.device)
        row["seconds"] = round(time.monotonic() - begin, 3)
        row[f"twin {epsilon:g}"] = count_correct(net, split.test) / len(split.test)
        row["constant_slices"] = made.constant
    return row


def _accuracy(slices: Slices, values: torch.Tensor, records: Records, run: Run) -> float:
    return count_correct(slices.model(values).to(run.device), records) / len(records)


def _print_table(rows: list[dict[str, object]], epsilons: list[float]) -> None:
    columns = ["single", "average", *(f"twin {epsilon:g}" for epsilon in epsilons)]
    print("\n| epoch | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for epoch in dict.fromkeys(row["epoch"] for row in rows):
        cells = [[100 * float(str(row[column])) for row in rows if row["epoch"] == epoch] for column in columns]
        print(f"| {epoch:g} | " + " | ".join(_cell(values) for values in cells) + " |")


def _cell(values: list[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()

"""Accuracy of single models, of their average and of twins, by training stage and by ε, for one config of runs/.

python docs/results/twin.py runs/twin-published-digits-eps1.toml --epsilons 0.05,1,5 --epochs 1,5,20 --seeds 0,1,2

One collection is trained for each seed, in a temporary folder; every twin is drawn from it, of DP-PG for every ε and of
DP-PGP for every triple of --groups (ε1/ε2/ε3). --both adds the same models brought into one order (`align`). Prints one
JSON object a seed and stage, and then a table of means (lowest to highest) in percent. --slices keeps the values of
some parameters and their estimated densities. What it prints follows from the records without protection: it is for
public benchmarks.
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
from scipy import stats

from airlock import data
from airlock.config import ReleaseConfig, load
from airlock.data import Records, Split
from airlock.mechanisms import Stream
from airlock.papers.twin.generate import spread
from airlock.papers.twin.published import Published
from airlock.training import Run, align, count_correct
from airlock.training.devices import choose_device
from airlock.training.ensembles.checkpoint_store import Slices

Row = dict[str, object]
Triple = tuple[float, float, float]


def main() -> None:
    """Train, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--epsilons", type=_numbers, default=[0.05, 0.1, 0.5, 1.0, 5.0])
    parser.add_argument("--epochs", type=_numbers, default=[], help="stages; the last epoch is always one")
    parser.add_argument("--seeds", type=_numbers, default=[0])
    parser.add_argument(
        "--groups", default="", metavar="ε1/ε2/ε3,…", help="DP-PGP beside DP-PG, in the last stage of the first seed"
    )
    parser.add_argument("--both", action="store_true", help="the aligned models too")
    parser.add_argument("--slices", type=Path, default=None, help="a JSON file for some slices of the first seed")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in airlock release")
    asked = parser.parse_args()
    changes = {key: _value(value) for key, _, value in (item.partition("=") for item in asked.set)}
    rows = []
    for seed in asked.seeds:
        config = load(asked.config, {**changes, "seed": int(seed)})
        rows += _measure(config, asked)
    _print_table(rows)


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _measure(config: ReleaseConfig, asked: argparse.Namespace) -> list[Row]:
    facts = data.describe(config, asked.data_dir)
    split = data.load(config, asked.data_dir)
    channel = Published(config, facts)
    run = Run(device=choose_device(config.device), progress=_bar)
    steps, total = math.ceil(channel.records / channel.settings.batch_size), channel.recipe.steps
    stages = {min(total, max(1, round(epoch * steps))): epoch for epoch in asked.epochs}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        found = channel.collection(split, run, Path(folder) / "c", tuple(stages))
        print(f"\ntrained in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        for stage in found.stages:
            slices = channel.aligned(found.at(stage), run.device)
            last = stage == found.stages[-1] and config.seed == int(asked.seeds[0])
            groups = [_triple(text) for text in asked.groups.split(",") if text] if last else []
            forms = {"": slices}
            if asked.both:
                forms["aligned"] = Slices.of(align(slices.ensemble(), device=run.device).ensemble)
            for form, own in forms.items():
                row = {"seed": config.seed, "epoch": stages.get(stage, channel.settings.epochs), "form": form}
                row |= _singles(own, split, run) | _twins(channel, own, split, asked.epsilons, groups, run)
                print(json.dumps(row, ensure_ascii=False), flush=True)
                rows.append(row)
        if asked.slices and config.seed == int(asked.seeds[0]):
            asked.slices.write_text(json.dumps(_densities(channel, slices)) + "\n", encoding="utf-8")
    return rows


def _triple(text: str) -> Triple:
    first, second, third = (float(part) for part in text.split("/"))
    return first, second, third


def _bar(label: str, done: int, total: int) -> None:
    if done % max(1, total // 50) == 0:
        print(f"\r{label} {100 * done // total}%", end="", file=sys.stderr, flush=True)


def _singles(slices: Slices, split: Split, run: Run) -> Row:
    models = torch.cat([block for _, block in slices.blocks()], 1)
    singles = [_accuracy(slices, row, split.test, run) for row in models]
    average = _accuracy(slices, slices.average(), split.test, run)
    return {"single": sum(singles) / len(singles), "single_lowest": min(singles), "average": average}


def _twins(
    channel: Published, slices: Slices, split: Split, epsilons: list[float], groups: list[Triple], run: Run
) -> Row:
    config, row = channel.config, Row()
    for epsilon in epsilons:
        row[f"twin {epsilon:g}"] = _twin(config.model_copy(update={"epsilon": epsilon}), channel, slices, split, run)
    for draw, clusters, residual in groups:
        own = {"draw_epsilon": draw, "cluster_epsilon": clusters, "residual_epsilon": residual}
        settings = {**config.settings, "generator": "dp-pgp", **own}
        changed = config.model_copy(update={"epsilon": max(draw, clusters + residual), "settings": settings})
        row[f"groups {draw:g}/{clusters:g}/{residual:g}"] = _twin(changed, channel, slices, split, run)
    return row


def _twin(config: ReleaseConfig, channel: Published, slices: Slices, split: Split, run: Run) -> float:
    drawer = Published(config, channel.facts)
    net, _ = drawer.twin(slices, Stream.from_system(), run.device)
    return count_correct(net, split.test) / len(split.test)


def _densities(channel: Published, slices: Slices) -> list[dict[str, list[float]]]:
    """Three parameters spread over the network, with the density that their twin is drawn by, at ε."""
    places = [slices.parameters * part // 4 for part in (1, 2, 3)]
    block = torch.stack([_column(slices, place) for place in places], 1)
    bandwidth, low, high = spread(block, channel.settings, torch.zeros(len(places)))
    found = channel.mechanism.probabilities(block, low, high, bandwidth)
    kernel = [stats.gaussian_kde(column.double().numpy(), "silverman") for column in block.T]
    return [
        {
            "parameter": [float(place)],
            "values": column.tolist(),
            "grid": (grid := torch.linspace(float(low[i]), float(high[i]), found.shape[1])).tolist(),
            "density": kernel[i](grid.numpy()).tolist(),
            "drawn": found[i].tolist(),
        }
        for i, (place, column) in enumerate(zip(places, block.T, strict=True))
    ]


def _column(slices: Slices, place: int) -> torch.Tensor:
    for start, block in slices.blocks():
        if start <= place < start + block.shape[1]:
            return block[:, place - start]
    raise IndexError(place)


def _accuracy(slices: Slices, values: torch.Tensor, records: Records, run: Run) -> float:
    return count_correct(slices.model(values).to(run.device), records) / len(records)


def _print_table(rows: list[Row]) -> None:
    known = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in known if name not in ("seed", "epoch", "form", "single_lowest")]
    print("\n| epoch | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for epoch, form in dict.fromkeys((row["epoch"], row["form"]) for row in rows):
        own = [row for row in rows if (row["epoch"], row["form"]) == (epoch, form)]
        cells = [[100 * float(str(row[column])) for row in own if column in row] for column in columns]
        print(f"| {epoch:g} {form} | " + " | ".join(_cell(values) for values in cells) + " |")


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()

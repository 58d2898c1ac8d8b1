"""Membership inference on over-fitted models and on their twins, class by class (figure 12 of Mao et al. 2020).

python docs/results/twin_attack.py runs/twin-published-cifar10-overfitted.toml --data-dir DATA

The models of the collection learn from the private part of the split. Shadow models of the same network, trained in the
same way on as many of the public part's records, teach one attack network a class (Shokri et al. 2017); it is asked
about the private records and as many of the holdout. An accuracy is that of the attack's own decision, (TPR + TNR)/2.
Prints one JSON object a released model, and a table in percent. It is for public benchmarks: nothing here is protected.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from airlock import data
from airlock.auditing.attacks import AnsweredRecords, ShadowSettings, shadow_attack, subsets
from airlock.auditing.attacks.shadows import train_attack, train_shadows
from airlock.auditing.attacks.signals import ask
from airlock.config import ReleaseConfig, load
from airlock.data import Records, Split
from airlock.mechanisms import Stream
from airlock.papers.twin.published import Published
from airlock.training import Run, count_correct
from airlock.training.devices import choose_device
from airlock.training.ensembles.ensemble import makes

Row = dict[str, object]
Attack = Callable[[nn.Module], list[float]]
SINGLES = 5  # of the models, each attacked by itself


def main() -> None:
    """Train, attack, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="+", help="of one split and one way of training")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in airlock release")
    asked = parser.parse_args()
    changes = {key: json.loads(value) for key, _, value in (item.partition("=") for item in asked.set)}
    configs = [load(path, changes) for path in asked.config]
    run = Run(device=choose_device(configs[0].device))
    split = data.load(configs[0], asked.data_dir)
    facts = data.describe(configs[0], asked.data_dir)
    attack = _attacker(Published(configs[0], facts), split, asked.shadows, run)
    rows: list[Row] = []
    for path, config in zip(asked.config, configs, strict=True):
        rows += _rows(path.stem, config, split, attack, run)
    _print_table(rows, facts.classes)


def _attacker(channel: Published, split: Split, count: int, run: Run) -> Attack:
    """Learn from shadow models; gives the attack's accuracy on a network, class by class."""
    config, pool, begin = channel.config, split.public, time.monotonic()
    inside = subsets(count, len(pool), min(len(split.private), len(pool) // 2), config.seed)
    shape, classes = channel.facts.shape, len(channel.facts.classes)
    make = makes(channel.net_name, shape, classes, config.seed + 1)
    size, epochs = channel.settings.batch_size, channel.settings.common_epochs + channel.settings.epochs
    steps = round(epochs * -(-int(inside[0].sum()) // size))
    recipe = channel.recipe.model_copy(update={"steps": steps})
    shadows, _ = train_shadows(make, pool, inside, recipe, config.seed + 1, run, batch_size=size)
    settings = ShadowSettings(repeats=1, most=20_000, epochs=30)
    nets = train_attack(shadows, config.seed, run, settings)
    print(f"shadow models and attack: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    count_scored = min(len(split.private), len(split.holdout))
    sides = [part.take(np.arange(count_scored)) for part in (split.private, split.holdout)]

    def attack(net: nn.Module) -> list[float]:
        members, others = (AnsweredRecords(side, ask(net, side, run.device)) for side in sides)
        found = shadow_attack(shadows, members, others, config.seed, run, settings, nets)
        return [_balanced(found.members > 0, found.others > 0, sides, c) for c in range(classes)]

    return attack


def _balanced(members: np.ndarray, others: np.ndarray, sides: list[Records], label: int) -> float:
    return float((members[sides[0].y == label].mean() + 1 - others[sides[1].y == label].mean()) / 2)


def _rows(name: str, config: ReleaseConfig, split: Split, attack: Attack, run: Run) -> list[Row]:
    channel = Published(config, split.facts)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        slices = channel.collection(split, run, Path(folder) / "c").at()
        models = torch.cat([block for _, block in slices.blocks()], 1)
        print(f"{name}: {len(models)} models, {time.monotonic() - begin:.0f} s", file=sys.stderr)
        singles = [_row("", slices.model(row), split, attack, run) for row in models[:SINGLES]]
        rows = [_mean(f"{name}: single model", singles)]
        rows.append(_row(f"{name}: average of the models", slices.model(slices.average()), split, attack, run))
        for what, changed in _twins(config).items():
            net, _ = Published(changed, channel.facts).twin(slices, Stream.from_system(), run.device)
            rows.append(_row(f"{name}: {what}", net, split, attack, run))
    for row in rows:
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows


def _twins(config: ReleaseConfig) -> dict[str, ReleaseConfig]:
    """DP-PG at ε = 1, and DP-PGP at (5, 1, 4)."""
    groups = {**config.settings, "generator": "dp-pgp", "cluster_epsilon": 1.0, "residual_epsilon": 4.0}
    return {
        "DP-PG (1)": config.model_copy(update={"epsilon": 1.0}),
        "DP-PGP (5, 1, 4)": config.model_copy(update={"epsilon": 5.0, "settings": groups}),
    }


def _row(what: str, net: nn.Module, split: Split, attack: Attack, run: Run) -> Row:
    net = net.to(run.device).eval()
    accuracy = {name: count_correct(net, part) / len(part) for name, part in _parts(split)}
    return {"what": what, **accuracy, "attack": attack(net)}


def _parts(split: Split) -> list[tuple[str, Records]]:
    return [("train", split.private), ("test", split.test)]


def _mean(what: str, rows: list[Row]) -> Row:
    found: Row = {"what": what}
    for name in ("train", "test"):
        found[name] = float(np.mean([float(str(row[name])) for row in rows]))
    found["attack"] = np.mean([np.asarray(row["attack"], float) for row in rows], 0).tolist()
    return found


def _print_table(rows: list[Row], classes: tuple[str, ...]) -> None:
    print("\n| | train | test | " + " | ".join(classes) + " | mean | highest |\n|" + "---|" * (len(classes) + 5))
    for row in rows:
        attack = np.asarray(row["attack"], float)
        figures = [row["train"], row["test"], *attack, attack.mean(), attack.max()]
        print(f"| {row['what']} | " + " | ".join(f"{100 * float(str(value)):.1f}" for value in figures) + " |")


if __name__ == "__main__":
    main()

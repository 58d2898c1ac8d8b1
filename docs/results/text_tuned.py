"""Accuracy of `weights`/`gaussian` on SST-2 over a range of ε: MiniLM with adapters, trained under noise.

python docs/results/text_tuned.py DATA [--device cuda] [--seeds 0 1] [--seconds 300] [--epsilon 8] [--set KEY=VALUE]

DATA holds sst2_train.tsv.gz and sst2_test.tsv.gz. Every line that is printed (kept in docs/results/text.jsonl) is one
training of runs/sst2-lora.toml at another ε on all of its private records: the events of the real method with noise
from the operating system, and the accuracy on the 872 official test sentences. The split is that of seed 0; the seed in
a line draws adapters and head. One network is used for all, with its weights as they were, so that how it is computed
is found out once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from airlock import data, methods
from airlock.config import ReleaseConfig, load
from airlock.mechanisms import Randomness
from airlock.methods.contract import check_executed
from airlock.methods.weights.gaussian import Gaussian
from airlock.training import Run, outcomes_of

CONFIG = Path(__file__).resolve().parents[2] / "runs" / "sst2-lora.toml"
EPSILONS = (3.0, 8.0, 1.0)


def _change(text: str) -> tuple[str, object]:
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _method(config: ReleaseConfig, facts: data.Facts) -> Gaussian:
    found = methods.build(config, facts)
    assert isinstance(found, Gaussian)
    return found


def main() -> None:
    """Print one line per training."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked.add_argument("--seconds", type=float, default=float("inf"))
    asked.add_argument("--epsilon", type=float, action="append")
    asked.add_argument("--set", action="append", default=[])
    given = asked.parse_args()
    begun = time.monotonic()
    changes = dict(_change(one) for one in given.set)
    config = load(CONFIG, changes)
    facts, run = data.describe(config), Run(device=torch.device(given.device))
    split = data.load(config, given.folder)
    net = _method(config, facts).net().to(run.device)
    for seed in given.seeds:
        start = _method(config.model_copy(update={"seed": seed}), facts).net().state_dict()
        for epsilon in given.epsilon or EPSILONS:
            if time.monotonic() - begun > given.seconds:
                return
            since = time.monotonic()
            net.load_state_dict(start)
            channel = _method(config.model_copy(update={"epsilon": epsilon, "seed": seed}), facts)
            figures = channel.planned.figures
            _, executed = channel.train(net, split, figures, Randomness.make(seed), run)
            check_executed(channel.planned, executed)
            row = {
                "config": CONFIG.name,
                "changes": changes,
                "epsilon": epsilon,
                "stated": channel.planned.guarantee.epsilon,
                "delta": config.delta,
                "private": len(split.private),
                "seed": seed,
                "accuracy": outcomes_of(net, split.test).accuracy,
                "noise_multiplier": figures.noise_multiplier,
                "sampling_probability": figures.sampling_probability,
                "steps": figures.steps,
                "learning_rate": channel.settings.learning_rate,
                "device": torch.cuda.get_device_name() if run.device.type == "cuda" else "CPU",
                "seconds": round(time.monotonic() - since, 1),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""The figures of `student`/`ensemble` in docs/results/student.md: the student, and the same with nothing private asked.

python docs/results/student_ensemble.py runs/student-ensemble-digits-eps8.toml 0 1 2 --epsilon 3
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch

from airlock import data, methods
from airlock.config import ReleaseConfig, load
from airlock.data import Split
from airlock.errors import AirlockWarning
from airlock.mechanisms import Randomness
from airlock.methods.student.ensemble import Ensemble
from airlock.training import Run
from airlock.training.devices import choose_device

SHOWN = ("teachers", "queries", "noise_multiplier", "bound", "noise_over_bound", "public_teacher_accuracy")


def main() -> None:
    """One line of JSON a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    for seed in asked.seeds:
        changes = {"seed": seed} | ({"epsilon": asked.epsilon} if asked.epsilon else {})
        config = load(asked.config, changes)
        split = data.load(config, asked.data_dir)
        print(
            json.dumps({"seed": seed, "epsilon": config.epsilon, **measure(config, split, asked.data_dir)}), flush=True
        )


def measure(config: ReleaseConfig, split: Split, data_dir: Path | None) -> dict[str, object]:
    """Accuracies of the student, of the same student if its teachers say nothing, and of the public teacher."""
    warnings.simplefilter("ignore", AirlockWarning)
    channel = methods.build(config, data.describe(config, data_dir))
    assert isinstance(channel, Ensemble)
    run = Run(device=choose_device(config.device))
    made = channel.release(split, Randomness.make(config.seed, 1), run)
    silent = config.model_copy(
        update={"settings": {**config.settings, "bound": 1e-9, "teachers": 2, "shard_epochs": 1}}
    )
    alone = methods.build(silent, channel.facts).release(split, Randomness.make(config.seed, 1), run)
    return {
        "student": made.utility.accuracy,
        "public_alone": alone.utility.accuracy,
        **{key: value for key, value in {**made.plan.details, **made.inside}.items() if key in SHOWN},
    }


if __name__ == "__main__":
    main()

"""The figures of `student`/`private-teacher` in docs/results/student.md, among them classes without public records.

python docs/results/student_masked.py runs/student-private-teacher-mnist-masked-eps8.7.toml 0 1 2 --data-dir DATA
"""

from __future__ import annotations

import argparse
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from airlock import data, methods
from airlock.config import ReleaseConfig, load
from airlock.data import Records, Split
from airlock.mechanisms import Randomness
from airlock.methods.student.private_teacher import PrivateTeacher
from airlock.training import Run, predict
from airlock.training.devices import choose_device, share_gpu

SHOWN = (
    "noise_multiplier",
    "sampling_probability",
    "public_teacher_accuracy",
    "teacher_accuracy",
    "private_learning_rate",
)


def main() -> None:
    """One line of JSON a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE in TOML, such as settings.rounds=1")
    parser.add_argument("--on-holdout", action="store_true", help="measure on the holdout: for picking settings")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sharing", type=int, default=1, help="so many processes on this GPU, for its memory")
    asked = parser.parse_args()
    share_gpu(asked.sharing)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    changes = {key: tomllib.loads(f"v = {value}")["v"] for key, _, value in (one.partition("=") for one in asked.set)}
    for seed in asked.seeds:
        config = load(asked.config, {**changes, "seed": seed})
        split = data.load(config, asked.data_dir)
        if asked.on_holdout:
            split = replace(split, test=split.holdout)
        row = {"config": asked.config.stem, "seed": seed, **measure(config, split, asked.data_dir)}
        print(json.dumps(row), flush=True)


def measure(config: ReleaseConfig, split: Split, data_dir: Path | None) -> dict[str, object]:
    """Accuracy overall and on classes without public records: of the student, and of one without a teacher."""
    channel = methods.build(config, data.describe(config, data_dir))
    assert isinstance(channel, PrivateTeacher)
    run = Run(device=choose_device(config.device))
    made = channel.release(split, Randomness.make(config.seed, 1), run)
    return {
        "epsilon": made.guarantee.epsilon,
        "delta": made.guarantee.delta,
        "student": accuracies(made.network.net, split.test, channel.unseen),
        "base": accuracies(channel.alone(split.public, run), split.test, channel.unseen),
        **{key: {**made.plan.details, **made.inside}[key] for key in SHOWN},
    }


def accuracies(net: nn.Module, test: Records, unseen: tuple[int, ...]) -> dict[str, float]:
    """Overall, and on classes without public records where there are any."""
    right = predict(net, test).argmax(1).numpy() == test.y
    theirs = np.isin(test.y, unseen)
    return {"overall": float(right.mean())} | ({"unseen": float(right[theirs].mean())} if theirs.any() else {})


if __name__ == "__main__":
    main()

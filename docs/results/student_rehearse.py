"""What noise alone and private training make of a public teacher, by the size of the steps (docs/results/student.md).

python docs/results/student_rehearse.py runs/student-private-teacher-digits-eps8.toml --epsilons 1 3 --seeds 0 1
python docs/results/student_rehearse.py runs/student-private-teacher-mnist-eps7.68.toml --epsilons 0.3 1 3 8 --alone \
    --set split.public=0.2 --set split.holdout=0.1 --set settings.teacher_epochs=3 --data-dir DATA

One line of JSON a size, measured on the holdout; `--alone` leaves private training out and prints the size that is
rehearsed.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

import numpy as np
import torch

from airlock import data, methods
from airlock.config import ReleaseConfig, load
from airlock.mechanisms import Randomness
from airlock.methods.student.private_teacher import PrivateTeacher
from airlock.training import Run, count_correct, predict
from airlock.training.devices import choose_device
from airlock.training.noise_aware_lr import bearable, shaken, wandering
from airlock.training.stages import Stages

FACTORS = (1.0, 0.5, 0.25, 0.125, 0.0625)


def main() -> None:
    """Every seed at every ε."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--epsilons", type=float, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE in TOML")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    changes = {key: tomllib.loads(f"v = {value}")["v"] for key, _, value in (one.partition("=") for one in asked.set)}
    for seed in asked.seeds:
        for epsilon in asked.epsilons:
            config = load(asked.config, {**changes, "seed": seed, "epsilon": epsilon})
            for row in measure(config, asked.data_dir, asked.alone):
                print(json.dumps({"config": asked.config.stem, "seed": seed, "epsilon": epsilon, **row}), flush=True)


def measure(config: ReleaseConfig, data_dir: Path | None, alone: bool) -> list[dict[str, object]]:
    """By the factor on the learning rate: what is left of the public records, and the teacher on the holdout."""
    channel = methods.build(config, data.describe(config, data_dir))
    assert isinstance(channel, PrivateTeacher)
    split, run, seed = data.load(config, data_dir), Run(device=choose_device(config.device)), config.seed
    start, recipe = channel._auxiliary(split.public, seed, Stages(run, {})), channel.settings
    figures = channel.plan().figures
    noise = figures.noise_on_mean_gradient
    if alone:
        loss = channel.may_cost
        return [{"factor": bearable(channel.started(start, run.device), split.public, noise, recipe, loss, seed)}]
    found: list[dict[str, object]] = []
    unseen = np.isin(split.holdout.y, channel.unseen)
    for factor in FACTORS:
        own = recipe.model_copy(update={"learning_rate": factor * recipe.learning_rate})
        left = shaken(channel.started(start, run.device), split.public, wandering(noise, own, seed), seed)
        teacher = channel._privately(start, own, split, figures, Randomness.make(seed, 1), run)[0]
        right = predict(teacher, split.holdout).argmax(1).numpy() == split.holdout.y
        row: dict[str, object] = {"factor": factor, "noise_alone": round(left, 3), "teacher": round(right.mean(), 3)}
        row |= {"unseen": round(right[unseen].mean(), 3)} if unseen.any() else {}
        found.append({**row, "public_teacher": round(count_correct(start, split.holdout) / len(split.holdout), 3)})
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""The figures of docs/results/student.md: teachers, students, and what each of them weighs and takes.

python docs/results/student.py runs/student-published-digits.toml 0 1 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from airlock import channels, data
from airlock.channels.contract import Artefact, Release
from airlock.channels.student.published import Published
from airlock.config import ReleaseConfig, load
from airlock.data import Split
from airlock.mechanisms import Randomness
from airlock.release.export import open_onnx, probe, to_onnx
from airlock.training import Recipe, Run, Shuffled, count_correct
from airlock.training.distil import Stage, at_places, learn_labels
from airlock.training.resident import choose_device

IMAGES, ROUNDS = 100, 5


def main() -> None:
    """One line of JSON a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    for seed in asked.seeds:
        config = load(asked.config, {"seed": seed})
        split = data.load(config, asked.data_dir)
        print(json.dumps({"seed": seed, **measure(config, split, asked.data_dir)}), flush=True)


def measure(config: ReleaseConfig, split: Split, data_dir: Path | None) -> dict[str, object]:
    """Accuracies of teacher, public teacher, student, the student by itself; how far another noise moves it; times."""
    channel = channels.build(config, data.describe(config, data_dir))
    assert isinstance(channel, Published)
    run = Run(device=choose_device(config.device))
    made = channel.release(split, Randomness.make(config.seed, 1), run)
    loud = channels.build(_louder(config), channel.facts).release(split, Randomness.make(config.seed, 2), run)
    alone = by_itself(channel, split, config.seed, run)
    teacher, student = channel.nets(config.seed)
    facts = channel.facts
    return {
        "teacher": made.plan.details["teacher_accuracy"],
        "public_teacher": made.plan.details["public_teacher_accuracy"],
        "student": made.utility.accuracy,
        "student_by_itself": count_correct(alone, split.test) / len(split.test),
        "largest_difference_by_noise": apart(made, loud),
        "clipped": [value for key, value in made.plan.details.items() if key.startswith("clipped")],
        "seconds_teacher": seconds(Artefact(teacher.eval(), "teacher", facts.shape, facts.classes)),
        "seconds_student": seconds(Artefact(student.eval(), "student", facts.shape, facts.classes)),
    }


def _louder(config: ReleaseConfig) -> ReleaseConfig:
    return config.model_copy(update={"settings": {**config.settings, "noise_scale": 1e6}})


def by_itself(channel: Published, split: Split, seed: int, run: Run) -> nn.Module:
    """The same student on public labels alone, for as many steps as all its learning takes."""
    s, net = channel.settings, channel.nets(seed)[1]
    queries = -(-min(channel.queries, len(split.public)) // s.query_batch)
    steps = (s.hint_epochs + s.rounds * s.distil_epochs) * queries
    steps += s.rounds * s.self_epochs * -(-len(split.public) // s.self_batch)
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=s.learning_rate, precision=s.precision)
    inputs = at_places(split.public.x, run.device)
    learn_labels(net, inputs, split.public.y, Stage(Shuffled(s.self_batch, seed), recipe, seed, run))
    return net


def apart(one: Release, other: Release) -> float:
    """The largest difference of a weight."""
    pairs = zip(one.network.net.parameters(), other.network.net.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def seconds(artefact: Artefact) -> float:
    """Of 100 images one by one in ONNX Runtime on one thread; the median of five rounds."""
    session = open_onnx(to_onnx(artefact))
    images = [probe(1, artefact.input_shape)] * IMAGES
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for image in images:
            session.run(["logits"], {"input": np.asarray(image)})
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""The figures of docs/results/student.md: teachers, students of one pair of teachers, and the students by themselves.

python docs/results/student.py runs/student-published-cifar10-s1.toml runs/student-published-cifar10-s2.toml --seeds 0
python docs/results/student.py runs/student-figure2-cifar10.toml --each figure2 --seeds 0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from airlock import data, methods
from airlock.config import ReleaseConfig, load
from airlock.data import Split
from airlock.mechanisms import Randomness
from airlock.papers.student.published import Published, Teachers
from airlock.training import Recipe, Run, Shuffled, count_correct
from airlock.training.augment import named
from airlock.training.devices import choose_device
from airlock.training.distillation.distil import Stage, at_places, learn_labels
from airlock.training.stages import Stages

SELECTIONS = ("k-centre", "random", "margin", "diverse")
# What Figure 2 of the paper varies, one thing at a time.
Change = dict[str, object]
FIGURE_2: list[Change] = [
    {},
    *(Change(hint_epochs=value) for value in (0, 5, 20, 40)),
    *(Change(rounds=rounds, distil_epochs=epochs) for rounds, epochs in ((5, 1), (5, 2), (5, 8), (2, 10), (10, 2))),
    *(Change(query_batch=value) for value in (128, 256, 1024)),
    *(Change(noise_scale=value) for value in (1.0, 20.0, 1e6)),
    *(Change(select_rate=0.05, select=name) for name in SELECTIONS),
    *(Change(select=name) for name in SELECTIONS[1:]),
    {"select_rate": 0.5},
    *(Change(bound=value) for value in (0.1, 1.0, 10.0)),
]


def main() -> None:
    """One line of JSON a student."""
    parser = argparse.ArgumentParser()
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--each", choices=["figure2"], help="vary the settings of every config")
    parser.add_argument("--part", default="0/1", help="the first of every so many variations, for several processes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a setting for all")
    parser.add_argument("--noise", action="store_true", help="how far other noise moves the student")
    parser.add_argument("--teachers", type=Path, help="a folder that keeps trained teachers, for several processes")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    common = {key: json.loads(value) for key, value in (one.split("=", 1) for one in asked.set)}
    for seed in asked.seeds:
        for file in asked.configs:
            for changes in _changes(asked.each, asked.part):
                config = _with(load(file, {"seed": seed}), {**common, **changes})
                row = measure(config, asked.data_dir, asked.teachers, asked.noise)
                print(json.dumps({"config": file.stem, "seed": seed, **changes, **row}), flush=True)


def _changes(each: str | None, part: str) -> Iterator[dict[str, object]]:
    first, every = map(int, part.split("/"))
    yield from FIGURE_2[first::every] if each else [{}]


def _with(config: ReleaseConfig, changes: dict[str, object]) -> ReleaseConfig:
    known = {**config.settings, **changes}
    if "noise_scale" in changes or "query_batch" in changes or "hint_epochs" in changes or "rounds" in changes:
        config = config.model_copy(update={"epsilon": 1e9})  # the claim follows from the settings
    return config.model_copy(update={"settings": known})


def measure(config: ReleaseConfig, data_dir: Path | None, folder: Path | None, noise: bool) -> dict[str, object]:
    """Accuracies of teacher, public teacher, student, and the student by itself; how far another noise moves it."""
    channel = methods.build(config, data.describe(config, data_dir))
    assert isinstance(channel, Published)
    split, run, seed = data.load(config, data_dir), Run(device=choose_device(config.device)), config.seed
    stages = Stages(run, {})
    started = time.monotonic()
    teachers = _teachers(channel, split, folder, stages)
    ready = time.monotonic()
    net, changes = channel.student(split, teachers, Randomness.make(seed, 1), stages)
    done = time.monotonic()
    right = dict(zip(("teacher", "public_teacher"), teachers, strict=True))
    found: dict[str, object] = {
        **{name: accuracy(one, split) for name, one in {**right, "student": net}.items()},
        "clipped": {name: change.share_clipped for name, change in changes.items()},
        "claimed_epsilon": channel.claimed_epsilon,
        "seconds_teachers": round(ready - started, 1),
        "seconds_student": round(done - ready, 1),
    }
    if noise:
        louder = methods.build(_with(config, {"noise_scale": 1e6}), channel.facts)
        assert isinstance(louder, Published)
        other, _ = louder.student(split, teachers, Randomness.make(seed, 2), stages)
        found |= {"largest_difference_by_noise": apart(net, other), "student_by_itself": accuracy(
            by_itself(channel, split, seed, run), split)}  # fmt: skip
    return found


_made: dict[str, Teachers] = {}


def _teachers(channel: Published, split: Split, folder: Path | None, stages: Stages) -> Teachers:
    """Trained once for all students of the same seed and settings; in `folder` where there is one."""
    known = {key: value for key, value in channel.settings.model_dump().items() if key.startswith("teacher")}
    seed = channel.config.seed
    mark = json.dumps([seed, channel.facts.name, channel.config.split.model_dump(mode="json"), known])
    name = hashlib.sha256(mark.encode()).hexdigest()[:16]
    file = folder / f"{name}.safetensors" if folder else None
    if name not in _made and file and file.exists():
        kept, device = load_file(file), stages.run.device
        _made[name] = (channel.nets(seed)[0].to(device), channel.nets(seed)[0].to(device))
        for which, net in enumerate(_made[name]):
            own = f"{which}/"
            net.load_state_dict({key.removeprefix(own): value for key, value in kept.items() if key.startswith(own)})
    if name not in _made:
        _made[name] = channel.teachers(split, seed, stages)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            named_nets = zip("01", _made[name], strict=True)
            tensors = ((f"{i}/{key}", value) for i, net in named_nets for key, value in net.state_dict().items())
            save_file({key: value.contiguous() for key, value in tensors}, file)
    return _made[name]


def accuracy(net: nn.Module, split: Split) -> float:
    """Of test records, in percent."""
    return round(100 * count_correct(net, split.test) / len(split.test), 2)


def by_itself(channel: Published, split: Split, seed: int, run: Run) -> nn.Module:
    """The same student on public labels alone, for as many steps as all its learning takes."""
    s, net = channel.settings, channel.nets(seed)[1]
    queries = -(-min(channel.queries, len(split.public)) // s.query_batch)
    steps = (s.hint_epochs + s.rounds * s.distil_epochs) * queries
    steps += s.rounds * s.self_epochs * -(-len(split.public) // s.self_batch)
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=s.learning_rate, schedule=s.schedule,
                    precision=s.precision, channels_last=True)  # fmt: skip
    inputs = at_places(split.public.x, run.device)
    stage = Stage(Shuffled(s.self_batch, seed), recipe, seed, run, named(s.student_augment))
    learn_labels(net, inputs, split.public.y, stage)
    return net


def apart(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of a weight."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Teachers: one on given records, or K of them on disjoint shards. There is no privacy here, and none of them leaves.

The teachers of shards start from one public network, and see their own shards and public records, lest they forget what
those had taught them. Every shard is brought to the same public number of records, by repeating its own or leaving
those with the largest digests out: teachers are then trained side by side in tensors whose shapes tell nothing of the
records, and one teacher's numbers stay the same to the last bit, whatever another shard holds. Chance in it comes from
public seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Facts, Records
from airlock.data.split import even
from airlock.methods.student.settings import TeacherSettings
from airlock.nets import check, create
from airlock.nets.hints import guided
from airlock.training import PlainGradients, Recipe, Resident, Run, Shuffled, fit, train_together
from airlock.training.augment import named
from airlock.training.distillation.distil import at_places
from airlock.training.distillation.rounds import outputs
from airlock.training.loop import mix
from airlock.training.stages import Stages

Index = NDArray[np.int64]


def make_pair(
    names: tuple[str, str], layers: tuple[str, str] | None, facts: Facts, seed: int
) -> tuple[nn.Module, nn.Module]:
    """Teacher and student, freshly initialised and checked, also whether hints fit.

    Args:
        names: Of both networks.
        layers: The hint and the guided layer, where there are hints.
        facts: Of the data.
        seed: Public.
    """
    shape, classes = facts.shape, len(facts.classes)
    for name in names:
        check(create(name, shape, classes, seed), name, shape, classes)
    teacher, student = (create(name, shape, classes, seed) for name in names)
    if layers:
        guided(student, layers[1], teacher, layers[0], shape, seed)
    return teacher, student


def taught(
    name: str, net: nn.Module, records: Records, settings: TeacherSettings, seed: int, stages: Stages
) -> nn.Module:
    """This network, trained on these records as one of the run's stages."""
    s, data = settings, Resident(records, stages.run.device)
    recipe = Recipe(
        steps=s.teacher_epochs * -(-len(records) // s.teacher_batch),
        optimiser="adam",
        learning_rate=s.teacher_learning_rate,
        schedule=s.teacher_schedule,
        precision=s.precision,
        channels_last=True,
    )

    def train(run: Run) -> None:
        fit(net, data, Shuffled(s.teacher_batch, mix(seed, 1)), PlainGradients(), recipe, mix(seed, 2), run,
            named(s.teacher_augment), f"training the {name}")  # fmt: skip

    stages.train(name, net, [data.x, data.y], train)
    return net.eval()


def for_vault(net: nn.Module) -> dict[str, NDArray[Any]]:
    """A teacher's tensors by name: it stays, and may be attacked beside the student."""
    return {name: value.detach().cpu().numpy() for name, value in net.state_dict().items()}


def ask_shards(
    start: nn.Module,
    records: Records,
    shards: Sequence[Index],
    each: int,
    beside: Records,
    share: int,
    queries: Tensor,
    recipe: Recipe,
    batch: int,
    seed: int,
    run: Run,
    label: str,
) -> Tensor:
    """How far every shard's teacher moved the logits it started with: (shards, queries, classes), on the CPU.

    Logits that differ by a number are the same to a softmax, so every difference is taken to mean 0 over the classes. A
    shard without records differs by 0. Row k depends on the records of shard k and on public figures, and nothing else.

    Args:
        start: The public network that all teachers begin as; it stays as it is.
        records: The private ones.
        shards: Positions of each shard's records.
        each: To so many records every shard is brought; public.
        beside: Public records.
        share: How many of them a teacher sees for each record of its shard, chosen at random.
        queries: Public inputs.
        recipe: How a teacher descends.
        batch: Records in a step.
        seed: Public.
        run: Device, progress, checkpoints.
        label: For the progress bar.
    """
    blank = np.zeros((1, *records.x.shape[1:]), records.x.dtype)
    whole = Records(np.concatenate([records.x, blank, beside.x]), np.concatenate([records.y, [0], beside.y]))
    chance, nobody = np.random.default_rng(mix(seed, 1)), np.array([len(records)])
    public = chance.integers(0, len(beside), (len(shards), share * each)) + len(records) + 1
    members = [
        np.append(even(own if len(own) else nobody, each), more) for own, more in zip(shards, public, strict=True)
    ]
    first = copy.deepcopy(start).cpu()
    made = train_together(
        lambda _: copy.deepcopy(first), len(shards), Resident(whole, run.device), members, recipe, seed, run,
        label=label, batch_size=batch,
    )  # fmt: skip
    asked = at_places(queries.cpu().numpy(), run.device)
    moved = made.logits(asked) - outputs(start, asked).cpu()
    moved[torch.tensor([not len(own) for own in shards])] = 0.0
    return moved - moved.mean(2, keepdim=True)

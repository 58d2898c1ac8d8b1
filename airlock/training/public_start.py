"""A network trained on public records, without noise: where private training starts from.

In: a network with its initial weights, and labelled public records. Out: the same network, trained on them. No private
record is involved.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn

from airlock.data import Records
from airlock.training.augment import Name, named
from airlock.training.devices import Resident
from airlock.training.distributed import ALONE
from airlock.training.gradients import PlainGradients
from airlock.training.loop import Recipe, Run, fit
from airlock.training.sampling import Shuffled

LABEL = "training on the public records"
_EPOCHS, _BATCH = 60, 128
_RATE = 2e-3


def train_openly(net: nn.Module, records: Records, seed: int, run: Run, augment: Name = "none") -> None:
    """Train a network in place on public records with Adam; nothing happens if there are none.

    Args:
        net: With its initial weights; where the run computes afterwards.
        records: The public records.
        seed: Of their order and augmentation.
        run: An unfinished training is saved in the folder `public` of its checkpoints.
        augment: Random changes to each record by itself.
    """
    net.to(run.device)
    if not len(records):
        return
    steps = _EPOCHS * math.ceil(len(records) / _BATCH)
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=_RATE, schedule="cosine")
    own = replace(run, group=ALONE, checkpoint=run.checkpoint / "public" if run.checkpoint else None)
    batches = Shuffled(min(_BATCH, len(records)), seed)
    fit(net, Resident(records, run.device), batches, PlainGradients(), recipe, seed, own, named(augment), LABEL)

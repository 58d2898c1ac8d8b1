"""A start that models have in common: one network trained on all records for a while, from which the others go apart.

Models that start from the same random weights leave each other's basin when they learn fast; models that go apart after
some epochs stay in one (Frankle, Dziugaite, Roy and Carbin 2020). There is no privacy here, as in `ensemble`: the start
says something about its records and stays in the vault.
"""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from airlock.training import checkpoint
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import model_seed, read
from airlock.training.ensembles.ensemble import Make, train_together
from airlock.training.ensembles.stacked import tensors
from airlock.training.loop import Recipe, Run
from airlock.training.resident import Resident

_NAME = "start.safetensors"
_NUMBER = 1 << 31  # beyond every model of a collection, so that its batches are nobody else's


def common_start(
    make: Make, data: Resident, recipe: Recipe, seed: int, run: Run, folder: Path, *, batch_size: int = 128
) -> Make:
    """Train one network, keep it in the folder, and give copies of it.

    Args:
        make: Gives the network before training.
        data: All records.
        recipe: How to descend.
        seed: Public.
        run: Device, progress; with `resume`, a start that lies in the folder is taken as it is.
        folder: In the vault.
        batch_size: Records in a step.

    Raises:
        TrainingError: The start in the folder is that of other settings, another seed or other records.
    """
    net, file = make(0), folder / _NAME
    own = model_seed(seed, _NUMBER)
    known = json.dumps([recipe.model_dump(), own, batch_size], sort_keys=True).encode()
    mark = hashlib.sha256(digest([data.x, data.y, *tensors(net).values()]) + known).hexdigest()
    if not (run.resume and file.exists()):
        everyone = [np.arange(len(data), dtype=np.int64)]
        found = train_together(
            make, 1, data, everyone, recipe, own, run, None, "training the common start", batch_size=batch_size
        )
        checkpoint.write(file, {name: value[0].cpu() for name, value in found.values.items()}, {"mark": mark})
    kept = read(file, mark)
    with torch.no_grad():
        for name, value in tensors(net).items():
            value.copy_(kept[name])
    return lambda model: copy.deepcopy(net)

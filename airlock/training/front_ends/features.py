"""Records as features, by a frozen public front end: each from its own record and public tensors alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from airlock.data import Records
from airlock.training.loop import Run
from airlock.training.per_sample import outputs
from airlock.training.resident import to_input

BLOCK = 256  # records at a time


def compute(front: nn.Module, records: Records, run: Run, label: str) -> Iterator[tuple[slice, Tensor]]:
    """Features of all records in blocks, on the run's device, each with its place."""
    form = torch.channels_last if run.device.type == "cuda" else torch.contiguous_format
    front.to(device=run.device, memory_format=form)  # type: ignore[call-overload]
    for start in range(0, len(records), BLOCK):
        block = torch.from_numpy(np.ascontiguousarray(records.x[start : start + BLOCK])).to(run.device)
        x = to_input(block)
        features = outputs(front, x.contiguous(memory_format=form) if x.dim() == 4 else x)
        yield slice(start, start + len(x)), features
        if run.progress:
            run.progress(label, start + len(x), len(records))

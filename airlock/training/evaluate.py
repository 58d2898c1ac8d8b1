"""Outputs, losses and accuracy of a trained network, without gradients; each record's output is its own."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.training.outcomes import Outcomes
from airlock.training.per_sample import outputs
from airlock.training.resident import to_input

_BATCH = 1024


def predict(net: nn.Module, records: Records) -> Tensor:
    """Logits of every record, on the CPU; there may be none."""
    device = next(net.parameters()).device
    net.eval()
    if not len(records):  # one blank record says how wide an answer is
        blank = Records(np.zeros((1, *records.x.shape[1:]), records.x.dtype), np.zeros(1, np.int64))
        return predict(net, blank)[:0]
    found = []
    for start in range(0, len(records), _BATCH):
        x = torch.from_numpy(np.ascontiguousarray(records.x[start : start + _BATCH])).to(device)
        found.append(outputs(net, to_input(x)).float().cpu())
    return torch.cat(found)


def count_correct(net: nn.Module, records: Records) -> int:
    """How many records the network classifies correctly."""
    return int((predict(net, records).argmax(1).numpy() == records.y).sum())


def outcomes_of(net: nn.Module, records: Records) -> Outcomes:
    """What becomes of every record; it stays inside."""
    return Outcomes.of_logits(predict(net, records).numpy(), records.y)


def losses(net: nn.Module, records: Records) -> NDArray[np.float64]:
    """Every record's cross-entropy."""
    logits = predict(net, records).double()
    return F.cross_entropy(logits, torch.from_numpy(records.y), reduction="none").numpy()

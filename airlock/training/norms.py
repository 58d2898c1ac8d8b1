"""Norms of single records' gradients, by the engine that clips them: nothing is added up, and nothing is private.

In: a network and records. Out: the squared L2 norm of every record's loss gradient, by parameter.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airlock.data import Records
from airlock.training.private import engine_for
from airlock.training.resident import to_input

_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}  # of one block of records
_FIRST = 8  # records in the first block, which finds out how much one takes


def gradient_squares(net: nn.Module, records: Records) -> dict[str, NDArray[np.float64]]:
    """‖∂ℓ/∂p‖² of every record for every trainable parameter p, in evaluation mode; infinite where it is not finite.

    Args:
        net: Stays where it is; its mode is put back.
        records: In the order of the result.
    """
    device = next(net.parameters()).device
    modes = {module: module.training for module in net.modules()}
    found: dict[str, list[NDArray[np.float64]]] = {}
    x, y = torch.from_numpy(np.ascontiguousarray(records.x)), torch.from_numpy(records.y)
    net.eval()
    try:
        engine = engine_for(net, to_input(x[:1].to(device)))
        start, size = 0, _FIRST
        while start < len(y):
            stop = start + size
            squares = engine.squares(to_input(x[start:stop].to(device)), y[start:stop].to(device))
            for name, square in squares.items():
                values = torch.nan_to_num(square.double(), nan=torch.inf).cpu().numpy()
                found.setdefault(name, []).append(values)
            start, size = stop, max(1, min(4096, _BYTES[device.type] // engine.bytes_per_record))
    finally:
        for module, mode in modes.items():
            module.training = mode
    return {name: np.concatenate(values) for name, values in found.items()}

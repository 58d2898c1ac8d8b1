"""Norms of single records' gradients, by the engine that clips them; without a sum, noise or any privacy.

In: a network and records. Out: the squared L2 norm of every record's loss gradient, by parameter.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.nets.bert import at_once
from airlock.nets.domain import by_length
from airlock.training.devices import to_input
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample.engine import use_of

_BLOCK = 256  # records


def gradient_squares(net: nn.Module, records: Records, loss: Loss = CROSS_ENTROPY) -> dict[str, NDArray[np.float64]]:
    """‖∂ℓ/∂p‖² of every record for every trainable parameter p, in evaluation mode; infinite where it is not finite.

    Args:
        net: The network; it stays on its device, and its mode is restored.
        records: The records, in the order of the result.
        loss: Of one record.
    """
    x = torch.from_numpy(np.ascontiguousarray(records.x))
    places = torch.arange(len(x))
    groups = [(places if rows is None else rows, part) for rows, part in by_length(net, x)]
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    found = {name: np.empty(len(x)) for name in names}
    for rows, part in groups:
        for name, values in _squares(net, part, torch.from_numpy(records.y)[rows], loss).items():
            found[name][rows.numpy()] = values
    return found


def _squares(net: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> dict[str, NDArray[np.float64]]:
    """The same for rows of one length."""
    device = next(net.parameters()).device
    modes = {module: module.training for module in net.modules()}
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name, p in net.named_parameters() if p.requires_grad}
    net.eval()
    try:
        most = min(at_once(net) or _BLOCK, max(1, len(y)))
        use = use_of(net, to_input(x[:1].to(device)), 1, most, sampled=False, loss=loss)
        for start in range(0, len(y), use.size):
            part = slice(start, start + use.size)
            rows, labels = use.filled(to_input(x[part].to(device)), y[part].to(device))
            for name, square in use.engine.squares(rows, labels).items():
                values = torch.nan_to_num(square, nan=torch.inf).cpu().numpy()
                found[name].append(values[: len(y) - start])
    finally:
        for module, mode in modes.items():
            module.training = mode
    return {name: np.concatenate(values) if values else np.empty(0) for name, values in found.items()}

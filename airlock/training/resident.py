"""Records that live on the device once, in the form they came in; batches are cut out and scaled there."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.data import Records
from airlock.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device with this name; "auto" takes the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("a GPU for device 'cuda'", "none that torch can see", do='Set device = "cpu" or "auto".')
    return torch.device(name)


def to_input(x: Tensor) -> Tensor:
    """uint8 images to floats in [0, 1]; everything else as float32."""
    return x.float().div_(255.0) if x.dtype == torch.uint8 else x.float()


class Resident:
    """Inputs and labels on one device."""

    def __init__(self, records: Records, device: torch.device) -> None:
        self.x = torch.from_numpy(np.ascontiguousarray(records.x)).to(device)
        self.y = torch.from_numpy(np.ascontiguousarray(records.y)).to(device)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these positions, ready for a network."""
        where = torch.from_numpy(index).to(self.y.device)
        return to_input(self.x.index_select(0, where)), self.y.index_select(0, where)

"""What is computed where: the device, records kept on it, how much of its memory work may use, CUDA graphs.

Records are copied to the device once, in their original type; batches are gathered and scaled there.

Memory. Several processes may share a GPU. Chunk sizes depend on the machine and on the declared number of processes
that share it, never on its load: a resumed run has the same chunks.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.data import Records
from airlock.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device with this name; "auto" uses the GPU if there is one."""
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


# Memory.

_sharers = 1


def share_gpu(processes: int) -> None:
    """From now on, this process uses its share of a GPU's memory among this many processes."""
    global _sharers
    _sharers = processes


def room(device: torch.device) -> int:
    """Bytes of this GPU for one piece of work: a quarter of the memory, since much of the use is unpredictable."""
    return torch.cuda.get_device_properties(device).total_memory // 4 // _sharers


def give_back() -> None:
    """Free cached GPU memory for other work, including engines and their graphs, which reference each other."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


# CUDA graphs.

Found = TypeVar("Found")


def capture(work: Callable[[], Found], *, before: Callable[[], None] = lambda: None) -> tuple[Any, Found] | None:
    """The graph of `work` and its result; nothing if it cannot be captured.

    A capture that CUDA itself aborts (because a value is read in the middle of it, say) never tells the random number
    generator that it has ended, and every later draw in the process would fail. The generator is then given a copy of
    its state, which has the same seed and continues after the last finished draw.

    Args:
        work: What to capture.
        before: Done first, outside the capture; if it fails, nothing is captured.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before()
            with torch.cuda.graph(graph):
                found = work()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph, found

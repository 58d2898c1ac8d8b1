"""What is computed where: the device, records kept on it, how much of its memory work may use, CUDA graphs.

Records are copied to the device once, in their original type; batches are gathered and scaled there. Records in a file
(`data.limits`) stay there: the rows of a batch are gathered from it and copied to the device, where they are scaled.
The values are the same.

People. Where a person is protected, a lot is drawn among people, and whoever is drawn contributes at most
`records_per_person` of her records, chosen uniformly and afresh in each step if she has more. Guarantee: a person's
records in a lot depend on her own records and on fresh random numbers of her own, so nobody's contribution changes in
distribution with who else was drawn. The numbers come from a secret stream, like all random treatment (`loop`).

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

from airlock.data import Groups, Records
from airlock.data.limits import Array, announce, is_on_disk
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


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A small array as a tensor there; does not wait for a GPU to finish what it was given before."""
    found = torch.from_numpy(array)
    waits = device.type != "cuda" or not array.size
    return found.to(device) if waits else found.pin_memory().to(device, non_blocking=True)


Chance = Callable[[int], NDArray[np.float64]]  # so many uniform numbers


class Resident:
    """Inputs and labels on one device, or inputs in a file.

    Args:
        records: The records.
        device: Where they are kept, or batches are sent.
        records_per_person: Draw people (`Records.person`), with at most so many of their records each; None draws
            records.
    """

    groups: Groups | None = None
    most = 1
    in_file = False
    _array: Array | None = None

    def __init__(self, records: Records, device: torch.device, records_per_person: int | None = None) -> None:
        self.device, self.in_file = device, is_on_disk(records.x)
        x, self._array = _tensor(records.x), records.x if self.in_file else None
        self.x = x if self.in_file else x.to(device)
        self.y = torch.from_numpy(np.ascontiguousarray(records.y)).to(device)
        if records_per_person is not None:
            self.groups, self.most = records.groups(), records_per_person

    def __len__(self) -> int:
        return len(self.y)

    @property
    def units(self) -> int:
        """How many people there are to draw from; records, if each is drawn by itself."""
        return len(self) if self.groups is None else len(self.groups.starts) - 1

    def lot(self, drawn: NDArray[np.int64], chance: Chance) -> tuple[Tensor, Tensor, Tensor | None]:
        """The records of the units drawn, ready for a network, and whose they are: 0, ..., 0, 1, ..., 1, 2, ....

        Args:
            drawn: Positions among the units.
            chance: Decides which records are taken of somebody who has too many; secret in private training.
        """
        rows, owners = self.rows(drawn, chance)
        return *self.batch(rows), owners

    def rows(self, drawn: NDArray[np.int64], chance: Chance) -> tuple[NDArray[np.int64], Tensor | None]:
        """The positions of the records of a lot, and whose they are."""
        if self.groups is None:
            return drawn, None
        rows, owners = chosen_rows(self.groups, drawn, self.most, chance)
        return rows, torch.from_numpy(owners)  # they are counted where they are drawn

    def held(self, index: NDArray[np.int64]) -> Tensor:
        """The inputs at these positions as they are held, and where; of a file, this reads it."""
        if self._array is not None:
            announce(self._array, index)
        return self.x.index_select(0, upload(index, self.x.device))

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these positions, ready for a network."""
        return self.sent(self.held(index), index)

    def sent(self, x: Tensor, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The same of inputs that were taken from where they are held."""
        return to_input(x.to(self.device)), self.y.index_select(0, upload(index, self.y.device))


def _tensor(x: Array) -> Tensor:
    """A tensor over an array; nobody may write to that of a file, and rows that are selected from it are copies."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(x))


def chosen_rows(
    groups: Groups, drawn: NDArray[np.int64], most: int, chance: Chance
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of the records that these people contribute, and whose they are, in the order of the people.

    Whoever has at most `most` records contributes all of them, in their order. Of anybody else, every set of `most`
    records is equally likely, whoever else was drawn.
    """
    counts = groups.starts[drawn + 1] - groups.starts[drawn]
    owners = np.repeat(np.arange(len(drawn), dtype=np.int64), counts)
    place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = groups.rows[np.repeat(groups.starts[drawn], counts) + place]
    if not (counts > most).any():
        return rows, owners
    many = np.repeat(counts > most, counts)
    key = place.astype(np.float64)
    key[many] = chance(int(many.sum()))
    order = np.lexsort((key, owners))  # by person, and then by chance
    kept = order[place < most]  # the sorted positions have the same places
    return rows[kept], owners[kept]


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


def forget_workspaces() -> None:
    """Let cuBLAS ask for working memory anew when it next needs some."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()


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
            forget_workspaces()  # its own is not to be memory that is freed before it is
            with torch.cuda.graph(graph):
                found = work()
            forget_workspaces()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph, found

"""How much of a GPU's memory one piece of work may plan with, where several processes share the GPU.

Sizes of chunks follow from the machine and from how many processes were said to share it, never from its load: a run
that is resumed has the same chunks.
"""

from __future__ import annotations

import gc

import torch

_sharers = 1


def share_gpu(processes: int) -> None:
    """From now on this process plans with one part of so many of a GPU's memory."""
    global _sharers
    _sharers = processes


def room(device: torch.device) -> int:
    """Bytes of this GPU for one piece of work: a quarter of the memory; much cannot be planned."""
    return torch.cuda.get_device_properties(device).total_memory // 4 // _sharers


def give_back() -> None:
    """Hand what is kept on a GPU and not in use to other work; engines and their graphs, which know each other, too."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()

"""Torch's own generators: what initial weights and dropout are drawn from."""

from __future__ import annotations

import torch


def seed_torch(seed: int, device: torch.device | None = None) -> None:
    """What `torch.manual_seed` does, on one device, or on those that are there.

    For every kind of accelerator that is not at work yet, torch writes the whole stack down and keeps it, which in a
    small network's training takes longer than a step, every step.
    """
    if device is not None and device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device is None and torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)

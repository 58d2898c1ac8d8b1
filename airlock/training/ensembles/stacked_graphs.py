"""A step of many networks as one CUDA graph: one launch instead of hundreds, and thousands of Python calls less.

A graph is captured when the same shapes come up for the third time; whatever cannot be captured, or is not on a GPU,
stays with ordinary launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from airlock.training.capture import capture

_PATIENCE = 2  # ordinary steps before one is captured: libraries choose their kernels in them


@dataclass
class Part:
    """What networks of one step meet: records, labels, every record's weight in the loss, and masks of dropouts."""

    where: Any  # which of the networks: a slice or positions
    x: Tensor
    y: Tensor
    weights: Tensor
    masks: list[Tensor]

    @property
    def inputs(self) -> list[Tensor]:
        """All that changes from step to step."""
        return [self.x, self.y, self.weights, *self.masks]


Work = Callable[[nn.Module, list[Part]], list[Tensor | None]]


@dataclass
class _Graph:
    graph: Any
    part: Part
    found: list[Tensor | None]

    def replay(self, part: Part) -> list[Tensor | None]:
        for room, value in zip(self.part.inputs, part.inputs, strict=True):
            room.copy_(value)
        self.graph.replay()
        return self.found


class Replays:
    """Does `work` on parts of all networks, from a graph where there is one; its results are written over by the next.

    Args:
        work: Gives the gradients of the stacked networks; reads nothing but them and the part, and changes nothing.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self._held: nn.Module | None = None
        self._graphs: dict[Hashable, _Graph] = {}
        self._seen: Counter[Hashable] = Counter()
        self._broken = False

    def __call__(self, held: nn.Module, part: Part) -> list[Tensor | None]:
        """As `work(held, [part])`."""
        if held is not self._held:  # a graph knows parameters by their place in memory
            self._held = held
            self._graphs.clear()
            self._seen.clear()
        precision = torch.is_autocast_enabled("cuda"), torch.backends.cudnn.allow_tf32
        key = part.x.shape, part.x.dtype, part.x.stride(), precision
        self._seen[key] += 1
        if self._broken or not part.x.is_cuda or self._seen[key] <= _PATIENCE:
            return self.work(held, [part])
        graph = self._graphs.get(key) or self._capture(key, held, part)
        return self.work(held, [part]) if graph is None else graph.replay(part)

    def _capture(self, key: Hashable, held: nn.Module, part: Part) -> _Graph | None:
        x, y, weights, *masks = (value.clone() for value in part.inputs)
        room = Part(part.where, x, y, weights, masks)
        captured = capture(lambda: self.work(held, [room]))
        if captured is None:
            self._broken = True
            return None
        self._graphs[key] = _Graph(captured[0], room, captured[1])
        return self._graphs[key]

"""Book-keeping on a GPU as one CUDA graph: a step is one launch instead of hundreds.

A graph has fixed shapes and a Poisson lot has not: lots are padded to the next of a few sizes with records whose mask
is 0, which get the factor 0 and so add exactly nothing. The clip norm is one of the tensors that a graph reads, because
it may move from step to step. A graph is captured when a size comes up for the third time; whatever cannot be captured
(a network that branches on values, say) stays with ordinary launches.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from airlock.mechanisms import Clip
from airlock.training.bookkeeping import BookKeeper
from airlock.training.capture import capture
from airlock.training.layers import Named, copies_in

_KEPT = 4  # graphs at a time
_PATIENCE = 2  # uses of a size before it is captured


@dataclass
class _Graph:
    """A captured sum with the tensors it reads and writes."""

    graph: Any
    x: Tensor
    y: Tensor
    mask: Tensor
    norm: Tensor
    total: Named
    finite: Tensor
    clip: Clip  # kept alive: its scale is known by identity, which must not pass to another one

    def replay(self, x: Tensor, y: Tensor, clip: Clip) -> tuple[Named, bool]:
        count = len(y)
        if clip.norm != self.clip.norm:
            self.norm.fill_(clip.norm)
            self.clip = clip
        self.x[: len(x)].copy_(x)
        self.y[:count].copy_(y)
        self.mask.zero_()
        self.mask[:count] = 1
        self.graph.replay()
        return self.total, bool(self.finite.all())


class Graphs:
    """Captures and replays one network's sums; the sums' tensors are written over by the next call."""

    def __init__(self, keeper: BookKeeper) -> None:
        self.keeper = keeper
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._broken = False

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip) -> tuple[Named, int]:
        """As `BookKeeper.clipped_sum`."""
        key = self._key(x, y, clip)
        self._seen[key] += 1
        if self._broken or self._seen[key] <= _PATIENCE:
            return self.keeper.clipped_sum(x, y, clip)
        graph = self._graphs.get(key) or self._capture(key, x, y, clip)
        if graph is None:
            return self.keeper.clipped_sum(x, y, clip)
        self._graphs.move_to_end(key)
        total, fit = graph.replay(x, y, clip)
        return (total, 0) if fit else self.keeper.clipped_sum(x, y, clip)

    def _key(self, x: Tensor, y: Tensor, clip: Clip) -> Hashable:
        modes = tuple(module.training for module in self.keeper.net.modules())
        precision = torch.is_autocast_enabled("cuda"), torch.backends.cuda.matmul.allow_tf32
        layout = copies_in(x, y), x.shape[1:], x.dtype, x.stride()[1:]
        return _padded(len(y)), layout, clip.by_layer, clip.counting, id(clip.scale), modes, precision

    def _capture(self, key: Hashable, x: Tensor, y: Tensor, clip: Clip) -> _Graph | None:
        size = _padded(len(y))
        x_in, y_in = _like(x, size * copies_in(x, y)), y.new_zeros(size)
        mask, norm = torch.zeros(size, device=x.device), torch.full((), clip.norm, device=x.device)
        while len(self._graphs) >= _KEPT:
            self._graphs.popitem(last=False)
        captured = capture(
            lambda: self.keeper.masked_sum(x_in, y_in, mask, clip, norm),
            before=lambda: self._warm_up(x_in, y_in, mask, clip, norm),
        )
        if captured is None:
            self._broken = True
            return None
        graph, (total, finite) = captured
        self._graphs[key] = _Graph(graph, x_in, y_in, mask, norm, total, finite, clip)
        return self._graphs[key]

    def _warm_up(self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, norm: Tensor) -> None:
        """Libraries choose their kernels and allocate their workspaces outside of the capture."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.keeper.masked_sum(x, y, mask, clip, norm)
        torch.cuda.current_stream().wait_stream(side)


def _padded(count: int) -> int:
    """The next of about sixteen sizes an octave, and a multiple of 8."""
    step = max(8, 1 << max(0, count.bit_length() - 5))
    return -(-count // step) * step


def _like(x: Tensor, size: int) -> Tensor:
    whole = x.new_zeros((size, *x.shape[1:]))
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return whole.contiguous(memory_format=torch.channels_last) if last else whole

"""Book-keeping on a GPU as one CUDA graph: a step is one launch instead of hundreds.

A graph has fixed shapes, and so have the chunks of a lot (`engine`). The network's computation was tracked before the
graph was captured; the graph repeats exactly those operations. The clip norm is one of the tensors that a graph reads,
because it may change from step to step. A graph is captured when the same kind of sum is needed for the third time, and
its first replay is compared with the ordinary sum of the same chunk; if a graph cannot be captured (because the network
synchronises, say), or gives another result, ordinary launches are used.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from airlock.mechanisms.clipping import Clip
from airlock.training.devices import capture
from airlock.training.gradients import Named
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.people import FixedPeople

_KEPT = 4  # graphs at a time
_PATIENCE = 2  # uses before a graph is captured
_AGREE = 1e-5  # how far a replay may be from the ordinary sum, as a fraction of its norm


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
    clip: Clip  # kept alive: its scale is identified by id, which must not be reused
    table: Tensor | None = None  # whose the rows are
    given: Tensor | None = None  # the mask that was copied last; it is never modified

    def replay(
        self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: FixedPeople | None
    ) -> tuple[Named, Tensor]:
        if clip.norm != self.clip.norm:
            self.norm.fill_(clip.norm)
            self.clip = clip
        self.x.copy_(x)
        self.y.copy_(y)
        if mask is not self.given:
            self.mask.copy_(mask)
            self.given = mask
        if self.table is not None and people is not None:
            self.table.copy_(people.table)
        self.graph.replay()
        return self.total, self.finite


class Graphs:
    """Captures and replays one network's sums; the next call overwrites the sums' tensors."""

    def __init__(self, keeper: BookKeeper) -> None:
        self.keeper = keeper
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self.broken = False

    def masked_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        clip: Clip,
        people: FixedPeople | None = None,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> tuple[Named, Tensor]:
        """See `BookKeeper.masked_sum`; `within` is how to launch operations, which a graph has captured with them."""
        key = (clip.by_layer, clip.counting, id(clip.scale), None if people is None else people.most)
        self._seen[key] += 1
        graph = self._graphs.get(key)
        if self.broken or (graph is None and self._seen[key] <= _PATIENCE):
            with within():
                return self.keeper.masked_sum(x, y, mask, clip, None, people)
        if graph is None:
            with within():
                return self._first(key, x, y, mask, clip, people)
        self._graphs.move_to_end(key)
        return graph.replay(x, y, mask, clip, people)

    def _first(
        self, key: Hashable, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: FixedPeople | None
    ) -> tuple[Named, Tensor]:
        """Capture the graph, and check that it agrees with ordinary launches for this chunk and the same randomness."""
        chance = torch.cuda.get_rng_state(x.device)
        total, finite = self.keeper.masked_sum(x, y, mask, clip, None, people)
        total = {name: value.clone() for name, value in total.items()}
        after = torch.cuda.get_rng_state(x.device)
        graph = self._capture(key, x, y, mask, clip, people)
        if graph is not None:
            torch.cuda.set_rng_state(chance, x.device)
            again, _ = graph.replay(x, y, mask, clip, people)
            if not _same(again, total, finite):
                self._graphs.pop(key)
                self.broken = True
        torch.cuda.set_rng_state(after, x.device)
        return total, finite

    def _capture(
        self, key: Hashable, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: FixedPeople | None
    ) -> _Graph | None:
        x_in, y_in, mask_in = x.clone(), y.clone(), mask.clone()
        table_in = None if people is None else people.table.clone()
        norm = torch.full((), clip.norm, device=x.device, dtype=torch.float64)

        def work() -> tuple[Named, Tensor]:
            owned = None if people is None or table_in is None else FixedPeople(table_in, people.most)
            return self.keeper.masked_sum(x_in, y_in, mask_in, clip, norm, owned)

        while len(self._graphs) >= _KEPT:
            self._graphs.popitem(last=False)
        captured = capture(work, before=lambda: _warm_up(work))
        if captured is None:
            self.broken = True
            return None
        graph, (total, finite) = captured
        self._graphs[key] = _Graph(graph, x_in, y_in, mask_in, norm, total, finite, clip, table_in)
        return self._graphs[key]


def _warm_up(work: Callable[[], object]) -> None:
    """Let libraries choose their kernels and allocate their workspaces outside the capture."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)


def _same(got: Named, wanted: Named, finite: Tensor) -> bool:
    """Whether two sums agree; if a record was not usable, both may be NaN, which is inconclusive."""
    if not bool(finite.all()):
        return True
    size = torch.stack([value.norm() for value in wanted.values()]).norm()
    off = torch.stack([(got[name] - value).norm() for name, value in wanted.items()]).norm()
    return bool(off <= _AGREE * size)

"""The book-keeping around CUDA graphs, with a stand-in for the graph: what is captured once is computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from airlock.mechanisms import BALANCE, Clip
from airlock.training.gradients import Named
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.graphs import Graphs
from tests.training.per_sample.test_layers import CASES, CLASSES, clips, close


class StandIn:
    """A graph that runs the captured call once more and writes over the tensors it gave then."""

    last: Callable[[], None]

    def replay(self) -> None:
        self.last()


class Recorded(BookKeeper):
    """Tells the stand-in what was called."""

    capturing: StandIn | None = None
    captures = 0

    def masked_sum(self, *arguments: Any) -> tuple[Named, Tensor]:
        total, finite = super().masked_sum(*arguments)
        graph, again = self.capturing, super().masked_sum
        if graph is not None:
            self.captures += 1

            def repeat() -> None:
                new, fit = again(*arguments)
                finite.copy_(fit)
                for name, g in new.items():
                    total[name].copy_(g)

            graph.last = repeat
        return total, finite


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Graphs, Recorded]]:
    return standing_in(monkeypatch)


def standing_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Graphs, Recorded]]:
    """Makes graphs of a network without a GPU."""

    def make(case: str) -> tuple[Graphs, Recorded]:
        torch.manual_seed(0)
        keeper = Recorded(CASES[case][0]().eval())

        @contextlib.contextmanager
        def capture(graph: StandIn) -> Any:
            keeper.capturing = graph
            yield
            keeper.capturing = None

        monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
        monkeypatch.setattr(torch.cuda, "graph", capture)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))
        graphs = Graphs(keeper)
        monkeypatch.setattr("airlock.training.per_sample.graphs._warm_up", lambda *_: None)
        return graphs, keeper

    return make


def chunk(case: str, copies: int = 1, size: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk of one size in which a varying number of records counts."""
    mask = (torch.arange(size) < torch.randint(1, size, ())).float()
    return CASES[case][1](size * copies), torch.randint(0, CLASSES, (size,)), mask


@pytest.mark.parametrize("kind", ["flat", "by layer", "by channel"])
@pytest.mark.parametrize("case", ["conv2d", "tied weights"])
@pytest.mark.parametrize("copies", [1, 3])
def test_one_graph_serves_every_bound(made: Any, case: str, kind: str, copies: int) -> None:
    graphs, keeper = made(case)
    scale = clips(keeper.net, 1.0, kind).scale
    for step in range(7):
        clip = Clip(0.1 * 1.5**step, by_layer=kind == "by layer", scale=scale, counting=kind != "by layer")
        given = chunk(case, copies)
        got, fit = graphs.masked_sum(*given, clip)
        wanted = BookKeeper(keeper.net).masked_sum(*given, clip)[0]
        assert fit.all()
        assert close(got, wanted)
        assert got.get(BALANCE) == wanted.get(BALANCE)
    assert keeper.captures == 1
    assert len(graphs._graphs) == 1


def test_a_bound_that_comes_back_is_written_again(made: Any) -> None:
    graphs, keeper = made("conv2d")
    given = chunk("conv2d")
    for norm in (0.1, 0.1, 0.1, 0.1, 5.0, 0.1, 5.0, 5.0):
        got = graphs.masked_sum(*given, Clip(norm))[0]
        assert close(got, BookKeeper(keeper.net).masked_sum(*given, Clip(norm))[0])
    assert keeper.captures == 1


def test_the_weights_of_every_lot_are_read_again(made: Any) -> None:
    graphs, keeper = made("conv2d")
    for _ in range(6):
        x, y, mask = chunk("conv2d")
        given = (x, y, mask * torch.rand(32))
        got = graphs.masked_sum(*given, Clip(0.1))[0]
        assert close(got, BookKeeper(keeper.net).masked_sum(*given, Clip(0.1))[0])
    assert keeper.captures == 1


def test_counting_has_a_graph_of_its_own(made: Any) -> None:
    graphs, keeper = made("conv2d")
    for _ in range(4):
        for counting in (False, True):
            given, clip = chunk("conv2d"), Clip(0.3, counting=counting)
            got = graphs.masked_sum(*given, clip)[0]
            assert close(got, BookKeeper(keeper.net).masked_sum(*given, clip)[0])
    assert keeper.captures == 2


def test_a_bad_record_is_told(made: Any) -> None:
    graphs, _ = made("conv2d")
    x, y, mask = chunk("conv2d")
    mask[:4] = 1
    for _ in range(4):
        graphs.masked_sum(x, y, mask, Clip(9.0))
    x[3] = float("nan")
    _, fit = graphs.masked_sum(x, y, mask, Clip(9.0))
    assert fit.tolist() == [place != 3 for place in range(32)]


def test_a_graph_that_gives_something_else_is_not_used(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is replayed lacks a record. Its first replay is compared, and ordinary launches stay."""
    graphs, keeper = made("conv2d")
    right = StandIn.replay

    def wrong(self: StandIn) -> None:
        right(self)
        for value in next(iter(graphs._graphs.values())).total.values():
            value.mul_(0.9)

    monkeypatch.setattr(StandIn, "replay", wrong)
    given = chunk("conv2d")
    for _ in range(5):
        got = graphs.masked_sum(*given, Clip(0.3))[0]
        assert close(got, BookKeeper(keeper.net).masked_sum(*given, Clip(0.3))[0])
    assert graphs.broken

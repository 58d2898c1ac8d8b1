"""The book-keeping around CUDA graphs, with a stand-in for the graph: what is captured once is computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from airlock.mechanisms import BALANCE, Clip
from airlock.training.bookkeeping import BookKeeper
from airlock.training.graphs import Graphs
from airlock.training.layers import Named
from tests.training.test_layers import CASES, CLASSES, clips, close


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
        graphs = Graphs(keeper)
        monkeypatch.setattr(graphs, "_warm_up", lambda *_: None)
        return graphs, keeper

    return make


@pytest.mark.parametrize("kind", ["flat", "by layer", "by channel"])
@pytest.mark.parametrize("case", ["conv2d", "tied weights"])
@pytest.mark.parametrize("copies", [1, 3])
def test_one_graph_serves_every_bound(made: Any, case: str, kind: str, copies: int) -> None:
    graphs, keeper = made(case)
    scale = clips(keeper.net, 1.0, kind).scale
    for step, count in enumerate((61, 64, 57, 61, 63, 58, 62)):
        clip = Clip(0.1 * 1.5**step, by_layer=kind == "by layer", scale=scale, counting=kind != "by layer")
        x, y = CASES[case][1](count * copies), torch.randint(0, CLASSES, (count,))
        got, dropped = graphs.clipped_sum(x, y, clip)
        wanted = BookKeeper(keeper.net).clipped_sum(x, y, clip)[0]
        assert dropped == 0
        assert close(got, wanted)
        assert got.get(BALANCE) == wanted.get(BALANCE)
    assert keeper.captures == 1
    assert len(graphs._graphs) == 1


def test_a_bound_that_comes_back_is_written_again(made: Any) -> None:
    graphs, keeper = made("conv2d")
    x, y = torch.randn(8, 2, 6, 6), torch.randint(0, CLASSES, (8,))
    for norm in (0.1, 0.1, 0.1, 0.1, 5.0, 0.1, 5.0, 5.0):
        got = graphs.clipped_sum(x, y, Clip(norm))[0]
        assert close(got, BookKeeper(keeper.net).clipped_sum(x, y, Clip(norm))[0])
    assert keeper.captures == 1


def test_counting_and_copies_have_graphs_of_their_own(made: Any) -> None:
    graphs, keeper = made("conv2d")
    y = torch.randint(0, CLASSES, (8,))
    for _ in range(4):
        for copies in (1, 2):
            for counting in (False, True):
                x, clip = torch.randn(8 * copies, 2, 6, 6), Clip(0.3, counting=counting)
                got = graphs.clipped_sum(x, y, clip)[0]
                assert close(got, BookKeeper(keeper.net).clipped_sum(x, y, clip)[0])
    assert keeper.captures == 4


def test_a_bad_record_goes_the_ordinary_way(made: Any) -> None:
    graphs, _ = made("conv2d")
    x, y = torch.randn(16, 2, 6, 6), torch.randint(0, CLASSES, (8,))
    for _ in range(4):
        graphs.clipped_sum(x, y, Clip(9.0, counting=True))
    x[3] = float("nan")
    total, dropped = graphs.clipped_sum(x, y, Clip(1e6, counting=True))
    assert (dropped, float(total[BALANCE])) == (1, 7 / 2 - 1 / 2)

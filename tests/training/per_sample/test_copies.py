"""Several copies of a record: its mean gradient is clipped, by both engines, whatever the layer and the norm."""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from airlock.mechanisms import BALANCE, Clip, Stream
from airlock.nets import build
from airlock.training import PrivateGradients
from airlock.training.augment import named
from airlock.training.per_sample import clipped_sum, engine, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.functional import FunctionalGradients
from tests.training.per_sample.test_layers import (
    CASES,
    CLASSES,
    LOT,
    clips,
    close,
    engine_for,
    floats,
    nearness,
    summed,
)

COPIES_CASES = {**CASES, "mlp": (lambda: build("mlp", (6,), CLASSES), floats(6))}
NAMED = ["mlp", "conv2d", "group norm", "embedding"]


def by_loop(net: nn.Module, x: Tensor, y: Tensor, copies: int, clip: Clip) -> dict[str, Tensor]:
    """The definition: one backward pass a copy; mean over a record's copies; clip; add."""
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters() if p.requires_grad}
    for i in range(len(y)):
        mean = {name: torch.zeros_like(g) for name, g in total.items()}
        for row in x[i * copies : (i + 1) * copies]:
            net.zero_grad()
            F.cross_entropy(net(row[None]), y[i : i + 1]).backward()
            for name, p in net.named_parameters():
                if p.grad is not None:
                    mean[name] += p.grad / copies
        factors = clip.factors({name: clip.squares(name, g[None]) for name, g in mean.items()})
        for name, g in mean.items():
            total[name] += g * factors[name]
    net.zero_grad()
    return total


def norms(net: nn.Module, x: Tensor, y: Tensor, clip: Clip) -> Tensor:
    """Every record's norm."""
    squares = {name: clip.squares(name, g) for name, g in FunctionalGradients(net).rows(x, y).items()}
    return torch.stack(list(squares.values())).sum(0).sqrt()


@settings(max_examples=80)
@given(
    st.sampled_from(NAMED) | st.sampled_from(sorted(set(COPIES_CASES) - {"mnist-net", "cifar-net"})),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([0.05, 1.0, 50.0]),
    st.sampled_from(["flat", "by layer", "by tensor", "by channel"]),
    st.booleans(),
    st.integers(0, 999),
)
def test_equal_to_a_loop_over_copies(
    case: str, records: int, copies: int, norm: float, kind: str, keeper: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    make, draw = COPIES_CASES[case]
    net, x, y = make().eval(), draw(records * copies), torch.randint(0, CLASSES, (records,))
    clip = clips(net, norm, kind)
    got, fit = summed(BookKeeper(net) if keeper else FunctionalGradients(net), x, y, clip)
    assert fit.all()
    assert close(got, by_loop(net, x, y, copies, clip), nearness(case))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] * (case == "cifar-net")) for case in sorted(COPIES_CASES)]
)
def test_every_case_goes_through_book_keeping(case: str) -> None:
    make, draw = COPIES_CASES[case]
    torch.manual_seed(0)
    net, x, y = make().eval(), draw(9), torch.tensor([0, 2, 1])
    assert isinstance(engine_for(net, x, 3), BookKeeper)
    clip = Clip(float(norms(net, x, y, Clip(1.0)).median()))  # one is clipped, one is not
    found, _ = clipped_sum(net, x, y, clip, LOT)  # by the engine that was just chosen
    assert close(found, by_loop(net, x, y, 3, clip), nearness(case))


def test_a_network_has_its_own_tensors_back_where_one_layer_has_two_names() -> None:
    make, draw = CASES["conv2d, standardised, called twice"]
    net, x, y = make(), draw(3), torch.tensor([0, 2, 1])
    own = dict(net.named_parameters(remove_duplicate=False))
    FunctionalGradients(net).rows(x, y)
    assert all(own[name] is p for name, p in net.named_parameters(remove_duplicate=False))


@pytest.mark.parametrize("case", NAMED)
def test_equal_copies_are_one_record(case: str) -> None:
    make, draw = COPIES_CASES[case]
    torch.manual_seed(1)
    net, x, y = make().eval(), draw(5), torch.randint(0, CLASSES, (5,))
    several = clipped_sum(net, x.repeat_interleave(4, 0), y, Clip(0.2))[0]
    assert close(several, clipped_sum(net, x, y, Clip(0.2))[0], nearness(case))


@settings(max_examples=15)
@given(st.integers(1, 6), st.integers(1, 4), st.floats(0.01, 10), st.integers(0, 99))
def test_one_record_moves_the_sum_by_at_most_the_bound(records: int, copies: int, norm: float, seed: int) -> None:
    """However many copies it has: clipping a copy at a time would let it move the sum by so many bounds."""
    torch.manual_seed(seed)
    net = build("mlp", (6,), CLASSES)
    x, y = torch.randn(records * copies, 6) * 50, torch.randint(0, CLASSES, (records,))
    full, less = clipped_sum(net, x, y, Clip(norm))[0], clipped_sum(net, x[copies:], y[1:], Clip(norm))[0]
    moved = torch.stack([(full[k] - less[k]).norm() for k in full]).norm()
    assert float(moved) <= norm


@pytest.mark.parametrize("case", ["conv2d", "tied weights"])
@pytest.mark.parametrize("counting", [False, True])
def test_chunks_never_part_a_records_copies(case: str, counting: bool) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net, x, y = make().eval(), draw(21), torch.randint(0, CLASSES, (7,))
    clip = Clip(0.3, counting=counting)
    whole = {name: g.clone() for name, g in clipped_sum(net, x, y, clip)[0].items()}
    with patch.dict(engine._CHUNK_BYTES, {"cpu": (2 * engine_for(net, x, 3).bytes_per_record,) * 2}):
        again = copy.deepcopy(net)
        assert use_of(again, x, 3, 7, sampled=False).size == 2
        parts = clipped_sum(again, x, y, clip)[0]
    assert (BALANCE in parts) == counting
    assert close(parts, whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_copy_drops_its_record(bad: float) -> None:
    net, x, y = CASES["conv2d"][0](), torch.randn(8, 2, 6, 6), torch.tensor([0, 1, 2, 0])
    x[3] = bad  # the second copy of the second record
    keep = torch.tensor([True, False, True, True])
    for one in (BookKeeper(net), FunctionalGradients(net)):
        assert torch.equal(summed(one, x, y, Clip(0.3))[1], keep)
    got, dropped = clipped_sum(net, x, y, Clip(0.3))
    assert dropped == 1
    assert close(got, clipped_sum(net, x[keep.repeat_interleave(2)], y[keep], Clip(0.3))[0])


def test_rows_that_are_not_copies_are_refused() -> None:
    net = build("mlp", (6,), CLASSES)
    for rows, labels in ((5, 2), (1, 2), (3, 0)):
        with pytest.raises(ValueError, match="copies"):
            clipped_sum(net, torch.rand(rows, 6), torch.zeros(labels, dtype=torch.int64), Clip(1.0))


def test_the_noise_does_not_depend_on_the_copies() -> None:
    from tests.mechanisms.test_gaussian import has_scale

    net = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, CLASSES))
    x, y = torch.rand(20, 6), torch.zeros(5, dtype=torch.int64)
    source = PrivateGradients(0.5, 3.0, 7.0, Stream.from_seed(1))
    total = clipped_sum(net, x, y, source.clip)[0]
    source(net, x, y, 0)
    noise = torch.cat([(p.grad * 7.0 - total[k]).flatten() for k, p in net.named_parameters()]).numpy()  # type: ignore[operator]
    assert has_scale(noise, 1.5)
    assert not has_scale(noise / 2, 1.5)


@pytest.mark.parametrize("name", ["shift", "flip", "shift+flip"])
def test_every_copy_is_drawn_on_its_own(name: str) -> None:
    augment = named(name, 12)  # type: ignore[arg-type]
    assert augment is not None
    x = torch.rand(3, 1, 8, 8)
    changed = augment(x, torch.Generator().manual_seed(0)).view(3, 12, 1, 8, 8)
    for record in range(3):
        assert len({tuple(copy.flatten().tolist()) for copy in changed[record]}) > 1
        single = named(name)  # type: ignore[arg-type]
        assert single is not None
        possible = {
            tuple(single(x[record : record + 1], torch.Generator().manual_seed(i)).flatten().tolist())
            for i in range(400)
        }
        assert {tuple(copy.flatten().tolist()) for copy in changed[record]} <= possible


def test_without_augmentation_copies_are_copies() -> None:
    assert named("none") is None
    augment, x = named("none", 3), torch.arange(4.0)[:, None]
    assert augment is not None
    assert augment(x, torch.Generator()).flatten().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_dropout_differs_between_copies() -> None:
    net = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, CLASSES)).train()
    x, y = torch.randn(1, 5), torch.zeros(1, dtype=torch.int64)
    torch.manual_seed(0)
    two = clipped_sum(net, x.expand(2, 5), y, Clip(100.0))[0]["2.weight"]
    dropped = [(clipped_sum(net, x, y, Clip(100.0))[0]["2.weight"] == 0).all(0).sum() for _ in range(5)]
    assert (two == 0).all(0).sum() < min(dropped)  # a unit is off for both copies less often than for one

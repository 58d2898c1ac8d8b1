"""People with several rows: their mean gradient is clipped once, and taking one away moves the sum by one bound."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from airlock.errors import AirlockWarning, TrainingError
from airlock.mechanisms import BALANCE, Clip
from airlock.training.per_sample import clipped_sum, engine
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.engine import Lot, use_for
from airlock.training.per_sample.functional import FunctionalGradients
from airlock.training.per_sample.one_by_one import OneByOne
from airlock.training.per_sample.people import FixedPeople, People, pack
from airlock.training.per_sample.self_check import Engine, still
from airlock.training.per_sample.sums import product_squares_by_person
from tests.training.per_sample.odd_nets import vectors
from tests.training.per_sample.test_layers import CASES, CLASSES, clips, close, nearness
from tests.training.per_sample.test_leave_one_out import NETS, FailsOn

SIZES, MOST, CLIP = (1, 2, 3, 50), 50, 1e-3
CPU, BOUND = torch.device("cpu"), Clip(CLIP)
FORMS = {"ragged": People, "fixed": FixedPeople.of}
ENGINES: dict[str, Callable[[nn.Module], Engine]] = {
    "book": BookKeeper, "functional": FunctionalGradients, "one": OneByOne
}  # fmt: skip


def owned(sizes: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))


def by_loop(
    net: nn.Module, x: Tensor, y: Tensor, sizes: Sequence[int], clip: Clip, copies: int = 1
) -> dict[str, Tensor]:
    """The definition: one backward pass a row; mean over a person's rows; clip; add."""
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in net.named_parameters() if p.requires_grad}
    first = 0
    for size in sizes:
        mean = {name: torch.zeros_like(g) for name, g in total.items()}
        for i in range(first, first + size):
            net.zero_grad()
            rows = x[i * copies : (i + 1) * copies]
            F.cross_entropy(net(rows), y[i].expand(copies)).backward()
            for name, p in net.named_parameters():
                if p.grad is not None:
                    mean[name] += p.grad.double() / size
        first += size
        factors = clip.factors({name: clip.squares(name, g[None]) for name, g in mean.items()})
        for name, g in mean.items():
            total[name] += g * factors[name]
    net.zero_grad()
    return total


def summed(
    by: Engine, x: Tensor, y: Tensor, sizes: Sequence[int], clip: Clip, form: str = "ragged"
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum of one chunk that is filled up with rows of zeros; sizes are descending."""
    rows, copies = 32, len(x) // max(1, len(y))
    filled = torch.cat([x, x.new_zeros((rows - len(y)) * max(1, copies), *x.shape[1:])])
    mask = (torch.arange(rows) < len(y)).float()
    labels = torch.cat([y, y.new_zeros(rows - len(y))])
    people = FORMS[form](sizes, rows, max(sizes, default=1), CPU)
    total, fit = by.masked_sum(filled, labels, mask, clip, people=people)
    return total, fit[: len(y)]


SHAPES = st.lists(st.integers(1, 5), max_size=4).map(lambda sizes: sorted(sizes, reverse=True))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(name for name in CASES if not name.endswith("-net"))),
    SHAPES,
    st.integers(1, 2),
    st.sampled_from([0.05, 1.0, 50.0]),
    st.sampled_from(["flat", "by layer", "by tensor", "by channel"]),
    st.sampled_from(sorted(ENGINES)),
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 999),
)
def test_equal_to_a_loop_over_people(
    case: str, sizes: list[int], copies: int, norm: float, kind: str, by: str, form: str, seed: int
) -> None:
    torch.manual_seed(seed)
    make, draw = CASES[case]
    net, rows = make().eval(), sum(sizes)
    x, y = draw(rows * copies), torch.randint(0, CLASSES, (rows,))
    clip = clips(net, norm, kind)
    got, fit = summed(ENGINES[by](net), x, y, sizes, clip, form)
    assert fit.all()
    assert close(got, by_loop(net, x, y, sizes, clip, copies), max(1e-4, nearness(case)))


@pytest.mark.parametrize("case", ["linear", "conv2d", "embedding", "linear at positions, ghost", "tied weights"])
def test_fixed_shapes_give_what_ragged_ones_give(case: str) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net, x, y, sizes = make().eval(), draw(14), torch.randint(0, CLASSES, (14,)), (5, 3, 3, 2, 1)
    wanted, _ = summed(BookKeeper(net), x, y, sizes, Clip(0.1, counting=True))
    got, fit = summed(BookKeeper(net), x, y, sizes, Clip(0.1, counting=True), "fixed")
    assert fit.all()
    assert close(got, wanted, 1e-9)


@pytest.mark.parametrize("case", ["linear", "conv2d", "embedding", "linear at positions, ghost", "tied weights"])
def test_everybody_with_one_row_is_a_lot_of_records(case: str) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net, x, y = make().eval(), draw(9), torch.randint(0, CLASSES, (9,))
    clip = Clip(0.1, counting=True)
    wanted, _ = clipped_sum(net, x, y, clip, 9.0, False)
    declared, _ = clipped_sum(net, x, y, clip, 9.0, False, owned([1] * 9), 1)
    assert all(torch.equal(g, declared[name]) for name, g in wanted.items())
    near = 1e-4 if "ghost" in case else 1e-9  # rows that people have are formed there, which needs no margin
    assert close(clipped_sum(net, x, y, clip, 9.0, False, owned([1] * 9), 5)[0], wanted, near)


QUICK = {
    "layer: linear", "layer: linear at positions, rows", "layer: linear at positions, ghost", "layer: conv2d",
    "layer: conv2d, ghost", "layer: embedding", "layer: tied weights", "layer: an unknown layer", "multi-crop",
    "batch and places merged", "decides", "by place", "remembers",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, marks=[] if name in QUICK and precision == "fp32" else [pytest.mark.long])
        for name in sorted(NETS)
        for precision in ("fp32", "bf16")
    ],
)
def test_one_person_moves_the_sum_by_at_most_the_bound(name: str, precision: str) -> None:
    """People with 1, 2, 3 and 50 rows; on ordinary rows and where all rows are equal."""
    make, draw = NETS[name]
    torch.manual_seed(1)
    random.seed(3)
    net, sizes = make().train(), (*SIZES, 1)
    x = draw(sum(sizes))
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), still():
        warnings.simplefilter("ignore", AirlockWarning)
        try:
            far = moved(net, x, torch.arange(len(x)) % 3, sizes)
        except TrainingError as error:
            assert "made-up record" in str(error)
            return
        assert 0.9 < far <= 1
        equal = x[:1].expand_as(x).contiguous()
        assert moved(net, equal, torch.zeros(len(x), dtype=torch.int64), sizes, people=(0, 3)) <= 1


def moved(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    clip: Clip = BOUND,
    people: Sequence[int] = (),
    most: int = MOST,
) -> float:
    """How far the sum moves at most when one person is taken away, in units of the clip norm; chance is the same."""

    def total(keep: list[int]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        random.seed(0)
        rows = torch.isin(owned(sizes), torch.tensor(keep)).to(x.device)
        own = owned([sizes[i] for i in keep])
        found, _ = clipped_sum(net, x[rows], y[rows], clip, float(len(sizes)), True, own, most, float(len(x)))
        return {name: g.clone() for name, g in found.items()}

    every = list(range(len(sizes)))
    full, worst = total(every), 0.0
    for one in people or every:
        less = total([i for i in every if i != one])
        assert all(g.isfinite().all() for g in less.values())
        worst = max(worst, float(torch.stack([(full[name] - less[name]).norm() for name in full]).norm()) / clip.norm)
    return worst


@pytest.mark.parametrize("size", [1.0, 1e6, 1e15])
@pytest.mark.parametrize("places", [1, 2])
def test_rows_that_cancel_hide_nothing(size: float, places: int) -> None:
    """A row of every class at a uniform prediction: gradients of any size that add up to zero, or to one last bit."""
    torch.manual_seed(0)
    net, sizes = Cancels(), (4, 4, 2, 4, 1)
    x = size * torch.rand(1, places, 40).expand(15, places, 40).contiguous()
    y = torch.arange(15) % 4
    assert moved(net, x, y, sizes) <= 1
    x[[0, 4, 10], 0, 0] *= 1 + 2.0**-22
    assert moved(net, x, y, sizes) <= 1


@pytest.mark.parametrize("form", sorted(FORMS))
def test_two_rows_that_differ_in_one_bit_have_no_smaller_square_than_their_sum(form: str) -> None:
    """What is left of two rows that cancel is no larger than the rounding of their products, which may hide it."""
    chance = torch.Generator().manual_seed(0)
    a, b = torch.rand(256, 1, 40, generator=chance) + 0.5, torch.rand(256, 1, 8, generator=chance) + 0.5
    other = a.clone()
    other[:, 0, 0] = torch.nextafter(a[:, 0, 0], torch.tensor(9.0))
    true = (other - a).double().square().sum((1, 2)) * b.double().square().sum((1, 2))
    rows = [torch.stack(pair, 1).flatten(0, 1) for pair in ((other, a), (b, -b))]
    found = product_squares_by_person(*rows, FORMS[form]([2] * 256, 512, 2, CPU))[::2]
    assert (true > 0).all()
    assert (found >= (1 - 2.0**-16) * true).all()


class Cancels(nn.Module):
    """A dense layer at some places, whose outputs are the logits; uniform at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(40, 44, bias=False)
        nn.init.zeros_(self.body.weight)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x).sum(1).unflatten(1, (4, 11)).sum(2)
        return logits


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("by", sorted(ENGINES))
def test_one_bad_row_takes_its_person_along_and_nobody_else(bad: float, by: str) -> None:
    torch.manual_seed(0)
    net, sizes = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (2, 3, 1)
    x, y, own = vectors(6), torch.arange(6) % 3, owned(sizes)
    use_for(net, x, 1, Lot(3.0, 6.0, 3, True)).engine = ENGINES[by](net)
    clip, more = Clip(0.01, counting=True), (3.0, True)
    keep = own != 1
    wanted, none = clipped_sum(net, x[keep], y[keep], clip, *more, owned((2, 1)), 3, 6.0)
    x[3] = bad
    got, dropped = clipped_sum(net, x, y, clip, *more, own, 3, 6.0)
    assert none == 0
    if bad == 1e30 and dropped == 0:  # her gradient is finite
        assert moved(net, x, y, sizes, Clip(0.01)) <= 1
        return
    assert dropped == 1
    assert float(got[BALANCE]) == float(wanted[BALANCE]) - 0.5  # she is there, and not within the bound
    assert all(torch.allclose(got[name], g, rtol=1e-9, atol=1e-12) for name, g in wanted.items() if name != BALANCE)


def test_a_person_on_one_of_whose_rows_the_network_fails_is_left_out() -> None:
    torch.manual_seed(0)
    net, y, sizes = FailsOn(), torch.arange(9) % 3, (2, 4, 3)
    x = torch.randint(0, 20, (9, 5))
    keep = owned(sizes) != 1
    wanted, _ = clipped_sum(net, x[keep], y[keep], Clip(CLIP), 3.0, True, owned((2, 3)), 4, 9.0)
    x[4, 0] = 99  # no such row in the table
    got, dropped = clipped_sum(net, x, y, Clip(CLIP), 3.0, True, owned(sizes), 4, 9.0)
    assert dropped == 1
    assert all(torch.allclose(got[name], g, rtol=1e-9, atol=1e-12) for name, g in wanted.items())


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("case", ["linear", "conv2d", "embedding", "linear at positions, ghost", "group norm"])
def test_a_persons_norm_is_her_own_to_the_last_bit(case: str, form: str) -> None:
    """Whoever else is in the chunk, and wherever she is."""
    make, draw = CASES[case]
    torch.manual_seed(0)
    net, others, own = make().eval(), draw(128), draw(5)
    y, labels = torch.randint(0, CLASSES, (128,)), torch.randint(0, CLASSES, (5,))
    found: list[dict[str, Tensor]] = []
    for before in ((), (50,), (7, 6, 5)):
        start, sizes = sum(before), (*before, 5, 3, 2, 2)
        rows, given = others.clone(), y.clone()
        rows[start : start + 5], given[start : start + 5] = own, labels
        squares = BookKeeper(net).squares(rows, given, False, FORMS[form](sizes, 128, MOST, CPU))
        found.append({name: square[start] for name, square in squares.items()})
    assert all(torch.equal(found[0][name], one[name]) for one in found[1:] for name in found[0])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=60), st.integers(9, 40))
def test_people_are_packed_whole(sizes: list[int], room: int) -> None:
    chunks = list(pack(np.array(sizes, np.int64), room))
    assert sorted(i for chunk in chunks for i in chunk) == list(range(len(sizes)))  # each of them once
    for chunk in chunks:
        own = [sizes[i] for i in chunk]
        assert 0 < sum(own) <= room
        assert own == sorted(own, reverse=True)
    if sizes.count(1) >= 9 * len(chunks):  # gaps are filled
        assert len(chunks) == -(-sum(sizes) // room)


def test_a_lot_larger_than_memory_is_the_sum_of_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, sizes = CASES["conv2d"][0]().eval(), (5, 1, 2, 5, 3, 4, 1, 1, 2)
    x, y = CASES["conv2d"][1](sum(sizes)), torch.randint(0, CLASSES, (sum(sizes),))
    wanted = by_loop(net, x, y, sizes, Clip(0.3))
    monkeypatch.setitem(engine._CHUNK_BYTES, "cpu", (1, 1))
    got, _ = clipped_sum(net, x, y, Clip(0.3), 9.0, True, owned(sizes), 5, 24.0)
    assert use_for(net, x, 1, Lot(9.0, 24.0, 5, True)).size == 5  # as many as one person may have
    assert close(got, wanted, 1e-4)


def test_what_the_network_sees_depends_on_public_sizes_alone() -> None:
    seen: set[int] = set()

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen.add(len(x))
            logits: Tensor = self.head(x)
            return logits

    net = Counts()
    use = use_for(net, vectors(1), 1, Lot(50.0, 120.0, 7, True))
    seen.clear()
    for sizes in ([], [1], [7] * 50, [1] * 400, [7, 1, 3] * 40):
        rows = sum(sizes)
        clipped_sum(
            net, vectors(rows), torch.zeros(rows, dtype=torch.int64), Clip(1.0), 50.0, True, owned(sizes), 7, 120.0
        )
    assert seen == {use.size}


def test_the_count_is_of_people() -> None:
    net, sizes = nn.Linear(6, 3), (4, 1, 2)
    y = torch.zeros(7, dtype=torch.int64)
    for norm, within in ((1e-3, -1.5), (1e3, 1.5)):
        found, _ = clipped_sum(net, vectors(7), y, Clip(norm, counting=True), owners=owned(sizes))
        assert float(found[BALANCE]) == within


def test_an_empty_lot_of_people_is_a_sum_of_zeros() -> None:
    nobody = torch.zeros(0, dtype=torch.int64)
    found, dropped = clipped_sum(
        nn.Linear(6, 3), vectors(0), nobody, Clip(1.0, counting=True), 5.0, True, nobody, 4, 9.0
    )
    assert dropped == 0
    assert set(found) == {"weight", "bias", BALANCE}
    assert not any(bool(g.any()) for g in found.values())


@pytest.mark.parametrize("owners", [[0, 1, 0], [1, 1, 2], [0, 0, 2], [0, 0], [0, 0, 0]])
def test_owners_out_of_order_or_with_too_many_rows_are_a_defect(owners: list[int]) -> None:
    with pytest.raises(ValueError, match=r"owner|rows of one person"):
        clipped_sum(nn.Linear(6, 3), vectors(3), torch.zeros(3, dtype=torch.int64), Clip(1.0), 2.0, True,
                    torch.tensor(owners), 2)  # fmt: skip


def test_a_bound_at_which_rounding_could_tell_is_refused() -> None:
    with pytest.raises(TrainingError, match="records of one person"):
        use_for(nn.Linear(6, 3), vectors(1), 1, Lot(1e7, 1e7, 10_000, True))

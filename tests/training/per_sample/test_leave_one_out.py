"""Taking one record away moves the sum by at most what is accounted for.

For every kind of layer and for odd networks, in training and evaluation mode, in float32 and bfloat16, on ordinary
records and on equal ones. On a GPU: tests/test_gpu.py.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from airlock.errors import AirlockWarning, TrainingError
from airlock.mechanisms import BALANCE, Clip
from airlock.nets import build
from airlock.training.per_sample import clipped_sum, engine, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.functional import FunctionalGradients
from airlock.training.per_sample.one_by_one import OneByOne
from airlock.training.per_sample.self_check import still
from airlock.training.per_sample.sums import in_range
from tests.training.per_sample.odd_nets import ODD, vectors
from tests.training.per_sample.test_layers import CASES

LOT, CLIP = 8.0, 1e-3
ENGINES = {"book": BookKeeper, "functional": FunctionalGradients, "one": OneByOne}
MAY_BE_REFUSED = {("LSTM", "bf16")}  # whether torch has a gradient for it depends on the processor
NETS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    **{name: (odd.make, odd.draw) for name, odd in ODD.items()},
    **{f"layer: {name}": case for name, case in CASES.items() if not name.endswith("-net")},
}


def moved(net: nn.Module, x: Tensor, y: Tensor, clip: Clip, lot: float = LOT, places: Any = None) -> float:
    """How far the sum moves at most when one record is taken away, in units of the clip norm; chance is the same."""

    def total(keep: Tensor) -> dict[str, Tensor]:
        torch.manual_seed(0)
        random.seed(0)
        return {name: g.clone() for name, g in clipped_sum(net, x[keep], y[keep], clip, lot)[0].items()}

    every = torch.arange(len(y))
    full, worst = total(every), 0.0
    for place in range(len(y)) if places is None else places:
        less = total(every[every != place])
        worst = max(worst, float(torch.stack([(full[name] - less[name]).norm() for name in full]).norm()) / clip.norm)
        assert all(g.isfinite().all() for g in less.values())
    return worst


# The others do the same in both modes. Torch's attention has a quicker way for evaluation.
BOTH_MODES = {
    "BERT", "GPT-2", "LSTM", "dropout of all kinds", "layer: torch's attention", "mix-up now and then", "multi-crop",
    "transformer layer",
}  # fmt: skip
USES = [
    pytest.param(name, precision, mode, marks=[] if wanted else [pytest.mark.long], id=f"{name}-{precision}-{mode}")
    for name in sorted(NETS)
    for precision, mode, wanted in (
        ("fp32", "train", True),
        ("bf16", "train", True),
        ("fp32", "eval", name in BOTH_MODES),
        ("bf16", "eval", False),
    )
]


@pytest.mark.parametrize(("name", "precision", "mode"), USES)
def test_one_record_moves_the_sum_by_at_most_the_bound(name: str, precision: str, mode: str) -> None:
    make, draw = NETS[name]
    torch.manual_seed(1)
    random.seed(3)
    net, x, y = make().train(mode == "train"), draw(9), torch.arange(9) % 3
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with warnings.catch_warnings(record=True) as told, autocast:
        warnings.simplefilter("always")
        try:
            use = use_of(net, x, 1, LOT)
        except TrainingError as error:
            assert (name, precision) in MAY_BE_REFUSED, error
            assert "made-up record" in str(error)
            return
        if name in ODD and (precision, mode) == ("fp32", "train"):
            check_engine(name, use, told)
        with still():
            check(net, x, y)


def check(net: nn.Module, x: Tensor, y: Tensor) -> None:
    equal = x[:1].expand_as(x).contiguous()
    assert 0.9 < moved(net, x, y, Clip(CLIP), places=(0, 4, 8)) <= 1
    assert moved(net, equal, torch.zeros_like(y), Clip(CLIP), places=(0, 8)) <= 1


def check_engine(name: str, use: engine.Use, told: list[warnings.WarningMessage]) -> None:
    """An odd network is computed by the quickest that it can be shown to, and what is slow says so."""
    assert isinstance(use.engine, ENGINES[ODD[name].by]), use.reason
    slow = [str(one.message) for one in told if issubclass(one.category, AirlockWarning)]
    assert bool(slow) == (ODD[name].by == "one")
    assert all("one record at a time" in line and use.reason in line and " ms each" in line for line in slow)


def test_eight_thousand_equal_records() -> None:
    """Where a float32 sum moved by 5e-4 of the bound, and a bfloat16 one by 13 bounds."""
    torch.manual_seed(0)
    net, y = nn.Linear(6, 3), torch.zeros(8000, dtype=torch.int64)
    x = torch.rand(1, 6).expand(8000, 6).contiguous()
    for precision in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision):
            assert 0.99 < moved(copy.deepcopy(net), x, y, Clip(0.1), 8000.0, places=(0, 7999)) <= 1


def test_views_of_a_record_are_clipped_together() -> None:
    """Eight views clipped one by one would move the sum by up to eight bounds."""
    net = ODD["multi-crop"].make().train()
    x = torch.rand(9, 1, 8, 8)
    assert moved(net, x, torch.arange(9) % 3, Clip(0.1)) <= 1
    assert clipped_sum(net, x, torch.arange(9) % 3, Clip(1e6), LOT)[0]["head.weight"].shape == (3, 256)


def test_a_small_clip_norm_is_no_way_around_the_norm() -> None:
    net = nn.Linear(6, 3)
    with pytest.raises(ValueError, match="clip norm"):
        Clip(1e-30)
    assert moved(net, 1e-12 * vectors(9), torch.arange(9) % 3, Clip(2.0**-40)) <= 1


class Amplifies(nn.Module):
    """Logits far beyond anything useful: gradients are huge, unless the input is tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x) * 1e18
        return logits


def test_a_tiny_input_of_a_huge_gradient_does_not_hide_from_its_norm() -> None:
    """The input's square is zero in float32, and the output gradient's nearly infinite; their product is neither."""
    x = torch.full((9, 6), 2e-23)
    assert 0.9 < moved(Amplifies(), x, torch.arange(9) % 3, Clip(1e-6), places=(0,)) <= 1


def test_what_a_kernel_in_float32_may_have_lost_is_left_out() -> None:
    """A kernel's Gram matrix of the first two is zero, and the gradient is not; of the others nothing is lost."""
    small, large = torch.tensor([2e-23, 1e18, 1.0, 1e-25, 0.0]), torch.tensor([1e18, 2e-23, 1e-19, 1e-3, 1e18])
    a, b = (value[:, None, None].expand(5, 2, 8).contiguous() for value in (small, large))
    kernel = (a.square().sum((1, 2)) * b.square().sum((1, 2))).double()
    assert (kernel[:2] == 0).all()
    most = (value.flatten(1).abs().amax(1) for value in (a, b))
    found = in_range(kernel, *most, (a.shape, b.shape))
    assert found.isinf().tolist() == [True, True, False, False, False]
    assert torch.equal(found[2:], kernel[2:])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_record_that_spoils_its_gradient_moves_nothing(bad: float) -> None:
    net, x, y = build("mlp", (6,), 3), vectors(9), torch.arange(9) % 3
    x[4] = bad
    for name, make in ENGINES.items():
        torch.manual_seed(0)
        own = copy.deepcopy(net)
        use_of(own, x, 1, LOT).engine = make(own) if name != "one" else OneByOne(own)
        assert moved(own, x, y, Clip(CLIP), places=(0, 4, 8)) <= 1


@pytest.mark.parametrize("by", sorted(ENGINES))
def test_an_empty_lot_is_a_sum_of_zeros(by: str) -> None:
    """Poisson lots may be empty; a network that is trained one record at a time took that for an error."""
    net = nn.Linear(6, 3)
    use_of(net, vectors(1), 1, LOT).engine = ENGINES[by](net)
    total, dropped = clipped_sum(net, vectors(0), torch.zeros(0, dtype=torch.int64), Clip(1.0, counting=True), LOT)
    assert dropped == 0
    assert set(total) == {"weight", "bias", BALANCE}
    assert not any(bool(g.any()) for g in total.values())


class FailsOn(nn.Module):
    """Raises an error for some records."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(x).mean(1))
        return logits


def test_a_record_on_which_the_network_fails_is_left_out_and_changes_no_other() -> None:
    torch.manual_seed(0)
    net, y = FailsOn(), torch.arange(9) % 3
    x = torch.randint(0, 20, (9, 5))
    keep = torch.arange(9) != 4
    wanted, _ = clipped_sum(net, x[keep], y[keep], Clip(CLIP), LOT)
    x[4, 0] = 99  # no such row in the table
    got, dropped = clipped_sum(net, x, y, Clip(CLIP), LOT)
    assert dropped == 1
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_a_network_without_any_gradient_is_refused_on_made_up_records() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    with pytest.raises(TrainingError, match="made-up record"):
        clipped_sum(Broken(), vectors(3), torch.arange(3), Clip(1.0), LOT)


def test_what_a_network_computes_depends_on_a_public_size_alone() -> None:
    """However many records were drawn, it sees as many rows."""
    seen: set[int] = set()

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen.add(len(x))
            logits: Tensor = self.head(x)
            return logits

    net, y = Counts(), torch.zeros(200, dtype=torch.int64)
    use_of(net, vectors(1), 1, 50.0)
    seen.clear()
    for count in (0, 1, 49, 64, 65, 200):
        clipped_sum(net, vectors(count), y[:count], Clip(1.0), 50.0)
    assert seen == {use_of(net, vectors(1), 1, 50.0).size}


def test_mixing_that_starts_later_ends_the_quick_way() -> None:
    """A network that passes all checks, and mixes records from some step on: what it does is followed at every step."""
    on = False

    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x - x.mean(0) if on else x)
            return logits

    torch.manual_seed(0)
    net, x, y = Later(), vectors(9), torch.arange(9) % 3
    assert moved(net, x, y, Clip(CLIP)) <= 1
    assert isinstance(use_of(net, x, 1, LOT).engine, BookKeeper)
    on = True
    with pytest.warns(AirlockWarning, match="one record at a time"):
        clipped_sum(net, x, y, Clip(CLIP), LOT)
    assert moved(net, x, y, Clip(CLIP)) <= 1
    assert isinstance(use_of(net, x, 1, LOT).engine, OneByOne)

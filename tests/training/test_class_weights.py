"""Declared class weights: a record counts as a fraction of itself, in every engine, and moves nothing further."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from airlock.errors import AirlockWarning, ConfigError
from airlock.mechanisms import BALANCE, Clip, Stream
from airlock.training import ClassWeights, PrivateGradients
from airlock.training.class_weights import relative_to_the_largest
from airlock.training.convex import LogisticHead, solve
from airlock.training.gradients import MeanLoss, ObjectiveGradients, PlainGradients
from airlock.training.per_sample import clipped_sum
from tests.training.per_sample.odd_nets import ODD, vectors

CLIP, WEIGHTS = 1e-3, ClassWeights((0.1, 0.25, 1.0))
SLOW = next(name for name, odd in sorted(ODD.items()) if odd.by == "one")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def one_record_counts_by_its_weight_and_at_most_once() -> None:
    """Each record's own part of the sum is its clipped gradient times its weight: never longer than the clip norm."""
    model, x, y = net(), vectors(9), torch.arange(9) % 3
    weights = WEIGHTS.of(y)
    full, _ = clipped_sum(model, x, y, Clip(CLIP), 9.0, weights=weights)
    for place in range(9):
        keep = torch.arange(9) != place
        less, _ = clipped_sum(model, x[keep], y[keep], Clip(CLIP), 9.0, weights=weights[keep])
        moved = float(torch.stack([(full[name] - less[name]).norm() for name in full]).norm()) / CLIP
        assert moved <= 1, f"a record of class {int(y[place])} moves the sum by {moved:.3g} clip norms"
        assert moved == pytest.approx(WEIGHTS.relative[int(y[place])], rel=5e-3)


def test_one_record_counts_by_its_weight_and_at_most_once() -> None:
    one_record_counts_by_its_weight_and_at_most_once()


def alone(model: nn.Module, x: Tensor, y: Tensor, clip: Clip) -> dict[str, Tensor]:
    return {name: g.clone() for name, g in clipped_sum(model, x, y, clip, 9.0)[0].items()}


@pytest.mark.parametrize("slow", [False, True])
def test_every_engine_weighs_alike(slow: bool) -> None:
    """Against the parts of single records, with one that is not finite and so is left out."""
    torch.manual_seed(1)
    model, draw = (ODD[SLOW].make().eval(), ODD[SLOW].draw) if slow else (net(), vectors)
    x, y, clip = draw(6), torch.tensor([0, 1, 2, 2, 1, 0]), Clip(0.05, counting=True)
    if not slow:
        x[3] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        got, dropped = clipped_sum(model, x, y, clip, 9.0, weights=WEIGHTS.of(y))
        parts = [alone(model, x[i : i + 1], y[i : i + 1], clip) for i in range(6)]
    assert dropped == (0 if slow else 1)
    for name, value in got.items():
        each = [1.0 if name == BALANCE else WEIGHTS.relative[int(label)] for label in y]
        wanted = torch.stack([w * part[name] for w, part in zip(each, parts, strict=True)]).sum(0)
        assert torch.allclose(value, wanted, rtol=1e-5, atol=1e-7), name


def test_a_person_counts_with_the_mean_of_her_records_weights() -> None:
    model, owners = net(), torch.tensor([0, 0, 0, 1, 2, 2])
    x, y = vectors(6), torch.tensor([0, 0, 2, 2, 1, 1])
    of = {"owners": owners, "records_per_person": 3}
    got, _ = clipped_sum(model, x, y, Clip(CLIP), 4.0, weights=WEIGHTS.of(y), **of)
    wanted: dict[str, Tensor] = {name: torch.zeros_like(g) for name, g in got.items()}
    for person, weight in ((0, 0.4), (1, 1.0), (2, 0.25)):
        rows = owners == person
        nobody = torch.zeros(int(rows.sum()), dtype=torch.int64)
        own, _ = clipped_sum(model, x[rows], y[rows], Clip(CLIP), 4.0, owners=nobody, records_per_person=3)
        assert float(torch.stack([g.norm() for g in own.values()]).norm()) <= CLIP
        wanted = {name: wanted[name] + weight * g for name, g in own.items()}
    for name in got:
        assert torch.allclose(got[name], wanted[name], rtol=1e-5, atol=1e-9), name


def test_weights_change_the_direction_and_neither_noise_nor_event() -> None:
    x, y = vectors(60), torch.tensor([0] * 57 + [2] * 3)
    found = []
    for weights in (None, ClassWeights((0.01, 0.01, 1.0))):
        model = net()
        source = PrivateGradients(0.1, 2.0, 60.0, Stream.from_seed(3), class_weights=weights)
        assert source.noise.noise_multiplier == 2.0
        assert source.noise.sensitivity == 0.1
        source(model, x, y, 0)
        model.zero_grad()
        quiet = PrivateGradients(0.1, 1e-6, 60.0, Stream.from_seed(3), class_weights=weights)
        quiet(model, x, y, 0)
        gradient = model[2].bias.grad
        assert gradient is not None
        found.append((source.event, int(gradient.argmin())))
        assert ("class_weights" in source.mark) == (weights is not None)
    assert found[0][0] == found[1][0]
    assert [label for _, label in found] == [0, 2], "the class whose logit rises most"


@pytest.mark.parametrize("bad", [(0.5, 1.5), (0.0, 1.0), (1.0, float("nan"))])
def test_a_weight_above_one_or_none_at_all_cannot_be_made(bad: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at most 1"):
        ClassWeights(bad)


def test_a_head_refuses_weights_above_one() -> None:
    objective = LogisticHead(2, 0.1, 10)
    with pytest.raises(ValueError, match="at most 1"):
        solve([(torch.ones(2, 1), torch.tensor([0, 1]))], objective, weights=[torch.tensor([1.0, 1.5])])


def test_declared_weights_are_relative_to_the_largest() -> None:
    classes = ("lives", "dies")
    assert relative_to_the_largest(None, classes) is None
    assert relative_to_the_largest({"dies": 1}, classes) is None
    assert relative_to_the_largest([3, 3], classes) is None
    for declared in ({"dies": 10}, [1, 10], {"lives": 0.1}, [0.3, 3.0]):
        found = relative_to_the_largest(declared, classes)
        assert found is not None
        assert found.relative == pytest.approx((0.1, 1.0))
    assert found.in_words(classes) == "lives 0.1, dies 1"
    many = [f"class {i}" for i in range(40)]
    few = relative_to_the_largest({"class 3": 5, "class 9": 2}, many)
    assert few is not None
    assert few.in_words(many) == "class 3 1, class 9 0.4, all others 0.2"
    each = relative_to_the_largest(range(1, 41), many)
    assert each is not None
    assert len(each.in_words(many)) < 250


@pytest.mark.parametrize(
    ("declared", "says"),
    [({"dise": 10}, "Did you mean 'dies'"), ([1, 2, 3], "each of the 2 classes"), ([1, 1e12], "none is more than")],
)
def test_declared_weights_that_do_not_fit(declared: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        relative_to_the_largest(declared, ("lives", "dies"))  # type: ignore[arg-type]


def test_without_privacy_a_weighted_loss_is_the_weighted_mean() -> None:
    x, y = vectors(6), torch.tensor([0, 0, 0, 0, 0, 2])
    plain, even, weighted = net(), net(), net()
    PlainGradients()(plain, x, y, 0)
    ObjectiveGradients(MeanLoss())(even, x, y, 0)
    ObjectiveGradients(MeanLoss(0.0, ClassWeights((1e-6, 1.0, 1.0))))(weighted, x, y, 0)
    assert torch.allclose(plain[2].bias.grad, even[2].bias.grad, atol=1e-6)
    assert int(plain[2].bias.grad.argmin()) == 0
    assert int(weighted[2].bias.grad.argmin()) == 2

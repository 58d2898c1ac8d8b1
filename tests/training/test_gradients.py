"""The convexified loss: its two definitions, its gradient, large losses, and many models at once."""

from __future__ import annotations

import copy
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from airlock.data import Records
from airlock.errors import Interrupted, TrainingError
from airlock.nets import create
from airlock.training import Recipe, Resident, Run, Shuffled, fit, train_together
from airlock.training.ensembles.ensemble import makes, model_seed
from airlock.training.ensembles.stacked import Looped, Vmapped, choose, stack
from airlock.training.gradients import (
    MEAN,
    Convexified,
    MeanLoss,
    ObjectiveGradients,
    Over,
    PlainGradients,
    start_as_keras,
)

CPU = torch.device("cpu")
SHAPE, CLASSES = (5,), 4


def batch(count: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, CLASSES), generator=generator), torch.arange(count) % CLASSES


def uniform(y: Tensor) -> Tensor:
    return torch.full(y.shape, 1 / y.shape[-1])


def by_definition(logits: Tensor, y: Tensor, alpha: float, over: Over) -> Tensor:
    """As it is written, in float64, with nothing done about overflow."""
    log_p = F.log_softmax(logits.double(), -1)
    target = F.one_hot(y, CLASSES).double()
    elements = torch.exp(-alpha * target * log_p)
    records = torch.exp(-alpha * (target * log_p).sum(-1))
    return (elements if over == "elements" else records).mean().log() / alpha


@pytest.mark.parametrize("over", ["records", "elements"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 5.0, 10.0])
def test_it_is_the_definition_and_so_is_its_gradient(over: Over, alpha: float) -> None:
    logits, y = batch()
    logits.requires_grad_()
    exact = logits.detach().double().requires_grad_()
    found = Convexified(alpha, over)(logits[None], y[None], uniform(y[None]), {})
    wanted = by_definition(exact, y, alpha, over)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
    found.backward()
    wanted.backward()
    assert exact.grad is not None
    torch.testing.assert_close(logits.grad, exact.grad.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("over", ["records", "elements"])
def test_in_float64_its_gradient_is_the_difference_quotient(over: Over) -> None:
    logits, y = batch()
    objective, weights = Convexified(3.0, over), uniform(y[None]).double()
    exact = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: objective(z[None], y[None], weights, {}), exact)


def test_the_two_definitions_differ_by_what_the_other_elements_add() -> None:
    logits, y = batch()
    one, other = (
        float(Convexified(2.0, o)(logits[None], y[None], uniform(y[None]), {})) for o in ("records", "elements")
    )
    assert math.exp(2 * other) == pytest.approx((math.exp(2 * one) + CLASSES - 1) / CLASSES, rel=1e-5)


@pytest.mark.parametrize("over", ["records", "elements"])
def test_losses_of_hundreds_neither_overflow_nor_lose_their_gradient(over: Over) -> None:
    logits = torch.tensor([[0.0, 900.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    y = torch.zeros(2, dtype=torch.int64)
    found = Convexified(10.0, over)(logits[None], y[None], uniform(y[None]), {})
    shares = 2 if over == "records" else 2 * CLASSES
    assert found.item() == pytest.approx(900 - math.log(shares) / 10, rel=1e-6)
    found.backward()
    assert torch.isfinite(logits.grad).all()  # type: ignore[type-var]
    assert logits.grad is not None
    assert float(logits.grad[0, 1]) == pytest.approx(1.0)


def test_towards_zero_it_is_the_mean_and_towards_infinity_the_maximum() -> None:
    logits, y = batch()
    each = F.cross_entropy(logits, y, reduction="none")
    small, large = (float(Convexified(a)(logits[None], y[None], uniform(y[None]), {})) for a in (1e-3, 1e3))
    assert small == pytest.approx(float(each.mean()), abs=1e-3)
    assert large == pytest.approx(float(each.max()), abs=3e-3)


@pytest.mark.parametrize("objective", [MeanLoss(0.01), Convexified(2.0), Convexified(2.0, "elements", 0.01)])
def test_records_of_weight_zero_do_not_count(objective: Convexified | MeanLoss) -> None:
    logits, y = batch()
    short = objective(logits[None, :5], y[None, :5], torch.full((1, 5), 0.2), {"w": torch.ones(1, 2, 3)})
    filled = logits.clone().requires_grad_()
    weights = torch.cat([torch.full((1, 5), 0.2), torch.zeros(1, 2)], 1)
    whole = objective(filled[None], y[None], weights, {"w": torch.ones(1, 2, 3)})
    assert whole.item() == pytest.approx(short.item(), rel=1e-6)
    whole.backward()
    assert filled.grad is not None
    assert not filled.grad[5:].any()
    assert torch.isfinite(filled.grad).all()


def test_l2_is_that_of_keras_on_weights_and_not_on_biases() -> None:
    net = create("mlp", SHAPE, CLASSES, 0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    x, y = torch.zeros(3, *SHAPE), torch.arange(3)
    plain, penalised = copy.deepcopy(net), copy.deepcopy(net)
    ObjectiveGradients(MEAN)(plain, x, y, 0)
    ObjectiveGradients(MeanLoss(0.001))(penalised, x, y, 0)
    for (name, p), q in zip(plain.named_parameters(), penalised.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        added = 2 * 0.001 * 0.5 if name.endswith("weight") else 0.0
        torch.testing.assert_close(q.grad - p.grad, torch.full_like(p, added), rtol=0, atol=1e-6)


def test_the_mean_objective_gives_the_plain_gradient() -> None:
    one, other = (create("mlp", SHAPE, CLASSES, 0) for _ in range(2))
    x, y = torch.randn(6, *SHAPE), torch.arange(6) % CLASSES
    ObjectiveGradients(MEAN)(one, x, y, 0)
    PlainGradients()(other, x, y, 0)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-7)


def records(count: int) -> Records:
    chance = np.random.default_rng(0)
    return Records(chance.random((count, *SHAPE), np.float32), np.arange(count) % CLASSES)


@pytest.mark.parametrize("objective", [MeanLoss(0.01), Convexified(2.0, l2=0.001), Convexified(2.0, "elements", 0.001)])
def test_a_model_among_others_is_what_it_is_alone(objective: Convexified | MeanLoss) -> None:
    """Batches of unequal sizes too: 23 and 17 records in batches of 10."""
    data, recipe = Resident(records(40), CPU), Recipe(steps=12, optimiser="adam", learning_rate=0.01)
    make = makes("mlp", SHAPE, CLASSES, 3)
    members = [np.arange(23), np.arange(23, 40)]
    together = train_together(make, 2, data, members, recipe, 3, Run(), batch_size=10, objective=objective)
    for model, own in enumerate(members):
        net, seed = make(model), model_seed(3, model)
        alone = Resident(records(40).take(own), CPU)
        fit(net, alone, Shuffled(10, seed), ObjectiveGradients(objective), recipe, seed, Run())
        for p, q in zip(net.parameters(), together.model(model).parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_one_after_another_is_the_same_as_at_once() -> None:
    nets, objective = [create("mlp", SHAPE, CLASSES, i) for i in range(2)], Convexified(3.0, "elements", 0.01)
    at_once, looped = choose(nets, SHAPE, CPU, objective), Looped(nets[0], objective=objective)
    assert isinstance(at_once, Vmapped)
    x, y = torch.randn(2, 6, *SHAPE), torch.arange(6).repeat(2, 1) % CLASSES
    found = []
    for way in (at_once, looped):
        held = stack(nets)
        way(held, x, y, [6, 4], [0, 1])
        found.append([p.grad for p in held.parameters()])
    for p, q in zip(*found, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_a_run_does_not_go_on_with_another_objective(tmp_path: Path) -> None:
    def press(label: str, done: int, total: int) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    data, recipe = Resident(records(40), CPU), Recipe(steps=10, learning_rate=0.1)

    def go(alpha: float, run: Run) -> None:
        gradients = ObjectiveGradients(Convexified(alpha))
        fit(create("mlp", SHAPE, CLASSES, 0), data, Shuffled(10, 0), gradients, recipe, 0, run)

    with pytest.raises(Interrupted):
        go(1.0, Run(progress=press, checkpoint=tmp_path))
    with pytest.raises(TrainingError):
        go(2.0, Run(checkpoint=tmp_path, resume=True))
    go(1.0, Run(checkpoint=tmp_path, resume=True))


def test_networks_start_as_in_keras() -> None:
    nets = [create("mlp", (200,), 100, 0) for _ in range(3)]
    for net, seed in zip(nets, (5, 5, 6), strict=True):
        start_as_keras(net, seed)
    first, second, third = (list(net.parameters()) for net in nets)
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert not torch.equal(first[0], third[0])
    assert not first[1].any()
    limit = math.sqrt(6 / (200 + 128))
    assert float(first[0].detach().abs().max()) <= limit
    assert float(first[0].detach().std()) == pytest.approx(limit / math.sqrt(3), rel=0.02)

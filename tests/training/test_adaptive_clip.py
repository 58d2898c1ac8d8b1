"""Gradients whose clip norm moves: what is counted, the noise on both parts, and runs that go on in the same bits."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock.errors import AccountingError, Interrupted, TrainingError
from airlock.mechanisms import BALANCE, Clip, QuantileBound, Stream
from airlock.nets import build, create
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit
from airlock.training.augment import named
from airlock.training.per_sample import clipped_sum, engine, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.functional import FunctionalGradients
from tests.mechanisms.test_gaussian import has_scale
from tests.training.per_sample.test_copies import norms
from tests.training.per_sample.test_layers import CASES, CLASSES, clips, close, engine_for, summed
from tests.training.test_loop import blobs

CPU = torch.device("cpu")
MOVING = QuantileBound(0.5, 0.2, 3.0)


@pytest.mark.parametrize("kind", ["flat", "by tensor", "by channel"])
@pytest.mark.parametrize("case", ["linear", "conv2d", "tied weights", "an unknown layer", "group norm"])
def test_both_engines_count_the_records_within_the_bound(case: str, kind: str) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net, x, y = make().eval(), draw(9), torch.randint(0, CLASSES, (9,))
    shape = clips(net, 1.0, kind).scale
    size = norms(net, x, y, Clip(1.0, scale=shape))
    middle = float(size.sort().values[2:4].mean())  # three of nine are within
    plain, counting = (Clip(middle, scale=shape, counting=counting) for counting in (False, True))
    for one in (BookKeeper(net), FunctionalGradients(net)):
        total = summed(one, x, y, counting)[0]
        assert float(total.pop(BALANCE)) == 3 - 9 / 2
        assert close(total, summed(one, x, y, plain)[0])
    assert float(clipped_sum(net, x[:0], y[:0], counting)[0][BALANCE]) == 0
    with patch.dict(engine._CHUNK_BYTES, {"cpu": (2 * engine_for(net, x).bytes_per_record,) * 2}):
        again = copy.deepcopy(net)
        assert float(clipped_sum(again, x, y, counting)[0][BALANCE]) == 3 - 9 / 2
        assert use_of(again, x, 1, 9, sampled=False).size == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_record_counts_as_beyond_the_bound(bad: float) -> None:
    net, x, y = CASES["conv2d"][0](), torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 2, 0])
    x[1] = bad
    assert float(clipped_sum(net, x, y, Clip(1e6, counting=True))[0][BALANCE]) == (3 - 1) / 2
    total, dropped = clipped_sum(net, x[1:2], y[1:2], Clip(1e6, counting=True))
    assert (dropped, float(total.pop(BALANCE))) == (1, -0.5)
    assert all(not g.any() for g in total.values())


def test_a_mask_takes_records_out_of_the_count() -> None:
    """As graphs do, with the bound in a tensor."""
    net, x, y = CASES["conv2d"][0](), torch.randn(6, 2, 6, 6), torch.tensor([0, 1, 2, 0, 1, 2])
    keeper, mask = BookKeeper(net), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    for bound in (0.2, 5.0):
        clip = Clip(99.0, counting=True)
        got, finite = keeper.masked_sum(x, y, mask, clip, torch.tensor(bound))
        wanted = summed(keeper, x[mask > 0], y[mask > 0], Clip(bound, counting=True))[0]
        assert finite.all()
        assert close(got, wanted)
        assert got[BALANCE] == wanted[BALANCE]


def test_without_asking_nothing_is_counted() -> None:
    net = build("mlp", (6,), CLASSES)
    assert BALANCE not in clipped_sum(net, torch.rand(3, 6), torch.tensor([0, 1, 2]), Clip(1.0))[0]


def count_noise(source: PrivateGradients, records: int, steps: int) -> np.ndarray:
    """What was added to the count, from the movements of the bound."""
    net = nn.Linear(6, CLASSES)
    x, y = torch.rand(records, 6), torch.zeros(records, dtype=torch.int64)
    moving, found = source.moving, []
    assert moving is not None
    for step in range(steps):
        before, inside = source.clip.norm, float((norms(net, x, y, source.clip) <= source.clip.norm).sum())
        source(net, x, y, step)
        share = moving.quantile - np.log(source.clip.norm / before) / moving.rate
        found.append((share - 0.5) * source.expected_lot - (inside - records / 2))
    return np.array(found)


@pytest.mark.parametrize("records", [pytest.param(1, marks=pytest.mark.long), 5])
def test_the_count_gets_noise_of_the_accounted_scale(records: int) -> None:
    noise = count_noise(PrivateGradients(0.5, 2.0, 7.0, Stream.from_seed(1), MOVING), records, 600)
    assert has_scale(noise, 3.0)
    assert not has_scale(noise / 2, 3.0)


def test_an_empty_lot_moves_the_bound_by_chance_alone() -> None:
    source, net = PrivateGradients(0.5, 2.0, 7.0, Stream.from_seed(1), MOVING), nn.Linear(6, CLASSES)
    bounds = []
    for step in range(600):
        before = source.clip.norm
        source(net, torch.rand(0, 6), torch.zeros(0, dtype=torch.int64), step)
        bounds.append(-np.log(source.clip.norm / before) / 0.2 * 7.0)
    assert has_scale(np.array(bounds), 3.0)


def test_the_gradients_noise_follows_the_bound_and_is_the_larger_one() -> None:
    """z_Δ · C_t, where z_Δ is above z by what the count costs."""
    net = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, CLASSES))
    source = PrivateGradients(0.5, 5.0, 7.0, Stream.from_seed(3), MOVING)
    share = (5.0**-2 - 6.0**-2) ** -0.5
    x, y = torch.rand(5, 6), torch.zeros(5, dtype=torch.int64)
    for step in range(4):
        bound, plain = source.clip.norm, Clip(source.clip.norm)
        total = clipped_sum(net, x, y, plain)[0]
        source(net, x, y, step)
        noise = torch.cat([(p.grad * 7.0 - total[k]).flatten() for k, p in net.named_parameters()]).numpy()  # type: ignore[operator]
        assert has_scale(noise, share * bound)
        assert not has_scale(noise / 2, share * bound)
        assert not has_scale(noise, 5.0 * bound)
    assert source.event == dpa.GaussianDpEvent(5.0)
    source.noise = replace(source.noise, noise_multiplier=5.0)  # z where z_Δ is due
    with pytest.raises(RuntimeError, match="less noise"):
        _ = source.event
    assert source.clip.norm != source.start


def test_a_step_is_that_of_a_fixed_bound_which_was_known_before_it() -> None:
    net, x, y = nn.Linear(6, CLASSES), torch.rand(5, 6) * 9, torch.zeros(5, dtype=torch.int64)
    source, bounds = PrivateGradients(0.5, 2.0, 7.0, Stream.from_seed(1), MOVING), []
    for step in range(3):
        bounds.append(source.clip.norm)
        source(net, x, y, step)
        moved = torch.cat([p.grad.flatten() for p in net.parameters()])  # type: ignore[union-attr]
        fixed = PrivateGradients(bounds[-1], MOVING.gradient_noise(2.0), 7.0, Stream.from_seed(1))
        fixed(net, x, y, step)
        assert torch.equal(moved, torch.cat([p.grad.flatten() for p in net.parameters()]))  # type: ignore[union-attr]
    assert bounds[0] == source.start
    assert len(set(bounds)) == 3
    assert source.mark["clip_norm"] == 0.5


def test_the_quantile_is_tracked_on_gradients_of_known_norm() -> None:
    """A linear net at zero: a record's gradient has the norm √(1 − 1/classes) · ‖(x, 1)‖; it is not trained."""
    net = nn.Linear(1, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(0, 20, (500, 1))).float()
    y = torch.zeros(500, dtype=torch.int64)
    wanted = float(np.quantile(np.hypot(x.numpy(), 1) * 0.5**0.5, 0.7))
    source = PrivateGradients(100.0, 2.0, 500.0, Stream.from_seed(1), QuantileBound(0.7, 0.2, 25.0))
    trace = []
    for step in range(200):
        source(net, x, y, step)
        trace.append(source.clip.norm)
    assert np.mean(trace[100:]) == pytest.approx(wanted, rel=0.05)


def test_layers_of_their_own_and_too_little_noise_are_refused() -> None:
    with pytest.raises(TrainingError, match="one clip norm for the whole gradient"):
        PrivateGradients(Clip(1.0, by_layer=True), 1.0, 5.0, Stream.from_seed(0), MOVING)
    with pytest.raises(AccountingError, match="noise on the count above"):
        PrivateGradients(1.0, 6.0, 5.0, Stream.from_seed(0), MOVING)


def train(run: Run, moving: QuantileBound | None = MOVING, seed: int = 4) -> tuple[nn.Module, PrivateGradients]:
    net, stream = create("mlp", (5,), 3, 0), Stream.from_seed(seed)
    net.insert(2, nn.Dropout(0.1))  # type: ignore[operator]
    gradients = PrivateGradients(1.0, 1.0, 60.0, stream.child("noise"), moving)
    fit(
        net,
        Resident(blobs(), CPU),
        Poisson(0.2, stream.child("lots")),
        gradients,
        Recipe(steps=20, learning_rate=0.1),
        seed,
        run,
        named("none", 2),
        secret=stream.child("records"),
    )
    return net, gradients


def interrupt(folder: Path) -> None:
    def press(label: str, done: int, total: int) -> None:
        if done == 9:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(Run(progress=press, checkpoint=folder))


def test_a_resumed_run_goes_on_with_its_bound_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Also with copies, dropout and secret chance."""
    whole, gradients = train(Run())
    assert gradients.clip.norm != 1.0
    interrupt(tmp_path)
    resumed, again = train(Run(checkpoint=tmp_path, resume=True))
    assert again.clip.norm == gradients.clip.norm
    assert again.noise == gradients.noise
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("other", [None, QuantileBound(0.4, 0.2, 3.0), QuantileBound(0.5, 0.2, 4.0)])
def test_a_checkpoint_of_another_movement_is_refused(tmp_path: Path, other: QuantileBound | None) -> None:
    interrupt(tmp_path)
    with pytest.raises(TrainingError, match="this very run"):
        train(Run(checkpoint=tmp_path, resume=True), other)


def test_what_chance_does_to_records_is_secret() -> None:
    """A public seed and other secrets: other augmentations and dropout; the same secret: the same."""
    seen: list[list[float]] = []

    class Watching:
        mark: dict[str, object] = {}  # noqa: RUF012

        def state(self) -> dict[str, Tensor]:
            return {}

        def load_state(self, state: Any) -> None:
            raise AssertionError

        def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
            seen[-1] += [float(x.sum()), float(torch.rand(()))]

    def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.rand(x.shape, generator=generator)

    for secret in (None, None, Stream.from_seed(1), Stream.from_seed(1), Stream.from_seed(2), Stream.from_system()):
        seen.append([])
        lots = Poisson(0.2, Stream.from_seed(0))
        net, recipe = create("mlp", (5,), 3, 0), Recipe(steps=3, learning_rate=0.1)
        fit(net, Resident(blobs(), CPU), lots, Watching(), recipe, 0, Run(), jitter, secret=secret)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert len({tuple(one) for one in seen}) == 4

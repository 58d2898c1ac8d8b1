"""Checks that no single test makes: of a whole block, of noise over many steps, of what a release executes."""

from __future__ import annotations

from collections.abc import Callable

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock.accounting import compute_epsilon
from airlock.accounting.epsilon import OTHERS
from airlock.mechanisms import Clip, Stream
from airlock.plugins import Plugin
from airlock.training import PrivateGradients
from airlock.training.distributed import ALONE, Group
from airlock.training.per_sample import use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.engine import Lot, use_for
from tests.faults.fault import Plant
from tests.methods import test_missing_records as missing
from tests.methods.features.test_noised import channel, protected
from tests.training import test_distributed, test_sharding
from tests.training.per_sample.odd_nets import vectors
from tests.training.per_sample.test_leave_one_out import CLIP, LOT, moved


def one_record_moves_a_full_block_by_its_bound() -> None:
    """Whichever place it has, in a network with several tensors, biases among them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    size = use_of(net, vectors(1), 1, LOT).size
    x, y = vectors(size), torch.arange(size) % 3
    far = moved(net, x, y, Clip(CLIP))
    assert far <= 1, f"one record moves the sum by {far:.3g} times its bound"
    assert far > 0.9, "no record is long enough to be clipped"


class Places(nn.Module):
    """A dense layer at two places of a record, wide enough for norms by Gram matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(40, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.body(x)).mean(1))
        return logits


def the_engine_trusts_its_book_keeping() -> None:
    """Its own check, in every mode: against ordinary backward passes over single records."""
    for mode in (True, False):
        torch.manual_seed(0)
        use = use_of(Places().train(mode), torch.rand(1, 2, 40), 1, LOT)
        assert isinstance(use.engine, BookKeeper), f"the engine's check: {use.reason}"


def the_engine_trusts_its_book_keeping_of_people() -> None:
    """Its own check, on made-up people with several rows, at one position and at two."""
    for net, x in ((nn.Linear(40, 3), torch.rand(1, 40)), (Places(), torch.rand(1, 2, 40))):
        torch.manual_seed(0)
        use = use_for(net, x, 1, Lot(LOT, 2 * LOT, 3))
        assert isinstance(use.engine, BookKeeper), f"the engine's check: {use.reason}"


def noise_is_independent_between_coordinates_and_steps() -> None:
    """Of 600 steps on empty lots, each against itself and the step after it: no correlation above six deviations."""
    steps, net = 600, nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 3, bias=False))
    source = PrivateGradients(0.5, 2.0, 7.0, Stream.from_seed(1))
    found = np.empty((steps, 24))
    for step in range(steps):
        source(net, torch.rand(0, 3), torch.zeros(0, dtype=torch.int64), step)
        found[step] = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).numpy() * 7.0
    limit = 6 / np.sqrt(steps)
    within, later = found.T @ found / steps - np.eye(24), found[:-1].T @ found[1:] / steps
    assert np.abs(within).max() < limit, "coordinates of one step share noise, or it has another size"
    assert np.abs(later).max() < limit, "two steps share noise"


def as_many_noisy_steps_as_accounted() -> None:
    """Counted where the noise is drawn, against the events on the release's guarantee."""
    drawn, noisy = [], PrivateGradients._noisy

    def counted(self: PrivateGradients, total: Tensor, step: int) -> Tensor:
        drawn.append(step)
        return noisy(self, total, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateGradients, "_noisy", counted)
        made = released("weights/gaussian")
    accounted = made.guarantee.events
    parts = accounted.events if isinstance(accounted, dpa.ComposedDpEvent) else [accounted]  # one is a comparison
    (steps,) = (part for part in parts if isinstance(part, dpa.SelfComposedDpEvent))
    assert len(drawn) == steps.count, f"{len(drawn)} noisy steps, {steps.count} of them accounted for"


def released(name: str) -> missing.Release:
    """A release of a few steps, which is refused where it spent something else than was planned."""
    asked = missing.config(name)
    split = missing.divide(missing.FACTS, missing.digits(), None, asked.split, asked.seed)
    return missing.release(name, split, {})


def every_row_has_noise_of_its_own() -> None:
    """Equal features in every row."""
    found, _ = protected(channel(), np.full(20, 2))
    assert len(np.unique(found, axis=0)) == 20, "rows share their noise"


def a_foreign_accountant_lowers_no_epsilon() -> None:
    """One that says half of what dp-accounting says."""
    event = dpa.GaussianDpEvent(2.0)
    own = compute_epsilon(event, 1e-5).epsilon
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OTHERS._table, "half", Plugin("other.place:half", "other-package 1.0"))
        patch.setitem(OTHERS._loaded, "half", lambda event, delta: own / 2)
        stated = compute_epsilon(event, 1e-5, accountant="half").epsilon
    assert stated >= own, f"ε = {stated:.3g} is stated where dp-accounting bounds {own:.3g}"


in_every_process: Plant | None = None  # what a fault plants in the processes of a group, each of which has its own code


def _planted(group: Group, plant: Plant | None, task: Callable[[Group], Tensor]) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        if plant is not None:
            plant(patch)
        return task(group)


def two_processes_with_shards_train_the_network_of_one() -> None:
    """And every coordinate has noise of its own: first on empty lots, then on lots of records."""
    both = test_distributed.Pair(sharded=True)
    try:
        noise, _ = both(_planted, in_every_process, test_distributed.pure_noise)
        trained = both(_planted, in_every_process, test_sharding.train)
    finally:
        both.close()
    assert isinstance(noise, torch.Tensor), noise
    assert len(torch.unique(noise)) > 0.99 * len(noise), "shards share their noise"
    size = float(noise.var()) / (test_distributed.CLIP * test_distributed.NOISE) ** 2
    assert size == pytest.approx(1.0, abs=0.03), f"{size:.3g} times the variance that is accounted for"
    alone = test_sharding.train(ALONE)
    for found in trained:
        assert isinstance(found, torch.Tensor), found
        assert torch.allclose(found, alone, atol=1e-4), "other weights than those of one process"


def two_processes_add_the_noise_once() -> None:
    """Two real processes on empty lots."""
    both = test_distributed.Pair()
    try:
        first, second = both(_planted, in_every_process, test_distributed.pure_noise)
    finally:
        both.close()
    assert torch.equal(first, second)
    size = float(first.var()) / (test_distributed.CLIP * test_distributed.NOISE) ** 2
    assert size == pytest.approx(1.0, abs=0.03), f"{size:.3g} times the variance that is accounted for"

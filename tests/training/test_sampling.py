"""Samplers: Poisson semantics, and the event that belongs to them."""

from __future__ import annotations

import dp_accounting as dpa
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airlock.mechanisms import Stream
from airlock.training import Poisson, Shuffled


def test_poisson_draws_each_record_with_the_same_probability() -> None:
    sampler, counts, sizes = Poisson(0.2, Stream.from_seed(0)), np.zeros(50), []
    for step in range(2000):
        lot = sampler.draw(step, 50)
        counts[lot] += 1
        sizes.append(len(lot))
    assert np.abs(counts / 2000 - 0.2).max() < 0.05
    assert abs(np.mean(sizes) - 10) < 0.3
    assert abs(np.var(sizes) - 8) < 1.2  # binomial: a fixed lot size would have no variance


def test_lots_may_be_empty_or_whole() -> None:
    assert len(Poisson(1e-12, Stream.from_seed(0)).draw(0, 10)) == 0
    assert np.array_equal(Poisson(1.0, Stream.from_seed(0)).draw(0, 10), np.arange(10))
    assert len(Poisson(0.5, Stream.from_seed(0)).draw(0, 0)) == 0


def test_the_event_is_the_samplers() -> None:
    noise = dpa.GaussianDpEvent(1.0)
    assert Poisson(0.1, Stream.from_seed(0)).event(noise) == dpa.PoissonSampledDpEvent(0.1, noise)
    assert Poisson(1.0, Stream.from_seed(0)).event(noise) == noise
    assert not hasattr(Shuffled(10, 0), "event")


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_an_epoch_of_shuffled_batches_holds_every_record_once(batch: int, records: int, epoch: int) -> None:
    sampler, steps = Shuffled(batch, 3), -(-records // batch)
    drawn = np.concatenate([sampler.draw(epoch * steps + i, records) for i in range(steps)])
    assert np.array_equal(np.sort(drawn), np.arange(records))

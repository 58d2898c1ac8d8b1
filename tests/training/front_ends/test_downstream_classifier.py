"""The receiver's classifier learns from maps of any size, and of any scale."""

from __future__ import annotations

import numpy as np
import pytest

from airlock.data import Records
from airlock.training import Run, count_correct
from airlock.training.front_ends.downstream_classifier import learn


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_maps_are_learnt_in_a_few_epochs(scale: float) -> None:
    """By SGD at the rate of PrivyNet, with momentum, such a network ended at guessing on MNIST."""
    chance = np.random.default_rng(0)
    patterns = chance.normal(size=(4, 8, 7, 7))
    y = chance.integers(0, 4, 1200)
    x = (scale * (patterns[y] + 2 * chance.normal(size=(1200, 8, 7, 7)))).astype(np.float32)
    net = learn(Records(x[:1000], y[:1000]), 4, None, epochs=3, seed=0, run=Run())
    assert count_correct(net, Records(x[1000:], y[1000:])) > 160

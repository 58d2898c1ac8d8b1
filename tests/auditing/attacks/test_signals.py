"""Signals are what they are called, however large the logits are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logit, softmax

from airlock.auditing.attacks.signals import as_scores, ask, from_probabilities, loss, probability_of, scaled_logit
from airlock.errors import DataError
from airlock.training import predict
from tests.auditing.attacks.toy import world

LOGITS = arrays(np.float64, (3, 5, 4), elements=st.floats(-8, 8))
Y = np.array([0, 3, 1, 2, 2])


def own(values: np.ndarray) -> np.ndarray:
    return np.stack([values[..., i, y] for i, y in enumerate(Y)], -1)


@given(LOGITS, st.floats(-50, 50))
def test_a_constant_on_the_logits_changes_nothing(z: np.ndarray, constant: float) -> None:
    for signal in (scaled_logit, probability_of, loss):
        assert np.allclose(signal(z + constant, Y), signal(z, Y), atol=1e-9)


@given(LOGITS)
def test_signals_equal_their_definitions(z: np.ndarray) -> None:
    p = own(softmax(z, axis=-1))
    assert np.allclose(scaled_logit(z, Y), logit(p), atol=1e-8)
    assert np.allclose(probability_of(z, Y), p, atol=1e-12)
    assert np.allclose(loss(z, Y), -np.log(p), atol=1e-10)
    assert np.allclose(scaled_logit(from_probabilities(softmax(z, axis=-1)), Y), logit(p), atol=1e-8)


@given(LOGITS, st.permutations(range(5)))
def test_permuted_records_have_permuted_signals(z: np.ndarray, order: list[int]) -> None:
    assert np.array_equal(scaled_logit(z[:, order], Y[order]), scaled_logit(z, Y)[:, order])


def test_a_probability_that_rounds_to_one_still_has_a_logit() -> None:
    z = np.array([[200.0, 0.0, 0.0], [-200.0, 0.0, 0.0]])
    assert scaled_logit(z, np.array([0, 0])) == pytest.approx([200 - np.log(2), -200 - np.log(2)], abs=1e-12)
    assert np.isfinite(scaled_logit(from_probabilities(np.array([[1.0, 0.0]])), np.array([0]))).all()


def test_asking_in_blocks_gives_what_a_network_predicts() -> None:
    here = world()
    found = ask(here.target.eval(), here.pool, block=37)
    assert np.allclose(found, predict(here.target, here.pool).numpy(), atol=1e-5)
    assert ask(lambda x: torch.ones(len(x)), here.pool, block=37).shape == (len(here.pool),)


def test_scores_need_both_sides() -> None:
    with pytest.raises(DataError, match="members and others"):
        as_scores("x", "black-box", np.zeros(3), np.ones(3, bool), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="two classes"):
        scaled_logit(np.zeros((2, 1)), np.zeros(2, np.int64))

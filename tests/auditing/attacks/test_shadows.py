"""The design of shadow models is balanced, their logits are their own, and a scored record is never a known one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.auditing.attacks import Shadows, balanced, subsets
from airlock.auditing.attacks.shadows import halves, refuse_overlap
from airlock.data import Records
from airlock.errors import ConfigError, DataError
from airlock.training import predict
from tests.auditing.attacks.toy import MODELS, POOL, world


@given(st.integers(1, 12), st.integers(2, 60), st.integers(0, 9))
def test_each_record_is_in_exactly_half_of_the_models(pairs: int, records: int, seed: int) -> None:
    mask = balanced(2 * pairs, records, seed)
    assert (mask.sum(0) == pairs).all()
    assert set(mask.sum(1)) <= {records // 2, -(-records // 2)}
    for half in halves(2 * pairs):
        assert (2 * mask[half].sum(0) == half.sum()).all()
    assert np.array_equal(mask, balanced(2 * pairs, records, seed))
    assert not halves(6)


def test_subsets_have_their_size() -> None:
    mask = subsets(7, 50, 20, 0)
    assert (mask.sum(1) == 20).all()
    assert len({row.tobytes() for row in mask}) == 7


@pytest.mark.parametrize("models", [0, 1, 7])
def test_an_odd_design_is_refused(models: int) -> None:
    with pytest.raises(ConfigError, match="even number"):
        balanced(models, 10, 0)


@pytest.mark.parametrize("size", [0, 10])
def test_a_shadow_model_without_others_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="not trained on"):
        subsets(2, 10, size, 0)


def test_shadows_remember_their_own_records() -> None:
    here = world()
    assert here.shadows.logits.shape == (MODELS, POOL, 10)
    right = here.shadows.logits.argmax(2) == here.pool.y
    assert right[here.shadows.inside].mean() > 0.95 > 0.85 > right[~here.shadows.inside].mean()
    alone = predict(here.models.model(5), here.pool).numpy()
    assert np.allclose(here.shadows.logits[5], alone, atol=1e-4)


def test_records_in_both_are_refused_by_content() -> None:
    rng = np.random.default_rng(0)
    one, two = (Records(rng.random((20, 1, 3, 3)).astype(np.float32), np.zeros(20, np.int64)) for _ in range(2))
    refuse_overlap(one, two, "others")
    mixed = Records(np.concatenate([two.x, one.x[4:5]]), np.concatenate([two.y, one.y[4:5] + 1]))
    with pytest.raises(DataError, match="1 in both"):
        refuse_overlap(one, mixed, "others")


def test_shadows_of_other_records_are_refused() -> None:
    with pytest.raises(DataError, match="4 models on 5 records"):
        Shadows(np.zeros((4, 5), bool), np.zeros((4, 6, 2), np.float32), np.zeros(5, np.int64))

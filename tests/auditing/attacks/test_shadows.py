"""The design of shadow models is balanced, their logits are their own, and a scored record is never a known one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from airlock.auditing.attacks import (
    AnsweredRecords,
    Shadows,
    ShadowSettings,
    balanced,
    shadow_attack,
    subsets,
    train_shadows,
)
from airlock.auditing.attacks.shadows import _lessons, halves
from airlock.auditing.result import Scores
from airlock.data import Records
from airlock.errors import ConfigError, DataError
from airlock.training import predict
from airlock.training.ensembles.ensemble import makes
from tests.auditing.attacks.toy import MODELS, POOL, RECIPE, RUN, World, at_chance, auc, beats_chance, sides, world


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


def test_shadows_of_other_records_are_refused() -> None:
    with pytest.raises(DataError, match="4 models on 5 records"):
        Shadows(np.zeros((4, 5), bool), np.zeros((4, 6, 2), np.float32), np.zeros(5, np.int64))


# The shadow-model attack.

SETTINGS = ShadowSettings(epochs=10, repeats=2)


@cache
def elsewhere() -> Shadows:
    """Shadows of records that the target never met, nor those that score it; what `stranger` saw is left out too."""
    known = world().elsewhere.take(np.arange(200, 800))
    inside = subsets(8, len(known), 200, 5)
    shadows, _ = train_shadows(makes("mlp", (1, 8, 8), 10, 5), known, inside, RECIPE, 5, RUN, batch_size=64)
    return shadows


def attack(here: World, net: nn.Module, seed: int = 0) -> Scores:
    shadows = elsewhere()
    members, others = (AnsweredRecords(side, predict(net, side).numpy()) for side in sides(here))
    return shadow_attack(shadows, members, others, seed, RUN, SETTINGS)


def test_it_finds_what_a_net_remembers_and_nothing_else() -> None:
    here = world()
    found = attack(here, here.target)
    assert beats_chance(found), auc(found)
    assert (found.members > 0).mean() > (found.others > 0).mean() + 0.1
    assert at_chance(attack(here, here.stranger))
    assert found.member_repeats is not None
    assert np.array_equal(found.member_repeats[0], found.members)
    assert not np.array_equal(found.member_repeats[0], found.member_repeats[1])


def test_one_network_for_all_classes_is_not_told_the_class() -> None:
    here = world()
    shadows = elsewhere()
    members, others = (AnsweredRecords(side, predict(here.target, side).numpy()) for side in sides(here))
    lied = AnsweredRecords(Records(members.records.x, (members.records.y + 1) % 10), members.logits)
    settings = ShadowSettings(epochs=2, repeats=1, by_class=False)
    plain, moved = (shadow_attack(shadows, m, others, 0, RUN, settings) for m in (members, lied))
    assert np.array_equal(plain.members, moved.members)
    assert plain.name == "shadow models, one network"
    assert plain.member_repeats is None


def test_a_constant_on_the_logits_changes_nothing() -> None:
    here = world()
    shadows = elsewhere()
    members, others = (AnsweredRecords(side, predict(here.target, side).numpy()) for side in sides(here))
    moved = AnsweredRecords(members.records, members.logits + 2.0)
    plain, shifted = (shadow_attack(shadows, m, others, 0, RUN, SETTINGS) for m in (members, moved))
    assert np.allclose(plain.members, shifted.members, atol=1e-3)


def test_it_learns_from_as_many_members_as_others() -> None:
    shadows = elsewhere()
    answers, inside, classes = _lessons(shadows, 0)
    assert inside.sum() == (~inside).sum() == shadows.inside.sum()
    assert np.allclose(answers.sum(1), 1, atol=1e-5)
    assert set(classes) == set(range(10))


def test_a_class_without_lessons_is_refused() -> None:
    shadows = elsewhere()
    without = shadows.take(np.flatnonzero(shadows.y != 3))
    members, others = (AnsweredRecords(side, predict(world().target, side).numpy()) for side in sides(world()))
    with pytest.raises(DataError, match="a class without such answers"):
        shadow_attack(without, members, others, 0, RUN, SETTINGS)

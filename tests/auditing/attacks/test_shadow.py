"""The shadow-model attack: what it finds, what it refuses, and that each class has its own network."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from torch import nn

from airlock.auditing.attacks import Answers, Shadows, ShadowSettings, shadow_attack, subsets, train_shadows
from airlock.auditing.attacks.shadow import _lessons
from airlock.auditing.scores import Scores
from airlock.data import Records
from airlock.errors import DataError
from airlock.training import predict
from airlock.training.ensembles.ensemble import makes
from tests.auditing.attacks.toy import RECIPE, RUN, World, at_chance, auc, beats_chance, sides, world

SETTINGS = ShadowSettings(epochs=10, repeats=2)


@cache
def elsewhere() -> tuple[Records, Shadows]:
    """Shadows of records that the target never met, nor those that score it; what `stranger` saw is left out too."""
    known = world().elsewhere.take(np.arange(200, 800))
    inside = subsets(8, len(known), 200, 5)
    shadows, _ = train_shadows(makes("mlp", (1, 8, 8), 10, 5), known, inside, RECIPE, 5, RUN, batch_size=64)
    return known, shadows


def attack(here: World, net: nn.Module, seed: int = 0) -> Scores:
    known, shadows = elsewhere()
    members, others = (Answers(side, predict(net, side).numpy()) for side in sides(here))
    return shadow_attack(shadows, known, members, others, seed, RUN, SETTINGS)


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
    known, shadows = elsewhere()
    members, others = (Answers(side, predict(here.target, side).numpy()) for side in sides(here))
    lied = Answers(Records(members.records.x, (members.records.y + 1) % 10), members.logits)
    settings = ShadowSettings(epochs=2, repeats=1, by_class=False)
    plain, moved = (shadow_attack(shadows, known, m, others, 0, RUN, settings) for m in (members, lied))
    assert np.array_equal(plain.members, moved.members)
    assert plain.name == "shadow models, one network"
    assert plain.member_repeats is None


def test_a_constant_on_the_logits_changes_nothing() -> None:
    here = world()
    known, shadows = elsewhere()
    members, others = (Answers(side, predict(here.target, side).numpy()) for side in sides(here))
    moved = Answers(members.records, members.logits + 2.0)
    plain, shifted = (shadow_attack(shadows, known, m, others, 0, RUN, SETTINGS) for m in (members, moved))
    assert np.allclose(plain.members, shifted.members, atol=1e-3)


def test_a_scored_record_among_the_shadows_is_refused() -> None:
    here = world()
    known, shadows = elsewhere()
    members, others = (Answers(side, predict(here.target, side).numpy()) for side in sides(here))
    caught = Answers(known.take(np.arange(3)), members.logits[:3])
    for pair in ((members, caught), (caught, others)):
        with pytest.raises(DataError, match="3 in both"):
            shadow_attack(shadows, known, *pair, 0, RUN, SETTINGS)


def test_it_learns_from_as_many_members_as_others() -> None:
    _, shadows = elsewhere()
    answers, inside, classes = _lessons(shadows, 0)
    assert inside.sum() == (~inside).sum() == shadows.inside.sum()
    assert np.allclose(answers.sum(1), 1, atol=1e-5)
    assert set(classes) == set(range(10))


def test_a_class_without_lessons_is_refused() -> None:
    _, shadows = elsewhere()
    without = shadows.take(np.flatnonzero(shadows.y != 3))
    known = elsewhere()[0].take(np.flatnonzero(shadows.y != 3))
    members, others = (Answers(side, predict(world().target, side).numpy()) for side in sides(world()))
    with pytest.raises(DataError, match="a class without"):
        shadow_attack(without, known, members, others, 0, RUN, SETTINGS)

"""Attacks where the unit is a person: one coin, one score and one slot for each, whatever the number of records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from airlock.auditing import paid_attacks
from airlock.auditing.attacks.external import OTHERS
from airlock.auditing.attacks.invert import InvertSettings
from airlock.auditing.features.attack import FeatureAttackSettings
from airlock.auditing.features.attack import attack as attack_features
from airlock.auditing.features.feature_pipeline import FeaturePipeline, generator_on, push
from airlock.auditing.members import FEWEST, GROUPED, AttackSet, by_person, draw, units_of
from airlock.auditing.paid_auc import slotted_auc
from airlock.auditing.result import Scores
from airlock.auditing.run import AuditSettings, _scored, attack, attack_answers, attack_quickly
from airlock.auditing.target import Target
from airlock.config import ReleaseConfig, SplitConfig, from_table
from airlock.data import Facts, Records, Split, divide, people
from airlock.methods.interface import ONE_ANSWER, Answerer, Answers, Interface
from airlock.methods.rows import keep_people
from airlock.training import Run
from tests.auditing.attacks.test_external import Sure
from tests.auditing.attacks.toy_features import CPU, SHAPE, conv_front, pictures
from tests.conftest import Plug

FRACTIONS = SplitConfig(test=0.1, holdout=0.3)
FACTS = Facts("made up", (2,), ("0", "1"), 2000, None, "made up", people=400, records_per_person=4)


def pool(count: int = 400) -> Records:
    """1 to 50 visits each; nobody's are adjacent."""
    ids = [f"{who}" for who in range(count) for _ in range(50 if who % 50 == 0 else 1 + who % 5)]
    chance = np.random.default_rng(0)
    x = chance.random((len(ids), 2), np.float32)
    return Records(x, (x[:, 0] > 0.5).astype(np.int64), people.number(ids)).take(chance.permutation(len(ids)))


def split_of(seed: int = 0, facts: Facts = FACTS) -> Split:
    return divide(facts, pool(), None, FRACTIONS, seed)


def drawn(seed: int = 0, fractions: SplitConfig = FRACTIONS) -> AttackSet:
    found = draw(divide(FACTS, pool(), None, fractions, seed), fractions, seed, 10_000)
    assert found is not None
    return found


def test_equally_many_people_take_part_with_at_most_the_declared_number_of_records() -> None:
    attack_set = drawn()
    assert attack_set.members.units == attack_set.others.units < 120
    assert len(attack_set.game.members) == attack_set.members.units
    for side in (attack_set.members, attack_set.others, attack_set.rest):
        assert side.person is not None
        assert np.unique(side.person, return_counts=True)[1].max() == 4
    everybody = [set(side.person.tolist()) for side in (attack_set.members, attack_set.others, attack_set.rest)]  # type: ignore[union-attr]
    assert sum(map(len, everybody)) == len(set().union(*everybody))


def test_the_coins_are_fair_between_people() -> None:
    """Given who takes part in a half, the number of members is binomial."""
    spread = []
    for seed in range(100):
        game = drawn(seed).game
        for half in (1, 2):
            a, b = (int((own == half).sum()) for own in (game.members, game.others))
            spread += [(a - b) / (a + b) ** 0.5] if a + b else []
    assert abs(np.mean(spread)) < 4 / len(spread) ** 0.5
    assert 0.7 < np.var(spread) < 1.35


def test_scores_of_a_person_are_averaged_over_her_records_alone() -> None:
    attack_set = drawn()
    chance = np.random.default_rng(1)
    mine, theirs = (chance.normal(size=len(side)) for side in (attack_set.members, attack_set.others))
    raw = Scores(
        "one", "?", "black-box", mine, theirs, attack_set.members.y, attack_set.others.y,
        np.stack([mine, 2 * mine]), np.stack([theirs, 2 * theirs]),
    )  # fmt: skip
    found = attack_set.pooled(raw)
    whose = attack_set.members.person
    assert whose is not None
    order = list(dict.fromkeys(whose.tolist()))
    np.testing.assert_allclose(found.members, [mine[whose == who].mean() for who in order])
    assert found.member_repeats is not None
    np.testing.assert_allclose(found.member_repeats[1], 2 * found.members)
    assert len(found.member_classes) == len(found.members)
    changed = mine.copy()
    changed[whose == order[3]] = 100.0
    again = by_person(changed, attack_set.members)
    assert (again != found.members).tolist() == [i == 3 for i in range(len(order))]


def test_a_score_that_is_no_number_ranks_lowest() -> None:
    records = Records(np.zeros((5, 1)), np.zeros(5, np.int64), np.array([1, 1, 2, 2, 3]))
    found = by_person(np.array([math.nan, 1.0, -math.inf, 3.0, 4.0]), records)
    assert found.tolist() == [-math.inf, -math.inf, 4.0]


def test_records_of_one_person_are_in_a_shadow_model_together() -> None:
    side = drawn().members
    assert side.person is not None
    turn = units_of(side)
    assert turn.max() + 1 == side.units
    for who in range(5):
        assert len(set(side.person[turn == who].tolist())) == 1


class Linear(nn.Module):
    """A network of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.line(x)


def test_where_people_stay_together_but_records_are_the_unit_no_bound_is_stated() -> None:
    facts = replace(FACTS, people=None, records_per_person=1, grouped=True)
    split = split_of(facts=facts)
    found = draw(split, FRACTIONS, 0, 10_000)
    assert found is not None
    assert not found.game.members.any()
    audit, _ = attack_quickly(Linear().eval(), ("0", "1"), 1e-5, split, FRACTIONS, 0)
    assert GROUPED in audit.not_tested
    assert all(attack.epsilon_lower_bound == 0 for attack in audit.attacks)


# Paid attacks.


def config() -> ReleaseConfig:
    table = {"channel": "answers", "method": "head", "data": "digits", "epsilon": 2.0, "delta": 1e-4}
    return from_table({**table, "attack_share": 0.2, "split": FRACTIONS.model_dump()})


def test_one_person_changes_one_slot() -> None:
    records, key = pool(), bytes(32)
    for count in (5, 100, 1000):
        kept = records.take(keep_people(records, count, key))
        assert kept.units == min(count, 400)
        for gone in list(dict.fromkeys(records.person.tolist()))[:20]:  # type: ignore[union-attr]
            less = records.take(np.flatnonzero(records.person != gone))
            again = less.take(keep_people(less, count, key))
            before, after = (set(own.person.tolist()) for own in (kept, again))  # type: ignore[union-attr]
            assert len(before - after) == (gone in before)
            assert len(after - before) <= 1


def test_slots_are_for_people() -> None:
    assert max(paid_attacks.slots(config(), FACTS)) < 400


@pytest.mark.parametrize("side", ["private", "holdout"])
def test_one_person_moves_an_attack_figure_by_what_is_accounted_for(side: str) -> None:
    """With scores that are as different as can be; if every record had a slot, fifty visits would move it further."""
    split = split_of()
    m, n = paid_attacks.slots(config(), FACTS)
    records = getattr(split, side)
    whose, times = np.unique(records.person, return_counts=True)
    rest = records.take(np.flatnonzero(records.person != whose[times.argmax()]))

    def auc(changed: Records, value: float) -> float:
        parts = {"private": split.private, "holdout": split.holdout, side: changed}
        scores = {
            name: by_person(np.full(len(own), value if name == side else 0.0), own)
            for name, own in ((name, part.take(keep_people(part, k, bytes(32)))) for (name, part), k in zip(
                parts.items(), (m, n), strict=True))
        }  # fmt: skip
        return slotted_auc(scores["private"], scores["holdout"], m, n)

    moved = abs(auc(records, 1.0) - auc(rest, 1.0))
    assert moved <= max(1 / m, 1 / n) + 1e-12


# Every attack is on people.


def whole_attack(split: Split, *others: str, fractions: SplitConfig = FRACTIONS) -> tuple[Any, Any]:
    torch.manual_seed(0)
    target = Target(Linear().eval(), lambda seed: Linear(), ("0", "1"), 1e-5)
    asked = AuditSettings(shadows=4, epochs=1, queries=2, attacks=others)
    return attack(target, split, fractions, 0, asked, Run())


def test_every_attack_on_a_network_scores_people(plug: Plug) -> None:
    plug(OTHERS, "sure", Sure)
    facts, fractions = replace(FACTS, records=5000, people=1000), SplitConfig(test=0.25, holdout=0.3)
    split = divide(facts, pool(1000), None, fractions, 0)
    attack_set = draw(split, fractions, 0, 10_000)
    assert attack_set is not None
    audit, kept = whole_attack(split, "sure", fractions=fractions)
    count = attack_set.members.units
    assert count < len(attack_set.members) / 2, "most people have several records"
    assert {one.name.partition(" (")[0] for one in audit.attacks} == {
        "sure",
        "loss threshold", "gradient norm", "label only, noise", "shadow models",
        "LiRA, online", "LiRA, offline", "BaVarIA, online", "RMIA, online", "RMIA, offline", "quantile regression",
    }  # fmt: skip
    assert {(one.members, one.non_members) for one in audit.attacks} == {(count, count)}
    assert {len(scores) for scores in kept["attack-scores"].values()} == {count}


def test_equal_records_of_two_people_do_not_stop_the_shadow_attack() -> None:
    """Nobody is in two parts; but where columns have few values, a test person and a member have equal records."""
    every = pool()
    coarse = replace(every, x=np.round(every.x, 1))
    split = divide(FACTS, coarse, None, FRACTIONS, 0)
    audit, _ = whole_attack(split)
    assert "shadow models" in {one.name for one in audit.attacks}


def test_without_independent_coins_not_even_a_perfect_score_gives_a_bound() -> None:
    facts = replace(FACTS, people=None, records_per_person=1, grouped=True)
    found = draw(split_of(facts=facts), FRACTIONS, 0, 10_000)
    assert found is not None
    sides = np.ones(len(found.members)), np.zeros(len(found.others))
    audit, _ = _scored(
        [Scores("all", "?", "black-box", *sides, found.members.y, found.others.y)], 1e-5, ("0", "1"), (), found
    )
    assert (audit.attacks[0].value, audit.attacks[0].epsilon_lower_bound, audit.attacks[0].could_refute) == (1, 0, 0)


class Counting(Answerer):
    """Counts what it is asked, and says 0."""

    def __init__(self, units: int | None) -> None:
        super().__init__(Interface("label", (2,), ("0", "1"), units, ONE_ANSWER, {}))
        self.asked = 0

    def answer(self, x: Any, reservation: Any, stream: Any) -> Answers:
        """The first class."""
        self.asked += len(x)
        return Answers(np.zeros(len(x), np.int64))


@pytest.mark.parametrize("units", [1, 3, 6, 100, None])
def test_an_attack_on_a_person_asks_no_more_than_the_whole_budget(units: int | None) -> None:
    """About all records of a person together: whoever asks about each as often as the budget allows asks too often."""
    count, answerer = 2 * drawn().members.units, Counting(units)
    audit, _ = attack_answers(answerer, 1e-5, split_of(), FRACTIONS, 0)
    assert audit.attacks[0].members + audit.attacks[0].non_members == count
    assert 0 < answerer.asked <= (units or 8 * 4) * count
    if units == 100:
        assert answerer.asked > 8 * count  # several records each, eight times
    again = Counting(units)
    audit, _ = attack_answers(again, 1e-5, split_of(), FRACTIONS, 0, AuditSettings(queries=16))
    assert again.asked <= len(audit.attacks) * (units or 17 * 4) * count


# Attacks on features.

PICTURES = Facts("drawn", SHAPE, tuple("abcd"), 1200, None, "Drawn.", people=400, records_per_person=3)
PARTS = SplitConfig(public=0.05, test=0.2, holdout=0.35)


def of_pictures(copies: int = 1) -> Split:
    """People with one to five pictures, or with several copies of one."""
    if copies > 1:
        whose = np.repeat(np.arange(400), copies)
        drawn_once = pictures(400, 5)
        records = drawn_once.take(whose)
    else:
        whose = np.repeat(np.arange(400), 1 + np.arange(400) % 5)
        records = pictures(len(whose), 5)
    known = replace(records, person=people.number([f"{one}" for one in whose]))
    return divide(PICTURES, known, None, PARTS, 0)


def attacked(split: Split, sigma: float) -> tuple[Any, Any]:
    pipeline = FeaturePipeline(conv_front(), clip=1.0, sigma=sigma)
    pairs = push(pipeline, split.private, CPU)
    left = [(pipeline.noisy(pairs.clean, generator_on(CPU, 1)).numpy(), pairs.y.numpy())]
    few = FeatureAttackSettings(
        known=30, images=FEWEST, net=False, attribute_steps=5, shown=2,
        invert=InvertSettings(steps=3, variation=(0.01,), learning_rate=0.1, restarts=0),
    )  # fmt: skip
    return attack_features(pipeline, left, split, PARTS, 1e-5, 0, few)


def test_attacks_on_features_look_people_up_and_rebuild_a_picture_of_each() -> None:
    audit, kept = attacked(of_pictures(), 0.5)
    (found,) = audit.attacks
    assert (found.members, found.non_members) == (FEWEST, FEWEST)
    assert {len(scores) for scores in kept["attack-scores"].values()} == {FEWEST}
    assert {one.images for one in audit.features.reconstructions} == {FEWEST}
    assert [one.records for one in audit.features.attributes] == [FEWEST]


def test_copies_of_a_persons_picture_make_no_interval_narrower() -> None:
    """Four copies are no four people: what is independent is counted once."""
    once, often = (attacked(of_pictures(copies), 0.0)[0] for copies in (2, 3))
    assert (once.attacks[0].low, once.attacks[0].high) == (often.attacks[0].low, often.attacks[0].high)
    assert once.features == often.features

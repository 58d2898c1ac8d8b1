"""Attacks where the unit is a person: one coin, one score and one slot for each, whatever the number of records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from airlock.auditing import paid_attacks
from airlock.auditing.members import AttackSet, by_person, draw, units_of
from airlock.auditing.result import Scores
from airlock.auditing.run import GROUPED, attack_quickly
from airlock.config import ReleaseConfig, SplitConfig, from_table
from airlock.data import Facts, Records, Split, divide, people
from airlock.methods.rows import keep_people

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
    assert attack_set.game is not None
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
        assert game is not None
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
    assert found.game is None
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
        return paid_attacks.slotted_auc(scores["private"], scores["holdout"], m, n)

    moved = abs(auc(records, 1.0) - auc(rest, 1.0))
    assert moved <= max(1 / m, 1 / n) + 1e-12

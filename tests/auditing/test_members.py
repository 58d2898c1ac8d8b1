"""Who counts for ε: records whose coins are fair and independent, whatever the split and the numbers are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airlock.auditing.members import AttackSet, draw, too_few
from airlock.auditing.one_run_audit import membership_bound
from airlock.config import SplitConfig
from airlock.data import Facts, Records
from airlock.data.split import divide

PLAIN = SplitConfig(test=0.1, holdout=0.25)
EVEN = SplitConfig(test=0.1, holdout=0.45)
KEPT_OUT = SplitConfig(public=0.3, test=0.1, holdout=0.2, public_without=("1",))
FACTS = Facts("made up", (1,), ("0", "1"), 1200, None, "made up")


def sides_of(
    fractions: SplitConfig, seed: int, most: int = 10_000, facts: Facts = FACTS, pool: int = 1200
) -> AttackSet:
    x = np.arange(pool, dtype=np.float32)[:, None]
    split = divide(facts, Records(x, np.arange(pool) % 2), None, fractions, seed)
    found = draw(split, fractions, seed, most)
    assert found is not None
    return found


@pytest.mark.parametrize("fractions", [PLAIN, EVEN, KEPT_OUT])
def test_the_coins_of_the_game_are_fair_and_independent(fractions: SplitConfig) -> None:
    """Given who takes part in a half, the number of members is binomial; with equal numbers it would be fixed."""
    spread, halves, sizes = [], [], []
    for seed in range(300):
        attack_set = sides_of(fractions, seed)
        game = attack_set.game
        assert game is not None
        counts = [[int((own == half).sum()) for own in (game.members, game.others)] for half in (1, 2)]
        if not np.sum(counts):
            continue
        sizes.append(np.sum(counts) / (2 * game.expected))
        spread += [(a - b) / (a + b) ** 0.5 for a, b in counts]
        halves.append(spread[-2] * spread[-1])
    assert len(sizes) > 290
    assert abs(np.mean(sizes) - 1) < 0.02
    assert abs(np.mean(spread)) < 4 / len(spread) ** 0.5
    assert 0.8 < np.var(spread) < 1.2
    assert abs(np.mean(halves)) < 4 / len(halves) ** 0.5  # who is a member here says nothing about there


def test_the_label_of_who_takes_part_says_nothing() -> None:
    """Classes that are kept out of the public part are private three times as often, and members no more often."""
    labels = np.zeros((2, 2))
    for seed in range(100):
        attack_set = sides_of(KEPT_OUT, seed)
        assert attack_set.game is not None
        for side, (records, own) in enumerate(
            ((attack_set.members, attack_set.game.members), (attack_set.others, attack_set.game.others))
        ):
            labels[side] += np.bincount(records.y[own > 0], minlength=2)
    shares = labels[:, 1] / labels.sum(1)
    assert abs(shares[0] - shares[1]) < 0.03


def test_equal_records_have_a_coin_each() -> None:
    """Of 600 rows that occur twice, the two copies are members independently of each other."""
    x = np.repeat(np.arange(600, dtype=np.float32), 2)[:, None]
    pool, twice = Records(x, np.zeros(1200, np.int64)), []
    for seed in range(50):
        attack_set = draw(divide(FACTS, pool, None, EVEN, seed), EVEN, seed, 10_000)
        assert attack_set is not None
        game = attack_set.game
        assert game is not None
        rows = [
            records.x[own > 0, 0]
            for records, own in ((attack_set.members, game.members), (attack_set.others, game.others))
        ]
        counts = [np.bincount(own.astype(int), minlength=600) for own in rows]
        both = counts[0] + counts[1] == 2
        twice.append([int((both & (counts[0] == members)).sum()) for members in (0, 1, 2)])
        halves = np.concatenate([game.members[game.members > 0], game.others[game.others > 0]])
        assert (
            len(set(zip(np.concatenate(rows).tolist(), halves.tolist(), strict=True)))
            == (counts[0] + counts[1] > 0).sum()
        )
    none, one, two = np.sum(twice, 0) / np.sum(twice)
    assert abs(none - 0.25) < 0.03
    assert abs(one - 0.5) < 0.03
    assert abs(two - 0.25) < 0.03


def test_more_records_than_were_stated_leave_nobody_or_a_fair_game() -> None:
    """How many there really are is not public, and what was stated may be wrong."""
    few = sides_of(PLAIN, 0, facts=replace(FACTS, records=600))
    assert few.game is not None
    assert few.game.members.sum() > 0
    assert len(few.members) == len(few.game.members) < 300
    capped = sides_of(PLAIN, 0, most=60)
    assert capped.game is not None
    assert capped.game.expected < 60
    members, others = capped.game.members > 0, capped.game.others > 0
    assert 20 < members.sum() < 60
    assert 20 < others.sum() < 60


def test_numbers_that_do_not_fit_leave_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting them off would tie the coins to each other; without room to spare it happens often."""
    monkeypatch.setattr("airlock.auditing.members._SPARE", 0.0)
    nobody = 0
    for seed in range(100):
        game = sides_of(PLAIN, seed, most=60).game
        assert game is not None
        if not game.members.any():
            nobody += 1
            assert not game.others.any()
            assert membership_bound(np.ones(60), np.zeros(60), 1e-5, 0.95, game) == 0.0
    assert 40 < nobody < 90


def test_a_small_table_is_told_what_would_let_it_be_attacked() -> None:
    """569 records leave 57 for the holdout, of which too few are sure to be there; 14% are enough."""
    facts = Facts("test", (3,), ("no", "yes"), 569, None, "made up")
    said = too_few(facts, SplitConfig())
    assert said is not None
    assert "about 34 holdout" in said
    assert said.endswith("Make the release with split.holdout = 0.14.")
    assert too_few(facts, SplitConfig(holdout=0.14)) is None
    assert too_few(facts, SplitConfig(holdout=0.13)) is not None
    none = too_few(Facts("test", (3,), ("no", "yes"), 120, None, "made up"), SplitConfig())
    assert none is not None
    assert "no split leaves enough" in none

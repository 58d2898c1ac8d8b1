"""Attack figures that a share of ε pays for: what they cost, who takes part, and that records move their own score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from airlock import data
from airlock.accounting import compute_epsilon, to_json
from airlock.auditing import paid_attacks
from airlock.auditing.metrics import roc
from airlock.auditing.paid_auc import ATTACKS, PaidAttack, attack_event, events, paid_auc, slotted_auc
from airlock.auditing.target import Target
from airlock.bundle import Vault, verify
from airlock.config import ReleaseConfig, from_table
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.rows import keep
from airlock.pipeline import make_release, plan_release


def config(**changes: Any) -> ReleaseConfig:
    table = {"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-4, "net": "linear"}
    return from_table({**table, "attack_share": 0.2, "settings": {"steps": 3}, **changes})


def test_the_method_gets_what_is_left_and_both_cost_no_more_than_was_asked_for() -> None:
    plan, alone = plan_release(config()), plan_release(config(attack_share=0, epsilon=0.8))
    assert plan.details["noise_multiplier"] == alone.details["noise_multiplier"]
    assert alone.guarantee.epsilon < plan.guarantee.epsilon <= 1.0
    last = to_json(plan.guarantee.events)["events"][-1]
    each = paid_attacks.each(config(), alone.guarantee)
    assert 0.099 < each <= 0.1
    assert last == to_json(events(each, 1))
    assert compute_epsilon(events(each, 1), 1e-4).epsilon <= 0.2


def test_without_a_share_nothing_changes() -> None:
    assert paid_attacks.for_method(config(attack_share=0)) == config(attack_share=0)
    assert plan_release(config(attack_share=0)).schedule is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"channel": "answers", "method": "votes", "net": "auto", "settings": {"queries": 5}},
            "where no network leaves",
        ),
        ({"split": {"holdout": 0.02}}, "50 private and 50 holdout records"),
        ({"attack_share": 1e-4}, "for each figure of an attack"),
    ],
)
def test_shares_that_pay_for_nothing_are_refused_before_a_record_is_read(
    changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airlock.data.load", lambda *_: pytest.fail("records were read"))
    with pytest.raises(ConfigError, match=words):
        plan_release(config(**changes))


@pytest.fixture(scope="module")
def split() -> Split:
    return data.load(config())


@pytest.fixture(scope="module")
def released(split: Split) -> Any:
    from airlock import methods
    from airlock.training import Run

    asked = paid_attacks.for_method(config())
    return methods.build(asked, split.facts).release(split, Randomness.make(0, 1), Run())


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(name: str, members: Any, others: Any, m: int, n: int, epsilon: float, stream: Stream) -> PaidAttack:
        value = slotted_auc(members, others, m, n)
        return PaidAttack.of_auc(name, value, (0, 1), m, n, epsilon)

    monkeypatch.setattr(paid_attacks, "paid_auc", plain)


def moves(released: Any, split: Split, part: str) -> float:
    """How far an attack's exact figure moves when one of those who take part is taken away, at most."""

    def values(own: Split) -> Any:
        return np.array([one.value for one in paid_attacks.attack(config(), released, own, Stream.from_seed(5))[1]])

    whole, records = values(split), getattr(split, part)
    kept = keep(records, 60, Stream.from_seed(5).child("kept", part).take_key())
    fewer = [records.take(np.delete(np.arange(len(records)), place)) for place in kept[:6]]
    return float(np.max([np.abs(values(replace(split, **{part: own})) - whole) for own in fewer]))


@pytest.mark.parametrize("part", ["private", "holdout"])
def test_one_record_moves_an_auc_by_one_slot_at_most(
    released: Any, split: Split, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paid_attacks, "MOST", 60)
    without_noise(monkeypatch)
    assert 0 < moves(released, split, part) <= 1 / 60 + 1e-12


def test_a_score_that_looks_at_other_records_is_noticed(
    released: Any, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: one record decides about everybody's score."""
    monkeypatch.setattr(paid_attacks, "MOST", 60)
    without_noise(monkeypatch)
    plain: Callable[[Target, Records], Any] = paid_attacks._losses
    monkeypatch.setattr(paid_attacks, "_losses", lambda target, records: _turned(plain(target, records)))
    assert moves(released, split, "private") > 2 / 60


def _turned(scores: Any) -> Any:
    """With one sign for all of them, by the sum of their last digits."""
    return scores * (-1) ** (int(np.abs(scores).sum() * 1e6) % 2)


def test_a_release_with_a_share_verifies_and_an_edited_one_does_not(tmp_path: Path) -> None:
    made = make_release(config(), tmp_path / "bundle", vault=tmp_path / "vault")
    card = made.bundle.card
    assert [one.name for one in card.audit.attacks] == list(ATTACKS)
    assert card.target.epsilon == 1.0
    assert card.guarantee.epsilon is not None
    assert card.guarantee.epsilon <= 1.0
    assert (card.guarantee.parts.holdout.epsilon or 0) > 0
    assert "20% of the ε that was asked for was set aside" in card.words.audit
    assert verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"), gated=True).ok
    text = (tmp_path / "bundle" / "card.json").read_text()
    for old, new, check in (
        ('"share": 0.2', '"share": 0.1', "config"),
        (f'"epsilon": {card.audit.attacks[0].epsilon}', '"epsilon": 0.01', "parts"),
    ):
        assert old in text
        (tmp_path / "bundle" / "card.json").write_text(text.replace(old, new))
        failed = {one.name for one in verify(tmp_path / "bundle").checks if one.outcome == "failed"}
        assert check in failed


# One figure.

Floats = NDArray[np.float64]
Auc = Callable[[Floats, Floats, int, int], float]


def test_full_slots_are_the_usual_auc_and_empty_ones_draw_it_to_chance() -> None:
    chance = np.random.default_rng(1)
    members, others = chance.integers(0, 9, 60) / 4.0, chance.integers(0, 7, 40) / 4.0
    whole = slotted_auc(members, others, 60, 40)
    assert whole == pytest.approx(roc(members, others).auc, abs=1e-12)
    assert slotted_auc(members, others, 120, 40) == pytest.approx((whole + 0.5) / 2)
    assert slotted_auc(members[:0], others, 60, 40) == 0.5
    assert slotted_auc(np.array([1.0, np.nan]), np.array([0.5]), 2, 1) == 0.5  # no number, no win
    with pytest.raises(ValueError, match="slots"):
        slotted_auc(members, others, 59, 40)


def scores(records: Records) -> Floats:
    """A score that depends on its own record alone."""
    return np.asarray(records.x[:, 0], np.float64)


def kept(records: Records, count: int) -> Floats:
    return scores(records.take(keep(records, count, b"secret" * 6)))


def people(count: int, seed: int) -> Records:
    return Records(np.random.default_rng(seed).integers(0, 6, (count, 3)).astype(np.float32), np.zeros(count, np.int64))


def moves_auc(auc: Auc, count: int, beside: int, m: int, n: int, seed: int) -> tuple[float, float]:
    """How far taking away one member, and one other, moves an AUC at most."""
    members, others = people(count, seed), people(beside, seed + 1)
    whole = auc(kept(members, m), kept(others, n), m, n)
    of_members = [
        auc(kept(members.take(np.delete(np.arange(count), place)), m), kept(others, n), m, n) for place in range(count)
    ]
    of_others = [
        auc(kept(members, m), kept(others.take(np.delete(np.arange(beside), place)), n), m, n)
        for place in range(beside)
    ]
    return float(np.abs(np.subtract(of_members, whole)).max()), float(np.abs(np.subtract(of_others, whole)).max())


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_one_record_moves_it_by_its_share_of_the_slots(count: int, beside: int, m: int, n: int, seed: int) -> None:
    by_member, by_other = moves_auc(slotted_auc, count, beside, m, n, seed)
    assert by_member <= 1 / m + 1e-12
    assert by_other <= 1 / n + 1e-12


def counted_auc(members: Floats, others: Floats, m: int, n: int) -> float:
    """A fault: over the records that are there, so that their number decides what one of them moves."""
    return roc(members, others).auc if len(members) and len(others) else 0.5


def test_an_auc_over_the_real_number_of_records_moves_further() -> None:
    assert max(moves_auc(counted_auc, 4, 3, 12, 12, 0)) > 1 / 12


def noises(m: int, n: int, epsilon: float, count: int = 1200) -> Floats:
    """The noise on an AUC of one half."""
    nobody = np.empty(0)
    stream = Stream.from_seed(7)
    drawn = [_uncut(paid_auc("x", nobody, nobody, m, n, epsilon, stream.child(i))) - 0.5 for i in range(count)]
    return np.array(drawn)


def _uncut(figure: PaidAttack) -> float:
    assert 0.0 < figure.value < 1.0
    return figure.value


def test_the_noise_is_laplace_scaled_to_the_larger_share() -> None:
    m, n, epsilon = 300, 200, 0.5
    found, scale = noises(m, n, epsilon), 1 / (200 * 0.5)
    assert stats.kstest(found / scale, "laplace").pvalue > 1e-4
    assert stats.kstest(found / scale / 2, "laplace").pvalue < 1e-6
    assert stats.kstest(found / (1 / (300 * 0.5)), "laplace").pvalue < 1e-6  # scaled to the smaller one


def test_the_event_is_that_of_all_attacks() -> None:
    assert compute_epsilon(attack_event(0.2, 1), 1e-9).epsilon == pytest.approx(0.2, rel=1e-3)
    assert compute_epsilon(attack_event(0.2, 2), 1e-9).epsilon == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize(
    ("m", "epsilon", "gap"), [(100, 0.2, 0.0), (100, 2.0, 0.5), (1000, 0.05, 0.2), (400, 1.0, 1.5)]
)
def test_intervals_hold(m: int, epsilon: float, gap: float) -> None:
    """Members' scores lie `gap` deviations above the others': the true AUC is Φ(gap/√2)."""
    chance, stream, runs = np.random.default_rng(3), Stream.from_seed(4), 400
    truth, held = stats.norm.cdf(gap / math.sqrt(2)), 0
    for run in range(runs):
        made = paid_auc("x", chance.normal(gap, 1, m), chance.normal(0, 1, m), m, m, epsilon, stream.child(run))
        held += made.low <= truth <= made.high
    assert held >= 0.94 * runs


def test_a_figure_lies_within_its_interval_even_when_noise_throws_it_out() -> None:
    for seed in range(50):
        made = paid_auc("x", np.ones(3), np.zeros(3), 3, 3, 0.1, Stream.from_seed(seed))
        assert made.low <= made.value <= made.high

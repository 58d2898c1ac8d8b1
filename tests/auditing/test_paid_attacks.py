"""Attack figures that a share of ε pays for: what they cost, who takes part, and that records move their own score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airlock import data
from airlock.accounting import spend, to_json
from airlock.auditing import paid_attacks
from airlock.auditing.paid import PaidFigure, slotted_auc
from airlock.auditing.target import Target
from airlock.bundle import Vault, verify
from airlock.config import ReleaseConfig, from_table
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.features.rows import keep
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
    assert last == to_json(paid_attacks.events(each, 1))
    assert spend(paid_attacks.events(each, 1), 1e-4).epsilon <= 0.2


def test_without_a_share_nothing_changes() -> None:
    assert paid_attacks.for_method(config(attack_share=0)) == config(attack_share=0)
    assert plan_release(config(attack_share=0)).course is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"channel": "answers", "method": "poll", "net": "auto", "settings": {"queries": 5}},
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
    def plain(name: str, members: Any, others: Any, m: int, n: int, epsilon: float, stream: Stream) -> PaidFigure:
        value = slotted_auc(members, others, m, n)
        return PaidFigure(name=name, value=value, low=0, high=1, members=m, non_members=n, epsilon=epsilon)

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
    assert [one.name for one in card.audit.attacks] == list(paid_attacks.ATTACKS)
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

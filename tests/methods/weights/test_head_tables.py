"""`weights`/`head` on tables: the contract for a table's counts and cut points, for records and for people."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from airlock import methods
from airlock.accounting import compute_epsilon
from airlock.auditing import judge
from airlock.bundle import Vault
from airlock.bundle.verify import verify
from airlock.config import Column, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.weights.features import TableFeatures
from airlock.methods.weights.head import Head, table_case
from airlock.nets.tables import steps_of
from airlock.pipeline import audit_bundle, make_release
from airlock.training import Run

COLUMNS = (
    ("age", Column(min=0, max=100)),
    ("city", Column(categories=("Bern", "Chur"))),
    ("pay", Column(min=0, max=9)),
)
FACTS = Facts("t", (4,), ("no", "yes"), 4000, 1000, "made up", columns=COLUMNS)
EPSILON, DELTA = 3.0, 1e-5


def head(facts: Facts = FACTS, epsilon: float = EPSILON, **settings: Any) -> Head:
    table = {"channel": "weights", "method": "head", "data": "court", "epsilon": epsilon, "delta": DELTA,
             "split": {"holdout": 0.0}, "device": "cpu", "settings": settings}  # fmt: skip
    made = methods.build(from_table(table), facts)
    assert isinstance(made, Head)
    return made


def drawn(count: int, seed: int = 0) -> Records:
    """Yes where age is neither low nor high, and no line through the numbers tells."""
    rng = np.random.default_rng(seed)
    age, pay, city = rng.random(count), rng.random(count) ** 4, rng.integers(0, 2, count)
    x = np.stack([age, city == 0, city == 1, pay], 1).astype(np.float32)
    odds = 1 / (1 + np.exp(-(6 * (np.abs(age - 0.5) < 0.25) - 3 + 2 * (pay > 0.05) - 1)))
    return Records(x, (rng.random(count) < odds).astype(np.int64))


def split_of(private: Records, facts: Facts = FACTS) -> Split:
    nobody = private.take(np.arange(0))
    return Split(facts, private, nobody, drawn(1000, seed=9), nobody)


def test_the_event_is_the_counts_and_every_step() -> None:
    plan = head(steps=3).plan()
    counts = dpa.GaussianDpEvent(plan.details["noise_multiplier_of_the_counts"])
    step = dpa.GaussianDpEvent(plan.details["noise_multiplier"])
    assert plan.guarantee.events == dpa.ComposedDpEvent([counts, dpa.SelfComposedDpEvent(step, 3)])
    assert compute_epsilon(plan.guarantee.events, DELTA).epsilon <= EPSILON
    first, steps = (float(plan.details[key]) ** -2 for key in ("noise_multiplier_of_the_counts", "noise_multiplier"))
    assert first / (first + 3 * steps) == pytest.approx(0.1)


def test_a_table_without_numbers_needs_no_counts() -> None:
    facts = replace(FACTS, shape=(2,), columns=COLUMNS[1:2])
    plan = head(facts, steps=3).plan()
    assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(plan.details["noise_multiplier"]), 3)


def test_it_learns_what_no_line_tells() -> None:
    found = {
        features: head(features=features).release(split_of(drawn(4000)), Randomness.make(0, 1), Run()).utility.accuracy
        for features in ("steps", "pixels")
    }
    assert found["steps"] > 0.85
    assert found["pixels"] < 0.75


def test_cut_points_follow_the_values_and_leave_with_the_network() -> None:
    net = head().release(split_of(drawn(4000)), Randomness.make(0, 1), Run()).network.net
    cuts = steps_of(net).cuts  # type: ignore[arg-type]
    assert (cuts[1] < 0.1).sum() >= 5  # most pay is little
    assert float(cuts[0].min()) > 0.02
    even = head(centre_share=0.0).release(split_of(drawn(4000)), Randomness.make(0, 1), Run()).network.net
    assert torch.equal(steps_of(even).cuts[0], steps_of(even).cuts[1])  # type: ignore[arg-type]


def test_one_record_moves_the_counts_and_no_features_of_others() -> None:
    channel, records = head(), drawn(40)
    net = channel.front.ready(None, Run())
    whole, less = (channel.prepared(net, records.take(np.arange(first, 40)), Run()) for first in (0, 1))
    assert np.linalg.norm(whole.total() - less.total()) == pytest.approx(np.sqrt(2))
    x, y = whole.batch(np.arange(40))
    assert torch.equal(x[1:], less.batch(np.arange(39))[0])
    assert float(x.norm(dim=1).max()) <= 1
    assert y.tolist() == records.y.tolist()


def test_a_person_moves_the_counts_by_no_more_than_a_record() -> None:
    facts = replace(FACTS, people=2000, records_per_person=8)
    channel, records = head(facts), drawn(40)
    people = replace(records, person=np.arange(40) // 20)
    net = channel.front.ready(None, Run())
    both, one = (channel.prepared(net, people.take(np.arange(first, 40)), Run()) for first in (0, 20))
    assert isinstance(both, TableFeatures)
    assert np.linalg.norm(both.total() - one.total()) <= np.sqrt(2)
    made = channel.release(split_of(people, facts), Randomness.make(0, 1), Run())
    assert made.guarantee.unit == "person"


def test_pairs_are_used_where_there_are_enough_records_or_they_are_asked_for() -> None:
    few, many = replace(FACTS, records=50), replace(FACTS, records=400_000)
    assert head(few).net_name == "steps-2x15-0-linear"
    assert head(many).net_name == "steps-2x15-21-linear"
    assert head(few, pairs=True).net_name == head(many).net_name
    with pytest.raises(ConfigError, match=r"settings\.pairs"):
        head(features="pixels", pairs=True)


def test_steps_need_declared_columns() -> None:
    with pytest.raises(ConfigError, match="declared columns"):
        head(replace(FACTS, columns=()), features="steps").plan()


def test_sampling_error_bounds_the_rate_of_a_table() -> None:
    facts = replace(FACTS, records=700)
    noisy, clear = (head(facts, epsilon).planned.figures for epsilon in (0.5, 30.0))
    of_noise, of_clear = (0.1 * f.expected_lot / (f.noise_multiplier * math.sqrt(200)) for f in (noisy, clear))
    assert noisy.recipe.learning_rate == pytest.approx(of_noise, rel=0.05)
    assert clear.recipe.learning_rate == pytest.approx(0.1 * clear.expected_lot / (1.3 * 200), rel=0.05)
    assert clear.recipe.learning_rate < of_clear / 3


@pytest.mark.parametrize("people", [False, True])
def test_the_court_finds_nothing(people: bool) -> None:
    assert not judge(table_case(1.0, DELTA, people), Stream.from_seed(3), pairs=150, seconds=1e9).refuted


def test_a_bundle_of_a_table_verifies_and_can_be_audited(tmp_path: Path) -> None:
    rows, records = ["age,city,pay,ok"], drawn(600)
    for (age, bern, _, pay), y in zip(records.x, records.y, strict=True):
        rows.append(f"{100 * age:.3f},{'Bern' if bern else 'Chur'},{9 * pay:.4f},{'yes' if y else 'no'}")
    (tmp_path / "people.csv").write_text("\n".join(rows))
    config = from_table({
        "channel": "weights", "method": "head", "epsilon": 3.0, "delta": 1e-4, "settings": {"steps": 20},
        "data": {"source": str(tmp_path / "people.csv"), "label": "ok", "classes": ["no", "yes"], "records": 600,
                 "columns": {"age": {"min": 0, "max": 100}, "city": ["Bern", "Chur"], "pay": {"min": 0, "max": 9}}},
        "split": {"holdout": 0.3},
    })  # fmt: skip
    make_release(config, tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
    verdict = verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"))
    assert all(check.outcome == "ok" for check in verdict.checks), verdict
    source = {"data.source": str(tmp_path / "people.csv")}
    found = audit_bundle(tmp_path / "bundle", overrides=source, vault=tmp_path / "vault")
    assert found.dossier.audit.attacks

"""Methods that protect a person with all records: who can, what a person of fifty visits moves, and what is assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from airlock import data, methods
from airlock.auditing import judge
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods.answers.head import Head
from airlock.methods.answers.per_query import PerQuery, case_of_answers
from airlock.methods.answers.votes import Votes
from airlock.methods.config_case import VISITS, neighbours, of_config
from airlock.methods.contract import ONE_RECORD
from airlock.methods.student.ensemble import Ensemble
from airlock.methods.twin.sharded import SampleAndAggregate
from airlock.training import Run
from tests.visits import config, write

OWN = (
    "twin/sharded", "twin/kde-sharded", "student/ensemble", "answers/head", "answers/per-query", "answers/votes",
    "answers/neighbours", "student/neighbours",
)  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("visits"))


@pytest.fixture(scope="module")
def split(table: Path) -> Split:
    return data.load(config(table))


def build(table: Path, name: str, **changes: Any) -> methods.Channel:
    channel, _, method = name.partition("/")
    asked = config(table, channel=channel, method=method, **changes)
    return methods.build(asked, data.describe(asked))


def busiest(records: Records) -> int:
    """Whoever has most visits."""
    assert records.person is not None
    people, times = np.unique(records.person, return_counts=True)
    assert times.max() == 50
    return int(people[times.argmax()])


def without(records: Records, person: int) -> Records:
    return records.take(np.flatnonzero(records.person != person))


def test_every_proven_method_protects_people_and_what_is_published_does_not() -> None:
    every = [f"{channel}/{method}" for channel, own in methods.METHODS.items() for method in own]
    for name in filter(methods.is_built_in, every):
        found = methods.named(name)
        assert found.units == ({"record", "person"} if found.status == "proven" else {"record"}), name
    assert set(OWN) <= set(methods.protecting("person"))


@pytest.mark.parametrize("name", ["features/published", "student/published"])
def test_a_method_for_records_is_refused_with_those_that_can(table: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"protects a person as a whole.*answers/head.*unit = .record"):
        build(table, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OWN)
def test_the_plan_is_about_people(table: Path, name: str) -> None:
    more: dict[str, Any] = {"split": {"public": 0.2}} if name.startswith("student") else {}
    if name.endswith("neighbours"):
        more = {"split": {"public": 0.2}, "settings": {"queries": 1} if name.startswith("answers") else {}}
    elif more:
        more |= {"net": "linear", "settings": {"teacher": "linear", "hint_epochs": 0}}
    if name.startswith("twin"):
        more = {"settings": {"noise_limit": 1e9}}
    if name == "answers/votes":
        more = {"settings": {"queries": 1}}
    plan = build(table, name, **more).plan()
    assert plan.guarantee.unit == "person"
    assert ONE_RECORD not in plan.guarantee.assumptions
    assert any("one identifier" in line for line in plan.guarantee.assumptions)
    assert any("numbers of people and records" in line for line in plan.guarantee.assumptions)


def test_with_records_as_the_unit_the_first_assumption_says_who_is_not_covered(table: Path) -> None:
    promise = build(table, "answers/head", unit="record").plan().guarantee
    assert promise.unit == "record"
    assert promise.assumptions[0].startswith("NOT COVERED: a person as a whole")
    assert ONE_RECORD not in promise.assumptions


# What one person moves.


def test_the_person_with_most_visits_moves_the_head_by_no_more_than_the_sensitivity(table: Path, split: Split) -> None:
    channel = build(table, "answers/head")
    assert isinstance(channel, Head)
    net, z = channel.ready(), channel.noise_multiplier
    whole, less = (
        channel.solve(net, own, z, Run()) for own in (split.private, without(split.private, busiest(split.private)))
    )
    assert 0 < float((whole - less).norm()) <= channel.head_objective.sensitivity()


def test_a_head_counts_everybody_once(table: Path, split: Split) -> None:
    """Whoever sends every record twice gets the same head."""
    channel = build(table, "answers/head", settings={"tolerance": 1e-6})
    assert isinstance(channel, Head)
    net, z = channel.ready(), channel.noise_multiplier
    twice = split.private.take(np.repeat(np.arange(len(split.private)), 2))
    one, two = (channel.solve(net, own, z, Run()) for own in (split.private, twice))
    assert float((one - two).norm()) <= 2e-6 * channel.head_objective.sensitivity()


def test_one_person_changes_one_vote(table: Path, split: Split) -> None:
    channel = build(table, "answers/votes", settings={"queries": 1})
    assert isinstance(channel, Votes)
    net, rest = channel.ready(), without(split.private, busiest(split.private))
    whole, less = (channel.kept(net, own, 40, Run())["heads"]["weight"] for own in (split.private, rest))
    assert (whole != less).any((1, 2)).sum() == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["twin/sharded", "twin/kde-sharded"])
def test_one_person_changes_one_shard(table: Path, split: Split, name: str) -> None:
    channel = build(table, name, settings={"noise_limit": 1e9, "shards": 30, "dimensions": 2})
    assert isinstance(channel, SampleAndAggregate)
    assert "people_per_shard" in channel.plan().details
    net, rest = channel.heads.start(None, Run()), without(split.private, busiest(split.private))
    whole, less = (channel.vectors(net, own, Run()) for own in (split.private, rest))
    assert (whole != less).any(1).sum() == 1


@pytest.mark.filterwarnings("ignore")
def test_one_person_changes_one_teacher(table: Path) -> None:
    small = {"teachers": 6, "queries": 4, "teacher": "linear", "hint_epochs": 0, "teacher_epochs": 1, "shard_epochs": 1,
             "bound": 1.0, "shard_public": 0, "teacher_batch": 1000}  # fmt: skip
    asked = config(table, channel="student", method="ensemble", net="linear", split={"public": 0.2}, settings=small)
    split = data.load(asked)
    channel = methods.build(asked, split.facts)
    assert isinstance(channel, Ensemble)
    from airlock.training.stages import Stages

    questions = channel.questions(split.public, 0, Stages(Run(), {}))
    rest = Split(split.facts, without(split.private, busiest(split.private)), split.public, split.test, split.holdout)
    whole, less = (channel.moved(own, questions, 0, Run()) for own in (split, rest))
    assert (whole != less).any((1, 2)).sum() == 1


# The court.


@pytest.mark.parametrize("people", [False, True])
def test_in_court_a_person_of_many_records_moves_the_head_as_far_as_one_record(people: bool) -> None:
    case = Head.case_of_people(1.0, 1e-5) if people else Head.case(1.0, 1e-5)
    assert case.family is not None
    assert 0.85 < case.family.reach <= 1.0


@pytest.mark.parametrize("name", ["twin/sharded", "twin/kde-sharded"])
def test_in_court_a_person_of_many_records_turns_one_shard_round(name: str) -> None:
    case = methods.open_case(name, 1.0, 1e-5, people=True)
    assert "one person with 50 records" in case.pair
    alone = methods.open_case(name, 1.0, 1e-5)
    assert case.family is not None
    assert alone.family is not None
    assert case.family.reach == pytest.approx(alone.family.reach)
    assert not judge(case, Stream.from_seed(1), pairs=200).refuted


def test_the_claim_for_people_stands(table: Path) -> None:
    for case in (Head.case_of_people(1.0, 1e-5), case_of_answers(PerQuery, 1.0, 1e-5, people=True)):
        assert not judge(case, Stream.from_seed(1), pairs=400).refuted


def test_a_configuration_is_tried_with_a_person_of_many_records(table: Path) -> None:
    asked = config(table)
    facts = data.describe(asked)
    both, less = neighbours(facts, 0)
    assert (both.private.units, less.private.units) == (24, 23)
    assert len(both.private) - len(less.private) == VISITS
    case = of_config(methods.build, asked, facts, Run())
    assert "one more person" in case.pair
    assert not judge(case, Stream.from_seed(1), pairs=300).refuted
    assert torch.isfinite(torch.tensor(case.claim.epsilon))

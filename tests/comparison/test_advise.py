"""The chooser: only proven methods that meet the need, and a config that can be planned."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from airlock.comparison.advise import advise, advise_measured, as_toml, release_for
from airlock.comparison.matrix import Matrix, lay_out
from airlock.comparison.settings import NAMES, CompareConfig, from_table
from airlock.comparison.values import BASELINE, PUBLIC, Advice, Need
from airlock.config import load
from airlock.errors import ConfigError, Refused
from airlock.pipeline import plan_release
from tests.comparison.example import TEST, cell, verdicts

TABLE: dict[str, object] = {"data": "digits", "epsilons": [3.0], "delta": 1e-4}


def asked(**need: object) -> CompareConfig:
    return from_table(TABLE | {"need": need})


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    methods = ["weights/head", "weights/published", "answers/per-query"]
    return lay_out(from_table(TABLE | {"methods": methods, "seeds": 1}))


def measured(matrix: Matrix, correct: dict[str, int], config: CompareConfig, **more: Any) -> Advice:
    given = {method: {"asked": 3.0, **more.get(method, {})} for method in correct}
    cells = [cell(method, seed=0, correct=count, auc=0.5, **given[method]) for method, count in correct.items()]
    cells.append(cell(BASELINE, None, 0, 350, 0.6, "none"))
    return advise_measured(config, matrix, cells, more.get("court", ()))


@pytest.fixture(autouse=True)
def known_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.comparison import example

    monkeypatch.setitem(example.LEAVES, "weights/head", "A model with a private head.")


def test_before_a_run_every_method_is_ranked_and_only_proven_ones_recommended() -> None:
    config = asked(receives="white-box", runs_on="phone")
    found = advise(config)
    assert {one.method for one in found.ranking} == set(NAMES) - {"twin/kde-sharded"}  # which is not listed
    assert found.method == found.ranking[0].method
    assert not found.measured
    for one in found.ranking:
        assert one.reason
        assert not one.recommended or one.status == "proven"
        assert not (one.recommended and one.method.partition("/")[0] == "answers" and one.method != "answers/head")
    statuses = [one.status == "proven" for one in found.ranking]
    assert statuses == sorted(statuses, reverse=True)
    assert "only a run can tell" in found.sentence


def test_the_config_of_the_first_choice_can_be_planned(tmp_path: Path) -> None:
    config = asked(receives="black-box", queries=40)
    found = advise(config)
    text = as_toml(release_for(config, found), found.sentence)
    place = tmp_path / "release.toml"
    place.write_text(text, encoding="utf-8")
    plan = plan_release(load(place))
    assert f"{plan.channel}/{plan.method}" == found.method
    assert plan.guarantee.epsilon <= 3.0
    assert tomllib.loads(text)["data"] == "digits"


def test_accuracy_decides_among_those_that_fit(matrix: Matrix) -> None:
    correct = {"weights/gaussian": 250, "weights/head": 330, "answers/per-query": 340, "weights/published": 345}
    more = {"weights/published": {"status": "claimed", "claim_epsilon": 3.0}}
    found = measured(matrix, correct, asked(receives="white-box"), **more)
    assert found.method == "weights/head"
    assert "most accurate of 2 proven methods" in found.sentence
    assert "97.2% without privacy" in found.sentence
    assert measured(matrix, correct, asked(), **more).method == "answers/per-query"
    assert found.ranking[-1].status != "proven"


@pytest.mark.parametrize(
    ("public", "said"),
    [
        (340, "The public records alone do no worse, and cost no privacy: nothing private need leave."),
        (325, "Its interval overlaps with that of the public records alone, which cost no privacy."),
        (250, "by the public records alone."),
    ],
)
def test_a_choice_is_held_against_the_public_records_alone(matrix: Matrix, public: int, said: str) -> None:
    alone = {PUBLIC: {"status": "proven", "epsilon": 0.0, "attacks": (), "asked": None}}
    found = measured(matrix, {"weights/gaussian": 330, PUBLIC: public}, asked(), **alone)
    assert found.method == "weights/gaussian"
    assert f"against 97.2% without privacy and {public / TEST:.1%} by the public records alone." in found.sentence
    assert found.sentence.endswith(said)
    assert PUBLIC not in {one.method for one in found.ranking}


def test_on_a_phone_the_smallest_of_those_within_the_interval_of_the_best(matrix: Matrix) -> None:
    correct = {"weights/gaussian": 325, "weights/head": 330}
    small = {"weights/gaussian": {"bytes": 1000}}
    assert measured(matrix, correct, asked(runs_on="phone"), **small).method == "weights/gaussian"
    assert measured(matrix, correct, asked(runs_on="cloud"), **small).method == "weights/head"
    worse = {"weights/gaussian": 305, "weights/head": 330}  # the intervals overlap
    assert measured(matrix, worse, asked(runs_on="phone"), **small).method == "weights/head"
    assert "overlaps with that of weights/gaussian" in measured(matrix, correct, asked(), **small).sentence


def test_what_the_court_or_an_attack_refutes_is_never_recommended(matrix: Matrix) -> None:
    correct = {"weights/gaussian": 250, "weights/head": 330}
    broken = {"weights/head": {"bound": 5.0}}
    assert measured(matrix, correct, asked(), **broken).method == "weights/gaussian"
    refuted = verdicts()[1].model_copy(update={"method": "weights/head", "status": "proven"})
    found = measured(matrix, correct, asked(), court=(refuted,))
    assert found.method == "weights/gaussian"
    assert next(one for one in found.ranking if one.method == "weights/head").reason.startswith("In doubt")


def test_no_result_no_recommendation(matrix: Matrix) -> None:
    found = measured(matrix, {}, asked(receives="white-box"))
    found = found.model_copy(update={"method": None})
    with pytest.raises(Refused):
        release_for(asked(), found)


def test_too_few_questions_do_not_meet_the_need(matrix: Matrix) -> None:
    found = measured(matrix, {"answers/per-query": 340}, asked(queries=10**6))
    assert found.method is None
    assert "no proven method fits" in found.sentence
    reason = next(one for one in found.ranking if one.method == "answers/per-query").reason
    assert "1,000,000 are needed" in reason


def test_a_need_names_an_epsilon_of_the_comparison() -> None:
    with pytest.raises(ConfigError, match="one of epsilons"):
        asked(epsilon=2.0)
    assert Need(epsilon=2.0).epsilon == 2.0

"""How tight a promise is: sound trainings stand, attackers come near the proven ε, and too little noise is seen."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from airlock.auditing import Audit, AuditSettings, required_attacks
from airlock.auditing.attacks import worst_case as tried
from airlock.auditing.result import WorstCaseResult
from airlock.bundle.rendering.text import write_on_worst_case
from airlock.config import SplitConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, DataError, Interrupted, TrainingError
from airlock.mechanisms import Stream
from airlock.methods import dp_sgd_case
from airlock.methods.answers.head import Head
from airlock.methods.answers.linear_head import case_config, case_facts
from airlock.methods.weights.gaussian import Gaussian
from airlock.methods.weights.shaped import Shaped
from airlock.threads import one_thread
from airlock.training import Run
from tests.faults.plants import noise_over

STEPS, RUNS = 4, 60
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def method(
    epsilon: float, kind: type[Gaussian] = Gaussian, facts: Facts = dp_sgd_case.STEP_FACTS, lot: int = 500
) -> Gaussian:
    """A few steps of a tiny network."""
    settings = {**dp_sgd_case.STEP_SETTINGS, "steps": STEPS, "learning_rate": 0.05, "momentum": 0.0, "lot_size": lot}
    return kind(dp_sgd_case.step_config(kind.method, epsilon, 1e-5, settings=settings), facts)


def known(count: int = 60, people: bool = False) -> Records:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(count, 6)).astype(np.float32)
    return Records(x, (x[:, 0] > 0).astype(np.int64), np.arange(count) // 2 if people else None)


@cache
def made(epsilon: float, lot: int = 500) -> tried.Crafted:
    return tried.craft(method(epsilon, lot=lot), known(), 0, Run())


def scores(crafted: tried.Crafted, runs: int = RUNS) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of every attacker."""
    steps = tried.gather(tried.of_steps(crafted, Stream.from_seed(1), Run()), runs, "steps", Run())
    finals = tried.gather(tried.of_trainings(crafted, 0, Stream.from_seed(2), Run()), runs, "trainings", Run())
    columns = ((tried.WEIGHTS, 0), (tried.ANSWERS, 1))
    return {tried.EVERY_STEP: steps} | {name: (finals[0][:, at], finals[1][:, at]) for name, at in columns}


def all_bounds_hold(epsilon: float = 0.5) -> None:
    """No attacker shows more than the proven ε; what accounting says of noise of the planned kind is seen too."""
    crafted = made(epsilon)
    for name, (one, other) in scores(crafted).items():
        found = tried.measured(crafted.channel, name, one, other)
        stated = crafted.channel.planned.guarantee.epsilon
        assert found.epsilon_lower_bound <= stated, (name, found)
        assert (found.epsilon_lower_bound_of_noise or 0.0) <= stated, (name, found)


def test_a_sound_training_stands() -> None:
    all_bounds_hold()


def test_less_noise_is_seen_by_everybody(monkeypatch: Patch) -> None:
    crafted = made(0.5, 1000)  # every record in every step: no chance but the noise
    assert crafted.channel.planned.guarantee.epsilon <= 0.5  # calibrated before
    noise_over(50.0)(monkeypatch)
    for name, (one, other) in scores(crafted).items():
        found = tried.measured(crafted.channel, name, one, other)
        assert (found.epsilon_lower_bound_of_noise or 0.0) > 0.5, (name, found)
        assert found.epsilon_lower_bound > 0.5, (name, found)


@pytest.mark.parametrize("lot", [1000, 500])
def test_whoever_sees_every_step_has_all_that_accounting_allows(lot: int) -> None:
    """The scores have the distribution of the privacy loss: for Gaussian noise, N(±μ²/2, μ²)."""
    crafted = made(4.0, lot)
    one, other = tried.gather(tried.of_steps(crafted, Stream.from_seed(3), Run()), 200, "steps", Run())
    assert crafted.reach == pytest.approx(1.0, abs=2e-3)
    figures = crafted.channel.planned.figures
    if lot == 1000:
        square = STEPS / figures.noise_multiplier**2
        assert one.mean() == pytest.approx(square / 2, abs=4 * math.sqrt(square / 200))
        assert other.mean() == pytest.approx(-square / 2, abs=4 * math.sqrt(square / 200))
        assert one.std() == pytest.approx(math.sqrt(square), rel=0.15)
    # E[exp(−loss)] with the record and E[exp(loss)] without it are 1, whatever the sampling
    for mean in (np.exp(-one).mean(), np.exp(other).mean()):
        assert mean == pytest.approx(1.0, abs=0.5)
    found = tried.measured(crafted.channel, tried.EVERY_STEP, one, other, shares=1)
    assert found.epsilon_lower_bound_of_noise is not None
    assert 0.1 * found.epsilon < found.epsilon_lower_bound_of_noise <= found.epsilon


@pytest.mark.parametrize("kind", [Gaussian, Shaped])
def test_what_is_trained_is_the_method_itself_and_the_start_is_put_back(kind: type[Gaussian]) -> None:
    crafted = tried.craft(method(8.0, kind), known(), 0, Run())
    before = {name: value.clone() for name, value in crafted.net.state_dict().items()}
    pairs = tried.of_trainings(crafted, 0, Stream.from_seed(5), Run())
    first, again = next(pairs), next(pairs)
    assert not np.array_equal(first[0], again[0])
    pairs.close()  # type: ignore[attr-defined]
    assert all(torch.equal(value, before[name]) for name, value in crafted.net.state_dict().items())
    same = next(tried.of_trainings(crafted, 0, Stream.from_seed(5), Run()))
    assert np.allclose(first, same)


def test_a_person_is_crafted_where_people_are_protected() -> None:
    crafted = tried.craft(method(4.0, facts=dp_sgd_case.STEP_FACTS_OF_PEOPLE), known(people=True), 0, Run())
    with_it, without = crafted.split(True).private, crafted.split(False).private
    assert len(with_it) == len(without) + 1
    assert with_it.person is not None
    assert without.person is not None
    assert with_it.person[-1] not in without.person
    assert all(np.isfinite(side).all() for pair in scores(crafted, 8).values() for side in pair)


def test_a_blank_record_without_a_gradient_is_not_taken() -> None:
    """This network has no biases, so the blank record moves nothing."""
    assert np.abs(made(0.5).canary.x).max() > 0
    assert made(0.5).reach > 0.9


def test_scores_are_kept_on_the_way_and_read_back(tmp_path: Path) -> None:
    run = Run(checkpoint=tmp_path)
    one, other = tried.gather(iter([(float(i), -float(i)) for i in range(9)]), 9, "every step", run)
    assert one[:, 0].tolist() == list(range(9))

    never: Iterator[tuple[float, float]] = iter(())  # they were there already
    again = tried.gather(never, 9, "every step", replace(run, resume=True))
    assert np.array_equal(again[0], one)
    assert np.array_equal(again[1], other)


def test_scores_of_another_choice_are_not_continued_and_ctrl_c_keeps_what_is_there(tmp_path: Path) -> None:
    run = Run(checkpoint=tmp_path)

    def pressed() -> Iterator[tuple[float, float]]:
        yield 0.0, 1.0
        signal.raise_signal(signal.SIGINT)
        yield 2.0, 3.0

    with pytest.raises(Interrupted, match="2 of 9"):
        tried.gather(pressed(), 9, "every step", run, seed=1)
    again = replace(run, resume=True)
    one, _ = tried.gather(iter([(4.0, 5.0)] * 7), 9, "every step", again, seed=1)
    assert one[:3, 0].tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(TrainingError):
        tried.gather(iter([(4.0, 5.0)] * 7), 9, "every step", again, seed=2)


def test_time_ends_it_but_not_before_the_fewest_runs() -> None:
    one, _ = tried.gather(iter([(0.0, 0.0)] * 50), 50, "steps", Run(), seconds=0.0)
    assert len(one) == tried.FEWEST


def test_other_methods_and_few_records_are_refused() -> None:
    head = Head(case_config("head", 1.0, 1e-5, {}), case_facts())
    for channel in (head, None):
        with pytest.raises(ConfigError, match="one training of a classifier"):
            tried.require(channel)
    with pytest.raises(DataError, match="at least 16 records"):
        tried.craft(method(1.0), known(15), 0, Run())
    with pytest.raises(ValidationError, match="none or at least 8"):
        AuditSettings(worst_case=7)


def test_an_audit_holds_it_beside_the_other_attacks(monkeypatch: Patch) -> None:
    channel, records = method(4.0), known(40)
    split = Split(channel.facts, records, records.take(np.arange(0)), records, records.take(np.arange(0)))
    situation = required_attacks.Situation(
        Gaussian, lambda: {}, 1e-5, split, SplitConfig(), 0, AuditSettings(worst_case=8), Run(), channel
    )
    monkeypatch.setattr(required_attacks, "_network_attacks", lambda network, given: (Audit((), ()), {}))
    audit, kept = required_attacks._attack_network(SimpleNamespace(), situation)  # type: ignore[arg-type]
    assert [one.name for one in audit.worst_case] == [tried.EVERY_STEP, tried.WEIGHTS, tried.ANSWERS]
    assert {one.runs for one in audit.worst_case} == {8}
    assert len(kept["worst-case"]) == 6
    assert "worst_case" in audit.to_dict()
    assert not audit.worst_case_refutes
    few = replace(situation, split=replace(split, test=records.take(np.arange(3))))
    audit, kept = required_attacks._attack_network(SimpleNamespace(), few)  # type: ignore[arg-type]
    assert "records that no guarantee covers" in audit.not_tested[0]
    with pytest.raises(ConfigError):
        required_attacks._attack_network(SimpleNamespace(), replace(situation, searched=True))  # type: ignore[arg-type]


def test_the_sentence_has_every_bound_beside_the_proven_epsilon() -> None:
    result = partial(WorstCaseResult, attacker="sees it", runs=100, epsilon=2.0, confidence=0.95)
    lines = write_on_worst_case((result("a", epsilon_lower_bound=0.5, epsilon_lower_bound_of_noise=1.25),))
    assert "proven ε of 2.00" in lines[0]
    assert "above 0.50, and above 1.25" in lines[0]
    assert "wrong" not in lines[0]
    refuted = result("a", epsilon_lower_bound=2.5, epsilon_lower_bound_of_noise=None)
    assert "something is wrong" in write_on_worst_case((refuted,))[0]
    assert Audit((), (), worst_case=(refuted,)).worst_case_refutes
    none = result("a", epsilon_lower_bound=0.0, epsilon_lower_bound_of_noise=0.0)
    assert "so few runs show nothing" in write_on_worst_case((none,))[0]
    assert write_on_worst_case(()) == ()

"""What methods bring to court: sound ones stand, published ones fall; what planted faults do is in tests/faults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch

from airlock import methods
from airlock.auditing import Verdict, auc_interval, judge
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Clip, GaussianNoise, Stream
from airlock.methods import Case, dp_sgd_case
from airlock.methods.answers.per_query import Gives, PerQuery, case_of_answers
from airlock.methods.contract import Channel
from airlock.methods.student import ensemble
from airlock.methods.student.answering import Kind
from airlock.methods.weights.gaussian import Gaussian
from airlock.papers.student import published as student_published
from airlock.papers.twin import published as twin_published
from airlock.threads import one_thread
from airlock.training import PrivateGradients
from airlock.training.per_sample import clipped_sum
from tests.faults.plants import grid_noise_over, noise_over

ALL = [f"{channel}/{method}" for channel, own in methods.METHODS.items() for method in own]
NAMES = [name for name in ALL if name != "features/published"]  # which claims nothing
SOUND = [name for name in NAMES if not name.endswith("/published")]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@cache
def opened(name: str) -> Case:
    return methods.open_case(name, 1.0, 1e-5)


def tried(name: str, pairs: int, seed: int = 1) -> Verdict:
    return judge(opened(name), Stream.from_seed(seed), pairs, seconds=1e9)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_case_that_says_what_it_is(name: str) -> None:
    case = opened(name)
    assert 0.99 < case.claim.epsilon <= 1.0
    assert case.claim.delta == 1e-5
    assert case.claim.theorem
    assert case.pair
    scores = [case.run(known, 3, Stream.from_seed(0)) for known in (True, False)]
    assert all(found.shape == (3, len(case.statistics)) and np.isfinite(found).all() for found in scores)
    assert len(np.unique(scores[0][:, 0])) == 3  # runs are independent
    assert np.array_equal(scores[0], case.run(True, 3, Stream.from_seed(0)))


@pytest.mark.parametrize("name", SOUND)
def test_the_curve_of_a_proven_method_is_that_of_its_events(name: str) -> None:
    curve = opened(name).curve
    assert curve[0][0] == 0.0
    assert all(a[1] > b[1] > 1e-5 for a, b in pairwise(curve))


@pytest.mark.parametrize("pairs", [200, pytest.param(1200, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_method_stands(name: str, pairs: int) -> None:
    """A quarter of the noise falls within 170 pairs; the faults that are planted in tests/faults get more."""
    verdict = tried(name, pairs)
    assert not verdict.refuted, verdict.to_dict()
    assert verdict.epsilon_lower_bound < verdict.case.claim.epsilon < float(verdict.would_show or 0)


SEEDS = [0, pytest.param(1, marks=pytest.mark.long)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_published_method_is_refuted_within_a_few_hundred_pairs(seed: int) -> None:
    verdict = tried("weights/published", 1000, seed)
    assert verdict.refuted_at == (1.0, 1e-5)
    assert verdict.pairs < 600


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["twin/published", "answers/published"])
def test_the_published_twin_and_answers_are_refuted_within_a_hundred_pairs(name: str, seed: int) -> None:
    verdict = tried(name, 200, seed)
    assert verdict.refuted_at == (1.0, 1e-5)
    assert verdict.pairs < 100


def test_the_published_twin_would_stand_with_as_little_as_its_claim_allows() -> None:
    """The case finds what is wrong with the calibration, not that anything was drawn: ε so small that N of it fit.

    In as many pairs as refute the published one.
    """
    case = opened("twin/published")
    config = twin_published.case_config(0.001, 1e-5)
    small = twin_published.case_of_model(twin_published.Published(config, twin_published.CASE_FACTS))
    verdict = judge(replace(case, run=small.run), Stream.from_seed(0), 100, seconds=1e9)
    assert not verdict.refuted


def test_the_published_student_is_refuted_within_a_hundred_pairs() -> None:
    verdict = tried("student/published", 200)
    assert verdict.refuted_at == (1.0, 1e-5)
    assert verdict.pairs < 100


@pytest.mark.long
def test_the_published_student_would_stand_if_its_teacher_had_seen_public_records_alone(monkeypatch: Patch) -> None:
    monkeypatch.setattr(student_published, "_joined", lambda private, public: public)
    assert not tried("student/published", 100).refuted


@pytest.mark.long
def test_the_published_student_is_refuted_with_a_million_times_the_noise_as_well(monkeypatch: Patch) -> None:
    opened("student/published")
    monkeypatch.setattr(student_published.Published, "noise_scale", property(lambda self: 1e6))
    assert tried("student/published", 200).refuted


def test_the_record_that_differs_is_far_above_the_clip_norm_and_the_others_have_no_gradient() -> None:
    channel = Gaussian(dp_sgd_case.step_config("gaussian", 1.0, 1e-5), dp_sgd_case.STEP_FACTS)
    both, others = (torch.from_numpy(records.x) for records in dp_sgd_case.neighbours())
    net, free = channel.net(), Clip(1e9)
    alone, _ = clipped_sum(net, others, torch.zeros(len(others), dtype=torch.int64), free)
    assert all(not g.any() for g in alone.values())
    whole, _ = clipped_sum(net, both, torch.zeros(len(both), dtype=torch.int64), free)
    assert all(g.any() for g in whole.values())
    assert math.sqrt(sum(float(g.square().sum()) for g in whole.values())) > 10 * channel.settings.clip_norm


def test_the_record_turns_one_teacher_round_in_all_its_answers() -> None:
    channel = ensemble.Ensemble(ensemble.court_config(1.0, 1e-5), ensemble.COURT_FACTS)
    questions = ensemble.court_questions(channel)
    one, other = (ensemble.court_moves(channel, questions, known) for known in (True, False))
    assert torch.equal(one[1], other[1])
    assert (one[0, :, 0] > ensemble.COURT_BOUND).all()
    assert (other[0, :, 0] < -ensemble.COURT_BOUND).all()


FITTED_ONCE = ("answers/votes",)  # its first run fits what all others use
SAMPLED = ("weights/gaussian", "weights/shaped")  # the record is drawn only in some runs, and shows less


LESS_NOISE = {
    "weights/gaussian": noise_over(4.0),
    "weights/shaped": noise_over(4.0),
    "weights/head": noise_over(4.0),
    "twin/sharded": noise_over(4.0),
    "student/ensemble": noise_over(4.0),
    "student/neighbours": noise_over(4.0),
    "student/private-teacher": noise_over(4.0),
    "features/noised": noise_over(4.0),
    "answers/head": noise_over(4.0),
    "answers/per-query": grid_noise_over(4),
    "answers/votes": grid_noise_over(4),
    "answers/neighbours": grid_noise_over(4),
}


def test_every_sound_method_says_what_it_would_be_with_less_noise_or_that_it_does_not_know() -> None:
    known = {name for name in SOUND if opened(name).family is not None}
    assert known == {*LESS_NOISE, "twin/kde-sharded"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in ("weights/shaped", "weights/head") else name
        for name in LESS_NOISE
    ],
)
def test_a_case_shows_what_its_power_is_computed_from(name: str, monkeypatch: Patch) -> None:
    """Runs with a quarter of the noise are told apart as well as the family says: the printed power is this case's."""
    case = methods.open_case(name, 1.0, 1e-5) if name in FITTED_ONCE else opened(name)
    assert case.family is not None
    LESS_NOISE[name](monkeypatch)
    runs = 500 if name in SAMPLED else 250  # as many as tell a quarter of the noise from a half and from an eighth
    one, other = (case.run(known, runs, Stream.from_seed(int(known)))[:, 0] for known in (True, False))
    seen, low, high = auc_interval(one, other, 0.999)
    expected = case.family.at(4.0)
    curve = (np.concatenate([[0.0], side, [1.0]]) for side in (expected.other, expected.one))
    area = float(np.trapezoid(*reversed(list(curve))))
    assert low <= area <= high, seen


@pytest.mark.parametrize("kind", ["matrix", "probabilities", "votes", "confident-votes"])
def test_every_kind_of_a_students_answers_stands_and_with_a_third_of_the_noise_falls(
    kind: Kind, monkeypatch: Patch
) -> None:
    """Half the noise falls as well, in many more runs; the tests of the noise itself tell it at once."""
    channel = ensemble.Ensemble(ensemble.court_config(1.0, 1e-5, kind), ensemble.COURT_FACTS)
    case = ensemble.answers_case(channel)
    assert not judge(case, Stream.from_seed(1), 300, seconds=1e9).refuted
    noise_over(3.0)(monkeypatch)
    assert judge(case, Stream.from_seed(1), 6000, seconds=1e9).refuted


@pytest.mark.parametrize(("classes", "gives"), [(3, "logits"), (10, "logits"), (2, "label"), (10, "label")])
def test_answers_with_any_number_of_classes_stand_and_with_a_fraction_of_the_noise_fall(
    classes: int, gives: Gives, monkeypatch: Patch
) -> None:
    """Of ten labels the record's own is rare, so that it takes an eighth of the noise to see it in these answers."""
    case = case_of_answers(PerQuery, 1.0, 1e-5, classes, gives)
    assert not judge(case, Stream.from_seed(1), 1200, seconds=1e9).refuted
    grid_noise_over(8 if (classes, gives) == (10, "label") else 2)(monkeypatch)
    assert judge(case, Stream.from_seed(1), 20_000, seconds=1e9).refuted


def test_an_unknown_method_and_one_without_a_case_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'weights/gaussian'"):
        methods.open_case("weights/gausian", 1.0, 1e-5)
    with pytest.raises(Refused, match="a case"):
        Channel.case.__func__(type("Bare", (Channel,), {"channel": "weights", "method": "bare"}), 1.0, 1e-5)


def test_a_case_that_runs_something_else_than_it_claims_is_refused(monkeypatch: Patch) -> None:
    case = opened("weights/gaussian")
    monkeypatch.setattr(PrivateGradients, "event", GaussianNoise(1.0, 1.0).event)
    with pytest.raises(Refused, match="executed event"):
        case.run(True, 1, Stream.from_seed(0))

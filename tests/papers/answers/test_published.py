"""`answers`/`published`: the paper's algorithm step by step, what it says of itself, and that its claim falls."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import stats

from airlock.accounting import compute_epsilon, to_json
from airlock.auditing import judge
from airlock.data import Facts, Split
from airlock.errors import ConfigError, FormatError, Refused, TrainingError
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Case, Release
from airlock.methods.interface import Interface, Reservation
from airlock.papers.answers import case as published_case
from airlock.papers.answers import published
from airlock.papers.answers.formulas import gaussian_epsilon, neuron_budget
from airlock.papers.answers.neuron import NETWORK, NeuronAnswerer, NeuronNoise, softmax
from airlock.papers.answers.published import Published
from airlock.papers.answers.settings import ALPHAS
from airlock.testing import ClaimContract
from airlock.threads import one_thread
from airlock.training import Run, predict
from airlock.training.gradients import Convexified, MeanLoss

NOISES = ("laplace", "gaussian")


def answers_of(released: Release, split: Split, seed: int = 0) -> np.ndarray:
    interface = released.artefact
    assert isinstance(interface, Interface)
    made = Published.answerer(interface, released.secrets)
    found = made.answer(split.test.x.astype(np.float32), made.reserve(len(split.test)), Stream.from_seed(seed))
    assert found.values is not None
    assert np.array_equal(found.labels, found.values.argmax(1))
    return found.values


class TestPublished(ClaimContract):
    channel, method = "answers", "published"
    settings: ClassVar[dict[str, Any]] = {"epochs": 3}

    # A claim promises nothing, and what leaves is an interface: these tests of the contract are kept in that sense.

    def test_a_smaller_epsilon_means_a_smaller_epsilon(self) -> None:
        less, more = (self.build(epsilon=e).plan() for e in (0.5, self.epsilon))
        assert less.guarantee.claim.epsilon == 0.5  # type: ignore[union-attr]
        assert less.details["noise_scale"] == pytest.approx(4 * float(more.details["noise_scale"]))

    def test_repeated_runs_are_paid_for(self) -> None:
        once, often = (self.build(tuning_runs=runs).plan() for runs in (1, 5))
        assert often.details["noise_scale"] == pytest.approx(5 * float(once.details["noise_scale"]))
        assert often.guarantee.events == dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 5)

    def test_what_leaves_works_on_test_records(self, released: Release, split: Split) -> None:
        assert released.utility.records == len(split.test)
        values = answers_of(released, split)
        assert values.shape == (len(split.test), 10)
        assert np.allclose(values.sum(1), 1)

    def test_the_seed_of_the_noise_changes_what_leaves(self, released: Release, split: Split) -> None:
        one, other, same = (answers_of(released, split, seed) for seed in (1, 2, 1))
        assert np.array_equal(one, same)
        assert (one != other).any(1).mean() > 0.99

    def test_insecure_noise_is_recorded(self, split: Split) -> None:
        assert not self.release(split).secure_noise
        assert self.build().release(split, Randomness.make(0), Run()).secure_noise

    # What leaves, and what stays.

    def test_the_interface_is_public_and_the_network_is_for_the_vault(self, released: Release, split: Split) -> None:
        interface = released.artefact
        assert interface == self.build().interface()  # type: ignore[attr-defined]
        assert isinstance(interface, Interface)
        assert (interface.gives, interface.units, interface.input_shape) == ("probabilities", 1000, (1, 8, 8))
        assert set(interface.figures) == {"noise", "logit_sensitivity", "probability_sensitivity", "neuron_epsilon"}
        made = self.build()
        assert isinstance(made, Published)
        net = made.train(split.private, Convexified(1.0, "elements", 0.001), Run())
        answerer = Published.answerer(interface, released.secrets)
        assert isinstance(answerer, NeuronAnswerer)
        wanted = predict(net, split.test).double().numpy()
        assert np.allclose(answerer.logits(split.test.x.astype(np.float32)), wanted, atol=1e-4)
        assert net.training is False

    def test_nothing_is_promised_and_the_claim_is_that_of_an_answer(self) -> None:
        promise = self.build().plan().guarantee
        assert (promise.status, promise.unit) == ("claimed", "none")
        assert math.isinf(promise.epsilon)
        assert promise.claim is not None
        assert (promise.claim.epsilon, promise.claim.delta) == (self.epsilon, self.delta)
        assert "for one answer, which does not hold" in promise.claim.theorem
        assert "1,000 answers would have ε = 2000" in promise.claim.theorem
        assert published.NOT_NOISY in promise.assumptions

    def test_the_gaussian_claim_says_what_gaussian_dp_means(self) -> None:
        claim = self.build(settings={"noise": "gaussian"}, epsilon=1.0, delta=1e-5).plan().guarantee.claim
        assert claim is not None
        assert "(4.38, 1e-05)-DP" in claim.theorem

    def test_the_papers_figures_are_in_the_plan(self) -> None:
        """Table 6 and the stability of Table 5, for Location."""
        config = self.config(data="location30", split={"test": 0.0, "holdout": 0.0}, settings={"noise": "gaussian"})
        facts = Facts("location30", (446,), tuple(map(str, range(30))), 1200, 1, "x")
        details = Published(config, facts).plan().details
        assert round(float(details["claimed_lipschitz_constant"]), 4) == 1.8044
        assert round(float(details["claimed_logit_sensitivity"]), 4) == 3.1190
        assert details["claimed_probability_sensitivity"] == 1.0
        assert round(float(details["claimed_stability"]), 4) == 10.8532
        assert details["claimed_neuron_epsilon"] == pytest.approx(self.epsilon / math.sqrt(121))
        assert (details["steps"], details["alpha"]) == (1200, 1.0)

    def test_defaults_are_the_papers(self) -> None:
        made = self.build(settings={})
        assert isinstance(made, Published)
        s = made.settings
        assert (s.l2, s.learning_rate, s.batch_size, s.epochs, s.loss) == (0.001, 0.001, 100, 100, "elements")
        assert made.recipe.optimiser == "adam"
        facts = Facts("cifar10", (3, 32, 32), tuple("0123456789"), 50000, 10000, "x")
        assert Published(self.config(data="cifar10"), facts).alpha == 2.0

    def test_both_shares_of_epsilon_can_be_had(self) -> None:
        for settings, parts in (
            ({"noise": "gaussian"}, math.sqrt(41)),
            ({"noise": "gaussian", "shares": "code"}, 2 * math.sqrt(10) + 1),
            ({}, 21),
            ({"shares": "code"}, 21),
        ):
            made = self.build(settings=settings)
            assert isinstance(made, Published)
            assert made.noise.epsilon == pytest.approx(self.epsilon / parts)

    @pytest.mark.parametrize("change", [{"loss": "records", "alpha": 3.0}, {"loss": "mean"}, {"noise": "gaussian"}])
    def test_every_setting_gives_answers(self, split: Split, change: dict[str, Any]) -> None:
        released = self.release(split, settings={**self.settings, **change})
        assert np.isfinite(answers_of(released, split)).all()

    def test_a_large_epsilon_answers_like_the_network_and_a_small_one_does_not(self, split: Split) -> None:
        settings = {"epochs": 40}
        little, much = (self.release(split, settings=settings, epsilon=e).utility.accuracy for e in (0.01, 1000.0))
        assert much > 0.85
        assert little < 0.65

    def test_alpha_is_searched_by_accuracies_without_convexification_and_that_is_said(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[object] = []
        train = Published.train

        def few(self: Published, records: Any, objective: Any, run: Run, label: str = "training") -> Any:
            tried.append(objective)
            return train(self, records, objective, run, label)

        monkeypatch.setattr(Published, "train", few)
        settings = {"epochs": 1, "alpha": "search", "loss": "records"}
        released = self.release(split, settings=settings)
        assert tried[0] == MeanLoss(0.001)
        assert tried[1:21] == [Convexified(a, "records", 0.001) for a in ALPHAS]
        assert released.inside["alpha_found"] == tried[21].alpha  # type: ignore[attr-defined]
        assert any("α was chosen" in sentence for sentence in released.guarantee.assumptions)
        assert not any("α was chosen" in sentence for sentence in self.build().plan().guarantee.assumptions)

    def test_the_search_takes_what_is_closest_to_the_original_loss(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.build(settings={"alpha": "search"})
        assert isinstance(made, Published)
        right = {"mean": 0.5, 3.5: 0.51, 7.0: 0.49}

        def train(records: object, objective: Any, run: Run, label: str = "") -> Any:
            return right.get(getattr(objective, "alpha", "mean"), 0.9)

        monkeypatch.setattr(made, "train", train)
        monkeypatch.setattr(published, "count_correct", lambda net, part: net * len(part))
        assert made.search(split, Run()) == 3.5  # of two equally close, the smaller

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"settings": {"alpha": 0.0}}, "alpha"),
            ({"settings": {"alpha": 10.5}}, "alpha"),
            ({"settings": {"loss": "mean", "alpha": 1.0}}, "no settings.alpha"),
            ({"settings": {"judged_on": "public"}}, "judged_on"),
            ({"settings": {"judged_on": "public", "alpha": "search"}}, "public records"),
            ({"settings": {"queries": 0}}, "queries"),
            ({"settings": {"l2": 0.0}}, "l2"),
            ({"net": "digits-net"}, "mlp"),
        ],
    )
    def test_bad_settings_are_refused(self, change: dict[str, Any], word: str) -> None:
        with pytest.raises(ConfigError, match=word):
            self.build(**change)

    def test_a_network_that_diverged_is_refused(self, split: Split) -> None:
        with pytest.raises(TrainingError, match="finite parameters"):
            self.release(split, settings={**self.settings, "learning_rate": 1e30})

    def test_more_answers_than_reserved_and_other_weights_are_refused(self, released: Release, split: Split) -> None:
        assert isinstance(released.artefact, Interface)
        made = Published.answerer(released.artefact, released.secrets)
        assert made.reserve(3) == Reservation(3, 3)
        with pytest.raises(Refused, match="3 queries"):
            made.answer(split.test.x[:4].astype(np.float32), made.reserve(3), Stream.from_seed(0))
        with pytest.raises(FormatError, match="weights"):
            Published.answerer(released.artefact, {NETWORK: {}})
        with pytest.raises(FormatError, match="figures"):
            NeuronNoise.read({"noise": "laplace"})


# The mechanism: its distribution, and that half the noise would be seen.

LOGITS = np.array([[1.0, 0.0, -1.0]])


def picked_noise(noise: NeuronNoise, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which neuron was picked and what was added, from the answers alone and the known logits."""
    told = np.log(noise.perturb(LOGITS.repeat(count, 0), Stream.from_seed(seed)))
    shifted = told - LOGITS
    gaps = np.stack([np.abs(shifted[:, (v + 1) % 3] - shifted[:, (v + 2) % 3]) for v in range(3)], 1)
    v = gaps.argmin(1)
    assert (gaps.min(1) < 1e-9).all()  # two of three are told without noise: this is the defect
    rows = np.arange(count)
    return v, shifted[rows, v] - shifted[rows, (v + 1) % 3]


@pytest.mark.parametrize("kind", NOISES)
def test_neuron_and_noise_are_distributed_as_the_paper_says(kind: Any) -> None:
    noise, count = NeuronNoise(kind, 0.5, 0.8, 2.0), 20_000
    v, added = picked_noise(noise, count, 3)
    p = softmax(LOGITS)[0]
    wanted = np.exp(2.0 * p / (2 * 0.8))
    wanted /= wanted.sum()
    assert np.allclose(noise.chances(LOGITS)[0], wanted)
    assert stats.chisquare(np.bincount(v, minlength=3), count * wanted).pvalue > 1e-3
    law = stats.laplace if kind == "laplace" else stats.norm
    assert stats.kstest(added, law(scale=0.25).cdf).pvalue > 1e-3
    assert stats.kstest(added, law(scale=0.125).cdf).pvalue < 1e-9
    assert np.corrcoef(v, added)[0, 1] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("kind", NOISES)
def test_half_the_noise_would_be_seen(kind: Any) -> None:
    half = NeuronNoise(kind, 0.25, 0.8, 2.0)
    law = stats.laplace if kind == "laplace" else stats.norm
    assert stats.kstest(picked_noise(half, 5000, 3)[1], law(scale=0.25).cdf).pvalue < 1e-9


def test_noise_is_never_drawn_twice_and_every_row_has_its_own() -> None:
    noise, stream = NeuronNoise("laplace", 1.0, 1.0, 1.0), Stream.from_seed(0)
    found = noise.perturb(LOGITS.repeat(50, 0), stream)
    assert len(np.unique(found, axis=0)) == 50
    with pytest.raises(RuntimeError, match="already used"):
        noise.perturb(LOGITS, stream)
    assert stream.drawn_on == ("cpu",)


def test_huge_noise_does_not_overflow() -> None:
    found = NeuronNoise("laplace", 1e6, 1.0, 1e-3).perturb(LOGITS.repeat(100, 0), Stream.from_seed(0))
    assert np.isfinite(found).all()
    assert np.allclose(found.sum(1), 1)


def test_gaussian_dp_is_turned_into_epsilon_and_delta() -> None:
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377, abs=1e-3)
    assert gaussian_epsilon(0.5, 1e-5) == pytest.approx(
        compute_epsilon(dpa.GaussianDpEvent(2.0), 1e-5).epsilon, rel=1e-3
    )
    assert gaussian_epsilon(1e-7, 1e-5) == 0.0


# Court.


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    with one_thread():
        yield


def channel_for(classes: int, epsilon: float = 1.0) -> Published:
    return Published(published_case.config_for(epsilon, 1e-5), published_case.facts(classes))


@cache
def networks(classes: int) -> published_case.Kept:
    return published_case.train(channel_for(classes))


def case(classes: int) -> Case:
    return published_case.of_networks(channel_for(classes), networks(classes))


@pytest.mark.parametrize("classes", [3, 10])
def test_with_three_classes_or_more_one_answer_tells_the_network_without_error(classes: int) -> None:
    scores = [case(classes).run(known, 200, Stream.from_seed(known)) for known in (True, False)]
    assert (scores[0][:, 1] > 0).all()
    assert (scores[1][:, 1] < 0).all()


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_claim_of_an_answer_is_refuted(classes: int) -> None:
    verdict = judge(case(classes), Stream.from_seed(0), 2000, seconds=1e9)
    assert verdict.refuted_at == (1.0, 1e-5)
    assert verdict.pairs < 1000


def test_with_two_classes_the_trained_networks_are_further_apart_than_the_noise_was_made_for() -> None:
    """With Laplace noise on z_0 − z_1 alone, ε is exactly its move over the noise's scale."""
    channel = channel_for(2)
    sides = [NeuronAnswerer(channel.interface(), networks(2)[known]) for known in (True, False)]
    z = [side.logits(published_case.QUERY)[0] for side in sides]
    move = abs((z[0][0] - z[0][1]) - (z[1][0] - z[1][1]))
    assert move > 2 * channel.sensitivities.of_a_logit  # what the paper's sensitivity allows
    assert move / channel.noise.scale > 1.5  # where ε = 1 is claimed
    assert channel.noise.epsilon == neuron_budget(1.0, 2, "laplace")


def test_with_two_classes_and_noise_for_the_real_move_the_claim_would_stand() -> None:
    """The court sees the sensitivity, not that anything was answered: ε so small that the move fits."""
    small = published_case.of_networks(channel_for(2, 0.3), networks(2))
    bold = Case(case(2).claim, small.pair, small.statistics, small.run)
    assert not judge(bold, Stream.from_seed(0), 1000, seconds=1e9).refuted


def test_the_events_of_a_claim_are_not_private() -> None:
    plan = channel_for(2).plan()
    assert to_json(plan.guarantee.events) == to_json(dpa.NonPrivateDpEvent())
    assert published.NOT_NOISY not in plan.guarantee.assumptions
    assert plan.details["epsilon_per_answer"] == "none: the sensitivity is no bound"

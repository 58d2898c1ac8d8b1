"""`answers`/`per-query`: the contract, the noise of an answer, hostile queries, and answers that were not paid for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from airlock import data, methods
from airlock.accounting import calibrate, compute_epsilon, to_json
from airlock.auditing import AuditSettings
from airlock.bundle import Vault, verify, weigh
from airlock.bundle.answering import open_interface
from airlock.data import Records, Split
from airlock.errors import ConfigError, DataError, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods.answers.answerer import GUMBEL, Noise, least_noise
from airlock.methods.answers.linear_head import embed_queries
from airlock.methods.answers.per_query import HEAD, NoiseAdvice, NoisyLogits, PerQuery, case_channel, head_noise_at_most
from airlock.methods.interface import Interface, as_queries, ask
from airlock.pipeline import audit_bundle, make_release
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.convex import LogisticHead
from airlock.training.front_ends.front import front_of


class TestLogits(MethodContract):
    channel, method = "answers", "per-query"
    settings: ClassVar[dict[str, Any]] = {"features": "pixels", "queries": 20}

    @classmethod
    def per_query(cls, **changes: Any) -> PerQuery:
        found = cls.build(**changes)
        assert isinstance(found, PerQuery)
        return found

    @classmethod
    def answerer(cls, split: Split, **changes: Any) -> NoisyLogits:
        made = cls.release(split, **changes)
        assert isinstance(made.artefact, Interface)
        found = PerQuery.answerer(made.artefact, made.secrets)
        assert isinstance(found, NoisyLogits)
        return found

    def test_all_answers_are_paid_for_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        z = float(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.5 / z**2, 0.0), 20)
        half = dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.5 / (z / 2) ** 2, 0.0), 20)
        assert compute_epsilon(half, self.delta).epsilon > 1.5 * self.epsilon
        assert plan.details["noise_on_a_logit"] == pytest.approx(0.2)

    def test_the_noise_of_an_answer_is_the_stated_one_on_every_logit(self, split: Split) -> None:
        answerer = self.answerer(split)
        scale = float(answerer.interface.figures["sensitivity"]) * float(answerer.interface.figures["noise_multiplier"])
        query = np.repeat(as_queries(split.test)[:1], 3000, 0)
        found = ask(answerer, query, Stream.from_seed(3)).values
        assert found is not None
        noise = found - self.logits(answerer, query[:1])
        for column in noise.T:
            assert stats.kstest(column / scale, "norm").pvalue > 1e-4
            assert stats.kstest(column / scale * 2, "norm").pvalue < 1e-4
        assert np.abs(np.corrcoef(noise.T) - np.eye(10)).max() < 0.1
        steps = found / answerer._grid.grid
        assert np.array_equal(steps, np.rint(steps))

    @staticmethod
    def logits(answerer: NoisyLogits, query: NDArray[np.float32]) -> NDArray[np.float64]:
        features = embed_queries(answerer.body, query, LogisticHead(10, 1.0, 1))
        return np.asarray((features @ answerer._head.mT).numpy())

    def test_who_asks_again_gets_fresh_noise_on_the_same_features_which_are_computed_once(self, split: Split) -> None:
        answerer = self.answerer(split)
        own, seen = as_queries(split.test)[:3], []
        front = answerer.body
        answerer.body = torch.nn.Sequential(torch.nn.Identity(), front)
        answerer.body[0].register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
        places = [2, 0, 2, 1, 0, 2]
        features = embed_queries(answerer.body, own[places], LogisticHead(10, 1.0, 1))
        assert seen == [3]
        assert torch.equal(features, embed_queries(front, own[[2, 0, 1]], LogisticHead(10, 1.0, 1))[[0, 1, 0, 2, 1, 0]])
        found = ask(answerer, np.repeat(own[:1], 50, 0), Stream.from_seed(1))
        assert len(np.unique(found.labels)) > 1
        assert found.values is None or len(np.unique(found.values[:, 0])) == 50

    @pytest.mark.parametrize("features", ["pixels", "scattering"])
    def test_no_query_shows_more_of_a_record_than_the_sensitivity(self, split: Split, features: str) -> None:
        """Also huge ones, and those with tiny or constant numbers; against heads with and without a record."""
        channel = self.per_query(settings={**self.settings, "features": features})
        net = channel.ready()
        some = split.private.take(np.arange(200))
        nobody = some.take(np.arange(0))
        sides = [some, some.take(np.arange(1, 200))]
        kept = [channel.kept(net, Split(channel.facts, s, nobody, nobody, nobody), Run()) for s in sides]
        heads = [torch.from_numpy(k[HEAD]["weight"]) for k in kept]
        figures = channel.interface().figures
        chance = np.random.default_rng(0)
        own = chance.normal(size=(40, *split.facts.shape))
        scale = np.resize([1e-40, 1e-20, 1.0, 1e10, 1e38], 40).reshape(-1, 1, 1, 1)
        queries = np.concatenate(
            [
                (own / np.abs(own).max() * scale).astype(np.float32),
                np.full((1, *split.facts.shape), 3e38, np.float32),
                np.zeros((1, *split.facts.shape), np.float32),
                as_queries(some.take(np.arange(3))),
            ]
        )
        body = front_of(net, torch.device("cpu"), torch.float32)
        features_found = embed_queries(body, queries, LogisticHead(10, 1.0, 1))
        assert float(features_found.norm(dim=1).max()) <= 1.0
        moved = (features_found @ (heads[0] - heads[1]).mT).numpy()
        assert np.isfinite(moved).all()
        assert 0 < np.linalg.norm(moved, axis=1).max() <= float(figures["sensitivity"])
        assert np.ptp(moved, axis=1).max() <= float(figures["spread"])

    def test_a_head_that_is_too_long_is_shortened_and_no_two_come_further_apart(self) -> None:
        objective, chance = LogisticHead(3, 1.0, 100), torch.Generator().manual_seed(0)
        for _ in range(50):
            a, b = 3 * torch.randn(2, 3, 5, generator=chance, dtype=torch.float64)
            c, d = (objective.projected(head, 2.0) for head in (a, b))
            assert max(float(c.norm()), float(d.norm())) <= 2 + 1e-12
            assert float((c - d).norm()) <= float((a - b).norm()) + 1e-12

    def test_a_reservation_is_answered_once(self, split: Split) -> None:
        answerer, x = self.answerer(split), as_queries(split.test)[:2]
        paid = answerer.reserve(2)
        assert (paid.rows, paid.units) == (2, 2)
        answerer.answer(x, paid, Stream.from_seed(0))
        with pytest.raises(Refused, match="reservation"):
            answerer.answer(x, paid, Stream.from_seed(1))
        cancelled = answerer.reserve(2)
        answerer.cancel(cancelled)
        with pytest.raises(Refused, match="reservation"):
            answerer.answer(x, cancelled, Stream.from_seed(1))
        with pytest.raises(Refused, match="reservation"):
            answerer.cancel(cancelled)
        with pytest.raises(Refused, match="reservation"):
            answerer.answer(x, self.answerer(split).reserve(2), Stream.from_seed(1))
        with pytest.raises(DataError, match="that were reserved"):
            answerer.answer(x, answerer.reserve(1), Stream.from_seed(1))
        with pytest.raises(DataError, match="at least one"):
            answerer.reserve(0)
        assert answerer.reserve(3).units == 3

    def test_a_query_that_is_none_leaves_the_reservation_open(self, split: Split) -> None:
        answerer, x = self.answerer(split), as_queries(split.test)[:1]
        paid = answerer.reserve(1)
        with pytest.raises(DataError, match="finite"):
            answerer.answer(np.full_like(x, np.inf), paid, Stream.from_seed(0))
        assert len(answerer.answer(x, paid, Stream.from_seed(0)).labels) == 1

    def test_uint8_pictures_are_asked_about_as_they_were_learnt(self) -> None:
        x = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
        as_sent = as_queries(Records(x, np.zeros(3, np.int64)))
        assert as_sent.dtype == np.float32
        assert as_sent.max() <= 1
        assert np.array_equal(as_sent, x.astype(np.float32) / np.float32(255))

    def test_a_bundle_verifies_passes_the_gate_and_opens_again(self, tmp_path: Path) -> None:
        made = make_release(self.config(), tmp_path / "bundle", vault=tmp_path / "vault")
        vault = Vault.open(tmp_path / "vault")
        assert verify(tmp_path / "bundle", vault, gated=True).ok
        assert not weigh(made.bundle.card, ()).reject
        assert [file.name for file in (tmp_path / "bundle").glob("model*")] == ["model.sig"]
        answerer, split = open_interface(tmp_path / "bundle", vault), data.load(self.config())
        first = PerQuery.answerer(made.release.artefact, made.release.secrets)  # type: ignore[arg-type]
        says = [ask(one, as_queries(split.test), Stream.from_seed(5)).values for one in (first, answerer)]
        assert np.array_equal(says[0], says[1])  # type: ignore[arg-type]

    def test_an_audit_asks_through_the_interface_and_says_what_it_left_out(self, tmp_path: Path) -> None:
        make_release(self.config(), tmp_path / "bundle", vault=tmp_path / "vault")
        settings = AuditSettings(most=60, queries=3)
        found = audit_bundle(tmp_path / "bundle", settings, vault=tmp_path / "vault").dossier
        names = [attack.name for attack in found.audit.attacks]
        assert names[1:] == ["label only, shifted", "label only, noise"]
        assert {attack.view for attack in found.audit.attacks} == {"interface"}
        assert {attack.members for attack in found.audit.attacks} == {60}
        assert any("shadow models" in line for line in found.audit.not_tested)
        assert any("each was asked about 8 times at most" in line for line in found.audit.not_tested)
        assert found.utility.records > 0
        assert verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"), gated=True).ok

    def test_settings_that_cannot_be_kept_are_refused_before_data(self) -> None:
        with pytest.raises(ConfigError, match="per-query"):
            self.build(net="mlp")
        for wrong in ({"queries": 0}, {"gives": "probabilities"}):
            with pytest.raises(ConfigError, match=r"settings\."):
                self.build(settings=wrong)


class TestLabel(TestLogits):
    settings: ClassVar[dict[str, Any]] = {"features": "pixels", "queries": 500, "gives": "label"}

    def test_all_answers_are_paid_for_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        own = GUMBEL / float(plan.details["noise_multiplier"])
        assert plan.details["mechanism"] == "exponential"
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.ZCDpEvent(own**2 / 8, 0.0), 500)
        half = dpa.SelfComposedDpEvent(dpa.ZCDpEvent((2 * own) ** 2 / 8, 0.0), 500)
        assert compute_epsilon(half, self.delta).epsilon > 1.5 * self.epsilon

    def test_the_noise_of_an_answer_is_the_stated_one_on_every_logit(self, split: Split) -> None:
        answerer = self.answerer(split)
        query = np.repeat(as_queries(split.test)[:1], 20_000, 0)
        found = ask(answerer, query, Stream.from_seed(3))
        assert found.values is None
        figures = answerer.interface.figures
        width = float(figures["spread"]) * float(figures["noise_multiplier"]) / GUMBEL
        counts = np.bincount(found.labels, minlength=10)

        def fits(scale: float) -> bool:
            weights = np.exp(self.logits(answerer, query[:1])[0] / scale)
            return bool(stats.chisquare(counts, len(query) * weights / weights.sum()).pvalue > 1e-4)

        assert fits(width)
        assert not fits(width / 2)


def test_few_labels_are_accounted_as_pure_and_many_as_concentrated() -> None:
    few, many = (least_noise(True, queries, 1, 1.0, 1e-5) for queries in (1, 300))
    assert (few.mechanism, many.mechanism) == ("exponential, pure", "exponential")
    assert few.multiplier == pytest.approx(GUMBEL, rel=2e-3)
    logits = least_noise(False, 300, 1, 1.0, 1e-5)
    assert many.multiplier == pytest.approx(GUMBEL / 2 * logits.multiplier, rel=2e-3)
    assert many.multiplier < logits.multiplier


@pytest.mark.parametrize("mechanism", ["gaussian", "exponential", "exponential, pure"])
def test_the_planned_event_is_that_of_the_mechanism(mechanism: Any) -> None:
    noise = Noise(mechanism, 3.5)
    channel = case_channel(PerQuery, 1.0, 1e-5, 2, "label")
    vars(channel)["noise"] = noise
    figures = channel.interface().figures
    kept = {"front": {}, "head": {"weight": np.zeros((2, 3))}}
    answerer = NoisyLogits(Interface("label", (2,), ("a", "b"), 5, "one answer", figures), kept)
    assert to_json(answerer.event) == to_json(noise.event)


def test_digits_at_epsilon_8_with_ten_queries_reach_79_percent() -> None:
    """The mean over seeds; single releases are between 0.73 and 0.85."""
    found = []
    for seed in range(6):
        config = TestLogits.config(epsilon=8.0, seed=seed, settings={"queries": 10, "gives": "label"})
        channel = methods.build(config, data.describe(config))
        found.append(channel.release(data.load(config), Randomness.make(seed, seed), Run()).utility.accuracy)
    assert sum(found) / len(found) >= 0.77


def test_the_noise_does_not_grow_with_queries_faster_than_their_root() -> None:
    one, many = (least_noise(False, queries, 1, 1.0, 1e-5).multiplier for queries in (1, 400))
    assert many == pytest.approx(one * math.sqrt(400), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "queries", "gives", "first", "inside"),
    [
        ({}, 1000, "logits", "head", "votes"),
        ({}, 10**6, "logits", "head", "per-query"),
        ({}, 1, "label", "per-query", "per-query"),
        ({"epsilon": 8.0, "data": "mnist"}, 1000, "logits", "head", "votes"),
        ({"epsilon": 8.0, "data": "mnist", "split": {"public": 0.2}}, 1000, "logits", "head", "neighbours"),
    ],
)
def test_the_plan_says_which_method_to_take(
    changes: dict[str, Any], queries: int, gives: str, first: str, inside: str
) -> None:
    facts = data.Facts("made up", (4,), tuple("0123456789"), 10**6 if changes else 2000, 10, "x")
    config = TestLogits.config(settings={"queries": queries, "gives": gives, "tolerance": 0.1}, **changes)
    details = methods.build(config, facts).plan().details
    advice = str(details["advice"])
    assert f"take '{first}'" in advice
    assert f"If no model may leave: '{inside}'" in advice
    noise, alone = float(details["noise_on_a_logit"]), float(details["noise_of_one_head_at_most"])
    assert (noise > alone) == (first == "head")


def test_the_advice_names_both_figures() -> None:
    many, one = NoiseAdvice(100, 1.0, 10.0, 1.0, 2000), NoiseAdvice(1, 1.0, 1.0, 1.0, 2000)
    assert many.recommended == "head"
    assert many.says.startswith(
        "100 queries: noise of 10 on every logit if each is answered separately, at most 1 with one head"
    )
    assert one.says.startswith("One query: the same noise either way")


@pytest.mark.parametrize("gives", ["logits", "label"])
@pytest.mark.parametrize("queries", [1, 3, 1000])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_one_head_needs_no_more_noise_than_the_advice_says(gives: str, queries: int, epsilon: float) -> None:
    """Without calibrating it for every plan; here it is, and the bound is not far off."""
    noise = least_noise(gives == "label", queries, 1, epsilon, 1e-5)
    bound = head_noise_at_most(noise, queries, 1, epsilon, 1e-5)
    exact = calibrate(dpa.GaussianDpEvent, epsilon, 1e-5)
    assert exact <= bound * (1 + 1e-3) <= 1.5 * exact

"""`answers`/`votes`: the contract, counts and their noise, and how many heads there are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy.stats import norm

from airlock.accounting import compute_epsilon
from airlock.bundle import Vault, verify, weigh
from airlock.bundle.answering import open_interface
from airlock.data import Split
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods.answers.linear_head import embed_queries
from airlock.methods.answers.votes import HEADS, MOVED, NoisyVotes, Votes, fit_head
from airlock.methods.interface import Interface, as_queries, ask
from airlock.pipeline import make_release
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.convex import LogisticHead, solve


class TestVotes(MethodContract):
    channel, method = "answers", "votes"
    settings: ClassVar[dict[str, Any]] = {"features": "pixels", "queries": 20, "heads": 60}

    @classmethod
    def votes(cls, **changes: Any) -> Votes:
        found = cls.build(**changes)
        assert isinstance(found, Votes)
        return found

    def test_the_events_are_the_answers_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        z = float(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.5 / z**2, 0.0), 20)
        half = dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.5 / (z / 2) ** 2, 0.0), 20)
        assert compute_epsilon(half, self.delta).epsilon > 1.5 * self.epsilon

    def test_one_record_moves_one_vote(self, split: Split) -> None:
        channel = self.votes()
        net, some, x = channel.ready(), split.private.take(np.arange(200)), as_queries(split.test)

        def counts(part: np.ndarray) -> np.ndarray:
            answerer = NoisyVotes(channel.interface(), channel.kept(net, some.take(part), 40, Run()))
            return answerer.counts(embed_queries(answerer.body, x, LogisticHead(10, 1.0, 1)))

        whole = counts(np.arange(200))
        assert (whole.sum(1) == 40).all()
        for i in (0, 111, 199):
            assert np.linalg.norm(whole - counts(np.delete(np.arange(200), i)), axis=1).max() <= MOVED

    def test_one_record_changes_one_head_to_the_last_bit(self, split: Split) -> None:
        channel, some = self.votes(), split.private.take(np.arange(300))
        net = channel.ready()
        whole = channel.kept(net, some, 60, Run())[HEADS]["weight"]
        for i in (0, 17, 299):
            less = channel.kept(net, some.take(np.delete(np.arange(300), i)), 60, Run())[HEADS]["weight"]
            assert (whole != less).any((1, 2)).sum() == 1

    def test_a_record_changes_one_head_even_if_it_is_there_many_times(self, split: Split) -> None:
        channel, ready = self.votes(), self.votes().ready()
        heads = [
            channel.kept(ready, split.private.take(np.zeros(count, np.int64)), 50, Run())[HEADS]["weight"]
            for count in (29, 30)
        ]
        assert (heads[0] != heads[1]).any((1, 2)).sum() == 1

    def test_a_head_of_few_records_is_that_of_all_dimensions(self) -> None:
        plain, chance = self.votes().objective(100), torch.Generator().manual_seed(0)
        features = torch.randn(9, 40, generator=chance, dtype=torch.float64)
        features /= features.norm(dim=1, keepdim=True)
        labels = torch.randint(0, 10, (9,), generator=chance)
        tight = LogisticHead(10, plain.regularisation, plain.records, 1e-4)
        short, long = fit_head(features, labels, tight), solve([(features, labels)], tight)[0]
        assert float((short - long).norm()) < 1e-3 * float(long.norm())
        assert not fit_head(features[:0], labels[:0], tight).any()

    def test_a_bundle_verifies_passes_the_gate_and_opens_again(self, tmp_path: Path) -> None:
        made = make_release(self.config(), tmp_path / "bundle", vault=tmp_path / "vault")
        vault = Vault.open(tmp_path / "vault")
        assert verify(tmp_path / "bundle", vault, gated=True).ok
        assert not weigh(made.bundle.card, ()).reject
        assert isinstance(open_interface(tmp_path / "bundle", vault), NoisyVotes)

    def test_few_heads_are_refused_before_training(self) -> None:
        with pytest.raises(ConfigError, match="drowned"):
            self.build(settings={**self.settings, "queries": 10_000}).plan()

    def test_the_number_of_heads_follows_from_the_noise_and_the_records(self) -> None:
        channel = self.votes(settings={"features": "pixels", "queries": 5})
        assert channel.heads == math.ceil(8 * MOVED * channel.noise.multiplier)
        many = self.votes(settings={"features": "pixels", "queries": 200})
        assert many.heads == many.records // 5

    def test_digits_are_answered(self, split: Split) -> None:
        released = self.release(split, epsilon=8.0, settings={"features": "pixels", "queries": 20})
        assert released.utility.accuracy > 0.7


def test_the_noise_on_the_counts_is_as_stated() -> None:
    """Two classes and 7 votes more for one of them: how often the label names it is a matter of the noise alone."""
    multiplier, heads = 5.0, np.zeros((21, 2, 3), np.float32)
    heads[:14, 1, 2] = 1.0
    heads[14:, 0, 2] = 1.0
    figures = {"net": "pixels-linear", "noise_multiplier": multiplier}
    interface = Interface("label", (2,), ("0", "1"), 10**6, "one answer", figures)
    answerer = NoisyVotes(interface, {HEADS: {"weight": heads}, "front": {}})
    labels = ask(answerer, np.zeros((40_000, 2), np.float32), Stream.from_seed(3)).labels
    stated = norm.cdf(7 / (math.sqrt(2) * MOVED * multiplier))
    spread = math.sqrt(stated * (1 - stated) / len(labels))
    assert abs(labels.mean() - stated) < 4 * spread
    assert abs(labels.mean() - norm.cdf(7 / (math.sqrt(2) * MOVED * multiplier / 2))) > 20 * spread

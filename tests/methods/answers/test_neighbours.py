"""`answers`/`neighbours`: the contract, what one record moves, and how many vote."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest

from airlock.accounting import compute_epsilon
from airlock.bundle import Vault, verify, weigh
from airlock.bundle.answering import open_interface
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods.answers.answerer import FRONT, GUMBEL
from airlock.methods.answers.linear_head import embed_queries
from airlock.methods.answers.neighbours import GRAPH, TABLE, Neighbours, NeighbourVotes, case_public, case_sides
from airlock.methods.interface import as_queries, ask
from airlock.pipeline import make_release
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.convex import LogisticHead


class TestNeighbours(MethodContract):
    channel, method = "answers", "neighbours"
    settings: ClassVar[dict[str, Any]] = {"features": "pixels", "queries": 20, "neighbours": 60}
    shares: ClassVar[dict[str, float]] = {"public": 0.2, "test": 0.1, "holdout": 0.5}

    @classmethod
    def neighbours(cls, **changes: Any) -> Neighbours:
        found = cls.build(**changes)
        assert isinstance(found, Neighbours)
        return found

    @classmethod
    def answering(cls, channel: Neighbours, private: Records, public: Records) -> NeighbourVotes:
        return NeighbourVotes(channel.interface(), channel.kept(channel.ready(), private, public, Run()))

    def test_the_events_are_the_answers_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build(settings={**self.settings, "queries": 100}).plan()
        event = plan.guarantee.events
        rho = (GUMBEL / float(plan.details["noise_multiplier"])) ** 2 / 8
        assert event == dpa.SelfComposedDpEvent(dpa.ZCDpEvent(rho, 0.0), 100)
        half = dpa.SelfComposedDpEvent(dpa.ZCDpEvent(4 * rho, 0.0), 100)
        assert compute_epsilon(half, self.delta).epsilon > 1.5 * self.epsilon

    def test_one_record_moves_one_count_by_one(self, split: Split) -> None:
        channel, some = self.neighbours(), split.private.take(np.arange(150))

        def counts(part: np.ndarray) -> np.ndarray:
            answerer = self.answering(channel, some.take(part), split.public)
            features = embed_queries(answerer.body, as_queries(split.test), LogisticHead(10, 1.0, 1))
            return answerer.counts(features)

        whole = counts(np.arange(150))
        for i in (0, 77, 149):
            moved = whole - counts(np.delete(np.arange(150), i))
            assert (moved >= 0).all()
            assert moved.sum(1).max() <= 1
            assert moved.sum() > 0

    def test_the_labels_of_public_inputs_play_no_part(self, split: Split) -> None:
        channel, net = self.neighbours(), self.neighbours().ready()
        wrong = replace(split.public, y=np.zeros_like(split.public.y))
        one, other = (channel.kept(net, split.private, public, Run()) for public in (split.public, wrong))
        for file in (TABLE, GRAPH, FRONT):
            assert all(np.array_equal(one[file][name], other[file][name]) for name in one[file])

    def test_a_bundle_verifies_passes_the_gate_and_opens_again(self, tmp_path: Path) -> None:
        made = make_release(self.config(), tmp_path / "bundle", vault=tmp_path / "vault")
        vault = Vault.open(tmp_path / "vault")
        assert verify(tmp_path / "bundle", vault, gated=True).ok
        assert not weigh(made.bundle.card, ()).reject
        assert isinstance(open_interface(tmp_path / "bundle", vault), NeighbourVotes)

    def test_without_public_inputs_it_is_refused_before_a_record_is_read(self) -> None:
        with pytest.raises(ConfigError, match=r"public inputs, with or without labels.*split\.public"):
            self.build(split={"public": 0.0})

    def test_votes_that_noise_drowns_are_refused_before_a_record_is_read(self) -> None:
        with pytest.raises(ConfigError, match="drowned"):
            self.build(settings={"features": "pixels", "queries": 100_000}).plan()

    def test_how_many_vote_follows_from_the_noise_and_the_records(self) -> None:
        few = self.neighbours(epsilon=8.0, settings={"queries": 5})
        assert few.neighbours == math.ceil(12 * few.noise.multiplier)
        many = self.neighbours(settings={"queries": 100})
        assert many.neighbours == many.records // 10

    def test_digits_are_answered(self, split: Split) -> None:
        released = self.release(split, epsilon=8.0, settings={"queries": 20})
        assert released.utility.accuracy > 0.85


def test_a_label_is_drawn_with_the_odds_that_are_stated() -> None:
    """400 votes for either class and one more: the odds of the labels are e^ε₀."""
    channel = Neighbours.case(1.0, 1e-5)
    assert channel.family is not None
    assert channel.family.reach == 1.0
    method = Neighbours(*_case())
    answerer = NeighbourVotes(method.interface(), method.kept(method.ready(), case_sides()[0], case_public(), Run()))
    epsilon = 3 * GUMBEL / method.noise.multiplier
    answerer._choice = replace(answerer._choice, epsilon=epsilon)
    labels = ask(answerer, np.repeat(case_sides()[0].x[:1], 20_000, 0), Stream.from_seed(3)).labels
    stated = 1 / (1 + math.exp(-epsilon))
    assert abs(labels.mean() - stated) < 4 * math.sqrt(0.25 / len(labels))


def _case() -> Any:
    from airlock.methods.answers.linear_head import case_facts
    from airlock.methods.answers.neighbours import CASE_QUERIES, CASE_RECORDS, _case_config

    settings = {"queries": CASE_QUERIES, "neighbours": CASE_RECORDS}
    return _case_config(1.0, 1e-5, settings), case_facts(records=2 * CASE_RECORDS)

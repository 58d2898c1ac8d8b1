"""`answers`/`savings`: the contract, votes and distances, what is charged, and that nothing depends on the pot."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock import data
from airlock.accounting import FailureDpEvent, pure, spend
from airlock.bundle import Vault, verify, weigh
from airlock.bundle.answering import open_interface
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import AboveThreshold, Stream
from airlock.methods.answers.savings import Savings
from airlock.methods.answers.shards import HEADS, fit_head
from airlock.methods.answers.votes import NONE, Voters, distances
from airlock.methods.interface import Interface, as_queries
from airlock.pipeline import make_release
from airlock.training import Run
from airlock.training.convex import solve
from tests.methods.contract import Contract


class TestSavings(Contract):
    channel, method = "answers", "savings"
    settings: ClassVar[dict[str, Any]] = {"features": "pixels", "queries": 40, "unsure": 1, "heads": 700}

    @classmethod
    def savings(cls, **changes: Any) -> Savings:
        found = cls.build(**changes)
        assert isinstance(found, Savings)
        return found

    def test_the_events_are_the_sessions_and_the_failure_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build(settings={**self.settings, "unsure": 3}).plan()
        own = float(plan.details["epsilon_of_a_unit"])
        sessions = dpa.SelfComposedDpEvent(pure(own), 3)
        assert plan.guarantee.events == dpa.ComposedDpEvent([FailureDpEvent(self.delta / 2), sessions])
        half = dpa.ComposedDpEvent([FailureDpEvent(self.delta / 2), dpa.SelfComposedDpEvent(pure(2 * own), 3)])
        assert spend(half, self.delta).epsilon > 1.5 * self.epsilon

    def test_one_record_changes_one_head_and_no_distance_by_more_than_one(self, split: Split) -> None:
        """To the last bit: no other head is touched, whichever record it is."""
        channel = self.savings()
        net, rule, some = channel.ready(), channel.rule(), split.private.take(np.arange(300))
        x = as_queries(split.test)
        whole = channel.kept(net, some, 60, Run())
        desk = Voters(channel.interface(rule), whole)
        before = desk.tally(_features(desk, x))
        for i in (0, 17, 299):
            less = channel.kept(net, some.take(np.delete(np.arange(300), i)), 60, Run())
            changed = (whole[HEADS]["weight"] != less[HEADS]["weight"]).any((1, 2))
            assert changed.sum() == 1
            other = Voters(channel.interface(rule), less)
            winners, sure = other.tally(_features(other, x))
            assert np.abs(sure - before[1]).max() <= 1
            differ = winners != before[0]
            assert (sure[differ] == 0).all()
            assert (before[1][differ] == 0).all()

    def test_a_head_of_few_records_is_that_of_all_dimensions(self, split: Split) -> None:
        import torch

        channel = self.savings()
        objective = channel.objective(100)
        chance = torch.Generator().manual_seed(0)
        features = torch.randn(9, 40, generator=chance, dtype=torch.float64)
        features /= features.norm(dim=1, keepdim=True)
        labels = torch.randint(0, 10, (9,), generator=chance)
        tight = objective.__class__(10, objective.regularisation, objective.records, 1e-4)
        short, long = fit_head(features, labels, tight), solve([(features, labels)], tight)[0]
        assert float((short - long).norm()) < 1e-3 * float(long.norm())
        assert not fit_head(features[:0], labels[:0], tight).any()

    def desk(self, numbers: list[int], most: int = 1000, sharp: bool = True) -> Voters:
        """Without noise: 0 is unsure, 1 is sure, and queries come in this order."""
        channel = self.savings()
        interface = channel.interface(channel.rule())
        figures = {**interface.figures, "threshold": 1, "queries": most}
        figures |= {"epsilon_threshold": 500.0, "epsilon_numbers": 1000.0} if sharp else {}
        interface = Interface("label", (1,), ("a", "b"), 5, "x", {**figures, "net": "pixels-linear"})
        desk = Voters(interface, {"front": {}, HEADS: {"weight": np.zeros((3, 2, 2), np.float32)}})
        order = iter(numbers)
        desk.tally = lambda features: (  # type: ignore[method-assign]
            np.zeros(len(features), np.int64), np.array([2 * next(order) for _ in features])
        )  # fmt: skip
        return desk

    def ask(self, desk: Voters, rows: int, seed: int) -> tuple[list[int], int]:
        """Labels, and what was paid for them."""
        paid = desk.reserve(rows)
        labels = desk.answer(np.zeros((rows, 1), np.float32), paid, Stream.from_seed(seed)).labels
        return labels.tolist(), paid.units

    def test_sure_answers_are_free_and_an_unsure_one_costs_a_unit(self) -> None:
        desk = self.desk([1, 1, 1, 0, 1, 1, 0, 0, 1])
        assert self.ask(desk, 3, 0) == ([0, 0, 0], 3)  # three units paid, none spent
        assert self.ask(desk, 1, 1) == ([NONE], 0)  # the first
        assert self.ask(desk, 2, 2) == ([0, 0], 0)
        assert self.ask(desk, 2, 3) == ([NONE, NONE], 0)  # the second and the third
        assert self.ask(desk, 1, 4) == ([0], 1)

    def test_what_is_set_aside_for_one_is_not_there_for_another_and_comes_back(self) -> None:
        desk = self.desk([1] * 20)
        self.ask(desk, 3, 0)
        first, second = desk.reserve(2), desk.reserve(2)
        assert (first.units, first.held) == (0, 2)
        assert (second.units, second.held) == (1, 1)
        desk.cancel(first)
        third = desk.reserve(2)
        assert (third.units, third.held) == (0, 2)
        desk.cancel(second)  # its one unit was never paid
        assert desk.reserve(4).units == 3

    def test_a_full_session_is_spent(self) -> None:
        desk = self.desk([1] * 20, most=4)
        assert self.ask(desk, 10, 0) == ([0] * 10, 10)
        assert self.ask(desk, 9, 1)[1] == 1  # two sessions of four were full, so eight units are left

    @given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=40, max_size=40))
    def test_more_is_never_spent_than_was_paid(self, numbers: list[int], sizes: list[int]) -> None:
        desk, left, paid, spent, seed = self.desk(numbers, most=7), len(numbers), 0, 0, 0
        while left:
            rows = min(left, sizes[seed])
            labels, units = self.ask(desk, rows, seed)
            paid, spent, left, seed = paid + units, spent + labels.count(NONE), left - rows, seed + 1
            full = (len(numbers) - left) // 7
            assert spent <= paid
            assert paid - desk._pot <= spent + full
            assert desk._level is None or desk._pot >= 1

    def test_threads_do_not_share_a_unit(self) -> None:
        desk, paid = self.desk([0, 1] * 200), []

        def work(own: int) -> None:
            for i in range(20):
                paid.append(self.ask(desk, 2, 1000 * own + i)[1])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(paid) == desk._pot + 80

    def test_digits_are_answered_where_the_heads_agree_and_rightly(self, split: Split) -> None:
        made = self.release(split, epsilon=300.0, settings={"queries": 300, "unsure": 20, "heads": 40})
        assert made.utility.records == 300
        assert made.utility.accuracy > 0.2
        assert isinstance(made.artefact, Interface)
        desk = Voters(made.artefact, made.secrets)
        labels = desk.answer(as_queries(split.test), desk.reserve(len(split.test)), Stream.from_seed(1)).labels
        given = labels != NONE
        assert given.mean() > 0.5
        assert (labels == split.test.y)[given].mean() > 0.95

    def test_a_bundle_verifies_passes_the_gate_and_opens_again(self, tmp_path: Path) -> None:
        made = make_release(self.config(), tmp_path / "bundle", vault=tmp_path / "vault")
        vault = Vault.open(tmp_path / "vault")
        assert verify(tmp_path / "bundle", vault, gated=True).ok
        assert not weigh(made.bundle.card, ()).reject
        assert "until 1 unit is spent (one unit pays for one question that is too close" in made.bundle.card.headline
        assert isinstance(open_interface(tmp_path / "bundle", vault), Voters)

    def test_too_few_heads_are_refused_before_data(self) -> None:
        with pytest.raises(ConfigError, match="no vote could be sure"):
            self.build(settings={"heads": 20}).plan()
        with pytest.raises(ConfigError, match="enough for"):
            self.build(epsilon=0.1, settings={}).plan()
        with pytest.raises(ConfigError, match=r"settings\.logit_noise"):
            self.build(settings={"logit_noise": 0.1})

    # What leaves is a label, and labels of unsure votes are all −1: the seed shows in the sessions alone.
    def test_the_seed_of_the_noise_changes_what_leaves(self, released: Any, split: Split) -> None:
        rule = self.savings().rule()
        assert rule.start(Stream.from_seed(1)) == rule.start(Stream.from_seed(1))
        assert rule.start(Stream.from_seed(1)) != rule.start(Stream.from_seed(2))


def _features(desk: Voters, x: Any) -> Any:
    from airlock.methods.answers.fitted import embed_queries
    from airlock.training.convex import LogisticHead

    return embed_queries(desk.body, x, LogisticHead(10, 1.0, 1))


@given(st.integers(2, 5), st.integers(1, 30), st.integers(0, 2**32))
def test_one_changed_vote_moves_the_distance_by_one_at_most_and_the_winner_only_at_zero(
    classes: int, heads: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    votes = np.minimum(chance.integers(0, classes, (1, heads)), chance.integers(0, classes, (1, heads)))

    def counted(cast: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return distances((cast[:, :, None] == np.arange(classes)).sum(1))

    (winner,), (sure,) = counted(votes)
    assert 0 <= sure <= heads // 2
    for head in range(heads):
        for vote in range(classes):
            other = votes.copy()
            other[0, head] = vote
            (won,), (apart,) = counted(other)
            assert abs(int(apart) - int(sure)) <= 1
            assert won == winner or sure == apart == 0


def test_the_threshold_grows_with_units_and_queries() -> None:
    plain = AboveThreshold.above_zero(0.5, 5, 100, 1e-6).threshold
    assert AboveThreshold.above_zero(0.5, 50, 100, 1e-6).threshold > plain
    assert AboveThreshold.above_zero(0.5, 5, 1000, 1e-6).threshold > plain
    assert AboveThreshold.above_zero(0.25, 5, 100, 1e-6).threshold > 1.9 * plain


def test_records_that_are_the_same_have_one_shard_and_one_vote() -> None:
    config = TestSavings.config()
    channel = TestSavings.savings()
    some = data.load(config).private.take(np.zeros(30, np.int64))
    kept = channel.kept(channel.ready(), Records(some.x, some.y), 50, Run())
    assert (kept[HEADS]["weight"].any((1, 2))).sum() == 1

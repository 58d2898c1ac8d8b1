"""`student`/`neighbours`: the contract, the votes and their noise, and what is kept of an interrupted release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from airlock import data
from airlock.accounting import compute_epsilon
from airlock.config import ReleaseConfig
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.student.neighbours import LADDER, NeighboursStudent
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.neighbours import UNIT, PublicGraph
from tests.methods.fewer import at_most
from tests.methods.resuming import TEACHING, Resuming


class TestNeighbours(Resuming, MethodContract):
    channel, method = "student", "neighbours"
    bars, paid = (TEACHING,), "votes.safetensors"
    settings: ClassVar[dict[str, Any]] = {"features": "pixels", "epochs": 2}

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        return super().config(**{"split": {"public": 0.4}, "net": "linear", **changes})

    @pytest.fixture(scope="class")
    @classmethod
    def split(cls) -> Split:
        return at_most(200, data.load(cls.config()))

    @classmethod
    def made(cls, **changes: Any) -> NeighboursStudent:
        found = cls.build(**changes)
        assert isinstance(found, NeighboursStudent)
        return found

    def kept(self, split: Split, folder: Path | None, seed: int | None = 1, **more: Any) -> list[torch.Tensor]:
        """The weights of a student whose run keeps checkpoints there."""
        released = self.made().release(split, Randomness.make(0, insecure_seed=seed), Run(checkpoint=folder, **more))
        assert released.noise_made_on == ("cpu",)
        return list(released.network.net.parameters())

    def never_again(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(NeighboursStudent, "votes", None)

    def test_the_event_is_one_gaussian_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        noise = float(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.GaussianDpEvent(noise)
        assert compute_epsilon(dpa.GaussianDpEvent(noise / 2), self.delta).epsilon > 1.5 * self.epsilon
        assert (plan.guarantee.unit, plan.guarantee.relation) == ("record", "add-remove")

    def test_one_record_moves_one_vote_by_one(self) -> None:
        one_record_moves_the_votes_by_at_most_one()

    def test_the_noise_on_every_vote_is_normal_of_the_stated_size(self) -> None:
        channel = self.made()
        noisy, _ = channel.publish(np.full((4000, 10), 3 * UNIT), Stream.from_seed(5))
        spread = channel.noise.noise_multiplier
        assert abs(noisy.mean() - 3) < 4 * spread / 200
        assert abs(noisy.std() / spread - 1) < 0.02

    def test_the_labels_of_public_inputs_play_no_part(self, split: Split) -> None:
        wrong = replace(split, public=replace(split.public, y=np.zeros_like(split.public.y)))
        one, other = (self.release(part) for part in (split, wrong))
        pairs = zip(one.network.net.parameters(), other.network.net.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)

    def test_public_inputs_get_their_labels_from_the_private_records(self, split: Split) -> None:
        channel = self.made(epsilon=50.0)
        cells = channel.cells(split.public, Run())
        noisy, _ = channel.publish(channel.votes(split.private, cells, Run()), Stream.from_seed(1))
        assert (channel.labels(noisy, cells) == split.public.y).mean() > 0.85

    def test_votes_travel_farther_where_there_is_more_noise(self, split: Split) -> None:
        chances = []
        for epsilon in (100.0, 2.0, 0.1):
            channel = self.made(epsilon=epsilon)
            chances.append(channel.chance(channel.cells(split.public, Run()).graph))
        assert chances == sorted(chances)
        assert chances[0] < chances[-1] == LADDER[-1]

    def test_without_public_inputs_it_is_refused_before_a_record_is_read(self) -> None:
        with pytest.raises(ConfigError, match=r"public inputs, with or without labels.*split\.public"):
            self.build(split={"public": 0.0})

    def test_a_front_end_that_labels_would_train_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="public images for features"):
            self.build(settings={"features": "trained"})

    def test_a_public_part_that_turns_out_to_be_empty_is_no_refusal(self, split: Split) -> None:
        made = self.release(replace(split, public=split.public.take(np.arange(0))))
        assert made.guarantee.events == self.build().plan().guarantee.events

    def test_records_that_are_no_images_have_a_student_too(self) -> None:
        own = self.made(net="auto")
        assert own.net_name == "rona-digits-student"
        flat = replace(own.facts, shape=(20,))
        assert NeighboursStudent(self.config(net="auto"), flat).net_name == "mlp"


def one_record_moves_the_votes_by_at_most_one() -> None:
    """Every record has one vote, which is one in all."""
    channel, rng = TestNeighbours.made(), np.random.default_rng(0)
    private, public = (
        Records(rng.random((count, 1, 8, 8), np.float32), rng.integers(0, 10, count)) for count in (50, 20)
    )
    cells = channel.cells(public, Run())
    whole = channel.votes(private, cells, Run())
    assert whole.sum() == UNIT * len(private)
    for i in (0, 27, 49):
        less = channel.votes(private.take(np.delete(np.arange(50), i)), cells, Run())
        assert (whole != less).sum() == 1
        assert (whole - less).sum() == UNIT


def test_more_public_inputs_than_a_graph_holds_are_all_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airlock.training.neighbours.LARGEST", 30)
    channel = TestNeighbours.made()
    x = np.random.default_rng(0).random((100, 1, 8, 8), np.float32)
    cells = channel.cells(Records(x, np.zeros(100, np.int64)), Run())
    assert isinstance(cells.graph, PublicGraph)
    assert len(cells.graph.points) == 30
    assert channel.labels(np.ones((30, 10)), cells).shape == (100,)

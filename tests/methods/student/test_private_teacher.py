"""`student`/`private-teacher`: the contract, what reaches the student, resuming, and what is refused."""

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
from airlock.config import ReleaseConfig, load
from airlock.data import Records, Split
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import Randomness
from airlock.methods.student import private_teacher
from airlock.methods.student.private_teacher import PrivateTeacher, _forget_classes
from airlock.nets import create
from airlock.testing import MethodContract
from airlock.training import Run, outcomes_of
from airlock.training.distillation.distil import Asked, MatchLoss, SoftLoss
from tests.methods.fewer import at_most
from tests.methods.resuming import TEACHING, Resuming

# Every record in every step: the noise is found at once. Lots are tried in one test, and in court.
PRIVATE: dict[str, Any] = {"steps": 4, "lot_size": 1797, "learning_rate": 0.5, "clip_norm": 0.5}


class TestPrivateTeacher(Resuming, MethodContract):
    channel, method = "student", "private-teacher"
    bars, paid = ("training the teacher under noise", TEACHING), "teacher.safetensors"
    settings: ClassVar[dict[str, Any]] = {
        "teacher": "linear",
        "hint_epochs": 0,
        "rounds": 1,
        "self_epochs": 1,
        "distil_epochs": 1,
        "query_batch": 256,
        "self_batch": 64,
        "teacher_epochs": 1,
        "teacher_batch": 64,
        "private": PRIVATE,
    }

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        return super().config(**{"split": {"public": 0.4}, **changes})

    @pytest.fixture(scope="class")
    @classmethod
    def split(cls) -> Split:
        return at_most(200, data.load(cls.config()))

    @classmethod
    def made(cls, **changes: Any) -> PrivateTeacher:
        found = cls.build(**{**changes, "settings": {**cls.settings, **changes.get("settings", {})}})
        assert isinstance(found, PrivateTeacher)
        return found

    def test_the_event_is_that_of_dp_sgd_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.made(settings={"private": {**PRIVATE, "lot_size": 200}}, accountant="rdp").plan()
        noise, rate = (float(plan.details[name]) for name in ("noise_multiplier", "sampling_probability"))
        assert rate == pytest.approx(200 / 539)
        own = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(own, 4)
        half = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise / 2)), 4)
        assert compute_epsilon(half, self.delta, accountant="rdp").epsilon > 1.5 * self.epsilon
        assert (plan.guarantee.unit, plan.guarantee.relation) == ("record", "add-remove")
        assert plan.schedule is not None

    def test_the_teacher_starts_from_the_public_one_and_the_student_learns_from_it_alone(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without steps of any size the teacher is the public one; and private records reach nothing else."""
        still = {**self.settings, "private": {**PRIVATE, "learning_rate": 1e-12}}
        nobody = split.test.take(np.arange(0))
        monkeypatch.setattr(private_teacher, "outcomes_of", lambda net, records, task: outcomes_of(net, nobody, task))
        half = replace(split, private=split.private.take(np.arange(0, len(split.private), 2)))
        students = [self.release(own, settings=still).network.net.state_dict() for own in (split, half)]
        assert all(torch.allclose(students[0][name], students[1][name], atol=1e-5) for name in students[0])

    def test_classes_without_public_records_are_learnt_from_the_teacher(self, split: Split) -> None:
        fractions = {"public": 0.4, "public_without": [6, 9]}
        channel = self.made(split=fractions)
        assert (channel.by_teacher, channel.varied, channel.unseen) == (True, True, (6, 9))
        details = channel.plan().details
        assert details["classes_without_public_records"] == "6, 9"
        assert details["labels"] == "the teacher's answers"
        own = data.load(self.config(split=fractions))
        assert not np.isin(own.public.y, (6, 9)).any()
        found = channel.release(own, Randomness.make(0, 1), Run()).inside
        theirs, others = (
            float(found[f"accuracy_on_{name}"]) for name in ("classes_without_public_records", "the_other_classes")
        )
        right = round((theirs * np.isin(own.test.y, (6, 9)).sum()) + others * (~np.isin(own.test.y, (6, 9))).sum())
        assert 0 < right <= len(own.test)
        plain = self.made()
        assert (plain.by_teacher, plain.varied, plain.unseen) == (False, False, ())
        free = [self.build(split=own, settings={}).learning.rounds for own in (fractions, {"public": 0.4})]
        assert free == [20, 15]
        assert channel.learning.rounds == 1  # as the settings say
        assert self.made(settings={"labels": "teacher", "varied": True}).by_teacher

    def test_labels_never_teach_a_student_where_a_class_has_no_public_record(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        losses: list[object] = []

        def note(self: object, net: object, answers: object, alone: object = None, vary: object = None) -> None:
            losses.append((type(answers), type(alone), vary is not None))

        monkeypatch.setattr(private_teacher.StudentTraining, "learn_in_rounds", note)
        nobody = Records(np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))
        for fractions, settings in (
            ({"public": 0.4}, {}),
            ({"public": 0.4}, {"match": "logits"}),
            ({"public": 0.4, "public_without": ["6"]}, {}),
        ):
            channel = self.made(split=fractions, settings=settings)
            stages = private_teacher.Stages(Run(), {})
            channel._student(channel.net(), nobody, 0, stages)
        nothing = type(None)
        assert losses == [(SoftLoss, nothing, False), (MatchLoss, nothing, False), (MatchLoss, MatchLoss, True)]

    def test_hints_come_from_the_private_teacher(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str | None] = []
        monkeypatch.setattr(private_teacher, "Asked", lambda net, layer=None: asked.append(layer) or Asked(net, layer))
        few = replace(split, private=split.private.take(np.arange(60)), public=split.public.take(np.arange(64)))
        own = {"teacher": "rona-digits-teacher", "hint_epochs": 1, "private_layers": 2}
        released = self.release(few, settings={**self.settings, **own})
        assert asked == ["pool1", None]
        assert released.plan.details["hint"] == "pool1"

    def test_steps_are_rehearsed_unless_their_size_is_given(self, split: Split) -> None:
        channel = self.made(epsilon=0.2, settings={"private": {"steps": 4, "lot_size": 1797, "clip_norm": 0.5}})
        assert channel.learning.rehearse
        start = channel._auxiliary(split.public, 0, private_teacher.Stages(Run(), {}))
        own = channel._rehearsed(start, split.public, channel.plan().figures)
        assert own.learning_rate < channel.settings.learning_rate
        assert own.model_copy(update={"learning_rate": channel.settings.learning_rate}) == channel.settings
        released = channel.release(split, Randomness.make(0, 1), Run())
        assert released.plan.details["private_learning_rate"] == own.learning_rate
        assert not self.made().learning.rehearse
        for asked in (False, True):
            assert self.made(settings={"rehearse": asked}).learning.rehearse is asked
        given = self.made()
        assert given._rehearsed(start, split.public, given.plan().figures) is given.settings

    def test_only_the_layers_that_were_asked_for_move(self, split: Split) -> None:
        channel = self.made(settings={"teacher": "rona-digits-teacher", "private_layers": 2})
        net = channel.net()
        own = [name for name, p in net.named_parameters() if p.requires_grad]
        assert own == ["conv9.weight", "conv9.bias", "dense.weight", "dense.bias"]
        assert channel.plan().details["trainable_parameters"] == 32 * 32 + 32 + 330
        few = replace(split, private=split.private.take(np.arange(20)))
        after = channel.trained(few, Randomness.make(0, 1)).state_dict()
        moved = [name for name, value in channel.net().state_dict().items() if not torch.equal(value, after[name])]
        assert moved == own

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"split": {"public": 0.0}}, "public records for a student"),
            ({"queries": 5000}, "at most 719 settings.queries"),
            ({"private": 3}, r"\[settings\.private\]"),
            ({"private": {"stepz": 3}}, r"settings\.private\.stepz"),
            ({"private": {**PRIVATE, "clip_rate": 0.1}}, "adaptive"),
            ({"private_layers": 2}, "at most 1 settings.private_layers"),
            ({"labels": "none"}, r"settings\.labels"),
            ({"match": "votes"}, r"settings\.match"),
            ({"split": {"public": 0.4, "public_without": ["x"]}}, "names of classes"),
        ],
    )
    def test_bad_settings_are_refused_before_a_record_is_read(
        self, change: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sklearn.datasets.load_digits", None)
        split = {"split": change.pop("split", {"public": 0.4})}
        with pytest.raises(ConfigError, match=word):
            self.made(settings=change, **split).plan()

    def test_an_empty_public_part_is_refused_before_training(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(private_teacher, "taught", None)
        with pytest.raises(DataError, match="at least one public record"):
            self.release(replace(split, public=split.public.take(np.arange(0))))

    def kept(self, split: Split, folder: Path | None, seed: int | None = 1, **more: Any) -> list[torch.Tensor]:
        """The weights of a student whose run keeps checkpoints there."""
        own = {**PRIVATE, "clip": "adaptive"}
        channel = self.made(settings={"private": own, "distil_epochs": 2, "query_batch": 100})
        released = channel.release(split, Randomness.make(0, insecure_seed=seed), Run(checkpoint=folder, **more))
        assert released.noise_made_on == ("cpu",)
        assert float(released.plan.details["final_clip_norm"]) > 0
        return list(released.network.net.parameters())

    def never_again(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(PrivateTeacher, "train", None)


def test_a_public_teacher_has_no_opinion_on_classes_that_it_never_saw() -> None:
    net = create("rona-digits-student", (1, 8, 8), 5, 0)
    before = net.get_parameter("dense.weight").detach().clone()
    _forget_classes(net, (1, 3), 5)
    after = net.get_parameter("dense.weight")
    assert torch.equal(after[[0, 2, 4]], before[[0, 2, 4]])
    assert torch.allclose(after[1], before[[0, 2, 4]].mean(0))
    assert torch.equal(after[1], after[3])


def test_every_config_in_runs_can_be_built() -> None:
    files = sorted((Path(__file__).resolve().parents[3] / "runs").glob("student-private-teacher-*.toml"))
    assert len(files) == 4
    for file in files:
        config = load(file)
        channel = PrivateTeacher(config, data.describe(config))
        assert channel.net_name == config.net
        assert bool(channel.unseen) == ("masked" in file.name)

"""`student`/`ensemble`: the contract, what is released of the teachers, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats

from airlock import data, methods
from airlock.accounting import compute_epsilon
from airlock.config import ReleaseConfig, load
from airlock.data import Split, shard
from airlock.errors import AirlockWarning, ConfigError, DataError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.student import ensemble
from airlock.methods.student.answering import Answering, to_logits
from airlock.methods.student.ensemble import RULE, Ensemble, Questions
from airlock.methods.student.learning import LEAST_STEPS
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.distillation.rounds import Timetable
from airlock.training.stages import Stages
from tests.methods.fewer import at_most
from tests.methods.resuming import TEACHING, Resuming

KINDS = ("residuals", "matrix", "probabilities", "votes", "confident-votes")


class TestEnsemble(Resuming, MethodContract):
    channel, method = "student", "ensemble"
    bars, paid = ("training the auxiliary", "training the teachers", TEACHING), "answers.safetensors"
    settings: ClassVar[dict[str, Any]] = {
        "teacher": "linear",
        "hint": "1",
        "guide": "leaky6",
        "hint_epochs": 0,
        "teachers": 100,
        "queries": 10,
        "bound": 1.0,
        "rounds": 1,
        "self_epochs": 1,
        "distil_epochs": 1,
        "query_batch": 32,
        "self_batch": 64,
        "teacher_epochs": 1,
        "teacher_batch": 64,
        "shard_epochs": 1,
    }

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        return super().config(**{"split": {"public": 0.4}, **changes})

    @pytest.fixture(scope="class")
    @classmethod
    def split(cls) -> Split:
        return at_most(200, data.load(cls.config()))

    @classmethod
    def made(cls, **changes: Any) -> Ensemble:
        found = cls.build(**{**changes, "settings": {**cls.settings, **changes.get("settings", {})}})
        assert isinstance(found, Ensemble)
        return found

    @staticmethod
    def asked(channel: Ensemble, split: Split) -> Questions:
        return channel.questions(split.public, 0, Stages(Run(), {}))

    def test_rounds_that_cost_nothing_go_on_until_the_student_has_learnt(self) -> None:
        for public in (0.05, 0.1, 0.4, 0.7):
            own = self.build(split={"public": public, "test": 0.1, "holdout": 0.1}, settings={})
            assert isinstance(own, Ensemble)
            s, records = own.settings, own.facts.expected("public", own.config.split)
            steps = [
                Timetable(rounds, s.self_epochs, s.distil_epochs, records, records, s.self_batch, s.query_batch).steps
                for rounds in (s.rounds - 1, s.rounds)
            ]
            assert steps[0] < LEAST_STEPS <= steps[1]
            assert own.plan().details["rounds"] == s.rounds
        assert self.made().settings.rounds == 1, "as the settings say"

    def test_it_is_the_default(self) -> None:
        assert next(iter(methods.METHODS["student"])) == "ensemble"

    def test_the_event_is_a_gaussian_a_query_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        noise = float(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise), 10)
        half = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise / 2), 10)
        assert compute_epsilon(half, self.delta).epsilon > 1.5 * self.epsilon
        assert (plan.guarantee.unit, plan.guarantee.relation) == ("record", "add-remove")

    def test_the_plan_says_how_large_the_noise_is(self) -> None:
        details = self.made().plan().details
        noise = float(details["noise_multiplier"])
        assert details["noise_over_bound"] == pytest.approx(2 * noise / 100)
        assert details["noise_per_logit"] == pytest.approx(2 * noise / 100)
        assert details["records_per_teacher"] == pytest.approx(539 / 100)
        masked = self.made(split={"public": 0.4, "public_without": [6, "9"]}).plan_without_warning().details
        assert masked["classes_without_public_records"] == "6, 9"
        assert "classes_without_public_records" not in details
        free = self.made(settings={"bound": None}).plan().details
        assert free["bound"] == RULE
        assert "noise_per_logit" not in free
        votes = Ensemble(self.config(settings={"answers": "votes"}), self.made().facts).plan().details
        assert votes["noise_per_count"] == pytest.approx(math.sqrt(2) * float(votes["noise_multiplier"]))

    def test_a_matrix_is_one_gaussian_and_as_noisy_as_answers_one_by_one(self) -> None:
        """At a bound that is √Q times as large; to the tolerance of the calibration."""
        whole, single = self.made(settings={"answers": "matrix"}), self.made()
        assert whole.plan().guarantee.events == dpa.GaussianDpEvent(whole.answering.noise_multiplier)
        assert whole.answering.noise(math.sqrt(10)) == pytest.approx(single.answering.noise(1.0), rel=5e-3)
        assert whole.answering.relative_noise == pytest.approx(single.answering.relative_noise, rel=5e-3)

    def test_noise_above_all_that_can_be_said_is_told(self) -> None:
        with pytest.warns(AirlockWarning, match="times the most"):
            self.made(settings={"queries": 500, "teachers": 4}, epsilon=0.5).plan()

    def test_teachers_and_queries_follow_from_public_figures(self) -> None:
        channel = self.build(settings={})
        assert isinstance(channel, Ensemble)
        own = channel.answering
        assert own.queries == 360
        assert own.teachers == round(math.sqrt(own.noise_multiplier * channel.records))

    def test_one_record_changes_one_teacher_and_not_a_bit_of_another(self, split: Split) -> None:
        channel = self.made(settings={"teacher": "rona-digits-teacher", "hint": None})
        questions, records = self.asked(channel, split), split.private.take(np.arange(150))
        whole = channel.moved(replace(split, private=records), questions, 0, Run())
        less = channel.moved(replace(split, private=records.take(np.arange(1, 150))), questions, 0, Run())
        assert int((whole != less).flatten(1).any(1).sum()) == 1
        assert torch.allclose(whole.sum(2), torch.zeros(100, 10), atol=1e-4)

    def test_a_shard_without_records_leaves_the_public_answer(self, split: Split) -> None:
        channel = self.made()
        few = replace(split, private=split.private.take(np.arange(5)))
        moved = channel.moved(few, self.asked(channel, split), 0, Run())
        empty = [not len(own) for own in shard(few.private, 100, 0)]
        assert sum(empty) >= 95
        assert not moved[empty].any()
        assert moved[[not e for e in empty]].flatten(1).any(1).all()

    def test_queries_and_bound_do_not_depend_on_private_records(self, split: Split) -> None:
        """They are made without them; so does everything else that is public in a release."""
        channel = self.made(settings={"bound": None})
        one, other = (self.asked(channel, split) for _ in range(2))
        assert np.array_equal(one.places, other.places)
        assert len(np.unique(one.places)) == 10
        assert one.bound == other.bound > 0
        half = replace(split, private=split.private.take(range(0, len(split.private), 2)))
        settings = {**self.settings, "bound": None}
        details = [self.release(own, settings=settings).plan.details for own in (split, half)]
        assert details[0] == details[1]
        assert details[0]["bound"] == one.bound

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_of_answers_gives_a_student(self, split: Split, kind: str) -> None:
        own = {key: value for key, value in self.settings.items() if key != "bound"}
        released = self.release(split, settings={**own, "answers": kind})
        assert all(torch.isfinite(p).all() for p in released.network.net.parameters())
        assert released.plan.details["answers"] == kind
        assert released.guarantee.status == "proven"

    def test_hints_come_from_the_public_teacher(self, split: Split) -> None:
        settings = {**self.settings, "teacher": "rona-digits-teacher", "hint": "pool1", "hint_epochs": 1}
        released = self.release(split, settings=settings)
        assert released.plan.details["hint"] == "pool1"
        assert 0 < float(released.inside["public_teacher_accuracy"]) <= 1

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"split": {"public": 0.0}}, "public records for a student"),
            ({"queries": 5000}, "at most 719 settings.queries"),
            ({"teachers": 5000}, "as many teachers as private records"),
            ({"teachers": 1}, r"settings\.teachers"),
            ({"bound": 0.0}, r"settings\.bound"),
            ({"answers": "votes"}, r"no settings\.bound"),
            ({"answers": "means"}, r"settings\.answers"),
            ({"threshold": 0.6}, r"settings\.threshold"),
            ({"shard_epochs": 0}, r"settings\.shard_epochs"),
            ({"noise_scale": 1.0}, r"settings\.noise_scale"),
        ],
    )
    def test_bad_settings_are_refused_before_a_record_is_read(
        self, change: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sklearn.datasets.load_digits", None)
        split = change.pop("split", {"public": 0.4})
        with pytest.raises(ConfigError, match=word):
            self.made(settings=change, split=split)

    def test_fewer_public_records_than_queries_are_refused_before_training(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ensemble, "taught", None)
        with pytest.raises(DataError, match="at least 10 public records"):
            self.release(replace(split, public=split.public.take(np.arange(9))))

    def kept(self, split: Split, folder: Path | None, seed: int | None = 1, **more: Any) -> list[torch.Tensor]:
        """The weights of a student whose run keeps checkpoints there."""
        channel = self.made(settings={"shard_epochs": 3, "distil_epochs": 2})
        released = channel.release(split, Randomness.make(0, insecure_seed=seed), Run(checkpoint=folder, **more))
        assert released.noise_made_on == ("cpu",)
        return list(released.network.net.parameters())

    def never_again(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(ensemble, "ask_shards", None)


# The release of answers, alone


def teachers(kind: str, bound: float = 3.0) -> tuple[Answering, torch.Tensor, torch.Tensor]:
    own = Answering(kind, 20, 400, 1.5)  # type: ignore[arg-type]
    public = torch.zeros(400, 10)
    public[:, 3] = 1.0
    return own, torch.zeros(20, 400, 10), public


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_every_kind_is_normal_of_the_stated_size(kind: str) -> None:
    own, moved, public = teachers(kind)
    found = own.release(moved, public, 3.0, Stream.from_seed(1))
    exact = np.zeros((400, 10))
    if "votes" in kind:
        exact[:, 3] = 20.0  # far above the threshold, so that every answer is given
    if kind == "probabilities":
        exact = torch.softmax(public.double(), 1).numpy()
    sizes = {"probabilities": math.sqrt(2) * 1.5 / 20, "votes": math.sqrt(2) * 1.5}
    noise, spread = (found - exact).ravel(), own.noise(3.0)
    assert spread == pytest.approx(sizes.get(kind.removeprefix("confident-"), 2 * 3.0 * 1.5 / 20))
    assert stats.kstest(noise, stats.norm(0, spread).cdf).pvalue > 0.01
    assert stats.kstest(2 * noise, stats.norm(0, spread).cdf).pvalue < 1e-6  # half the noise
    one = dpa.GaussianDpEvent(1.5)
    times = {"matrix": 1, "confident-votes": 800}.get(kind, 400)
    assert own.event == (one if times == 1 else dpa.SelfComposedDpEvent(one, times))


@pytest.mark.parametrize("kind", KINDS)
def test_one_teacher_moves_answers_by_no_more_than_the_noise_is_made_for(kind: str) -> None:
    """From one end to the other in every answer at once, which nearly reaches the bound, and no further."""
    own, moved, public = teachers(kind)
    own, ends = replace(own, noise_multiplier=1e-6), [moved.clone(), moved.clone()]
    ends[0][0, :, 5], ends[1][0, :, 5] = 1e4, -1e6
    if kind == "probabilities":
        ends[1][0, :, 2] = 1e6
    a, b = (own.release(end, public, 3.0, Stream.from_seed(1)) for end in ends)
    distance = np.linalg.norm(a - b) if kind == "matrix" else np.linalg.norm(a - b, axis=1)
    limit = own.noise(3.0) / 1e-6
    assert np.all(distance <= limit * (1 + 1e-6))
    assert np.all(distance > 0.999 * limit)


def test_every_query_has_noise_of_its_own() -> None:
    own, moved, public = teachers("residuals")
    assert len(np.unique(own.release(moved, public, 3.0, Stream.from_seed(1)))) == 4000


def test_shrinking_leaves_signals_and_takes_off_noise() -> None:
    own, moved, public = teachers("residuals")
    nothing = own.release(moved, public, 3.0, Stream.from_seed(1))
    kept = to_logits(nothing, public, own, 3.0, 3.0, True) - public
    assert float(kept.square().mean()) < 0.01 * float(np.square(nothing).mean())
    moved[:, :, 5], moved[:, :, 6] = 2.0, -2.0
    something = own.release(moved, public, 3.0, Stream.from_seed(1))
    left = to_logits(something, public, own, 3.0, 3.0, True) - public
    whole = to_logits(something, public, own, 3.0, 3.0, False) - public
    share = float((left * whole).sum() / whole.square().sum())
    assert share == pytest.approx(1 - 9 * 0.45**2 / (9 * 0.45**2 + 8), abs=0.03)
    assert torch.allclose(whole.sum(1), torch.zeros(400), atol=1e-4)


def test_probabilities_come_back_at_the_temperature_and_noise_below_zero_is_cut_off() -> None:
    own = Answering("probabilities", 5, 1, 1.0)
    logits = to_logits(np.array([[0.7, 0.3, -0.2]]), torch.zeros(1, 3), own, 1.0, 3.0, True)
    assert torch.softmax(logits / 3.0, 1)[0].tolist() == pytest.approx([0.7, 0.3, 0.0], abs=1e-3)


def test_the_look_before_votes_has_noise_of_its_own_size() -> None:
    """Ten of twenty agree, at a threshold of ten: every other answer is given; at 12.25 as many as N(0, 1.5²) says."""
    moved, public = torch.zeros(20, 2000, 4), torch.zeros(2000, 4)
    moved[:10, :, 1] = moved[10:15, :, 2] = moved[15:, :, 3] = 1.0
    for share, wanted in ((0.5, 0.5), (0.6125, float(stats.norm.sf(1.5)))):
        own = Answering("confident-votes", 20, 2000, 1.5, share)
        given = ~np.isnan(own.release(moved, public, 1.0, Stream.from_seed(3))).any(1)
        assert given.mean() == pytest.approx(wanted, abs=0.03)
    assert abs(wanted - float(stats.norm.sf(3.0))) > 0.06  # half the noise


def test_where_too_few_agree_the_public_answer_stays() -> None:
    own, public = Answering("confident-votes", 5, 2, 1.0), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    logits = to_logits(np.array([[np.nan, np.nan], [5.0, 1.0]]), public, own, 1.0, 2.0, True)
    assert logits.tolist() == [[1.0, 2.0], [40.0, 0.0]]


def test_votes_become_labels_whatever_the_temperature() -> None:
    own = Answering("votes", 5, 1, 1.0)
    logits = to_logits(np.array([[0.1, 4.0, -2.0]]), torch.zeros(1, 3), own, 1.0, 3.0, True)
    assert torch.softmax(logits / 3.0, 1)[0].tolist() == pytest.approx([0, 1, 0], abs=1e-6)


def test_every_config_in_runs_can_be_built() -> None:
    files = sorted((Path(__file__).resolve().parents[3] / "runs").glob("student-ensemble-*.toml"))
    assert len(files) == 2
    for file in files:
        config = load(file)
        channel = Ensemble(config, data.describe(config))
        assert (channel.net_name, channel.settings.answers) == (config.net, "residuals")

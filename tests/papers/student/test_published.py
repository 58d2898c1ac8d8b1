"""`student`/`published`: what of the contract a claim can keep, that its noise reaches nothing, and what is refused."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock import auditing, data, pipeline
from airlock.auditing.audit_game import judge
from airlock.bundle import Vault, card, dossier
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, DataError, Interrupted, NetError, Refused
from airlock.mechanisms import Stream
from airlock.methods import Release
from airlock.papers.student import published
from airlock.papers.student.published import Published, PublishedSettings, Sanitise
from airlock.testing import ClaimContract
from airlock.training import count_correct
from airlock.training.distillation.distil import Cached, SquaredLoss
from airlock.training.loop import Progress
from tests.methods.fewer import at_most

CIFAR = Facts("cifar10", (3, 32, 32), tuple("0123456789"), 50000, 10000, "x")
CPU = torch.device("cpu")


def own_teacher(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's own network, with a vector in the middle."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 16), nn.Tanh(), nn.Linear(16, classes))


class TestPublished(ClaimContract):
    channel, method = "student", "published"
    settings: ClassVar[dict[str, Any]] = {
        "hint_epochs": 1,
        "rounds": 1,
        "self_epochs": 1,
        "distil_epochs": 1,
        "select_rate": 0.2,
        "query_batch": 16,
        "self_batch": 64,
        "teacher_epochs": 1,
        "teacher_batch": 64,
    }

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        return super().config(**{"split": {"public": 0.4}, **changes})

    @pytest.fixture(scope="class")
    @classmethod
    def split(cls) -> Split:
        return at_most(200, data.load(cls.config()))

    @classmethod
    def made(cls, **changes: Any) -> Published:
        found = cls.build(**changes)
        assert isinstance(found, Published)
        return found

    # A claim promises nothing, so the contract's tests of ε are kept for the claim and against the promise.

    def test_a_smaller_epsilon_means_a_smaller_epsilon(self) -> None:
        less, more = (self.build(epsilon=e).plan() for e in (0.5, self.epsilon))
        assert less.guarantee.claim.epsilon == 0.5  # type: ignore[union-attr]
        assert less.details["noise_scale"] > more.details["noise_scale"]  # type: ignore[operator]
        figure = "gaussian_queries_epsilon"
        assert 0.5 < less.details[figure] < more.details[figure]  # type: ignore[operator]

    def test_repeated_runs_are_paid_for(self) -> None:
        once, often = (self.build(tuning_runs=runs).plan() for runs in (1, 5))
        assert often.details["queries"] == 5 * once.details["queries"]  # type: ignore[operator]
        assert often.details["noise_scale"] == pytest.approx(math.sqrt(5) * once.details["noise_scale"])  # type: ignore[operator]
        assert often.guarantee.events == dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 5)

    def test_the_seed_of_the_noise_changes_what_leaves(self, released: Release, split: Split) -> None:
        """It does not: that is what is wrong with the method. Neither does a million times the noise."""
        other = self.release(split, seed=2)
        loud = self.release(split, seed=3, settings={**self.settings, "noise_scale": 1e6})
        for found in (other, loud):
            pairs = zip(released.network.net.parameters(), found.network.net.parameters(), strict=True)
            assert max(float((a - b).abs().max()) for a, b in pairs) <= 1e-6
            assert found.noise_made_on == ("cpu",)  # noise was drawn all the same
        assert loud.guarantee.claim.epsilon < 1e-4  # type: ignore[union-attr]

    def test_one_private_record_reaches_the_student(self, released: Release, split: Split) -> None:
        """What noise does not hide: with one record in place of another, other weights leave."""
        x, y = split.private.x.copy(), split.private.y.copy()
        x[0], y[0] = 0, (y[0] + 1) % 10
        other = self.release(replace(split, private=Records(x, y)))
        pairs = zip(released.network.net.parameters(), other.network.net.parameters(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs)

    def test_nothing_is_promised_and_the_claim_says_why(self) -> None:
        plan = self.build().plan()
        assert (plan.guarantee.status, plan.guarantee.unit) == ("claimed", "none")
        assert math.isinf(plan.guarantee.epsilon)
        claim = plan.guarantee.claim
        assert claim is not None
        assert (claim.epsilon, claim.delta) == (self.epsilon, self.delta)
        assert "does not hold" in claim.theorem
        assert f"{plan.details['gaussian_queries_epsilon']:.3g}" in claim.theorem
        assert str(plan.details["record_level"]).startswith("none")

    def test_the_figures_of_the_compression_are_on_the_plan(self, released: Release) -> None:
        details, net = released.plan.details, released.network.net
        assert details["parameters"] == sum(p.numel() for p in net.parameters()) == 5_746
        assert details["bytes"] == 4 * 5_746
        assert details["teacher_bytes"] == 4 * 39_626
        assert details["compression"] == 6.9
        assert not {"teacher_accuracy", "public_teacher_accuracy", "clipped_share_rounds"} & set(details)
        assert 0 <= float(released.inside["clipped_share_rounds"]) <= 1

    def test_the_teacher_is_attacked_beside_the_student_and_stays(
        self, released: Release, split: Split, tmp_path: Path
    ) -> None:
        safe, config = Vault.open(tmp_path), self.config()
        found, _ = auditing.run(released, split, config.split, 0)
        made = card.make(config, data.describe(config), released, Stream.from_seed(0))
        assert pipeline._teacher(made, safe) is None  # another vault has no teacher
        safe.store(made.release_id, released.secrets)
        teacher = pipeline._teacher(made, safe)
        assert teacher is not None
        right = count_correct(teacher[0], split.test) / len(split.test)
        assert released.inside["teacher_accuracy"] == right
        beside, scores = auditing.attack_quickly(*teacher, split, config.split, 0)
        assert [one.name for one in beside.attacks] == [one.name for one in found.attacks]
        assert [one.value for one in beside.attacks] != [one.value for one in found.attacks]
        assert scores
        inside = dossier.with_audit(dossier.make(made, released, found), found, beside)
        assert inside.teacher is not None
        assert [one.value for one in inside.teacher.attacks] != [one.value for one in inside.audit.attacks]

    @pytest.mark.parametrize("name", ["random", "margin", "diverse"])
    def test_every_selection_gives_a_student(self, split: Split, name: str) -> None:
        released = self.release(split, settings={**self.settings, "select": name, "bound": 2.0})
        assert all(torch.isfinite(p).all() for p in released.network.net.parameters())
        assert released.plan.details["select"] == name

    def test_any_pair_of_networks_will_do_with_layers_by_name(self, split: Split) -> None:
        own = {**self.settings, "teacher": f"{__name__}:own_teacher", "hint": "2", "guide": "flat"}
        released = self.release(split, settings=own)
        assert released.plan.details["teacher_parameters"] == 64 * 16 + 16 + 16 * 10 + 10
        without = self.release(split, settings={**own, "hint": None, "hint_epochs": 0}, net="linear")
        assert without.plan.details["hint"] == "none"
        assert "clipped_share_hints" not in without.inside

    @pytest.mark.parametrize(
        ("change", "error", "word"),
        [
            ({"split": {"public": 0.0}}, ConfigError, "public records for a student"),
            ({"queries": 5000}, ConfigError, "at most 719 settings.queries"),
            ({"hint": "pool7"}, NetError, "Did you mean 'pool"),
            ({"guide": "conv99"}, NetError, "layer of the student"),
            ({"guide": "conv1"}, NetError, "same number of poolings"),
            ({"hint": "dense"}, NetError, "same kind"),
            ({"teacher": "mlp"}, ConfigError, "settings.hint and settings.guide"),
            ({"noise_scale": 0.01}, ConfigError, "noise_scale or leave|Raise epsilon or noise_scale"),
            ({"select_rate": 1.5}, ConfigError, "select_rate"),
            ({"select": "best"}, ConfigError, "select"),
            ({"distil_epochs": 0}, ConfigError, "distil_epochs"),
        ],
    )
    def test_bad_settings_are_refused_before_a_record_is_read(
        self, change: dict[str, Any], error: type[Exception], word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sklearn.datasets.load_digits", None)
        split = change.pop("split", {"public": 0.4})
        with pytest.raises(error, match=word):
            self.build(settings={**self.settings, **change}, split=split).plan()

    def test_records_that_are_no_images_need_named_networks(self) -> None:
        vectors = Facts("mine", (20,), ("a", "b"), 1000, None, "x")
        with pytest.raises(ConfigError, match="`net` and settings.teacher"):
            Published(self.config(), vectors)
        named = self.config(net="linear", settings={**self.settings, "teacher": "mlp", "hint": "3", "guide": "1"})
        assert Published(named, vectors).plan().details["compression"] == round((20 * 128 + 128 + 258) / 42, 2)
        with pytest.raises(ConfigError, match="images for settings.teacher_augment"):
            Published(self.config(settings={"teacher_augment": "flip"}), vectors)

    @pytest.mark.parametrize(
        ("public", "word"),
        [
            (lambda r: r.take(np.arange(0)), "at least one public record"),
            (lambda r: Records(r.x, r.y + 1), "classes of the private records"),
            (lambda r: Records(r.x, r.y - 1), "classes of the private records"),
            (lambda r: Records(r.x[:, :, :4], r.y), "shape and type"),
            (lambda r: Records(r.x.astype(np.float64), r.y), "shape and type"),
            (lambda r: r.take(np.arange(99)), "at least 100 public records"),
        ],
    )
    def test_public_records_that_do_not_fit_are_refused_before_training(
        self, split: Split, public: Any, word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(published, "taught", None)
        wrong = replace(split, public=public(split.public))
        with pytest.raises(DataError, match=word):
            self.release(wrong, settings={**self.settings, "queries": 100})

    def test_public_records_without_some_classes_are_taken(self, split: Split) -> None:
        """Classes that are private only: the masked ones of the paper's Table 1."""
        masked = split.public.take(np.flatnonzero(~np.isin(split.public.y, (6, 9))))
        assert self.release(replace(split, public=masked)).utility.records == len(split.test)

    def test_a_release_that_is_interrupted_in_every_stage_ends_in_the_same_student(self, tmp_path: Path) -> None:
        def press_at(label: str) -> Progress:
            def press(at: str, done: int, total: int) -> None:
                if at == label and done >= 1:
                    os.kill(os.getpid(), signal.SIGINT)

            return press

        def make(name: str, **more: Any) -> bytes:
            settings = {**self.settings, "hint_epochs": 2, "distil_epochs": 2}
            pipeline.make_release(
                self.config(settings=settings), tmp_path / name, accept_unproven=True, vault=tmp_path / f"v-{name}",
                insecure_seed=1, **more,
            )  # fmt: skip
            return (tmp_path / name / "model.safetensors").read_bytes()

        whole = make("a")
        for label in ("training the auxiliary", "learning from hints", "teaching the student"):
            with pytest.raises(Interrupted):
                make("b", progress=press_at(label), resume=True)
            assert not (tmp_path / "b").exists()
        assert make("b", resume=True) == whole
        assert not list((tmp_path / "v-b/checkpoints").glob("*"))
        with pytest.raises(Refused, match="accept-unproven"):
            pipeline.make_release(self.config(), tmp_path / "c")


def test_the_papers_setting_is_3200_queries_and_the_claim_what_it_prints() -> None:
    table = {"channel": "student", "data": "cifar10", "delta": 1e-5, "net": "rona-cifar-s1"}
    config = from_table({**table, "epsilon": 9.6, "split": {"public": 0.8, "test": 0.0, "holdout": 0.0},
                         "settings": {"noise_scale": 10}})  # fmt: skip
    plan = Published(config, CIFAR).plan()
    assert plan.details["queries"] == 3200
    assert plan.guarantee.claim.epsilon == pytest.approx(9.597, abs=1e-3)  # type: ignore[union-attr]
    assert plan.details["gaussian_queries_epsilon"] == pytest.approx(39.4, abs=0.1)
    assert plan.details["teacher_parameters"] == 3_119_754
    assert (plan.details["hint"], plan.details["guide"]) == ("pool1", "leaky6")
    assert {k: plan.details[k] for k in ("hint_epochs", "rounds", "self_epochs", "distil_epochs", "temperature")} == {
        "hint_epochs": 40, "rounds": 5, "self_epochs": 8, "distil_epochs": 8, "temperature": 3.0,
    }  # fmt: skip


def test_every_config_in_runs_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from airlock.config import load

    files = sorted((Path(__file__).resolve().parents[3] / "runs").glob("student-published-*.toml"))
    assert len(files) == 1
    for file in files:
        config = load(file)
        assert Published(config, data.describe(config)).net_name == config.net


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/student.md").read_text(encoding="utf-8")
    for name in PublishedSettings.model_fields:
        assert f"`{name}`" in page


# privacy-sanitize, alone


def sanitised(noise_scale: float, bound: float | None = None, by_record: bool = False) -> Sanitise:
    target = Cached(torch.zeros(3, 2))
    return Sanitise(noise_scale, SquaredLoss(target), Stream.from_seed(0), CPU, bound, by_record)


def gradient(change: Sanitise, weight: float, outputs: Tensor, step: int) -> tuple[float, float]:
    w = torch.tensor(weight, requires_grad=True)
    loss = change(w.square(), outputs, torch.zeros(3, 1), torch.arange(3), step)
    if not loss.requires_grad:
        return float(loss), 0.0
    loss.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    return float(loss.detach()), float(w.grad)


def test_the_bound_is_the_running_mean_of_the_auxiliary_loss_and_clips_the_loss() -> None:
    change = sanitised(1e-30)
    ones = torch.ones(3, 2)  # an auxiliary loss of 1
    assert gradient(change, 0.5, ones, 0) == (0.25, 1.0)  # below: as it is
    value, slope = gradient(change, 3.0, 2 * ones, 1)  # auxiliary losses 1 and 4: B = 2.5
    assert (value, slope) == (2.5, 0.0)  # above: the bound, and no gradient
    assert change.share_clipped == 0.5
    again = sanitised(1e-30)
    again.load_state(change.state())
    assert gradient(again, 9.0, ones, 2) == (2.0, 0.0)  # (1 + 4 + 1) / 3
    assert gradient(sanitised(1e-30, bound=7.0), 3.0, ones, 0)[0] == 7.0


def test_the_noise_has_the_stated_size_and_no_gradient() -> None:
    change = sanitised(10.0, bound=2.0)
    found = [gradient(change, 0.5, torch.ones(3, 2), step) for step in range(4000)]
    assert {slope for _, slope in found} == {1.0}
    noise = np.array([value for value, _ in found]) - 0.25
    assert abs(noise.mean()) < 1.5
    assert 19.0 < noise.std() < 21.0  # σB = 20; with half the noise it would be 10


# The second reading: a vector of losses.


def vector(change: Sanitise, factors: Tensor, outputs: Tensor, step: int) -> tuple[float, float]:
    """The sanitised loss of the vector factors · (w − 1) + (1, 2, 3) at w = 1, and its slope."""
    w = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    losses = factors.double() * (w - 1) + torch.arange(1.0, 4.0)
    loss = change(losses, outputs, torch.zeros(3, 1), torch.arange(3), step)
    loss.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    return float(loss.detach()), float(w.grad)


def test_by_record_the_vector_is_scaled_to_the_bound_and_the_slope_goes_through_its_norm() -> None:
    change, ones = sanitised(1e-30, by_record=True), torch.ones(3, 2)
    assert change.by_record
    value, slope = vector(sanitised(1e-30, 100.0, True), ones[:, 0], ones, 0)  # below: the mean as it is
    assert (value, slope) == pytest.approx((2.0, 1.0))
    losses, total = np.array([1.0, 2.0, 3.0]), 6.0  # norm √14, above B = √3: the auxiliary losses are 1, 1, 1
    value, slope = vector(change, ones[:, 0], ones, 0)
    bound, norm = math.sqrt(3), math.sqrt(14)
    assert value == pytest.approx(bound * losses.mean() / norm)
    assert slope == pytest.approx(bound / 3 * (3 / norm - total * losses.sum() / norm**3))
    assert change.share_clipped == 1.0
    largest = torch.tensor([0.0, 0.0, 1.0])
    assert vector(sanitised(1e-30, bound, True), largest, ones, 0)[1] < 0  # the largest loss is taught to grow


def test_by_record_every_loss_has_noise_and_none_of_it_a_slope() -> None:
    change, ones = sanitised(10.0, 2.0, True), torch.ones(3, 2)
    found = [vector(change, torch.zeros(3), ones, step) for step in range(4000)]
    assert {slope for _, slope in found} == {0.0}
    noise = np.array([value for value, _ in found])
    assert 19.0 / math.sqrt(3) < noise.std() < 21.0 / math.sqrt(3)  # the mean of three of size σB = 20


def test_both_readings_are_refuted_with_any_noise() -> None:
    for settings in ({"losses": "records"}, {"losses": "records", "noise_scale": 1e6}):
        found = judge(Published.case(1.0, 1e-5, **settings), Stream.from_seed(1))
        assert found.refuted
    plan = TestPublished.made(settings={**TestPublished.settings, "losses": "records"}).plan()
    once = TestPublished.made().plan()
    assert plan.details["losses"] == "records"
    figure = "gaussian_queries_epsilon"
    assert plan.details[figure] > once.details[figure]  # type: ignore[operator]

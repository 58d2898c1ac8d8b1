"""`features`: what of the contract each method keeps, that the noise is the one accounted for, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from airlock import data, methods
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.data.feature_files import load
from airlock.errors import ConfigError, NetError, Refused, TrainingError
from airlock.mechanisms import LocalGaussian, Randomness, reconstruction
from airlock.methods import FeatureSet, Release
from airlock.methods.features.noised import LABELS_CLEAR, Noised
from airlock.papers.features.published import BY_PRIVATE, Published
from airlock.testing import ClaimContract, MethodContract
from airlock.training import Run
from airlock.training.devices import to_input
from airlock.training.front_ends.characterise import Characterisation, Measurement, Point
from airlock.training.front_ends.characterised import Characterised

CIFAR = Facts("cifar10", (3, 32, 32), tuple("0123456789"), 50000, 10000, "x")
GREY = replace(CIFAR, shape=(1, 28, 28))


def own_front(shape: tuple[int, ...]) -> nn.Module:
    """A user's front end of one colour: quick, and its maps tell digits apart."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(shape[0], 24, 3, stride=2, padding=1), nn.ReLU())


def rows(release: Release) -> Records:
    assert isinstance(release.artefact, FeatureSet)
    return load(release.artefact.folder, release.artefact.manifest)


class FeatureContract(MethodContract):
    channel = "features"

    def test_what_leaves_works_on_test_records(self, released: Release, split: Split) -> None:
        assert released.utility.records == len(split.test)
        assert released.utility.accuracy > 0.3
        found = rows(released)
        assert len(found) == self.expected(split)
        assert found.x.shape[1:] == released.artefact.manifest.shape  # type: ignore[union-attr]

    def test_the_seed_of_the_noise_changes_what_leaves(self, released: Release, split: Split) -> None:
        first, second, third = (rows(r) for r in (released, self.release(split, seed=2), self.release(split, seed=1)))
        assert not np.array_equal(first.x, second.x)
        np.testing.assert_array_equal(first.x, third.x)

    def expected(self, split: Split) -> int:
        """How many rows leave."""
        return len(split.private)

    def test_the_order_is_in_the_vault(self, released: Release, split: Split) -> None:
        order = released.secrets["choices"]["order"]
        there = order >= 0
        assert len(order) == self.expected(split)
        assert len(set(order[there])) == there.sum() == min(len(split.private), len(order))
        assert (np.diff(order[there]) < 0).any()  # another order than the records'
        np.testing.assert_array_equal(rows(released).y[there], split.private.y[order[there]])


class TestNoised(FeatureContract):
    method = "noised"
    epsilon = 8.0
    settings: ClassVar[dict[str, Any]] = {
        "front": f"{__name__}:own_front", "layers": 2, "project": 10, "public": "split", "precision": "float32",
    }  # fmt: skip

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        return super().config(**{"split": {"public": 0.3}, **changes})

    def expected(self, split: Split) -> int:
        return split.facts.expected("private", self.config().split)

    def test_the_promise_is_about_a_record_more_or_less(self, released: Release) -> None:
        plan = self.build().plan()
        assert plan.guarantee.relation == released.guarantee.relation == "add-remove"
        assert plan.details["rows"] == released.artefact.manifest.records  # type: ignore[union-attr]
        assert any(f"Exactly {plan.details['rows']:,} rows leave" in said for said in released.guarantee.assumptions)
        assert not any("How many" in said for said in released.guarantee.assumptions)

    @pytest.mark.parametrize("share", [0.0, 0.5, 1.5])
    def test_the_number_of_rows_is_the_declared_one_whoever_is_there(self, split: Split, share: float) -> None:
        """Fewer, or more than declared: what leaves has the same form, file by file and byte for byte in size."""
        count = round(share * self.expected(split))
        chosen = np.resize(np.arange(len(split.private)), count)
        made = self.release(replace(split, private=split.private.take(chosen)))
        usual = self.release(split)
        shards, known = (r.artefact.manifest.shards for r in (made, usual))  # type: ignore[union-attr]
        assert [(s.name, s.records, s.bytes) for s in shards] == [(s.name, s.records, s.bytes) for s in known]
        assert made.plan == usual.plan
        assert made.guarantee == usual.guarantee
        assert len(rows(made)) == self.expected(split)

    def test_the_public_part_is_taken_where_there_is_one(self) -> None:
        left_out = {key: value for key, value in self.settings.items() if key != "public"}
        assert self.build(settings=left_out).source.source == "split"  # type: ignore[attr-defined]
        assert self.build(settings=left_out, split={}).source.source == "synthetic"  # type: ignore[attr-defined]

    def test_the_noise_is_that_of_the_event(self, released: Release, split: Split) -> None:
        """Twice the clip norm apart, so σ = 2 R z; half of it is noticed."""
        features, z = released.artefact, float(released.plan.details["noise_multiplier"])
        assert isinstance(features, FeatureSet)
        assert features.front is not None
        assert features.clip is not None
        with torch.no_grad():
            place = released.secrets["choices"]["order"]
            numbers = features.front(to_input(torch.from_numpy(split.private.x[place])))
            numbers[place < 0] = 0.0  # rows of nobody
        clean = LocalGaussian(features.clip, z).clip(numbers).numpy()
        noise = (rows(released).x - clean).astype(np.float64).ravel() / (2 * features.clip * z)
        assert features.manifest.noise == pytest.approx(2 * features.clip * z)
        assert released.guarantee.events == dpa.GaussianDpEvent(z)
        assert (np.linalg.norm(clean, axis=1) <= features.clip).all()

        def plausible(sample: np.ndarray) -> bool:
            return bool(stats.kstest(sample, "norm").pvalue > 1e-4)

        assert plausible(noise)
        assert not plausible(noise / 2)

    def test_the_clip_norm_and_projection_come_from_public_records_alone(self, released: Release, split: Split) -> None:
        other = replace(split, private=Records(255 - split.private.x, split.private.y))
        again = self.release(other)
        assert again.plan.details["clip_norm"] == released.plan.details["clip_norm"]
        for name, array in released.secrets["front"].items():
            np.testing.assert_array_equal(array, again.secrets["front"][name])

    def test_labels_in_the_clear_are_said_first(self, released: Release) -> None:
        assert released.guarantee.assumptions[0] == LABELS_CLEAR
        assert released.artefact.labels == "clear"  # type: ignore[union-attr]

    def test_randomised_labels_are_paid_for(self, split: Split) -> None:
        settings = {**self.settings, "label_epsilon": 1.0}
        made = self.release(split, settings=settings)
        assert LABELS_CLEAR not in made.guarantee.assumptions
        assert 0.9 * self.epsilon < made.guarantee.epsilon <= self.epsilon
        assert made.plan.details["noise_multiplier"] > self.build().plan().details["noise_multiplier"]  # type: ignore[operator]
        kept = math.e / (math.e + 9)
        order = made.secrets["choices"]["order"]
        same = (rows(made).y == split.private.y[order])[order >= 0]
        assert abs(same.mean() - kept) < 5 * math.sqrt(kept / len(same))
        with pytest.raises(ConfigError, match="label_epsilon below"):
            self.build(settings={**self.settings, "label_epsilon": 8.0})

    def test_a_wanted_bound_on_reconstruction_sets_the_noise_if_it_needs_more(self) -> None:
        wanted = {"psnr": 40.0, "probability": 0.36, "blind": 0.3}
        made = self.build(settings={**self.settings, "reconstruction": wanted}).plan()
        z = float(made.details["noise_multiplier"])
        assert reconstruction.bound(0.3, z) == pytest.approx(0.36)
        assert made.details["reconstruction_bound"] == pytest.approx(0.36)
        assert made.guarantee.epsilon < 5  # and ε follows
        little = self.build(settings={**self.settings, "reconstruction": {**wanted, "probability": 0.99}}).plan()
        assert little.details["noise_multiplier"] == self.build().plan().details["noise_multiplier"]

    def test_a_stated_blind_guess_is_checked_with_public_pictures(self, split: Split) -> None:
        wanted = {"psnr": 20.0, "probability": 0.1, "blind": 0.05}
        with pytest.raises(ConfigError, match="blind guess that reaches 20 dB"):
            self.release(split, settings={**self.settings, "reconstruction": wanted})

    def test_a_run_that_goes_on_releases_the_same_rows(self, split: Split, tmp_path: Path) -> None:
        """Finished shards, the order and the channels are found again; other records are refused."""
        run = Run(checkpoint=tmp_path)
        made = self.build().release(split, Randomness.make(0), run)
        first = rows(made)
        again = rows(self.build().release(split, Randomness.make(0), replace(run, resume=True)))
        np.testing.assert_array_equal(first.x, again.x)
        other = replace(split, private=split.private.take(np.arange(100)))
        with pytest.raises(TrainingError, match="this very extraction"):
            self.build().release(other, Randomness.make(0), replace(run, resume=True))

    @pytest.mark.parametrize("count", [300, 1200])
    def test_a_run_that_was_broken_off_goes_on_with_the_same_rows(
        self, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        """Of several shards the finished ones stay, byte for byte; who fills up, who is left out and the order too."""
        own = replace(split, private=split.private.take(np.resize(np.arange(len(split.private)), count)))
        monkeypatch.setattr("airlock.data.feature_files.SHARD_BYTES", 4800)  # a hundred rows
        run = Run(checkpoint=tmp_path)
        made = self.build().release(own, Randomness.make(0), run)
        names = [shard.name for shard in made.artefact.manifest.shards]  # type: ignore[union-attr]
        before = {name: (tmp_path / "features" / name).read_bytes() for name in names}
        assert len(names) > 4
        (tmp_path / "features" / names[2]).unlink()
        again = self.build().release(own, Randomness.make(0), replace(run, resume=True))
        after = {name: (tmp_path / "features" / name).read_bytes() for name in names}
        assert [name for name in names if before[name] != after[name]] == [names[2]]
        np.testing.assert_array_equal(made.secrets["choices"]["order"], again.secrets["choices"]["order"])


class TestPublished(FeatureContract, ClaimContract):
    method = "published"
    settings: ClassVar[dict[str, Any]] = {
        "front": f"{__name__}:own_front", "layers": 2, "channels": 8, "epochs": 3, "format": "npz",
    }  # fmt: skip

    def test_repeated_runs_are_paid_for(self) -> None:
        assert self.build(tuning_runs=5).plan().guarantee.events == dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 5)

    def test_a_smaller_epsilon_means_a_smaller_epsilon(self) -> None:
        assert math.isinf(self.build(epsilon=0.5).plan().guarantee.epsilon)

    def test_where_the_noise_was_made_is_recorded(self, released: Release) -> None:
        assert released.noise_made_on == ()

    def test_spending_something_else_is_refused(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        ClaimContract.test_spending_something_else_is_refused(self, split, monkeypatch)

    def test_nothing_is_claimed(self, released: Release) -> None:
        assert (released.guarantee.status, released.guarantee.unit) == ("empirical", "none")
        assert released.guarantee.claim is None
        with pytest.raises(Refused, match="claims no ε"):
            methods.open_case("features/published", 1.0, 1e-5)

    def test_the_front_end_stays_inside(self, released: Release) -> None:
        assert "front" not in released.plan.details
        settings = json.loads(released.secrets["choices"]["settings"].tobytes())
        assert settings["front"] == f"{__name__}:own_front"
        assert len(released.secrets["choices"]["channels"]) == 8
        assert released.secrets["front"]

    def test_channels_are_drawn_in_secret(self, released: Release, split: Split) -> None:
        other = self.release(split, seed=2).secrets["choices"]["channels"]
        assert not np.array_equal(other, released.secrets["choices"]["channels"])

    def test_the_maps_are_those_of_the_channels_kept(self, released: Release, split: Split) -> None:
        chosen = released.secrets["choices"]
        x = to_input(torch.from_numpy(split.private.x[chosen["order"][:5]]))
        with torch.no_grad():
            wanted = own_front((1, 8, 8))(x)[:, chosen["channels"]]
        np.testing.assert_allclose(rows(released).x[:5], wanted.numpy(), atol=2e-3)


def measured(path: Path, front: str) -> str:
    """What characterising a front end of 24 maps would write: odd channels are leaky, the first 12 are useless."""
    cells = [
        Measurement(Point(2, (c,), 0), utility=0.1 if c < 12 else 0.5, psnr=30.0 if c % 4 == 1 else 10.0)
        for c in range(24)
    ]
    cells += [Measurement(Point(2, tuple(range(d)), 0), utility=0.5, psnr=10.0 + d) for d in (2, 4, 8)]
    Characterised(Characterisation(front, "public", {2: 24}, tuple(cells))).write(path)
    return str(path)


def test_limits_and_pruning_take_what_was_characterised(tmp_path: Path) -> None:
    name = TestPublished.settings["front"]
    file = measured(tmp_path / "c.json", name)
    settings = {"front": name, "psnr": 15.0, "prune": "characterised", "characterised": file, "epochs": 1}
    config = TestPublished.config(settings=settings)
    made = methods.build(config, data.describe(config))
    details = made.plan().details
    assert details["channels"] == "4 of 24"
    assert "15 dB" in str(details["chosen"])
    release = made.release(data.load(config), Randomness.make(0, insecure_seed=1), Run())
    allowed = {c for c in range(12, 24) if c % 4 != 1}
    assert set(release.secrets["choices"]["channels"].tolist()) <= allowed
    assert "chosen" not in release.plan.details
    fewer = methods.build(TestPublished.config(settings={**settings, "least_useful": 0.25}), data.describe(config))
    assert isinstance(fewer, Published)
    assert fewer._left(None) == tuple(c for c in range(6, 24) if c % 4 != 1)
    kept = methods.build(TestPublished.config(settings={**settings, "leakiest": 0.0}), data.describe(config))
    assert isinstance(kept, Published)
    assert kept._left(None) == tuple(range(12, 24))
    with pytest.raises(ConfigError, match="at most the 2 channels that pruning leaves of 24"):
        methods.build(TestPublished.config(settings={**settings, "least_useful": 0.875}), data.describe(config))
    with pytest.raises(ConfigError, match="psnr binds"):
        methods.build(TestPublished.config(settings={**settings, "psnr": 5.0}), data.describe(config))


def test_too_few_channels_for_fishers_criterion_are_found_before_a_record_is_read(tmp_path: Path) -> None:
    name = TestPublished.settings["front"]
    file = measured(tmp_path / "c.json", name)
    settings = {"front": name, "prune": "lda", "characterised": file, "layers": 2}
    facts = data.describe(TestPublished.config())
    methods.build(TestPublished.config(settings={**settings, "channels": 6}), facts)
    with pytest.raises(ConfigError, match="at most the 6 channels that pruning leaves of 24"):
        methods.build(TestPublished.config(settings={**settings, "channels": 7}), facts)
    methods.build(TestPublished.config(settings={**settings, "channels": 7, "leakiest": 0.0}), facts)


def test_pruning_by_private_records_is_said(split_of_digits: Split) -> None:
    """A channel without any information is not among those that leave, and the card says who chose."""
    settings = {**TestPublished.settings, "channels": 3, "prune": "lda", "epochs": 1}
    config = TestPublished.config(settings=settings)
    made = methods.build(config, data.describe(config))
    release = made.release(split_of_digits, Randomness.make(0, insecure_seed=1), Run())
    assert len(release.secrets["choices"]["channels"]) == 3
    assert BY_PRIVATE in release.guarantee.assumptions


@pytest.fixture(scope="module")
def split_of_digits() -> Split:
    return data.load(TestPublished.config())


def built(facts: Facts, method: type[Noised] | type[Published] = Published, **settings: Any) -> Any:
    table = {"channel": "features", "method": method.method, "data": "cifar10", "epsilon": 1.0, "delta": 1e-6}
    return method(from_table({**table, "settings": settings}), facts)


@pytest.mark.parametrize(
    ("facts", "settings", "says"),
    [
        (GREY, {"front": "vgg16"}, "colour"),
        (replace(CIFAR, shape=(3, 4, 4)), {"front": "vgg16", "layers": 13}, "pixels"),
        (CIFAR, {"front": "vgg16", "layers": 1, "channels": 65}, "at most 64 channels"),
        (CIFAR, {"front": "vgg16", "layers": 40}, "layers"),
        (CIFAR, {"front": "vgg61"}, "vgg16"),
        (CIFAR, {"front": "vgg16", "layers": 2, "channels": 8, "inner": (65,)}, "settings.inner"),
        (CIFAR, {"front": "vgg16", "weights": "nowhere.pth"}, "a file at settings.weights"),
        (CIFAR, {"front": "x:y"}, "settings.layers"),
        (CIFAR, {"front": "vgg16", "psnr": 20.0}, "settings.characterised"),
        (CIFAR, {"front": "vgg16", "layers": 1, "channels": 33, "prune": "lda"}, "the 32 channels that pruning leaves"),
        (CIFAR, {"front": "vgg16", "prune": "characterised"}, "--single 6"),
        (CIFAR, {"pretrain_on": "cifar100", "front": "efficientnet-lite0"}, "brings its weights"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(facts: Facts, settings: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, NetError), match=says):
        built(facts, **settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"layers": 1, "project": 65}, "settings.project of at most 64"),
        ({"public": "cifar100", "pretrain_on": "cifar100"}, "both"),
        ({"pool": ["vgg16"]}, "settings.pool"),
        ({"reconstruction": {"psnr": 20, "probability": 0.01, "blind": 0.02}}, "above its blind"),
        ({"public": "split"}, "public part"),
    ],
)
def test_noised_refuses_what_contradicts_itself(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        built(CIFAR, Noised, **settings)

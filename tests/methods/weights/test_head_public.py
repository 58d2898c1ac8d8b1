"""`weights`/`head` with public images: trained front ends, whitening, what the card says, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock import data, methods
from airlock.bundle import Vault
from airlock.bundle.verify import verify
from airlock.data import Public, Records, Split, digest
from airlock.errors import AirlockError, AirlockWarning, ConfigError, NetError
from airlock.mechanisms import Randomness
from airlock.methods.weights.head import Head
from airlock.nets.frontend import whitening
from airlock.nets.synthetic import draw_classes
from airlock.pipeline import make_release, plan_release
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.front_ends import public as public_module
from airlock.training.front_ends.features import compute
from airlock.training.front_ends.pretrain import LABEL
from airlock.training.front_ends.public import FrontSettings, moments, public_records

TRAINED = {"features": "trained", "public": "synthetic", "width": 16, "epochs": 1, "steps": 3}


@pytest.fixture(autouse=True)
def _few_synthetic_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_module, "_CLASSES", 10)
    monkeypatch.setattr(public_module, "_EACH", 60)


class TestTrainedOnSyntheticImages(MethodContract):
    channel, method = "weights", "head"
    settings: ClassVar[dict[str, Any]] = TRAINED

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _few(cls) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(public_module, "_CLASSES", 10)
            patch.setattr(public_module, "_EACH", 60)
            yield

    def test_a_bundle_verifies_and_its_card_names_the_images(self, tmp_path: Path) -> None:
        labels = []
        outcome = make_release(
            self.config(),
            tmp_path / "bundle",
            insecure_seed=1,
            vault=tmp_path / "vault",
            progress=lambda label, done, total: labels.append(label),
        )
        verdict = verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"))
        assert all(check.outcome == "ok" for check in verdict.checks), verdict
        assert outcome.release.network.net_name == "trained-16-mirror-white-linear"
        details = outcome.release.plan.details
        assert (details["public_data"], details["public_records"]) == ("Synthetic images", 600)
        assert str(details["public_sha256"]) in outcome.release.guarantee.assumptions[-1]
        assert {"features of public images", "features", "training"} <= set(labels)
        assert labels.count(LABEL) in (0, 2)  # from the cache, or two batches

    def test_a_records_features_do_not_change_with_its_neighbours(self, split: Split) -> None:
        channel = self.build()
        assert isinstance(channel, Head)
        net = channel.front.ready(public_records(channel.settings, split, 0), Run())
        few = split.private.take(np.arange(8))
        x = torch.from_numpy(few.x)
        with torch.no_grad():
            together, alone = net.train().front(x), torch.cat([net.front(one[None]) for one in x])
        assert torch.allclose(together, alone, atol=1e-5)
        assert (together.double().norm(dim=1) <= 1).all()
        assert not any(p.requires_grad for p in net.front.parameters())


def build(**settings: Any) -> Head:
    split = settings.pop("split", {})
    config = TestTrainedOnSyntheticImages.config(settings={"steps": 2, **settings}, split=split)
    channel = methods.build(config, data.describe(config))
    assert isinstance(channel, Head)
    return channel


def shapes(count: int = 400, classes: int = 5) -> Public:
    images, labels = draw_classes(count, (1, 8, 8), classes, seed=1)
    records = Records(images.numpy(), labels.numpy())
    return Public("shapes", records, classes, digest(records))


def features_of(front: nn.Module, public: Public) -> Tensor:
    return torch.cat([block for _, block in compute(front, public.records, Run(), "")]).double()


@pytest.mark.parametrize("within", [False, True])
def test_moments_are_those_of_all_features_at_once(within: bool) -> None:
    front, public = build(features="pixels").front.sized().front, shapes()
    x, y = features_of(front, public), torch.from_numpy(public.records.y)
    mean, covariance = moments(front, public, within, Run())
    centres = torch.stack([x[y == k].mean(0) for k in range(5)])[y] if within else x.mean(0)
    assert torch.allclose(mean, x.mean(0))
    assert torch.allclose(covariance, (x - centres).T @ (x - centres) / len(x), atol=1e-12)


@pytest.mark.parametrize("damping", [1e-3, 0.5])
def test_whitened_public_features_have_covariance_one_up_to_damping(damping: float) -> None:
    public = shapes()
    front = build(features="scattering").front.ready(None, Run()).front
    mean, covariance = moments(front, public, within=False, run=Run())
    weight, bias = whitening(mean, covariance, 0.5, damping)
    white = features_of(front, public) @ weight.double().T + bias.double()
    values = torch.linalg.eigvalsh(covariance)
    wanted = values / (values + damping * values.mean())
    assert white.mean(0).abs().max() < 1e-4
    assert torch.allclose(white.T.cov(correction=0), wanted.diag(), atol=1e-3)


def test_a_smaller_power_whitens_in_part() -> None:
    covariance = torch.diag(torch.tensor([1.0, 16.0]))
    weight, _ = whitening(torch.zeros(2), covariance, 0.25, 0.0)
    assert torch.allclose((weight @ covariance @ weight.T).diag(), torch.tensor([1.0, 4.0]))


def test_the_network_whitens_by_the_public_images_and_keeps_norm_one() -> None:
    public = shapes()
    settings = {"features": "pixels", "public": "synthetic", "whitening": "total", "whitening_power": 0.5}
    net = build(**settings, whitening_damping=0.0).front.ready(public, Run())
    assert isinstance(net.front, nn.Sequential)
    white = features_of(net.front[:2], public)
    varying = moments(net.front[0], public, within=False, run=Run())[1]
    assert int(torch.linalg.matrix_rank(varying)) == 64
    assert torch.allclose(white.T.cov(correction=0), torch.eye(64, dtype=torch.float64), atol=1e-3)
    assert (features_of(net.front, public).norm(dim=1) <= 1).all()
    other = build(**settings, whitening_damping=0.0).front.ready(shapes(300), Run())
    assert not torch.equal(net.front[1].weight, other.front[1].weight)  # type: ignore[index]


def test_the_front_end_does_not_depend_on_the_seed_of_the_release(tmp_path: Path) -> None:
    """Several releases share one: it is trained once."""
    count = 0

    def progress(label: str, done: int, total: int) -> None:
        nonlocal count
        count += label == LABEL

    public = shapes(64)
    for seed in (0, 1):
        config = TestTrainedOnSyntheticImages.config(seed=seed)
        channel = methods.build(config, data.describe(config))
        assert isinstance(channel, Head)
        channel.front.ready(public, Run(progress=progress))
    assert count <= 1


def test_the_public_part_of_the_split_can_be_used() -> None:
    channel = build(public="split", features="pixels", split={"public": 0.3})
    split = data.load(channel.config)
    release = channel.release(split, Randomness.make(0, insecure_seed=1), Run())
    assert release.plan.details["public_records"] == len(split.public)
    assert release.guarantee.assumptions[-1].startswith("The public part of digits is public")


def test_a_set_of_the_users_is_read_beside_the_private_one(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    np.savez(tmp_path / "others.npz", x=chance.integers(0, 256, (60, 12, 10, 3), np.uint8), y=chance.integers(0, 3, 60))
    public = {"source": str(tmp_path / "others.npz"), "classes": 3, "name": "Other pictures"}
    config = TestTrainedOnSyntheticImages.config(settings={"features": "pixels", "public": public, "steps": 2})
    plan = plan_release(config)
    assert plan.details["net"] == "pixels-white-linear"
    assert plan.guarantee.assumptions[-1] == "Other pictures is public: its records are not protected."
    outcome = make_release(config, tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
    assert "Other pictures is public" in outcome.release.guarantee.assumptions[-1]
    assert verify(tmp_path / "bundle").ok
    assert "others.npz" not in (tmp_path / "bundle" / "config.toml").read_text()


def test_private_records_in_the_public_set_are_told_to_the_holder_and_end_nothing(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 12, 12), np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(60) % 2)
    np.savez(tmp_path / "copy.npz", x=x[:40], y=np.arange(40) % 2)
    config = TestTrainedOnSyntheticImages.config(
        data={"source": str(tmp_path / "mine.npz"), "classes": 2, "records": 60},
        settings={"features": "pixels", "public": {"source": str(tmp_path / "copy.npz"), "classes": 2}},
        delta=1e-3,
    )
    with pytest.warns(AirlockWarning, match="also appears? in the public set, which is public"):
        make_release(config, tmp_path / "bundle", vault=tmp_path / "vault")
    assert verify(tmp_path / "bundle").ok


def test_a_release_without_the_public_set_says_how_to_add_it() -> None:
    channel = build(features="pixels", public="cifar100")
    assert channel.public is not None
    with pytest.raises(ConfigError, match="add_public"):
        channel.release(data.load(channel.config), Randomness.make(0, insecure_seed=1), Run())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": "trained"}, 'public images for features "trained"'),
        ({"features": "pixels", "whitening": "total"}, r"settings\.public along with settings\.whitening"),
        ({"features": "pixels", "whitening_power": 0.5}, r"settings\.whitening_power"),
        ({"features": "pixels", "public": "split"}, r"split\.public"),
        ({"features": "scattering", "public": "synthetic", "tune": True}, "efficientnet-lite0"),
        ({"features": "scattering", "mirror": True}, r"settings\.mirror"),
        ({"features": "pixels", "epochs": 3}, r"settings\.epochs"),
        ({"features": "efficientnet-lite0", "width": 16}, r"settings\.width"),
        ({"features": "trained", "public": "synthetic", "width": 20}, r"settings\.width"),
        ({"features": "pixels", "public": "synthetic", "whitening_power": 2.0}, r"settings\.whitening_power"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**settings)


@pytest.mark.parametrize("settings", [{"features": "trained", "width": 16}, {"features": "pixels"}])
def test_records_that_are_no_pictures_are_refused(settings: dict[str, Any]) -> None:
    facts = data.Facts("own", (4,), ("a", "b"), 300, None, "x")
    config = TestTrainedOnSyntheticImages.config(data="x.csv", settings={**settings, "public": "synthetic"})
    with pytest.raises(ConfigError, match="grey or colour images"):
        methods.build(config, facts)


def test_pictures_that_are_too_small_are_refused() -> None:
    facts = data.Facts("own", (1, 6, 8), ("a", "b"), 300, None, "x")
    config = TestTrainedOnSyntheticImages.config(data="x.npz", settings=TRAINED)
    with pytest.raises(NetError, match="at least 8 pixels"):
        methods.build(config, facts).plan()


def test_the_private_set_is_refused_as_public() -> None:
    config = TestTrainedOnSyntheticImages.config(settings={"features": "pixels", "public": "digits"})
    with pytest.raises(ConfigError, match="a data set other than"):
        plan_release(config)


def test_an_unknown_public_set_is_refused_before_data() -> None:
    config = TestTrainedOnSyntheticImages.config(settings={"features": "pixels", "public": "cifar1000"})
    with pytest.raises(AirlockError, match="cifar100"):
        plan_release(config)


def test_a_pretrained_front_end_is_tuned_only_on_a_real_set() -> None:
    def tuned(**settings: Any) -> bool:
        return build(features="efficientnet-lite0", **settings).front.tuned

    assert tuned(public="cifar100")
    assert not tuned(public="cifar100", tune=False)
    assert not tuned(public="synthetic")
    assert not tuned()


def test_defaults_of_whitening_are_the_documented_ones() -> None:
    settings = FrontSettings()
    assert (settings.whitening, settings.whitening_power, settings.whitening_damping) == ("within", 0.375, 0.3)

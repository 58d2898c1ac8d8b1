"""Features in a bundle: what leaves is what the card says, the front end stays, and the receiver can use it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from airlock.bundle import Bundle, Card, Vault, make_card, read, verify, write
from airlock.bundle.answering import open_interface
from airlock.bundle.bundle import check_output, texts
from airlock.bundle.export import open_onnx
from airlock.bundle.packing import packing_of
from airlock.bundle.receive import train_on
from airlock.bundle.receiving.model import load as load_model
from airlock.config import ReleaseConfig, from_table
from airlock.data.feature_files import Layout, ShardWriter, describe_shard, make_manifest
from airlock.errors import ConfigError, FormatError, Interrupted, OutputError, Refused
from airlock.mechanisms.reconstruction import Recovery, bound
from airlock.methods import FeatureSet, Release
from airlock.pipeline import make_release as make
from airlock.training.front_ends import extract
from tests.bundle.conftest import CLASSES, DAY, FACTS, guarantee, make_release, noise
from tests.bundle.forging import after
from tests.methods.features.test_methods import own_front

Seal = Callable[[Path], None]
SHARDS = ["features-00000.parquet", "features-00001.parquet"]
CONFIG = {
    "channel": "features",
    "method": "noised",
    "data": "digits",
    "epsilon": 8.0,
    "delta": 1e-4,
    "split": {"public": 0.3},
    "settings": {
        "front": f"{own_front.__module__}:own_front", "layers": 2, "project": 10, "public": "split", "format": "npz",
    },
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("made_up")


def written(folder: Path) -> FeatureSet:
    """Two shards; the features of a class lie apart."""
    rng, layout = np.random.default_rng(0), Layout((4,), "parquet", "float16", per_shard=60)
    y = rng.integers(0, 10, 100)
    x = rng.normal(size=(100, 4)) + np.stack([y % 2, y // 2, -y, y], 1)
    shards = []
    for number, own in enumerate(layout.shards(100)):
        with ShardWriter(folder, number, layout) as writer:
            writer.add(x[own.start : own.stop], y[own.start : own.stop])
        shards.append(describe_shard(writer.path, writer.records))
    rows = (Recovery(20.0, 1.0, 1.0), Recovery(28.0, 0.02, bound(0.02, 1.5)))
    return FeatureSet(folder, make_manifest(layout, CLASSES, 3.0, shards), "clear", "Flowers", rows, ("front",))


@pytest.fixture
def feature_config() -> ReleaseConfig:
    table = {"channel": "features", "method": "noised", "data": "digits", "epsilon": 3.0, "delta": 1e-4}
    return from_table(table | {"settings": {"front": "vgg16", "project": 4}})


@pytest.fixture
def feature_release(tmp_path: Path) -> Release:
    (tmp_path / "made").mkdir()
    made = make_release(guarantee(relation="replace-one"))
    plan = replace(made.plan, channel="features", method="noised", leaves="Numbers with noise.")
    return replace(made, plan=plan, artefact=written(tmp_path / "made"))


@pytest.fixture
def feature_card(feature_config: ReleaseConfig, feature_release: Release) -> Card:
    return make_card(feature_config, FACTS, feature_release, noise(), created=DAY)


@pytest.fixture
def bundle(tmp_path: Path, feature_config: ReleaseConfig, feature_release: Release, feature_card: Card) -> Bundle:
    return write(tmp_path / "features", feature_config, feature_release, feature_card)


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.says for check in verify(folder).checks if check.outcome == "failed"}


def test_shards_and_manifest_are_in_it_and_it_verifies(bundle: Bundle) -> None:
    names = sorted(path.name for path in bundle.folder.iterdir())
    assert names == sorted([*packing_of("features").required_files, *SHARDS])
    assert verify(bundle.folder).ok, failed(bundle.folder)
    with pytest.raises(Refused, match="found one of features"):
        load_model(bundle.folder)
    assert {"features", "reconstruction"} <= {check.name for check in verify(bundle.folder).checks}
    assert read(bundle.folder).card == bundle.card
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in bundle.folder.iterdir())


def test_settings_that_are_withheld_do_not_leave(bundle: Bundle) -> None:
    assert "vgg16" not in (bundle.folder / "config.toml").read_text()
    assert "project = 4" in (bundle.folder / "config.toml").read_text()
    for file in bundle.folder.iterdir():
        assert b"vgg16" not in file.read_bytes(), file.name


def test_the_first_line_says_what_leaves_and_that_labels_are_not_covered(feature_card: Card) -> None:
    assert feature_card.headline.startswith("Proven, but weak:")
    assert feature_card.uncovered == ("The labels leave as they are: nothing protects them.",)
    assert "4 numbers for each of 100 records, each number with noise, and their labels as they are, which nothing" in (
        feature_card.headline
    )
    assert feature_card.words.promise[0].startswith("It is about all of a record but its label")
    told = next(line for line in feature_card.words.promise if "Flowers" in line)
    assert "28 dB or better at most 4.3% of the time (2.0% without this release)" in told
    assert "20 dB" not in told  # a bound of 1 says nothing
    page = texts(feature_card)["card.html"]
    assert "100 records" in page
    assert "Release card for features of" in page


def test_without_noise_it_says_so(feature_config: ReleaseConfig, feature_release: Release) -> None:
    features = feature_release.artefact
    assert isinstance(features, FeatureSet)
    bare = replace(features, manifest=replace(features.manifest, noise=None), prior="", recovery=())
    other = replace(feature_release, artefact=bare, guarantee=guarantee(status="empirical", relation="replace-one"))
    made = make_card(feature_config, FACTS, other, noise())
    assert made.headline.startswith("NOT proven: no mathematical guarantee")
    assert "WITHOUT any noise" in made.headline


@pytest.mark.parametrize("name", [*SHARDS, "features.json"])
def test_what_is_trained_on_is_what_was_verified(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As found: whoever could write the folder meanwhile chose the rows."""

    def swap() -> None:
        content = (bundle.folder / name).read_bytes()
        (bundle.folder / name).write_bytes(
            content.replace(b"3.0", b"0.0") if name == "features.json" else content[::-1]
        )

    after(monkeypatch, sys.modules["airlock.bundle.verify"], "verify", swap)
    with pytest.raises(FormatError, match="the same bytes in features.json|the file that features.json names"):
        train_on(bundle.folder, None, epochs=1)


def test_a_changed_shard_is_found_even_with_new_checksums(bundle: Bundle, reseal: Seal) -> None:
    first, second = (bundle.folder / name for name in SHARDS)
    first.write_bytes(second.read_bytes())
    reseal(bundle.folder)
    assert "features-00000.parquet is not the file" in failed(bundle.folder)["features"]
    second.unlink()
    reseal(bundle.folder)
    assert "features-00001.parquet is missing." in failed(bundle.folder)["files"]


def test_a_manifest_of_something_else_is_found(bundle: Bundle, reseal: Seal) -> None:
    file = bundle.folder / "features.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"noise": 1.0}))
    reseal(bundle.folder)
    found = failed(bundle.folder)
    assert "does not describe the features on the card" in found["features"]
    assert "features.json" in found["hashes"]
    file.write_text("{}")
    reseal(bundle.folder)
    assert not verify(bundle.folder).ok


def test_a_bound_that_the_noise_does_not_give_is_found(bundle: Bundle, reseal: Seal) -> None:
    file = bundle.folder / "card.json"
    table = json.loads(file.read_text())
    table["features"]["recovery"][1]["bound"] = 0.03
    file.write_text(json.dumps(table))
    reseal(bundle.folder)
    assert "at 28 dB is not the one" in failed(bundle.folder)["reconstruction"]


def test_a_shard_beside_a_network_does_not_belong(original: Bundle, folder: Path, bundle: Bundle, reseal: Seal) -> None:
    (folder / SHARDS[0]).write_bytes((bundle.folder / SHARDS[0]).read_bytes())
    reseal(folder)
    assert failed(folder) == {"files": f"{SHARDS[0]} does not belong to a bundle."}


def test_a_bundle_of_features_may_be_replaced(bundle: Bundle) -> None:
    check_output(bundle.folder, force=True)


def test_nobody_answers_for_features(bundle: Bundle, vault: Vault) -> None:
    with pytest.raises(Refused, match="one of features"):
        open_interface(bundle.folder, vault)


def test_the_receiver_trains_with_the_bundle_alone(bundle: Bundle, original: Bundle, tmp_path: Path) -> None:
    found = train_on(bundle.folder, tmp_path / "net", device="cpu", holdout=0.2)
    assert (found.records, found.tested) == (80, 20)
    assert found.accuracy > 0.3
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == ["model.onnx", "model.safetensors", "report.json"]
    session = open_onnx((tmp_path / "net/model.onnx").read_bytes())
    assert session.run(["logits"], {"input": np.zeros((3, 4), np.float32)})[0].shape == (3, 10)
    assert json.loads((tmp_path / "net/report.json").read_text())["release_id"] == bundle.card.release_id
    for error, folder, more in (
        (Refused, original.folder, {}),
        (OutputError, bundle.folder, {"out": tmp_path / "net"}),
        (ConfigError, bundle.folder, {"holdout": 1.5}),
    ):
        with pytest.raises(error):
            train_on(folder, **{"out": None, **more})  # type: ignore[arg-type]


def test_from_config_to_bundle_with_an_interruption(
    tmp_path: Path, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted and resumed, one version of every row leaves, and the vault keeps no shard."""
    monkeypatch.setattr("airlock.data.feature_files.SHARD_BYTES", 8000)
    # The noise is new in every run: accuracy 0.64 ± 0.02 at ε = 16 (0.53 ± 0.03 at 8, too near to what is asserted).
    config, out = from_table({**CONFIG, "epsilon": 16.0}), tmp_path / "bundle"
    seen: list[int] = []

    class Watch:
        def __enter__(self) -> Callable[[], bool]:
            return lambda: len(seen) == 2

        def __exit__(self, *rest: object) -> None:
            return None

    monkeypatch.setattr(extract, "_BLOCK", 100)
    monkeypatch.setattr(extract, "watch_interrupt", Watch)
    show = lambda label, *rest: seen.append(1) if label == "features" else None  # noqa: E731
    with pytest.raises(Interrupted, match="--resume"):
        make(config, out, progress=show)
    assert not out.exists()
    left = {path.name for path in vault.root.rglob("*")}
    assert not [name for name in left if name.endswith(".part")]
    seen += [1] * 100
    outcome = make(config, out, resume=True)
    assert verify(out, vault).ok, failed(out)
    card = outcome.bundle.card
    assert outcome.release.utility.accuracy > 0.5
    assert outcome.dossier.audit.attacks[0].name == "likelihood ratio of features"
    assert list(vault.root.rglob("*features-*")) == []
    kept = vault.load(card.release_id)
    assert set(kept) == {"front", "choices", "attack-scores", "contact-sheet", "outcomes"}
    for file in out.iterdir():
        assert kept["front"]["2.weight"].tobytes() not in file.read_bytes()

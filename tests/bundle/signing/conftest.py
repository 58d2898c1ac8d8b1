"""A signed bundle of each kind, and the keys of those who sign."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from airlock.bundle import Bundle, Card, make_card, write
from airlock.bundle.contents import APPROVAL, SIGNATURE, Contents
from airlock.bundle.signing.envelope import Approval, approval_statement, release_statement, seal
from airlock.bundle.signing.keys import SigningKey
from airlock.config import ReleaseConfig, from_table
from airlock.methods.interface import ONE_ANSWER, Interface
from tests.bundle.conftest import CLASSES, DAY, FACTS, SHAPE, guarantee, make_release, noise
from tests.bundle.test_features import written


def sign(folder: Path, key: SigningKey) -> None:
    """Sign the files as they are now."""
    release_id = json.loads((folder / "card.json").read_text())["release_id"]
    (folder / SIGNATURE).write_bytes(seal(release_statement(Contents(folder).signed(), release_id), key))


def countersign(folder: Path, key: SigningKey, **changes: str) -> None:
    """A reviewer's approval of the files as they are now."""
    release_id = json.loads((folder / "card.json").read_text())["release_id"]
    table = {"release_id": release_id, "decision": "approve", "name": "Ada", "date": "2026-03-09", **changes}
    statement = approval_statement(Contents(folder).signed(), Approval.model_validate(table))
    (folder / APPROVAL).write_bytes(seal(statement, key))


def public_file(key: SigningKey, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{key.public.fingerprint[:8]}.pem"
    path.write_bytes(key.public.pem)
    return path


@pytest.fixture(scope="session")
def holder() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture(scope="session")
def reviewer() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture(scope="session")
def stranger() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def signed(folder: Path, holder: SigningKey) -> Path:
    """A copy of the bundle of a network, signed by the holder."""
    sign(folder, holder)
    return folder


@pytest.fixture(scope="session")
def of_answers(tmp_path_factory: pytest.TempPathFactory, holder: SigningKey) -> Bundle:
    made = make_release(guarantee())
    asked = Interface("label", SHAPE, CLASSES, 50, ONE_ANSWER, {"noise_multiplier": 318.0})
    plan = replace(made.plan, channel="answers", method="per-query", leaves="Answers with noise.")
    release = replace(made, plan=plan, artefact=asked)
    config = from_table({"channel": "answers", "method": "per-query", "data": "digits", "epsilon": 3.0, "delta": 1e-4})
    card = make_card(config, FACTS, release, noise(), created=DAY)
    return write(tmp_path_factory.mktemp("answers") / "bundle", config, release, card, signer=holder)


@pytest.fixture(scope="session")
def of_features(tmp_path_factory: pytest.TempPathFactory, holder: SigningKey) -> Bundle:
    folder = tmp_path_factory.mktemp("features")
    (folder / "made").mkdir()
    made = make_release(guarantee(relation="replace-one"))
    plan = replace(made.plan, channel="features", method="noised", leaves="Numbers with noise.")
    release = replace(made, plan=plan, artefact=written(folder / "made"))
    table = {"channel": "features", "method": "noised", "data": "digits", "epsilon": 3.0, "delta": 1e-4}
    config = from_table(table | {"settings": {"front": "vgg16", "project": 4}})
    card = make_card(config, FACTS, release, noise(), created=DAY)
    return write(folder / "bundle", config, release, card, signer=holder)


@pytest.fixture(scope="session")
def of_a_network(
    tmp_path_factory: pytest.TempPathFactory, original: Bundle, config: ReleaseConfig, card: Card, holder: SigningKey
) -> Bundle:
    folder = Path(shutil.copytree(original.folder, tmp_path_factory.mktemp("network") / "bundle"))
    sign(folder, holder)
    return Bundle(folder, original.card)

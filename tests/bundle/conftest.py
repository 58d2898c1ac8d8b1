"""One small release for all tests of this room; every test that tampers works on a copy of its bundle."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from airlock.accounting import Guarantee
from airlock.accounting.calibrate import suggesting
from airlock.auditing.result import Advantage, AttackResult, Audit, ClassScore, RateAt, Stability
from airlock.bundle import Bundle, Card, Dossier, Vault, make_card, write
from airlock.bundle.dossier import make as make_dossier
from airlock.config import ReleaseConfig, from_table
from airlock.data import describe
from airlock.mechanisms import Place, Stream
from airlock.methods import build as build_method
from airlock.methods.contract import NetworkArtefact, Plan, Release
from airlock.nets import build
from airlock.training.outcomes import Outcomes
from tests.bundle.forging import seal

DAY = datetime.date(2026, 3, 9)
SHAPE, CLASSES = (1, 8, 8), tuple("0123456789")
# One step of DP-SGD on every record: what its config leads to is noise of 1.5, one Gaussian event.
CONFIG = from_table(
    {"channel": "weights", "method": "gaussian", "net": "linear", "data": "digits", "epsilon": 2.366, "delta": 1e-4,
     "settings": {"steps": 1, "lot_size": 10_000, "clip_norm": 1.0}}
)  # fmt: skip
FACTS = describe(CONFIG)
ATTACK = AttackResult(
    name="loss threshold",
    question="Can someone who holds the model and a person's record tell whether it was in the training set?",
    score="AUC",
    value=0.5123,
    low=0.4561,
    high=0.5685,
    chance=0.5,
    confidence=0.95,
    members=1800,
    non_members=1750,
    smallest_effect=0.5601,
    epsilon_lower_bound=0.0,
    view="black-box",
    aim="membership",
    could_refute=5.4,
    advantage=Advantage(0.01, -0.06, 0.08, 0.505, 0.45, 0.44, 0.04),
    rates=(RateAt(0.001, 0.0012, 0.0003, 0.0032, 0.0035, None), RateAt(0.01, 0.0133, 0.0083, 0.02, 0.015, None)),
    curve=((0.001, 0.0012), (0.01, 0.0133), (0.1, 0.12), (1.0, 1.0)),
    per_class=(ClassScore("0", 0.52, 0.4, 0.64), ClassScore("1", None, None, None)),
    stability=Stability(3, 0.81, 0.5),
)
INSIDE = dataclasses.replace(ATTACK, name="gradient norm", view="white-box")
AUDIT = Audit((ATTACK, INSIDE), ("Attacks by shadow models.", "Reconstruction of records from the weights."))


@cache
def planned() -> Plan:
    """What the config leads to."""
    with suggesting([1.5]):
        return build_method(CONFIG, FACTS).planned


def guarantee(noise: float = 1.5, **changes: object) -> Guarantee:
    settings: dict[str, object] = {
        "unit": "record",
        "relation": "add-remove",
        "events": dpa.GaussianDpEvent(noise),
        "delta": 1e-4,
        "status": "proven",
        "assumptions": planned().guarantee.assumptions,
    }
    return Guarantee(**(settings | changes))  # type: ignore[arg-type]


def outcomes(correct: int, records: int) -> Outcomes:
    """So many of so many right, as sure as a coin that is a little unfair; classes in turn."""
    labels = np.arange(records, dtype=np.int64) % len(CLASSES)
    predicted = np.where(np.arange(records) < correct, labels, (labels + 1) % len(CLASSES))
    return Outcomes(labels, predicted, np.linspace(0.3, 0.99, records))


def noise() -> Stream:
    """For what a card says about test records."""
    return Stream.from_seed(3)


def make_release(
    promise: Guarantee, *, secure_noise: bool = True, noise_made_on: tuple[Place, ...] = ("cpu",)
) -> Release:
    torch.manual_seed(0)
    net = build("linear", SHAPE, len(CLASSES)).eval().requires_grad_(False)
    return Release(
        plan=dataclasses.replace(planned(), guarantee=promise),
        artefact=NetworkArtefact(net, "linear", SHAPE, CLASSES),
        guarantee=promise,
        utility=outcomes(331, 360),
        secure_noise=secure_noise,
        noise_made_on=noise_made_on,
        secrets={"teachers": {"weight": np.arange(12, dtype=np.float32).reshape(3, 4)}},
    )


@pytest.fixture(scope="session")
def config() -> ReleaseConfig:
    return CONFIG


@pytest.fixture(scope="session")
def release() -> Release:
    return make_release(guarantee())


@pytest.fixture(scope="session")
def card(config: ReleaseConfig, release: Release) -> Card:
    return make_card(config, FACTS, release, noise(), created=DAY)


@pytest.fixture(scope="session")
def dossier(release: Release, card: Card) -> Dossier:
    return make_dossier(card, release, AUDIT)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, config: ReleaseConfig, release: Release, card: Card) -> Bundle:
    return write(tmp_path_factory.mktemp("original") / "bundle", config, release, card)


@pytest.fixture
def fast_export(original: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting takes a second; tests about writing files reuse the one ONNX file."""
    content = (original.folder / "model.onnx").read_bytes()
    monkeypatch.setattr("airlock.bundle.export.to_onnx", lambda artefact: content)


@pytest.fixture
def folder(original: Bundle, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may tamper with."""
    return Path(shutil.copytree(original.folder, tmp_path / "bundle"))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles whose figures are made up verify too: no config leads to them. test_replan.py has real ones."""
    monkeypatch.setattr("airlock.bundle.replan.tests", lambda *told: [])


def own_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval().requires_grad_(False)


def write_own(folder: Path) -> Bundle:
    """The bundle of a network that is not built in."""
    torch.manual_seed(3)
    base = make_release(guarantee())
    artefact = NetworkArtefact(own_net(), "my.module:make", SHAPE, FACTS.classes)
    release = Release(base.plan, artefact, base.guarantee, base.utility, True, ("cpu",))
    return write(folder, CONFIG, release, make_card(CONFIG, FACTS, release, noise()))


@pytest.fixture(scope="session")
def of_my_own(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_own(tmp_path_factory.mktemp("own") / "bundle")


@pytest.fixture
def own(of_my_own: Bundle, tmp_path: Path) -> Path:
    """A copy of it that a test may tamper with."""
    folder = tmp_path / "own"
    folder.mkdir()
    for file in of_my_own.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vault:
    """An empty vault of the test's own, also where none is named."""
    monkeypatch.setenv("AIRLOCK_VAULT", str(tmp_path / "vault"))
    return Vault.open()


@pytest.fixture
def reseal() -> Callable[[Path], None]:
    """Write SHA256SUMS again, as somebody would who tampers with care."""
    return seal

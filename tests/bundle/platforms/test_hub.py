"""A repository of the Hugging Face Hub: read by the Hub's own library, uploaded to a stand-in for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load as load_tensors
from typer.testing import CliRunner

import airlock
from airlock.bundle import Bundle, Vault, verify
from airlock.bundle.bundle import read
from airlock.bundle.platforms import hub, open_for_others
from airlock.bundle.platforms.hub import front_matter, push, repository, write
from airlock.cli import app
from airlock.errors import ConfigError, FormatError, OutputError, Refused
from tests.bundle.receiving import table


class FakeHub:
    """Keeps what it is sent, as the Hub would; nothing leaves this process."""

    def __init__(self, there: dict[str, bytes] | None = None) -> None:
        self.files, self.calls = dict(there or {}), list[tuple[str, Any]]()

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create_repo", (repo_id, repo_type, private, exist_ok)))

    def list_repo_files(self, repo_id: str) -> list[str]:
        return list(self.files)

    def create_commit(self, repo_id: str, operations: Any, *, commit_message: str) -> None:
        self.calls.append(("create_commit", (repo_id, commit_message)))
        for one in operations:
            if isinstance(one, CommitOperationAdd):
                assert isinstance(one.path_or_fileobj, bytes)
                self.files[one.path_in_repo] = one.path_or_fileobj
            else:
                assert isinstance(one, CommitOperationDelete)
                del self.files[one.path_in_repo]


class Offline(FakeHub):
    def create_commit(self, repo_id: str, operations: Any, *, commit_message: str) -> None:
        raise ConnectionError("no route to the Hub")


def test_the_hub_reads_the_front_matter(verified: Bundle) -> None:
    card = ModelCard(repository(verified, {"license": "apache-2.0"})["README.md"].decode())
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "airlock"
    assert card.data.pipeline_tag == "tabular-classification"
    assert {"differential-privacy", "airlock", "guarantee-proven", "onnx", "safetensors"} == set(card.data.tags)
    assert verified.card.utility is not None
    figures, found = verified.card.utility.figures, card.data.eval_results
    assert found is not None
    assert {one.metric_type: one.metric_value for one in found} == {
        "accuracy": round(figures.accuracy.value, 4),
        "balanced_accuracy": round(figures.balanced_accuracy.value, 4),
    }, "the figures that are paid for, and no others"
    assert all("95% interval" in str(one.metric_name) for one in found)
    assert all(one.dataset_type == "people" for one in found)
    assert "airlock verify bundle" in card.text
    assert verified.card.headline in card.text.replace("\\", "")


def test_names_that_the_hub_would_refuse_are_written_as_it_takes_them(verified: Bundle) -> None:
    odd = verified.card.data.model_copy(update={"name": 'ward 7: "A/B" \u2013 Größe\n---\nlicense: mit'})
    card = ModelCard("---\n" + front_matter(verified.card.model_copy(update={"data": odd})) + "---\n")
    assert card.data.license == "other"
    found = card.data.eval_results
    assert found is not None
    assert found[0].dataset_type == "ward-7-A-B-Gr-e-license-mit"
    assert found[0].dataset_name == odd.name


def test_a_card_without_figures_has_no_results(verified: Bundle) -> None:
    text = front_matter(verified.card.model_copy(update={"utility": None}))
    assert "model-index" not in text
    assert "metrics" not in text


def test_what_is_written_holds_the_bundle_whole(verified: Bundle, own_vault: Vault, tmp_path: Path) -> None:
    files = write(tmp_path / "repo", verified, {"license": "other", "license_name": "of-the-house"})
    assert {str(one.relative_to(tmp_path / "repo")) for one in files} == {
        "README.md", "model.safetensors", *(f"bundle/{name}" for name in verified.files.names)
    }  # fmt: skip
    (tmp_path / "repo" / ".gitattributes").write_text("*.safetensors filter=lfs\n")  # as the Hub adds it
    assert verify(tmp_path / "repo" / "bundle", own_vault).ok
    weights = load_tensors((tmp_path / "repo" / "model.safetensors").read_bytes())
    assert set(weights) == set(table.release().network.net.state_dict())
    with pytest.raises(OutputError, match="does not exist yet"):
        write(tmp_path / "repo", verified)
    with pytest.raises(OutputError, match="outside a bundle"):
        write(verified.folder / "repo", verified)


def test_one_commit_uploads_what_was_verified_and_nothing_else(verified: Bundle) -> None:
    there = {"bundle/model.onnx": b"old", "bundle/model.int8.onnx": b"old", "notes.md": b"mine", ".gitattributes": b""}
    api = FakeHub(there)
    where = push(verified, "ward/triage", {"license": "mit"}, api=api)
    assert where == "ward/triage"
    assert [name for name, _ in api.calls] == ["create_repo", "create_commit"]
    assert api.calls[0][1] == ("ward/triage", "model", True, True), "private unless the user says otherwise"
    assert api.files.pop("notes.md") == b"mine"
    assert api.files.pop(".gitattributes") == b""
    assert api.files == repository(verified, {"license": "mit"}), "a file of an earlier release is gone"


def test_a_file_that_changed_after_verification_is_not_uploaded(
    verified: Bundle, own_vault: Vault, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(verified.folder, tmp_path / "copy"))
    opened = open_for_others(copy, own_vault)
    (copy / "patients.csv").write_text("id,ill\n1,yes\n")
    api = FakeHub()
    push(opened, "ward/triage", api=api)
    assert not any("patients" in name for name in api.files), "it came after the bundle was verified"
    (copy / "config.toml").write_text("epsilon = 0.1\n")
    api = FakeHub()
    with pytest.raises(FormatError, match="same bytes"):
        push(opened, "ward/triage", api=api)
    assert not api.calls
    with pytest.raises(Refused, match="bundle that verifies"):
        open_for_others(copy, own_vault)
    with pytest.raises(Refused, match="was verified"):
        push(read(verified.folder), "ward/triage", api=api)


@pytest.mark.parametrize("repo", ["triage", "a/b/c", "../x", "ward/", "", "https://hub.example/a/b"])
def test_a_repository_has_an_owner_and_a_name(verified: Bundle, repo: str) -> None:
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        push(verified, repo, api=FakeHub())


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"licence": "mit"}, "license, license_name"),
        ({"license": "My License\n"}, "identifier"),
        ({"license": "mit", "license_name": "x"}, "only where license"),
    ],
)
def test_what_is_no_license_is_refused(verified: Bundle, said: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        repository(verified, said)


def test_a_hub_that_cannot_be_reached_is_an_error_with_a_remedy(verified: Bundle) -> None:
    with pytest.raises(OutputError, match="hf auth login"):
        push(verified, "ward/triage", api=Offline())
    assert issubclass(HfHubHTTPError, Exception)


def test_without_the_package_the_extra_is_named(verified: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"\[hub\]"):
        push(verified, "ward/triage", api=FakeHub())


def test_python_pushes_what_it_released(verified: Bundle, own_vault: Vault) -> None:
    api = FakeHub()
    airlock.push_to_hub(verified, "ward/triage", license="mit", vault=own_vault.root, api=api)
    assert api.files["bundle/card.json"] == (verified.folder / "card.json").read_bytes()
    assert b'license: "mit"' in api.files["README.md"]


def test_what_has_no_network_is_refused(verified: Bundle, own_vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = replace(verified, card=verified.card.model_copy(update={"network": None, "interface": object()}))
    monkeypatch.setattr("airlock.bundle.platforms.layout.read_verified", lambda *a, **k: answers)
    with pytest.raises(Refused, match="bundle with a network"):
        open_for_others(verified.folder, own_vault)


def test_a_refuted_release_is_refused(verified: Bundle, own_vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubted:
        verdict = "doubt"

    monkeypatch.setattr("airlock.bundle.platforms.layout.dossier.find", lambda *a: Doubted())
    with pytest.raises(Refused, match="ε nothing refutes"):
        open_for_others(verified.folder, own_vault)
    assert hub.KEYS[0] == "license"


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_on_the_command_line(
    verified: Bundle, own_vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeHub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    common = ("export", verified.folder, "--vault", own_vault.root, "--as")
    found = run(*common, "hub", "--out", tmp_path / "repo", "--set", "license=mit", "--push", "a/b", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["uploaded"] == "a/b"
    assert {name: (tmp_path / "repo" / name).read_bytes() for name in api.files} == api.files
    assert run(*common, "mlflow", "--out", tmp_path / "model").exit_code == 0
    assert (tmp_path / "model" / "MLmodel").is_file()
    for words, says in (
        (("hub", "--out", tmp_path / "repo"), "does not exist yet"),
        (("hub", "--out", tmp_path / "x", "--set", "epsilon=0.1"), "license_name"),
        (("hub", "--out", tmp_path / "x", "--with-dossier"), "no dossier"),
        (("mlflow", "--out", tmp_path / "x", "--push", "a/b"), "together with --as hub"),
        (("dpia", "--out", tmp_path / "x.md", "--push", "a/b"), "together with --as hub"),
        (("hub", "--out", tmp_path / "x", "--push", "../b"), "OWNER/NAME"),
    ):
        refused = run(*common, *words)
        assert refused.exit_code in (1, 2)
        assert says in refused.stderr.replace("\n", " ")
        assert "Traceback" not in refused.output

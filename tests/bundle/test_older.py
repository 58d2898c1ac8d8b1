"""Bundles of formats 1 to 6, as they were made then: their files and their ε are checked, and the first line says so.

`older_bundles.tar.xz` holds fifteen of them, small releases of handwritten digits, by the code of their time.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airlock.bundle import read, read_verified, verify
from airlock.bundle.card import older_note
from airlock.bundle.signing.signatures import UNSIGNED
from airlock.cli import app
from airlock.errors import FormatError

ARCHIVE = Path(__file__).with_name("older_bundles.tar.xz")
NAMES = [
    "format-1-gaussian", "format-1-published", "format-2-gaussian", "format-2-published", "format-3-gaussian",
    "format-3-head", "format-4-gaussian", "format-4-per-query", "format-4-published", "format-5-gaussian",
    "format-5-per-query", "format-5-sharded", "format-6-gaussian", "format-6-noised", "format-6-per-query",
]  # fmt: skip


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def outcomes(folder: Path, **asked: Any) -> dict[str, str]:
    return {check.name: check.outcome for check in verify(folder, **asked).checks}


def rewrite(folder: Path, **changes: Any) -> None:
    """Change the card and write its checksum again, as whoever forges it would."""
    card = json.loads((folder / "card.json").read_text())
    for path, value in changes.items():
        *above, last = path.split("__")
        table = card
        for key in above:
            table = table[key]
        table[last] = value
    (folder / "card.json").write_text(json.dumps(card))
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    sums["card.json"] = hashlib.sha256((folder / "card.json").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in sums.items()))


def test_all_of_them_are_there(older: Path) -> None:
    assert sorted(path.name for path in older.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_and_epsilon_are_checked_and_the_first_line_says_what_is_not(name: str, older: Path) -> None:
    verification = verify(older / name)
    assert verification.ok, verification
    note = older_note(int(name.split("-")[1]))
    assert verification.note == note
    assert [check.name for check in verification.checks] == [
        "signature", "files", "checksums", "vault", "card", "epsilon", "hashes",
    ]  # fmt: skip
    for command, first in (("verify", [UNSIGNED, note]), ("show", [note])):
        said = CliRunner().invoke(app, [command, str(older / name)])
        assert said.exit_code == 0, said.output
        assert said.stdout.splitlines()[: len(first)] == first
        assert "The bundle is sound" not in said.stdout
        told = json.loads(CliRunner().invoke(app, [command, str(older / name), "--json"]).stdout)
        assert next(iter(told)) == "note"


def test_less_noise_than_the_stated_epsilon_takes_is_found(older: Path) -> None:
    folder = older / "format-3-gaussian"
    events = json.loads((folder / "card.json").read_text())["guarantee"]["events"]
    events["event"]["noise_multiplier"] /= 2
    rewrite(folder, guarantee__events=events)
    assert outcomes(folder)["epsilon"] == "failed"
    assert outcomes(folder)["checksums"] == "ok"


def test_an_epsilon_that_was_edited_is_found(older: Path) -> None:
    rewrite(older / "format-5-sharded", guarantee__epsilon=0.5)
    assert outcomes(older / "format-5-sharded")["epsilon"] == "failed"


def test_a_proven_epsilon_above_the_one_asked_for_is_found(older: Path) -> None:
    rewrite(older / "format-1-gaussian", target__epsilon=1.0)
    assert outcomes(older / "format-1-gaussian")["epsilon"] == "failed"


def test_another_model_is_found_even_with_a_new_checksum(older: Path) -> None:
    folder = older / "format-2-gaussian"
    (folder / "model.safetensors").write_bytes((older / "format-1-gaussian/model.safetensors").read_bytes())
    assert outcomes(folder)["checksums"] == "failed"
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    sha = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    sums = [f"{sha}  model.safetensors" if line.endswith("model.safetensors") else line for line in sums]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    assert outcomes(folder) == outcomes(older / "format-1-gaussian") | {"hashes": "failed"}


@pytest.mark.parametrize("broken", [{"guarantee": 3}, {"schema_version": 0}, {"schema_version": True}, {"hashes": []}])
def test_a_broken_card_is_a_failed_check(broken: dict[str, Any], older: Path) -> None:
    rewrite(older / "format-4-gaussian", **broken)
    assert not verify(older / "format-4-gaussian").ok
    assert CliRunner().invoke(app, ["show", str(older / "format-4-gaussian")]).exit_code == 2


def test_a_file_that_no_format_had_is_found(older: Path) -> None:
    (older / "format-4-gaussian/records.npz").write_bytes(b"")
    assert outcomes(older / "format-4-gaussian")["files"] == "failed"


def test_it_passes_no_gate_and_is_not_read_as_one_of_today(older: Path) -> None:
    folder = older / "format-5-gaussian"
    assert outcomes(folder, gated=True)["gate"] == "failed"
    for reading in (read, read_verified):
        with pytest.raises(FormatError, match="one of format 5.*make the release again"):
            reading(folder)
    assert CliRunner().invoke(app, ["gate", str(folder)]).exit_code == 1


@pytest.mark.parametrize("name", ["format-1-gaussian", "format-4-per-query", "format-6-noised"])
def test_the_gate_is_closed_with_a_reason(name: str, older: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gate", str(older / name), "--json"])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert (found["open"], found["caution"], found["release"], found["rules"]) == (False, [], [], [])
    (reason,) = found["reject"]
    assert older_note(int(name.split("-")[1])) in reason
    assert reason.endswith("Make the release again.")
    rewrite(older / name, guarantee__epsilon=0.01)
    worse = json.loads(CliRunner().invoke(app, ["gate", str(older / name), "--json"]).stdout)
    assert any("does not verify" in one for one in worse["reject"]), "a defect is told, too"
    assert reason in worse["reject"]
    asked = CliRunner().invoke(app, ["gate", str(older / name), "--sacro", str(tmp_path / "report")])
    assert asked.exit_code == 1
    assert not (tmp_path / "report").exists()

"""Whoever can write a bundle's folder swaps a file while it is verified, or before it is used: no command uses it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airlock.auditing import AuditSettings
from airlock.bundle import read_verified, verify
from airlock.bundle.answering import open_answerer
from airlock.bundle.contents import SIGNATURE, Contents
from airlock.bundle.signing import approval
from airlock.bundle.signing.keys import SigningKey
from airlock.bundle.signing.signatures import examine
from airlock.config import from_table
from airlock.errors import FormatError
from airlock.pipeline import audit_bundle, make_release
from tests.bundle.forging import after, forge
from tests.bundle.signing.conftest import sign
from tests.bundle.test_verify import change_weights

VERIFY = sys.modules["airlock.bundle.verify"]
FEW = AuditSettings(shadows=4, epochs=1, queries=1)
NEXT = from_table(
    {"channel": "weights", "data": "digits", "net": "linear", "epsilon": 3.0, "delta": 1e-4, "settings": {"steps": 1}}
)


def another(folder: Path) -> Path:
    """The same bundle with other weights, another card and another config."""
    place = Path(shutil.copytree(folder, folder.with_name("other")))
    change_weights(place, lambda weight: weight + 1)
    shutil.copy(place / "model.safetensors", place / "model.onnx")
    return forge(place, {"created": "2020-01-01"}, {"seed": 7})


@pytest.fixture
def other(folder: Path) -> Path:
    return another(folder)


USES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "read": ("card.json", read_verified),
    "serve": ("model.onnx", open_answerer),
    "audit, its config": ("config.toml", audit_bundle),
    "audit, its weights": ("model.safetensors", lambda folder: audit_bundle(folder, FEW)),
    "compose": ("card.json", lambda folder: make_release(NEXT, folder.with_name("new"), composes_with=[folder])),
}


@pytest.mark.parametrize(("name", "use"), USES.values(), ids=USES)
def test_what_is_used_is_what_was_verified(
    folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Callable[[Path], object]
) -> None:
    """As found: every file was read a second time, whatever it was by then."""
    after(monkeypatch, VERIFY, "verify", lambda: shutil.copy(other / name, folder))
    with pytest.raises(FormatError, match=f"the same bytes in {name} until the bundle is used, found others"):
        use(folder)


def test_what_was_verified_is_what_is_approved(folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: the reviewer's key signed whatever was there after the verification."""
    key = SigningKey.generate()
    readme = (folder / "README.md").read_bytes()
    after(monkeypatch, approval, "verify", lambda: shutil.copy(other / "README.md", folder))
    approval.approve(folder, key, "approve", "Ada")
    assert examine(Contents(folder), None, approvers=[key.public]).approval.state == "changed"
    (folder / "README.md").write_bytes(readme)
    assert examine(Contents(folder), None, approvers=[key.public]).approval.accepted


def test_what_is_approved_is_about_the_card_that_was_verified(
    folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(monkeypatch, approval, "_decided", lambda: shutil.copytree(other, folder, dirs_exist_ok=True))
    monkeypatch.setattr(VERIFY, "inspect", lambda files, *told, **more: (files.read("card.json"), None))
    with pytest.raises(FormatError, match="the same bytes in card.json"):
        approval.approve(folder, SigningKey.generate(), "approve", "Ada")


@pytest.mark.parametrize("step", ["examine", "_files", "_checksums", "_schema"])
def test_a_verification_is_of_one_version_of_every_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As found: the signature was compared with one bundle, and the checks were made of another that agrees too."""
    holder = SigningKey.generate()
    sound = Path(shutil.copytree(folder, tmp_path / "sound"))
    forge(folder, {"leaves": "Nothing at all."})
    sign(folder, holder)
    assert {check.name for check in verify(folder).checks if check.outcome == "failed"} == {"plan"}
    after(monkeypatch, VERIFY, step, lambda: shutil.copytree(sound, folder, dirs_exist_ok=True))
    found = verify(folder, signers=[holder.public])
    assert "the same bytes in" in " ".join(check.says for check in found.checks if check.outcome == "failed")
    assert (folder / SIGNATURE).exists()

"""The standard's own tool (OpenSSF model signing) accepts what Airlock signs, and Airlock what it signs."""

from __future__ import annotations

import importlib
import shutil
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from airlock.bundle import Bundle
from airlock.bundle.contents import SIGNATURE, Contents
from airlock.bundle.signing.keys import SigningKey, read_private
from airlock.bundle.signing.signatures import examine
from tests.bundle.signing.conftest import countersign, public_file, sign
from tests.bundle.signing.test_keys import certificate


@pytest.fixture(scope="module")
def model_signing() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("model_signing")


def accepts(model_signing: ModuleType, folder: Path, public: Path) -> bool:
    """As `model_signing verify key FOLDER --signature FOLDER/model.sig --public_key PUBLIC` does."""
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public)
    ignored = model_signing.hashing.Config().set_ignored_paths(paths=[SIGNATURE])
    try:
        config.set_hashing_config(ignored).verify(folder, folder / SIGNATURE)
    except ValueError:
        return False
    return True


def test_it_accepts_bundles_of_every_kind_approved_or_not(
    model_signing: ModuleType, of_a_network: Bundle, of_answers: Bundle, of_features: Bundle, holder: SigningKey,
    reviewer: SigningKey, tmp_path: Path,
) -> None:  # fmt: skip
    mine, other = public_file(holder, tmp_path / "keys"), public_file(reviewer, tmp_path / "keys")
    for made in (of_a_network, of_answers, of_features):
        folder = Path(shutil.copytree(made.folder, tmp_path / made.card.release_id))
        assert accepts(model_signing, folder, mine)
        assert not accepts(model_signing, folder, other)
        countersign(folder, reviewer)
        assert accepts(model_signing, folder, mine)
        (folder / "more.txt").write_text("x")
        assert not accepts(model_signing, folder, mine)
        (folder / "more.txt").unlink()
        (folder / "README.md").write_text("x")
        assert not accepts(model_signing, folder, mine)


def test_airlock_accepts_what_it_signs(
    model_signing: ModuleType, folder: Path, holder: SigningKey, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_bytes(holder.to_pem())
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=tmp_path / "key.pem")
    config.sign(folder, folder / SIGNATURE)
    assert examine(Contents(folder), None, [holder.public]).release.accepted
    (folder / "README.md").write_text("x")
    assert examine(Contents(folder), None, [holder.public]).release.state == "changed"


def test_certificates_go_both_ways(
    model_signing: ModuleType, folder: Path, holder: SigningKey, stranger: SigningKey, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_bytes(holder.to_pem())
    (tmp_path / "own.crt").write_bytes(certificate(holder))
    (tmp_path / "other.crt").write_bytes(certificate(stranger))
    sign(folder, read_private(tmp_path / "key.pem", tmp_path / "own.crt"))
    assert examine(Contents(folder), None, [holder.public]).release.accepted
    assert examine(Contents(folder), None, [stranger.public]).release.state == "unknown"
    for chain, good in (("own.crt", True), ("other.crt", False)):
        config = model_signing.verifying.Config().use_certificate_verifier(certificate_chain=[tmp_path / chain])
        config.set_hashing_config(model_signing.hashing.Config().set_ignored_paths(paths=[SIGNATURE]))
        if good:
            config.verify(folder, folder / SIGNATURE)
        else:
            with pytest.raises(Exception, match="certificate"):
                config.verify(folder, folder / SIGNATURE)
    (folder / SIGNATURE).unlink()
    config = model_signing.signing.Config().use_certificate_signer(
        private_key=tmp_path / "key.pem",
        signing_certificate=tmp_path / "own.crt",
        certificate_chain=[tmp_path / "own.crt"],
    )
    config.sign(folder, folder / SIGNATURE)
    assert examine(Contents(folder), None, [holder.public]).release.accepted

"""Keys: made once, readable by their owner alone, exported, adopted, trusted by name."""

from __future__ import annotations

import datetime
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from airlock.bundle import Vault
from airlock.bundle.signing import keys
from airlock.bundle.signing.keys import SigningKey
from airlock.cli import app
from airlock.errors import ConfigError, FormatError, OutputError
from tests.bundle.signing.conftest import public_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def certificate(key: SigningKey, name: str = "The clinic", more: int = 0) -> bytes:
    """A certificate that the key signs itself, with so many bytes in an extension that nobody knows."""
    other = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(more))
    called = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    usage = [index == 0 for index in range(9)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.private.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2026, 1, 1))
        .not_valid_after(datetime.datetime(2056, 1, 1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(*usage), critical=True)
    )
    made = (builder.add_extension(other, critical=False) if more else builder).sign(key.private, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_the_owner_can_read_the_key_whatever_the_umask(vault: Vault, umask: int) -> None:
    before = os.umask(umask)
    try:
        vault.root.mkdir(mode=0o700, parents=True)
        vault.root.chmod(0o700)
        key = keys.obtain_vault_key(vault)
    finally:
        os.umask(before)
    assert key.new
    assert (mode(vault.signing_key), mode(vault.signing_key.parent)) == (0o600, 0o700)
    assert [path.name for path in vault.signing_key.parent.iterdir()] == ["signing.pem"]
    again = keys.obtain_vault_key(vault)
    assert (again.public, again.new) == (key.public, False)
    assert b"BEGIN PRIVATE KEY" in vault.signing_key.read_bytes()  # PKCS #8


@pytest.mark.system_randomness
def test_of_many_who_race_for_a_first_key_all_get_the_same_one(vault: Vault) -> None:
    """Each writes its own and links it to the one name, which the system lets only one do, thread or process."""
    start = threading.Barrier(8)

    def ask(_: int) -> SigningKey:
        start.wait()
        return keys.obtain_vault_key(vault)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert {key.public for key in found} == {keys.read_private(vault.signing_key).public}
    assert sum(key.new for key in found) == 1
    assert [path.name for path in vault.signing_key.parent.iterdir()] == ["signing.pem"]


def test_of_two_keys_kept_in_one_place_the_first_counts(tmp_path: Path) -> None:
    first, second = SigningKey.generate(), SigningKey.generate()
    assert keys.keep(first, tmp_path / "key.pem").new
    kept = keys.keep(second, tmp_path / "key.pem")
    assert (kept.public, kept.new) == (first.public, False)
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]


def test_a_key_of_ones_own_is_adopted_with_its_certificate_and_never_replaced(vault: Vault, tmp_path: Path) -> None:
    own, other = SigningKey.generate(), SigningKey.generate()
    (tmp_path / "own.pem").write_bytes(own.to_pem())
    (tmp_path / "own.crt").write_bytes(certificate(own))
    (tmp_path / "other.crt").write_bytes(certificate(other))
    with pytest.raises(FormatError, match="that of another key"):
        keys.read_private(tmp_path / "own.pem", tmp_path / "other.crt")
    with pytest.raises(FormatError, match="found none"):
        keys.read_private(tmp_path / "own.pem", public_file(own, tmp_path / "public"))
    read = keys.read_private(tmp_path / "own.pem", tmp_path / "own.crt")
    keys.adopt(read, vault)
    kept = keys.find_vault_key(vault)
    assert kept is not None
    assert (kept.public, len(kept.certificates)) == (own.public, 1)
    assert keys.adopt(read, vault).public == own.public  # again changes nothing
    with pytest.raises(OutputError, match="Move it away yourself"):
        keys.adopt(other, vault)
    assert keys.read_public(tmp_path / "own.crt") == own.public


def test_an_encrypted_key_asks_for_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, form = SigningKey.generate(), serialization.PrivateFormat.PKCS8
    locked = key.private.private_bytes(
        serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"open sesame")
    )
    (tmp_path / "key.pem").write_bytes(locked)
    with pytest.raises(ConfigError, match=keys.PASSWORD):
        keys.read_private(tmp_path / "key.pem")
    monkeypatch.setenv(keys.PASSWORD, "wrong")
    with pytest.raises(FormatError, match="another password"):
        keys.read_private(tmp_path / "key.pem")
    monkeypatch.setenv(keys.PASSWORD, "open sesame")
    assert keys.read_private(tmp_path / "key.pem").public == key.public


def test_private_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    odd = ec.generate_private_key(ec.SECP256K1())
    for key in (odd, SigningKey.generate().public):
        content = key.pem if isinstance(key, keys.PublicKey) else SigningKey(odd).to_pem()
        (tmp_path / "key.pem").write_bytes(content)
        with pytest.raises(FormatError, match="P-256, P-384 or P-521, private"):
            keys.read_private(tmp_path / "key.pem")


def test_trusted_keys_are_lines_of_a_name_and_a_key(
    tmp_path: Path, holder: SigningKey, reviewer: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "not there yet" / "trusted"
    monkeypatch.setenv(keys.TRUSTED, str(place))
    assert keys.read_trusted() == ()
    assert keys.trust(holder.public, "St. Mary's clinic")
    assert not keys.trust(holder.public, "St. Mary's clinic")
    with pytest.raises(ConfigError, match="St. Mary's clinic"):
        keys.trust(holder.public, "Mallory")
    place.write_text(
        place.read_text().rstrip("\n") + "\n# a remark\n\nthe board " + reviewer.public.line
    )  # no line end
    third = SigningKey.generate()
    assert keys.trust(third.public, "a third")
    assert {one.name: one.key for one in keys.read_trusted()} == {
        "St. Mary's clinic": holder.public, "the board": reviewer.public, "a third": third.public,
    }  # fmt: skip
    assert mode(place) == 0o600
    for name in ("", " ", "a\nb", "a\x1b[2J", "#no", "x" * 101, "this vault", "\u202eclinic"):
        with pytest.raises(ConfigError):
            keys.trust(SigningKey.generate().public, name)


def test_a_broken_file_of_trusted_keys_is_never_half_believed(
    tmp_path: Path, holder: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keys.TRUSTED, str(tmp_path / "trusted"))
    good = f"clinic {holder.public.line}\n"
    for line in (
        holder.public.line,
        "clinic AAAA",
        "clinic",
        "clinic \xe9",
        f"other {holder.public.line}",
        "this vault AAAA",
    ):
        (tmp_path / "trusted").write_text(f"{good}{line}\n")
        with pytest.raises(FormatError):
            keys.read_trusted()
    (tmp_path / "trusted").write_bytes(good.encode() + b"\xff\n")
    with pytest.raises(FormatError, match="UTF-8"):
        keys.read_trusted()


def test_the_command_shows_exports_and_never_prints_the_private_key(vault: Vault, tmp_path: Path) -> None:
    runner = CliRunner()
    first = runner.invoke(app, ["keys", "signing", "--out", str(tmp_path / "public.pem")])
    again = runner.invoke(app, ["keys", "signing", "--json"])
    assert (first.exit_code, again.exit_code) == (0, 0)
    fingerprint = first.stdout.strip()
    assert keys.read_public(tmp_path / "public.pem").fingerprint == fingerprint
    assert f'"{fingerprint}"' in again.stdout
    assert "PRIVATE" not in first.output + again.output
    assert "Made" in first.stderr
    taken = runner.invoke(app, ["keys", "signing", "--out", str(tmp_path / "public.pem")])
    assert (taken.exit_code, "does not exist yet" in taken.stderr) == (2, True)
    assert runner.invoke(app, ["keys", "signing", "--certificate", "x.pem"]).exit_code == 2
    trusted = runner.invoke(app, ["keys", "trust", str(vault.signing_key), "--name", "me"])
    assert (trusted.exit_code, "a private key" in trusted.stderr) == (2, True)

"""Keys that sign bundles: the vault's own, a reviewer's, and those that a receiver trusts.

Keys are ECDSA keys on a NIST curve, P-256 where Airlock makes one: the verifier of OpenSSF model signing accepts no
others (no Ed25519, for one). A fingerprint is the SHA-256 of the public key's PEM file, as `sha256sum` prints it and as
the standard's signatures name their key.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from airlock.bundle.files import output_error, read_file, sync_folder, write_file
from airlock.bundle.vault import Vault
from airlock.errors import ConfigError, FormatError, OutputError

TRUSTED = "AIRLOCK_TRUSTED_KEYS"
PASSWORD = "AIRLOCK_KEY_PASSWORD"
THIS_VAULT = "this vault"
_HASHES = {"secp256r1": hashes.SHA256(), "secp384r1": hashes.SHA384(), "secp521r1": hashes.SHA512()}
_CURVES = "an elliptic-curve key on P-256, P-384 or P-521"
_LIMIT = 1 << 20  # bytes of a key file or of the file of trusted keys
_LONGEST_NAME = 100
CERTIFICATES, CERTIFICATE_BYTES = 10, 8 << 10  # how many leave with a signature at most, and how large each is
_CHAIN = 4 * CERTIFICATE_BYTES
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----")
_BROKEN = (ValueError, TypeError, UnsupportedAlgorithm)  # what the library raises for a file that is no such key


@dataclass(frozen=True)
class PublicKey:
    """A key that can check signatures.

    Args:
        pem: Its SubjectPublicKeyInfo, as the library writes it: the same key always has the same bytes.
    """

    pem: bytes

    @classmethod
    def of(cls, key: object) -> PublicKey:
        """Wrap a key of the library.

        Raises:
            ValueError: It is of another kind.
        """
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
            raise ValueError("not a key on a NIST curve")
        return cls(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of its PEM, in hex."""
        return hashlib.sha256(self.pem).hexdigest()

    @property
    def line(self) -> str:
        """The key in one word, for the file of trusted keys: its DER in base64."""
        return base64.b64encode(self._key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()

    @property
    def _key(self) -> ec.EllipticCurvePublicKey:
        key = load_pem_public_key(self.pem)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return key

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the owner of this key signed the message."""
        try:
            self._key.verify(signature, message, ec.ECDSA(_HASHES[self._key.curve.name]))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, repr=False)
class SigningKey:
    """A key that signs.

    Args:
        private: The library's key.
        certificates: DER certificates that name its owner, its own first; they leave with every signature.
        new: Whether it was made just now.
    """

    private: ec.EllipticCurvePrivateKey
    certificates: tuple[bytes, ...] = ()
    new: bool = False

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key on P-256."""
        return cls(ec.generate_private_key(ec.SECP256R1()), new=True)

    @cached_property
    def public(self) -> PublicKey:
        """What checks its signatures."""
        return PublicKey.of(self.private.public_key())

    def sign(self, message: bytes) -> bytes:
        """An ECDSA signature, with the hash that the standard takes for this curve."""
        return self.private.sign(message, ec.ECDSA(_HASHES[self.private.curve.name]))

    def to_pem(self) -> bytes:
        """PKCS #8 without a password, followed by its certificates."""
        key = self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        certificates = [x509.load_der_x509_certificate(one).public_bytes(Encoding.PEM) for one in self.certificates]
        return b"".join([key, *certificates])


def read_public(path: Path) -> PublicKey:
    """A public key from a PEM file, or that of the first certificate in it.

    Raises:
        FormatError: It holds no such key.
        ConfigError: It holds a private key.
    """
    content = _read(path)
    if b"PRIVATE KEY-----" in content:
        raise ConfigError(
            f"a public key in {path.name}",
            "a private key",
            "Whoever has it can sign in its owner's name.",
            "Export the public key: airlock keys signing --out public.pem",
        )
    try:
        if _CERTIFICATE.search(content):
            return PublicKey.of(x509.load_pem_x509_certificates(content)[0].public_key())
        return PublicKey.of(load_pem_public_key(content))
    except _BROKEN as error:
        raise FormatError(f"{_CURVES}, public, as PEM in {path.name}", "something else") from error


def read_private(path: Path, certificate: Path | None = None) -> SigningKey:
    """A private key from a PEM file, with the certificates in the same file or in another.

    The password of an encrypted key is taken from AIRLOCK_KEY_PASSWORD.

    Raises:
        FormatError: It holds no such key, or the certificate is of another one.
    """
    content, password = _read(path), os.environ.get(PASSWORD)
    encrypted = b"ENCRYPTED" in content
    if encrypted and password is None:
        raise ConfigError(f"the password of {path.name} in {PASSWORD}", "none", "The key is encrypted.")
    try:
        private = load_pem_private_key(content, password.encode() if encrypted and password else None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("not an elliptic-curve key")
        PublicKey.of(private.public_key())
    except _BROKEN as error:
        found = "something else, or another password" if encrypted else "something else"
        raise FormatError(f"{_CURVES}, private, as PEM in {path.name}", found) from error
    named = content if certificate is None else _read(certificate)
    chain = _certificates(named, private, (certificate or path).name) if _CERTIFICATE.search(named) else ()
    if certificate is not None and not chain:
        raise FormatError(f"a PEM certificate in {certificate.name}", "none")
    return SigningKey(private, chain)


def _certificates(content: bytes, private: ec.EllipticCurvePrivateKey, name: str) -> tuple[bytes, ...]:
    try:
        found = x509.load_pem_x509_certificates(content)
        own = PublicKey.of(found[0].public_key())
    except _BROKEN as error:
        raise FormatError(f"PEM certificates of {_CURVES} in {name}", "something else") from error
    if own != PublicKey.of(private.public_key()):
        raise FormatError(f"the certificate of this key first in {name}", "that of another key")
    chain = tuple(one.public_bytes(Encoding.DER) for one in found)
    if len(chain) > CERTIFICATES or max(map(len, chain)) > CERTIFICATE_BYTES or sum(map(len, chain)) > _CHAIN:
        raise FormatError(
            f"at most {CERTIFICATES} certificates of at most {CERTIFICATE_BYTES:,} bytes, {_CHAIN:,} in all, in {name}",
            "more",
            "They leave with every signature, and `airlock verify` reads no more.",
        )
    return chain


def _read(path: Path) -> bytes:
    """The content of a key file that the user names; following a link is the user's choice."""
    return read_file(Path(path).expanduser().resolve(), _LIMIT)


# Keys that Airlock keeps.


def find_vault_key(vault: Vault) -> SigningKey | None:
    """The key of this vault, if it has one."""
    return read_private(vault.signing_key) if os.path.lexists(vault.signing_key) else None


def obtain_vault_key(vault: Vault) -> SigningKey:
    """The key of this vault; made if there is none, once, however many processes ask for it at the same time."""
    return find_vault_key(vault) or keep(SigningKey.generate(), vault.key_folder() / vault.signing_key.name)


def obtain_reviewer_key() -> SigningKey:
    """The key of the reviewer who uses this account; made if there is none."""
    place = reviewer_place()
    if os.path.lexists(place):
        return read_private(place)
    _make_folder(place.parent)
    return keep(SigningKey.generate(), place)


def reviewer_place() -> Path:
    """Where the reviewer's key is."""
    return _config_folder() / "reviewer.pem"


def keep(key: SigningKey, place: Path) -> SigningKey:
    """Write a key that only its owner can read, whole or not at all; if there is one already, that one counts.

    Raises:
        OutputError: It cannot be written.
    """
    aside = place.with_name(f".{place.name}.{secrets.token_hex(8)}.part")
    try:
        write_file(aside, key.to_pem(), 0o600)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(aside, place)
        sync_folder(place.parent)
    except OSError as error:
        raise output_error(error, place) from error
    finally:
        aside.unlink(missing_ok=True)
    kept = read_private(place)
    return replace(kept, new=kept.public == key.public)


def adopt(key: SigningKey, vault: Vault, *, reviewer: bool = False) -> SigningKey:
    """Keep a key that was made elsewhere, as the vault's or as the reviewer's.

    Raises:
        OutputError: There is another one.
    """
    place = reviewer_place() if reviewer else vault.key_folder() / vault.signing_key.name
    _make_folder(place.parent)
    kept = keep(key, place)
    if kept.public != key.public or kept.certificates != key.certificates:
        raise OutputError(
            f"no key in {place} yet",
            "another one",
            "What it has signed would count as a stranger's.",
            "Move it away yourself if that is what you want, then retry.",
        )
    return kept


def export(key: PublicKey, place: Path) -> None:
    """Write a public key to a new file.

    Raises:
        OutputError: It exists, or cannot be written.
    """
    try:
        write_file(place, key.pem)
    except FileExistsError as error:
        raise OutputError("a file that does not exist yet", str(place), "Nothing is overwritten.") from error
    except OSError as error:
        raise output_error(error, place) from error


# Keys that others trust.


@dataclass(frozen=True)
class KnownKey:
    """A public key, and whose it is."""

    name: str
    key: PublicKey


def trusted_place() -> Path:
    """The file of trusted keys: AIRLOCK_TRUSTED_KEYS, else in the user's config folder."""
    told = os.environ.get(TRUSTED)
    return Path(told).expanduser() if told else _config_folder() / "trusted-keys"


def read_trusted() -> tuple[KnownKey, ...]:
    """The keys that this user trusts, one on each line: a name, a space, and the key in base64.

    Raises:
        FormatError: A line is something else, or a key has two names.
    """
    place = trusted_place()
    if not place.exists():
        return ()
    try:
        lines = _read(place).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"UTF-8 text in {place}", "something else") from error
    found = [_parse(line, number, place) for number, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    names: dict[PublicKey, str] = {}
    for one in found:
        if names.setdefault(one.key, one.name) != one.name:
            raise FormatError(f"one name for each key in {place}", f"two for that of '{one.name}'")
    return tuple(found)


def _parse(line: str, number: int, place: Path) -> KnownKey:
    name, _, word = line.strip().rpartition(" ")
    try:
        key = PublicKey.of(load_der_public_key(base64.b64decode(word, validate=True)))
        return KnownKey(checked_name(name.strip()), key)
    except (*_BROKEN, binascii.Error, ConfigError) as error:
        raise FormatError(f"a name and a key in line {number} of {place}", "something else") from error


def trust(key: PublicKey, name: str) -> bool:
    """Add a key to the file of trusted ones; returns whether it was not there yet.

    Raises:
        ConfigError: The name cannot be used, or the key has another one already.
    """
    name, place = checked_name(name), trusted_place()
    for known in read_trusted():
        if known.key == key:
            if known.name != name:
                raise ConfigError(f"the name '{known.name}' for this key", f"'{name}'", do=f"Edit {place} yourself.")
            return False
    _make_folder(place.parent)
    try:
        with open(os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab+") as file:
            size = file.seek(0, os.SEEK_END)
            whole = size == 0 or (file.seek(size - 1), file.read(1))[1] == b"\n"
            file.write(("" if whole else "\n").encode() + f"{name} {key.line}\n".encode())
    except OSError as error:
        raise output_error(error, place) from error
    return True


def checked_name(name: str) -> str:
    """A name that can be shown on a terminal and written on one line.

    Raises:
        ConfigError: It is empty, too long, or holds control characters.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable() or name.startswith("#"):
        raise ConfigError(
            f"a name of 1 to {_LONGEST_NAME} printable characters", ascii(name)[:60], "It is shown to whoever verifies."
        )
    if name == THIS_VAULT:
        raise ConfigError("another name", f"'{name}'", "It is what this vault's own key is called.")
    return name


@dataclass(frozen=True)
class Keyring:
    """The keys that somebody knows by name, and which of them are required.

    Args:
        known: All keys that count as known.
        required: If not empty, only these will do.
    """

    known: tuple[KnownKey, ...] = ()
    required: tuple[PublicKey, ...] = ()

    @classmethod
    def of(cls, vault: Vault | None, required: Iterable[PublicKey] = ()) -> Keyring:
        """The trusted keys of this user, this vault's own, and those that are required."""
        wanted = tuple(required)
        own = find_vault_key(vault) if vault else None
        known = (*read_trusted(), *([KnownKey(THIS_VAULT, own.public)] if own else []))
        return cls((*known, *(KnownKey("the required key", key) for key in wanted)), wanted)

    def find(self, fingerprint: str) -> KnownKey | None:
        """The key with this fingerprint, if it is known."""
        return next((one for one in self.known if one.key.fingerprint == fingerprint), None)

    def accepts(self, key: PublicKey) -> bool:
        """Whether a signature by this key will do."""
        return not self.required or key in self.required


def read_all(paths: Sequence[Path]) -> tuple[PublicKey, ...]:
    """The public keys in these files."""
    return tuple(read_public(path) for path in paths)


def _config_folder() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "airlock"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(error, folder) from error

"""The format of a signature: a statement about the files of a bundle, and who signed it.

It is that of OpenSSF model signing 1.x: a Sigstore bundle (JSON) around a DSSE envelope, whose payload is an in-toto
statement. The release's statement has the standard's own predicate, so the standard's verifier accepts it; a reviewer's
has a predicate of this project. Files written here leave; they depend on the other files, on the key and on chance.

Parsing is strict. Only the fields below are accepted, one signature, base64 as it is canonically written, and JSON
without duplicate keys, in the form in which Airlock or the standard's tool writes it: what two readers could understand
in two ways is refused, and so is what has room for other data.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from airlock.bundle.contents import SIGNATURES
from airlock.bundle.files import parse_json
from airlock.bundle.schema import ReleaseId
from airlock.bundle.signing.keys import CERTIFICATE_BYTES, CERTIFICATES, PublicKey, SigningKey
from airlock.errors import FormatError

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
RELEASE_TYPE = "https://model_signing/signature/v1.0"
APPROVAL_TYPE = "urn:airlock:approval:1"
INSIDE_TYPE = "urn:airlock:approval-inside:1"  # also names the dossier, and stays in the vault
_MOST = 10_000  # files of a bundle
_ANY_STATEMENT, _EACH_FILE = 1 << 16, 512  # bytes of a signature: in any case, and for each file that it lists

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Base64 = Annotated[str, StringConstraints(min_length=4)]
SignatureText = Annotated[str, StringConstraints(min_length=4, max_length=192)]  # the longest, on P-521, has 188
CertificateText = Annotated[str, StringConstraints(min_length=4, max_length=4 * -(-CERTIFICATE_BYTES // 3))]
Line = Annotated[str, StringConstraints(max_length=2000)]
DecisionWord = Literal["approve", "conditions", "reject"]


class Strict(BaseModel):
    """A table with exactly these fields, of exactly these types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


T = TypeVar("T", bound=Strict)


class KeyHint(Strict):
    """The fingerprint of the key that signed."""

    hint: Sha256


class Certificate(Strict):
    """An X.509 certificate, as DER in base64."""

    raw_bytes: CertificateText = Field(alias="rawBytes")


class CertificateChain(Strict):
    """The signer's own certificate first."""

    certificates: list[Certificate] = Field(min_length=1, max_length=CERTIFICATES)


class Material(Strict):
    """What says which key signed: a fingerprint, or certificates."""

    public_key: KeyHint | None = Field(default=None, alias="publicKey")
    chain: CertificateChain | None = Field(default=None, alias="x509CertificateChain")
    log: list[str] = Field(default=[], alias="tlogEntries", max_length=0)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.public_key is None) == (self.chain is None):
            raise ValueError("either a key or certificates")
        return self


class OneSignature(Strict):
    """The signature itself."""

    sig: SignatureText
    keyid: Literal[""] = ""


class Dsse(Strict):
    """The DSSE envelope."""

    payload: Base64
    payload_type: Literal["application/vnd.in-toto+json"] = Field(alias="payloadType")
    signatures: list[OneSignature] = Field(min_length=1, max_length=1)


class SigstoreBundle(Strict):
    """The whole file."""

    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = Field(alias="mediaType")
    material: Material = Field(alias="verificationMaterial")
    dsse: Dsse = Field(alias="dsseEnvelope")


class Sha256Digest(Strict):
    """A digest by its algorithm."""

    sha256: Sha256


class ModelSubject(Strict):
    """The bundle as a whole; its name is only information."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    digest: Sha256Digest


class FileSubject(Strict):
    """One file of a bundle."""

    name: FileName
    digest: Sha256Digest


class Resource(Strict):
    """One file of a bundle, in the standard's predicate."""

    name: FileName
    algorithm: Literal["sha256"]
    digest: Sha256


class Serialization(Strict):
    """How the standard's tool hashes a folder; which paths it leaves out does not matter here."""

    method: Literal["files"]
    hash_type: Literal["sha256"]
    allow_symlinks: Literal[False]
    ignore_paths: list[Annotated[str, StringConstraints(max_length=255)]] = Field(default=[], max_length=100)


class ReleasePredicate(Strict):
    """Every file with its digest."""

    serialization: Serialization
    resources: list[Resource] = Field(min_length=1, max_length=_MOST)


class ReleaseStatement(Strict):
    """What the holder signs."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[ModelSubject] = Field(min_length=1, max_length=1)
    predicate_type: Literal["https://model_signing/signature/v1.0"] = Field(alias="predicateType")
    predicate: ReleasePredicate

    @model_validator(mode="after")
    def _root(self) -> Self:
        if self.subject[0].digest.sha256 != _root_of(one.digest for one in self.predicate.resources):
            raise ValueError("the digest of all files is not that of the files")
        return self

    @property
    def files(self) -> list[tuple[str, str]]:
        """Names and digests, as they are listed."""
        return [(one.name, one.digest) for one in self.predicate.resources]


class Approval(Strict):
    """A reviewer's decision.

    Args:
        release_id: The release that it is about.
        decision: What was decided.
        name: The reviewer, as they call themselves.
        date: The day, in UTC.
        conditions: On which conditions; for a rejection, why; otherwise empty.
    """

    release_id: ReleaseId
    decision: DecisionWord
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    date: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    conditions: Line = ""

    @model_validator(mode="after")
    def _shown(self) -> Self:
        datetime.date.fromisoformat(self.date)
        if not (self.name.isprintable() and self.conditions.isprintable() and self.name.strip()):
            raise ValueError("a name and conditions that can be printed")
        if (self.decision == "conditions") != bool(self.conditions.strip()) and self.decision != "reject":
            raise ValueError("conditions where there are any")
        return self

    def __str__(self) -> str:
        """The decision in one sentence, without its full stop."""
        word = {"approve": "Approved", "conditions": "Approved on conditions", "reject": "Rejected"}[self.decision]
        said = f": {self.conditions.strip().rstrip('.')}" if self.conditions.strip() else ""
        return f"{word} by {self.name} on {self.date}{said}"


class ApprovalStatement(Strict):
    """What the reviewer signs, and what leaves."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[FileSubject] = Field(min_length=1, max_length=_MOST)
    predicate_type: Literal["urn:airlock:approval:1"] = Field(alias="predicateType")
    predicate: Approval

    @property
    def files(self) -> list[tuple[str, str]]:
        """Names and digests, as they are listed."""
        return [(one.name, one.digest.sha256) for one in self.subject]


class InsideApproval(Approval):
    """The same decision with the dossier it rests on, which depends on records without noise: it stays in the vault."""

    dossier_sha256: Sha256


class InsideStatement(Strict):
    """What the reviewer signs for the vault."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[FileSubject] = Field(min_length=1, max_length=_MOST)
    predicate_type: Literal["urn:airlock:approval-inside:1"] = Field(alias="predicateType")
    predicate: InsideApproval


@dataclass(frozen=True)
class Envelope:
    """A parsed signature; nothing is known yet about who made it.

    Args:
        name: The file it was read from.
        payload: What was signed.
        signature: By whom, only a key can tell.
        fingerprint: The key that it names.
        certified: That key itself, where there is a certificate; anyone can write one.
        size: The bytes of the file.
    """

    name: str
    payload: bytes
    signature: bytes
    fingerprint: str
    certified: PublicKey | None
    size: int

    def require_size(self, count: int) -> None:
        """Refuse a file that is larger than a signature of this many files needs.

        Raises:
            FormatError: It is.
        """
        most = _ANY_STATEMENT + _EACH_FILE * count
        if self.size > most:
            raise FormatError(f"at most {most:,} bytes in {self.name}", "more", "It could carry other data.")

    def is_by(self, key: PublicKey) -> bool:
        """Whether the owner of this key signed exactly this payload."""
        return key.verifies(self.signature, encoded(self.payload))

    def statement(self, kind: type[T]) -> T:
        """The payload as a statement of this kind.

        Raises:
            FormatError: It is something else.
        """
        return _parsed(kind, self.payload, self.name)


def seal(statement: Mapping[str, Any], key: SigningKey) -> bytes:
    """The file that holds this statement and the key's signature of it."""
    payload = json.dumps(statement, indent=2, ensure_ascii=True).encode()
    certificates = [{"rawBytes": _base64(one)} for one in key.certificates]
    named = {"x509CertificateChain": {"certificates": certificates}} if certificates else {
        "publicKey": {"hint": key.public.fingerprint}
    }  # fmt: skip
    signature = _base64(key.sign(encoded(payload)))
    table = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {**named, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": _base64(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": signature, "keyid": ""}],
        },
    }
    return (json.dumps(table) + "\n").encode()


def unseal(content: bytes, name: str) -> Envelope:
    """Parse a signature.

    Raises:
        FormatError: It does not follow the format; the message is one sentence.
    """
    found = _parsed(SigstoreBundle, content, name)
    table = parse_json(content)
    if content.removesuffix(b"\n") not in (
        json.dumps(table).encode(),
        json.dumps(table, separators=(",", ":")).encode(),
    ):
        raise FormatError(f"JSON as Airlock or model-signing writes it in {name}", "another form of it")
    try:
        certified = _certified(found.material.chain)
        payload, signature = _bytes(found.dsse.payload), _bytes(found.dsse.signatures[0].sig)
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        raise FormatError(f"canonical base64 and certificates of a known kind in {name}", "something else") from error
    hint = found.material.public_key
    fingerprint = hint.hint if hint else certified.fingerprint if certified else ""
    return Envelope(name, payload, signature, fingerprint, certified, len(content))


def release_statement(digests: Mapping[str, str], release_id: str) -> dict[str, Any]:
    """The holder's statement about these files; the release's id is the model's name, since a folder's could tell more.

    Signatures are among the paths that the standard's tool leaves out, so it also accepts an approved bundle.
    """
    names = sorted(digests)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": release_id, "digest": {"sha256": _root_of(digests[name] for name in names)}}],
        "predicateType": RELEASE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": sorted(SIGNATURES),
            },
            "resources": [{"name": name, "algorithm": "sha256", "digest": digests[name]} for name in names],
        },
    }


def approval_statement(digests: Mapping[str, str], approval: Approval) -> dict[str, Any]:
    """The reviewer's statement about these files, for the bundle or, if it names the dossier, for the vault."""
    inside = isinstance(approval, InsideApproval)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digests[name]}} for name in sorted(digests)],
        "predicateType": INSIDE_TYPE if inside else APPROVAL_TYPE,
        "predicate": approval.model_dump(mode="json"),
    }


def encoded(payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _parsed(kind: type[T], content: bytes, name: str) -> T:
    try:
        return kind.model_validate(parse_json(content))
    except ValidationError as error:
        raise FormatError(f"a signature of the known format in {name}", _defect(error)) from error
    except ValueError as error:
        raise FormatError(f"a signature as strict JSON in {name}", "something else") from error


def _defect(error: ValidationError) -> str:
    """Where the first defect is, in our own words alone: names of unknown fields are not repeated."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    unknown = first["type"] == "extra_forbidden"
    where = ".".join(map(str, first["loc"][:-1] if unknown else first["loc"])) or "the whole"
    what = "an unknown field" if unknown else first["type"].replace("_", " ")
    return f"a defect in {where} ({what})"


def _certified(chain: CertificateChain | None) -> PublicKey | None:
    if chain is None:
        return None
    own, *_ = [x509.load_der_x509_certificate(_bytes(one.raw_bytes)) for one in chain.certificates]
    return PublicKey.of(own.public_key())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    """Decode base64 that is written as an encoder writes it.

    Raises:
        ValueError: It is written in another way, of which there are many.
    """
    content = base64.b64decode(text, validate=True)
    if _base64(content) != text:
        raise ValueError("base64 in a form of its own")
    return content


def _root_of(digests: Iterable[str]) -> str:
    """The standard's digest of all files: SHA-256 of their digests in the order of the list."""
    total = hashlib.sha256()
    for one in digests:
        total.update(bytes.fromhex(one))
    return total.hexdigest()

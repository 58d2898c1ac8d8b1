"""Who signed: the first line says it, a required key is required, and no file, however broken, is believed."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import airlock
from airlock.bundle import Bundle, Vault, contents, read_verified, verify
from airlock.bundle.answering import open_interface
from airlock.bundle.contents import APPROVAL, SIGNATURE, Contents, Skip
from airlock.bundle.receive import train_on
from airlock.bundle.signing.envelope import encoded, release_statement, seal
from airlock.bundle.signing.keys import PublicKey, SigningKey, keep, read_private, trust
from airlock.bundle.signing.signatures import NOT_APPROVED, UNSIGNED, Signatures, examine
from airlock.cli import app
from airlock.errors import FormatError, Refused
from airlock.pipeline import audit_bundle
from tests.bundle.signing.conftest import countersign, public_file, sign
from tests.bundle.signing.test_keys import certificate

Table = dict[str, Any]


def look(folder: Path, *signers: SigningKey, approvers: tuple[SigningKey, ...] = ()) -> Signatures:
    return examine(Contents(folder), None, [one.public for one in signers], [one.public for one in approvers])


def cli(*line: object) -> tuple[int, list[str]]:
    said = CliRunner().invoke(app, [str(part) for part in line])
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said.exit_code, said.stdout.splitlines()


def test_a_bundle_of_each_kind_is_signed_whole(
    of_a_network: Bundle, of_answers: Bundle, of_features: Bundle, holder: SigningKey
) -> None:
    for made in (of_a_network, of_answers, of_features):
        found = look(made.folder, holder).release
        assert (found.state, found.accepted, found.fingerprint) == ("known", True, holder.public.fingerprint)
        assert verify(made.folder, signers=[holder.public]).checks[0].name == "signature"
        payload = json.loads(base64.b64decode(envelope_of(made.folder)["dsseEnvelope"]["payload"]))
        listed = {one["name"] for one in payload["predicate"]["resources"]}
        assert listed == {path.name for path in made.folder.iterdir()} - {SIGNATURE}
        assert "SHA256SUMS" in listed
        assert payload["subject"][0]["name"] == made.card.release_id


def test_the_first_line_says_who_signed(
    signed: Path, holder: SigningKey, stranger: SigningKey, tmp_path: Path, vault: Vault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("AIRLOCK_TRUSTED_KEYS", str(tmp_path / "trusted"))
    mine, other = public_file(holder, tmp_path / "keys"), public_file(stranger, tmp_path / "keys")
    fingerprint = holder.public.fingerprint
    code, lines = cli("verify", signed)
    assert (code, lines[0]) == (0, f"Signed by an unknown key ({fingerprint}), which anyone could have made.")
    assert look(signed, holder).release.says == f"Signed by the required key ({fingerprint})."
    assert cli("keys", "trust", mine, "--name", "the clinic")[0] == 0
    code, lines = cli("verify", signed, "--signer", other, "--signer", mine)
    assert (code, lines[0]) == (0, f"Signed by the clinic ({fingerprint}).")
    code, lines = cli("verify", signed, "--signer", other)
    assert (code, lines[0]) == (1, f"Signed by the clinic ({fingerprint}), not by a key that was required.")
    (tmp_path / "trusted").unlink()
    keep(holder, vault.key_folder() / vault.signing_key.name)
    assert examine(Contents(signed), vault).release.says == f"Signed by this vault ({fingerprint})."


def test_an_unsigned_bundle_says_so_first_and_fails_only_where_a_key_is_required(
    signed: Path, holder: SigningKey, tmp_path: Path
) -> None:
    (signed / SIGNATURE).unlink()
    assert cli("verify", signed)[1][0] == UNSIGNED
    told = json.loads("\n".join(cli("verify", signed, "--json")[1]))
    assert told["signature"] == {"state": "none", "says": UNSIGNED, "by": None, "fingerprint": None}
    assert told["approval"]["says"] == NOT_APPROVED
    code, lines = cli("verify", signed, "--signer", public_file(holder, tmp_path / "keys"))
    assert (code, lines[0]) == (1, UNSIGNED)
    with pytest.raises(Refused, match="Unsigned"):
        read_verified(signed, signers=[holder.public])
    assert read_verified(signed).folder == signed


@pytest.mark.parametrize("name", ["card.json", "model.onnx", "SHA256SUMS", "README.md"])
def test_a_changed_file_is_named_even_by_those_who_do_not_know_the_key(
    signed: Path, holder: SigningKey, name: str
) -> None:
    content = (signed / name).read_bytes()
    (signed / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for found in (look(signed).release, look(signed, holder).release):
        assert found.state == "changed"
        assert f"{name} was changed." in found.says
    assert "signature" in {check.name for check in verify(signed).checks if check.outcome == "failed"}


def test_files_that_come_go_or_become_links_are_named(signed: Path, holder: SigningKey, tmp_path: Path) -> None:
    shutil.move(signed / "README.md", tmp_path / "README.md")
    (signed / "README.md").symlink_to(tmp_path / "README.md")
    (signed / "\x1b[2J").mkdir()
    found = look(signed, holder).release
    assert (found.state, found.says.isprintable()) == ("changed", True)
    assert "README.md is missing." in found.says
    assert "\\x1b[2J" in found.says


def test_the_signature_of_another_bundle_or_of_earlier_files_is_noticed(
    signed: Path, of_answers: Bundle, holder: SigningKey, reviewer: SigningKey
) -> None:
    countersign(signed, reviewer)
    assert look(signed, holder, approvers=(reviewer,)).approval.accepted
    (signed / "README.md").write_text("Something else.")
    sign(signed, holder)
    after = look(signed, holder, approvers=(reviewer,))
    assert after.release.accepted
    assert after.approval.state == "changed"
    assert after.approval.approval is None
    shutil.copy(of_answers.folder / SIGNATURE, signed / SIGNATURE)
    assert look(signed, holder).release.state == "changed"


def test_nothing_is_hashed_unless_the_right_files_are_there_whole(
    signed: Path, holder: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(contents, "digest", lambda path, limit: hashed.append(path.name) or "0" * 64)
    with (signed / "features-00000.npz").open("wb") as file:
        file.truncate(1 << 30)
    assert "features-00000.npz was added." in look(signed, holder).release.says
    (signed / "features-00000.npz").unlink()
    for size, word in ((1 << 22, "sparse"), (1 << 30, "too large")):
        os.truncate(signed / "README.md", size)
        assert f"README.md is {word}." in look(signed, holder).release.says
        with pytest.raises(FormatError, match="a larger or a sparse one"):
            Contents(signed).signed()
    assert not hashed


def test_a_known_reviewers_rejection_always_fails_and_a_strangers_is_only_reported(
    signed: Path, reviewer: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_TRUSTED_KEYS", str(tmp_path / "trusted"))
    countersign(signed, reviewer, decision="reject")
    with pytest.raises(Skip, match="Rejected by Ada"):
        look(signed).approval.test()
    trust(reviewer.public, "the board")
    assert "Rejected by Ada" in look(signed).approval.test()[0]


def test_a_decision_about_another_release_or_of_a_day_to_come_does_not_count(
    signed: Path, reviewer: SigningKey
) -> None:
    for changes, says in (
        ({"release_id": "0" * 32}, "It names another release than the card."),
        ({"date": "9999-12-31"}, "Its date, 9999-12-31, is in the future."),
    ):
        countersign(signed, reviewer, **changes)
        found = look(signed, approvers=(reviewer,)).approval
        assert (found.state, found.approval) == ("changed", None)
        assert says in found.says


# What a forger writes into model.sig or approval.sig.


def envelope_of(folder: Path, name: str = SIGNATURE) -> Table:
    table: Table = json.loads((folder / name).read_text())
    return table


def rewrap(folder: Path, name: str, change: Callable[[Table], Any], key: SigningKey | None = None) -> None:
    """Change the statement; sign it again with a key, or keep the signature."""
    table = envelope_of(folder, name)
    statement = json.loads(base64.b64decode(table["dsseEnvelope"]["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    table["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    if key is not None:
        table["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(key.sign(encoded(payload))).decode()
    (folder / name).write_text(json.dumps(table))


def deep(table: Table) -> str:
    return '{"a":' * 100_000 + "1" + "}" * 100_000


def twice(table: Table) -> str:
    return json.dumps(table).replace('"mediaType"', '"mediaType": "x", "mediaType"', 1)


def edited(*path: str | int, value: Any = None, drop: bool = False) -> Callable[[Table], None]:
    def edit(table: Table) -> None:
        inner: Any = table
        for part in path[:-1]:
            inner = inner[part]
        if drop:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value(inner[path[-1]]) if callable(value) else value

    return edit


def spaced(text: str) -> str:
    return f"{text[:8]}\n{text[8:]}"


def loose_bits(text: str) -> str:
    """Base64 of the same bytes that no encoder writes: the bits that are left over are not zero."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.rstrip("=")
    if body == text:
        return text + "===="
    return body[:-1] + alphabet[alphabet.index(body[-1]) ^ 1] + "=" * (len(text) - len(body))


DSSE = "dsseEnvelope"
NO_CERTIFICATES = {"certificates": [{"rawBytes": "AAAA"}]}
FILES = {
    "duplicate keys": twice,
    "nested deeply": deep,
    "not JSON": lambda table: "PK\x03\x04",
    "a list": lambda table: "[]",
    "a number of 5,000 digits": lambda table: "1" * 5000,
    "NaN": lambda table: '{"mediaType": NaN}',
    "oversized": lambda table: json.dumps(table) + " " * (4 << 20),
    "nothing": lambda table: "",
    "white space": lambda table: json.dumps(table) + " " * 100,
    "tabs between": lambda table: json.dumps(table).replace(": ", ":\t"),
    "escapes": lambda table: json.dumps(table).replace("mediaType", "\\u006dediaType"),
    "a long signature": edited(DSSE, "signatures", 0, "sig", value="AAAA" * 1000),
    "base64 with a line break": edited(DSSE, "payload", value=spaced),
    "base64 of its own": edited(DSSE, "payload", value=loose_bits),
    "base64 of its own in the signature": edited(DSSE, "signatures", 0, "sig", value=spaced),
    "two signatures": edited(DSSE, "signatures", value=lambda s: [*s, *s]),
    "no signature": edited(DSSE, "signatures", value=[]),
    "another payload type": edited(DSSE, "payloadType", value="text/plain"),
    "another media type": edited("mediaType", value="application/json"),
    "an unknown field": edited("\x1b[2Jnote", value="smuggled"),
    "an unknown field of the envelope": edited(DSSE, "secret", value="smuggled"),
    "a key id": edited(DSSE, "signatures", value=lambda s: [{**s[0], "keyid": "smuggled"}]),
    "a log entry": edited("verificationMaterial", "tlogEntries", value=[{"a": 1}]),
    "a fingerprint that is none": edited("verificationMaterial", "publicKey", value={"hint": "00"}),
    "a key and certificates": edited("verificationMaterial", "x509CertificateChain", value=NO_CERTIFICATES),
    "certificates that are none": edited("verificationMaterial", value={"x509CertificateChain": NO_CERTIFICATES}),
    "no material": edited("verificationMaterial", value={}),
    "a missing part": edited(DSSE, drop=True),
}  # fmt: skip


@pytest.mark.parametrize("name", [SIGNATURE, APPROVAL])
def test_a_file_that_two_readers_could_understand_differently_is_refused_in_one_sentence(
    signed: Path, holder: SigningKey, name: str
) -> None:
    countersign(signed, holder)
    good = envelope_of(signed, name)
    for what, change in FILES.items():
        table = json.loads(json.dumps(good))
        text = change(table)
        (signed / name).write_text(text if isinstance(text, str) else json.dumps(table))
        both = look(signed, holder, approvers=(holder,))
        found = both.release if name == SIGNATURE else both.approval
        assert found.state == "unreadable", what
        assert not found.accepted
        assert found.says.isprintable(), what
        assert len(found.says) < 300
    broken = {check.name for check in verify(signed).checks if check.outcome == "failed"}
    assert broken == {"signature" if name == SIGNATURE else "approval"}


SUBJECTS: dict[str, Callable[[Table], Any]] = {
    "a path above": edited("subject", 0, "name", value="../card.json"),
    "an absolute path": edited("subject", 0, "name", value="/etc/passwd"),
    "a name with an escape": edited("subject", 0, "name", value="\x1b[2J"),
    "a file listed twice": lambda s: s["subject"].append(s["subject"][0]),
    "a file left out": lambda s: s["subject"].pop(),
    "the signature itself": lambda s: s["subject"].append({"name": "approval.sig", "digest": {"sha256": "0" * 64}}),
    "an unknown field of the statement": edited("note", value="smuggled"),
    "an unknown decision": edited("predicate", "decision", value="maybe"),
    "a name of control characters": edited("predicate", "name", value="Ada\x1b[2J"),
    "no such day": edited("predicate", "date", value="2026-02-30"),
    "conditions without the decision": edited("predicate", "conditions", value="none"),
    "the dossier's digest": edited("predicate", "dossier_sha256", value="0" * 64),
    "the statement of a release": edited("predicateType", value="https://model_signing/signature/v1.0"),
    "the statement for the vault": edited("predicateType", value="urn:airlock:approval-inside:1"),
    "another digest": edited("subject", 0, "digest", value={"sha512": "0" * 128}),
    "a number as a name": edited("predicate", "name", value=3),
}


def test_not_even_the_right_key_makes_an_odd_statement_count(signed: Path, reviewer: SigningKey) -> None:
    for what, change in SUBJECTS.items():
        countersign(signed, reviewer)
        rewrap(signed, APPROVAL, change, reviewer)
        found = look(signed, approvers=(reviewer,)).approval
        assert found.state in ("unreadable", "changed"), what
        assert found.says.isprintable(), what
        assert found.approval is None


RESOURCES: dict[str, Callable[[Table], Any]] = {
    "a path above": edited("predicate", "resources", 0, "name", value="../SHA256SUMS"),
    "a file listed twice": lambda s: s["predicate"]["resources"].append(s["predicate"]["resources"][0]),
    "another hash": edited("predicate", "resources", 0, "algorithm", value="md5"),
    "links allowed": edited("predicate", "serialization", "allow_symlinks", value=True),
    "shards": edited("predicate", "serialization", "method", value="shards"),
    "another digest of all": edited("subject", 0, "digest", "sha256", value="0" * 64),
    "two subjects": lambda s: s["subject"].append(s["subject"][0]),
    "an unknown field": edited("predicate", "more", value=1),
    "the statement of a reviewer": edited("predicateType", value="urn:airlock:approval:1"),
}


def test_nor_an_odd_statement_about_a_release(signed: Path, holder: SigningKey) -> None:
    for what, change in RESOURCES.items():
        sign(signed, holder)
        rewrap(signed, SIGNATURE, change, holder)
        found = look(signed, holder).release
        assert found.state in ("unreadable", "changed"), what


def test_an_edited_decision_or_another_key_under_a_known_name_is_a_forgery(
    signed: Path, reviewer: SigningKey, stranger: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_TRUSTED_KEYS", str(tmp_path / "trusted"))
    trust(reviewer.public, "the board")
    countersign(signed, reviewer, decision="reject")
    assert look(signed).rejected
    for key in (None, stranger):  # the signature kept, or made with another key and the board's fingerprint
        countersign(signed, reviewer, decision="reject")
        rewrap(signed, APPROVAL, edited("predicate", "decision", value="approve"), key)
        found = look(signed).approval
        assert found.state == "forged"
        assert found.approval is None
        assert "the board" in found.says
    countersign(signed, stranger)
    found = look(signed, approvers=(reviewer,)).approval
    assert (found.state, found.accepted) == ("unknown", False)
    checks = verify(signed, approvers=[reviewer.public]).checks
    assert {check.name for check in checks if check.outcome == "failed"} == {"approval"}


def test_a_signature_is_no_approval_and_an_approval_no_signature(signed: Path, holder: SigningKey) -> None:
    countersign(signed, holder)
    one, other = (signed / SIGNATURE).read_bytes(), (signed / APPROVAL).read_bytes()
    (signed / SIGNATURE).write_bytes(other)
    (signed / APPROVAL).write_bytes(one)
    both = look(signed, holder, approvers=(holder,))
    assert (both.release.state, both.approval.state) == ("unreadable", "unreadable")


def test_links_folders_and_pipes_in_place_of_a_signature(signed: Path, holder: SigningKey, tmp_path: Path) -> None:
    shutil.move(signed / SIGNATURE, tmp_path / "elsewhere.sig")
    (signed / SIGNATURE).symlink_to(tmp_path / "elsewhere.sig")
    assert "a symbolic link" in look(signed, holder).release.says
    (signed / SIGNATURE).unlink()
    os.mkfifo(signed / SIGNATURE)
    assert look(signed, holder).release.state == "unreadable"
    (signed / SIGNATURE).unlink()
    (signed / SIGNATURE).mkdir()
    assert look(signed, holder).release.state == "unreadable"
    assert not verify(signed).ok


def test_a_signature_has_no_room_for_other_data(signed: Path, holder: SigningKey, tmp_path: Path) -> None:
    """A certificate of the holder's key that somebody else wrote is read, and is small."""
    for size, state in ((100, "known"), (600_000, "unreadable")):
        table = envelope_of(signed)
        written = base64.b64encode(
            x509.load_pem_x509_certificate(certificate(holder, more=size)).public_bytes(Encoding.DER)
        )
        chain = {"certificates": [{"rawBytes": written.decode()}]}
        table["verificationMaterial"] = {"x509CertificateChain": chain, "tlogEntries": []}
        (signed / SIGNATURE).write_text(json.dumps(table))
        assert look(signed, holder).release.state == state
    sign(signed, holder)
    rewrap(signed, SIGNATURE, edited("predicate", "serialization", "ignore_paths", value=["x" * 255] * 100), holder)
    assert look(signed, holder).release.accepted
    table = envelope_of(signed)
    statement = base64.b64decode(table[DSSE]["payload"]) + b" " * (1 << 16)
    table[DSSE]["payload"] = base64.b64encode(statement).decode()
    table[DSSE]["signatures"][0]["sig"] = base64.b64encode(holder.sign(encoded(statement))).decode()
    (signed / SIGNATURE).write_text(json.dumps(table))
    assert "It could carry other data." in look(signed, holder).release.says
    (tmp_path / "key.pem").write_bytes(holder.to_pem() + certificate(holder, more=9000))
    with pytest.raises(FormatError, match="at most 10 certificates"):
        read_private(tmp_path / "key.pem")


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()])
def test_other_curves_of_the_standard_sign_too(signed: Path, curve: ec.EllipticCurve) -> None:
    key = SigningKey(ec.generate_private_key(curve))
    sign(signed, key)
    assert look(signed, key).release.accepted


def test_a_pem_of_another_type_as_a_key_is_one_sentence(signed: Path, holder: SigningKey, tmp_path: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    k1 = ec.generate_private_key(ec.SECP256K1()).public_key()
    for content in (
        other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        k1.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        holder.to_pem(),
        b"",
        b"\x00" * 100,
    ):
        (tmp_path / "key.pem").write_bytes(content)
        said = CliRunner().invoke(app, ["verify", str(signed), "--signer", str(tmp_path / "key.pem")])
        assert said.exit_code == 2, content
        assert isinstance(said.exception, SystemExit)
        assert "Expected" in said.stderr
    assert CliRunner().invoke(app, ["verify", str(signed), "--signer", "nowhere.pem"]).exit_code == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_no_bytes_in_a_signature_are_believed_or_raise(of_a_network: Bundle, holder: SigningKey, data: Any) -> None:
    """One flipped byte anywhere, or a cut: the state is never that of an intact signature unless the meaning is."""
    place = of_a_network.folder / SIGNATURE
    good = place.read_bytes()
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    bad = bytes(content[: data.draw(st.integers(0, len(content)))]) if data.draw(st.booleans()) else bytes(content)
    try:
        place.write_bytes(bad)
        found = look(of_a_network.folder, holder).release
        assert found.accepted == (bad.removesuffix(b"\n") == good.removesuffix(b"\n"))
    finally:
        place.write_bytes(good)


def test_every_file_signed_by_name_alone_has_the_same_statement(signed: Path, holder: SigningKey) -> None:
    """What is signed depends on the files' digests and the release's id, not on where the bundle is."""
    elsewhere = Path(shutil.copytree(signed, signed.parent / "ward-7-jane-doe"))
    statements = [release_statement(Contents(folder).signed(), "0" * 32) for folder in (signed, elsewhere)]
    assert statements[0] == statements[1]
    assert b"jane" not in seal(statements[1], holder)


class Reached(Exception):
    """What comes after the check of the signature."""


def reached(*told: object) -> None:
    raise Reached


@pytest.mark.usefixtures("made_up")
def test_whoever_uses_a_bundle_can_require_a_signature(
    signed: Path, of_answers: Bundle, of_features: Bundle, holder: SigningKey, stranger: SigningKey, vault: Vault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("airlock.pipeline._require_network", reached)
    monkeypatch.setattr("airlock.bundle.answering.from_vault", reached)
    monkeypatch.setattr("airlock.bundle.receive.load", reached)
    uses: list[Callable[[PublicKey], object]] = [
        lambda key: audit_bundle(signed, signers=[key]),
        lambda key: airlock.audit(signed, signers=[key]),
        lambda key: open_interface(of_answers.folder, vault, signers=[key]),
        lambda key: train_on(of_features.folder, None, signers=[key]),
    ]
    for use in uses:
        with pytest.raises(Refused, match="by an unknown key"):
            use(stranger.public)
        with pytest.raises(Reached):
            use(holder.public)
    (signed / SIGNATURE).unlink()
    with pytest.raises(Refused, match="Unsigned"):
        audit_bundle(signed, signers=[holder.public])


@pytest.mark.usefixtures("made_up")
def test_audit_and_train_take_the_signers_key(
    signed: Path, of_features: Bundle, holder: SigningKey, stranger: SigningKey, tmp_path: Path, vault: Vault
) -> None:
    key, out = public_file(stranger, tmp_path / "keys"), tmp_path / "out"
    train = ["features", "train", str(of_features.folder), "--out", str(out), "--epochs", "1"]
    for line, code in ((["audit", str(signed)], 2), (train, 1)):
        said = CliRunner().invoke(app, [*line, "--signer", str(key)])
        assert (said.exit_code, type(said.exception)) == (code, SystemExit)
        assert f"Signed by an unknown key ({holder.public.fingerprint})" in " ".join(said.stderr.split())
    assert not out.exists()
    assert not vault.root.exists()
    done = CliRunner().invoke(app, [*train, "--signer", str(public_file(holder, tmp_path / "keys"))])
    assert done.exit_code == 0, done.stderr
    assert out.exists()

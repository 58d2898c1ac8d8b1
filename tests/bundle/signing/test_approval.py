"""A reviewer's decision leaves as a countersignature; what it rests on does not."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airlock.bundle import Card, Dossier, Vault, verify
from airlock.bundle.answering import open_answerer
from airlock.bundle.contents import APPROVAL, Contents
from airlock.bundle.rendering.page import keep_dossier
from airlock.bundle.signing.approval import approve
from airlock.bundle.signing.keys import SigningKey, keep, trust
from airlock.bundle.signing.signatures import Signatures, covers_newest_dossier, examine
from airlock.cli import app
from airlock.errors import ConfigError, OutputError, Refused
from tests.bundle.conftest import DAY
from tests.bundle.signing.conftest import countersign, public_file, sign

runner = CliRunner()


def cli(*line: object) -> tuple[int, str]:
    said = runner.invoke(app, [str(part) for part in line])
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    return said.exit_code, said.output


def look(folder: Path, reviewer: SigningKey) -> Signatures:
    return examine(Contents(folder), None, approvers=[reviewer.public])


def test_nothing_else_changes_and_every_decision_can_be_read_back(
    signed: Path, holder: SigningKey, reviewer: SigningKey
) -> None:
    before = {path.name: path.read_bytes() for path in signed.iterdir()}
    for decision, conditions in (("approve", ""), ("conditions", "On the ward only."), ("reject", "Ask first.")):
        made, _ = approve(signed, reviewer, decision, "Ada", conditions, today=DAY, replace=True)  # type: ignore[arg-type]
        found = look(signed, reviewer)
        assert found.approval.approval == made
        assert (made.decision, made.name, made.date, made.conditions) == (decision, "Ada", "2026-03-09", conditions)
        assert found.approval.says == f"Countersigned by the required key ({reviewer.public.fingerprint}): {made}."
        assert found.rejected == (decision == "reject")
        assert bool(found.approval.test()) == (decision == "reject")
    assert {
        check.name
        for check in verify(signed, signers=[holder.public], approvers=[reviewer.public]).checks
        if check.outcome == "failed"
    } == {"approval"}
    after = {path.name: path.read_bytes() for path in signed.iterdir()}
    assert stat.S_IMODE((signed / APPROVAL).stat().st_mode) == 0o644
    assert after.pop(APPROVAL)
    assert after == before
    assert [path.name for path in signed.parent.iterdir() if path.name.startswith(".")] == []


def test_the_dossier_leaves_no_trace_in_what_leaves_and_its_digest_stays_in_the_vault(
    signed: Path, reviewer: SigningKey, vault: Vault, card: Card, dossier: Dossier
) -> None:
    keep_dossier(vault, dossier)
    raw = vault.load_dossier(card.release_id)
    assert raw is not None
    _, inside = approve(signed, reviewer, "approve", "Ada", vault=vault, today=DAY)
    assert inside
    statements = []
    for place in (signed / APPROVAL, vault.dossier_folder(card.release_id) / APPROVAL):
        payload = json.loads(place.read_text())["dsseEnvelope"]["payload"]
        statements.append(json.loads(base64.b64decode(payload)))
    outside, kept = statements
    assert set(outside) == {"_type", "subject", "predicateType", "predicate"}
    assert {one["name"] for one in outside["subject"]} == set(Contents(signed).signed())
    assert outside["predicate"] == {
        "release_id": card.release_id, "decision": "approve", "name": "Ada", "date": "2026-03-09", "conditions": "",
    }  # fmt: skip
    digest = hashlib.sha256(raw).hexdigest()
    assert kept["predicate"] == {**outside["predicate"], "dossier_sha256": digest}
    assert digest not in (signed / APPROVAL).read_text() + json.dumps(outside)
    assert stat.S_IMODE((vault.dossier_folder(card.release_id) / APPROVAL).stat().st_mode) == 0o600
    assert verify(signed, vault).ok
    (signed / APPROVAL).write_bytes((vault.dossier_folder(card.release_id) / APPROVAL).read_bytes())  # by mistake
    broken = {check.name for check in verify(signed, vault).checks if check.outcome == "failed"}
    assert broken == {"vault", "approval"}


def test_two_dossiers_give_the_same_approval_but_for_chance(
    signed: Path, reviewer: SigningKey, vault: Vault, dossier: Dossier, card: Card
) -> None:
    """Whoever knows all records but one could compute both dossiers: what leaves must not tell them apart."""
    payloads = []
    for remarks in ((), ("A row was left out.",)):
        keep_dossier(vault, dossier.model_copy(update={"remarks": remarks}))
        approve(signed, reviewer, "approve", "Ada", vault=vault, replace=True, today=DAY)
        payloads.append(json.loads((signed / APPROVAL).read_text())["dsseEnvelope"]["payload"])
    assert payloads[0] == payloads[1]


def test_a_new_dossier_is_not_covered_by_an_old_decision(
    signed: Path, reviewer: SigningKey, vault: Vault, dossier: Dossier, card: Card, tmp_path: Path
) -> None:
    assert covers_newest_dossier(vault, card.release_id) is None
    keep_dossier(vault, dossier)
    approve(signed, reviewer, "approve", "Ada", vault=vault, today=DAY)
    assert covers_newest_dossier(vault, card.release_id)
    key = public_file(reviewer, tmp_path / "keys")
    assert "made anew" not in cli("gate", signed, "--require-approval", key)[1]
    keep_dossier(vault, dossier.model_copy(update={"remarks": ("A row was left out.",)}))
    assert covers_newest_dossier(vault, card.release_id) is False
    assert "made anew after the reviewer's decision" in cli("gate", signed, "--require-approval", key)[1]
    (vault.dossier_folder(card.release_id) / APPROVAL).write_text("{}")
    assert covers_newest_dossier(vault, card.release_id) is False


def test_what_does_not_verify_can_only_be_rejected(signed: Path, reviewer: SigningKey) -> None:
    (signed / "README.md").write_text("x")
    for decision, conditions in (("approve", ""), ("conditions", "None.")):
        with pytest.raises(Refused, match="it can be rejected as it is"):
            approve(signed, reviewer, decision, "Ada", conditions)  # type: ignore[arg-type]
    assert not (signed / APPROVAL).exists()
    approve(signed, reviewer, "reject", "Ada")
    assert look(signed, reviewer).rejected


def test_a_decision_is_complete_and_is_not_replaced_by_accident(signed: Path, reviewer: SigningKey) -> None:
    for decision, name, conditions in (
        ("conditions", "Ada", ""), ("approve", "Ada", "Only here."), ("approve", "", ""), ("approve", " ", ""),
        ("approve", "x" * 101, ""), ("approve", "A\x1b[2J", ""), ("conditions", "Ada", "a\nb"),
        ("conditions", "Ada", "x" * 2001),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            approve(signed, reviewer, decision, name, conditions)  # type: ignore[arg-type]
    approve(signed, reviewer, "approve", "Ada")
    with pytest.raises(OutputError, match="--force"):
        approve(signed, reviewer, "reject", "Ada")
    assert not look(signed, reviewer).rejected
    (signed / APPROVAL).write_text("broken")  # by somebody else: it can be replaced
    approve(signed, reviewer, "approve", "Ada", replace=True)
    assert look(signed, reviewer).approval.accepted


def test_the_reviewers_own_key_is_made_once_and_is_not_the_vaults(
    signed: Path, holder: SigningKey, vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    keep(holder, vault.key_folder() / vault.signing_key.name)
    code, said = cli("approve", signed, "--decision", "approve", "--name", "Ada")
    assert code == 0
    assert "A key was made for you" in said
    assert "The dossier is not in this vault" in said
    place = tmp_path / "config" / "airlock" / "reviewer.pem"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    found = examine(Contents(signed), vault)
    assert found.approval.state == "unknown"
    assert found.approval.fingerprint not in (None, holder.public.fingerprint)
    code, said = cli("approve", signed, "--decision", "approve", "--name", "Ada", "--force", "--json")
    assert json.loads(said)["fingerprint"] == found.approval.fingerprint
    for wrong in (("--decision", "maybe"), ("--decision", "approve", "--key", public_file(holder, tmp_path / "keys"))):
        assert cli("approve", signed, "--name", "Ada", "--force", *wrong)[0] == 2
    assert cli("approve", signed, "--decision", "approve", "--name", "Ada")[0] == 2


@pytest.mark.parametrize("how", ["missing", "by a stranger", "rejected", "of other files", "approved", "conditions"])
def test_gate_serve_and_verify_require_it(
    signed: Path, holder: SigningKey, reviewer: SigningKey, stranger: SigningKey, tmp_path: Path, how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("AIRLOCK_TRUSTED_KEYS", str(tmp_path / "trusted"))
    trust(reviewer.public, "the board")
    changes: dict[str, dict[str, str]] = {
        "rejected": {"decision": "reject"},
        "conditions": {"decision": "conditions", "conditions": "Once."},
    }
    if how != "missing":
        countersign(signed, stranger if how == "by a stranger" else reviewer, **changes.get(how, {}))
    if how == "of other files":
        (signed / "README.md").write_bytes((signed / "README.md").read_bytes() + b"\n")
        sign(signed, holder)
    key = public_file(reviewer, tmp_path / "keys")
    good = how in ("approved", "conditions")
    _, said = cli("gate", signed, "--require-approval", key, "--json")
    lists = json.loads(said)
    assert any("Ada" in line or "countersigned" in line for line in lists["reject"]) == (not good)
    assert any("on conditions by Ada" in line for line in lists["caution"]) == (how == "conditions")
    assert any("Approved by Ada" in line and "the board" in line for line in lists["release"]) == (how == "approved")
    if good:
        assert open_answerer(signed, approvers=[reviewer.public], signers=[holder.public])
        with pytest.raises(Refused, match="not by a key that was required|unknown key"):
            open_answerer(signed, signers=[stranger.public])
    else:
        with pytest.raises(Refused):
            open_answerer(signed, approvers=[reviewer.public])


def test_a_rejected_bundle_is_never_served_and_passes_no_gate(
    signed: Path, holder: SigningKey, stranger: SigningKey, tmp_path: Path
) -> None:
    assert open_answerer(signed)
    countersign(signed, stranger, decision="reject", conditions="Too weak.")
    assert verify(signed).ok  # it can still be audited
    with pytest.raises(Refused, match="Rejected by Ada on 2026-03-09: Too weak"):
        open_answerer(signed)
    code, said = cli("gate", signed)
    assert code == 1
    assert "Rejected by Ada" in said.split("Reasons for caution")[0]
    code, said = cli("serve", signed, "--port", 0, "--signer", public_file(holder, tmp_path / "keys"))
    assert (code, "no reviewer has rejected" in said) == (1, True)


def test_show_says_who_signed_and_approved(signed: Path, reviewer: SigningKey) -> None:
    countersign(signed, reviewer)
    said = cli("show", signed)[1].replace("│", " ")
    assert "Signed by an unknown key" in " ".join(said.split())
    assert "Approved by Ada on 2026-03-09" in " ".join(said.split())


def test_a_reviewer_cannot_pass_for_another_by_what_they_call_themselves(signed: Path, stranger: SigningKey) -> None:
    countersign(signed, stranger, name="Ada. Countersigned by the board (0123): Approved by Bob")
    says = look(signed, stranger).approval.says
    assert says.startswith(f"Countersigned by the required key ({stranger.public.fingerprint}): ")
    says = examine(Contents(signed), None).approval.says
    assert says.startswith(
        f"Countersigned by an unknown key ({stranger.public.fingerprint}), which anyone could have made: "
    )


def test_the_gate_warns_if_the_key_that_signed_also_approved(signed: Path, holder: SigningKey, tmp_path: Path) -> None:
    countersign(signed, holder)
    assert (
        "nobody else has looked at it"
        in cli(
            "gate",
            signed,
            "--signer",
            public_file(holder, tmp_path / "keys"),
            "--require-approval",
            public_file(holder, tmp_path / "keys"),
        )[1]
    )

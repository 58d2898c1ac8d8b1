"""A policy held against whole bundles: `airlock verify --policy`, `airlock gate --policy`, and those who forge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from airlock.bundle import Bundle, Dossier, Policy, Vault, verify
from airlock.bundle.policy import to_toml
from airlock.bundle.rendering.page import keep_dossier
from airlock.bundle.signing.keys import SigningKey, trust
from airlock.cli import app
from airlock.config import parse
from tests.bundle.forging import forge
from tests.bundle.signing.conftest import countersign, sign
from tests.bundle.test_older import older as older

SECTIONS = [f"policy.{name}" for name in Policy.model_fields]


@pytest.fixture(autouse=True)
def own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_TRUSTED_KEYS", str(tmp_path / "trusted-keys"))


def policy(**sections: object) -> Policy:
    return parse(Policy, sections)


def outcomes(folder: Path, limits: Policy) -> dict[str, str]:
    found = verify(folder, policy=limits)
    assert [check.name for check in found.checks][-len(SECTIONS) :] == SECTIONS
    return {check.name: check.outcome for check in found.checks if check.name in SECTIONS and check.outcome != "ok"}


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_section_is_a_check(original: Bundle, dossier: Dossier, vault: Vault) -> None:
    assert outcomes(original.folder, Policy()) == {"policy.algorithms_and_correctness": "skipped"}
    keep_dossier(vault, dossier)
    assert outcomes(original.folder, Policy()) == {}
    strict = policy(privacy_parameters={"epsilon": 2.0}, bias={"recall": 0.99})
    assert outcomes(original.folder, strict) == {"policy.privacy_parameters": "failed", "policy.bias": "failed"}
    failed = [one for one in verify(original.folder, policy=strict).checks if one.outcome == "failed"]
    assert "[privacy_parameters.epsilon: found 2.37, allowed at most 2]" in failed[0].says
    assert not [one.name for one in verify(original.folder).checks if one.name.startswith("policy")]


def test_a_violation_is_not_hidden_by_a_rule_that_could_not_be_checked(original: Bundle) -> None:
    strict = policy(algorithms_and_correctness={"channels": ["answers"], "auc": 0.9})
    assert outcomes(original.folder, strict) == {"policy.algorithms_and_correctness": "failed"}


def test_the_policys_attacks_are_those_of_the_gate_too(original: Bundle, dossier: Dossier, vault: Vault) -> None:
    keep_dossier(vault, dossier)
    more = policy(algorithms_and_correctness={"required_attacks": {"network": ["LiRA, online"]}})
    found = {one.name: one.outcome for one in verify(original.folder, gated=True, policy=more).checks}
    assert found["attacks"] == "failed"
    assert {one.name: one.outcome for one in verify(original.folder, gated=True).checks}["attacks"] == "ok"


def test_keys_of_the_policy(folder: Path, vault: Vault) -> None:
    holder, reviewer, stranger = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()
    limits = policy(
        access_control={
            "signers": [holder.public.fingerprint],
            "approvers": [reviewer.public.fingerprint],
            "approval": "approve",
            "second_key": True,
        }
    )
    failed = {"policy.access_control": "failed", "policy.algorithms_and_correctness": "skipped"}
    assert outcomes(folder, limits) == failed
    sign(folder, holder)
    countersign(folder, reviewer)
    assert outcomes(folder, limits) == failed  # nobody here knows these keys
    trust(holder.public, "the hospital")
    trust(reviewer.public, "Ada")
    assert outcomes(folder, limits) == {"policy.algorithms_and_correctness": "skipped"}
    trust(stranger.public, "somebody else")
    sign(folder, stranger)
    assert outcomes(folder, limits) == failed
    sign(folder, holder)
    countersign(folder, stranger)
    assert outcomes(folder, limits) == failed
    countersign(folder, reviewer, decision="conditions", conditions="Only here.")
    assert outcomes(folder, limits) == failed


def test_a_key_that_is_given_does_not_widen_the_policy(folder: Path) -> None:
    holder, stranger = SigningKey.generate(), SigningKey.generate()
    sign(folder, stranger)
    limits = policy(access_control={"signers": [holder.public.fingerprint]})
    found = verify(folder, signers=[stranger.public], policy=limits)
    assert {one.name for one in found.checks if one.outcome == "failed"} == {"policy.access_control"}


@pytest.mark.parametrize(
    "changes",
    [
        {"guarantee.epsilon": 0.5},
        {"guarantee.delta": 1e-9},
        {"data.records": 100_000_000},
        {"guarantee.assumptions": []},
        {"total.epsilon": 0.1},
    ],
)
def test_a_card_that_was_made_to_fit_the_policy_does_not_pass(folder: Path, changes: dict[str, object]) -> None:
    """The rules look at the card; that the card is true is what all other checks are for."""
    limits = policy(
        privacy_parameters={"epsilon": 2.0, "delta": 1e-8, "delta_times_records": 1000, "total_epsilon": 2.0},
        data_collection_exposure={"records": 1_000_000},
        trust_models={"unacceptable_assumptions": ["lot"]},
    )
    forge(folder, changes)
    found = verify(folder, policy=limits)
    assert not found.ok
    assert {one.name for one in found.checks if one.outcome == "failed"} - set(SECTIONS), changes


def test_a_bundle_without_a_card_keeps_no_policy(folder: Path) -> None:
    (folder / "card.json").write_text("{}")
    found = verify(folder, policy=Policy())
    assert {one.name: one.outcome for one in found.checks}["policy"] == "failed"


def test_a_dossier_that_cannot_be_read_is_a_failed_check(original: Bundle, dossier: Dossier, vault: Vault) -> None:
    page = keep_dossier(vault, dossier)
    page.with_name("dossier.json").write_text("{}")
    found = {one.name: one.outcome for one in verify(original.folder, policy=Policy()).checks}
    assert {found[name] for name in SECTIONS} == {"failed"}


def test_an_older_bundle_keeps_no_policy(older: Path) -> None:
    name = sorted(path.name for path in older.iterdir() if path.is_dir())[-1]
    found = verify(older / name, policy=Policy())
    assert {one.name: one.outcome for one in found.checks}["policy"] == "failed"


def test_on_the_command_line(original: Bundle, dossier: Dossier, vault: Vault, tmp_path: Path) -> None:
    keep_dossier(vault, dossier)
    file = tmp_path / "policy.toml"
    file.write_text(run("policy").stdout)
    assert file.read_text() == to_toml(Policy())
    assert run("policy", "check", file).stdout.endswith("nowhere\n")
    assert run("gate", original.folder, "--policy", file).exit_code == 0
    assert run("verify", original.folder, "--policy", file).exit_code == 0
    file.write_text("[privacy_parameters]\nepsilon = 2\n")
    assert json.loads(run("policy", "check", file, "--json").stdout)["changes"] == {"privacy_parameters.epsilon": 2.0}
    gate = run("gate", original.folder, "--policy", file, "--json")
    assert gate.exit_code == 1
    (rule,) = json.loads(gate.stdout)["rules"]
    assert (rule["rule"], rule["found"], rule["allowed"]) == ("privacy_parameters.epsilon", "2.37", "at most 2")
    verified = run("verify", original.folder, "--policy", file)
    assert (verified.exit_code, "NOT what the policy lets out" in verified.stdout) == (1, True)
    file.write_text("[privacy_parameters]\nepsilonn = 2\n")
    for line in (("policy", "check", file), ("gate", original.folder, "--policy", file)):
        wrong = run(*line)
        assert (wrong.exit_code, "Did you mean 'epsilon'" in wrong.stderr) == (2, True)

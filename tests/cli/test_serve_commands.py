"""`airlock ledger` and `airlock keys` as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from airlock.bundle import Vault
from airlock.cli import app
from airlock.ledger import KeyStore, Ledger, Spend, Terms, digest, mark_name, tables
from tests.ledger.conftest import forging

runner = CliRunner()


def run(*arguments: object) -> Result:
    result = runner.invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with its mark in the vault, named by the environment."""
    place = str(tmp_path / "ledger.db")
    monkeypatch.setenv("AIRLOCK_LEDGER", place)
    monkeypatch.setenv("AIRLOCK_VAULT", str(tmp_path / "vault"))
    with Ledger.open(place, Vault.open().mark_folder() / mark_name(place), Terms("r", 100, "u")):
        pass
    return place


def opened(place: str) -> Ledger:
    return Ledger.open(place, Vault.open().mark_folder() / mark_name(place))


def test_keys_from_adding_to_revoking(place: str) -> None:
    added = run("keys", "add", "ann", "--quota", 10, "--expires", "90d")
    assert added.exit_code == 0, added.output
    token = added.stdout.strip()
    with opened(place) as ledger:
        assert KeyStore(ledger).authenticate(token).client == "ann"
        ledger.spend(Spend("ann", 3, digest("x")))
    admin = json.loads(run("keys", "add", "--admin", "--json").stdout)
    assert admin["admin"]
    listed = json.loads(run("keys", "list", "--json").stdout)
    assert [(one["client"], one["state"], one["quota"], one["spent"]) for one in listed] == [
        ("ann", "valid", 10, 3),
        ("(admin)", "valid", None, None),
    ]
    shown = run("keys", "list").stdout
    assert token not in shown
    assert "ann" in shown
    assert json.loads(run("keys", "revoke", "ann", "--json").stdout) == [listed[0]["id"]]
    assert json.loads(run("keys", "list", "--json").stdout)[0]["state"] == "revoked"
    assert run("keys", "revoke", "nobody").exit_code == 1


@pytest.mark.parametrize(
    "wrong",
    [["add"], ["add", "ann", "--admin"], ["add", "a b"], ["add", "ann", "--expires", "soon"],
     ["add", "ann", "--expires", "2001-01-01"], ["add", "ann", "--quota", "-1"]],
)  # fmt: skip
def test_keys_that_are_not_given(place: str, wrong: list[str]) -> None:
    assert run("keys", *wrong).exit_code == 2
    assert json.loads(run("keys", "list", "--json").stdout) == []


def test_verify_and_what_it_says_of_a_forged_entry(place: str) -> None:
    run("keys", "add", "ann")
    with opened(place) as ledger:
        for _ in range(3):
            ledger.spend(Spend("ann", 3, digest("x")))
    whole = run("ledger", "verify")
    assert whole.exit_code == 0, whole.output
    assert "9 of 100 units" in whole.stdout
    with opened(place) as ledger, forging(ledger.engine) as connection:
        connection.execute(sa.update(tables.log).where(tables.log.c.seq == 4).values(units=1))
    found = run("ledger", "verify", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["broken_entry"] == 4
    assert "NOT intact" in run("ledger", "verify").stdout


def test_verify_says_that_a_budget_was_rewound(place: str, tmp_path: Path) -> None:
    run("keys", "add", "ann")
    backup = Path(place).read_bytes()
    with opened(place) as ledger:
        ledger.spend(Spend("ann", 3, digest("x")))
    Path(place).write_bytes(backup)
    assert run("ledger", "verify").exit_code == 1
    assert "backup" in run("keys", "list").stderr
    assert "backup" in run("ledger", "verify", "--new-mark").stderr


def test_a_new_replica_begins_its_mark(place: str, tmp_path: Path) -> None:
    run("keys", "add", "ann")
    with opened(place) as ledger:
        ledger.spend(Spend("ann", 3, digest("x")))
    other = tmp_path / "other" / "mark"
    assert "high-water mark" in run("keys", "list", "--mark", other).stderr
    assert "secret" in run("ledger", "verify", "--mark", other).stdout
    assert "secret" in run("ledger", "verify", "--mark", other, "--new-mark").stderr
    assert not other.exists()
    (secret,) = Vault.open().mark_folder().glob("*.secret")
    other.parent.mkdir()
    shutil.copy(secret, other.parent)
    assert "may still be an old copy" in run("ledger", "verify", "--mark", other).stdout
    begun = run("ledger", "verify", "--mark", other, "--new-mark")
    assert begun.exit_code == 0
    assert "no one can tell" in " ".join(begun.stderr.split())
    assert secret.read_text().strip() not in begun.output
    assert run("keys", "list", "--mark", other).exit_code == 0


def test_no_ledger(tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    assert run("ledger", "verify", "--ledger", missing).exit_code == 2
    assert "--older alone" in run("ledger", "verify", "--ledger", missing, "--older").stderr
    assert run("keys", "list", "--ledger", missing).exit_code == 2
    assert not os.path.exists(missing)


def test_the_name_of_a_mark_knows_no_password() -> None:
    assert mark_name("postgresql://u:one@h/db") == mark_name("postgresql://u:two@h/db")
    assert mark_name("postgresql://h/db") != mark_name("postgresql://h/other")
    assert mark_name("sqlite:///x.db") == mark_name("x.db") == mark_name("./x.db")

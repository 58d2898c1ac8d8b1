"""`airlock register` in the terminal, as JSON and as a page; releases themselves are in tests/bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import pytest
from typer.testing import CliRunner

from airlock.accounting import to_json
from airlock.bundle import Vault
from airlock.bundle.register import RegisterPlace, filter_of, open_at
from airlock.cli import app
from tests.bundle.test_browser import browser as browser
from tests.reading import faults

runner = CliRunner()
NOISE = dpa.GaussianDpEvent(4.0)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRLOCK_VAULT", str(tmp_path / "vault"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("AIRLOCK_REGISTER", raising=False)
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    found = runner.invoke(app, ["register", *words])
    assert found.exit_code == code, found.output
    return found.output


def created(*more: str) -> str:
    return run("create", "people.db", "--data", "people", "--epsilon", "4", "--delta", "1e-5", *more)


def about(recipient: str) -> dict[str, Any]:
    return {"channel": "weights", "method": "gaussian", "recipient": recipient, "epsilon": 2.4, "delta": 1e-5,
            "parts": {"private": to_json(NOISE)}, "version": "0"}  # fmt: skip


def some_years() -> None:
    """One that left, one that failed, one that was returned."""
    with open_at(RegisterPlace("people.db", "a test"), Vault.open()) as register:
        cost = filter_of(register).cost([NOISE])
        left, failed, returned = (register.reserve(cost, about(who)) for who in ("Ann", HOSTILE, ""))
        for held in (left, failed):
            register.start(held)
        register.release(left, "ab" * 16)
        register.give_back(returned)


def test_a_register_is_created_once_and_listed() -> None:
    assert "Rényi divergence of order" in created()
    assert "people.db" in run("list")
    assert json.loads(run("list", "--json")) == [{"data": "people", "place": "people.db"}]
    assert "without a register" in run(
        "create", "people.db", "--data", "p", "--epsilon", "1", "--delta", "1e-5", code=2
    )
    assert "second budget" in run("create", "b.db", "--data", "people", "--epsilon", "4", "--delta", "1e-5", code=2)


@pytest.mark.parametrize(
    "more",
    [("--order", "1"), ("--order", "2"), ("--unit", "model"), ("--data", ""), ("--data", "a\nb"), ("--epsilon", "0")],
)
def test_terms_that_cannot_be_are_refused(more: tuple[str, str], here: Path) -> None:
    words = ["create", "people.db", "--data", "people", "--epsilon", "1", "--delta", "1e-5", *more]
    assert "Expected" in run(*words, code=2)
    assert not (here / "people.db").exists()


def test_what_left_is_shown(here: Path) -> None:
    created()
    some_years()
    shown = run("show", "people.db")
    for word in (
        "weights/gaussian",
        "Ann",
        "left as abababab",
        "stays charged",
        "returned: nothing was read",
        "of 4 is left",
    ):
        assert word in shown, word
    assert "For information only: had all of it been planned at once" in shown
    found = json.loads(run("show", "people.db", "--json"))
    assert [one["state"] for one in found["releases"]] == ["released", "started", "returned"]
    assert found["spent"] == sum(one["units"] for one in found["releases"][:2])
    assert found["left"] == pytest.approx(4 - sum(one["cost"] for one in found["releases"]))
    assert found["had_it_been_planned_at_once"] < found["so_far"]


def test_the_page_loads_and_runs_nothing(here: Path) -> None:
    created()
    run("show", "people.db", "--html", "empty.html")
    some_years()
    run("show", "people.db", "--html", "page.html")
    for name in ("empty.html", "page.html"):
        page = (here / name).read_text(encoding="utf-8")
        assert "Stays inside" in page
        assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert '<polyline points="' in page


@pytest.mark.browser
def test_the_page_is_readable_at_every_width_in_both_colours_and_on_paper(browser: Any, here: Path) -> None:
    created()
    some_years()
    run("show", "people.db", "--html", "page.html")
    page = browser.new_page()
    page.goto((here / "page.html").as_uri())
    assert faults(page, folded=True) == {}
    page.close()


def test_verify_says_whether_it_is_intact(here: Path) -> None:
    import sqlite3

    created()
    some_years()
    (here / "airlock.toml").write_text('register = "people.db"')
    assert "is intact" in run("verify")
    with sqlite3.connect("people.db") as connection:
        connection.execute("UPDATE airlock_ledger SET spent = 0")
    assert "NOT intact" in run("verify", code=1)
    assert "agree with each other" in run("show", code=2)


def test_a_second_machine_needs_the_secret_and_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created()
    some_years()
    monkeypatch.setenv("AIRLOCK_VAULT", str(here / "other"))
    assert "mark" in run("show", "people.db", code=2)
    assert "secret" in run("verify", "people.db", "--new-mark", code=2)
    for file in (here / "vault/marks").glob("*.secret"):
        (here / "other/marks" / file.name).write_bytes(file.read_bytes())
    assert "is intact" in run("verify", "people.db", "--new-mark")
    assert "left as abababab" in run("show", "people.db")


def test_without_a_place_it_says_how_to_name_one() -> None:
    assert "AIRLOCK_REGISTER" in run("show", code=2)
    assert "none in people.db (from the command line)" in run("show", "people.db", code=2)
    assert run("list").count("people") == 0


def test_a_services_ledger_is_no_register(here: Path) -> None:
    from airlock.ledger import Ledger, Terms, mark_name

    mark = Vault.open().mark_folder() / mark_name("people.db")
    Ledger.open("people.db", mark, Terms("release", 10, "one answer")).close()
    assert "ledger of a service" in run("show", "people.db", code=2)

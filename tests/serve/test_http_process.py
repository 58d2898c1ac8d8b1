"""Real processes: one budget for many clients, and an end on request; test_kills.py has the other ends."""

from __future__ import annotations

import json
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airlock.bundle import Vault, make_card, write
from airlock.cli import app
from airlock.ledger import KeyStore, Ledger, LedgerVerification
from airlock.serve.ledger_paths import ledger_place, terms_of
from tests.bundle.conftest import CONFIG, FACTS, guarantee, make_release, noise
from tests.serve.selling import RELEASE, Nursery, Priced, ask, connect, question, started
from tests.waiting import LONG, wait_until

runner = CliRunner()


def prepared(folder: Path, cap: int, client: str = "ann") -> str:
    """A ledger of so many units, and a client's token."""
    with Ledger.open(folder / "ledger.db", folder / "mark", terms_of(RELEASE, Priced(cap).interface)) as ledger:
        return KeyStore(ledger).add(client)[1]


def spent(folder: Path) -> tuple[int, LedgerVerification]:
    with Ledger.open(folder / "ledger.db", folder / "mark") as ledger:
        return ledger.balance().spent, ledger.verify()


def keep_asking(where: str, token: str, name: str, tally: list[int]) -> tuple[int, list[tuple[str, int, Any]]]:
    """Ask until the service is gone: how many units were answered, and the answers by key."""
    answered, kept = 0, list[tuple[str, int, Any]]()
    connection, chance = connect(where), random.Random(name)
    try:
        for count in range(10**6):
            rows, key = chance.randint(1, 3), f"{name}-{count}"
            status, body = ask(connection, token, question(rows), key)
            if status != 200:
                raise AssertionError(body)
            answered += rows
            kept.append((key, rows, body["outputs"]))
            tally.append(rows)
    except (OSError, HTTPException, json.JSONDecodeError):
        pass
    finally:
        connection.close()
    return answered, kept


def wait_for(tally: list[int], answers: int) -> None:
    wait_until(lambda: len(tally) >= answers, f"{answers} answers")


def test_one_small_budget_for_many_clients(nursery: Nursery, folder: Path) -> None:
    token = prepared(folder, 60)

    def spree(number: int) -> tuple[int, int]:
        connection, paid, refused = connect(where), 0, 0
        for count in range(20):
            rows = 1 + (number + count) % 2
            status, _ = ask(connection, token, question(rows))
            assert status in (200, 403)
            paid, refused = (paid + rows, refused) if status == 200 else (paid, refused + 1)
        connection.close()
        return paid, refused

    pid, where = nursery.start(folder, 60)
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(spree, range(8)))
    nursery.end(pid, signal.SIGTERM)
    assert nursery.wait(pid) == 0
    assert sum(paid for paid, _ in sums) == 60
    assert sum(refused for _, refused in sums) >= 8 * 20 - 60  # who is refused hangs on who came first
    assert spent(folder)[0] == 60


def test_what_was_charged_is_answered_before_the_end(nursery: Nursery, folder: Path) -> None:
    token = prepared(folder, 10**6)
    tally: list[int] = []
    pid, where = nursery.start(folder, 10**6, 0.02)
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(keep_asking, where, token, str(n), tally) for n in range(8)]
        wait_for(tally, 20)
        nursery.end(pid, signal.SIGTERM)
        answered = sum(one.result()[0] for one in asking)
    assert nursery.wait(pid) == 0
    assert "Traceback" not in (folder / "log").read_text()
    charged, verdict = spent(folder)
    assert verdict.ok
    assert charged == answered > 0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release = make_release(guarantee())
    return write(
        tmp_path_factory.mktemp("b") / "digits", CONFIG, release, make_card(CONFIG, FACTS, release, noise())
    ).folder


def run(*arguments: object) -> Any:
    return runner.invoke(app, [str(a) for a in arguments])


def test_airlock_serve_on_a_bundle(bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_VAULT", str(folder / "vault"))
    added = run("keys", "add", "ann", "--bundle", bundle)
    assert added.exit_code == 0, added.output
    token = added.stdout.strip()
    assert run("keys", "list").exit_code == 0  # the only ledger there is
    with started([sys.executable, "-m", "airlock", "serve", str(bundle), "--port", "0"]) as (process, where):
        connection = HTTPConnection(where.removeprefix("http://"), timeout=LONG)
        body = {"inputs": [{"name": "input", "datatype": "UINT8", "shape": [2, 1, 8, 8], "data": [7] * 128}]}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", "/v2/models/digits/infer", json.dumps(body), headers)
        reply = connection.getresponse()
        told = json.loads(reply.read())
        assert reply.status == 200, told
        labels, classes, values = told["outputs"]
        assert [str(label) for label in labels["data"]] == classes["data"]
        assert values["shape"] == [2, 10]
        connection.request("GET", "/card")
        assert connection.getresponse().read() == (bundle / "card.html").read_bytes()
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 0
    assert ledger_place(Vault.open(), told["model_version"]).is_file()


def test_what_is_not_served(bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_VAULT", str(folder / "vault"))
    public = run("serve", bundle, "--host", "0.0.0.0", "--no-keys", "--port", 0)
    assert public.exit_code == 2
    assert "--no-keys" in public.output
    assert run("serve", folder, "--port", 0).exit_code in (1, 2)
    assert run("serve", bundle, "--port", 0, "--name", "a b").exit_code == 2
    none = run("keys", "list", "--vault", folder / "other")
    assert none.exit_code == 2
    assert "--bundle" in none.output

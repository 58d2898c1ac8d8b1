"""The service over HTTP, address by address: who may, what it gives, what it costs."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from airlock.errors import LedgerBroken, LedgerUnavailable
from airlock.ledger import KeyStore, Ledger
from airlock.serve.access import WrongTokens
from airlock.serve.app import ROUTES
from airlock.serve.ledger_paths import terms_of
from airlock.serve.problems import MEDIA_TYPE
from airlock.serve.service import Service
from tests.serve.selling import CARD, CLASSES, RELEASE, SHAPE, Priced, make, question, running
from tests.waiting import LONG, wait_until

INFER = "/v2/models/pets/infer"


class Shop:
    """A service, someone who asks it, and an admin."""

    def __init__(self, service: Service, web: httpx.Client) -> None:
        self.service, self.web = service, web
        assert isinstance(service.answerer, Priced)
        self.answerer = service.answerer
        if service.keys is not None:
            self.key, self.token = service.keys.add("ann")
            self.admin = service.keys.add_admin()[1]

    def ask(self, body: Any = None, token: str | None = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body or question()).encode()
        sent = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        return self.web.post(
            INFER, content=content, headers=sent | {k.replace("_", "-"): v for k, v in headers.items()}
        )

    def look(self, path: str, token: str, **headers: str) -> httpx.Response:
        return self.web.get(path, headers={"Authorization": f"Bearer {token}"} | headers)

    @property
    def spent(self) -> int:
        return self.service.ledger.balance().spent


@pytest.fixture
def options() -> dict[str, Any]:
    """What a test changes about the service."""
    return {}


@pytest.fixture
def shop(folder: Path, options: dict[str, Any]) -> Iterator[Shop]:
    units = options.pop("units", 20)
    service = make(folder, Priced(units), **options)
    with service.ledger, running(service) as where, httpx.Client(base_url=where, timeout=LONG) as web:
        yield Shop(service, web)


def check_problem(reply: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == MEDIA_TYPE
    told: dict[str, Any] = reply.json()
    assert told["type"] == f"urn:airlock:problem:{kind}"
    assert told["status"] == status
    assert told["error"] == told["detail"]
    assert told["detail"].startswith(f"Expected {told['expected']}, found {told['found']}.")
    assert told["instance"].endswith(reply.headers["x-request-id"])
    assert told["title"]
    return told


def test_health_and_metadata_need_no_key(shop: Shop) -> None:
    assert shop.web.get("/v2/health/live").json() == {"live": True}
    assert shop.web.get("/v2/health/ready").json() == {"ready": True}
    assert shop.web.get("/v2").json()["name"] == "airlock"
    assert shop.web.get("/v2/models/pets/ready").json() == {"name": "pets", "ready": True}
    told = shop.web.get("/v2/models/pets").json()
    assert told["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, *SHAPE]}]
    assert [(one["name"], one["datatype"], one["shape"]) for one in told["outputs"]] == [
        ("label", "INT64", [-1]),
        ("class", "BYTES", [-1]),
        ("values", "FP64", [-1, 3]),
    ]


def test_answers_are_paid_by_the_row(shop: Shop) -> None:
    reply = shop.ask(question(3) | {"id": "mine"})
    assert reply.status_code == 200, reply.text
    told = reply.json()
    assert (told["model_name"], told["id"]) == ("pets", "mine")
    by_name = {one["name"]: one for one in told["outputs"]}
    labels = by_name["label"]["data"]
    assert by_name["class"]["data"] == [CLASSES[label] for label in labels]
    assert by_name["values"]["shape"] == [3, 3]
    values = np.array(by_name["values"]["data"]).reshape(3, 3)
    assert values.argmax(axis=1).tolist() == labels
    assert len({tuple(row) for row in values.tolist()}) == 3  # equal rows, each with noise of its own
    assert (reply.headers["airlock-units"], reply.headers["airlock-units-left"]) == ("3", "17")
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert shop.spent == 3


def test_outputs_can_be_chosen_and_images_sent_as_bytes(shop: Shop) -> None:
    body = question(1, datatype="UINT8", data=[255, 0, 255, 255], shape=[1, *SHAPE])
    told = shop.ask(body | {"outputs": [{"name": "label"}]}).json()
    assert [one["name"] for one in told["outputs"]] == ["label"]
    assert told["outputs"][0]["data"][0] in (0, 1, 2)


def test_an_exhausted_budget_answers_nothing_and_charges_nothing(shop: Shop) -> None:
    assert shop.ask(question(18)).status_code == 200
    told = check_problem(shop.ask(question(3)), 403, "exhausted")
    assert "2 units" in told["expected"]
    assert shop.spent == 18
    assert shop.ask(question(2)).status_code == 200
    check_problem(shop.ask(question(1)), 403, "exhausted")
    assert shop.spent == 20
    assert shop.answerer.cancelled == 2


def test_noise_is_drawn_after_the_charge_and_for_nothing_else(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    answer = shop.answerer.answer

    def watched(x: Any, reservation: Any, stream: Any) -> Any:
        seen.append((len(x), shop.spent))
        return answer(x, reservation, stream)

    monkeypatch.setattr(shop.answerer, "answer", watched)
    shop.ask(question(2), Idempotency_Key="k")
    shop.ask(question(2), Idempotency_Key="k")
    check_problem(shop.ask(question(19)), 403, "exhausted")
    check_problem(shop.ask(question(1), token=shop.admin), 403, "not-allowed")
    shop.ask(question(3))
    assert seen == [(2, 2), (3, 5)]


def test_a_quota_is_the_clients_own(shop: Shop) -> None:
    assert shop.service.keys is not None
    token = shop.service.keys.add("bob", 2)[1]
    assert shop.ask(question(2), token).status_code == 200
    told = check_problem(shop.ask(question(1), token), 403, "exhausted")
    assert "this client's quota" in told["expected"]
    assert shop.look("/budget", token).json() | {"unit": ""} == {
        "model": "pets", "release": "0" * 32, "client": "bob", "unit": "", "limit": 2, "spent": 2, "left": 0,
    }  # fmt: skip
    whole = shop.look("/budget", shop.admin).json()
    assert (whole["client"], whole["limit"], whole["spent"], whole["left"]) == (None, 20, 2, 18)


def test_an_idempotency_key_replays_the_same_answer_free(shop: Shop) -> None:
    first = shop.ask(question(2) | {"id": "one"}, Idempotency_Key="k")
    again = shop.ask(question(2) | {"id": "two"}, Idempotency_Key="k")
    assert first.json()["outputs"] == again.json()["outputs"]
    assert again.json()["id"] == "two"
    assert (again.headers["airlock-units"], again.headers["airlock-replayed"]) == ("0", "true")
    assert shop.spent == 2
    check_problem(shop.ask(question(2, value=0.25), Idempotency_Key="k"), 409, "key-reused")
    check_problem(shop.ask(question(2), Idempotency_Key="k" * 256), 400, "bad-request")
    assert shop.ask(question(2)).json()["outputs"] != first.json()["outputs"]
    assert shop.spent == 4


def test_an_answer_that_cannot_be_stored_is_sent_and_says_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: nothing told the client that repeating the request would be charged again, with other noise."""
    keeps = Ledger.submit_keep
    assert "airlock-stored" not in shop.ask(question(2)).headers
    for error in (LedgerUnavailable("x", "y"), LedgerUnavailable("x", "y", uncertain=True), LedgerBroken("x", "y")):

        def fails(*told: object, error: Exception = error) -> Future[bool]:
            made = Future[bool]()
            made.set_exception(error)
            return made

        monkeypatch.setattr(Ledger, "submit_keep", fails)
        first = shop.ask(question(2), Idempotency_Key=str(id(error)))
        assert (first.status_code, first.headers["airlock-units"]) == (200, "2")
        assert first.headers["airlock-stored"] == "false"
        check_problem(shop.ask(question(2), Idempotency_Key=str(id(error))), 409, "key-reused")
    assert shop.spent == 8
    monkeypatch.setattr(Ledger, "submit_keep", keeps)
    headers = [shop.ask(question(2), Idempotency_Key="k").headers for _ in range(2)]
    assert [(one["airlock-replayed"], one["airlock-stored"]) for one in headers] == [
        ("false", "true"),
        ("true", "true"),
    ]
    shop.answerer.held = 2  # an earlier payment covers it: it is not stored
    assert shop.ask(question(2), Idempotency_Key="free").headers["airlock-stored"] == "false"


def test_a_key_replays_also_where_nothing_is_left_to_pay(shop: Shop) -> None:
    first = shop.ask(question(2), Idempotency_Key="k")
    shop.answerer.held = 4
    again = shop.ask(question(2), Idempotency_Key="k")
    assert again.json() == first.json()
    check_problem(shop.ask(question(1), Idempotency_Key="k"), 409, "key-reused")
    assert shop.answerer.held == 4
    assert shop.ask(question(2), Idempotency_Key="new").headers["airlock-replayed"] == "false"
    assert shop.answerer.held == 2


def test_what_was_paid_before_is_not_paid_again(shop: Shop) -> None:
    shop.answerer.held = 4
    assert shop.ask(question(3)).headers["airlock-units"] == "0"
    assert shop.spent == 0
    assert shop.ask(question(3)).headers["airlock-units"] == "2"  # one of them was held, so two for three rows
    assert shop.spent == 2


@pytest.mark.parametrize("options", [{"units": 2}])
def test_what_was_set_aside_is_free_again_after_a_refusal(shop: Shop) -> None:
    shop.answerer.held = 1
    check_problem(shop.ask(question(4)), 403, "exhausted")
    assert shop.answerer.held == 1


def test_an_answer_that_fails_stays_charged_and_tells_nothing(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    shop.answerer.fails = True
    reply = shop.ask(question(2, value=0.12345))  # more digits than the log's times have
    check_problem(reply, 500, "failed")
    assert shop.spent == 2
    seen = reply.text + "".join(capfd.readouterr())
    assert "secret" not in seen
    assert "0.1234" not in seen
    assert "Traceback" not in seen


def test_keys(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.service.keys is not None
    check_problem(shop.web.post(INFER, json=question()), 401, "no-key")
    reply = shop.ask(token="airlock_000000000000_" + "x" * 43)
    check_problem(reply, 401, "unknown-key")
    assert reply.headers["www-authenticate"].startswith("Bearer")
    check_problem(shop.ask(token=shop.admin), 403, "not-allowed")
    brief = shop.service.keys.add("bob", expires=datetime.now(UTC) + timedelta(hours=1))[1]
    assert shop.ask(token=brief).status_code == 200
    with monkeypatch.context() as later:
        then = shop.service.ledger.now() + 3_600_001
        later.setattr(Ledger, "now", lambda _: then)
        check_problem(shop.ask(token=brief), 401, "expired-key")  # at once, though it was believed
    now = 1000.0
    monkeypatch.setattr("airlock.serve.access.time", SimpleNamespace(monotonic=lambda: now))
    bob = shop.service.keys.add("bob")[1]
    assert shop.ask(token=bob).status_code == 200
    shop.service.keys.revoke("bob")
    now = 1000.99
    assert shop.ask(token=bob).status_code == 200  # for a second a key is believed
    now = 1001.0
    check_problem(shop.ask(token=bob), 401, "unknown-key")
    assert shop.spent == 3


def test_who_may_look(shop: Shop) -> None:
    check_problem(shop.web.get("/budget"), 401, "no-key")
    check_problem(shop.web.get("/metrics"), 401, "no-key")
    check_problem(shop.look("/metrics", shop.token), 403, "not-allowed")
    shop.ask(question(2))
    text = shop.look("/metrics", shop.admin).text
    assert 'airlock_budget_units{state="spent"} 2.0' in text
    assert "airlock_rows_answered_total 2.0" in text
    assert 'airlock_requests_total{route="/v2/models/{name}/infer",status="200"} 1.0' in text


def test_pages(shop: Shop) -> None:
    card = shop.web.get("/card")
    assert card.content == CARD
    budget = shop.web.get("/budget", auth=("", shop.token), headers={"Accept": "text/html,*/*;q=0.8"})
    assert "20 units are left" in budget.text
    docs = shop.web.get("/docs")
    for _, path, _, _ in ROUTES:
        assert path in docs.text
    front = shop.web.get("/")
    assert all(f'href="{path}"' in front.text for path in ("/card", "/docs", "/budget"))
    for page in (card, budget, docs, front):
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text.replace("http://www.w3.org", "")
        assert "https://" not in page.text
    asked = shop.web.get("/budget", headers={"Accept": "text/html"})
    assert asked.headers["www-authenticate"].startswith("Basic")
    refused = shop.web.post(INFER, json=question(), auth=("", shop.token))
    check_problem(refused, 401, "no-key")  # a browser's password looks and never spends


def test_head_options_and_wrong_methods(shop: Shop) -> None:
    head = shop.web.head("/card")
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(CARD)))
    options = shop.web.options(INFER)
    assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")
    reply = shop.web.delete("/budget")
    check_problem(reply, 405, "wrong-method")
    assert reply.headers["allow"] == "GET, HEAD, OPTIONS"
    check_problem(shop.web.get("/nowhere"), 404, "not-found")
    check_problem(shop.web.get("/v2/models/other"), 404, "not-found")
    assert shop.web.head(INFER).status_code == 405


@pytest.mark.parametrize("options", [{"body_bytes": 300, "rows": 4}])
def test_bodies_that_are_too_large(shop: Shop) -> None:
    reply = shop.ask(b" " * 301)
    check_problem(reply, 413, "too-large")

    def parts() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * 100

    headers = {"Authorization": f"Bearer {shop.token}", "Content-Type": "application/json"}
    check_problem(shop.web.post(INFER, content=parts(), headers=headers), 413, "too-large")
    check_problem(shop.ask(question(5, data=[0.0] * 20)), 422, "wrong-inputs")
    assert shop.spent == 0


def test_other_formats(shop: Shop) -> None:
    for changes in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}):
        headers = {"Authorization": f"Bearer {shop.token}", "Content-Type": "application/json"} | changes
        check_problem(shop.web.post(INFER, content=b"{}", headers=headers), 415, "wrong-type")


def test_a_ledger_that_fails(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:
        def submit(*_: object) -> None:
            raise error

        return submit

    monkeypatch.setattr(Ledger, "submit", fail(LedgerUnavailable("/a/path", "x", uncertain=True)))
    told = check_problem(shop.ask(), 503, "uncertain")
    assert "may have been made" in told["why"]
    assert "same Idempotency-Key" in told["do"]
    assert "/a/path" not in json.dumps(told)
    monkeypatch.setattr(Ledger, "submit", fail(LedgerBroken("x", "y")))
    check_problem(shop.ask(), 503, "ledger-broken")
    monkeypatch.setattr(Ledger, "check_writable", fail(LedgerBroken("x", "y")))
    check_problem(shop.web.get("/v2/health/ready"), 503, "ledger-broken")
    assert shop.web.get("/v2/health/live").status_code == 200
    assert shop.answerer.cancelled == 2


def test_a_mark_that_cannot_be_written(shop: Shop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its disk is full: the client is told that it may have been charged, and repeating is charged once."""
    monkeypatch.setattr("airlock.serve.app._READY_SECONDS", 0.0)
    (folder / ".mark.part").mkdir()
    told = check_problem(shop.ask(question(2), Idempotency_Key="k"), 503, "uncertain")
    assert "may have been made" in told["detail"]
    assert shop.spent == 2
    again = check_problem(shop.ask(question(2), Idempotency_Key="k"), 503, "busy")
    assert "Nothing was charged" in again["why"]
    for path in ("/v2/health/ready", "/v2/models/pets/ready"):
        check_problem(shop.web.get(path), 503, "busy")
    assert "airlock_uncertain_charges_total 1.0" in shop.look("/metrics", shop.admin).text
    (folder / ".mark.part").rmdir()
    assert shop.web.get("/v2/health/ready").status_code == 200
    answers = [shop.ask(question(2), Idempotency_Key="k") for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 200]
    assert answers[0].json()["outputs"] == answers[1].json()["outputs"]
    assert shop.spent == 2


def test_readiness_is_tested_once_a_second(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks more often is told the same; nobody makes the disk busy without a key."""
    monkeypatch.setattr("airlock.serve.app._READY_SECONDS", LONG)
    tested: list[int] = []
    monkeypatch.setattr(Ledger, "check_writable", lambda _: tested.append(1))
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: shop.web.get("/v2/health/ready").status_code, range(16)))
    assert set(replies) == {200}
    assert tested == [1]


@pytest.mark.parametrize("options", [{"concurrent": 2, "connections": 8, "per_address": 8, "units": 100}])
def test_no_client_keeps_another_out(shop: Shop) -> None:
    """Of two turns one client gets one, of four requests at once two; what is free stays free for others."""
    assert shop.service.keys is not None
    bob = shop.service.keys.add("bob")[1]
    shop.answerer.go.clear()
    with ThreadPoolExecutor(3) as pool:
        try:
            first = [pool.submit(shop.ask)]
            wait_until(lambda: shop.spent == 1, "a request under way")
            first.append(pool.submit(shop.ask))
            wait_until(lambda: under_way(shop) == 2, "a second one, which waits")
            for _ in range(3):
                reply = shop.ask()
                told = check_problem(reply, 503, "busy")
                assert "of one client" in told["expected"]
                assert reply.headers["retry-after"] == "1"
            assert shop.spent == 1
            first.append(pool.submit(shop.ask, token=bob))
            wait_until(lambda: shop.spent == 2, "another client's request under way")
            assert shop.web.get("/v2/health/live").status_code == 200
        finally:
            shop.answerer.go.set()
        assert [one.result().status_code for one in first] == [200, 200, 200]
    assert shop.spent == 3


def under_way(shop: Shop) -> int:
    """How many requests there are besides this one."""
    lines = (line.split() for line in shop.look("/metrics", shop.admin).text.splitlines())
    return int(next(float(line[1]) for line in lines if line[0] == "airlock_requests_in_flight")) - 1


@pytest.mark.parametrize("options", [{"concurrent": 2}])
def test_a_client_that_leaves_while_it_waits_is_not_charged(shop: Shop) -> None:
    shop.answerer.go.clear()
    body = json.dumps(question()).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shop.token}\r\n"
    lines = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shop.ask)
        wait_until(lambda: shop.spent == 1, "a request under way")
        with socket.create_connection((shop.web.base_url.host, shop.web.base_url.port or 0), LONG) as gone:
            gone.sendall((head + lines).encode() + body)
            wait_until(lambda: under_way(shop) == 2, "a second one, which waits")
        shop.answerer.go.set()
        assert first.result().status_code == 200
    wait_until(lambda: under_way(shop) == 0, "the end of both")
    assert shop.spent == 1


def test_wrong_tokens_are_slowed_down_and_valid_ones_are_not(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("airlock.serve.access.time", SimpleNamespace(monotonic=lambda: now))
    real, unknown = shop.token[:-1] + ("A" if shop.token[-1] != "A" else "B"), "airlock_000000000000_" + "x" * 43
    for count in range(11):
        check_problem(shop.ask(token=(real, unknown)[count % 2]), 401, "unknown-key")
    waits, told = [], []
    for wrong in (real, unknown, "nothing like it", real):
        reply = shop.ask(token=wrong)
        told.append(check_problem(reply, 429, "too-many-attempts") | {"instance": ""})
        waits.append(int(reply.headers["retry-after"]))
    assert waits == [4, 8, 16, 32]
    assert told == told[:1] * 4  # which part is wrong is not said
    assert shop.ask().status_code == 200  # a valid key from the same address, at once
    check_problem(shop.look("/budget", real), 429, "too-many-attempts")
    now += 64
    check_problem(shop.ask(token=real), 401, "unknown-key")  # the time is up
    check_problem(shop.ask(token=real), 429, "too-many-attempts")
    now += 1000
    check_problem(shop.ask(token=real), 401, "unknown-key")  # forgotten
    assert shop.spent == 1


def test_wrong_tokens_take_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airlock.serve.access.time", SimpleNamespace(monotonic=lambda: 0.0))
    wrong = WrongTokens()
    waits = [wrong.add("a") for _ in range(60)]
    assert max(waits) == 300.0
    for number in range(5000):
        assert wrong.add(str(number)) == 0.0
    assert wrong.add("a") == 0.0  # forgotten: others came


@pytest.mark.parametrize("options", [{"units": None}])
def test_answers_that_cost_nothing_are_gathered(shop: Shop) -> None:
    shop.answerer.held = 1000  # a free answerer reserves nothing
    shop.answerer.seconds = 0.02
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda rows: shop.ask(question(rows)), [1, 2, 3, 1, 2, 3]))
    assert [reply.json()["outputs"][0]["shape"] for reply in replies] == [[1], [2], [3], [1], [2], [3]]
    assert shop.look("/budget", shop.token).json()["left"] is None
    page = shop.web.get("/budget", auth=("", shop.token), headers={"Accept": "text/html"}).text
    assert "are free" in page


@pytest.mark.parametrize("options", [{"keys": False}])
def test_without_keys_only_this_machine_asks(shop: Shop) -> None:
    shop.service.ledger.set_quota("local", None)
    assert shop.web.post(INFER, json=question()).status_code == 200
    assert shop.web.get("/budget").json()["spent"] == 1
    rebound = shop.web.post(INFER, json=question(), headers={"Host": "evil.example:8080"})
    check_problem(rebound, 403, "not-allowed")


def test_the_log_names_who_and_how_much_and_no_inputs(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    shop.ask(question(2, value=0.321), Idempotency_Key="my-own-affair")
    said: list[str] = []

    def whole() -> bool:
        said.append(capfd.readouterr().err)
        return said[-1].endswith("\n")

    wait_until(whole, "a line of log")  # it is written once the answer is on its way
    line = json.loads("".join(said).splitlines()[-1])
    assert set(line) == {"time", "route", "request_id", "status", "client", "rows", "units", "ms"}
    assert (line["client"], line["rows"], line["units"], line["status"]) == ("ann", 2, 2, 200)
    del line["time"]  # a thousandth of a second may well be the 321st
    assert "0.321" not in json.dumps(line)
    assert "my-own-affair" not in json.dumps(line)


def test_on_postgresql(new_database: Callable[[], str], folder: Path) -> None:
    answerer = Priced(5)
    place = new_database()
    with Ledger.open(place, folder / "mark", terms_of(RELEASE, answerer.interface)) as ledger:
        service = Service("pets", RELEASE, "test", CARD, answerer, ledger, KeyStore(ledger))
        with running(service) as where, httpx.Client(base_url=where, timeout=LONG) as web:
            shop = Shop(service, web)
            first = shop.ask(question(2), Idempotency_Key="k")
            assert shop.ask(question(2), Idempotency_Key="k").json() == first.json()
            assert shop.ask(question(3)).status_code == 200
            check_problem(shop.ask(question(1)), 403, "exhausted")
            assert shop.look("/budget", shop.admin).json()["left"] == 0

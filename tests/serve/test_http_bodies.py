"""Bodies that nobody should send: each is refused with a problem, charges nothing, and is not repeated."""

from __future__ import annotations

import copy
import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airlock.serve.problems import Problem
from airlock.serve.protocol import parse_json, read_query
from tests import chance
from tests.serve.selling import SHAPE, Priced, make, question, running
from tests.waiting import LONG

INTERFACE = Priced(1000).interface
VALID = json.dumps(question(2)).encode()


def read(content: bytes) -> Any:
    return read_query(parse_json(content), INTERFACE, 4, "pets")


def refused(content: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        read(content)
    assert caught.value.status in (400, 422)
    return caught.value


def changed(path: list[Any], value: Any) -> bytes:
    body = copy.deepcopy(question(2))
    place: Any = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"1", b"null", b"{", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"inputs": NaN}', b"nan", b"{}",
        b'{"inputs": []}', VALID + b"x", VALID.replace(b"0.5", b"NaN", 1), VALID.replace(b"0.5", b"Infinity", 1),
        VALID.replace(b"0.5", b"1e999", 1), VALID.replace(b"0.5", b"1e39", 1), VALID.replace(b"0.5", b"9" * 400, 1),
        VALID.replace(b"0.5", b"9" * 5000, 1), VALID.replace(b"0.5", b'"0.5"', 1), VALID.replace(b"0.5", b"true", 1),
        VALID.replace(b"0.5", b"null", 1), VALID.replace(b"0.5", b"[0.5]", 1), VALID.replace(b"0.5", b"{}", 1),
        VALID.replace(b'"inputs"', b'"inputs": [], "inputs"', 1),
        VALID.replace(b'"name"', b'"name": "input", "name"', 1),
        VALID.replace(b'"name"', b'"n\\u0061me": "input", "name"', 1),
        VALID.replace(b'"name"', b'"parameters": {"a": {"b": 1, "b": 2}}, "name"', 1),
        b"[" * 100_000, b"[" * 150 + b"]" * 150, b'{"a":' * 100_000, b'{"inputs":' + b"[" * 190 + b"]" * 190 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_request(content: bytes) -> None:
    refused(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["inputs", 0, "name"], "other"), (["inputs", 0, "name"], 3), (["inputs", 0, "datatype"], "FP64"),
        (["inputs", 0, "datatype"], ["FP32"]), (["inputs", 0, "datatype"], "UINT8"), (["inputs", 0, "shape"], [2, 4]),
        (["inputs", 0, "shape"], [2, 1, 2, 2, 1]), (["inputs", 0, "shape"], [2.0, 1, 2, 2]),
        (["inputs", 0, "shape"], [True, 1, 2, 2]), (["inputs", 0, "shape"], [-1, 1, 2, 2]),
        (["inputs", 0, "shape"], [0, 1, 2, 2]), (["inputs", 0, "shape"], [5, 1, 2, 2]), (["inputs", 0, "shape"], []),
        (["inputs", 0, "shape"], [2**70, 1, 2, 2]), (["inputs", 0, "shape"], [1, 1, 2, 2]),
        (["inputs", 0, "data"], []), (["inputs", 0, "data"], "0.5"), (["inputs", 0, "data"], [0.5] * 7),
        (["inputs", 0, "data"], [[0.5] * 4] * 2), (["inputs", 0, "data"], [[[[0.5, 0.5]] * 2], [[[0.5]] * 2]]),
        (["inputs", 0, "more"], 1), (["more"], 1), (["id"], 5), (["id"], "x" * 256), (["outputs"], []),
        (["outputs"], [{"name": "label"}] * 2), (["outputs"], [{"name": "weights"}]), (["outputs"], [{}]),
        (["outputs"], ["label"]), (["parameters"], 1), (["outputs"], [{"name": ["label"]}]),
        (["inputs", 0, "parameters"], {"binary_data_size": 16}),
    ],
)  # fmt: skip
def test_what_does_not_fit(path: list[Any], value: Any) -> None:
    refused(changed(path, value))


def test_flat_and_nested_are_the_same_request() -> None:
    flat = json.dumps(question(2, data=[0.5] * 8)).encode()
    assert read(flat).digest == read(VALID).digest
    assert read(json.dumps(question(2, parameters={"content_type": "np"})).encode()).digest == read(VALID).digest
    assert read(json.dumps(question(2, value=0.25)).encode()).digest != read(VALID).digest
    assert read(changed(["outputs"], [{"name": "label"}])).digest != read(VALID).digest
    assert read(changed(["id"], "a: b: c")).digest == read(VALID).digest  # colons that follow no name


def test_pixels_are_shares_of_255() -> None:
    x = read(json.dumps(question(1, datatype="UINT8", data=[0, 51, 102, 255])).encode()).x
    assert x.shape == (1, *SHAPE)
    assert x.ravel().tolist() == pytest.approx([0, 0.2, 0.4, 1])
    for data in ([0, 51, 102, 256], [0, -1, 2, 3], [0, 0.5, 1, 2]):
        refused(json.dumps(question(1, datatype="UINT8", data=data)).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
PLACES = st.sampled_from(
    [["inputs"], ["inputs", 0], ["outputs"], ["id"], ["parameters"]]
    + [["inputs", 0, name] for name in ("name", "shape", "datatype", "data", "parameters")]
    + [["inputs", 0, "shape", 0], ["inputs", 0, "data", 0], ["inputs", 0, "data", 0, 0, 0, 0]]
)


@settings(max_examples=300)
@given(path=PLACES, value=JSON)
def test_anything_anywhere_is_answered_or_refused(path: list[Any], value: Any) -> None:
    try:
        query = read(changed(path, value))
    except Problem as problem:
        assert problem.status in (400, 422)
    else:
        assert query.x.shape[1:] == SHAPE
        assert 1 <= len(query.x) <= 4
        assert all(math.isfinite(number) for number in query.x.ravel().tolist())


@settings(max_examples=300)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), st.integers(0, len(VALID)))
def test_any_bytes_are_answered_or_refused(junk: bytes, where: int) -> None:
    for content in (junk, VALID[:where] + junk + VALID[where:], VALID[:where] + junk):
        try:
            read(content)
        except Problem as problem:
            assert problem.status in (400, 422)


@settings(max_examples=200)
@given(st.recursive(st.integers(), lambda inner: st.lists(st.tuples(st.sampled_from("ab:"), inner), max_size=4)))
def test_a_name_twice_is_found_at_any_depth(tree: Any) -> None:
    def write(node: Any) -> str:
        if not isinstance(node, list):
            return str(node)
        inside = ",".join(f'"{n}":{write(v)}' for n, v in node)
        return f"{{{inside}}}"

    def twice(node: Any) -> bool:
        if not isinstance(node, list):
            return False
        return len({n for n, _ in node}) < len(node) or any(twice(v) for _, v in node)

    if twice(tree):
        refused(write(tree).encode())
    else:
        assert parse_json(write(tree).encode()) is not None


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Any]]:
    service = make(tmp_path_factory.mktemp("bodies"), Priced(10**9))
    with service.ledger, running(service) as where:
        assert service.keys is not None
        yield where, service.keys.add("ann")[1], service


def test_bad_bodies_over_http_charge_nothing(shop: tuple[str, str, Any]) -> None:
    where, token, service = shop
    before = service.ledger.balance().spent
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with httpx.Client(base_url=where, headers=headers, timeout=LONG) as web:
        for content in (b"{", b"[" * 5000, changed(["inputs", 0, "name"], "seventeen")):
            reply = web.post("/v2/models/pets/infer", content=content)
            assert reply.status_code in (400, 422)
            assert "seventeen" not in reply.text
    assert service.ledger.balance().spent == before


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    service = make(tmp_path, Priced(10**9), body_seconds=0.5)
    with service.ledger, running(service) as where:
        assert service.keys is not None
        token = service.keys.add("ann")[1]
        host, port = where.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=LONG) as slow:
            slow.sendall(
                f"POST /v2/models/pets/infer HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
                "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
            )
            reply = b""
            while part := slow.recv(4096):  # the service says why, and closes
                reply += part
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"problem:too-slow" in reply


def test_clients_that_go_away(shop: tuple[str, str, Any]) -> None:
    where, token, service = shop
    host, port = where.removeprefix("http://").split(":")
    known = httpx.get(f"{where}/budget", headers={"Authorization": f"Bearer {token}"}, timeout=LONG)
    assert known.status_code == 200  # and whatever looks keys up has started
    before, threads = service.ledger.balance().spent, own_threads()
    for _ in range(5):
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(
                f"POST /v2/models/pets/infer HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
                "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
            )
    assert httpx.get(f"{where}/v2/health/live", timeout=LONG).status_code == 200
    assert service.ledger.balance().spent == before
    assert own_threads() <= threads


def own_threads() -> set[str]:
    """Without the event loop's pool, which starts its threads as they are needed and keeps them."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@pytest.mark.hypothesis
def test_the_service_keeps_to_its_own_description(shop: tuple[str, str, Any]) -> None:
    where, token, _ = shop
    described = schemathesis.openapi.from_url(f"{where}/openapi.json", timeout=LONG)

    checks = schemathesis.checks
    excluded = [checks.ignored_auth, checks.positive_data_acceptance]  # it authenticates; see below
    settled = settings(max_examples=chance.scaled(10), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    statuses = set()

    def conforms(case: schemathesis.Case) -> None:
        if "name" in case.path_parameters:
            case.path_parameters["name"] = "pets"
        if case.operation.body and case.meta.generation.mode == schemathesis.GenerationMode.POSITIVE:
            tensor = case.body["inputs"][0]  # JSON Schema cannot say that data are as many as the shape says
            tensor["data"] = [0] * int(math.prod(tensor["shape"]))
        reply = case.call(headers={"Authorization": f"Bearer {token}"}, timeout=LONG)
        assert reply.status_code < 500, reply.text
        case.validate_response(reply, excluded_checks=excluded)
        statuses.add(reply.status_code)

    for operation in (found.ok() for found in described.get_all_operations()):
        modes = list(schemathesis.GenerationMode) if operation.body else [schemathesis.GenerationMode.POSITIVE]
        for mode in modes:  # the other mode sends what the description forbids
            settled(given(operation.as_strategy(generation_mode=mode))(conforms))()
    assert {200, 403} < statuses

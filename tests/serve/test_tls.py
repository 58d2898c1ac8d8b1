"""TLS: files that are checked at the start, what is spoken, and a certificate that is replaced while it serves."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from airlock.cli import app
from airlock.errors import ConfigError
from airlock.serve.run import check_address
from airlock.serve.tls import load_tls
from tests.serve.selling import Priced, make, question, running, running_server
from tests.waiting import LONG, wait_until

NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])


def issue(folder: Path, name: str = "tls", password: bytes = b"") -> tuple[Path, Path]:
    """A certificate for this machine by its own hand, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(NAME, NAME, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    signed = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
    return files


def test_answers_over_tls(folder: Path) -> None:
    certificate, key = issue(folder)
    trusting = ssl.create_default_context(cafile=str(certificate))
    service = make(folder, Priced(5))
    with service.ledger, running(service, tls=lambda: load_tls(certificate, key)) as where:
        assert service.keys is not None
        token = service.keys.add("ann")[1]
        assert where.startswith("https://")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with httpx.Client(base_url=where, verify=trusting, timeout=LONG) as web:
            for _ in range(2):
                reply = web.post("/v2/models/pets/infer", content=json.dumps(question()), headers=headers)
                assert reply.status_code == 200
        assert reply.headers["strict-transport-security"] == "max-age=31536000"
        host, port = where.removeprefix("https://").split(":")
        for version, spoken in ((ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, "TLSv1.2")):
            trusting.maximum_version = version
            raw = socket.create_connection((host, int(port)), LONG)
            with trusting.wrap_socket(raw, server_hostname=host) as one:
                assert one.version() == spoken
                assert "GCM" in str(one.cipher()) or "CHACHA20" in str(one.cipher())
        with socket.create_connection((host, int(port)), LONG) as plain:  # HTTP is not spoken here
            plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"200" not in plain.recv(4096)


def test_half_a_handshake_is_counted_dropped_and_timed(folder: Path) -> None:
    certificate, key = issue(folder)
    trusting = ssl.create_default_context(cafile=str(certificate))
    service = make(folder, Priced(5), connections=8, per_address=8, header_seconds=1.0)
    with service.ledger, running(service, tls=lambda: load_tls(certificate, key)) as where:
        host, port = where.removeprefix("https://").split(":")
        halves = [socket.create_connection((host, int(port)), LONG) for _ in range(20)]
        for one in halves[::2]:
            with contextlib.suppress(OSError):
                one.sendall(b"\x16\x03\x01\x02\x00\x01")
        with httpx.Client(base_url=where, verify=trusting, timeout=LONG) as web:
            wait_until(lambda: live(web), "an answer")
        for one in halves:
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
            one.close()


def live(web: httpx.Client) -> bool:
    """Whether it answers; on a busy machine this client's own handshake may come too late."""
    with contextlib.suppress(httpx.TransportError):
        return web.get("/v2/health/live").status_code == 200
    return False


def test_a_certificate_is_replaced_without_a_restart(folder: Path, tmp_path: Path) -> None:
    certificate, key = issue(folder)
    service = make(folder, Priced(5))
    with service.ledger, running_server(service, tls=lambda: load_tls(certificate, key)) as (server, where):
        host, port = where.removeprefix("https://").split(":")

        def shown() -> str:
            return ssl.get_server_certificate((host, int(port)))

        assert shown() == certificate.read_text()
        before, (new, new_key) = certificate.read_text(), issue(tmp_path)
        certificate.write_text("nothing")
        server.ask_for_reload()
        wait_until(lambda: not server._reload, "the files read again")
        assert shown() == before  # what cannot be read replaces nothing
        certificate.write_bytes(new.read_bytes())
        key.write_bytes(new_key.read_bytes())
        server.ask_for_reload()
        wait_until(lambda: shown() == new.read_text(), "the new certificate")


def test_files_that_cannot_be_used(folder: Path) -> None:
    certificate, key = issue(folder)
    other = issue(folder, "other")[1]
    hidden = issue(folder, "hidden", b"secret")[1]
    nothing = folder / "nothing.pem"
    nothing.write_text("nothing")
    wrong = [(certificate, None), (None, key), (certificate, other), (certificate, hidden), (nothing, key)]
    wrong += [(certificate, nothing), (folder / "none", key), (certificate, folder), (key, certificate)]
    for one in wrong:
        with pytest.raises(ConfigError):
            load_tls(*one)
    assert load_tls(None, None) is None
    run = CliRunner().invoke(app, ["serve", str(folder), "--tls-cert", str(certificate)])
    assert run.exit_code == 2
    assert "no --tls-key" in run.output


def test_others_reach_it_by_tls_or_by_a_decision() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(host, keys=False, tls=False, plain=False)
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        check_address(host, keys=True, tls=True, plain=False)
        check_address(host, keys=True, tls=False, plain=True)
        with pytest.raises(ConfigError, match="--plain-http"):
            check_address(host, keys=True, tls=False, plain=False)
        with pytest.raises(ConfigError, match="--no-keys"):
            check_address(host, keys=False, tls=True, plain=True)

"""What stands in deploy/: the files parse, every command in them exists, and their limits are the service's own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from airlock.cli import app
from airlock.serve.service import ServiceLimits
from tests.serve.test_tls import issue

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
UNIT = (DEPLOY / "airlock.service").read_text("utf-8")
NGINX = (DEPLOY / "nginx.conf").read_text("utf-8")


def options(words: list[str]) -> dict[str, Any]:
    """The options of a command as `airlock` itself parses them."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert words[0] in commands
    with commands[words[0]].make_context(words[0], words[1:]) as context:
        parsed: dict[str, Any] = context.params
    return parsed


def test_the_container_serves_the_mounted_bundle() -> None:
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    words = {line.split()[0]: line.partition(" ")[2] for line in lines if line and not line.startswith(("#", " "))}
    assert json.loads(words["ENTRYPOINT"]) == ["airlock"]
    for command in (json.loads(words["CMD"]), COMPOSE["services"]["service"]["command"]):
        parsed = options(command)
        assert (parsed["host"], str(parsed["port"]), parsed["plain_http"]) == ("0.0.0.0", words["EXPOSE"], True)
        assert str(parsed["bundle"]) in {v.split(":")[1] for v in COMPOSE["services"]["service"]["volumes"]}
    assert words["USER"] != "root"


def test_the_database_and_the_service_are_not_published() -> None:
    services = COMPOSE["services"]
    assert [name for name, one in services.items() if "ports" in one] == ["proxy"]
    assert all("/" not in one.get("image", "") for one in services.values())
    assert COMPOSE["networks"]["inside"]["internal"]
    assert services["service"]["networks"] == services["database"]["networks"] == ["inside"]
    for one in services.values():
        for mounted in one.get("volumes", ()):
            source = mounted.split(":")[0]
            assert source in COMPOSE["volumes"] or source in ("./nginx.conf", "./tls", "./bundle", "./vault")


def test_the_proxy_has_the_limits_of_the_service(tmp_path: Path) -> None:
    limits = ServiceLimits()
    assert f"client_max_body_size {limits.body_bytes >> 20}m;" in NGINX
    assert f"client_body_timeout {limits.body_seconds:g}s;" in NGINX
    assert f"client_header_timeout {limits.header_seconds:g}s;" in NGINX
    assert NGINX.count("{") == NGINX.count("}")
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    certificate, key = issue(tmp_path)
    here = {"service:8080": "127.0.0.1:8080", "/etc/nginx/tls/cert.pem": certificate, "/etc/nginx/tls/key.pem": key}
    text = NGINX
    for there, local in here.items():
        assert there in text
        text = text.replace(there, str(local))
    (tmp_path / "nginx.conf").write_text(text)
    run = subprocess.run(["nginx", "-t", "-c", str(tmp_path / "nginx.conf")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_unit_starts_a_service_with_tls(tmp_path: Path) -> None:
    command = re.search(r"^ExecStart=(.*)$", UNIT, re.M)
    assert command is not None
    program, *words = shlex.split(command[1].replace("%d", "/run/credentials"))
    parsed = options(words)
    assert parsed["tls_cert"] is not None
    assert parsed["tls_key"] is not None
    assert not parsed["plain_http"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "airlock.service"
    unit.write_text(UNIT.replace(program, sys.executable))
    run = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_page_goes_through_all_of_it() -> None:
    page = (ROOT / "docs/serve.md").read_text("utf-8")
    for file in DEPLOY.iterdir():
        assert f"deploy/{file.name}" in page or file.suffix == ".dockerignore"

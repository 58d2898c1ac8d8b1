"""`airlock export`: what it writes, and what it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from airlock.auditing import Audit
from airlock.bundle import Bundle, Card, Dossier, Vault
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.rendering.page import keep_dossier
from airlock.bundle.reports import write
from airlock.cli import app
from airlock.errors import ConfigError, OutputError
from airlock.methods.contract import Release
from tests.bundle.conftest import ATTACK, AUDIT, INSIDE


def test_what_does_not_go_together_is_refused(card: Card, dossier: Dossier, original: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="public"):
        write(tmp_path / "entry.json", "registry", card, dossier)
    with pytest.raises(ConfigError, match="dossier for 'sacro'"):
        write(tmp_path / "sacro", "sacro", card)
    with pytest.raises(ConfigError, match="one of dpia"):
        write(tmp_path / "x.md", "gdpr", card)
    with pytest.raises(ConfigError, match="fill in"):
        write(tmp_path / "x.md", "dpia", card, filled_in={"a": 1})
    with pytest.raises(OutputError, match="outside a bundle"):
        write(original.folder / "dpia.md", "dpia", card)
    assert not list(tmp_path.glob("*.md"))


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_on_the_command_line(original: Bundle, release: Release, vault: Vault, tmp_path: Path) -> None:
    keep_dossier(vault, make_dossier(original.card, release, AUDIT))
    public, inside = tmp_path / "dpia.md", tmp_path / "inside.html"
    assert run("export", original.folder, "--as", "dpia", "--out", public).exit_code == 0
    assert "gradient norm" not in public.read_text()
    kept = run("export", original.folder, "--as", "dpia", "--out", inside, "--with-dossier")
    assert "STAYS INSIDE" in kept.stdout
    assert "gradient norm" in inside.read_text()
    assert inside.stat().st_mode & 0o777 == 0o600
    line = ("export", original.folder, "--as", "registry", "--out", tmp_path / "e.json", "--json")
    entry = run(*line, "-s", 'deployment.basic.data_curators=["A hospital"]')
    assert len(json.loads(entry.stdout)["files"]) == 2
    assert run("export", original.folder, "--as", "sacro", "--out", tmp_path / "sacro", "--with-dossier").exit_code == 0
    assert json.loads((tmp_path / "sacro/report.json").read_text())
    assert run("export", original.folder, "--as", "sacro", "--out", tmp_path / "other").exit_code == 2
    absent = run(
        "export",
        original.folder,
        "--as",
        "nist",
        "--out",
        tmp_path / "n.md",
        "--with-dossier",
        "--vault",
        tmp_path / "v",
    )
    assert absent.exit_code == 2


def test_neither_a_broken_bundle_nor_a_refuted_one_is_exported(
    folder: Path, original: Bundle, release: Release, vault: Vault, tmp_path: Path
) -> None:
    refuted = Audit(tuple(replace(one, epsilon_lower_bound=9.0) for one in (ATTACK, INSIDE)), ())
    keep_dossier(vault, make_dossier(original.card, release, refuted))
    found = run("export", folder, "--as", "registry", "--out", tmp_path / "e.json")
    assert (found.exit_code, "refutes" in found.stderr) == (1, True)
    assert run("export", folder, "--as", "dpia", "--out", tmp_path / "d.md", "--with-dossier").exit_code == 0
    (folder / "card.html").write_text("x")
    assert run("export", folder, "--as", "nist", "--out", tmp_path / "n.md").exit_code == 1
    assert not (tmp_path / "n.md").exists()
    assert not (tmp_path / "e.json").exists()

"""The site: it builds strictly and without a network, and what is made from the code lacks nothing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import warnings
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mkdocs.__main__
import pytest
import yaml
from click.testing import CliRunner

import airlock

ROOT = Path(__file__).resolve().parents[1]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
ROOMS = {file.parent.name for file in (ROOT / "airlock").glob("*/__init__.py")}
# Attributes by which a browser loads something without being asked to; a link (`a`) is followed by the reader.
LOADS = {"src", "srcset", "data", "poster", "action"}


def entries(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return {entry for below in (nav.values() if isinstance(nav, dict) else nav) for entry in entries(below)}  # type: ignore[attr-defined]


class Loaded(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADS or (tag == "link" and name == "href"):
                self.found.append(value or "")


def elsewhere(address: str) -> bool:
    return re.match(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", address, re.I) is not None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as the command builds it, in this process, which has imported what the reference is made from."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    line = ["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages; those of mkdocs are lines that it prints
        run = CliRunner().invoke(mkdocs.__main__.cli, line, env=nowhere)
    assert run.exit_code == 0, run.output
    assert "WARNING" not in run.output  # --quiet would have hidden them from --strict too
    return folder


def test_every_page_is_in_the_navigation_and_the_other_way_round() -> None:
    assert entries(SITE["nav"]) == PAGES


def test_every_test_that_the_threat_model_names_is_there() -> None:
    """A line of the threat model that names no test, or one that is gone, says something that nobody shows."""
    text = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    code = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    known = {name for one in code.values() for name in re.findall(r"^\s*(?:async )?def (test_\w+)", one, re.M)}
    paths = {str(path.relative_to(ROOT)) for path in code} | {path.name for path in code}
    named = [part for one in re.findall(r"`((?:tests/[\w/]*)?test_[\w.:]+)`", text) for part in one.split("::")]
    assert len(named) > 20
    assert [name for name in named if name not in known | paths] == []
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    shown = text[text.index("## Attackers") :]
    assert [row for row in rows if row in shown and not re.search("`(?:tests/|test_)|test$", row.strip("| "))] == []


def test_what_the_quick_start_shows_is_what_the_readme_runs() -> None:
    """README's commands and code are executed by tests/test_readme.py."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\w+\n(.*?)```", (ROOT / "docs/quick-start.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 4
    for line in "".join(blocks).splitlines():
        assert line in readme, line


def test_every_room_has_a_page_with_all_its_modules(site: Path) -> None:
    for room in ROOMS:
        page = (site / f"reference/rooms/{room}.html").read_text(encoding="utf-8")
        for file in (ROOT / "airlock" / room).rglob("*.py"):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            assert f'id="{name}"' in page or name == f"airlock.{room}", name


def test_nothing_that_is_made_from_the_code_is_left_out(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.search("<!-- (generated|docstring)", page.read_text(encoding="utf-8")), page


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        found = Loaded(page).found
        assert found
        assert not [address for address in found if elsewhere(address)], page
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)", sheet.read_text(encoding="utf-8"))
        assert not [address for address in addresses if elsewhere(address)], sheet


def test_a_script_from_elsewhere_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="https://a.example"></a><script src="//b.example/x.js"></script><link href="https://c.example">'
    )
    assert [address for address in Loaded(page).found if elsewhere(address)] == [
        "//b.example/x.js",
        "https://c.example",
    ]


def test_no_list_or_table_is_shown_as_a_paragraph(site: Path) -> None:
    """Python-Markdown wants an empty line before either; other readers do not, so that nobody would notice."""
    for page in site.rglob("*.html"):
        for paragraph in re.findall("<p>(.*?)</p>", page.read_text(encoding="utf-8"), re.S):
            assert not re.search(r"^\s*(?:[-*] |\d+\. |\| )", paragraph, re.M), (page.name, paragraph)


def test_every_name_of_the_front_door_is_in_the_reference(site: Path) -> None:
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    for name in airlock.__all__:
        assert f'id="airlock.{name}"' in page or name == "__version__", name


def test_every_key_of_a_policy_is_on_its_page(site: Path) -> None:
    from airlock.bundle import Policy

    page = (site / "policy.html").read_text(encoding="utf-8")
    parts = dict(re.findall(r'<h3 id="([^"]+)">(.*?)(?=<h[23]|\Z)', page, re.S))
    for name, section in Policy():
        for key, _ in section:
            assert f"<code>{key}</code>" in parts[name], f"{name}.{key}"


def test_every_key_of_every_method_is_in_the_reference(site: Path) -> None:
    from airlock.config import ReleaseConfig
    from airlock.methods import METHODS
    from airlock.methods.answers.per_query import PerQuerySettings
    from airlock.methods.student.private_teacher import PrivateTeacherSettings

    page = (site / "reference/config.html").read_text(encoding="utf-8")
    parts = dict(re.findall(r'<h3 id="([^"]+)">(.*?)(?=<h[23]|\Z)', page, re.S))
    for key in ReleaseConfig.model_fields:
        assert f"<code>{key}</code>" in parts["top-level"]
    for channel, methods in METHODS.items():
        for method in methods:
            assert "<td><code>" in parts[f"{channel}{method}"]
    for part, model in (("answersper-query", PerQuerySettings), ("studentprivate-teacher", PrivateTeacherSettings)):
        shown = re.findall(r"<tr>\s*<td><code>(\w+)</code>", parts[part])
        assert shown == list(model.model_fields)


def test_every_command_is_in_the_reference(site: Path) -> None:
    from typer.main import get_command

    from airlock.cli import app

    page = (site / "reference/cli.html").read_text(encoding="utf-8")
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for part in [name, *(f"{name} {below}" for below in getattr(command, "commands", {}))]:
            assert f"<code>airlock {part}</code>" in page, part


def test_the_page_on_scale_shows_what_its_rows_say() -> None:
    """Its tables and its plan are printed from the kept rows."""
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8").splitlines()
    place = ROOT / "docs/results/scale.py"
    spec = importlib.util.spec_from_file_location("results_of_scale", place)
    assert spec is not None
    assert spec.loader is not None
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    rows = [json.loads(line) for line in place.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    shown = [line for line in (*scale.tables(rows), *scale.plan(rows)) if line]
    assert len(shown) > 35
    assert [line for line in shown if line not in page] == []
    assert sum(line.startswith("|") for line in page) == len(shown)


def test_the_page_on_defaults_says_what_the_code_has() -> None:
    """Every constant on it exists, and has the value beside it."""
    page = (ROOT / "docs" / "results" / "defaults.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w.]+) \|", page, re.MULTILINE)
    assert len(rows) > 20
    for name, stated in rows:
        parts, place = name.split("."), ROOT / "airlock"
        while parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").is_file()):
            place /= parts.pop(0)
        found: Any = importlib.import_module(".".join(place.relative_to(ROOT).parts))
        for part in parts:
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
        assert found == float(stated), name

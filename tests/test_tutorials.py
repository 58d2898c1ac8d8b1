"""Every tutorial is followed as it stands, in an empty folder: its files are written, its commands and its code run."""

from __future__ import annotations

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from airlock.bundle.verify import verify
from airlock.cli import app
from tests.texts import reviews, tiny_encoder

PAGES = sorted((Path(__file__).resolve().parents[1] / "docs/tutorials").glob("*.md"))
ROWS = 2000


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def many_people(shown: str) -> str:
    """The table of the page, with as many rows as it speaks of; a partner's, which has no labels, as it is shown."""
    header, *rows = shown.splitlines()
    if header == "review,verdict":
        return "\n".join([header, *map(",".join, zip(*reviews(ROWS), strict=True))]) + "\n"
    if "label" not in header:
        return shown
    assert rows
    chance = np.random.default_rng(0)
    ages, hours = chance.integers(18, 90, ROWS), chance.integers(0, 80, ROWS)
    cities = chance.choice(["Basel", "Bern", "Chur"], ROWS)
    people = zip(ages, hours, cities, strict=True)
    return "\n".join([header, *(f"{a},{h},{c},{'yes' if a + h > 85 else 'no'}" for a, h, c in people)]) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with tiny_encoder(tmp_path / "wheel") if page.stem == "text" else nullcontext():
        follow(page, tmp_path)


def follow(page: Path, folder: Path) -> None:
    commands = []
    for language, text in blocks(page):
        first, _, rest = text.partition("\n")
        if first.startswith("# ") and "." in first:
            name = first.removeprefix("# ").strip()
            Path(name).write_text(many_people(rest) if language == "csv" else text)
        elif language == "sh":
            for line in text.splitlines():
                run = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
                assert run.exit_code == 0, f"{line}\n{run.output}"
                commands.append(line)
        else:
            exec(compile(text, page.name, "exec"), {"__name__": "__main__"})
    assert commands[0].startswith("airlock plan ")
    made = next(one for one in folder.iterdir() if one.name.endswith("-bundle"))
    assert verify(made).ok


def test_there_is_one_for_every_channel() -> None:
    from airlock.methods import METHODS

    assert {page.stem for page in PAGES} == {*METHODS, "own-data", "people", "regression", "text", "year"}

"""Running what is missing of a paper, keeping every run as a row, and writing the page.

    DIR/<paper>.jsonl   the rows, one per line, appended and synced as they come
    DIR/<paper>.md      the page, from the rows and the paper's template alone

The quick version has files of its own, <paper>-quick.

A trial that has a row is not run again, so an interrupted run goes on where it was. A line that was cut off by a crash
is left out, and its trial is run again.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import jinja2
import torch

from airlock._version import VERSION
from airlock.bundle.files import output_error, replace_file
from airlock.data.sources import named
from airlock.errors import ConfigError, OutputError
from airlock.reproduction import answers, features, student, twin, weights
from airlock.reproduction.paper import Found, Item, ItemResult, KeptRow, Paper, Workplace
from airlock.training import Run
from airlock.training.devices import choose_device

PAPERS = {paper.name: paper for paper in (weights.PAPER, twin.PAPER, student.PAPER, features.PAPER, answers.PAPER)}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Reproduced:
    """What a run left.

    Args:
        paper: Of which.
        page: Where the page is.
        rows: Where the rows are.
        shown: What each item shows, by its name.
        ran: How many trials were run this time.
        left: How many could not be run, because data are missing.
    """

    paper: Paper
    page: Path
    rows: Path
    shown: dict[str, ItemResult]
    ran: int
    left: int


def named_paper(name: str) -> Paper:
    """The paper of this channel.

    Raises:
        ConfigError: There is none.
    """
    if name not in PAPERS:
        raise ConfigError(
            f"a paper ({', '.join(PAPERS)})", f"'{name}'", do="`airlock reproduce list` says what is here."
        )
    return PAPERS[name]


def stem(paper: Paper, quick: bool) -> str:
    """What the files of a paper are called."""
    return f"{paper.name}-quick" if quick else paper.name


def chosen_items(paper: Paper, only: Sequence[str]) -> tuple[Item, ...]:
    """The items of these names, all of them if there are none.

    Raises:
        ConfigError: There is no such item.
    """
    known = {item.name: item for item in paper.items}
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"an item of '{paper.name}' ({', '.join(known)})", f"'{unknown[0]}'")
    return tuple(item for item in paper.items if not only or item.name in only)


def reproduce(
    name: str,
    out: Path,
    only: Sequence[str] = (),
    quick: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    run: Run | None = None,
    say: Say = lambda line: None,
) -> Reproduced:
    """Run what is missing of a paper's items, and write its page.

    Args:
        name: The paper, by its channel.
        out: The folder of rows and page.
        only: Names of items; all if empty.
        quick: The small version of every item.
        data_dir: The folder of the named data sets.
        device: "auto", "cpu" or "cuda".
        run: For its progress.
        say: Called with a line for each trial.
    """
    paper = named_paper(name)
    items = chosen_items(paper, only)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ConfigError("device auto, cpu or cuda", f"'{device}'")
    name = stem(paper, quick)
    place = Workplace(data_dir, replace(run or Run(), device=choose_device(device)))
    with _Rows(out, out / f"{name}.jsonl") as rows:
        wanted = list(dict.fromkeys(trial for item in items for trial in item.trials(quick)))
        missing = [trial for trial in wanted if trial.key not in rows.keys]
        here = {source for source in paper.sources if _is_here(source, data_dir)}
        able = [trial for trial in missing if dict(trial.settings).get("data") in {None, *here}]
        say(f"{paper.name}: {len(wanted)} trials, {len(wanted) - len(missing)} are kept, {len(able)} to run")
        for count, trial in enumerate(able, 1):
            begin = time.monotonic()
            figures = paper.experiments[trial.experiment](trial, place)
            seconds = round(time.monotonic() - begin, 1)
            rows.keep(KeptRow(trial, figures, _commit(), _device(place.run.device), seconds))
            words = ", ".join(f"{key} {value}" for key, value in trial.settings)
            say(f"{count}/{len(able)} {trial.experiment}: {words}, seed {trial.seed} ({seconds:g} s)")
        found = Found(tuple(rows.found), quick)
    page = out / f"{name}.md"
    replace_file(page, rendered(paper, found))
    shown = {item.name: _shown(item, found) for item in items}
    return Reproduced(paper, page, rows.path, shown, len(able), len(missing) - len(able))


def rendered(paper: Paper, found: Found) -> str:
    """The page of a paper, from rows alone."""
    folder = files("airlock.reproduction") / "templates"
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        loader=loader, autoescape=False, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    shown = {item.name: _shown(item, found) for item in paper.items}
    devices = sorted({row.device for row in found.rows})
    kept = {row.trial.key for row in found.rows}
    missing = {item.name: sum(trial.key not in kept for trial in item.trials(found.quick)) for item in paper.items}
    return environment.get_template(f"{paper.name}.md.j2").render(
        paper=paper,
        shown=shown,
        missing=missing,
        quick=found.quick,
        count=len(found.rows),
        devices=devices,
        rows=f"{stem(paper, found.quick)}.jsonl",
    )


def _shown(item: Item, found: Found) -> ItemResult:
    """What an item shows; small runs are compared with nothing."""
    result = item.show(found)
    if found.quick and item.trials(True) and result.status in ("reproduced", "differs"):
        return replace(result, status="in part", words="it runs; too small to compare")
    return result


class _Rows:
    """The file of rows: one process at a time appends to it."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path
        self.found: list[KeptRow] = []
        self.keys: set[str] = set()

    def __enter__(self) -> _Rows:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")
        except OSError as error:
            raise output_error(error, self.path) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise OutputError(
                f"nobody else to write {self.path}",
                "another run of this paper",
                do="Wait for it, or name another --out.",
            ) from error
        try:
            self._read()
        except OutputError:
            self._file.close()
            raise
        return self

    def __exit__(self, *how: object) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self._file.truncate(len(whole))  # cut off in the middle of a line
        for number, line in enumerate(whole.decode("utf-8", "replace").splitlines(), 1):
            try:
                self._add(KeptRow.from_json(line))
            except ValueError as error:
                raise OutputError(
                    f"a row in line {number} of {self.path}",
                    "something else",
                    do="Remove the line, or name another --out.",
                ) from error

    def keep(self, row: KeptRow) -> None:
        """Append a row, on the disk before this returns."""
        self._file.write(row.to_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._add(row)

    def _add(self, row: KeptRow) -> None:
        self.found.append(row)
        self.keys.add(row.trial.key)


def _commit() -> str:
    """The source's commit, "+" if it was changed on top; the version where there is no repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return VERSION
    try:
        line = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=9"]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=30).stdout.strip() or VERSION
    except (OSError, subprocess.SubprocessError):
        return VERSION


def _device(device: torch.device) -> str:
    """What computed: a GPU by its name, a CPU by its architecture; and torch's version."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
    return f"{name}, torch {torch.__version__.split('+')[0]}"


def _is_here(source: str, data_dir: Path | None) -> bool:
    known = named(source, data_dir)
    return known is not None and known[0].find(known[1]) is not None

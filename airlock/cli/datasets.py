"""`airlock datasets`: which data sets are found; and `airlock check`: what is in the way of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import DataDirOption, JsonOption, print_json, print_table, shown, translate_errors

if TYPE_CHECKING:
    from airlock.data import Listing
    from airlock.data.table_check import Obstacle


@translate_errors
def datasets(data_dir: Path | None = DataDirOption, as_json: bool = JsonOption) -> None:
    """List the named data sets, those of installed packages too: which are found, and how to get the missing ones."""
    from airlock.data import find_all

    found = find_all(data_dir)
    if as_json:
        print_json([_plain(entry) for entry in found])
        return
    rows = [
        [
            entry.source.name,
            _status(entry),
            f"{entry.records:,}",
            "" if entry.test_records is None else f"{entry.test_records:,}",
            str(len(entry.source.classes)),
            " × ".join(map(str, entry.source.shape)) if entry.source.text is None else "texts",
        ]
        for entry in found
    ]
    missing = [f"{entry.source.name}: {entry.problem or entry.source.get}" for entry in found if not entry.found]
    lines = ["How to get the missing ones:", *missing] if missing else []
    lines += [f"{entry.source.name} comes from {entry.source.package}." for entry in found if entry.source.package]
    footer = "\n".join(lines)
    print_table("Data sets", ["name", "status", "records", "test", "classes", "shape"], rows, footer)


def _status(entry: Listing) -> str:
    if entry.found:
        return f"found in {shown(entry.where)}" if entry.where else "built in"
    return "damaged" if entry.problem else "missing"


def _plain(entry: Listing) -> dict[str, Any]:
    return {
        "name": entry.source.name,
        "found": entry.found,
        "where": str(entry.where) if entry.where else None,
        "records": entry.records,
        "test_records": entry.test_records,
        "classes": len(entry.source.classes),
        "shape": list(entry.source.shape),
        "text": entry.source.text,
        "package": entry.source.package or None,
        "problem": entry.problem,
        "how_to_get": entry.source.get,
    }


FOR_THE_HOLDER = (
    "This was found by looking at the records: it is for your eyes alone, and nothing of it enters a release. Declare "
    "ranges and categories from what is known about such data, not from what is found here."
)


@translate_errors
def check(
    what: Path = typer.Argument(help="A config, or a CSV or Parquet file.", show_default=False),
    data_dir: Path | None = DataDirOption,
    as_json: bool = JsonOption,
) -> None:
    """List everything that is in the way of your own data, with a remedy each; for your eyes alone."""
    found = _look_at(what, data_dir)
    if as_json:
        print_json([one._asdict() for one in found])
        return
    rows = [[one.where, one.what, one.do] for one in found]
    title = "What is in the way" if rows else "Nothing is in the way"
    print_table(f"{title}: stays inside", ["where", "what", "what to do"], rows, FOR_THE_HOLDER)


def _look_at(what: Path, data_dir: Path | None) -> tuple[Obstacle, ...]:
    from airlock.config import load
    from airlock.data import load as load_data
    from airlock.data.table_check import Obstacle, check_table, is_table

    if is_table(what):
        return check_table(what)
    config = load(what)
    if is_table(Path(config.data.source)):
        return check_table(Path(config.data.source), config.data)
    return tuple(Obstacle("records", remark, "") for remark in load_data(config, data_dir).remarks)

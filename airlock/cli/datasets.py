"""`airlock datasets`: which data sets are found, which are missing, and how to get them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airlock.cli.terminal import DataDirOption, JsonOption, print_json, print_table, shown, translate_errors

if TYPE_CHECKING:
    from airlock.data import Listing


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
            " × ".join(map(str, entry.source.shape)),
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
        "package": entry.source.package or None,
        "problem": entry.problem,
        "how_to_get": entry.source.get,
    }

"""What is in the way of a table of one's own: every problem in one list, each with a remedy.

In: a CSV or Parquet file, and the declaration if there is one. Out: `Obstacle`s.

It looks at the records, so its findings are for the holder's eyes alone, as remarks are: no release calls it, and
nothing of it enters a config, a plan, a card or a bundle. A finding names columns and row numbers and counts cells; it
never quotes one. Whoever declares a range because of what is found here tells the world about the records: ranges and
categories are declared from what is known about such data.
"""

from __future__ import annotations

import csv
import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from airlock.config import Column, DataConfig
from airlock.data.limits import check_bytes, reading
from airlock.data.remarks import about_size
from airlock.data.tables import missing


class Obstacle(NamedTuple):
    """One problem: where it is, what it is, and what to do."""

    where: str
    what: str
    do: str


_TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_FILE = "the file"
_ROWS = 5  # named in a finding
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_KINDS = (  # in this order: the first that matches a cell is its kind
    ("number", _NUMBER),
    ("thousands", re.compile(r"[+-]?\d{1,3}([,'’ \u00a0\u202f]\d{3})+(\.\d+)?")),
    ("comma", re.compile(r"[+-]?\d+,\d+")),
    ("date", re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})([T ].*)?")),
    ("word", re.compile(r"n/?a|nan|null|none|missing|unknown|\?+|-+|\.", re.I)),
)
_MEANS_WHO = re.compile(r"(^|[\W_])(id|uuid|pid|ssn|email|name|person|patient|customer|client|user)s?($|[\W_])", re.I)
_ENOUGH = 20  # records, before all values being different says anything
_KEPT = 100_000  # values of a column that are compared with each other


def is_table(path: Path) -> bool:
    """Whether it is a file that `check_table` reads."""
    return path.is_file() and path.suffix.lower() in _TABLES


def check_table(path: Path, data: DataConfig | None = None) -> tuple[Obstacle, ...]:
    """Everything about a table that would be refused, left out or clamped, or that is probably not meant.

    Args:
        path: A CSV or Parquet file.
        data: What is declared about it; without it, the file alone is looked at.
    """
    with reading(path, "a table"):
        check_bytes(path, path.stat().st_size)
        found: list[Obstacle] = []
        parquet = path.suffix.lower() in (".parquet", ".pq")
        rows = _parquet_rows(path) if parquet else _csv_rows(path, found)
        header = next(rows, [])
        found += _about_header(header, data)
        columns = [_ColumnCells(name, _declared(name, data)) for name in header]
        count = _look(rows, columns, found)
        for column in columns:
            if data is None or column.name in _read(data):
                found += column.findings(data)
        if data is not None and data.records is not None:
            found += [Obstacle("records", one, "") for one in about_size("records", count, data.records)]
    return tuple(found)


def _look(rows: Iterator[list[str]], columns: Sequence[_ColumnCells], found: list[Obstacle]) -> int:
    """Show every row to its columns; how many there are."""
    count, misshapen = 0, list[int]()
    for count, row in enumerate(rows, 1):
        if len(row) != len(columns):
            misshapen.append(count)
            continue
        for column, cell in zip(columns, row, strict=True):
            column.add(count, cell.strip())
    if misshapen:
        found.append(Obstacle(_rows(misshapen), f"not {len(columns)} cells like the header", "Correct their quotes."))
    return count


def _csv_rows(path: Path, found: list[Obstacle]) -> Iterator[list[str]]:
    """The rows of a CSV file whatever separates its columns; the header first."""
    with path.open("rb") as raw:
        start = raw.read(4)
    wide = start[:2] in (b"\xff\xfe", b"\xfe\xff")
    if wide:
        found.append(Obstacle(_FILE, "it is UTF-16", "Save it as UTF-8."))
    encoding = "utf-16" if wide else "utf-8-sig"
    with path.open(encoding=encoding, errors="surrogateescape", newline="") as stream:
        first = stream.readline()
        counts = {one: first.count(one) for one in (",", *_SEPARATORS)}
        separator = max(counts, key=lambda one: counts[one])
        own = path.suffix.lower() == ".tsv" and separator == "\t"
        if separator in _SEPARATORS and not own:
            found.append(Obstacle(_FILE, f"{_SEPARATORS[separator]} between the columns", "Save it with commas."))
        stream.seek(0)
        rows = (
            csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            if own
            else csv.reader(stream, delimiter=separator)
        )
        yield from (row for row in rows if row)


def _parquet_rows(path: Path) -> Iterator[list[str]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield list(file.schema_arrow.names)
        for batch in file.iter_batches(8192, use_threads=False):
            cells = [column.to_pylist() for column in batch.columns]
            yield from (["" if cell is None else str(cell) for cell in row] for row in zip(*cells, strict=True))


def _read(data: DataConfig) -> tuple[str, ...]:
    """The columns that a release reads."""
    return tuple(name for name in (data.label, data.text, *data.columns, data.person) if name is not None)


def _declared(name: str, data: DataConfig | None) -> Column | None:
    """What is declared about a column; the label is a category."""
    if data is None or name != data.label or data.classes is None:
        return data.columns.get(name) if data is not None else None
    numbered = isinstance(data.classes, int)
    return Column(categories=tuple(map(str, range(data.classes))) if numbered else data.classes)  # type: ignore[arg-type]


def _about_header(header: Sequence[str], data: DataConfig | None) -> Iterator[Obstacle]:
    """Names that are missing, empty, repeated, or hard to type."""
    names = [name.strip() for name in header]
    if any("\udc80" <= letter <= "\udcff" for name in names for letter in name):
        yield Obstacle("the header", "bytes that are not UTF-8", "Save the file as UTF-8.")
    if "" in names:
        yield Obstacle("the header", f"column {names.index('') + 1} has no name", "Give it one, or remove the column.")
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        yield Obstacle(f"column '{name}'", "two columns have this name", "Rename one of them.")
    for name in names:
        plain = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) not in ("Cf", "Cc"))
        if plain != name:
            do = "Rename it, or copy the name into the config instead of typing it."
            yield Obstacle(f"column '{name}'", "characters that look like others, or that are not seen", do)
    for name in _read(data) if data is not None else ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            do = f"Did you mean '{near[0]}'?" if near else "Correct the config or the file."
            yield Obstacle(f"column '{name}'", "declared, but not in the file", do)


class _ColumnCells:
    """What the cells of one column are, counted row by row."""

    def __init__(self, name: str, declared: Column | None) -> None:
        self.name, self.declared = name.strip(), declared
        self.rows: dict[str, list[int]] = {}
        self.cells, self.whole = 0, True
        self.values: set[str] = set()
        self.low, self.high = float("inf"), float("-inf")

    def add(self, row: int, cell: str) -> None:
        """Count one cell."""
        kind = next((name for name, test in _KINDS if test.fullmatch(cell)), "text") if cell else "empty"
        if kind == "word" and self.declared is not None and cell in (self.declared.categories or ()):
            kind = "text"
        self.rows.setdefault(kind, []).append(row)
        self.cells += 1
        if len(self.values) < _KEPT:
            self.values.add(cell)
        if kind == "number":
            self.whole &= "." not in cell and "e" not in cell.lower()
            self._compare(row, float(cell))
        if self.declared is not None and self.declared.categories is not None and not self.declared.other:
            self._compare_names(row, cell)

    def _compare(self, row: int, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        own = self.declared
        if own is None or not isinstance(own.min, float) or not isinstance(own.max, float):
            return
        if not own.min <= value <= own.max:
            self.rows.setdefault("outside", []).append(row)

    def _compare_names(self, row: int, cell: str) -> None:
        if cell and cell not in self.declared.categories:  # type: ignore[union-attr,operator]
            self.rows.setdefault("undeclared", []).append(row)

    def findings(self, data: DataConfig | None) -> Iterator[Obstacle]:
        """Everything about the column."""
        if data is not None and self.name == data.text:
            return
        category = self.declared is not None and self.declared.categories is not None
        whose = data is not None and self.name == data.person
        yield from self._about_gaps(category or whose)
        if not category and not whose:
            yield from self._about_numbers()
        if not category and not whose and (data is None or self.name not in data.columns or self._all_differ):
            yield from self._about_identity()
        yield from self._about_declaration()

    def _tell(self, kind: str, what: str, do: str) -> Iterator[Obstacle]:
        rows = self.rows.get(kind, [])
        if rows:
            yield Obstacle(
                f"column '{self.name}'", f"{what} in {len(rows):,} of {self.cells:,} cells ({_rows(rows)})", do
            )

    def _about_gaps(self, text: bool) -> Iterator[Obstacle]:
        yield from self._tell("empty", "nothing", missing(self.name).do)
        if not text and "number" in self.rows:
            yield from self._tell("word", "a word or a sign for a missing number", missing(self.name).do)

    def _about_numbers(self) -> Iterator[Obstacle]:
        commas, plain = "comma" in self.rows, "Write numbers as 1234.5: no separators, a point before the decimals."
        if commas:
            yield from self._tell("comma", "a decimal comma", plain)
        yield from self._tell("thousands", "a decimal comma" if commas else "thousands separators", plain)
        day = "Write it as a number, such as days since a fixed day or the year alone, and declare its range."
        yield from self._tell("date", "a date", day)
        if "number" in self.rows and "text" in self.rows:
            do = "Correct the cells, or declare the column as a category."
            yield from self._tell("text", "text among numbers", do)

    @property
    def _all_differ(self) -> bool:
        return len(self.values) == self.cells >= _ENOUGH

    def _about_identity(self) -> Iterator[Obstacle]:
        """Values that name people, or records."""
        named = _MEANS_WHO.search(self.name) is not None
        text = not {"number", "comma", "thousands", "date"} & set(self.rows)
        if self._all_differ and (named or text or (self.whole and self.high - self.low == self.cells - 1)):
            do = "Leave it out of data.columns: an identifier teaches nothing that holds for others."
            yield Obstacle(f"column '{self.name}'", "every value is another one, as in a list of identifiers", do)
        elif named and _ENOUGH <= len(self.values) < self.cells:
            do = f'If a person has several records: person = "{self.name}" in [data], and people = about how many.'
            yield Obstacle(f"column '{self.name}'", "it seems to say whose a record is, and values repeat", do)

    def _about_declaration(self) -> Iterator[Obstacle]:
        own = self.declared
        if own is None:
            return
        yield from self._tell("undeclared", "a value that is not declared", "Such records are left out: declare it.")
        if not isinstance(own.min, float) or not isinstance(own.max, float) or "number" not in self.rows:
            return
        if len(self.rows.get("outside", [])) > len(self.rows["number"]) / 20:
            clamped = "These are clamped. Check the unit, and declare the range that such values have."
            yield from self._tell("outside", f"a number outside {own.min:g} to {own.max:g}", clamped)
        if 0 < self.high - self.low < (own.max - own.min) / 20:
            do = "Check the unit: noise that fits a wide range hides what a narrow one would show."
            yield Obstacle(f"column '{self.name}'", "less than a twentieth of its declared range is used", do)


def _rows(rows: Sequence[int]) -> str:
    shown, rest = ", ".join(f"{row:,}" for row in rows[:_ROWS]), len(rows) - _ROWS
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}" + (f" and {rest:,} more" if rest > 0 else "")

"""Reports as files: JSON, Markdown or a page, chosen by the file's suffix; a registry entry; SACRO-ML's folder.

Nothing is written over an existing file or into a bundle. A document with figures of the dossier says first that it
stays inside, and only its owner can read it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airlock._version import VERSION
from airlock.bundle.card import Card
from airlock.bundle.contents import CARD, SUMS
from airlock.bundle.dossier import Dossier
from airlock.bundle.files import output_error, write_file
from airlock.bundle.rendering import sacro
from airlock.bundle.rendering.page import environment
from airlock.bundle.reports import dpia, nist, registry
from airlock.bundle.reports.quoting import STAYS, Answer, Quote, Report
from airlock.errors import ConfigError, OutputError

SACRO, REGISTRY = "sacro", "registry"
DOCUMENTS: Mapping[str, Callable[[Card, Dossier | None], Report]] = {"dpia": dpia.make, "nist": nist.make}
FORMS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(DOCUMENTS, (".md", ".html", ".json")),
    REGISTRY: (".json",),
    SACRO: ("",),
}
SOURCES = ".sources.json"


def make(kind: str, card: Card, dossier: Dossier | None = None) -> Report:
    """A DPIA annex ("dpia") or a NIST SP 800-226 sheet ("nist"); with the dossier, it stays inside."""
    return DOCUMENTS[kind](card, dossier)


def write(
    path: Path,
    kind: str,
    card: Card,
    dossier: Dossier | None = None,
    filled_in: Mapping[str, object] | None = None,
) -> list[Path]:
    """Write one of `FORMS`; returns the files.

    Args:
        path: The file; its suffix chooses the form. For SACRO-ML's report, a new folder.
        kind: "dpia", "nist", "registry" or "sacro".
        card: The card of a bundle that verifies.
        dossier: If given, its figures are in the document, which then stays inside; "sacro" cannot do without it, and
            "registry", which is public, does not take it.
        filled_in: For "registry": what the curator fills in, by dotted path.

    Raises:
        ConfigError: There is no such kind or form, or the dossier does not go with it.
        OutputError: There is such a file already, or it cannot be written.
    """
    path = Path(path).absolute()
    check(path, kind, dossier is not None, filled_in)
    if kind == SACRO:
        assert dossier is not None
        sacro.write_report(path, card, dossier)
        return [path / sacro.REPORT, path / sacro.TARGET]
    files = (
        _registry_files(path, card, filled_in) if kind == REGISTRY else {path: _text(make(kind, card, dossier), path)}
    )
    for place, text in files.items():
        _write(place, text, 0o644 if dossier is None else 0o600)
    return list(files)


def check(path: Path, kind: str, with_dossier: bool, filled_in: Mapping[str, object] | None = None) -> None:
    """Refuse what cannot be written, before anything is verified for it.

    Raises:
        ConfigError: As in `write`.
        OutputError: The place is inside a bundle.
    """
    path = Path(path).absolute()
    if kind not in FORMS:
        raise ConfigError(f"one of {', '.join(FORMS)}", f"'{kind[:40]}'")
    if path.suffix not in FORMS[kind] and kind != SACRO:
        raise ConfigError(f"a file that ends in {' or '.join(FORMS[kind])} for '{kind}'", f"'{path.name}'")
    if kind == SACRO and not with_dossier:
        raise ConfigError("the dossier for 'sacro'", "none", "It reports what attacks found.", "Add --with-dossier.")
    if kind == REGISTRY and with_dossier:
        raise ConfigError("no dossier for 'registry'", "one", "A registry is public, and no ε covers a dossier.")
    if filled_in and kind != REGISTRY:
        raise ConfigError("values to fill in for 'registry' alone", f"some for '{kind}'")
    inside = next((one for one in (path, *path.parents) if (one / CARD).exists() and (one / SUMS).exists()), None)
    if inside is not None:
        raise OutputError(
            "a place outside a bundle",
            str(path),
            "A bundle is signed: nothing is added to it.",
            "Choose another place.",
        )


def _write(path: Path, text: str, mode: int) -> None:
    try:
        write_file(path, text.encode(), mode)
    except FileExistsError as error:
        raise OutputError("a file that does not exist yet", str(path), "Nothing is overwritten.") from error
    except OSError as error:
        raise output_error(error, path) from error


def _registry_files(path: Path, card: Card, filled_in: Mapping[str, object] | None) -> dict[Path, str]:
    """The entry, and beside it where each field comes from."""
    entry, quotes = registry.make(card, filled_in)
    fields = {key: {"value": one.value, "source": one.source, "derived": one.derived} for key, one in quotes.items()}
    beside = path.with_name(path.name.removesuffix(path.suffix) + SOURCES)
    return {path: _json(entry.to_table()), beside: _json({"follows": registry.FOLLOWS, "fields": fields})}


def _text(report: Report, path: Path) -> str:
    return {".json": to_json, ".md": to_markdown, ".html": to_html}[path.suffix](report)


def to_json(report: Report) -> str:
    """Strict JSON, with the source of every value."""
    stays = {"stays_inside": STAYS} if report.stays else {}
    return _json(stays | {"written_by": f"Airlock {VERSION}"} | dataclasses.asdict(report))


def to_markdown(report: Report) -> str:
    """Markdown; nothing of the card is acted on as markup."""
    return environment(False).get_template("report.md.j2").render(_given(report))


def to_html(report: Report) -> str:
    """A page that loads nothing and prints."""
    return environment().get_template("report.html.j2").render(_given(report))


def _given(report: Report) -> dict[str, Any]:
    return {"report": report, "stays": STAYS, "shown": _shown, "version": VERSION}


def _shown(quote: Quote, answer: Answer) -> str:
    """A value in a table, exactly as its source has it; a text that the answer quotes is not repeated."""
    texts = (quote.value,) if isinstance(quote.value, str) else quote.value
    if isinstance(texts, list | tuple) and texts and all(one in answer.says for one in texts):
        return "as quoted above"
    return quote.value if isinstance(quote.value, str) else json.dumps(quote.value, ensure_ascii=False)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

"""Bundles of earlier formats: what can still be checked, and what cannot.

Before format 6, cards held figures about test records and attacks that no ε paid for; before format 7, model files had
many forms, so that no check could tell whether they hold something else as well. Such a bundle can still be opened: its
files are compared with their checksums, and its ε is recomputed from the recorded events. Nothing else on its card is
checked, and `card.older_note` comes before anything else that is reported about it. To be served or to pass the gate,
it has to be made again.
"""

from __future__ import annotations

import datetime
import re

from pydantic import ValidationError

from airlock.bundle import bundle
from airlock.bundle.card import OLDEST, PAID
from airlock.bundle.consistency import epsilon_defects
from airlock.bundle.contents import Contents, Defects, Test
from airlock.bundle.files import parse_json
from airlock.bundle.schema import OlderGuarantee, OlderTable
from airlock.errors import AirlockError, FormatError

FILES = ("audit.json", "roc.svg", "sheet.png")  # files that current bundles no longer have
_SINCE = {2: {"noise_made_on"}, 4: {"interface"}, 5: {"features", "compression", "sheet"}}


class OlderBudget(OlderTable):
    """The requested ε and δ."""

    epsilon: float
    delta: float


class OlderCard(OlderTable):
    """The part of an older card that can still be checked."""

    schema_version: int
    headline: str
    release_id: str
    created: datetime.date
    leaves: str
    channel: str
    method: str
    target: OlderBudget
    guarantee: OlderGuarantee
    hashes: dict[str, str | None]


def format_of(files: Contents) -> int | None:
    """The format number of an older card; None if the card is current, or is missing."""
    try:
        table = parse_json(files.read(bundle.CARD))
    except (AirlockError, ValueError):
        return None
    written = table.get("schema_version") if isinstance(table, dict) else None
    return written if type(written) is int and 0 < written < OLDEST else None


def read(files: Contents) -> OlderCard:
    """Read an older card.

    Raises:
        FormatError: It lacks a field that every format had.
    """
    try:
        return OlderCard.model_validate(parse_json(files.read(bundle.CARD)))
    except ValidationError as error:
        where = sorted({".".join(map(str, one["loc"])) for one in error.errors(include_url=False)})
        raise FormatError(
            f"a card of an earlier format in {files.folder / bundle.CARD}", f"no usable {', '.join(where[:10])}"
        ) from error


def tests(files: Contents) -> list[Test]:
    """The checks of an older bundle in addition to its checksums, by name."""
    return [
        ("card", "The card says what was promised, and from which events.", lambda: _card(files)),
        ("epsilon", "The recorded events give the stated ε.", lambda: _epsilon(files)),
        ("hashes", "The hashes on the card are those of the files.", lambda: _hashes(files)),
    ]


def _card(files: Contents) -> Defects:
    """Detect a current card relabelled as an older one to be checked less: it has fields its format did not have."""
    table, card = parse_json(files.read(bundle.CARD)), read(files)
    later = {field for since, fields in _SINCE.items() if since > card.schema_version for field in fields}
    found = sorted(later & set(table)) + ["guarantee.parts"] * (
        card.schema_version < PAID and "parts" in table["guarantee"]
    )
    return [f"A card of format {card.schema_version} has no {', '.join(found)}."] if found else []


def _epsilon(files: Contents) -> Defects:
    card = read(files)
    return epsilon_defects(card.guarantee, card.target.epsilon)


def _hashes(files: Contents) -> Defects:
    """Compare hashes; a field is named after its file, with _ in place of other characters: config_toml."""
    card, by_field = read(files), {re.sub(r"\W", "_", name): name for name in files.names}
    return [
        f"{by_field.get(field, field)} is not the file that the card speaks of."
        for field, sha in card.hashes.items()
        if sha is not None and (field not in by_field or files.digest(by_field[field]) != sha)
    ]

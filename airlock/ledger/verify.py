"""Is the log intact, and is it the newest? Every hash, total and key is compared, and the mark must match an entry.

`walk` is the whole check and gives a verdict; `opened` is what every opening does: the same, but from the verified
state that was kept beside the mark, so that only what follows is walked, and what it finds is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from airlock.errors import LedgerBroken
from airlock.ledger import tables
from airlock.ledger.chain import Position, Seal
from airlock.ledger.mark import HighWaterMark
from airlock.ledger.state import State, Wrong, differs, follow, hash_of, rewound


@dataclass(frozen=True)
class LedgerVerification:
    """What a walk over the log found.

    Attributes:
        ok: Whether everything agrees.
        entries: How many entries agree, from the first on.
        spent: What they charge in total.
        cap: The most that may be spent.
        broken_entry: The first entry that is wrong, if one is.
        says: What is wrong, or that everything agrees.
        marked: The entry that the high-water mark names; None without a mark.
    """

    ok: bool
    entries: int
    spent: int
    cap: int
    broken_entry: int | None
    says: str
    marked: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def walk(engine: sa.Engine, mark: HighWaterMark) -> LedgerVerification:
    """Verify a whole ledger in one consistent read; it may be in use.

    The mark is read first: it never runs ahead of the database, so a later read includes its entry.
    """
    held = mark.read()
    marked = held.entries if held else None
    with tables.reading(engine) as connection:
        row = connection.execute(sa.select(tables.ledger)).one_or_none()
        state = State(row.id if row is not None else "")
        try:
            if row is None:
                raise Wrong("there is no ledger")
            _walk(connection, state, mark.seal(row.id), held)
        except Wrong as wrong:
            entry, says = wrong.entry, wrong.says
            if row is not None and not state.entries and mark.seal(row.id) is None:
                entry, says = None, "the ledger's secret is not here, so its hashes cannot be checked"
            return LedgerVerification(False, state.entries, state.spent, state.cap, entry, says, marked)
    says = "hashes, totals, limits and keys agree"
    return LedgerVerification(True, state.entries, state.spent, state.cap, None, says, marked)


def opened(connection: sa.Connection, mark: HighWaterMark, held: Position | None, ledger: str) -> tuple[State, int]:
    """What the log of a ledger says, if its tables agree with it and it is not behind its mark.

    Returns:
        The state, and the number of entries that were known before and not walked.

    Raises:
        LedgerBroken: It was tampered with, rewound or replaced, or its secret is missing.
    """
    seal = mark.seal(ledger)
    if held is not None and held.ledger != ledger:
        raise rewound(held, "another ledger")
    if held is not None and held.entries and hash_of(connection, held.entries) != held.head:
        raise rewound(held, "fewer entries, or another at that number")
    kept = mark.load_state(seal) if seal is not None else None
    state = State(ledger) if kept is None or kept["ledger"] != ledger else State.from_dict(kept)
    if state.entries and hash_of(connection, state.entries) != state.head:
        raise rewound(state.position, "fewer entries, or another at that number")
    if held is None:  # nothing vouches for what is before: the whole log is walked
        state = State(ledger)
    begun = state.entries
    try:
        _walk(connection, state, seal, held)
    except Wrong as wrong:
        if seal is None and not state.entries:
            raise no_secret(mark, ledger) from wrong
        raise wrong.told() from wrong
    return state, begun


def _walk(connection: sa.Connection, state: State, seal: Seal | None, held: Position | None) -> None:
    """Walk on from a state, then compare the mark and the tables."""
    begun = state.entries
    follow(connection, state, seal)
    if held is not None and begun < held.entries <= state.entries and hash_of(connection, held.entries) != held.head:
        raise Wrong("the high-water mark has another entry at this number", held.entries)
    if held is not None and held.keyed and not state.keyed:
        raise Wrong("the hashes are no longer keyed, as the high-water mark knows them to be")
    differs(connection, state)
    if held is not None and (held.ledger != state.ledger or held.entries > state.entries):
        raise Wrong("the high-water mark is ahead: the database was rewound or replaced", state.entries + 1)


def no_secret(mark: HighWaterMark, ledger: str) -> LedgerBroken:
    """The refusal of a ledger whose hashes cannot be checked here."""
    return LedgerBroken(
        f"the ledger's secret in {mark.secret_path(ledger).name}, in the folder of the mark",
        "none",
        "Without it the log cannot be checked, and nothing can be added to it.",
        "Copy it from the vault of a machine that has it; it is never in the database.",
    )

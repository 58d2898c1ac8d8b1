"""Reservations of a register: charged at once, and given back only if nothing was begun.

A release is charged before it reads a record, and may yet be refused before it does. So a register's charge is an entry
`reserved`, and one entry follows it at most in each way:

    reserved ── started (again whenever the run is resumed) ── released
        └────── returned

Guarantee. What a register counts as spent is at least the sum of the costs of all runs that may have read a record. A
reservation is released once.

Proof. A run reads only after `start` has returned, when its entry `started` is on disk. The entries of a log are
serial: whoever writes holds the ledger's lock and decides by all entries before. `returned` may only follow a
reservation that is open and has not started, and closes it; `started` may only follow an open one. So a reservation
that was returned never starts, one that started is never returned, and units are subtracted once, for a run that reads
nothing. A crash between any two entries leaves fewer of them: the units stay spent. `released` closes a reservation
that has started, so no second one follows. ∎

Both `started` and `returned` take the token of the reservation, of which the log holds the digest. It is known to the
process that reserved, and to one that resumes its run from the vault; a crash before the token is in the vault leaves
nobody who could return the units.

Ledgers of services have no reservations: there an answer follows each charge at once, and nothing is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airlock.ledger.chain import RELEASED, RETURNED, STARTED, Entry

# What may follow a reservation: the kinds of entry, and whether the run must have started before.
FOLLOWING: dict[str, tuple[bool, ...]] = {STARTED: (False, True), RETURNED: (False,), RELEASED: (True,)}


@dataclass(frozen=True)
class OpenReservation:
    """Units that are reserved for one release and neither returned nor released.

    Attributes:
        entry: The number of its entry.
        units: What was charged.
        token: SHA-256 of the token that may start or return it.
        started: Whether a record may have been read.
    """

    entry: int
    units: int
    token: str
    started: bool = False


class NotOpen(Exception):
    """There is no such reservation, or nothing of this kind may follow it."""


def of_entry(entry: Entry) -> OpenReservation:
    """The reservation that an entry makes."""
    return OpenReservation(entry.seq, entry.units, entry.key)


def advanced(held: dict[int, OpenReservation], number: int, kind: str, token: str) -> int:
    """Apply what follows a reservation to those that are open.

    Args:
        held: The open reservations by number; changed.
        number: Which one.
        kind: The kind of the entry.
        token: The digest of the token.

    Returns:
        The units that are given back.

    Raises:
        NotOpen: It may not follow; nothing is changed.
    """
    one = held.get(number)
    if one is None or one.token != token or one.started not in FOLLOWING[kind]:
        raise NotOpen
    if kind == STARTED:
        held[number] = replace(one, started=True)
        return 0
    del held[number]
    return one.units if kind == RETURNED else 0

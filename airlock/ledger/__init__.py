"""What a service needs before it may answer: a ledger that is charged first, and keys that say who pays.

In: a release's budget in whole units. Out: a `Charge` for each request, on disk before noise is drawn. A register is a
ledger too: in, the lifetime budget of a data set; out, a reservation for each release, before a record is read.

    ledger       the ledger: opened with its terms, paid from, verified
    transaction  orders, and what one transaction may charge
    units        whole units: costs rounded up, budgets down
    writer       group commit: one thread writes for all callers
    tables       the tables, and the durability that SQLite and PostgreSQL must provide
    chain        entries, and the chain of keyed hashes through them
    state        what the log says: totals, limits and keys, verified
    mark         what is kept outside the database: the high-water mark, the secret, a verified state
    verify       checks that the log is intact and the newest
    keys         who may ask, for how long, and how much
    reservations what a register charges before a run reads, and may give back
    register     the lifetime budget of a data set
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.ledger.chain import digest
    from airlock.ledger.keys import KeyStore as KeyStore
    from airlock.ledger.ledger import Balance as Balance
    from airlock.ledger.ledger import Ledger as Ledger
    from airlock.ledger.ledger import Terms as Terms
    from airlock.ledger.mark import mark_name
    from airlock.ledger.register import Charged, Held, Register, RegisterTerms
    from airlock.ledger.state import Key as Key
    from airlock.ledger.transaction import Charge, Replay, Rules, Spend
    from airlock.ledger.units import budget_in_units, cost_in_units
    from airlock.ledger.verify import LedgerVerification as LedgerVerification

__all__ = [
    "Balance",
    "Charge",
    "Charged",
    "Held",
    "Key",
    "KeyStore",
    "Ledger",
    "LedgerVerification",
    "Register",
    "RegisterTerms",
    "Replay",
    "Rules",
    "Spend",
    "Terms",
    "budget_in_units",
    "cost_in_units",
    "digest",
    "mark_name",
]

lazy.load(__name__)

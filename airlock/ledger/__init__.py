"""What a service needs before it may answer: a ledger that is paid first, and keys that say who pays.

In: a release's budget in whole units. Out: a `Charge` for each request, on the disk before noise is drawn.

    ledger       the ledger: opened with its terms, paid from, verified
    transaction  whole units, orders, and what may be charged inside one transaction
    writer       group commit: one thread writes for all callers
    tables       the tables, and what SQLite and PostgreSQL have to promise
    chain        entries, the chain of hashes through them, and the high-water mark
    verify       whether the log is whole
    keys         who may ask, for how long, and how much
"""

from airlock.ledger.chain import digest, mark_name
from airlock.ledger.keys import Key as Key
from airlock.ledger.keys import KeyStore as KeyStore
from airlock.ledger.ledger import Balance as Balance
from airlock.ledger.ledger import Ledger as Ledger
from airlock.ledger.ledger import Terms as Terms
from airlock.ledger.transaction import Charge, Replay, Rules, Spend, budget_in_units, cost_in_units
from airlock.ledger.verify import LedgerVerification as LedgerVerification

__all__ = [
    "Balance",
    "Charge",
    "Key",
    "KeyStore",
    "Ledger",
    "LedgerVerification",
    "Replay",
    "Rules",
    "Spend",
    "Terms",
    "budget_in_units",
    "cost_in_units",
    "digest",
    "mark_name",
]

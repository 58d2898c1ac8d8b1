"""What a service needs before it may answer: a ledger that is paid first, and keys that say who pays.

In: a release's budget in whole units. Out: a `Charge` for each request, on the disk before noise is drawn.
"""

from airlock.ledger.chain import digest as digest
from airlock.ledger.high_water_mark import mark_name as mark_name
from airlock.ledger.keys import Key as Key
from airlock.ledger.keys import KeyStore as KeyStore
from airlock.ledger.ledger import Balance as Balance
from airlock.ledger.ledger import Ledger as Ledger
from airlock.ledger.ledger import Terms as Terms
from airlock.ledger.orders import Charge as Charge
from airlock.ledger.orders import Replay as Replay
from airlock.ledger.orders import Rules as Rules
from airlock.ledger.orders import Spend as Spend
from airlock.ledger.units import budget_in_units as budget_in_units
from airlock.ledger.units import cost_in_units as cost_in_units
from airlock.ledger.verify import Verdict as Verdict

__all__ = [
    "Balance",
    "Charge",
    "Key",
    "KeyStore",
    "Ledger",
    "Replay",
    "Rules",
    "Spend",
    "Terms",
    "Verdict",
    "budget_in_units",
    "cost_in_units",
    "digest",
    "mark_name",
]

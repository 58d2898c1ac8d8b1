"""What a service needs before it may answer: a ledger that is paid first, and keys that say who pays.

In: a release's budget in whole units. Out: a `Charge` for each request, on the disk before noise is drawn.
"""

from airlock.serve.chain import digest as digest
from airlock.serve.keys import Key as Key
from airlock.serve.keys import KeyStore as KeyStore
from airlock.serve.ledger import Balance as Balance
from airlock.serve.ledger import Ledger as Ledger
from airlock.serve.ledger import Terms as Terms
from airlock.serve.mark import mark_name as mark_name
from airlock.serve.orders import Charge as Charge
from airlock.serve.orders import Replay as Replay
from airlock.serve.orders import Rules as Rules
from airlock.serve.orders import Spend as Spend
from airlock.serve.units import budget_in_units as budget_in_units
from airlock.serve.units import cost_in_units as cost_in_units
from airlock.serve.verify import Verdict as Verdict

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

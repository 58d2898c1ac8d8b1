"""What leaves, what stays, and what a reviewer reads.

In: a release and its audit. Out: a `Card`, a `Bundle` on disk, a `Verification` of one, and a `Weighing` of what
speaks for and against it; what must not leave goes to the `Vault`.
"""

from airlock.bundle.bundle import Bundle as Bundle
from airlock.bundle.bundle import read as read
from airlock.bundle.bundle import write as write
from airlock.bundle.card import Card as Card
from airlock.bundle.card import make as make_card
from airlock.bundle.card import schema as card_schema
from airlock.bundle.dossier import Dossier as Dossier
from airlock.bundle.dossier import schema as dossier_schema
from airlock.bundle.gate import Weighing as Weighing
from airlock.bundle.gate import weigh as weigh
from airlock.bundle.vault import Vault as Vault
from airlock.bundle.verify import Check as Check
from airlock.bundle.verify import Verification as Verification
from airlock.bundle.verify import read_verified as read_verified
from airlock.bundle.verify import verify as verify

__all__ = [
    "Bundle",
    "Card",
    "Check",
    "Dossier",
    "Vault",
    "Verification",
    "Weighing",
    "card_schema",
    "dossier_schema",
    "make_card",
    "read",
    "read_verified",
    "verify",
    "weigh",
    "write",
]

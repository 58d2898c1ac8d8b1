"""What leaves, what stays, and what a reviewer reads.

In: a release and its audit. Out: a `Card`, a `Bundle` on disk, a `Verification` of one, and a `Weighing` of what
speaks for and against it; what must not leave goes to the `Vault`.
"""

from airlock._verbs import make_verb
from airlock.release.bundle import Bundle as Bundle
from airlock.release.bundle import read as read
from airlock.release.bundle import write as write
from airlock.release.card import Card as Card
from airlock.release.card import make as make_card
from airlock.release.card import schema as card_schema
from airlock.release.dossier import Dossier as Dossier
from airlock.release.dossier import schema as dossier_schema
from airlock.release.gate import Weighing as Weighing
from airlock.release.gate import weigh as weigh
from airlock.release.vault import Vault as Vault
from airlock.release.verify import Check as Check
from airlock.release.verify import Verification as Verification
from airlock.release.verify import read_verified as read_verified
from airlock.release.verify import verify as verify

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

make_verb(__name__)

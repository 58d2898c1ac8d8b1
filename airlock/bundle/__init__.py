"""What leaves, what stays, and what a reviewer reads.

In: a release and its audit. Out: a `Card`, a `Bundle` on disk, a `Verification` of one, and a `Weighing` of the
reasons for and against releasing it; what must not leave goes to the `Vault`.

    bundle          the folder that leaves, written whole or not at all
    contents        its file names and size limits, and the files found in a folder that claims to be one
    packing         all that depends on the kind of artefact: card table, sentences, files, checks
    card            the card: public facts and figures that are paid for
    dossier         the dossier, which stays: exact figures and attacks
    schema          the tables that make up a card
    vault           what must not leave
    files           atomic writes and safe reads
    export          the network as safetensors and ONNX
    compression     smaller forms of a student, and how much smaller and faster they are
    verify          whether a bundle is what its card says
    older           bundles of earlier formats, and what can still be checked
    consistency     checks: the card agrees with itself, and the other files with the card
    replan          checks: the card says what its config leads to
    models          checks: the model files load and agree
    gate            reasons to reject, for caution, and to release
    register        the lifetime budget of a data set: where it is, what it holds
    booking         a release in the register: charged before a record is read
    answering       queries to a bundle, answered by its network or from the vault
    policy/         what a house lets out, and the rules that hold a release against it
    receive         a classifier trained on released features
    receiving/      raw rows in, classes and probabilities out
    signing/        who made a bundle, and who approved it
    rendering/      sentences, pages, figures, SACRO-ML reports
    platforms/      a bundle for the Hugging Face Hub, and for MLflow
    reports/        a DPIA annex, a NIST SP 800-226 sheet, a registry entry: what others ask for
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.bundle.bundle import Bundle, read, write
    from airlock.bundle.card import Card as Card
    from airlock.bundle.card import make as make_card
    from airlock.bundle.card import schema as card_schema
    from airlock.bundle.dossier import Dossier as Dossier
    from airlock.bundle.dossier import schema as dossier_schema
    from airlock.bundle.gate import Weighing as Weighing
    from airlock.bundle.gate import weigh as weigh
    from airlock.bundle.policy import Policy as Policy
    from airlock.bundle.policy import load as load_policy
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
    "Policy",
    "Vault",
    "Verification",
    "Weighing",
    "card_schema",
    "dossier_schema",
    "load_policy",
    "make_card",
    "read",
    "read_verified",
    "verify",
    "weigh",
    "write",
]

lazy.load(__name__)

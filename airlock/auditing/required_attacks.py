"""Which attacks must be made on what leaves: an audit that lacks one of them says less than it seems to.

Whoever holds weights can do more than ask for predictions, so a network has to be attacked from both sides. Answers
come through a noisy interface with a budget, and nothing but that interface may be used. Features are attacked by
turning them back into records, with the front end and without, and by looking records up among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airlock.auditing.result import Aim, AttackResult, ReconstructionResult, View
from airlock.methods.contract import ArtefactKind

Kind = tuple[Aim, View]

REQUIRED: Mapping[ArtefactKind, tuple[Kind, ...]] = {
    "network": (("membership", "white-box"), ("membership", "black-box")),
    "interface": (("membership", "interface"),),
    "features": (("inversion", "features"), ("inversion", "front"), ("membership", "front")),
}
IN_WORDS: Mapping[Kind, str] = {
    ("membership", "white-box"): "membership inference by someone who holds the weights (white-box)",
    ("membership", "black-box"): "membership inference by someone who sees the model's outputs (black-box)",
    ("membership", "labels"): "membership inference by someone who sees the predicted classes alone (labels)",
    ("membership", "interface"): "membership inference through the noisy interface, within its budget",
    ("membership", "front"): "membership inference by someone who has the front end and looks features up",
    ("inversion", "features"): "reconstruction by someone who holds features and knows some records with theirs",
    ("inversion", "front"): "inversion by someone who holds features and the front end",
}


def missing(leaves: ArtefactKind, attacks: Iterable[AttackResult | ReconstructionResult]) -> tuple[str, ...]:
    """The attacks that what leaves must be put to and that were not made, in words."""
    made = {(attack.aim, attack.view) for attack in attacks}
    return tuple(IN_WORDS[kind] for kind in REQUIRED[leaves] if kind not in made)

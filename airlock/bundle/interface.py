"""From a bundle of answers and the vault to whoever answers.

In: a bundle whose card names an interface, and the vault it was made with. Out: an `Answerer`. Both are checked first:
the bundle verifies, and the vault holds what this very release left there.
"""

from __future__ import annotations

from pathlib import Path

from airlock import methods
from airlock.bundle.card import Card
from airlock.bundle.schema import Asking
from airlock.bundle.vault import Vault
from airlock.bundle.verify import read_verified
from airlock.errors import Refused
from airlock.methods.interface import Answerer, Interface


def open_interface(folder: Path, vault: Vault) -> Answerer:
    """Whoever answers for this bundle; nothing is answered or paid yet.

    Raises:
        Refused: The bundle does not verify, or a network leaves by it.
        FormatError: The vault does not have what answers.
    """
    return from_vault(read_verified(folder, vault).card, vault)


def from_vault(card: Card, vault: Vault) -> Answerer:
    """Whoever answers for a release whose bundle verified.

    Raises:
        Refused: A network leaves by it.
        FormatError: The vault does not have what answers.
    """
    if card.interface is None:
        raise Refused(
            "a bundle of answers",
            "one of a network" if card.network else "one of features",
            "Whoever holds what left needs nobody to answer.",
            "Open it yourself.",
        )
    kept = vault.load(card.release_id)
    return methods.named(f"{card.channel}/{card.method}").answerer(as_interface(card.interface), kept)


def as_interface(stated: Asking) -> Interface:
    """What a card says may be asked, as the channel made it."""
    return Interface(**stated.model_dump())

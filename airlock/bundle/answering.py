"""A bundle as something that answers: its card, and whoever answers for it.

A bundle with a network answers by that network, in ONNX Runtime, and its answers cost nothing: the network has left
already, and whoever has it can ask it as often as they like. A bundle without one is answered from the vault, at a
price (`airlock.methods.interface`).

From the vault (`open_interface`). In: a bundle whose card names an interface, and the vault it was made with. Out: an
`Answerer`. Both are checked first: the bundle verifies, and the vault holds what this very release left there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock import methods
from airlock.bundle import bundle, export
from airlock.bundle.card import Card
from airlock.bundle.files import read_file
from airlock.bundle.packing import packing_of
from airlock.bundle.vault import Vault
from airlock.bundle.verify import read_verified
from airlock.errors import Refused
from airlock.mechanisms import Stream
from airlock.methods.interface import Answerer, Answers, Interface, Reservation

# From the vault.


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
            f"one of {packing_of(card.artefact).noun}",
            "Whoever holds what left needs nobody to answer.",
            "Open it yourself.",
        )
    kept = vault.load(card.release_id)
    return methods.named(f"{card.channel}/{card.method}").answerer(card.interface, kept)


# By a network that has left.


class NetAnswerer(Answerer):
    """Answers by a network that has left; draws no noise.

    A row whose logits overflow (of an input far outside of what the network knows) has no answer: label −1, logits 0.

    Args:
        interface: What the network takes and gives.
        session: Of ONNX Runtime, with input `input` and output `logits`.
    """

    def __init__(self, interface: Interface, session: Any) -> None:
        super().__init__(interface)
        self._session = session

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """The logits and the largest of them; the stream is not read."""
        values = np.asarray(self._session.run(["logits"], {"input": x})[0], np.float64)
        whole = np.isfinite(values).all(axis=1)
        values[~whole] = 0.0
        return Answers(np.where(whole, values.argmax(axis=1), -1).astype(np.int64), values)


def open_answerer(folder: Path, vault: Vault | None = None) -> tuple[Card, Answerer]:
    """The card of a bundle that verifies, and whoever answers for it.

    Args:
        folder: The bundle.
        vault: Where what stays inside lies; the user's own when left out.

    Raises:
        Refused: The bundle does not verify.
        FormatError: The vault does not have what answers.
    """
    found = read_verified(folder, vault)
    net = found.card.network
    if net is None:
        return found.card, from_vault(found.card, vault or Vault.open())
    interface = Interface("logits", net.input_shape, net.classes, None, "an answer, which costs nothing", {})
    content = read_file(found.folder / bundle.ONNX, bundle.LIMITS[bundle.ONNX])
    return found.card, NetAnswerer(interface, export.open_onnx(content))

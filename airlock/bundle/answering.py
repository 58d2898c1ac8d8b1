"""Answer queries to a bundle: its card, and the `Answerer` that serves it.

A bundle with a network is answered by that network, in ONNX Runtime, at no cost: the network has already left, and
anyone who holds it can query it without limit. A bundle without a network is answered from the vault, and every answer
is paid for (`airlock.methods.interface`).

From the vault (`open_interface`). In: a bundle whose card names an interface, and the vault it was made with. Out: an
`Answerer`. The bundle only says which release is meant: it must verify and be, file by file, what the vault recorded
when it was written. The method, the interface with its noise and its budget, and what answers come from the vault.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock import methods
from airlock.bundle import bundle, export
from airlock.bundle.card import Card
from airlock.bundle.contents import Contents
from airlock.bundle.packing import packing_of
from airlock.bundle.signing.approval import refuse_rejected
from airlock.bundle.signing.keys import PublicKey
from airlock.bundle.vault import Vault
from airlock.bundle.verify import read_verified
from airlock.config import TargetRange
from airlock.data.text import Tokenizer, parse_tokenizer
from airlock.errors import FormatError, Refused
from airlock.mechanisms import Stream
from airlock.methods.interface import Answerer, Answers, Interface, Reservation

# From the vault.


def open_interface(folder: Path, vault: Vault, *, signers: Sequence[PublicKey] = ()) -> Answerer:
    """The answerer of this bundle; nothing is answered or paid for yet.

    Args:
        folder: The bundle.
        vault: The vault it was made with.
        signers: If given, one of these keys must have signed it.

    Raises:
        Refused: The bundle does not verify, lacks a required signature, or has no interface.
        FormatError: The vault does not hold what is needed to answer.
    """
    return from_vault(read_verified(folder, vault, signers=signers).card, vault)


def from_vault(card: Card, vault: Vault) -> Answerer:
    """The answerer of a release whose bundle has been verified with this vault, from the vault alone.

    Raises:
        Refused: The card has no interface.
        FormatError: The vault does not hold what is needed to answer.
    """
    if card.interface is None:
        raise Refused(
            "a bundle of answers",
            f"one of {packing_of(card.artefact).noun}",
            "What it holds can be used directly; there is nothing to answer from the vault.",
            "Open its files yourself.",
        )
    kept = vault.load(card.release_id)
    method, interface = recorded(card, vault)
    return methods.named(method).answerer(interface, kept)


def recorded(card: Card, vault: Vault) -> tuple[str, Interface]:
    """CHANNEL/METHOD and the interface of a release, as the vault recorded them when it was made.

    Raises:
        FormatError: There is none: it was made before there were records.
    """
    found = vault.recorded(card.release_id)
    if found is None or found.interface is None:
        raise FormatError(
            f"the vault's record of release {card.release_id[:8]}",
            "none",
            "What is answered, and with how much noise, is taken from the vault and never from a bundle; releases by "
            "earlier versions have no such record.",
            "Make the release again.",
        )
    return f"{found.channel}/{found.method}", found.interface


# From a network that has left.


class NetAnswerer(Answerer):
    """Answers from a network that has left; draws no noise.

    A row whose logits overflow (for an input far outside the training distribution) gets no answer: label −1, logits 0.

    Args:
        interface: The network's inputs and outputs.
        session: An ONNX Runtime session with input `input` and output `logits`.
    """

    def __init__(self, interface: Interface, session: Any) -> None:
        super().__init__(interface)
        self._session = session

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """The logits and their argmax; the stream is not read."""
        values = np.asarray(self._session.run(["logits"], {"input": x})[0], np.float64)
        whole = np.isfinite(values).all(axis=1)
        values[~whole] = 0.0
        return Answers(np.where(whole, values.argmax(axis=1), -1).astype(np.int64), values)


class NumberAnswerer(Answerer):
    """Predicts a number by a network that has left, as `airlock.load` does; draws no noise.

    A row whose outputs overflow gets no number: label −1, value 0.

    Args:
        interface: The network's inputs; it has no classes.
        session: An ONNX Runtime session with input `input` and output `prediction`.
        target: The range of the number.
    """

    def __init__(self, interface: Interface, session: Any, target: TargetRange) -> None:
        super().__init__(interface)
        self._session, self._target = session, target

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """The number of each row as the only column of values, its label 0; the stream is not read."""
        numbers = export.predicted(self._session, x, self._target)
        whole = np.isfinite(numbers)
        return Answers(np.where(whole, 0, -1).astype(np.int64), np.where(whole, numbers, 0.0)[:, None])


def open_reader(folder: Path, card: Card) -> Tokenizer | None:
    """The tokenizer of a bundle whose records are texts, which is the one that its card names; None for others."""
    text = None if card.inputs is None else card.inputs.text
    if text is None:
        return None
    return parse_tokenizer(Contents(folder, {bundle.TOKENIZER: text.tokenizer}).read(bundle.TOKENIZER), text.tokens)


def open_answerer(
    folder: Path,
    vault: Vault | None = None,
    *,
    signers: Sequence[PublicKey] = (),
    approvers: Sequence[PublicKey] = (),
) -> tuple[Card, Answerer]:
    """The card of a bundle that verifies, and its answerer.

    Args:
        folder: The bundle.
        vault: The vault it was made with; the user's default vault if omitted.
        signers: If given, one of these keys must have signed it.
        approvers: If given, a reviewer must have approved it with one of these keys.

    Raises:
        Refused: The bundle does not verify, lacks a required signature, or a reviewer has rejected it.
        FormatError: The vault does not hold what is needed to answer.
    """
    found = read_verified(folder, vault, signers=signers, approvers=approvers)
    refuse_rejected(found.files)
    net = found.card.network
    if net is None:
        return found.card, from_vault(found.card, vault or Vault.open())
    if not net.outputs:
        raise Refused(
            "a network that tells classes apart or predicts a number",
            "a language model",
            "The service gives one answer for each record.",
            "Ask it with airlock.load or airlock predict: it has left, and its answers cost nothing.",
        )
    interface = Interface("logits", net.input_shape, net.classes, None, "an answer, which costs nothing", {})
    session = export.open_onnx(found.files.read(bundle.ONNX))
    if net.target is not None:
        return found.card, NumberAnswerer(interface, session, net.target)
    return found.card, NetAnswerer(interface, session)

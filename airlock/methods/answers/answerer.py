"""Where answers are asked for: a reservation costs one unit per row and is answered once.

Nothing is ever paid back, so a crash charges too much and never too little.
"""

from __future__ import annotations

import threading
from abc import abstractmethod

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.errors import DataError, Refused
from airlock.mechanisms import Stream
from airlock.methods.answers.fitted import embed_queries, front_of
from airlock.methods.contract import Secrets
from airlock.methods.interface import Answerer, Answers, Interface, Reservation
from airlock.nets import build_front
from airlock.nets.frontend import Framed
from airlock.training.convex import LogisticHead

FRONT, HEAD = "front", "head"  # files in the vault
INSIDE = (
    "Every answer is paid for in one ledger: whoever answers without it, or from two of them, gives away more.",
)  # assumptions of every method whose model stays


class Desk(Answerer):
    """A front end, whatever was fitted on its features, and the reservations that are open in this process."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface)
        net = build_front(str(interface.figures["net"]), interface.input_shape, len(interface.classes))
        net.front.load_state_dict({name: torch.from_numpy(array) for name, array in kept[FRONT].items()})
        self.body, self._bound = front_of(net, torch.device("cpu")), LogisticHead(len(interface.classes), 1.0, 1)
        self._lock = threading.Lock()
        self._open: dict[int, Reservation] = {}

    @property
    @abstractmethod
    def event(self) -> dpa.DpEvent:
        """What one unit costs."""

    def reserve(self, rows: int) -> Reservation:
        """One unit per row."""
        if rows < 1:
            raise DataError("at least one query", f"{rows}")
        with self._lock:
            made = Reservation(rows, rows)
            self._open[id(made)] = made
        return made

    def cancel(self, reservation: Reservation) -> None:
        """It will not be answered."""
        with self._lock:
            self._close(reservation)

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """Answer once what was paid for."""
        if len(x) != reservation.rows:
            raise DataError(f"the {reservation.rows} queries that were reserved", f"{len(x)}")
        features = embed_queries(self.body, self.interface.checked(x), self._bound)
        with self._lock:
            self._close(reservation)
            return self._decide(features, stream)

    @abstractmethod
    def _decide(self, features: Tensor, stream: Stream) -> Answers:
        """The answers to queries with these features; one call at a time."""

    def _close(self, reservation: Reservation) -> None:
        if self._open.pop(id(reservation), None) is not reservation:
            raise Refused(
                "a reservation that is open",
                "one that was answered or cancelled, or is another's",
                "Noise for it would not be paid for.",
                "Reserve again.",
            )


def front_arrays(net: Framed) -> dict[str, NDArray[np.float32]]:
    """The public tensors of a front end, for the vault: on another machine they might come out differently."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in net.front.state_dict().items()}

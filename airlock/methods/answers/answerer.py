"""Answers from heads that stay in the vault: how they are paid for, and how much noise each has.

A reservation costs one unit per row and is answered once. Nothing is ever paid back, so a crash charges too much and
never too little. The methods say what an answer is; each brings its own proof.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.accounting import calibrate, pure, repeat
from airlock.accounting.epsilon import Accountant
from airlock.errors import DataError, Refused
from airlock.mechanisms import Stream
from airlock.methods.answers.linear_head import embed_queries
from airlock.methods.contract import Secrets
from airlock.methods.interface import Answerer, Answers, Interface, Reservation
from airlock.nets import build_front
from airlock.nets.frontend import Framed
from airlock.training.convex import LogisticHead
from airlock.training.front_ends.front import front_of

FRONT = "front"  # file in the vault
FEWEST_RECORDS = 5  # per head of `votes`, on average, when the number of heads is automatic
INSIDE = (
    "Every answer is paid for in one ledger: answers given without it, or from two of them, give away more.",
)  # assumptions of every method whose model stays

Mechanism = Literal["gaussian", "exponential", "exponential, pure"]

GUMBEL = math.pi / math.sqrt(3)  # the standard deviation of the difference of two standard Gumbel numbers
_FEW = 64  # queries up to which pure accounting is tried: in the end it grows with Q twice as fast as the other


# Who answers.


class PaidAnswerer(Answerer):
    """A front end, whatever was fitted on its features, and the reservations that are open in this process."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface)
        net = build_front(str(interface.figures["net"]), interface.input_shape, len(interface.classes))
        net.front.load_state_dict({name: torch.from_numpy(array) for name, array in kept[FRONT].items()})
        self.body = front_of(net, torch.device("cpu"), torch.float32)
        self._bound = LogisticHead(len(interface.classes), 1.0, 1)
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
                "one that was answered or cancelled, or that belongs to another answerer",
                "Noise for it would not be paid for.",
                "Reserve again.",
            )


def front_arrays(net: Framed) -> dict[str, NDArray[np.float32]]:
    """The public tensors of a front end, for the vault: on another machine they might come out differently."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in net.front.state_dict().items()}


# How much noise an answer has.


@dataclass(frozen=True)
class Noise:
    """How an answer is drawn, before the sensitivity is known.

    Args:
        mechanism: By which mechanism, and how it is accounted for.
        multiplier: The standard deviation of the noise between two logits, over their sensitivity; the smaller, the
            better.
    """

    mechanism: Mechanism
    multiplier: float

    @property
    def epsilon(self) -> float:
        """ε₀ of the exponential mechanism."""
        return GUMBEL / self.multiplier

    @property
    def event(self) -> dpa.DpEvent:
        """What one answer costs."""
        if self.mechanism == "gaussian":
            return dpa.ZCDpEvent(0.5 / self.multiplier**2, 0.0)
        return pure(self.epsilon) if self.mechanism == "exponential, pure" else dpa.ZCDpEvent(self.epsilon**2 / 8, 0.0)


def least_noise(
    label: bool, queries: int, runs: int, epsilon: float, delta: float, accountant: Accountant = "auto"
) -> Noise:
    """The mechanism with the least noise for this many answers at this cost.

    Args:
        label: Whether answers are labels alone.
        queries: Q.
        runs: How often all of this is done before one result is picked.
        epsilon: The target.
        delta: The δ it is stated at.
        accountant: As in `compute_epsilon`.
    """

    def fitted(mechanism: Mechanism) -> Noise:
        found = calibrate(
            lambda z: repeat(repeat(Noise(mechanism, z).event, queries), runs), epsilon, delta, accountant=accountant
        )
        return Noise(mechanism, found)

    if not label:
        return fitted("gaussian")
    mechanisms: list[Mechanism] = ["exponential", "gaussian"] if accountant != "pld" else []
    mechanisms += ["exponential, pure"] if queries <= _FEW or not mechanisms else []
    return min((fitted(mechanism) for mechanism in mechanisms), key=lambda noise: noise.multiplier)

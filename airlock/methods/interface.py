"""What leaves when no network does: an interface for queries, and the answerer behind it, which stays inside.

An `Interface` is public and goes into the bundle. An `Answerer` is built from it and from the arrays in the vault, and
serves the service, the audit and the court alike. It never draws noise that was not paid for: a caller reserves, pays
what the reservation says, and only then gets answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from airlock.config import Shape
from airlock.data import Records
from airlock.errors import DataError, Refused
from airlock.mechanisms import Place, Stream
from airlock.methods.case import Arrays, Disclosed, Secrets

if TYPE_CHECKING:
    import dp_accounting as dpa

    from airlock.training.outcomes import Outcomes

Gives = Literal["logits", "probabilities", "label"]
Figures = Mapping[str, str | int | float]

_BLOCK = 1000  # queries at a time
_ASKED = 3  # rows in a query of the court
ONE_ANSWER = "one answer"  # the unit of an interface whose answers all cost the same

BY_ANSWERER: tuple[Place, ...] = ("cpu",)  # where the noise on answers to future queries will be made


@dataclass(frozen=True)
class Interface:
    """What may be asked and what it costs; everything in it is public.

    Args:
        gives: What an answer is: a row of logits, a row of probabilities, or only a label.
        input_shape: Of one query.
        classes: The class names, in the order of the outputs.
        units: The whole budget, in units; None where answers cost nothing.
        unit: What one unit pays for, in words.
        figures: The public figures that the answerer needs, such as its noise.
    """

    kind: ClassVar[Literal["interface"]] = "interface"
    made_once: ClassVar[bool] = False

    gives: Gives
    input_shape: Shape
    classes: tuple[str, ...]
    units: Annotated[int, Field(ge=1)] | None
    unit: str
    figures: Figures

    def checked(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Validated queries: finite float32, one per row.

        Raises:
            DataError: They are something else.
        """
        if x.shape[1:] != self.input_shape or x.dtype != np.float32:
            wanted = " × ".join(map(str, self.input_shape))
            raise DataError(f"float32 queries of shape {wanted}, one per row", f"{x.dtype} of shape {x.shape}")
        if not np.isfinite(x).all():
            raise DataError("finite numbers in a query", "NaN or infinity")
        return np.ascontiguousarray(x, np.float32)

    @property
    def parameters(self) -> None:
        """No network leaves."""
        return None

    @property
    def questions(self) -> int | None:
        """The largest number of queries; None if unlimited."""
        return None if self.units is None else int(self.figures.get("queries", self.units))

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """Answers."""
        return DisclosedAnswers({}, executed, (open_answerer(self, kept), open_answerer(self, kept)))

    def forget(self) -> None:
        """Nothing to remove: the vault keeps only what the answerer needs."""


@dataclass(frozen=True)
class Reservation:
    """Answers that were requested.

    Args:
        rows: How many.
        units: What must be paid before they are given; 0 if they are free or already paid for.
    """

    rows: int
    units: int


@dataclass(frozen=True)
class Answers:
    """Answers as they leave, one row per query.

    Args:
        labels: The class, or 0 beside a number; −1 if the answer is that there is none.
        values: Noisy logits or probabilities, one column per class; None if only labels are given. Where a network that
            has left predicts a number, that number in one column.
    """

    labels: NDArray[np.int64]
    values: NDArray[np.float64] | None = None


class Answerer(ABC):
    """Answers queries from what stays inside; must be thread-safe."""

    def __init__(self, interface: Interface) -> None:
        self.interface = interface

    def reserve(self, rows: int) -> Reservation:
        """Reserve answers at their maximum cost; must be followed by `answer` or `cancel`."""
        return Reservation(rows, 0 if self.interface.units is None else rows)

    def cancel(self, reservation: Reservation) -> None:  # noqa: B027 - nothing is set aside unless a method does it
        """Give up a reservation: nothing was paid, nothing will be answered, and what was set aside is freed."""

    @abstractmethod
    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """Answer the queries of a paid reservation, once.

        Args:
            x: One query per row, of the interface's shape, finite.
            reservation: Of as many rows.
            stream: Fresh privacy randomness, for this call alone.
        """


@dataclass(frozen=True)
class DisclosedAnswers(Disclosed):
    """What the court observes of an interface: all answers about one record that the budget buys.

    No noise is drawn when the release is made, so the court tries the answerers.

    Args:
        answerers: One for each half of the budget, like two processes that share no state.
    """

    lasting: ClassVar[bool] = True

    answerers: tuple[Answerer, Answerer]

    def observe(self, record: Records, stream: Stream) -> Arrays:
        """Sums over all answers about the record, queried in blocks until the budget is spent."""
        interface = self.answerers[0].interface
        x = np.repeat(as_queries(record), _ASKED, 0)
        budget = interface.units or _ASKED
        values, counts = np.zeros(len(interface.classes)), np.zeros(len(interface.classes) + 1)
        paid = rows = 0
        while paid + _ASKED <= budget:
            answerer = self.answerers[2 * paid >= budget]
            reserved = answerer.reserve(_ASKED)
            if reserved.units != _ASKED:
                raise Refused(
                    f"{_ASKED} units to be charged for {_ASKED} answers",
                    f"{reserved.units}",
                    "Answers that are not paid for are not accounted for.",
                    "This is a defect in the method: do not release its result.",
                )
            found = answerer.answer(x, reserved, stream.child("ask", rows))
            paid, rows = paid + reserved.units, rows + _ASKED
            values += 0.0 if found.values is None else found.values.sum(0)
            counts += np.bincount(found.labels + 1, minlength=len(counts))
        return {"values": values, "labels": counts, "rows": np.array([float(rows)])}


OpenAnswerer = Callable[[Interface, Secrets], Answerer]


def as_queries(records: Records) -> NDArray[np.float32]:
    """Records as a client would send them: float32, pixels from 0 to 1."""
    import torch

    from airlock.training.devices import to_input

    return to_input(torch.from_numpy(np.ascontiguousarray(records.x))).numpy()


def ask(answerer: Answerer, x: NDArray[np.float32], stream: Stream) -> Answers:
    """Query as a client who pays any price; for the data holder's own measurements, which no ledger counts."""
    found = [Answers(np.empty(0, np.int64))]
    for start in range(0, len(x), _BLOCK):
        part = x[start : start + _BLOCK]
        found.append(answerer.answer(part, answerer.reserve(len(part)), stream.child("ask", start)))
    values = [one.values for one in found if one.values is not None]
    return Answers(np.concatenate([one.labels for one in found]), np.concatenate(values) if values else None)


def ask_all(answerer: Answerer, records: Records, stream: Stream) -> Outcomes:
    """The answer about every record; stays inside."""
    from airlock.training.outcomes import Outcomes

    return Outcomes(records.y, ask(answerer, as_queries(records), stream).labels.astype(np.int64))

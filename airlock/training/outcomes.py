"""What happened to every test record: its label, what was said of it, and how sure that was. It stays inside.

Each record's outcome follows from the release and that record alone, bit for bit, so one record more or less leaves all
others as they are. That is what makes a table of outcomes a count in which one person moves one cell
(`auditing.evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Whole = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Outcomes:
    """Of the test records, in their order; secret.

    Args:
        labels: What is true.
        predicted: What was said.
        scores: Of two classes the probability of class 1, of more that of the predicted class; None where only labels
            are said. Which of both it is, is a fact about the method and never about records.
    """

    labels: Whole
    predicted: Whole
    scores: NDArray[np.float64] | None = None

    @classmethod
    def of_logits(cls, logits: ArrayLike, labels: Whole) -> Outcomes:
        """From a network's outputs, a row a record.

        Rows go through one buffer, one after the other: numpy may round an exponential differently at the end of an
        array, so that a neighbour who is there or not could move a record from one bin to the next.
        """
        rows = np.asarray(logits, np.float64)
        scores, one = np.empty(len(rows)), np.empty(rows.shape[1])
        predicted = rows.argmax(1).astype(np.int64)
        with np.errstate(all="ignore"):  # outputs that are no numbers give a score of 0, and nobody is told
            for place, row in enumerate(rows):
                one[:] = row
                one -= one.max()
                np.exp(one, out=one)
                scores[place] = one[1 if len(one) == 2 else predicted[place]] / one.sum()
        return cls(labels, predicted, np.nan_to_num(scores, nan=0.0))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Outcomes:
        """What `arrays` gave."""
        scores = arrays.get("scores")
        return cls(
            np.asarray(arrays["labels"], np.int64),
            np.asarray(arrays["predicted"], np.int64),
            None if scores is None else np.asarray(scores, np.float64),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For the vault."""
        known: dict[str, NDArray[Any]] = {"labels": self.labels, "predicted": self.predicted}
        return known if self.scores is None else {**known, "scores": self.scores}

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which records were classified correctly."""
        return np.asarray(self.labels == self.predicted)

    @property
    def correct(self) -> int:
        """How many records were classified correctly."""
        return int(self.right.sum())

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def accuracy(self) -> float:
        """The fraction classified correctly; 0 where there are none."""
        return self.correct / max(1, self.records)

    def __repr__(self) -> str:
        return "Outcomes(not shown)"

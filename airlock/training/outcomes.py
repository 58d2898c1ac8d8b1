"""A trained network's outputs and accuracy, and the prediction for every test record.

Outputs are computed without gradients; each record's output depends on that record alone.

`Outcomes` hold each record's label, its prediction and a score; they stay inside. Each record's outcome depends only on
the release and that record, bit for bit, so adding or removing a record does not change any other's. This makes a table
of outcomes a histogram in which one person moves one cell (`auditing.evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from airlock.config import STEPS
from airlock.data import Records
from airlock.data.text import largest_loss
from airlock.training.devices import to_input
from airlock.training.losses import placed
from airlock.training.per_sample import outputs

Whole = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Outcomes:
    """The outcomes of the test records, in their order; secret.

    Args:
        labels: The true classes; where a number is predicted, the targets in steps of their range (`config.STEPS`); of
            a language model, what each text's loss was before training, in steps of `largest_loss`.
        predicted: The predicted classes, or numbers, or losses after training.
        scores: With two classes the probability of class 1, with more that of the predicted class; None if only labels
            are returned. Whether there are scores is a property of the method, never of the records.
    """

    labels: Whole
    predicted: Whole
    scores: NDArray[np.float64] | None = None

    @classmethod
    def of_logits(cls, logits: ArrayLike, labels: Whole) -> Outcomes:
        """From a network's outputs, one row per record.

        Rows go through one buffer, one at a time: numpy may round an exponential differently at the end of an array, so
        the presence of another record could move a record from one bin to the next.
        """
        rows = np.asarray(logits, np.float64)
        scores, one = np.empty(len(rows)), np.empty(rows.shape[1])
        predicted = rows.argmax(1).astype(np.int64)
        with np.errstate(all="ignore"):  # outputs that are not numbers silently give a score of 0
            for place, row in enumerate(rows):
                one[:] = row
                one -= one.max()
                np.exp(one, out=one)
                scores[place] = one[1 if len(one) == 2 else predicted[place]] / one.sum()
        return cls(labels, predicted, np.nan_to_num(scores, nan=0.0))

    @classmethod
    def of_targets(cls, found: Tensor, targets: Whole) -> Outcomes:
        """From a network's single output per record; each is clamped to the declared range."""
        return cls(targets, torch.round(STEPS * placed(found)).to(torch.int64).numpy())

    @classmethod
    def of_losses(cls, before: Tensor, after: Tensor, vocabulary: int) -> Outcomes:
        """From every text's mean loss before and after training; one that is no number counts as a guess."""
        found = [
            torch.nan_to_num(side.double() / largest_loss(vocabulary), nan=1.0).clamp(0.0, _FAR_OFF)
            for side in (before, after)
        ]
        return cls(*(torch.round(STEPS * side).to(torch.int64).numpy() for side in found))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Outcomes:
        """The inverse of `arrays`."""
        scores = arrays.get("scores")
        return cls(
            np.asarray(arrays["labels"], np.int64),
            np.asarray(arrays["predicted"], np.int64),
            None if scores is None else np.asarray(scores, np.float64),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to be stored in the vault."""
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
        """The number of records."""
        return len(self.labels)

    @property
    def accuracy(self) -> float:
        """The fraction classified correctly; 0 if there are no records."""
        return self.correct / max(1, self.records)

    @property
    def error_over_the_range(self) -> float:
        """Where a number is predicted: the root mean square error over the length of its range; 0 without records."""
        return float(np.sqrt((((self.predicted - self.labels) / STEPS) ** 2).mean())) if self.records else 0.0

    def __repr__(self) -> str:
        return "Outcomes(not shown)"


# Evaluating a network.

_BATCH = 1024
_FAR_OFF = 64.0  # times ln V: more than any loss that means something


def predict(net: nn.Module, records: Records) -> Tensor:
    """Logits of every record, on the CPU; there may be none."""
    device = next(net.parameters()).device
    net.eval()
    if not len(records):  # one blank record shows the number of logits
        blank = Records(np.zeros((1, *records.x.shape[1:]), records.x.dtype), np.zeros(1, np.int64))
        return predict(net, blank)[:0]
    found = []
    for start in range(0, len(records), _BATCH):
        x = torch.from_numpy(np.array(records.x[start : start + _BATCH])).to(device)  # a copy: records may be in a file
        found.append(outputs(net, to_input(x)).float().cpu())
    return torch.cat(found)


def count_correct(net: nn.Module, records: Records) -> int:
    """How many records the network classifies correctly."""
    return int((predict(net, records).argmax(1).numpy() == records.y).sum())


def losses_of(net: nn.Module, before: nn.Module, records: Records, vocabulary: int) -> Outcomes:
    """How badly a language model predicts the tokens of every text, and how badly it did before it was trained."""
    earlier, later = (predict(one, records)[:, 0] for one in (before, net))
    return Outcomes.of_losses(earlier, later, vocabulary)


def outcomes_of(net: nn.Module, records: Records, task: str = "classification") -> Outcomes:
    """The outcome of every record; it stays inside."""
    found = predict(net, records)
    if task == "regression":
        return Outcomes.of_targets(found, records.y)
    return Outcomes.of_logits(found.numpy(), records.y)

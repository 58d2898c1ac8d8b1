"""What a record's outputs cost: one loss per record, as a value that engines, samplers and attacks are given.

`CROSS_ENTROPY` is for classes, `SQUARED_ERROR` for numbers. A target is stored as a whole number of steps of its
declared range (`config.TargetRange`), so that everything that moves records about sees whole numbers, as with classes;
and a network's single output says how far from the middle of that range it lies, in units of the range. `NEXT_TOKEN` is
for texts without labels: a language model's output for a text is its loss already (`nets.hugging_face.LanguageModel`).

Clipping bounds one record's gradient whatever the loss is, so no proof depends on which one is taken. The gradient
itself depends on it: the engine shows for each network *and* loss that records are kept apart
(`per_sample.self_check`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from airlock.config import STEPS
from airlock.data import Facts


@dataclass(frozen=True)
class Loss:
    """A loss per record.

    Args:
        name: For checkpoints: a run continues with the loss that it began with.
        of: From outputs (records, outputs) and labels (records,) to one number per record.
        other: A label other than 0, for made-up records; 0 where records have none.
    """

    name: str
    of: Callable[[Tensor, Tensor], Tensor] = field(compare=False, repr=False)
    other: int = 1

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Of every record, in float32."""
        return self.of(outputs.float(), y)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[:, 0] - (y / STEPS - MIDDLE)).square()


def _next_token(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs[:, 0]


def from_the_middle(y: Tensor) -> Tensor:
    """How far targets lie from the middle of their range, from −1/2 to 1/2: (records, 1) in float64."""
    distance: Tensor = (y.double() / STEPS - MIDDLE).clamp(-0.5, 0.5)
    return distance[:, None]


MIDDLE = 0.5  # of the declared range: where an output of 0 lies
CROSS_ENTROPY = Loss("cross-entropy", _cross_entropy)
SQUARED_ERROR = Loss("squared error", _squared_error, STEPS)
NEXT_TOKEN = Loss("next token", _next_token, 0)
_LOSSES = {"classification": CROSS_ENTROPY, "regression": SQUARED_ERROR, "language": NEXT_TOKEN}


def loss_for(facts: Facts) -> Loss:
    """What is minimised on records of these facts."""
    return _LOSSES[facts.task]


def placed(outputs: Tensor) -> Tensor:
    """Where in the declared range a network's outputs lie, from 0 to 1; one that is no number is in the middle."""
    return torch.nan_to_num(outputs.double()[:, 0] + MIDDLE, nan=MIDDLE).clamp(0.0, 1.0)

"""How much a record of each class counts in training: declared weights, relative to the largest of them.

Where one class is rare, a model that never names it is nearly always right. A weight of 10 for that class makes one of
its records count as much as ten others. Weights are *declared* before a record is read: read off the records, they
would say how many there are of each class.

Weights are relative. They are divided by the largest, so that a record of the class that counts most counts once, and
one of another class a fraction of that: v_c = w_c / max w, and 0 < v_c ≤ 1. So no record counts for more than it would
without weights, and *every bound on one record stays what it was*:

* Clipped gradients (`private`, `per_sample`). A record's gradient g is clipped to the bound C first, and enters the sum
  as v · clip(g), whose norm is at most v C ≤ C. A record's weight follows from its own label and from public figures,
  so adding or removing the record moves the sum by at most C: the event is the same, for every sampling. Weights are
  not applied before clipping: where most gradients are longer than C, clipping would take them back. A *person's*
  mean gradient is clipped to C, and counts with the mean of her records' weights, which is at most 1 too.
* Certified heads (`convex`). A record's loss enters the objective with weight v, and its gradient is at most v √2 R ≤
  √2 R long. Largest weights above 1 would have to be in the sensitivity; there are none.
* Shards (`twin`, `votes`, teachers). A shard's vector or vote is clipped, or is one vote, whatever it was made from.

The price: the noise stays as large as it was, while the records of all other classes say less than they would. So a
weight buys recall of the rare class with the precision of everything else.

*Balanced lots* would be the same at the same cost. If a record of class c entered a lot with probability q v_c instead
of q, the event would be that of q for all: what a step gives with a record that is drawn with probability p ≤ q is the
mixture (1 − p/q) P + (p/q) Q of what it gives without the record and with it at q, and divergences are convex, so the
class with the largest probability costs most. The expected sum of gradients is then Σ q v_c clip(g), as it is with
weights. Lots drawn that way save nothing but time, and measured they do no better (docs/config.md#rare-classes), so
there are only weights.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.errors import ConfigError

_FEW = 10  # classes that a sentence names


@dataclass(frozen=True)
class ClassWeights:
    """What a record of each class counts, in the order of the classes.

    Guarantee: a record's weight is at most 1, and depends on its own label alone.

    Args:
        relative: v, above 0 and at most 1.
    """

    relative: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0.0 < weight <= 1.0 for weight in self.relative):
            raise ValueError("weights above 0 and at most 1: more would exceed the bound on one record")

    def of(self, labels: Tensor) -> Tensor:
        """The weight of every record, in float64."""
        return torch.tensor(self.relative, dtype=torch.float64, device=labels.device)[labels.long()]

    def of_array(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same for labels that are not in a tensor."""
        return np.asarray(self.relative, np.float64)[labels]

    def in_words(self, classes: Sequence[str]) -> str:
        """For cards and tables: the classes that differ from most others, and what these count."""
        usual = Counter(self.relative).most_common(1)[0][0]
        named = [(name, weight) for name, weight in zip(classes, self.relative, strict=True) if weight != usual]
        if len(classes) <= _FEW:
            named = list(zip(classes, self.relative, strict=True))
        words = [f"{name} {weight:.4g}" for name, weight in named[:_FEW]]
        words += [f"{len(named) - _FEW:,} more by the config"] if len(named) > _FEW else []
        words += [f"all others {usual:.4g}"] if len(classes) > _FEW else []
        return ", ".join(words)


def relative_to_the_largest(
    declared: Mapping[str, float] | Sequence[float] | None, classes: Sequence[str]
) -> ClassWeights | None:
    """Declared weights over the largest of them; None where all classes count alike.

    Raises:
        ConfigError: A name is not one of the classes, or a list has another length.
    """
    if declared is None:
        return None
    if isinstance(declared, Mapping):
        _check_names(declared, classes)
        whole = [declared.get(name, 1.0) for name in classes]
    elif len(declared) != len(classes):
        raise ConfigError(
            f"one number in class_weights for each of the {len(classes)} classes",
            f"{len(declared)}",
            "A list is in the order of the classes.",
            "Name only the classes that count differently, as in class_weights = { rare = 10 }.",
        )
    else:
        whole = list(declared)
    largest = max(whole, default=1.0)
    return ClassWeights(tuple(_ratio(weight, largest) for weight in whole)) if len(set(whole)) > 1 else None


def _ratio(weight: float, largest: float) -> float:
    ratio = weight / largest
    if ratio < 1e-9:
        raise ConfigError(
            "weights in class_weights of which none is more than 10⁹ times another",
            f"{largest:g} and {weight:g}",
            "The records of that class would not count at all.",
            "Lower the largest weight; usual ones are between 1 and the number of times a class is rarer.",
        )
    return ratio


def _check_names(declared: Mapping[str, float], classes: Sequence[str]) -> None:
    for name in declared:
        if name not in classes:
            near = difflib.get_close_matches(name, classes, n=1)
            raise ConfigError(
                "names of classes in class_weights",
                f"'{name}'",
                "A weight that was silently ignored would hide a mistake.",
                f"Did you mean '{near[0]}'?" if near else f"The classes are {', '.join(classes[:20])}.",
            )

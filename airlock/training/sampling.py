"""Which records enter a step. A private run's event comes from its sampler, so the two cannot disagree.

Samplers hold no state: a step's draw depends on the step alone (and the seed or stream), so a resumed run draws what an
uninterrupted one would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from airlock.mechanisms import Stream

Index = NDArray[np.int64]


class Sampler(Protocol):
    """Gives the positions of a step's records."""

    def draw(self, step: int, records: int) -> Index:
        """The positions for this step out of `records`."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Every record enters independently with the same probability; a lot may be empty.

    The draw is privacy randomness: amplification by sampling holds only as long as nobody knows who was drawn.

    Args:
        sampling_probability: In (0, 1].
        stream: The secret stream.
    """

    sampling_probability: float
    stream: Stream

    def draw(self, step: int, records: int) -> Index:
        """The positions of one lot."""
        if self.sampling_probability >= 1:
            return np.arange(records, dtype=np.int64)
        found = [np.empty(0, np.int64)]
        for first, chance in self.stream.child("lot", step).uniform_blocks(records):
            found.append(first + np.flatnonzero(chance < self.sampling_probability))
        return np.concatenate(found)

    def event(self, mechanism: dpa.DpEvent) -> dpa.DpEvent:
        """What a mechanism costs on one lot of this sampler."""
        return sampled(self.sampling_probability, mechanism)


def sampled(sampling_probability: float, mechanism: dpa.DpEvent) -> dpa.DpEvent:
    """The event of a mechanism on a Poisson lot; at probability 1 nothing is sampled."""
    return mechanism if sampling_probability >= 1 else dpa.PoissonSampledDpEvent(sampling_probability, mechanism)


@dataclass(frozen=True)
class Shuffled:
    """Batches of fixed size from a new permutation every epoch, for training without privacy.

    It has no `event`: no accountant in this package bounds it.

    Args:
        batch_size: Records in a batch.
        seed: The seed of the permutations.
        whole: Drop the remainder of an epoch that does not fill a batch.
    """

    batch_size: int
    seed: int
    whole: bool = False

    def draw(self, step: int, records: int) -> Index:
        """The positions of one batch; the last of an epoch may be smaller unless `whole` is set.

        Empty if there are no records, or too few for one whole batch.
        """
        batches = records // self.batch_size if self.whole else -(-records // self.batch_size)
        if not batches:
            return np.empty(0, np.int64)
        epoch, place = divmod(step, batches)
        return order(self.seed, epoch, records)[place * self.batch_size : (place + 1) * self.batch_size]


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, records: int) -> Index:
    """The permutation of an epoch; it is cached for later steps, so it must not be modified."""
    return np.random.default_rng([seed, epoch]).permutation(records).astype(np.int64)

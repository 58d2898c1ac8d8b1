"""Local mechanisms: every record is randomised by itself, before anything else is done with it.

One record in, one noisy record out (Kasiviswanathan et al. 2011). A row depends only on its own record, so the
guarantee for one row whose record is replaced is the guarantee for the whole set, whatever the other rows are: under
replace-one, and under add-remove if rows are chosen such that adding or removing a record changes one of them
(`methods.rows`). Somebody with several records changes several rows, up to a public number of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import dp_accounting as dpa
import numpy as np
import torch
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from numpy.typing import NDArray
from torch import Tensor

from airlock.mechanisms.clipping import clip_factors, row_squares
from airlock.mechanisms.gaussian import GaussianNoise
from airlock.mechanisms.randomness import Stream


@dataclass(frozen=True)
class LocalGaussian:
    """Clips every row to norm R and adds N(0, σ²) to each of its numbers, σ = 2R√K times the noise multiplier.

    Guarantee: two rows of norm at most R are at most 2R apart, and two sets of K such rows, as one long vector, at most
    2R√K: Σ ‖a_i − b_i‖² ≤ K (2R)². So changing any K rows is `GaussianDpEvent(noise_multiplier)`, and so is the release
    of the whole set, in however many calls with noise of their own. A row that is not finite becomes zero. A row
    depends only on its own record and its own noise. It is at most R away from the centre of the ball, 0, and K rows
    are at most R√K away: half as far, which `mechanisms.reconstruction` uses.

    Args:
        clip_norm: R; public.
        noise_multiplier: σ / 2R√K.
        rows: K, how many rows may change together; public.
    """

    clip_norm: float
    noise_multiplier: float
    rows: int = 1

    @property
    def noise(self) -> GaussianNoise:
        """The noise that is added."""
        return GaussianNoise(2 * self.clip_norm * math.sqrt(self.rows), self.noise_multiplier)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on each number; the noise actually added has at least this."""
        return 2 * self.clip_norm * math.sqrt(self.rows) * self.noise_multiplier

    @property
    def event(self) -> dpa.DpEvent:
        """What one release of every row costs."""
        return self.noise.event

    def clip(self, rows: Tensor) -> Tensor:
        """Each row in the ball of radius R around 0, flat, in float32."""
        flat = rows.flatten(1).float()
        norms = row_squares(flat).sqrt()
        clipped = flat * clip_factors(norms, self.clip_norm)[:, None].float()
        return torch.where(torch.isfinite(norms)[:, None], clipped, torch.zeros_like(clipped))

    def add(self, rows: Tensor, stream: Stream) -> NDArray[np.float64]:
        """Clipped rows with noise, flat."""
        clipped = self.clip(rows)
        noise = replace(self.noise, together=self.rows * clipped.shape[1])
        return noise.add(clipped.cpu().numpy(), stream)


@dataclass(frozen=True)
class RandomisedResponse:
    """Keeps a label with probability e^ε/(e^ε + C − 1), else returns one of the others uniformly (Warner 1965).

    Guarantee: any answer is at most e^ε times as likely for one label as for another, or for one drawn at random: ε-DP
    for replacing a label by another; the event is the worst of all ε-DP mechanisms.

    Args:
        classes: C, at least 2.
        epsilon: ε.
    """

    classes: int
    epsilon: float

    @property
    def event(self) -> dpa.DpEvent:
        """What one release of every label costs."""
        return DiscreteLaplaceDpEvent(self.epsilon, 1)

    @property
    def kept(self) -> float:
        """The probability that a label is kept."""
        return 1.0 / (1.0 + (self.classes - 1) * math.exp(-self.epsilon))

    def answer(self, labels: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        """One noisy label for each."""
        stay = stream.child("stay").uniform(len(labels)) < self.kept
        move = 1 + (stream.child("move").uniform(len(labels)) * (self.classes - 1)).astype(np.int64)
        stream.note_drawn("cpu")
        return np.where(stay, labels, (labels + move) % self.classes)

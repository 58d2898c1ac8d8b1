"""The exponential mechanism over a few options (McSherry and Talwar 2007), sampled exactly.

Scores are rounded to a public grid, so that every weight is exp(−a/s) with whole a and s; an option is drawn uniformly
and kept with its weight over the largest, by coins that compare whole numbers (`discrete.Coins`). What comes out has
exactly the stated probabilities. How many draws that takes depends on the scores as well as on chance: whoever can time
single answers learns a little about both. Options are drawn in blocks of twice their number, which hides most of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from numpy.typing import NDArray

from airlock.mechanisms.discrete import LARGEST_SCALE, Coins, Whole
from airlock.mechanisms.randomness import Stream

_GRID_BITS = 20  # grid steps in one scale of the weights, as a power of two
_FARTHEST = 2.0**51  # steps from zero beyond which a score is refused


@dataclass(frozen=True)
class ExponentialMechanism:
    """Picks option c with probability in proportion to exp(η u_c).

    Guarantee. Between neighbouring inputs the scores move by d_c, and `spread` bounds max d − min d. The privacy loss
    of picking c is η d_c − (ln Z' − ln Z), so all losses of a pair lie in one interval [t, t + ε] with ε = η · spread;
    it contains 0, because neither distribution can be larger everywhere.

    * `concentrated` false: |loss| ≤ ε, so one call is ε-DP. The event is the worst of all ε-DP mechanisms.
    * `concentrated` true: one call is ρ-zCDP with ρ = ε²/8 (Cesar and Rogers 2021). Proof: let L be the loss under P.
      By Hoeffding's lemma ln E[e^(s L)] ≤ s E[L] + s²ε²/8 for every s. With s = −1 the left side is ln Σ P' = 0, so
      E[L] ≤ ε²/8; with s = α − 1 it is α − 1 times the Rényi divergence of order α, which is therefore at most
      ε²/8 + (α − 1) ε²/8 = α ε²/8.

    On the grid g scores are rounded, each by at most g/2 on either side, so that d_c changes by at most g and the
    spread by 2g: in steps it is at most spread/g + 2, which the weights are scaled to.

    Args:
        spread: How far the difference of two options' scores moves at most, under the guarantee's relation.
        epsilon: ε of one call.
        concentrated: Which of the two the event states.
    """

    spread: float
    epsilon: float
    concentrated: bool

    def __post_init__(self) -> None:
        if not (0 < self.spread < math.inf and 0 < self.epsilon < math.inf):
            raise ValueError("spread and epsilon must be finite and positive")
        if self.scale > LARGEST_SCALE:
            raise ValueError("an epsilon too small for the grid")

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        if self.concentrated:
            return dpa.ZCDpEvent(self.epsilon**2 / 8, 0.0)
        return DiscreteLaplaceDpEvent(self.epsilon, 1)

    @property
    def grid(self) -> float:
        """The public spacing of the scores: a power of two, about a millionth of 1/η."""
        return 2.0 ** (math.floor(math.log2(self.spread / self.epsilon)) - _GRID_BITS)

    @property
    def scale(self) -> int:
        """1/η in steps of the grid, rounded up and one more."""
        return math.ceil((self.spread / self.grid + 2) / self.epsilon) + 1

    def pick(self, scores: NDArray[np.floating], stream: Stream) -> Whole:
        """One option a row of scores; every row is a call of its own."""
        if not (np.abs(scores) <= _FARTHEST * self.grid).all():
            raise ValueError("a score that is not finite, or beyond 2^51 steps of the grid, cannot be weighed exactly")
        steps = np.rint(scores.astype(np.float64) / self.grid).astype(np.int64)
        short = steps.max(1, keepdims=True) - steps
        coins, picked, missing = Coins(stream), np.full(len(steps), -1), np.arange(len(steps))
        stream.note_drawn("cpu")
        while len(missing):
            picked[missing] = self._attempt(short[missing], coins)
            missing = missing[picked[missing] < 0]
        return picked

    def _attempt(self, short: Whole, coins: Coins) -> Whole:
        """The first of some uniform options that is kept, by row; −1 where none is."""
        rows, options = short.shape
        drawn = coins.below(options, rows * 2 * options).reshape(rows, -1)
        away = np.take_along_axis(short, drawn, 1).ravel()
        kept = coins.powers(np.ones(len(away), np.int64), 1, away // self.scale)
        kept[kept] = coins.exponential(away[kept] % self.scale, self.scale)
        kept = kept.reshape(rows, -1)
        first = np.take_along_axis(drawn, kept.argmax(1)[:, None], 1)[:, 0]
        return np.asarray(np.where(kept.any(1), first, -1))

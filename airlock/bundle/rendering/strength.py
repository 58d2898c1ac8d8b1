"""How strong a proven guarantee is, by what an attacker gains: one table for card, gate, policy and comparison.

Whether a guarantee is proved and how strong it is are two questions. A proof may be flawless and its ε so large that it
promises next to nothing. Strength is the largest probability with which somebody who knows everything else, and starts
from even odds, is right about whether a record was used: (e^ε + δ) / (1 + e^ε) (`formatting.best_guess`; Kairouz, Oh
and Viswanath 2015, theorem 2.1). A coin is right 50% of the time; δ's part is in the same figure, so a large δ is never
strong. The steps are where such a guess is right three times in four, nine times in ten, and 99 times in 100.

Above `LARGEST_EPSILON` the gate closes by default: there "How to DP-fy ML" (Ponomareva et al. 2023) calls a guarantee
weak or none by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airlock.bundle.rendering.formatting import best_guess

LARGEST_EPSILON, CAUTION_EPSILON = 10.0, 1.0  # the policy's defaults
Level = Literal["strong", "moderate", "weak", "very-weak"]
Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class Strength:
    """One row of the table.

    Args:
        level: Its name in a policy and in a program.
        guess: A guess about one record is right at most this often.
        word: What a card calls it.
        joined: How the word follows "Proven".
        means: What it means, in a few words.
        tone: The colour of the page's frame and bar.
    """

    level: Level
    guess: float
    word: str
    joined: str
    means: str
    tone: Tone


STRENGTHS = (
    Strength("strong", 0.75, "strong", "strong", "even the best guess is often wrong", "good"),
    Strength("moderate", 0.90, "moderate", "moderate", "the best guess is usually right, and never certain", "warn"),
    Strength("weak", 0.99, "weak", "but weak", "the best guess is nearly always right", "warn"),
    Strength("very-weak", 1.0, "very weak", "but very weak", "the best guess is practically certain", "bad"),
)
LEVELS: tuple[Level, ...] = tuple(one.level for one in STRENGTHS)


def strength(epsilon: float, delta: float) -> Strength:
    """The first row whose limit the best possible guess does not exceed."""
    found = best_guess(epsilon, delta)
    return next((one for one in STRENGTHS if found <= one.guess), STRENGTHS[-1])


def step(level: Level) -> int:
    """The place of a row, from 1 for the strongest; a larger one protects less."""
    return LEVELS.index(level) + 1

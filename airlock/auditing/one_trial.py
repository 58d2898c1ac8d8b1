"""A claim before the court with one run: toss the canaries' coins, make the release once, guess, and say what it shows.

The coins and the randomness of the release are independent leaves of one stream. The numbers of guesses are fixed in
`one_run` and share the error, so nothing is chosen on the scores whose truth certifies the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from airlock.auditing import one_run_audit
from airlock.auditing.audit_game import in_words, power
from airlock.auditing.one_run_audit import Look
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Stream
from airlock.methods.case import Canaries

CANARIES, FEWEST, MOST = 1000, 20, 5000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class OneRunVerdict:
    """What one run found about one claim.

    Args:
        canaries: What was tried.
        looks: The numbers of guesses, the right ones among them, and what each number shows by itself.
        confidence: Of everything in this verdict together.
        seconds: How long the run took.
    """

    canaries: Canaries
    looks: tuple[Look, ...]
    confidence: float
    seconds: float

    @property
    def would_show(self) -> float | None:
        """From which real ε on this claim is refuted in about half of all trials; None if from none.

        Of this mechanism with less noise; of one that answers every coin with its ε where the noise is not known.
        """
        return self._power[0]

    @property
    def less_noise(self) -> float | None:
        """By what the mechanism's noise is divided there; None where it is not known."""
        return self._power[1]

    @cached_property
    def could_refute(self) -> float:
        """The largest claim that so many canaries could have refuted at all, with every guess right."""
        return one_run_audit.could_refute(self.canaries.count, self.canaries.claim.delta, self.confidence)

    @cached_property
    def _power(self) -> tuple[float | None, float | None]:
        claim, count = self.canaries.claim, self.canaries.count
        find = partial(one_run_audit.would_show, count, claim.epsilon, claim.delta, self.confidence)
        return power(claim.epsilon, self.canaries.family, find)

    @property
    def best(self) -> Look:
        """The number of guesses that showed most."""
        return one_run_audit.best(self.looks)

    @property
    def epsilon_lower_bound(self) -> float:
        """ε at the claim's δ is above this, with the stated confidence."""
        return self.best.bound

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, with the stated confidence."""
        return self.epsilon_lower_bound >= self.canaries.claim.epsilon

    @property
    def tried(self) -> bool:
        """Whether the claim could have been refuted, or was; if not, that it stands says nothing at all."""
        return self.refuted or self.would_show is not None

    @property
    def says(self) -> str:
        """`refuted`, or `not refuted` with what could have been seen."""
        if self.refuted:
            return "refuted"
        if self.would_show is None:
            return "not refuted (too few canaries to refute it)"
        return f"not refuted (could have refuted ε ≥ {self.would_show:.2f})"

    @property
    def of_what(self) -> str:
        """Of which mechanism `would_show` speaks."""
        return in_words(self.canaries.family, self.less_noise)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        claim = self.canaries.claim
        return {
            "claim": {"epsilon": claim.epsilon, "delta": claim.delta, "theorem": claim.theorem},
            "verdict": self.says,
            "refuted": self.refuted,
            "tried": self.tried,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "confidence": self.confidence,
            "relation": "add-remove",
            "runs": 1,
            "canaries": self.canaries.count,
            "guesses": self.best.guesses,
            "correct": self.best.correct,
            "looks": [{"guesses": x.guesses, "correct": x.correct, "epsilon": x.bound} for x in self.looks],
            "could_refute": self.would_show,
            "could_refute_of": None if self.would_show is None else self.of_what,
            "noise_divided_by": self.less_noise,
            "largest_refutable_claim": self.could_refute,
            "seconds": round(self.seconds, 1),
            "run": self.canaries.what,
            "statistics": [self.canaries.statistic],
        }


def judge_one_run(
    canaries: Canaries, stream: Stream, confidence: float = 0.95, progress: Progress | None = None
) -> OneRunVerdict:
    """Try to refute a claim with one run of the whole method.

    Guarantee: a true claim is refuted, or a lower bound above the true ε given, with probability at most
    1 − confidence, over the coins and the run (`one_run` has the theorem and its proof).

    Args:
        canaries: What is tried.
        stream: The randomness of the coins and of the run.
        confidence: Of the verdict.
        progress: Called with a label, the runs done and the runs in all.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError("a confidence from 0.5 to below 1", f"{confidence:g}")
    claim, count, begin = canaries.claim, canaries.count, time.monotonic()
    coins = stream.child("coins").uniform(count) < 0.5
    scores = canaries.run(coins, stream.child("run"))
    if scores.shape != (count,):
        raise Refused(f"a score for each of {count} canaries", f"an array of shape {scores.shape}")
    if progress:
        progress("runs", 1, 1)
    looks = one_run_audit.looks(scores, coins, claim.delta, confidence)
    return OneRunVerdict(canaries, looks, confidence, time.monotonic() - begin)


def check_count(count: int) -> None:
    """Refuse numbers of canaries that say nothing or do not fit."""
    if not FEWEST <= count <= MOST:
        why = "Fewer say nothing about any ε; the network grows with them, its records with their square."
        raise ConfigError(f"from {FEWEST} to {MOST:,} canaries", f"{count}", why)

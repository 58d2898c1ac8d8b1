"""The court: run the mechanism on two neighbouring data sets, bet on the runs as they arrive, stop once settled.

Runs come in batches. The events to bet on in a batch are chosen on earlier batches, so no run is counted by a test that
it helped to choose. Half of the error β goes to the bets against the claim and the other points of its privacy curve,
half to the lower bound on ε; everything a verdict states is jointly correct with probability at least 1 − β. Both tests
are valid under optional stopping.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from airlock.auditing.bounds import Floats
from airlock.auditing.dp_audit import (
    Hits,
    Point,
    PrivacyCurve,
    anytime,
    choose,
    could_refute,
    fastest_growth,
    randomised_response,
    would_show,
)
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods.case import Case, LessNoise

FIRST = 32  # pairs of the first batch, which is never bet on
_LARGEST_BATCH = 1000
CONFIDENCE, PAIRS, SECONDS = 0.95, 20_000, 25.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Verdict:
    """What the court found about one claim.

    Args:
        case: What was tried.
        refuted_at: The (ε, δ) that was refuted; None if the claim stands.
        epsilon_lower_bound: The mechanism's ε at the claim's δ is above this, with the stated confidence.
        confidence: Of everything in this verdict together.
        pairs: How many pairs of runs were made.
        seconds: How long they took.
    """

    case: Case
    refuted_at: Point | None
    epsilon_lower_bound: float
    confidence: float
    pairs: int
    seconds: float

    @property
    def would_show(self) -> float | None:
        """The smallest true ε at which this many pairs refute the claim in about half of all trials, if any.

        For this mechanism with less noise, or for randomised response where the noise is not known.
        """
        return self._power[0]

    @property
    def less_noise(self) -> float | None:
        """The factor by which the noise is divided at that ε; None where the noise is not known."""
        return self._power[1]

    @property
    def could_refute(self) -> float:
        """The largest claimed ε that this many pairs could have refuted at all."""
        share = (1.0 - self.confidence) / 2 / len(self.case.points)
        return could_refute(self._bets, self.case.claim.delta, share)

    @property
    def _bets(self) -> int:
        return max(0, self.pairs - FIRST)

    @cached_property
    def _power(self) -> tuple[float | None, float | None]:
        find = partial(would_show, self._bets, self.case.points, (1.0 - self.confidence) / 2)
        return power(self.case.claim.epsilon, self.case.family, find)

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, with the stated confidence."""
        return self.refuted_at is not None

    @property
    def tried(self) -> bool:
        """Whether the claim was, or could have been, refuted; if not, a claim that stands means nothing."""
        return self.refuted or self.would_show is not None

    @property
    def says(self) -> str:
        """`refuted`, or `not refuted` with what could have been seen."""
        if self.refuted:
            return "refuted"
        if self.would_show is None:
            return "not refuted (too few pairs to refute anything)"
        return f"not refuted (could have refuted ε ≥ {self.would_show:.2f})"

    def sentence(self, name: str) -> str:
        """The verdict on the claim of the named method, in one or two sentences."""
        claim, at = self.case.claim, self.refuted_at
        stated = f"{name} claims (ε, δ) = ({claim.epsilon:.4g}, {claim.delta:g})"
        sure = f"{self.confidence * 100:g}% confidence"
        if at == (claim.epsilon, claim.delta):
            return f"Refuted: {stated}, and that is false, with {sure}."
        if at is not None:
            return f"Refuted: {stated} by a proof that fails, with {sure}."
        if self.would_show is None:
            return f"Not tried: {stated}; so few pairs could not have refuted it, whatever the mechanism."
        seen = f"could have refuted ε ≥ {self.would_show:.2f}, {self.of_what}, in about half of such trials"
        return f"Not refuted: {stated}; {seen}. This is no proof."

    @property
    def of_what(self) -> str:
        """The mechanism that `would_show` refers to."""
        return in_words(self.case.family, self.less_noise)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        claim, at = self.case.claim, self.refuted_at
        return {
            "claim": {"epsilon": claim.epsilon, "delta": claim.delta, "theorem": claim.theorem},
            "verdict": self.says,
            "refuted": self.refuted,
            "tried": self.tried,
            "refuted_at": {"epsilon": at[0], "delta": at[1]} if at else None,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "confidence": self.confidence,
            "pairs": self.pairs,
            "could_refute": self.would_show,
            "could_refute_of": None if self.would_show is None else self.of_what,
            "noise_divided_by": self.less_noise,
            "largest_refutable_claim": self.could_refute,
            "seconds": round(self.seconds, 1),
            "pair": self.case.pair,
            "statistics": list(self.case.statistics),
        }


def check_claim(epsilon: float, delta: float) -> None:
    """Refuse a claim that no trial here could refute, or that is none.

    Raises:
        ConfigError: ε is above 10 or not above 0, or δ is not between 0 and 1.
    """
    if not 0 < epsilon <= 10:
        why = "Refuting a larger ε takes more runs than is practical."
        raise ConfigError("an ε above 0 and at most 10", f"{epsilon:g}", why)
    if not 0 < delta < 1:
        raise ConfigError("a δ between 0 and 1", f"{delta:g}", "At δ ≥ 1 every mechanism is private.")


def judge(
    case: Case,
    stream: Stream,
    pairs: int = PAIRS,
    confidence: float = CONFIDENCE,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> Verdict:
    """Try to refute the claim of a case.

    Guarantee: with probability at most 1 − confidence, a true claim is refuted or the lower bound exceeds the true ε,
    provided that the runs are independent. It stops at the first refutation, after `pairs`, or after `seconds`; every
    test in it is valid under optional stopping.

    Args:
        case: What is tried.
        stream: The randomness of all runs.
        pairs: How many pairs of runs at most.
        confidence: Of the verdict.
        seconds: Time limit, exceeded by at most one batch.
        progress: Called with a label, the pairs done and the pairs in all.
    """
    _check(pairs, confidence, seconds)
    trial = _Trial(case, stream, 1.0 - confidence)
    begin = time.monotonic()
    size = FIRST
    while True:
        refuted = trial.go_on(min(size, pairs - trial.pairs))
        spent = time.monotonic() - begin
        if progress:
            progress("pairs", trial.pairs, pairs)
        if refuted or trial.pairs >= pairs or spent >= seconds:
            break
        fits = int(trial.pairs * (seconds - spent) / max(spent, 1e-9)) + 1
        size = max(1, min(trial.pairs // 2 + 1, _LARGEST_BATCH, fits))
    return trial.verdict(confidence, spent)


class _Trial:
    """The runs so far, and the bets on them."""

    def __init__(self, case: Case, stream: Stream, beta: float) -> None:
        self.case, self._stream, self._beta = case, stream, beta
        self._curve = PrivacyCurve(case.points, beta / 2)
        self._one: Floats = np.empty((0, len(case.statistics)))
        self._other: Floats = np.empty((0, len(case.statistics)))
        self._hits: tuple[Hits, Hits] = (np.empty(0, bool), np.empty(0, bool))  # of the bets for the bound
        self._bound = 0.0

    @property
    def pairs(self) -> int:
        return len(self._one)

    def go_on(self, count: int) -> bool:
        """Run `count` more pairs and bet on them; returns whether the claim is refuted by now."""
        one, other = (
            self.case.run(known, count, self._stream.child(int(known), self.pairs)) for known in (True, False)
        )
        refuted = False
        if self.pairs:
            self._curve.learn(self._one, self._other)
            refuted = self._curve.bet(one, other)
            self._raise_bound(one, other)
        self._one, self._other = np.concatenate([self._one, one]), np.concatenate([self._other, other])
        return refuted

    def _raise_bound(self, one: Floats, other: Floats) -> None:
        """Bet on an event that is evidence against an ε slightly above what is refuted so far."""
        claim = self.case.claim
        ahead = max(self._bound, claim.epsilon / 4)
        event = choose(self._one, self._other, fastest_growth(ahead, claim.delta))
        p, q = (np.concatenate(hits) for hits in zip(self._hits, event.hits(one, other), strict=True))
        self._hits = p, q
        self._bound = anytime(p, q, claim.delta, self._beta / 2, self._bound)

    def verdict(self, confidence: float, seconds: float) -> Verdict:
        claim, refuted_at = self.case.claim, self._curve.refuted
        stated, bound = (claim.epsilon, claim.delta), self._bound
        if refuted_at is None and bound >= claim.epsilon:
            refuted_at = stated
        if refuted_at == stated:  # ε is above what was refuted
            bound = max(bound, claim.epsilon)
        return Verdict(self.case, refuted_at, bound, confidence, self.pairs, seconds)


Chances = Callable[[float], tuple[Floats, Floats]]


def power(
    epsilon: float, family: LessNoise | None, find: Callable[[Chances], float | None]
) -> tuple[float | None, float | None]:
    """The smallest true ε at which the claim is refuted about half of the time, and the noise divisor there.

    Computed on demand, because it can take longer than the trial itself.

    Args:
        epsilon: The claim's.
        family: The mechanism with less noise; without it, randomised response stands in.
        find: Returns the first member of a family that is refuted; None if none is.
    """
    if family is None:
        found = find(lambda x: randomised_response(x * epsilon))
        return (None if found is None else found * epsilon), None
    divisor = find(lambda r: family.at(r).chances)
    return (None, None) if divisor is None else (family.at(divisor).epsilon, divisor)


def in_words(family: LessNoise | None, divisor: float | None) -> str:
    """The mechanism that a power refers to: a member of the family, or randomised response where none is known."""
    if family is None or divisor is None:
        return "of randomised response (nothing shows its ε better; the noise of this mechanism is not known here)"
    return family.in_words(divisor)


def _check(pairs: int, confidence: float, seconds: float) -> None:
    if pairs < 2 * FIRST:
        raise ConfigError(f"at least {2 * FIRST} pairs", f"{pairs}", f"The first {FIRST} only choose what to look at.")
    if not 0.5 <= confidence < 1:
        raise ConfigError("a confidence from 0.5 to below 1", f"{confidence:g}")
    if not seconds > 0:
        raise ConfigError("more than 0 seconds", f"{seconds:g}")

"""From rebuilt pictures and guesses to figures with intervals, each beside its blind guess.

In: what an attacker made, and the truth. Out: the values of `findings`. Means have bootstrap intervals over pictures
(percentiles, seeded), shares Clopper and Pearson's; nothing is chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from airlock.auditing.attacks.identify import Guess
from airlock.auditing.bounds import Floats, proportion_interval
from airlock.auditing.features.findings import AttributeResult, IdentificationResult, ReconstructionResult
from airlock.auditing.features.images import psnr, ssim
from airlock.auditing.features.prior_baseline import Blind
from airlock.auditing.metrics import CONFIDENCE
from airlock.auditing.result import View
from airlock.errors import DataError

QUESTIONS: dict[str, str] = {
    "features": "Can someone who holds features, and knows some records with theirs, rebuild a person's picture?",
    "front": "Can someone who holds features and the front end rebuild a person's picture?",
}
_ROUNDS, _AT_ONCE = 20, 100  # resamples of the bootstrap


def mean_interval(values: Floats, confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float]:
    """The bootstrap's percentile interval of the mean; right for many values.

    Raises:
        DataError: There are fewer than two values.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        raise DataError("at least two values for an interval", str(len(values)))
    chance = np.random.default_rng(seed)
    means = [values[chance.integers(0, len(values), (_AT_ONCE, len(values)))].mean(1) for _ in range(_ROUNDS)]
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def rebuilt(
    name: str, view: View, truth: Tensor, y: Tensor, pictures: Tensor, blind: Blind, known: int, threshold: float,
    confidence: float = CONFIDENCE,
) -> ReconstructionResult:  # fmt: skip
    """The figures of one attacker.

    Args:
        name: Of the attacker.
        view: What it has.
        truth: The pictures, 0 to 1.
        y: Their labels, which the blind guess may use.
        pictures: What the attacker made of their features.
        blind: The guess without features.
        known: How many pairs the attacker knew.
        threshold: From which PSNR on a picture counts as rebuilt.
        confidence: Of every interval.
    """
    guess = blind(y)
    ours, theirs = (psnr(one, truth).double().cpu().numpy() for one in (pictures, guess))
    gain, count = ours - theirs, len(ours)
    hits = int((ours >= threshold).sum())
    low, high = mean_interval(ours, confidence)
    gain_low, gain_high = mean_interval(gain, confidence)
    share_low, share_high = proportion_interval(hits, count, confidence)
    return ReconstructionResult(
        name=name,
        question=QUESTIONS[view],
        view=view,
        images=count,
        known=known,
        psnr=float(ours.mean()),
        low=low,
        high=high,
        middle=float(np.median(ours)),
        best_tenth=float(np.quantile(ours, 0.9)),
        ssim=_ssim(pictures, truth),
        blind=blind.name,
        blind_psnr=float(theirs.mean()),
        blind_ssim=_ssim(guess, truth),
        gain=float(gain.mean()),
        gain_low=gain_low,
        gain_high=gain_high,
        smallest_effect=_spread(confidence) * float(gain.std(ddof=1)) / math.sqrt(count),
        threshold=threshold,
        share=hits / count,
        share_low=share_low,
        share_high=share_high,
        blind_share=float((theirs >= threshold).mean()),
        confidence=confidence,
    )


def named(
    guesses: Sequence[tuple[int, Guess]], candidate: str, channels: Sequence[int], sizes: Sequence[int],
    confidence: float = CONFIDENCE,
) -> IdentificationResult:  # fmt: skip
    """The figures of identification.

    Args:
        guesses: The number of known records and what was named with so many.
        candidate: The truth.
        channels: The channels that left, of that candidate.
        sizes: How many channels each candidate has.
        confidence: Of the interval.
    """
    right = tuple(guess.right(candidate, channels) for _, guess in guesses)
    live = tuple(sum(guess.live) for _, guess in guesses)
    low, high = proportion_interval(right[-1], live[-1], confidence) if live[-1] else (0.0, 1.0)
    return IdentificationResult(
        candidates=len(sizes),
        known=tuple(count for count, _ in guesses),
        net_right=tuple(guess.candidate == candidate for _, guess in guesses),
        right=right,
        live=live,
        low=low,
        high=high,
        chance=1.0 / sum(sizes),
        confidence=confidence,
    )


def told(
    attribute: str, truth: Tensor, guess: Tensor, blind: Tensor, known: int, confidence: float = CONFIDENCE
) -> AttributeResult:
    """The figures of attribute inference: guesses with features, and those from the label alone."""
    count, hits = len(truth), int((guess == truth).sum())
    low, high = proportion_interval(hits, count, confidence)
    without = float((blind == truth).double().mean())
    spread = _spread(confidence) * math.sqrt(max(without * (1 - without), 1.0 / count) / count)
    return AttributeResult(
        attribute=attribute,
        records=count,
        known=known,
        value=hits / count,
        low=low,
        high=high,
        blind=without,
        smallest_effect=min(1.0, without + spread),
        confidence=confidence,
    )


def _ssim(first: Tensor, second: Tensor) -> float:
    blocks = [ssim(a, b) for a, b in zip(torch.split(first, 250), torch.split(second, 250), strict=True)]
    return float(torch.cat(blocks).double().mean())


def _spread(confidence: float) -> float:
    return float(norm.ppf(0.5 + confidence / 2))

"""How good a reconstruction is: picture similarity, the blind baseline, and figures with intervals.

Similarity (`psnr`, `ssim`, `total_variation`). In: pictures as floats from 0 to 1, (n, colours, height, width). Out:
one figure per picture. PSNR is capped at 100 dB, so that an exact reconstruction has a finite one.

The prior baseline (`best_prior_baseline`): what someone who never saw the features would guess; every reconstruction
figure is reported against it. Labels leave with the features, so a blind guess may use them. Four guesses are made from
the attacker's own records: the mean picture (least squared error), the constant picture with the largest mean PSNR, and
both for every class. The best is selected on records that the guesses were not made from.

Figures (`rebuilt`, `named`, `told`). In: an attacker's output, and the truth. Out: the values of `auditing.result`.
Means get bootstrap percentile intervals over pictures (seeded), proportions Clopper and Pearson's; nothing is selected
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import norm
from torch import Tensor

from airlock.auditing.attacks.identify import Guess
from airlock.auditing.bounds import Floats, proportion_interval
from airlock.auditing.features.feature_pipeline import Pairs
from airlock.auditing.metrics import CONFIDENCE
from airlock.auditing.result import AttributeResult, IdentificationResult, ReconstructionResult, View
from airlock.errors import DataError
from airlock.training.front_ends.probe_networks import error as error
from airlock.training.front_ends.probe_networks import psnr as psnr

# Similarity of two pictures.

_WINDOW, _SPREAD = 11, 1.5  # of Wang et al. 2004
_C1, _C2 = 0.01**2, 0.03**2


def ssim(first: Tensor, second: Tensor) -> Tensor:
    """Structural similarity of each pair (Wang et al. 2004), averaged over colours and windows inside the picture.

    The window is Gaussian, 11 × 11 with spread 1.5; in a smaller picture, the largest odd size that fits.
    """
    error(first, second)
    if first.dim() != 4:
        raise DataError("pictures (n, colours, height, width)", f"{first.dim()} axes")
    window = _window(min(_WINDOW, *first.shape[2:]), first)

    def mean(x: Tensor) -> Tensor:
        colours = x.shape[1]
        across = F.conv2d(x, window.view(1, 1, 1, -1).repeat(colours, 1, 1, 1), groups=colours)
        return F.conv2d(across, window.view(1, 1, -1, 1).repeat(colours, 1, 1, 1), groups=colours)

    mean_a, mean_b = mean(first), mean(second)
    var_a, var_b = mean(first * first) - mean_a**2, mean(second * second) - mean_b**2
    both = mean(first * second) - mean_a * mean_b
    light = (2 * mean_a * mean_b + _C1) / (mean_a**2 + mean_b**2 + _C1)
    return (light * (2 * both + _C2) / (var_a + var_b + _C2)).flatten(1).mean(1)


def total_variation(x: Tensor) -> Tensor:
    """The mean absolute difference of neighbouring pixels of each picture, vertical and horizontal."""
    down, across = x.diff(dim=2).abs().flatten(1), x.diff(dim=3).abs().flatten(1)
    return (down.sum(1) + across.sum(1)) / x[0].numel()


def _window(size: int, like: Tensor) -> Tensor:
    size -= 1 - size % 2
    places = torch.arange(size, device=like.device, dtype=like.dtype) - size // 2
    weights = torch.exp(-(places**2) / (2 * _SPREAD**2))
    return weights / weights.sum()


# What someone who never saw the features would guess.

_TRUST_ROUNDS, _FLOOR = 10, 1e-3


@dataclass(frozen=True)
class PriorBaseline:
    """A guess for each class, or one for all.

    Args:
        name: As in "the mean picture of the class".
        pictures: (classes or 1, colours, height, width).
    """

    name: str
    pictures: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        """The guess for records with these labels."""
        return self.pictures[y.clamp_max(len(self.pictures) - 1)]


def best_prior_baseline(known: Pairs) -> PriorBaseline:
    """The blind guess with the largest mean PSNR on every fourth record, made from the others."""
    learn, choose = known.halves()
    if not len(choose):
        return candidates(known)[0]
    found = [psnr(baseline(choose.y), choose.x).mean().item() for baseline in candidates(learn)]
    return candidates(known)[max(range(len(found)), key=found.__getitem__)]


def candidates(known: Pairs) -> list[PriorBaseline]:
    """All four."""
    groups = [known.x[known.y == label] for label in range(int(known.y.max()) + 1)]
    groups = [group if len(group) else known.x for group in groups]
    return [
        PriorBaseline("the mean picture", known.x.mean(0, keepdim=True)),
        PriorBaseline("the best constant picture", _constant(known.x)[None]),
        PriorBaseline("the mean picture of the class", torch.stack([group.mean(0) for group in groups])),
        PriorBaseline("the best constant picture of the class", torch.stack([_constant(group) for group in groups])),
    ]


def _constant(x: Tensor) -> Tensor:
    """The picture that minimises the mean log squared error, by iteratively reweighted means.

    Errors are floored at that of 30 dB; otherwise any single one of the pictures would be optimal.
    """
    guess = x.mean(0)
    for _ in range(_TRUST_ROUNDS):
        weights = 1.0 / (x - guess).square().flatten(1).mean(1).clamp_min(_FLOOR)
        guess = (weights.view(-1, *[1] * (x.dim() - 1)) * x).sum(0) / weights.sum()
    return guess


def trust(guess: Tensor, made: Tensor, truth: Tensor) -> float:
    """How far to move from the blind guess to the attacker's picture: all the way, or the least-squares step.

    Decided by the mean PSNR on known records. An attacker whose pictures are mostly noise does better near the blind
    guess; one whose pictures are mostly right would only lose by shrinking them.
    """
    step, wanted = (made - guess).flatten(), (truth - guess).flatten()
    part = float((step @ wanted / step.square().sum().clamp_min(1e-12)).clamp(0, 1))
    better = psnr(guess + part * (made - guess), truth).mean() > psnr(made, truth).mean()
    return part if bool(better) else 1.0


def hits_at_most(x: Tensor, threshold: float) -> float:
    """An upper bound on the share of these pictures to which any single picture has a PSNR of at least `threshold`.

    Guarantee: let k of them lie within distance r of some picture. Their squared distances from it add up to at most k
    r², and from their own mean to no more, so the mean squared distance between two of them (a picture and itself
    included) is at most 2 r². Then one of the k has a mean squared distance of at most 2 r² to all k, and none of them
    is further from it than 2 r. The largest k for which some picture here satisfies both conditions is the bound.
    """
    flat = x.flatten(1)
    square = flat.shape[1] * 10.0 ** (-threshold / 10.0) * (1 + 1e-4)  # r², with room for rounding
    most = 0
    for block in torch.split(flat, 250):
        near = torch.cdist(block, flat, compute_mode="donot_use_mm_for_euclid_dist").square().sort(1).values.double()
        places = torch.arange(1, len(flat) + 1, device=flat.device)
        fits = (near <= 4 * square) & (near.cumsum(1) / places <= 2 * square)
        most = max(most, int((fits * places).max()))
    return most / len(flat)


# Figures with intervals.


QUESTIONS: dict[str, str] = {
    "features": "Can someone who holds features, and knows some records with theirs, rebuild a person's picture?",
    "front": "Can someone who holds features and the front end rebuild a person's picture?",
}
_ROUNDS, _AT_ONCE = 20, 100  # resamples of the bootstrap


def mean_interval(values: Floats, confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float]:
    """The bootstrap percentile interval of the mean; asymptotically valid.

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
    name: str, view: View, truth: Tensor, y: Tensor, pictures: Tensor, baseline: PriorBaseline, known: int,
    threshold: float, confidence: float = CONFIDENCE,
) -> ReconstructionResult:  # fmt: skip
    """The figures of one attacker.

    Args:
        name: Of the attacker.
        view: What it has.
        truth: The pictures, 0 to 1.
        y: Their labels, which the blind guess may use.
        pictures: What the attacker made of their features.
        baseline: The guess without features.
        known: How many pairs the attacker knew.
        threshold: A picture with at least this PSNR counts as reconstructed.
        confidence: Of every interval.
    """
    guess = baseline(y)
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
        blind=baseline.name,
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
        guesses: Pairs of the number of known records and the guess made with them.
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
    attribute: str, truth: Tensor, guess: Tensor, baseline: Tensor, known: int, confidence: float = CONFIDENCE
) -> AttributeResult:
    """The figures of attribute inference: guesses with features, and those from the label alone."""
    count, hits = len(truth), int((guess == truth).sum())
    low, high = proportion_interval(hits, count, confidence)
    without = float((baseline == truth).double().mean())
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

"""How well can anyone rebuild a picture from its noisy features? A bound against every attacker.

Claim. Let a record x be drawn from a prior π, with features f(x) in the ball of radius R around 0, released as
M(x) = f(x) + N(0, σ²I). Let κ be the success of the best blind guess: the largest probability, over all fixed pictures
x̂, that PSNR(x, x̂) ≥ p. Then whatever an attacker A makes of the release, front end, R and σ known,

    P[PSNR(x, A(M(x))) ≥ p] ≤ Φ(Φ⁻¹(κ) + R/σ).

Proof. A's own coins may be fixed, since the bound holds for each way they fall. For a record x let E_x be the outputs o
with PSNR(x, A(o)) ≥ p, and q_x = P[E_x] under N(0, σ²I), the release of a record whose features are the centre. M(x) is
the same normal distribution moved by f(x), by at most R. By Neyman and Pearson no event of probability q under the one
has more than Φ(Φ⁻¹(q) + R/σ) under the other: that is the power of the best test of level q between them, and it grows
with the distance. So P[E_x] ≤ g(q_x) with g(q) = Φ(Φ⁻¹(q) + t), t = R/σ. g is concave (its slope e^(−tΦ⁻¹(q) − t²/2)
falls with q), so the mean over x is at most g(E q_x). And E q_x is the success of A on an output that has nothing to do
with x: a blind guess, by chance perhaps, and so at most κ. g grows. ∎

What else leaves. Labels do. Given them the best guess may be another for each class: it succeeds with probability
K = Σ_y κ_y, where κ_y is the largest probability, over all fixed pictures, that x has the label y *and* is near. K is
what takes the place of κ, since the proof holds within each class and g is concave. Noisy labels tell no more. K is
at most C κ for C classes, whatever labels have to do with pictures. Other records' rows are independent of x if records
are. In T runs of which one is picked, all T outputs together are T independent releases: normal in T times the
dimension, at a distance of √T R.

Several rows of one person. Where a person has up to n rows, the others may tell about a picture as much as its own:
they may be the same picture. Let X be all of her pictures, of which x is one. Everything above holds with X in place of
x in what is released, f(X) being her n rows as one vector: it is at most √n R away from the centre, so that
t = √n R/σ, which is 1/2z for noise that hides all n rows (`LocalGaussian`), as for one record. E q_X is still the
success of a guess that has nothing to do with X. People have to be independent of each other; one's own pictures need
not be. x is one of hers drawn at random, and κ is about such pictures: one of each public person stands for them. To
give back x counts as a success if its row is among hers that left.

All labels of her rows leave, not only that of x, and they may tell about x too. The guess may be another for each
label y of x together with each multiset w of the up to n − 1 other labels. It succeeds with probability Σ_y Σ_w κ_yw,
and κ_yw ≤ κ_y: at most M times K, where M is the number of such multisets, (C + n − 1 choose n − 1); 1 for one row.

κ from public pictures. The stated prior is the distribution that the public pictures were drawn from. PSNR ≥ p is a
distance of at most r = √(D 10^(−p/10)) between D pixels from 0 to 1. Let B* be the ball of radius r with the largest
mass, κ. Take m of the pictures as centres and n others as witnesses, α = 1 − confidence. If κ > ln(2/α)/m, some centre
lies in B* but with probability (1 − κ)^m < α/2, and then the ball of radius 2r around that centre holds B*, and with it
the witnesses in B*. Those are binomial, n trials with probability κ, whoever the centres are, since B* is a fixed ball:
but with probability α/2, κ is at most Clopper and Pearson's upper bound from their number, and so from the larger
number of witnesses within 2r of the centre, and so from the largest such number of any centre. So κ is at most the
larger of ln(2/α)/m and that bound, with confidence 1 − α.

Where the public pictures have the labels of the task, the same holds for each κ_y, with the ball that has the largest
mass of pictures with label y, centres and witnesses with label y, m and n as before, and α/C: K is at most the sum of
these bounds. Where they have not, K is at most C times the bound on κ. Pictures have to be independent draws: of people
with several, one each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airlock.config import Positive, Proportion

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = (20.0, 24.0, 28.0, 32.0)  # dB that a card speaks of
CONFIDENCE = 0.95
CENTRES, WITNESSES = 4000, 16_000  # at most
FEWEST = 50  # public pictures
_BLOCK = 500


@dataclass(frozen=True)
class Recovery:
    """How often anyone, whatever they do, can give back a picture this well.

    Args:
        psnr: How well, in dB.
        blind: How often a guess without the release is as good, at most, under the stated prior.
        bound: How often a guess with it is, at most.
    """

    psnr: Positive
    blind: Proportion
    bound: Proportion


def bound(blind: float, noise_multiplier: float, runs: int = 1) -> float:
    """The largest success of any attacker; `noise_multiplier` is σ/2R, or σ/2√n R for people with up to n rows.

    Args:
        blind: κ, of the best guess without the release.
        noise_multiplier: Of the noise.
        runs: How often noise was added before one result was picked.
    """
    from scipy.stats import norm

    if blind >= 1:
        return 1.0
    return float(norm.cdf(norm.ppf(blind) + math.sqrt(runs) / (2 * noise_multiplier)))


def multiplier_for(blind: float, probability: float, runs: int = 1) -> float:
    """The least noise multiplier at which `bound` is at most `probability`, which must be above `blind`."""
    from scipy.stats import norm

    return float(math.sqrt(runs) / (2 * (norm.ppf(probability) - norm.ppf(blind))))


def blind_guess(
    pictures: Tensor,
    levels: Sequence[float],
    seed: int,
    classes: int,
    labels: Tensor | None = None,
    rows: int = 1,
    confidence: float = CONFIDENCE,
) -> list[float]:
    """An upper bound on M K, a blind guess that knows labels, for each level in dB; all together with this confidence.

    Args:
        pictures: Public ones, (n, ...) with values from 0 to 1, at least `FEWEST`.
        levels: In dB.
        seed: Decides who is a centre.
        classes: Of the task; 1 if no label leaves.
        labels: Of the pictures, from 0 to `classes` − 1, if they are labels of the task; each drawn with its picture.
        rows: n, the most rows of one person.
        confidence: Of all bounds together.
    """
    import torch

    flat = pictures.flatten(1).float()
    place = torch.randperm(len(flat), generator=torch.Generator().manual_seed(seed)).to(flat.device)
    own = torch.zeros(len(flat), dtype=torch.long) if labels is None else labels.long()
    flat, own = flat[place], own.to(flat.device)[place]
    centres = min(CENTRES, len(flat) // 3)
    first, second = slice(0, centres), slice(centres, centres + WITNESSES)
    witnesses, parts = len(flat[second]), 1 if labels is None else classes
    alpha = (1 - confidence) / (len(levels) * parts * 2)
    least = math.log(1 / alpha) / centres
    found = [0.0] * len(levels)
    for label in range(parts):
        hits = _near(flat[first][own[first] == label], flat[second][own[second] == label], levels)
        for which, most in enumerate(hits):
            found[which] += max(least, _upper(most, witnesses, alpha))
    beside = math.comb(classes + rows - 1, rows - 1)  # M
    return [min(1.0, one * classes / parts * beside) for one in found]


def _near(first: Tensor, second: Tensor, levels: Sequence[float]) -> list[int]:
    """The largest number of `second` within 2r of one of `first`, for each level."""
    import torch

    most = torch.zeros(len(levels), dtype=torch.long)
    squares = [4 * first.shape[1] * 10 ** (-level / 10) for level in levels]  # of 2r
    for start in range(0, len(first) if len(second) else 0, _BLOCK):
        distance = torch.cdist(first[start : start + _BLOCK], second).square()
        near = torch.stack([(distance <= square * (1 + 1e-4)).sum(1).max() for square in squares])
        most = torch.maximum(most, near.cpu())
    return most.tolist()


def _upper(hits: int, count: int, alpha: float) -> float:
    """Clopper and Pearson's upper bound."""
    from scipy.stats import beta

    return 1.0 if hits >= count else float(beta.ppf(1 - alpha, hits + 1, count - hits))


def recovery(
    blind: Sequence[float], levels: Sequence[float], noise_multiplier: float, runs: int
) -> tuple[Recovery, ...]:
    """What a card says at each level."""
    pairs = zip(levels, blind, strict=True)
    return tuple(Recovery(level, one, bound(one, noise_multiplier, runs)) for level, one in pairs)

"""What someone who never saw the features would guess: every figure of a reconstruction stands beside it.

Labels leave with the features, so a blind guess may use them. Four guesses are made from the attacker's own records:
the mean picture (least square error), the constant picture with the largest mean PSNR, and both for every class. Which
of them counts is decided by records that they were not made from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from airlock.auditing.features.feature_pipeline import Pairs
from airlock.auditing.features.images import psnr

_ROUNDS, _FLOOR = 10, 1e-3


@dataclass(frozen=True)
class Blind:
    """A guess for each class, or one for all.

    Args:
        name: As in "the mean picture of the class".
        pictures: (classes or 1, colours, height, width).
    """

    name: str
    pictures: Tensor

    def __call__(self, y: Tensor) -> Tensor:
        """What is guessed for records of these labels."""
        return self.pictures[y.clamp_max(len(self.pictures) - 1)]


def best_blind(known: Pairs) -> Blind:
    """The blind guess with the largest mean PSNR on every fourth record, made from the others."""
    learn, choose = known.halves()
    if not len(choose):
        return candidates(known)[0]
    found = [psnr(blind(choose.y), choose.x).mean().item() for blind in candidates(learn)]
    return candidates(known)[max(range(len(found)), key=found.__getitem__)]


def candidates(known: Pairs) -> list[Blind]:
    """All four."""
    groups = [known.x[known.y == label] for label in range(int(known.y.max()) + 1)]
    groups = [group if len(group) else known.x for group in groups]
    return [
        Blind("the mean picture", known.x.mean(0, keepdim=True)),
        Blind("the best constant picture", _constant(known.x)[None]),
        Blind("the mean picture of the class", torch.stack([group.mean(0) for group in groups])),
        Blind("the best constant picture of the class", torch.stack([_constant(group) for group in groups])),
    ]


def _constant(x: Tensor) -> Tensor:
    """The picture with the least mean logarithm of the square error, by reweighted means.

    Errors below 30 dB's count as that much, or the best picture would be any one of these.
    """
    guess = x.mean(0)
    for _ in range(_ROUNDS):
        weights = 1.0 / (x - guess).square().flatten(1).mean(1).clamp_min(_FLOOR)
        guess = (weights.view(-1, *[1] * (x.dim() - 1)) * x).sum(0) / weights.sum()
    return guess


def trust(guess: Tensor, made: Tensor, truth: Tensor) -> float:
    """How far to go from a blind guess to what an attacker made: all the way, or as far as least squares says.

    Known records decide, by their mean PSNR. An attacker whose pictures are mostly noise does better to stay near the
    guess that takes no features; one whose pictures are mostly right would only spoil them.
    """
    step, wanted = (made - guess).flatten(), (truth - guess).flatten()
    part = float((step @ wanted / step.square().sum().clamp_min(1e-12)).clamp(0, 1))
    better = psnr(guess + part * (made - guess), truth).mean() > psnr(made, truth).mean()
    return part if bool(better) else 1.0


def hits_at_most(x: Tensor, threshold: float) -> float:
    """No picture at all has a PSNR of `threshold` or more to a larger share of these pictures.

    Guarantee: let k of them lie within distance r of some picture. Around it their squared distances add up to k r² at
    most, around their own mean to no more, and so the mean squared distance between two of them (a picture and itself
    included) is at most 2 r². Then one of the k has a mean squared distance of at most 2 r² to all k, and none of
    them is further from it than 2 r. The largest k for which any picture here has that bounds it.
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

"""The best linear guess of a record from its noisy features: cheap, and hard to beat where there is much noise.

Ridge regression from features to pixels, learnt from pairs that the attacker knows, around a blind guess: what is
predicted is how a record differs from the guess for its label. Noise of variance σ² on features of n records is, in
expectation, a ridge of n σ², which is added exactly instead of being drawn. What ridge comes on top is chosen by
records that it was not learnt from, under noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from airlock.auditing.features.feature_pipeline import Pairs, Passage, generator_on
from airlock.auditing.features.images import error
from airlock.auditing.features.prior_baseline import Blind

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the features' mean square


@dataclass(frozen=True)
class Linear:
    """Pixels as an affine function of features, another one for each label where the blind guess is."""

    centres: Tensor  # features, (labels or 1, features)
    blind: Blind
    basis: Tensor  # learnt features, (records, features)
    weights: Tensor  # (records, pixels)

    def __call__(self, features: Tensor, y: Tensor) -> Tensor:
        """The guess, between 0 and 1."""
        around = features.flatten(1) - self.centres[y.clamp_max(len(self.centres) - 1)]
        guess = self.blind(y)
        return (guess + (around @ self.basis.T @ self.weights).view(guess.shape)).clamp(0, 1)


def learn_linear(passage: Passage, known: Pairs, blind: Blind, seed: int) -> Linear:
    """Learn from all known pairs, with the ridge that does best on every fourth."""
    learn, choose = known.halves()
    if not len(choose):
        return _solve(learn, blind, passage.sigma, RIDGES[3:4])[0]
    noisy = passage.noisy(choose.clean, generator_on(choose.clean.device, seed))
    found = [error(one(noisy, choose.y), choose.x).mean().item() for one in _solve(learn, blind, passage.sigma, RIDGES)]
    best = min(range(len(found)), key=found.__getitem__)
    return _solve(known, blind, passage.sigma, RIDGES[best : best + 1])[0]


def _solve(known: Pairs, blind: Blind, sigma: float, ridges: tuple[float, ...]) -> list[Linear]:
    """One eigenproblem of the records' inner products for all ridges: there are more features than records."""
    features, centres = known.clean.flatten(1), _centres(known, len(blind.pictures))
    basis = features - centres[known.y.clamp_max(len(centres) - 1)]
    pixels = (known.x - blind(known.y)).flatten(1)
    values, vectors = torch.linalg.eigh((basis @ basis.T).double())
    turned = vectors.T @ pixels.double()
    scale = values.clamp_min(0).sum() / max(1, min(basis.shape))
    solved = []
    for ridge in ridges:
        damped = values.clamp_min(0) + ridge * scale + len(known) * sigma**2 + 1e-12
        weights = (vectors @ (turned / damped[:, None])).to(basis.dtype)
        solved.append(Linear(centres, blind, basis, weights))
    return solved


def _centres(known: Pairs, labels: int) -> Tensor:
    """The mean features of every label, or of all records where the blind guess does not look at labels."""
    features = known.clean.flatten(1)
    if labels == 1:
        return features.mean(0, keepdim=True)
    groups = [features[known.y == label] for label in range(labels)]
    return torch.stack([(group if len(group) else features).mean(0) for group in groups])

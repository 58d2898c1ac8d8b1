"""The best linear guess of a record from its noisy features: cheap, and hard to beat where there is much noise.

Ridge regression from features to pixels, learnt from pairs that the attacker knows. Noise of variance σ² on features of
n records is, in expectation, a ridge of n σ², which is added exactly instead of being drawn. What ridge comes on top is
chosen by records that it was not learnt from, under noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from airlock.audit.images import error
from airlock.audit.passage import Pairs, Passage, generator_on

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the features' mean square


@dataclass(frozen=True)
class Linear:
    """Pixels as an affine function of features."""

    feature_mean: Tensor
    pixel_mean: Tensor
    basis: Tensor  # learnt features, (records, features)
    weights: Tensor  # (records, pixels)
    shape: tuple[int, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """The guess, between 0 and 1."""
        flat = (features.flatten(1) - self.feature_mean) @ self.basis.T @ self.weights + self.pixel_mean
        return flat.clamp(0, 1).view(-1, *self.shape)


def learn_linear(passage: Passage, known: Pairs, seed: int) -> Linear:
    """Learn from all known pairs, with the ridge that does best on every fourth."""
    learn, choose = known.halves()
    if not len(choose):
        return _solve(learn, passage.sigma, RIDGES[3:4])[0]
    noisy = passage.noisy(choose.clean, generator_on(choose.clean.device, seed))
    found = [error(one(noisy), choose.x).mean().item() for one in _solve(learn, passage.sigma, RIDGES)]
    best = min(range(len(found)), key=found.__getitem__)
    return _solve(known, passage.sigma, RIDGES[best : best + 1])[0]


def _solve(known: Pairs, sigma: float, ridges: tuple[float, ...]) -> list[Linear]:
    """One eigenproblem of the records' inner products for all ridges: there are more features than records."""
    features, pixels = known.clean.flatten(1), known.x.flatten(1)
    feature_mean, pixel_mean = features.mean(0), pixels.mean(0)
    basis = features - feature_mean
    values, vectors = torch.linalg.eigh((basis @ basis.T).double())
    turned = vectors.T @ (pixels - pixel_mean).double()
    scale = values.clamp_min(0).sum() / max(1, min(basis.shape))
    solved = []
    for ridge in ridges:
        damped = values.clamp_min(0) + ridge * scale + len(known) * sigma**2 + 1e-12
        weights = (vectors @ (turned / damped[:, None])).to(basis.dtype)
        solved.append(Linear(feature_mean, pixel_mean, basis, weights, tuple(known.x.shape[1:])))
    return solved

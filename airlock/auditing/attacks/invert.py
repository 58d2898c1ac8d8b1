"""White-box inversion: an attacker who knows the front end searches for a record with the released features.

All pictures are optimised at once, from several starts each: Adam changes the pixels until the features of the picture,
clipped as in the release, are close to those that left, with a total-variation penalty (Mahendran and Vedaldi 2015). Of
several starts the result with the smallest objective is kept; the true picture is never used. The weight of the
penalty, and how far a picture found under noise is trusted, are chosen on records that the attacker knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs
from airlock.auditing.features.reconstruction_metrics import psnr, total_variation, trust
from airlock.config import Frozen
from airlock.errors import DataError
from airlock.training import Run

_TUNED = 32  # known records on which the total-variation weight is chosen


class InvertSettings(Frozen):
    """How thoroughly to search.

    Args:
        steps: Of Adam.
        learning_rate: Of Adam at the start; it falls along a half cosine.
        restarts: Starts from random pictures, in addition to the given ones.
        variation: Total-variation weights to choose from, relative to a mean square of the features of 1.
        batch_size: Pictures at a time, each with all its starts.
    """

    steps: int = 300
    learning_rate: float = 0.05
    restarts: int = 1
    variation: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    batch_size: int = 250


@dataclass(frozen=True)
class Tuned:
    """What is chosen on known records.

    Args:
        scale: The mean square of a feature.
        weight: Of the total-variation penalty.
        trust: How far to go from the blind guess to the picture that was found.
    """

    scale: Tensor
    weight: float
    trust: float


def tune(
    pipeline: FeaturePipeline, known: Pairs, starts: Sequence[Tensor], guess: Tensor, features: Tensor, seed: int,
    settings: InvertSettings,
) -> Tuned:  # fmt: skip
    """The total-variation weight and the trust that maximise the mean PSNR on known records.

    Args:
        pipeline: What features went through.
        known: Records to choose on; the first few are used. The starts must not have been learnt from them.
        starts: Guesses to start from.
        guess: The blind one.
        features: Of the known records, with noise.
        seed: Of random starts.
        settings: How thoroughly to search.
    """
    few, scale = known.take(slice(_TUNED)), known.clean.square().mean().clamp_min(1e-12)
    own = _starts([one[:_TUNED] for one in starts], features[:_TUNED], tuple(few.x.shape[1:]), seed, settings)
    best, most = Tuned(scale, settings.variation[0], 1.0), -torch.inf
    for weight in settings.variation:
        made = _search(pipeline, features[:_TUNED], own, scale, weight, settings)
        far = trust(guess[:_TUNED], made, few.x)
        found = psnr(guess[:_TUNED] + far * (made - guess[:_TUNED]), few.x).mean().item()
        if found > most:
            best, most = Tuned(scale, weight, far), found
    return best


def invert(
    pipeline: FeaturePipeline, features: Tensor, starts: Sequence[Tensor], guess: Tensor, tuned: Tuned, seed: int,
    run: Run, settings: InvertSettings,
) -> Tensor:  # fmt: skip
    """A picture for each row of features.

    Args:
        pipeline: What the features went through.
        features: What left.
        starts: Guesses to start from, each (n, colours, height, width); a blind one, or another attacker's.
        guess: The blind guess, towards which each picture is shrunk as `tuned` says.
        tuned: What known records chose.
        seed: Of random starts.
        run: Progress.
        settings: How thoroughly to search.

    Raises:
        DataError: There is no start at all.
    """
    if not starts and not settings.restarts:
        raise DataError("a start, given or random", "none")
    found = []
    for start in range(0, len(features), settings.batch_size):
        block = slice(start, start + settings.batch_size)
        shape = tuple(guess.shape[1:])
        own = _starts([one[block] for one in starts], features[block], shape, seed + start, settings)
        found.append(_search(pipeline, features[block], own, tuned.scale, tuned.weight, settings))
        if run.progress:
            run.progress("inverting features", min(len(features), block.stop), len(features))
    return guess + tuned.trust * (torch.cat(found) - guess)


def _starts(
    given: Sequence[Tensor], features: Tensor, shape: tuple[int, ...], seed: int, settings: InvertSettings
) -> Tensor:
    """(starts, n, colours, height, width); at least one of them is random where none is given."""
    generator, count = torch.Generator().manual_seed(seed), max(settings.restarts, 0 if given else 1)
    blurred = [torch.rand(len(features), *shape, generator=generator) for _ in range(count)]
    return torch.stack([*given, *(one.to(features) for one in blurred)])


def _search(
    pipeline: FeaturePipeline, features: Tensor, starts: Tensor, scale: Tensor, weight: float, settings: InvertSettings
) -> Tensor:
    """Run Adam from every start; keep for each picture the result with the smallest objective."""
    count, size = starts.shape[:2]
    x = starts.flatten(0, 1).to(features.device, copy=True).requires_grad_(True)
    wanted = features.repeat(count, *[1] * (features.dim() - 1))
    optimiser = torch.optim.Adam([x], settings.learning_rate)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for _ in range(settings.steps):
        optimiser.zero_grad(set_to_none=True)
        (gradient,) = torch.autograd.grad(_objective(pipeline, x, wanted, scale, weight).sum(), x)
        x.grad = gradient
        optimiser.step()
        rate.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    with torch.no_grad():
        best = _objective(pipeline, x, wanted, scale, weight).view(count, size).argmin(0)
        return x.detach().view(starts.shape)[best, torch.arange(size, device=x.device)]


def _objective(pipeline: FeaturePipeline, x: Tensor, wanted: Tensor, scale: Tensor, weight: float) -> Tensor:
    """Per picture: the distance of its features from the released ones, plus the total-variation penalty."""
    far = (pipeline.clean(x) - wanted).square().flatten(1).mean(1) / scale
    return far + weight * total_variation(x) if weight else far

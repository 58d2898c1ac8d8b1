"""White-box inversion: whoever knows the front end looks for a record whose features are those that left.

All pictures at once, several starts each: Adam moves the pixels until the features of the picture, clipped as released,
are close to those that left, while neighbouring pixels stay alike (total variation; Mahendran and Vedaldi 2015). Of
several starts the one with the least objective is taken; the true picture is never looked at. How much smoothness
weighs is chosen on records that the attacker knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from airlock.audit.images import error, total_variation
from airlock.audit.passage import Pairs, Passage, generator_on
from airlock.config import Frozen
from airlock.errors import DataError
from airlock.training import Run

_TUNED = 32  # known records by which the weight of smoothness is chosen


class InvertSettings(Frozen):
    """How hard to look.

    Args:
        steps: Of Adam.
        learning_rate: Of Adam at the start; it falls along a half cosine.
        restarts: Starts from random pictures, beside those that are given.
        variation: Weights of smoothness to choose from, where the features' whole mean square weighs 1.
        batch_size: Pictures at a time, each with all its starts.
    """

    steps: int = 300
    learning_rate: float = 0.05
    restarts: int = 1
    variation: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    batch_size: int = 250


def invert(
    passage: Passage,
    features: Tensor,
    starts: Sequence[Tensor],
    known: Pairs,
    seed: int,
    run: Run,
    settings: InvertSettings | None = None,
    known_starts: Sequence[Tensor] = (),
) -> Tensor:
    """A picture for each row of features.

    Args:
        passage: What the features went through.
        features: What left.
        starts: Guesses to start from, each (n, colours, height, width); a blind one, or another attacker's.
        known: Records that the attacker knows; they choose the weight of smoothness.
        seed: Of random starts.
        run: Device and progress.
        settings: How hard.
        known_starts: The same guesses for the known records; those used are the first ones.

    Raises:
        DataError: There is no start at all.
    """
    chosen = settings or InvertSettings()
    if not starts and not chosen.restarts:
        raise DataError("a start, given or random", "none")
    scale = known.clean.square().flatten(1).mean().clamp_min(1e-12)
    weight = _weight(passage, known, known_starts, scale, seed, run, chosen)
    found = []
    for start in range(0, len(features), chosen.batch_size):
        block = slice(start, start + chosen.batch_size)
        own = _starts([one[block] for one in starts], features[block], tuple(known.x.shape[1:]), seed + start, chosen)
        found.append(_search(passage, features[block].to(run.device), own, scale, weight, chosen))
        if run.progress:
            run.progress("inverting features", min(len(features), block.stop), len(features))
    return torch.cat(found)


def _weight(
    passage: Passage, known: Pairs, known_starts: Sequence[Tensor], scale: Tensor, seed: int, run: Run,
    settings: InvertSettings,
) -> float:  # fmt: skip
    """The weight of smoothness whose pictures of known records have the least square error."""
    if len(settings.variation) == 1:
        return settings.variation[0]
    few = known.take(slice(_TUNED))
    noisy = passage.noisy(few.clean, generator_on(run.device, seed))
    guesses = [one[:_TUNED] for one in known_starts]
    own = _starts(guesses, noisy, tuple(few.x.shape[1:]), seed, settings)
    found = [
        error(_search(passage, noisy, own, scale, weight, settings), few.x).mean().item()
        for weight in settings.variation
    ]
    return settings.variation[min(range(len(found)), key=found.__getitem__)]


def _starts(
    given: Sequence[Tensor], features: Tensor, shape: tuple[int, ...], seed: int, settings: InvertSettings
) -> Tensor:
    """(starts, n, colours, height, width); at least one of them is random where none is given."""
    generator, count = torch.Generator().manual_seed(seed), max(settings.restarts, 0 if given else 1)
    blurred = [torch.rand(len(features), *shape, generator=generator) for _ in range(count)]
    return torch.stack([*given, *(one.to(features) for one in blurred)])


def _search(
    passage: Passage, features: Tensor, starts: Tensor, scale: Tensor, weight: float, settings: InvertSettings
) -> Tensor:
    """Adam from every start; for each picture the end with the least objective."""
    count, size = starts.shape[:2]
    x = starts.flatten(0, 1).to(features.device, copy=True).requires_grad_(True)
    wanted = features.repeat(count, *[1] * (features.dim() - 1))
    optimiser = torch.optim.Adam([x], settings.learning_rate)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for _ in range(settings.steps):
        optimiser.zero_grad(set_to_none=True)
        (gradient,) = torch.autograd.grad(_objective(passage, x, wanted, scale, weight).sum(), x)
        x.grad = gradient
        optimiser.step()
        rate.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    with torch.no_grad():
        best = _objective(passage, x, wanted, scale, weight).view(count, size).argmin(0)
        return x.detach().view(starts.shape)[best, torch.arange(size, device=x.device)]


def _objective(passage: Passage, x: Tensor, wanted: Tensor, scale: Tensor, weight: float) -> Tensor:
    """Of each picture: how far its features are from those that left, and how rough it is."""
    far = (passage.clean(x) - wanted).square().flatten(1).mean(1) / scale
    return far + weight * total_variation(x) if weight else far

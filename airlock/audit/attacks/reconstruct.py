"""Reconstruction by a trained net: the front end may stay unknown (Li et al. 2017, the IRN of PrivyNet).

The attacker knows pairs of records and features, learns to turn features back into records by least squares, and then
turns back what left. Where features leave under noise, every step draws fresh noise on them: with enough capacity the
net becomes the mean of the records given the noisy features, which no guess beats in square error.

The net is any module from features to pictures; for maps that is `airlock.nets.irn.Irn`, for flat features a small
dense net. It starts from the seed, learns from the known pairs alone, and its last state is taken: nothing about the
attacked records chooses anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from airlock.audit.images import error
from airlock.audit.passage import Pairs, Passage, generator_on
from airlock.config import Frozen
from airlock.errors import DataError
from airlock.training import Run

Shape = tuple[int, ...]
MakeNet = Callable[[Shape, Shape], nn.Module]
Attacker = Callable[[Tensor], Tensor]
_BLOCK = 250


class ReconstructSettings(Frozen):
    """How the net is trained.

    Args:
        epochs: Over the known pairs; the paper's 100.
        batch_size: Pairs in a step.
        learning_rate: Of Adam at its peak: it rises over the first tenth of the steps and falls to nothing.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.003


def dense(feature_shape: Shape, image_shape: Shape) -> nn.Module:
    """For flat features: two hidden layers."""
    inputs, outputs = math.prod(feature_shape), math.prod(image_shape)
    width = min(1024, max(64, outputs))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
        nn.Unflatten(1, image_shape),
    )


def learn_net(
    passage: Passage,
    known: Pairs,
    seed: int,
    run: Run,
    settings: ReconstructSettings | None = None,
    make: MakeNet = dense,
    label: str = "training the reconstruction net",
) -> Attacker:
    """Train a net on known pairs; what comes back turns features into records.

    Raises:
        DataError: There are fewer than two pairs.
    """
    chosen = settings or ReconstructSettings()
    if len(known) < 2:
        raise DataError("at least two known pairs of record and features", str(len(known)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make(tuple(known.clean.shape[1:]), tuple(known.x.shape[1:])).to(run.device)
    centre, spread = _scale(known.clean, passage.sigma)
    _train(net, passage, known, (centre, spread), seed, run, chosen, label)
    net.eval()

    def rebuild(features: Tensor) -> Tensor:
        with torch.no_grad():
            blocks = [
                net((block.to(run.device) - centre) / spread).clamp(0, 1) for block in torch.split(features, _BLOCK)
            ]
        return torch.cat(blocks)

    return rebuild


def _scale(clean: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """One mean and one spread for all features, noise included."""
    return clean.mean(), (clean.var() + sigma**2).sqrt().clamp_min(1e-8)


def _train(
    net: nn.Module, passage: Passage, known: Pairs, scale: tuple[Tensor, Tensor], seed: int, run: Run,
    settings: ReconstructSettings, label: str,
) -> None:  # fmt: skip
    device, size = run.device, min(settings.batch_size, len(known))
    noise, order = generator_on(device, seed), torch.Generator().manual_seed(seed)
    steps = settings.epochs * max(1, len(known) // size)
    optimiser = torch.optim.Adam(net.parameters(), settings.learning_rate)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, steps + 1, pct_start=0.1)
    net.train()
    for step in range(steps):
        place = step % max(1, len(known) // size)
        if place == 0:
            shuffled = torch.randperm(len(known), generator=order).to(known.y.device)
        batch = known.take(shuffled[place * size : (place + 1) * size])
        features = (passage.noisy(batch.clean, noise) - scale[0]) / scale[1]
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(error(net(features), batch.x).mean())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if run.progress:
            run.progress(label, step + 1, steps)

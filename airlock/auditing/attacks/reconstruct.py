"""Reconstruction learnt from known pairs of records and features: a linear guess, or a trained net.

The linear guess (`learn_linear`) is cheap, and hard to beat under heavy noise. It is a ridge regression from features
to pixels, learnt from pairs that the attacker knows, around a blind guess: it predicts how a record differs from the
guess for its label. Noise of variance σ² on the features of n records acts, in expectation, as a ridge of n σ², which
is added in closed form instead of drawing noise. Any further ridge is chosen on held-out records, under noise.

A trained net (`learn_net`) does not need to know the front end (Li et al. 2017, the IRN of PrivyNet). The attacker
knows pairs of records and features, learns to map features back to records by least squares, and applies that map to
what left. Where features leave under noise, every step adds fresh noise: with enough capacity the net approaches the
conditional mean of the record given its noisy features, which minimises the squared error.

The net is any module from features to pictures; for maps that is `airlock.nets.privynet.Irn`, for flat features a small
dense net. It is initialised from the seed, learns from the known pairs alone, and its final state is used: nothing is
chosen on the attacked records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on
from airlock.auditing.features.reconstruction_metrics import PriorBaseline, error
from airlock.config import Frozen
from airlock.errors import DataError
from airlock.training import Run, checkpoint
from airlock.training.distributed import digest
from airlock.training.loop import interruption, mix, watch_interrupt

# The best linear guess.

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the features' mean square


@dataclass(frozen=True)
class Linear:
    """Pixels as an affine function of features; the offset depends on the label where the blind guess does."""

    centres: Tensor  # features, (labels or 1, features)
    baseline: PriorBaseline
    basis: Tensor  # learnt features, (records, features)
    weights: Tensor  # (records, pixels)

    def __call__(self, features: Tensor, y: Tensor) -> Tensor:
        """The guess, between 0 and 1."""
        around = features.flatten(1) - self.centres[y.clamp_max(len(self.centres) - 1)]
        guess = self.baseline(y)
        return (guess + (around @ self.basis.T @ self.weights).view(guess.shape)).clamp(0, 1)


def learn_linear(pipeline: FeaturePipeline, known: Pairs, baseline: PriorBaseline, seed: int) -> Linear:
    """Learn from all known pairs, with the ridge that does best on every fourth pair, held out."""
    learn, choose = known.halves()
    if not len(choose):
        return _solve(learn, baseline, pipeline.sigma, RIDGES[3:4])[0]
    noisy = pipeline.noisy(choose.clean, generator_on(choose.clean.device, seed))
    found = [
        error(one(noisy, choose.y), choose.x).mean().item() for one in _solve(learn, baseline, pipeline.sigma, RIDGES)
    ]
    best = min(range(len(found)), key=found.__getitem__)
    return _solve(known, baseline, pipeline.sigma, RIDGES[best : best + 1])[0]


def _solve(known: Pairs, baseline: PriorBaseline, sigma: float, ridges: tuple[float, ...]) -> list[Linear]:
    """One eigenproblem of the records' inner products for all ridges: there are more features than records."""
    features, centres = known.clean.flatten(1), _centres(known, len(baseline.pictures))
    basis = features - centres[known.y.clamp_max(len(centres) - 1)]
    pixels = (known.x - baseline(known.y)).flatten(1)
    values, vectors = torch.linalg.eigh((basis @ basis.T).double())
    turned = vectors.T @ pixels.double()
    scale = values.clamp_min(0).sum() / max(1, min(basis.shape))
    solved = []
    for ridge in ridges:
        damped = values.clamp_min(0) + ridge * scale + len(known) * sigma**2 + 1e-12
        weights = (vectors @ (turned / damped[:, None])).to(basis.dtype)
        solved.append(Linear(centres, baseline, basis, weights))
    return solved


def _centres(known: Pairs, labels: int) -> Tensor:
    """The mean features of every label, or of all records where the blind guess does not look at labels."""
    features = known.clean.flatten(1)
    if labels == 1:
        return features.mean(0, keepdim=True)
    groups = [features[known.y == label] for label in range(labels)]
    return torch.stack([(group if len(group) else features).mean(0) for group in groups])


# A trained net.

Shape = tuple[int, ...]
MakeNet = Callable[[Shape, Shape], nn.Module]
Attacker = Callable[[Tensor], Tensor]
FOLDER = "reconstruction-net"  # of a run's checkpoints
_BLOCK, _RISE = 250, 0.1


class ReconstructSettings(Frozen):
    """How the net is trained.

    Args:
        epochs: Over the known pairs; the paper's 100.
        batch_size: Pairs in a step.
        learning_rate: Peak rate of Adam: it rises over the first tenth of the steps, then falls to zero.
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
    pipeline: FeaturePipeline,
    known: Pairs,
    seed: int,
    run: Run,
    settings: ReconstructSettings | None = None,
    make: MakeNet = dense,
    label: str = "training the reconstruction net",
) -> Attacker:
    """Train a net on known pairs; the returned function turns features into records.

    Raises:
        DataError: There are fewer than two pairs.
    """
    chosen = settings or ReconstructSettings()
    if len(known) < 2:
        raise DataError("at least two known pairs of record and features", str(len(known)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make(tuple(known.clean.shape[1:]), tuple(known.x.shape[1:])).to(run.device)
    centre, spread = _scale(known.clean, pipeline.sigma)
    _train(net, pipeline, known, (centre, spread), seed, run, chosen, label)
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
    net: nn.Module, pipeline: FeaturePipeline, known: Pairs, scale: tuple[Tensor, Tensor], seed: int, run: Run,
    settings: ReconstructSettings, label: str,
) -> None:  # fmt: skip
    """Adam from the seed; order and noise follow from the step number, so a resumed run ends the same."""
    size = min(settings.batch_size, len(known))
    batches = max(1, len(known) // size)
    steps = settings.epochs * batches
    optimiser = torch.optim.Adam(net.parameters(), settings.learning_rate)
    mark, folder = _mark(pipeline, known, seed, settings), run.checkpoint / FOLDER if run.checkpoint else None
    first, saved = _resumed(folder, mark, net, optimiser, run), time.monotonic()
    net.train()
    with watch_interrupt() as interrupted:
        for step in range(first, steps):
            order = torch.randperm(len(known), generator=torch.Generator().manual_seed(mix(seed, step // batches)))
            place = step % batches * size
            batch = known.take(order[place : place + size].to(known.y.device))
            noisy = pipeline.noisy(batch.clean, generator_on(run.device, mix(seed, step)))
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * _pace(step / steps)
            _advance(net, optimiser, (noisy - scale[0]) / scale[1], batch.x)
            stop = interrupted() and step + 1 < steps
            if folder is not None and (stop or time.monotonic() - saved > run.checkpoint_seconds):
                checkpoint.save(folder, step + 1, mark, net, {}, optimiser, {})
                saved = time.monotonic()
            if stop:
                raise interruption(step + 1, steps, kept=folder is not None)
            if run.progress:
                run.progress(label, step + 1, steps)
    if folder is not None:
        checkpoint.save(folder, steps, mark, net, {}, optimiser, {})


def _advance(net: nn.Module, optimiser: torch.optim.Optimizer, features: Tensor, x: Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(error(net(features), x).mean())
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimiser.step()


def _pace(done: float) -> float:
    """The learning rate's share of its peak: it rises over the first tenth and falls along a half cosine."""
    return (
        (done + 1e-3) / _RISE if done < _RISE - 1e-3 else 0.5 + 0.5 * math.cos(math.pi * (done - _RISE) / (1 - _RISE))
    )


def _mark(pipeline: FeaturePipeline, known: Pairs, seed: int, settings: ReconstructSettings) -> dict[str, object]:
    """What the net depends on; features of the same records may differ in their last bits from run to run."""
    return {
        "records": digest([known.x]).hex(),
        "shape": list(known.clean.shape),
        "sigma": pipeline.sigma,
        "seed": seed,
        "settings": settings.model_dump(mode="json"),
    }


def _resumed(
    folder: Path | None, mark: dict[str, object], net: nn.Module, optimiser: torch.optim.Optimizer, run: Run
) -> int:
    """Restore an interrupted run from its checkpoint; the number of steps it had done."""
    content = checkpoint.read(folder) if folder is not None and run.resume else None
    return checkpoint.restore(content, mark, net, {}, optimiser, lambda _: None) if content else 0

"""The receiver's side: a classifier from released features alone.

In: features and labels from a bundle. Out: a network from features to logits. Maps are classified by PrivyNet's network
(`nets.privynet`) or the user's own, with every channel first standardised to mean 0 and standard deviation 1. Noisy
vectors are classified by the nearest class mean: with noise many times the signal, these means are all that can be
learned. All of this is post-processing of what was released.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from airlock.data import Records
from airlock.nets.classifiers import linear
from airlock.nets.privynet import Icn
from airlock.nets.registry import create
from airlock.training.devices import Resident
from airlock.training.gradients import PlainGradients
from airlock.training.loop import Recipe, Run, fit
from airlock.training.sampling import Shuffled

LABEL = "classifier on features"
_BATCH, _RATE = 128, 1e-3  # Adam: with SGD at the paper's 0.05, the network may not learn at all
_LEAST = 0.01  # the least variance around the means, relative to their own size
_BLOCK = 10_000


class Standard(nn.Module):
    """Standardises every channel (or number) by the mean and standard deviation of the training features."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return (x - self.mean) / self.spread


def learn(
    features: Records, classes: int, noise: float | None, epochs: int, seed: int, run: Run, net: str = ""
) -> nn.Module:
    """A classifier of features, in eval mode, on the CPU.

    Args:
        features: The released features, float32.
        classes: The number of classes.
        noise: The standard deviation of the noise on every number; None if there is none.
        epochs: The epochs of training, if there is any.
        seed: The seed of training.
        run: Device, progress.
        net: The user's own network as `package.module:function`; chosen by the shape if left out.
    """
    shape = tuple(features.x.shape[1:])
    if not net and len(shape) == 1 and noise is not None:
        return nearest_mean(features, classes, noise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = (
            create(net, shape, classes, seed)
            if net
            else Icn(shape, classes)
            if len(shape) == 3
            else linear(shape, classes)
        )
    made = nn.Sequential(_standard(features), body)
    steps = max(1, epochs * math.ceil(len(features) / _BATCH))
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=_RATE, schedule="cosine", warmup=0.05)
    data = Resident(features, run.device)
    fit(made, data, Shuffled(_BATCH, seed), PlainGradients(), recipe, seed, run, label=LABEL)
    return made.cpu().requires_grad_(False).eval()


def _standard(features: Records) -> Standard:
    x = torch.from_numpy(features.x[:_BLOCK])
    over = (0, *range(2, x.dim()))
    shape = (1, -1, *[1] * (x.dim() - 2))
    numbers = x[:, 0].numel()  # of a channel
    mean = x.mean(over) if numbers else torch.zeros(x.shape[1])
    spread = x.std(over) if numbers > 1 else torch.ones(x.shape[1])
    return Standard(mean.view(shape), spread.clamp_min(1e-6).view(shape))


def nearest_mean(features: Records, classes: int, noise: float) -> nn.Module:
    """A linear discriminant for noise-free records, learned from noisy ones: the nearest class mean.

    Class means are means of noisy features. All directions are weighted equally, as after
    `training.front_ends.features`: under this much noise their covariance cannot be learned. The weight of the class
    frequencies follows from the variance around the means, minus that of the noise.
    """
    x, y = torch.from_numpy(features.x).flatten(1).double(), torch.from_numpy(features.y)
    member = nn.functional.one_hot(y, classes).double()
    counts = member.sum(0).clamp_min(1.0)
    means = (member.T @ x) / counts[:, None]
    variance = max(float((x - means[y]).square().mean()) - noise**2, _LEAST * float(means.square().mean()) + 1e-12)
    made = nn.Linear(x.shape[1], classes)
    with torch.no_grad():
        made.weight.copy_(means / variance)
        made.bias.copy_(-0.5 * means.square().sum(1) / variance + (counts / len(x)).log())
    return nn.Sequential(nn.Flatten(), made).requires_grad_(False).eval()

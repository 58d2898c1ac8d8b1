"""The receiver's side: a classifier from released features alone.

In: features and labels as they lie in a bundle. Out: a network from features to logits. Maps are classified by
PrivyNet's network (`nets.icn`) or the user's own, with every channel brought to mean 0 and spread 1 first. Vectors with
noise are classified by a linear discriminant whose covariance has the noise taken off again: under noise that is many
times the signal, all that can be learnt are the class means, and nothing fits noise less than they do. All of it is
post-processing of what was released.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from airlock.data import Records
from airlock.nets.icn import Icn
from airlock.nets.mlp import linear
from airlock.nets.registry import create
from airlock.training.gradients import PlainGradients
from airlock.training.loop import Recipe, Run, fit
from airlock.training.resident import Resident
from airlock.training.sampling import Shuffled

LABEL = "classifier on features"
_BATCH, _RATE, _DECAY = 128, 0.05, 5e-4
_RIDGE = 0.1  # of the mean variance: directions below it are not blown up
_BLOCK = 10_000


class Standard(nn.Module):
    """Every channel (or number) to mean 0 and spread 1 of the features it was made from."""

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
        features: As they were released, float32.
        classes: How many.
        noise: The standard deviation of the noise on every number; None if there is none.
        epochs: Of training, where there is any.
        seed: Of training.
        run: Device, progress.
        net: The user's own network as `package.module:function`; chosen by the shape if left out.
    """
    shape = tuple(features.x.shape[1:])
    if not net and len(shape) == 1 and noise is not None:
        return discriminant(features, classes, noise)
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
    recipe = Recipe(steps=steps, learning_rate=_RATE, weight_decay=_DECAY, schedule="cosine", warmup=0.05)
    data = Resident(features, run.device)
    fit(made, data, Shuffled(_BATCH, seed), PlainGradients(), recipe, seed, run, label=LABEL)
    return made.cpu().requires_grad_(False).eval()


def _standard(features: Records) -> Standard:
    x = torch.from_numpy(features.x[:_BLOCK])
    over = (0, *range(2, x.dim()))
    shape = (1, -1, *[1] * (x.dim() - 2))
    return Standard(x.mean(over).view(shape), x.std(over).clamp_min(1e-6).view(shape))


def discriminant(features: Records, classes: int, noise: float) -> nn.Module:
    """Fisher's linear discriminant for records without noise, from records with it.

    Class means are means of noisy features. The covariance around them is that of the features plus noise², which is
    taken off; what is left is kept positive, with a ridge.
    """
    x, y = torch.from_numpy(features.x).flatten(1).double(), torch.from_numpy(features.y)
    member = nn.functional.one_hot(y, classes).double()
    counts = member.sum(0).clamp_min(1.0)
    means = (member.T @ x) / counts[:, None]
    around = x - means[y]
    covariance = around.T @ around / max(1, len(x) - classes)
    values, vectors = torch.linalg.eigh(covariance)
    left = (values - noise**2).clamp_min(0.0)
    left = left + _RIDGE * left.mean() + 1e-12 + noise**2 / len(x)
    inverse = (vectors / left) @ vectors.T
    made = nn.Linear(x.shape[1], classes)
    weight = means @ inverse
    bias = -0.5 * (weight * means).sum(1) + (counts / len(x)).log()
    with torch.no_grad():
        made.weight.copy_(weight)
        made.bias.copy_(bias)
    return nn.Sequential(nn.Flatten(), made).requires_grad_(False).eval()

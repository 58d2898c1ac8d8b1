"""A learning rate that tolerates the noise: the network is perturbed by noise alone, before any private training.

In: a network that was trained on public records, those records, and the noise on the gradient of every coming step.
Out: the factor by which the learning rate must be reduced so that the accumulated noise of all steps costs the network
almost nothing on the public records. Real gradients would correct some of that noise, so the answer is conservative.
Nothing private is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from airlock.config import STEPS
from airlock.data import Records
from airlock.data.split import Task
from airlock.training.devices import Resident
from airlock.training.loop import Recipe, Run, fit, mix
from airlock.training.outcomes import count_correct, outcomes_of
from airlock.training.sampling import Shuffled

_RECORDS, _DRAWS, _WEIGHTS, _HALVINGS = 2000, 3, 4096, 12


def bearable(
    net: nn.Module,
    public: Records,
    noise: float,
    recipe: Recipe,
    loss: float,
    seed: int,
    task: Task = "classification",
) -> float:
    """The largest of 1, ½, ¼, ... by which the learning rate may be multiplied.

    Args:
        net: Trained on public records; it is restored afterwards.
        public: The records, of which the first 2,000 are used.
        noise: The standard deviation on every number of a step's gradient.
        recipe: How the coming steps optimise.
        loss: The fraction of these records that noise may cost; where a number is predicted, of their variance.
        seed: Public.
        task: What the network predicts.
    """
    asked = Records(public.x[:_RECORDS], public.y[:_RECORDS])
    least, wander, factor = _quality(net, asked, task) - loss, wandering(noise, recipe, seed), 1.0
    for _ in range(_HALVINGS):
        if shaken(net, asked, factor * wander, seed, task) >= least:
            break
        factor /= 2
    return factor


def _quality(net: nn.Module, records: Records, task: Task) -> float:
    """The accuracy; where a number is predicted, R²."""
    if task == "classification":
        return count_correct(net, records) / len(records)
    found, spread = outcomes_of(net, records, task), float(np.std(records.y / STEPS))
    return 1.0 - (found.error_over_the_range / max(spread, 1e-6)) ** 2


def shaken(net: nn.Module, records: Records, wander: float, seed: int, task: Task = "classification") -> float:
    """The quality after every trainable weight is moved by noise of scale `wander`; the mean of three draws."""
    moved = [p for p in net.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in moved]
    total = 0.0
    for draw in range(_DRAWS):
        _shake(moved, start, wander, torch.Generator().manual_seed(mix(seed, draw)))
        total += _quality(net, records, task)
    _shake(moved, start, 0.0, torch.Generator())
    return total / _DRAWS


def wandering(noise: float, recipe: Recipe, seed: int) -> float:
    """The standard deviation of a weight after all steps if gradients are pure noise, simulated on 4,096 weights."""
    weights = nn.Linear(_WEIGHTS, 1, bias=False)
    nn.init.zeros_(weights.weight)
    nothing = Resident(Records(np.zeros((1, 1), np.float32), np.zeros(1, np.int64)), torch.device("cpu"))
    fit(weights, nothing, Shuffled(1, 0), _NoiseAlone(noise, seed), recipe, seed, Run())
    return float(weights.weight.detach().double().square().mean().sqrt())


class _NoiseAlone:
    """Gradients that are pure noise."""

    def __init__(self, noise: float, seed: int) -> None:
        self.noise, self.seed = noise, seed

    @property
    def mark(self) -> dict[str, object]:
        return {"gradients": "noise alone"}

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        pass

    def noise_variance(self, name: str) -> Tensor:
        return torch.tensor(self.noise**2)

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        generator = torch.Generator().manual_seed(mix(self.seed, step))
        for own in net.parameters():
            own.grad = self.noise * torch.randn(own.shape, generator=generator)


def _shake(moved: list[nn.Parameter], start: list[Tensor], scale: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        for own, value in zip(moved, start, strict=True):
            own.copy_(value)
            if scale:
                own.add_(torch.randn(own.shape, generator=generator).to(own), alpha=scale)

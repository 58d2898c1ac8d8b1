"""Where a step's gradient comes from: the protocol of the loop, the plain mean gradient, and other objectives.

The objective is the mean loss (the cross-entropy, or the squared error of a number), or the convexified loss of Lu et
al. 2021. With ℓ a record's cross-entropy, n records and the L2 term on weight matrices alone (Eq. 22 and 23; 2λ is
`l2`):

* `over="records"`, as printed: (1/α) ln[(1/n) Σ exp(α ℓ)] + l2 ‖W‖². As α → 0 it is the mean, as α → ∞ the maximum.
* `over="elements"`, as in the authors' code: the mean over all n·C elements of exp(−α y_c ln p_c), of which C − 1 in
  every record are 1, so that it is (1/α) ln[(1/C) ((1/n) Σ exp(α ℓ) + C − 1)] + l2 ‖W‖². Close to a fit, its gradient
  is C times smaller, and L2 counts C times more.

The paper assumes that the first is convex in the weights. It is not: exp(α ℓ) of a network with a hidden layer has as
many minima as ℓ; a larger α only widens the region around each where it is convex.

Both are sums of exponentials of losses that may be hundreds, so they are computed from logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.training.class_weights import ClassWeights
from airlock.training.losses import CROSS_ENTROPY, Loss

Named = dict[str, Tensor]  # by the name of a parameter


class Gradients(Protocol):
    """Puts this step's gradient into every trainable parameter's `.grad`."""

    @property
    def mark(self) -> dict[str, object]:
        """What a checkpoint must match before a run continues with this source."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The state that carries over from step to step; it is saved in checkpoints."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of a checkpoint."""
        ...

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Compute the gradient of one batch; it may be empty."""
        ...


class GradientsOfPeople(Gradients, Protocol):
    """Gradients that also know how to treat several records of one person."""

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int, owners: Tensor | None = None) -> None:
        """Compute the gradient of one batch; `owners` says whose each record is."""
        ...


class PlainGradients:
    """The gradient of the mean loss: no privacy."""

    def noise_variance(self, name: str) -> Tensor:
        """None."""
        return torch.zeros(())

    @property
    def mark(self) -> dict[str, object]:
        """Nothing beyond its kind."""
        return {"gradients": "plain"}

    def state(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Backward through the mean cross-entropy; an empty batch gives no gradient."""
        net.zero_grad(set_to_none=True)
        if len(y):
            F.cross_entropy(net(x).float(), y).backward()  # type: ignore[no-untyped-call]


# Objectives: the mean loss, and the convexified one.

Over = Literal["records", "elements"]


class Objective(Protocol):
    """What several networks minimise in parallel, each over its own batch."""

    @property
    def mark(self) -> dict[str, object]:
        """What a checkpoint must match before a run continues."""
        ...

    def __call__(self, logits: Tensor, y: Tensor, weights: Tensor, parameters: Named) -> Tensor:
        """The sum over networks.

        Args:
            logits: (networks, records, classes), float32 or better.
            y: (networks, records).
            weights: Every record's weight in its network's mean: they add up to 1; 0 for a record that does not count.
            parameters: Parameters by name, stacked along a first axis.
        """
        ...


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss with the L2 term of weight matrices: with the cross-entropy, the paper's "original loss".

    Args:
        l2: The factor on the squared weights; twice as strong as torch's `weight_decay` of the same size, without
            biases.
        class_weights: How much a record of each class counts; all alike if left out.
        loss: Of one record.
    """

    l2: float = 0.0
    class_weights: ClassWeights | None = None
    loss: Loss = CROSS_ENTROPY

    @property
    def mark(self) -> dict[str, object]:
        """Its kind and figures."""
        more: dict[str, object] = {} if self.loss == CROSS_ENTROPY else {"loss": self.loss.name}
        if self.class_weights is not None:
            more["class_weights"] = list(self.class_weights.relative)
        return {"objective": "mean", "l2": self.l2, **more}

    def __call__(self, logits: Tensor, y: Tensor, weights: Tensor, parameters: Named) -> Tensor:
        """The sum over networks of mean loss and L2 term."""
        if self.class_weights is not None:
            weights = weights * self.class_weights.of(y).to(weights.dtype)
        return (_each(logits, y, self.loss) * weights).sum() + _penalty(self.l2, parameters)


MEAN = MeanLoss()  # the default objective


@dataclass(frozen=True)
class Convexified:
    """The convexified loss with its L2 term.

    Args:
        alpha: α, above 0.
        over: Which mean is taken: over records (Eq. 22) or over records and classes (the authors' code).
        l2: The factor on the squared weights.
    """

    alpha: float
    over: Over = "records"
    l2: float = 0.0

    @property
    def mark(self) -> dict[str, object]:
        """Its kind and figures."""
        return {"objective": f"convexified over {self.over}", "alpha": self.alpha, "l2": self.l2}

    def __call__(self, logits: Tensor, y: Tensor, weights: Tensor, parameters: Named) -> Tensor:
        """The sum over networks of convexified loss and L2 term."""
        terms = self.alpha * _each(logits, y) + weights.to(logits.dtype).log()
        classes = logits.shape[-1]
        if self.over == "elements":
            ones = terms.new_full((*terms.shape[:-1], 1), math.log(classes - 1))
            terms = torch.cat([terms, ones], -1)
        mean = torch.logsumexp(terms, -1) - (math.log(classes) if self.over == "elements" else 0.0)
        return mean.sum() / self.alpha + _penalty(self.l2, parameters)


def _each(logits: Tensor, y: Tensor, loss: Loss = CROSS_ENTROPY) -> Tensor:
    return loss.of(logits.flatten(0, -2), y.flatten()).view_as(y)


def _penalty(l2: float, parameters: Named) -> Tensor | float:
    """The penalty on everything with two or more dimensions besides the stacked one: weights, not biases."""
    return l2 * sum(value.square().sum() for value in parameters.values() if value.dim() > 2) if l2 else 0.0


class ObjectiveGradients(PlainGradients):
    """The gradient of an objective for one network: no privacy."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    @property
    def mark(self) -> dict[str, object]:
        """The objective's mark."""
        return {"gradients": "objective", **self.objective.mark}

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Backward through the objective; an empty batch gives no gradient."""
        net.zero_grad(set_to_none=True)
        if len(y):
            weights = torch.full((1, len(y)), 1 / len(y), device=y.device)
            own = {name: p[None] for name, p in net.named_parameters() if p.requires_grad}
            self.objective(net(x).float()[None], y[None], weights, own).backward()  # type: ignore[no-untyped-call]


def start_as_keras(net: nn.Module, seed: int) -> None:
    """Reinitialise dense layers as Keras does: uniform by Glorot and Bengio (2010), with zero biases."""
    generator = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)

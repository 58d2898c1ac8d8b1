"""DP-AdamBC: Adam that knows how much of its second moment is noise (Tang et al., AAAI 2024).

Private gradients are g + N(0, φ) with a public φ on each coordinate, so Adam's second moment estimates E g² + φ. Under
the noise that privacy needs, φ is nearly all of it: every coordinate is divided by about the same number, and Adam does
what SGD with momentum does. Here φ is subtracted before the root is taken.

What is left is known to within the sampling error of φ's own share: an average of squares of Gaussian numbers over
the last steps, whose standard deviation is φ · √(2 Σ wᵢ²) with the averaging weights wᵢ. The difference is not trusted
below that; the paper takes a constant instead, which has to be tuned. Everything here is computed from noisy gradients
and public figures: post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

BETAS = (0.9, 0.999)
_TINY = 1e-8  # added to the root, as in Adam


class AdamBC(torch.optim.Optimizer):
    """Adam with the second moment of the noise taken off; without noise it is Adam.

    `noise_variances` is to be set before each step: φ of every parameter, a number or a tensor that fits it.

    Args:
        parameters: What is trained.
        lr: The learning rate.
        weight_decay: The L2 penalty, added to the gradient.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay})
        self.noise_variances: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step on every parameter that has a gradient."""
        variances = iter(self.noise_variances)
        for group in self.param_groups:
            for parameter in group["params"]:
                variance = next(variances)
                if parameter.grad is not None:
                    self._one(parameter, group, variance)

    def _one(self, parameter: nn.Parameter, group: dict[str, Any], variance: torch.Tensor) -> None:
        """The moments in this parameter's state, and its step."""
        state, (first, second) = self.state[parameter], BETAS
        if not state:
            state["step"] = torch.zeros(())
            for key in ("mean", "square"):
                state[key] = torch.zeros_like(parameter)
            state["noise"] = torch.zeros_like(variance.to(parameter))
        gradient = parameter.grad
        assert gradient is not None
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state["step"] += 1
        taken = int(state["step"])
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        state["noise"].lerp_(variance.to(parameter), 1 - second)
        whole = 1 - second**taken
        mean, square, noise = state["mean"] / (1 - first**taken), state["square"] / whole, state["noise"] / whole
        left = torch.maximum(square - noise, noise * uncertainty(taken))
        parameter.sub_(group["lr"] * mean / (left.sqrt() + _TINY))


def uncertainty(taken: int) -> float:
    """The standard deviation of the noise's share of the second moment after so many steps, over that share."""
    second = BETAS[1]
    squares = (1 - second) ** 2 * (1 - second ** (2 * taken)) / (1 - second**2) / (1 - second**taken) ** 2
    return math.sqrt(2 * squares)

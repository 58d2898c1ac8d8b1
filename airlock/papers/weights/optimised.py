"""The optimised additive noise of Xiang, Yang and Li 2019: budget per iteration (Eq. 12) and shape (Eq. 10 and 11).

Everything here is the paper's, mistakes included; `published` says which they are. Shapes are given as factors u on the
equal noise α/√τ, so that σ = u · α/√τ: with Δ = α·v the constraint Σ Δ_i²/σ_i² ≤ τ reads Σ v_i²/u_i² ≤ 1 on ‖v‖ = 1.
u = 1 is the true optimum of Eq. 10 whatever w is: the worst v puts all its weight on the smallest u. Both solvers below
only meet the constraint at one v, with equality, and therefore always have min u ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from airlock.errors import ConfigError

Solver = Literal["projected", "closed"]

_ITERATIONS = 50  # "the method takes around 50 iterations to converge"
_STEP_NOISE, _STEP_DIRECTION = 0.02, 0.01  # of u and of v in one iteration, over their own norm
_STEEPNESS = 50.0  # of the sigmoid that stands for the step function
_GROWTH = 1.1  # of the penalty μ in one iteration, from 1


@dataclass(frozen=True)
class Budget:
    """What one iteration may spend, by the paper's composition.

    Args:
        epsilon: ε_t.
        delta: δ_t.
        tau: τ, the bound on Σ Δ_i²/σ_i².
    """

    epsilon: float
    delta: float
    tau: float

    @property
    def noise_multiplier(self) -> float:
        """1/√τ: the equal noise that meets the constraint, over the clip norm α."""
        return 1.0 / math.sqrt(self.tau)


def budget(epsilon: float, delta: float, sampling_probability: float, iterations: int, order: int | None) -> Budget:
    """Eq. 12 and τ = 2 ε_t + (2/λ) ln δ_t.

    Args:
        epsilon: The ε to be claimed.
        delta: The δ to be claimed.
        sampling_probability: q.
        iterations: k, over all runs.
        order: λ, the order of the moment in Eq. 9. The paper asks for "any positive integer" and names none; None is
            the limit of large λ, τ = 2 ε_t: the largest τ, so the least noise, that its argument allows.

    Raises:
        ConfigError: τ is not positive, so that no noise meets the constraint.
    """
    per_step = epsilon / math.sqrt(16 * sampling_probability**2 * iterations * math.log(math.e + epsilon / delta))
    return one_iteration(per_step, delta / (2 * iterations), order)


def one_iteration(per_step: float, leak: float, order: int | None) -> Budget:
    """τ for ε_t and δ_t, which one iteration is claimed to have.

    Raises:
        ConfigError: τ is not positive, so that no noise meets the constraint.
    """
    tau = 2 * per_step + (2 / order * math.log(leak) if order else 0.0)
    if tau <= 0:
        smallest = math.floor(-math.log(leak) / per_step) + 1
        raise ConfigError(
            f"settings.moment_order of at least {smallest}",
            f"{order}",
            "The paper's constraint has no solution below.",
            "Leave it out for the limit of large orders.",
        )
    return Budget(per_step, leak, tau)


def solve(solver: Solver, w: Tensor) -> Tensor:
    """The shape u of the noise for the model sensitivity w; equal noise where w is zero altogether."""
    largest = w.abs().max()
    if not bool(torch.isfinite(largest)) or float(largest) == 0.0:
        return torch.ones_like(w)
    return _SOLVERS[solver]((w / largest).abs())


def closed(w: Tensor) -> Tensor:
    """The authors' later code: σ_i = (2 λ* Δ_i²/|w_i|)^{1/3} at Δ* = α w/‖w‖, λ* from the constraint.

    That is u_i ∝ |w_i|^{1/3}: coordinates that matter less get less noise, those with w_i = 0 none.
    """
    size: Tensor = w.pow(4 / 3).sum().sqrt() / w.norm()
    return w.pow(1 / 3) * size


def projected(w: Tensor) -> Tensor:
    """Eq. 11: ascent in Δ on the sphere, descent in σ, in turn, under a sigmoid penalty that grows.

    Δ is projected onto ‖Δ‖ = α and σ onto its constraint at this Δ, by scaling, which keeps the shape. The paper gives
    no step sizes: these are relative to the size of what they move, and no coordinate more than doubles or halves in
    one step. The best of the shapes that were passed is kept, each scaled to meet the constraint at its own Δ. With
    more iterations or a faster Δ the answer tends to equal noise, the exact solution.
    """
    weight = w / w.mean()
    u, v, penalty = torch.ones_like(w), w / w.norm(), 1.0
    best, lowest = u, weight.sum()
    for _ in range(_ITERATIONS):
        v = _moved(v, v / u.square(), _STEP_DIRECTION)
        v = v / v.norm()
        fall = _pull(u, v, penalty) * len(w) * v.square() / u.pow(3) - weight
        u = _moved(u, fall, _STEP_NOISE)
        size = (v / u).norm()
        cost = (weight @ u) * size
        if cost < lowest:
            best, lowest = u * size, cost
        u, penalty = u * size.clamp_min(1.0), penalty * _GROWTH
    return best


def _pull(u: Tensor, v: Tensor, penalty: float) -> Tensor:
    """2 μ s'(h - 1) for the sigmoid s and h = Σ v²/u²: how hard the constraint pulls."""
    s = torch.sigmoid(_STEEPNESS * ((v / u).square().sum() - 1.0))
    return 2.0 * penalty * _STEEPNESS * s * (1.0 - s)


def _moved(value: Tensor, direction: Tensor, share: float) -> Tensor:
    """A step along `direction` whose length is a share of the value's; no coordinate leaves half to double."""
    step = direction * (share * value.norm() / direction.norm().clamp_min(1e-30))
    return torch.minimum(torch.maximum(value + step, 0.5 * value), 2.0 * value)


_SOLVERS: dict[Solver, Callable[[Tensor], Tensor]] = {"projected": projected, "closed": closed}

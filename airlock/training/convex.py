"""Logistic heads and Huber regressions, solved to within a certified distance of their exact minimiser.

For output perturbation (Chaudhuri, Monteleoni and Sarwate 2011) the sensitivity is that of an exact minimiser, which no
solver reaches. Here the solver has to prove how close it is, and the remaining distance is part of the sensitivity.

The objective of a head W (outputs × features) on records with features φ_i and labels y_i is

    F(W) = (1/n0) Σ_i ℓ(W φ_i, y_i) + (λ/2) ‖W‖²,

where ℓ is convex and its gradient in W φ has norm at most s; with a *public* n0: the true number of records is private,
and dividing by it would make the mean depend on it. ‖φ_i‖ ≤ R is enforced here (`bounded`).

`LogisticHead`: ℓ is the cross-entropy of p = softmax(W φ) against y. Its gradient is p − e_y, and ‖p − e_y‖² = (1 −
p_y)² + Σ_{j≠y} p_j² ≤ 2(1 − p_y)² ≤ 2, so s = √2. Its Hessian has eigenvalues of at most c = 1/2 (Böhning 1992), and at
W = 0 ℓ is l = ln C.

`HuberHead`: ℓ is Huber's loss of r = W φ − t, the distance from a target t in [−1/2, 1/2]: r²/2 up to |r| = κ, and from
there on κ|r| − κ²/2. Its gradient is r clamped to [−κ, κ], so s = κ; its second derivative is at most c = 1, and at W =
0 it is at most l = κ/2 − κ²/2 if κ ≤ 1/2. A target that is not clamped changes the head, but never by more than this.

Sensitivity. One record's gradient in W is an outer product of a vector of norm at most s with φ, so its norm is at most
s R. Let W, W' minimise F on a data set and F' on the same data set with one record added. ∇F'(W) is
that record's gradient over n0, because ∇F(W) = 0; F' is λ-strongly convex and ∇F'(W') = 0, so λ‖W − W'‖ ≤ ‖∇F'(W)‖ ≤ s
R/n0. Replacing one record is removing and adding one: twice that.

People. Records may have weights w_i ≥ 0, with which their losses enter the sum. With weights 1/k for each of the k
records of a person (`Records.weights`), the loss of a person is the mean over her records, and her gradient is a mean
of vectors of norm at most s R: no longer than that of one record, however many she has. So all of the above holds for
adding or removing one person with all her records, with n and n0 numbers of people; no bound on k is needed. The
weights are those in float64: they differ from 1/k by a factor of at most 1 + 2^-53, so her gradient may be longer by
that factor, which is part of the 1 + 2^-40 in `LogisticHead.sensitivity`.

Classes. Where classes have weights (`class_weights`), w_i is v_c for a record of class c, divided by k where a person
is protected. They are relative to the largest, v_c ≤ 1, so a record's gradient, and a person's, is no longer than
before: the largest weight is 1, and stands as that in √2 R/n0. With weights up to some M > 1 every bound here would be
M times as large, so `solve` refuses weights above 1.

The gap. Strong convexity also gives ‖Ŵ − W‖ ≤ ‖∇F(Ŵ)‖/λ for any Ŵ. What `solve` returns has a *certified* ‖∇F(Ŵ)‖ ≤ τ:
two neighbouring solutions are at most 2τ/λ further apart than their minimisers. A head that cannot be certified is
refused. A refusal would be visible and depend on the records, so it must not happen, whatever they are. The solver
cannot run out of iterations: if L-BFGS does not converge, `_descend` takes as many steps as a theorem says are enough.
Floating point is not an obstacle either: methods plan with a τ above twice `LogisticHead.sharpest` for ten times the
declared number of records. Only more records than that could lead to a refusal. With people it is ten times their
declared number, and any number of records that fits into memory (`MOST_ROWS`): sums are taken in blocks, so that
rounding grows with the number of blocks only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from airlock.accounting.terms import Relation
from airlock.errors import TrainingError
from airlock.training.losses import from_the_middle

_UNIT = 2.0**-53  # float64's unit roundoff
_MEMORY = 12  # pairs kept by L-BFGS
_MOST = 3000  # iterations
_WIDEST = 4096  # features up to which curvature is factorised
_INSIDE = 1.0 - 2.0**-30  # of R: above every error of a norm in float64
_BLOCK = 1 << 14  # records whose gradients are summed at once
_AT_ONCE = 1 << 10  # records that are copied at once
LARGEST_WEIGHT = 1.0  # of a record or a person: the sensitivity is that of one that counts once
MOST_ROWS = 1 << 30  # records of people: features of more do not fit into memory

Shard = tuple[Tensor, Tensor]  # features (records, width) and labels


@dataclass(frozen=True)
class ConvexHead(ABC):
    """The objective, defined by public figures alone, and the resulting sensitivity.

    Args:
        outputs: The number of outputs: the classes, or 1.
        regularisation: λ.
        records: n0, the public number of records; of people where records have weights.
        tolerance: τ over s R/(2 n0): the gap's part of the sensitivity, as a fraction of the exact minimiser's.
        bound: R; features with a larger norm are scaled down to it.
    """

    outputs: int
    regularisation: float
    records: int
    tolerance: float = 1e-3
    bound: float = 1.0

    @property
    @abstractmethod
    def slope(self) -> float:
        """s: the bound on the gradient of a record's loss in its outputs; at most √2."""

    @property
    @abstractmethod
    def curvature(self) -> float:
        """c: the bound on the eigenvalues of its Hessian in its outputs."""

    @property
    @abstractmethod
    def at_zero(self) -> float:
        """l: the bound on a record's loss at a head of zeros."""

    @abstractmethod
    def targets(self, labels: Tensor) -> Tensor:
        """What outputs are compared with, (records, outputs) in float64."""

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of every record's loss in its outputs."""

    @property
    def exact_sensitivity(self) -> float:
        """The exact minimiser's sensitivity to adding or removing one record: s R/(λ n0)."""
        return self.slope * self.bound / (self.regularisation * self.records)

    @property
    def largest_gradient(self) -> float:
        """τ: the bound on ‖∇F‖ that `solve` certifies."""
        return self.tolerance * self.exact_sensitivity * self.regularisation / 2

    def sensitivity(self, relation: Relation = "add-remove") -> float:
        """The L2 sensitivity of the result of `solve`: the exact minimiser's, doubled under replacement, plus 2τ/λ."""
        exact = self.exact_sensitivity * (1 if relation == "add-remove" else 2)
        return (exact + 2 * self.largest_gradient / self.regularisation) * (1 + 2**-40)

    def sharpest(self, width: int, records: int | None = None, rows: int | None = None) -> float:
        """The error bound of a computed gradient at the largest possible head; τ has to be well above it.

        It depends only on sizes, as `largest_norm` does.

        Args:
            width: The number of features.
            records: How many there are: the sum of their weights.
            rows: How many there are where some weigh less than one; as many as `records` if left out.
        """
        count = records or self.records
        norm = self.largest_norm(count)
        return self._error(width, count, norm, norm, rows)

    def largest_norm(self, records: int) -> float:
        """An upper bound on the norm of any head trained on this many records.

        The minimiser has λ‖W‖ ≤ s R n/n0, because its gradient is zero, and (λ/2)‖W‖² ≤ (n/n0) l, because F is no
        larger there than at zero.
        """
        share = records / self.records / self.regularisation
        return 1.1 * min(self.slope * self.bound * share, math.sqrt(2 * self.at_zero * share))

    def projected(self, head: Tensor, radius: float) -> Tensor:
        """The head, or the nearest one of this norm: a projection, which moves no two further apart."""
        nearest: Tensor = head * (radius / head.norm().clamp_min(1e-300)).clamp_max(1.0)
        return nearest

    def logit_error(self, width: int, norm: float) -> float:
        """How far a computed logit of a head of at most this norm is from the true one, in any order of summation.

        By the standard model of rounding (Higham 2002) it is γ(width) ‖w‖ R, plus a few units for `projected`.
        """
        return 1.01 * _gamma(width + 8) * norm * self.bound

    def _error(self, width: int, count: float, norm: float, largest_row: float, rows: int | None = None) -> float:
        """How far a computed gradient is from the true one at a head of this norm, in L2.

        By the standard model of rounding (Higham 2002), in any order of summation: a logit is off by γ(width)·R·‖w‖,
        which moves probabilities by as much in L1, or a distance from a target; exponentials, their sum and the
        quotient add a relative error, which is more than that of a difference; the product with the weight, the sum
        within a block and the sum of all blocks add γ(1 + records of a block + blocks) of the sum of all norms, which
        is at most s R ≤ √2 R times the sum of the weights.

        Args:
            width: The number of features.
            count: The sum of the weights.
            norm: Of the head.
            largest_row: The largest norm of a row of it.
            rows: How many records there are, if not `count`.
        """
        rows = math.ceil(count) if rows is None else rows
        depth = 1 + min(rows, _BLOCK) + rows // _BLOCK
        logits = _gamma(width) * self.bound * largest_row
        softmax = 2 * (8 * self.bound * largest_row + 2 * self.outputs + 32) * _UNIT
        summed = count * self.bound * (1.5 * _gamma(depth) + 1.01 * (logits + softmax)) / self.records
        last = 4 * _UNIT * (1.5 * count * self.bound / self.records + self.regularisation * norm)
        return 1.01 * (summed + last)

    def bounded(self, features: Tensor) -> Tensor:
        """Features in float64, each record scaled to norm at most R; one that is not finite becomes zero."""
        x = features.double()
        x = torch.where(x.isfinite().all(1, keepdim=True), x, torch.zeros_like(x))
        largest = x.abs().amax(1, keepdim=True).clamp_min(1e-300)
        norm = (x / largest).norm(dim=1, keepdim=True) * largest
        shorter: Tensor = x * (self.bound * _INSIDE / norm.clamp_min(1e-300)).clamp_max(1.0)
        return shorter


class LogisticHead(ConvexHead):
    """Multinomial logistic regression."""

    slope, curvature = math.sqrt(2), 0.5

    @property
    def at_zero(self) -> float:
        """All classes are equally likely there."""
        return math.log(self.outputs)

    def targets(self, labels: Tensor) -> Tensor:
        """One-hot labels."""
        return F.one_hot(labels.long(), self.outputs).double()

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The probabilities minus the label's."""
        return torch.softmax(outputs, 2) - targets


@dataclass(frozen=True)
class HuberHead(ConvexHead):
    """Regression with Huber's loss on targets in [−1/2, 1/2].

    Args:
        threshold: κ, at most 1/2: a record that is further off pulls no harder.
    """

    threshold: float = 0.5
    curvature = 1.0

    def __post_init__(self) -> None:
        if self.outputs != 1 or not 0 < self.threshold <= 0.5:
            raise ValueError("a regression has one output, and a threshold in (0, 1/2]")

    @property
    def slope(self) -> float:
        """κ."""
        return self.threshold

    @property
    def at_zero(self) -> float:
        """Of a target at an end of its range."""
        return self.threshold / 2 - self.threshold**2 / 2

    def targets(self, labels: Tensor) -> Tensor:
        """Steps of the declared range as distances from its middle."""
        return from_the_middle(labels)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """By how much outputs are off, at most κ."""
        return (outputs - targets).clamp_(-self.threshold, self.threshold)


def _gamma(count: int) -> float:
    return count * _UNIT / (1 - count * _UNIT)


class _Heads:
    """Several heads at once, each on its own records: shards padded to one length with records of weight zero."""

    def __init__(self, shards: Sequence[Shard], objective: ConvexHead, weights: Sequence[Tensor] | None = None) -> None:
        self.objective, (first, _) = objective, shards[0]
        self.counts = [len(y) for _, y in shards]
        self.longest, self.width = max(self.counts), first.shape[1]
        self.x = first.new_zeros(len(shards), self.longest, self.width, dtype=torch.float64)
        self.target = self.x.new_zeros(len(shards), self.longest, objective.outputs)
        self.weight, self.even = self.x.new_zeros(len(shards), self.longest, 1), weights is None
        for i, (features, labels) in enumerate(shards):
            for part, room in zip(torch.split(features, _AT_ONCE), torch.split(self.x[i], _AT_ONCE), strict=False):
                room[: len(part)] = objective.bounded(part)  # a few at a time: copies are slow in fresh memory
            self.target[i, : len(labels)] = objective.targets(labels)
            self.weight[i, : len(labels), 0] = 1.0 if weights is None else weights[i].double()
        self.total = float(self.weight.sum((1, 2)).max()) * (1 + 2**-20)  # of the weights, whatever its own rounding

    def gradient(self, heads: Tensor) -> Tensor:
        """∇F of every head at once."""
        residual = self.objective.residual(self.x @ heads.mT, self.target).mul_(self.weight)
        total = residual[:, :_BLOCK].mT @ self.x[:, :_BLOCK]
        for start in range(_BLOCK, self.longest, _BLOCK):
            total += residual[:, start : start + _BLOCK].mT @ self.x[:, start : start + _BLOCK]
        return total / self.objective.records + self.objective.regularisation * heads

    def certified(self, heads: Tensor, gradient: Tensor) -> Tensor:
        """For every head, an upper bound on its true ‖∇F‖ that includes rounding errors in the computed one."""
        norms = _norm(gradient) * (1 + 2 * _gamma(heads[0].numel() + 4))
        rows = heads.norm(dim=2).amax(1) * 1.01
        errors = [
            self.objective._error(self.width, self.total, norm, row, self.longest)
            for norm, row in zip((1.01 * _norm(heads)).tolist(), rows.tolist(), strict=True)
        ]
        return norms + torch.tensor(errors, dtype=torch.float64, device=norms.device)

    def uncertified(self, heads: Tensor) -> Tensor:
        """Which heads are, or might be, further from their minimiser than promised."""
        return ~(self.certified(heads, self.gradient(heads)) <= self.objective.largest_gradient)

    def curvature(self) -> Tensor | None:
        """Cholesky factors of c ΦᵀWΦ/n0 + λ, which bounds every Hessian of F; None if too wide.

        W holds the weights on its diagonal.
        """
        if self.width > _WIDEST:
            return None
        weighed = self.x if self.even else self.x * self.weight
        product = weighed.mT @ self.x * (self.objective.curvature / self.objective.records)
        product.diagonal(dim1=1, dim2=2).add_(self.objective.regularisation)
        factors: Tensor = torch.linalg.cholesky(product)
        return factors

    def precondition(self, vector: Tensor, factors: Tensor | None) -> Tensor:
        """The vector multiplied by the inverse curvature."""
        if factors is not None:
            return torch.cholesky_solve(vector.mT, factors).mT
        objective = self.objective
        steepest = objective.curvature * self.total * objective.bound**2 / objective.records
        return vector / (steepest + objective.regularisation)


def solve(
    shards: Sequence[Shard],
    objective: ConvexHead,
    *,
    weights: Sequence[Tensor] | None = None,
    certify: bool = True,
) -> Tensor:
    """One head per shard, (heads, classes, features) in float64, each with a certified ‖∇F‖ ≤ τ.

    L-BFGS from zero with a bound on the curvature as its metric. A head depends only on the objective's figures and on
    its shard's own records, so heads of disjoint shards have the sensitivity of one.

    Args:
        shards: Features and labels of each.
        objective: What is minimised.
        weights: Of the records of each shard, at most 1; one each if left out.
        certify: Whether a guarantee depends on the distance. If none does (with votes, one record changes one vote,
            whatever its head becomes), the best head found is returned.

    Raises:
        TrainingError: Some head could not be certified.
    """
    if weights is not None and any(bool((own > LARGEST_WEIGHT * (1 + 2**-50)).any()) for own in weights):
        raise ValueError("weights of at most 1: the sensitivity is that of a record that counts once")
    heads = _Heads(shards, objective, weights)
    found = _minimise(heads)
    if certify:
        found = _descend(heads, found)
    if certify and bool(heads.uncertified(found).any()):
        raise TrainingError(
            "a head within the stated distance of the minimiser",
            "one that floating point or the number of iterations kept further away",
            "Without that distance there is no bound on the sensitivity, and nothing may leave.",
            "Raise settings.tolerance or settings.regularisation.",
        )
    return found


def _descend(heads: _Heads, w: Tensor) -> Tensor:
    """Solve uncertified heads again from zero, with a number of steps that is sufficient whatever the records are.

    B = c ΦᵀWΦ/n0 + λ is an upper bound on every Hessian of F and λ a lower one. With g = ∇F(w), the
    step w − B⁻¹g gives F(w − B⁻¹g) ≤ F(w) − gᵀB⁻¹g/2, and strong convexity F(w) − F* ≤ ‖g‖²/(2λ). So a step reduces F −
    F* by a factor of 1 − λ/β, where β = c R²n/n0 + λ exceeds B's eigenvalues. It is at most (n/n0) l at zero, and
    ‖g‖² ≤ 2β(F − F*) at the end: after (β/λ) ln(2β (n/n0) l/(τ/2)²) steps ‖g‖ ≤ τ/2, which is certified if rounding
    takes no more than the other half.
    """
    going = heads.uncertified(w)[:, None, None]
    if not bool(going.any()):
        return w
    objective, factors = heads.objective, heads.curvature()
    share = heads.total / objective.records  # n is the sum of the weights
    largest = objective.curvature * objective.bound**2 * share + objective.regularisation
    start = 2 * largest * share * objective.at_zero / (objective.largest_gradient / 2) ** 2
    w = torch.where(going, torch.zeros_like(w), w)
    for _ in range(math.ceil(largest / objective.regularisation * math.log(max(start, math.e)))):
        gradient = heads.gradient(w)
        going = (heads.certified(w, gradient) > objective.largest_gradient)[:, None, None]
        if not bool(going.any()):
            break
        w = w - heads.precondition(gradient, factors) * going
    return w


def _minimise(heads: _Heads) -> Tensor:
    """Iterate until every head is certified or the iterations are used up."""
    factors, goal = heads.curvature(), heads.objective.largest_gradient
    w = heads.x.new_zeros(len(heads.counts), heads.objective.outputs, heads.width)
    gradient, pairs = heads.gradient(w), _Pairs()
    for _ in range(_MOST):
        going = (heads.certified(w, gradient) > goal)[:, None, None]
        if not bool(going.any()):
            break
        direction = -pairs.apply(gradient, lambda v: heads.precondition(v, factors)) * going
        step, following = _along(heads, w, gradient, direction)
        pairs.add(step, following - gradient)
        w, gradient = w + step, following
    return w


def _along(heads: _Heads, w: Tensor, gradient: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """A step along the direction and the gradient there; shortened until the slope turns up by less than half.

    Only slopes are used: near the minimum the values of F no longer differ in float64, but its slopes do.
    """
    slope = _dot(gradient, direction)
    length = torch.ones_like(slope)
    following = gradient
    for _ in range(40):
        following = heads.gradient(w + length * direction)
        ahead = _dot(following, direction)
        if bool((ahead <= -0.5 * slope).all()):
            break
        cut = (slope / (slope - ahead)).clamp(0.1, 0.7)
        length = torch.where(ahead > -0.5 * slope, length * cut, length)
    return length * direction, following


class _Pairs:
    """L-BFGS's memory (Nocedal 1980) for a set of heads; a head that does not move has pairs of zeros."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, change: Tensor) -> None:
        """Store how the gradient changed along a step."""
        product = _dot(step, change)
        inverse = torch.where(product > 0, 1 / product, torch.zeros_like(product))
        self.kept = [*self.kept, (step, change, inverse)][-_MEMORY:]

    def apply(self, gradient: Tensor, start: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient times the inverse curvature estimated from the pairs."""
        vector, shares = gradient, []
        for step, change, inverse in reversed(self.kept):
            share = inverse * _dot(step, vector)
            vector = vector - share * change
            shares.append(share)
        vector = start(vector)
        for (step, change, inverse), share in zip(self.kept, reversed(shares), strict=True):
            vector = vector + (share - inverse * _dot(change, vector)) * step
        return vector


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2), keepdim=True)


def _norm(a: Tensor) -> Tensor:
    norms: Tensor = a.flatten(1).norm(dim=1)
    return norms

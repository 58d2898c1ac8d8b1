"""The exponential mechanism over a kernel density estimate, for many columns at once (Mao et al. 2020, DP-PG).

A slice is one column θ_1 … θ_M. Its score at t is the estimated probability of a window of width w around t,
u(t) = mean_i [Φ((t + w/2 − θ_i)/b) − Φ((t − w/2 − θ_i)/b)], and t is drawn from a grid with weights exp(ε u(t) / 2Δ).

How u is computed. The kernel is smooth on the scale of b, so on a period that includes its tails it is a short sum of
cosines. With ω_k = 2πk/period, a_k = 2 sin(ω_k w/2)/ω_k · exp(−ω_k² b²/2) and the means c_k, s_k of cos ω_k θ_i and sin
ω_k θ_i, u(t) = w/period + (2/period) Σ_k a_k (c_k cos ω_k t + s_k sin ω_k t). The grid is the same for all columns once
a column is scaled to its range, so the sum over k is one matrix product, and no error function is evaluated. The
truncation error, whatever the data, comes from values and repetitions of the period further than `_TAIL` bandwidths
from every window, Φ(−6.2) < 2.9e-10 each, and frequencies above `_CUT`/b, at most (2/π) exp(−6.2²/2)/6.2² < 8e-11 in
total: less than `TOLERANCE`. Columns whose bandwidth is too small relative to their range for this are computed
directly.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from airlock.errors import AccountingError
from airlock.mechanisms.randomness import Stream
from airlock.threads import one_thread

TOLERANCE = 1e-9  # of a score; scores are between 0 and 1
_TAIL, _CUT = 6.2, 6.2
_FREQUENCIES = 96  # beyond this, error functions are cheaper
_PIECE = {"cpu": 512, "cuda": 65_536}  # columns at a time: limited by a CPU's cache and a GPU's memory
_PAIRS = 64  # columns whose pairs of values are held at a time, on a CPU
_STEPS = 8  # of false position; six digits of a bandwidth are more than enough
_HALF = math.sqrt(0.5)


def largest_score(window: float) -> float:
    """κ = 2Φ(w/2b) − 1: the most that one value adds to M·u; `window` is w/b."""
    return math.erf(window / 2 * _HALF)


def published_sensitivity(models: int) -> float:
    """Δu by Corollary 1 of the paper, 1/(M(M−1)), which is too small."""
    return 1.0 / (models * (models - 1))


def sensitivity(models: int, window: float) -> float:
    """Δu = κ/M: how far a score moves when one of M values is added, removed or replaced.

    A mean over M of numbers in [0, κ] moves by at most κ/M when one of them is replaced; when one is removed, by
    |x − mean of the others|/M, which is at most κ/M too.
    """
    return largest_score(window) / models


@dataclass(frozen=True)
class DensityMechanism:
    """Draws one value per column.

    Guarantee: for one column, with a range and a bandwidth that do not depend on the data and Δ = `sensitivity(M, …)`,
    a draw is ε-DP and ε-bounded-range under one value added, removed or replaced, M being public: with Δ smaller, the
    true ε is ε · κ/(MΔ) (`true_epsilon`). Columns of the same rows compose: N of them are (N ε²/8)-zCDP (Cesar and
    Rogers 2021). Numbers are float64: scores are off by at most `TOLERANCE`, which adds at most 2ε·TOLERANCE/Δ to ε
    (`slack`). A draw inverts cumulative sums at one of 2^52 uniform numbers: the boundary after point i of G is off by
    at most (i + G) roundings of 2^-53, one step of 2^-52 and one rounding more, so that a draw is within G²·2^-52 in
    total variation of what is accounted for (`distance`); draws that are η off cost (1 + e^ε)·η in δ.

    Args:
        epsilon: ε for one column.
        sensitivity: Δ of the score.
        window: w, in bandwidths.
        points: The number of grid points: the midpoints of that many equal parts of the range.
    """

    epsilon: float
    sensitivity: float
    window: float = 1.0
    points: int = 256

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and self.sensitivity > 0 and self.window > 0 and self.points >= 2):
            raise AccountingError(
                "ε, sensitivity and window above 0 and at least 2 points",
                f"{self.epsilon:g}, {self.sensitivity:g}, {self.window:g} and {self.points}",
            )

    def true_epsilon(self, models: int) -> float:
        """The ε of one column with the score's true sensitivity."""
        return self.epsilon * sensitivity(models, self.window) / self.sensitivity

    @property
    def slack(self) -> float:
        """The most that the rounding of scores adds to ε."""
        return 2 * self.epsilon * TOLERANCE / self.sensitivity

    @property
    def distance(self) -> float:
        """The most that the rounding of sums moves one draw, in total variation."""
        return max(6, self.points) ** 2 * 2.0**-52

    def grid(self, low: Tensor, high: Tensor) -> Tensor:
        """The values that can be drawn: (columns, points), float64."""
        return low.double()[:, None] + (high - low).double()[:, None] * self._places(low.device)

    def _places(self, device: torch.device) -> Tensor:
        return (torch.arange(self.points, dtype=torch.float64, device=device) + 0.5) / self.points

    def scores(self, slices: Tensor, low: Tensor, high: Tensor, bandwidth: Tensor) -> Tensor:
        """The score u at every point of every column's grid: (columns, points), float64.

        Args:
            slices: (M, columns).
            low: Where every column's range begins.
            high: Where it ends, above `low`.
            bandwidth: b of every column, above 0.
        """
        width = (high - low).double()
        x = (slices.double() - low.double()) / width
        b = bandwidth.double() / width
        room = (_TAIL + self.window / 2) * b
        x = torch.minimum(torch.maximum(x, -room), 1 + room)  # beyond this, a value adds nothing to any point
        needed = (1 + 2 * room) * _CUT / (2 * math.pi * b)
        smooth = needed <= _FREQUENCIES
        if bool(smooth.all()):
            return self._series(x, b)
        found = torch.empty(len(b), self.points, dtype=torch.float64, device=x.device)
        found[~smooth] = self._directly(x[:, ~smooth], b[~smooth])
        if bool(smooth.any()):
            found[smooth] = self._series(x[:, smooth], b[smooth])
        return found

    def _directly(self, x: Tensor, b: Tensor) -> Tensor:
        scale, half = b[:, None] / _HALF, self.window / 2 * _HALF
        total = torch.zeros(len(b), self.points, dtype=torch.float64, device=x.device)
        places = self._places(x.device)
        for row in x:
            z = (places - row[:, None]) / scale
            total += torch.erf(z + half) - torch.erf(z - half)
        return total.div_(2 * len(x))

    def _series(self, x: Tensor, b: Tensor) -> Tensor:
        beyond = torch.maximum(-x.amin(), x.amax() - 1).clamp_min(0)
        period = float(1 + beyond + (_TAIL + self.window / 2) * b.amax())
        count = math.ceil(period * _CUT / (2 * math.pi * float(b.amin())))
        if count > 2 * _FREQUENCIES:  # the bandwidths are too different for one period
            return self._directly(x, b)
        k = torch.arange(1, count + 1, dtype=torch.float64, device=x.device) * (2 * math.pi / period)
        means = _harmonics(x * (2 * math.pi / period), count)
        weights = 4 / period * torch.sin(k * self.window / 2 * b[:, None]) / k * torch.exp(-0.5 * (k * b[:, None]) ** 2)
        angles = k[:, None] * self._places(x.device)
        waves = torch.cat([torch.cos(angles), torch.sin(angles)])
        found = torch.cat([means[0].T * weights, means[1].T * weights], 1) @ waves
        return found.add_((self.window / period * b)[:, None])

    def probabilities(self, slices: Tensor, low: Tensor, high: Tensor, bandwidth: Tensor) -> Tensor:
        """The probability of every point of every column's grid: (columns, points), float64."""
        found = self._weights(slices, low, high, bandwidth)
        return found / found.sum(1, keepdim=True)

    def _weights(self, slices: Tensor, low: Tensor, high: Tensor, bandwidth: Tensor) -> Tensor:
        logits = self.scores(slices, low, high, bandwidth).mul_(self.epsilon / (2 * self.sensitivity))
        return logits.sub_(logits.amax(1, keepdim=True)).exp_()

    def pick(self, slices: Tensor, low: Tensor, high: Tensor, bandwidth: Tensor, stream: Stream) -> Tensor:
        """Draw a point of the grid for every column: its position, (columns,). The stream is secret and read once.

        The uniform numbers, one per column, are drawn on the CPU; they are compared with cumulative sums on the device.
        """
        columns = slices.shape[1]
        chance = torch.from_numpy(stream.uniform(columns)).to(slices.device)
        stream.note_drawn("cpu")
        found = torch.empty(columns, dtype=torch.int64, device=slices.device)
        piece = _PIECE.get(slices.device.type, _PIECE["cpu"])
        with _alone(slices.device):
            for start in range(0, columns, piece):
                own = slice(start, start + piece)
                sums = self._weights(slices[:, own], low[own], high[own], bandwidth[own]).cumsum(1)
                found[own] = torch.searchsorted(sums, (chance[own] * sums[:, -1])[:, None])[:, 0]
        return found.clamp_max_(self.points - 1)

    def sample(self, slices: Tensor, low: Tensor, high: Tensor, bandwidth: Tensor, stream: Stream) -> Tensor:
        """One value per column, of the slices' type; the arguments are those of `pick`."""
        place = (self.pick(slices, low, high, bandwidth, stream).double() + 0.5) / self.points
        return (low.double() + (high - low).double() * place).to(slices.dtype)


def _alone(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Pieces that fit into the cache of one CPU core are too small to split over threads."""
    return one_thread() if device.type == "cpu" else contextlib.nullcontext()


def _harmonics(angle: Tensor, count: int) -> Tensor:
    """Means over the rows of cos kα and sin kα for k = 1 … count: (2, count, columns), by Chebyshev's recurrence."""
    means = torch.empty(2, count, angle.shape[1], dtype=torch.float64, device=angle.device)
    now = torch.stack([angle.cos(), angle.sin()])
    before = torch.stack([torch.ones_like(angle), torch.zeros_like(angle)])
    twice = 2 * now[0]
    for k in range(count):
        torch.mean(now, 1, out=means[:, k])
        before.neg_().addcmul_(twice, now)
        now, before = before, now
    return means


def silverman(slices: Tensor) -> Tensor:
    """The bandwidth σ (4/3M)^(1/5) of every column of (M, columns), which scipy calls Silverman's; 0 where σ is 0."""
    found: Tensor = slices.double().std(0) * (4 / (3 * len(slices))) ** 0.2
    return found


def sheather_jones(slices: Tensor) -> Tensor:
    """The bandwidth of Sheather and Jones (1991), which solves their equation, for every column of (M, columns).

    Falls back to Silverman's where the equation has no root in the usual range or a column's inner half is constant.
    """
    x = slices.double()
    piece = _PAIRS if x.device.type == "cpu" else _PIECE["cuda"] // 4
    with _alone(x.device):
        return torch.cat([_sheather_jones(part) for part in torch.split(x, piece, 1)])


def _sheather_jones(x: Tensor) -> Tensor:
    n, spread = len(x), x.std(0)
    quartiles = torch.quantile(x, torch.tensor([0.25, 0.75], dtype=x.dtype, device=x.device), dim=0)
    scale = torch.minimum(spread, (quartiles[1] - quartiles[0]) / 1.349)
    usable = scale > 0
    scale = torch.where(usable, scale, torch.ones_like(scale))
    pairs = torch.triu_indices(n, n, 1, device=x.device)
    squares = ((x[pairs[0]] - x[pairs[1]]) / scale).square_()  # in units of the scale: powers of h stay in range

    def fourth(h: Tensor) -> Tensor:
        z = squares / h**2
        total = 2 * ((z - 6).mul_(z).add_(3).mul_(z.mul_(-0.5).exp_())).sum(0) + 3 * n
        return total / (n * (n - 1) * math.sqrt(2 * math.pi) * h**5)

    def sixth(h: float) -> Tensor:
        z = squares / h**2
        total = 2 * ((z**3 - 15 * z * z + 45 * z - 15) * torch.exp(-z / 2)).sum(0) - 15 * n
        return -total / (n * (n - 1) * math.sqrt(2 * math.pi) * h**7)

    ratio = fourth(torch.full_like(scale, 1.24 * n ** (-1 / 7))) / sixth(1.23 * n ** (-1 / 9))
    usable &= ratio > 0
    alpha = 1.357 * ratio.clamp_min(1e-12) ** (1 / 7)

    def excess(h: Tensor) -> Tensor:
        curvature = fourth(alpha * h ** (5 / 7)).clamp_min(1e-300)
        return (1 / (2 * math.sqrt(math.pi) * n * curvature)) ** 0.2 - h

    high = 1.144 * spread / scale * n**-0.2
    root, rises = _root(excess, 0.1 * high, high)
    return torch.where(usable & rises, root * scale, silverman(x))


def _root(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Where a function goes from above to below 0, by false position (Illinois), and whether it does at all."""
    f_low, f_high = function(low), function(high)
    falls = (f_low > 0) & (f_high < 0)
    side = torch.zeros_like(low)
    middle = (low + high) / 2
    for _ in range(_STEPS):
        middle = torch.where(falls, (low * f_high - high * f_low) / (f_high - f_low), middle)
        found = function(middle)
        above = found > 0
        f_high = torch.where(above, torch.where(side > 0, f_high / 2, f_high), found)
        f_low = torch.where(above, found, torch.where(side < 0, f_low / 2, f_low))
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        side = torch.where(above, 1.0, -1.0).to(side)
    return middle, falls

"""A bound that follows a quantile of the gradients' norms, privately (Andrew, Thakkar, McMahan and Ramaswamy 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airlock.errors import AccountingError
from airlock.mechanisms.gaussian import GaussianNoise
from airlock.mechanisms.randomness import Stream

_REACH = 2.0**20  # how far the bound may move from its start, up or down


@dataclass(frozen=True)
class QuantileBound:
    """Moves a clip norm C so that a fraction γ of the records is within it.

    A step takes the noisy number of records within C and sets C ← C · exp(−η (b̃ − γ)), where b̃ is that number over
    the *expected* lot. Each record counts b − 1/2, which is 1/2 within the bound and −1/2 beyond it (also if its
    gradient is not finite), so that adding or removing one moves the sum by 1/2, not by 1.

    Guarantee: with noise N(0, (z_Δ C)²) on the clipped sum and N(0, σ_b²) on the count, a step costs what one Gaussian
    mechanism with the noise multiplier z costs, where z⁻² = z_Δ⁻² + (2σ_b)⁻².

    Proof. Divide every coordinate of the pair (sum, count) by the standard deviation of its noise. That is invertible,
    and the noise becomes N(0, I). One record moves the first part by at most C/(z_Δ C) = 1/z_Δ and the second by
    (1/2)/σ_b, so the pair by at most √(z_Δ⁻² + (2σ_b)⁻²) = 1/z in L2: sensitivity 1/z under noise 1 is
    `GaussianDpEvent(z)`. It is one release of one lot, so Poisson sampling amplifies the pair as a whole. C of the next
    step is a function of earlier outputs, so steps compose adaptively, and every C is paid for and may be published.

    Args:
        quantile: γ, the fraction of records that should be within the bound.
        rate: η.
        count_noise: σ_b, the standard deviation of the noise on the count.
    """

    quantile: float
    rate: float
    count_noise: float

    @property
    def noise(self) -> GaussianNoise:
        """The count's own noise: σ_b at a sensitivity of 1/2."""
        return GaussianNoise(0.5, 2.0 * self.count_noise)

    def gradient_noise(self, noise_multiplier: float) -> float:
        """z_Δ: the noise multiplier of the gradients for which both together cost what `noise_multiplier` costs.

        Raises:
            AccountingError: The count alone costs more.
        """
        left = noise_multiplier**-2.0 - self.noise.noise_multiplier**-2.0
        if left <= 0:
            raise AccountingError(
                f"noise on the count above {noise_multiplier / 2:.4g}, half the noise multiplier",
                f"{self.count_noise:.4g}",
                "Counting the records within the clip norm would use up the whole budget and leave none for gradients.",
                "Raise settings.clip_count_noise, or leave it out.",
            )
        return 1.0 / math.sqrt(left)

    def together(self, gradient_noise: float) -> float:
        """z: the noise multiplier of sum and count together as one Gaussian mechanism."""
        return 1.0 / math.hypot(1.0 / gradient_noise, 1.0 / self.noise.noise_multiplier)

    def share(self, balance: float, expected_lot: float, stream: Stream) -> float:
        """b̃, the noisy fraction of the expected lot within the bound; not always between 0 and 1.

        Args:
            balance: Σ (b − 1/2) over the lot; private.
            expected_lot: The public constant to divide by.
            stream: Secret; read once.
        """
        return float(self.noise.add(np.array([balance]), stream)[0]) / expected_lot + 0.5

    def following(self, norm: float, start: float, share: float) -> float:
        """The bound after `norm`, from the noisy share (post-processing); kept within 2^±20 of the first, `start`."""
        moved = math.log(norm / start) - self.rate * (share - self.quantile)
        limit = math.log(_REACH)
        return start * math.exp(min(max(moved, -limit), limit))

"""One head for all queries, or noise on every answer? Compared before a record is read.

Both have the same sensitivity: a head that moves by Δ in L2 moves the logits Wφ of a query with ‖φ‖ ≤ R by at most ΔR.
With a budget of μ in terms of Gaussian differential privacy (Dong, Roth and Su 2022), where one Gaussian mechanism has
μ = 1/z, the head gets noise Δ/μ on every weight, which is ΔR/μ on a logit, for any number of queries. Q answers with
noise of their own share the budget, each gets μ/√Q: noise ΔR√Q/μ on every logit. So the head is never worse; at Q = 1
both have the same noise on a logit, and beyond it the head wins by √Q.

Where labels are enough, votes of heads on disjoint records do better than noise on the logits of one head: `poll`, as
long as there are records for more heads than the noise on a count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from airlock.accounting import calibrate
from airlock.mechanisms import GaussianNoise
from airlock.methods.answers.shards import FEWEST


@dataclass(frozen=True)
class NoiseComparison:
    """The noise on one logit, either way.

    Args:
        queries: Q.
        head_noise: Its standard deviation when one head leaves.
        per_query_noise: The same when each of Q answers gets noise of its own.
    """

    queries: int
    head_noise: float
    per_query_noise: float

    @property
    def ratio(self) -> float:
        """How many times more noise answers one by one have."""
        return self.per_query_noise / self.head_noise

    @property
    def recommended(self) -> Literal["head", "per-query"]:
        """The method with less noise; with as much, the one that does not end."""
        return "head" if self.head_noise <= self.per_query_noise else "per-query"

    @property
    def says(self) -> str:
        """The advice, in one sentence."""
        if self.queries == 1 and self.ratio == 1:
            return "One query: as much noise either way; 'head' answers more of them at no further cost."
        noises = (
            f"noise of {self.per_query_noise:.3g} on every logit if each is answered by itself, "
            f"{self.head_noise:.3g} with one head, which has no limit"
        )
        count = f"{self.queries:,} {'query' if self.queries == 1 else 'queries'}"
        if self.recommended == "head":
            return f"{count}: {noises}: take 'head'."
        return f"{count}: {noises}: take 'per-query' if so few are enough, else 'head'."


SEVERAL = 10  # questions, from which on `poll` was better wherever it was tried; with fewer it was not tried


@dataclass(frozen=True)
class NoiseAdvice:
    """All three ways at the same (ε, δ), by public figures.

    Args:
        comparison: One head, or noise on every answer.
        noise_on_a_count: Of `poll`.
        records: n0.
    """

    comparison: NoiseComparison
    noise_on_a_count: float
    records: int

    @property
    def inside(self) -> Literal["per-query", "poll"]:
        """The best of those by which no model leaves and labels do."""
        enough = self.records // FEWEST > self.noise_on_a_count
        return "poll" if enough and self.comparison.queries >= SEVERAL else "per-query"

    @property
    def says(self) -> str:
        """What to take."""
        return f"{self.comparison.says} If no model may leave: '{self.inside}' for labels, 'per-query' for logits."


def advise(queries: int, noise: float, sensitivity: float, records: int, epsilon: float, delta: float) -> NoiseAdvice:
    """Compare `head`, `per-query` and `poll` before a record is read.

    Args:
        queries: Q.
        noise: Noise multiplier of one of Q answers.
        sensitivity: Δ R.
        records: n0.
        epsilon: Of all that leaves.
        delta: The δ it is stated at.
    """
    alone = calibrate(lambda z: GaussianNoise(1.0, z).event, epsilon, delta)
    comparison = NoiseComparison(queries, alone * sensitivity, noise * sensitivity)
    return NoiseAdvice(comparison, math.sqrt(2) * noise, records)

"""One head for all queries, or noise on every answer? Compared before a record is read.

Both have the same sensitivity: a head that moves by Δ in L2 moves the logits Wφ of a query with ‖φ‖ ≤ R by at most ΔR.
With a budget of μ in terms of Gaussian differential privacy (Dong, Roth and Su 2022), where one Gaussian mechanism has
μ = 1/z, the head gets noise Δ/μ on every weight, which is ΔR/μ on a logit, for any number of queries. Q answers with
noise of their own share the budget, each gets μ/√Q: noise ΔR√Q/μ on every logit. So the head is never worse; at Q = 1
both have the same noise on a logit, and beyond it the head wins by √Q. What answers one by one can do better is to
charge less than planned where the records agree, which this comparison leaves out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Comparison:
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
        if self.queries == 1:
            return "One query: as much noise either way; 'head' answers more of them at no further cost."
        return (
            f"{self.queries:,} queries: noise of {self.per_query_noise:.3g} on every logit if each is answered by "
            f"itself, {self.head_noise:.3g} with one head, which has no limit: take 'head'."
        )


def compare(sensitivity: float, noise_multiplier: float, queries: int, bound: float = 1.0) -> Comparison:
    """Compare one release of the head with Q noisy answers at the same total cost.

    Args:
        sensitivity: Δ, of the head in L2.
        noise_multiplier: z = 1/μ of the whole budget.
        queries: Q, fixed in advance.
        bound: R, of the features.
    """
    if queries < 1:
        raise ValueError("there is at least one query")
    one = noise_multiplier * sensitivity * bound
    return Comparison(queries, one, one * math.sqrt(queries))

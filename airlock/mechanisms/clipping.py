"""Bounding one record's effect: per-record clipping (Abadi et al. 2016, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

# float32 norms and products are off by a few units in the last place; this much slack keeps the clipped norm below the
# bound whatever they round to.
_SLACK = 1.0 - 2.0**-16


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """One factor in [0, 1] a record, such that factor × gradient has norm at most `clip_norm`.

    Guarantee: for every record, finite or not, ‖factor · g‖ ≤ clip_norm; hence adding or removing one record moves the
    sum of the clipped gradients by at most clip_norm in L2. A record whose norm is NaN or infinite gets the factor 0
    and must be masked out by the caller (0 · NaN is NaN).
    """
    factors = (clip_norm * _SLACK / norms.clamp_min(1e-30)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))

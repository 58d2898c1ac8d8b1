"""Bounding one record's effect: per-record clipping, flat or by layer, in a plain or in a shaped norm.

Flat clipping is Abadi et al. 2016, section 3.1; by layer McMahan et al. 2018, section 2.1. In a shaped norm every
coordinate is measured in units of its own scale s: ‖g/s‖ is bounded, and noise of the same shape, N(0, (z·s_i)²), then
costs exactly what isotropic noise costs for a plain norm, for any s that does not depend on the records.

Rounding is part of the bound. Norms are computed to within 2^-17 (`row_squares`), factors and products are rounded to
2^-23, and clipped values stay below the bound by more than that. A gradient is clipped to (1 − 2^-10) of the norm that
is accounted for: that leaves room for a whole lot's sum in float64 (`training.per_sample.sums` has the bound).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SLACK = 2.0**-10  # of a gradient's bound: room for the rounding of a whole lot
SMALLEST = 2.0**-40  # below this, squares underflow to zero in float32
_PIECE = 1024  # numbers that are summed sequentially

BALANCE = ".balance"  # the key of a counting clip's Σ (b − 1/2) among the sums; no parameter's name starts with a dot


@dataclass(frozen=True)
class Clip:
    """How one record's gradient is bounded.

    Guarantee: a record's clipped gradient has ‖g/s‖ ≤ (1 − 2^-10) · norm over all parameters together, as float64
    numbers. So adding or removing one record moves the sum of clipped gradients, measured in units of s, by at most
    `norm` in L2, rounding included.

    Args:
        norm: The bound, at least 2^-40.
        by_layer: Clip every parameter tensor by itself to norm/√(number of tensors), instead of all together.
        scale: s, by parameter name: a scalar, or one number per output channel (shape (out, 1, ...)). Missing names and
            None mean 1. It must be public: from public data, or from what was already released.
        counting: Whether sums include a count of the records within the bound, under the name BALANCE.
    """

    norm: float
    by_layer: bool = False
    scale: Mapping[str, Tensor] | None = None
    counting: bool = False

    def __post_init__(self) -> None:
        if not self.norm >= SMALLEST:
            raise ValueError(f"a clip norm of at least {SMALLEST:g}, not {self.norm:g}")

    def scale_of(self, name: str) -> Tensor | None:
        """The scale of a parameter; None means 1."""
        return None if self.scale is None else self.scale.get(name)

    def digest(self) -> str | None:
        """A short digest of the scale; a resumed run must have the same one."""
        if self.scale is None:
            return None
        total = hashlib.sha256()
        for name in sorted(self.scale):
            total.update(name.encode() + self.scale[name].detach().cpu().double().numpy().tobytes())
        return total.hexdigest()[:16]

    def squares(self, name: str, rows: Tensor) -> Tensor:
        """‖g_p/s_p‖² of every record in float64, from the records' gradients of one parameter."""
        scale = self.scale_of(name)
        return row_squares(rows if scale is None else rows / scale)

    def factors(self, squares: Mapping[str, Tensor], norm: Tensor | None = None) -> dict[str, Tensor]:
        """From ‖g_p/s_p‖² of every record, by parameter name, to the factor of every record, by parameter name.

        Args:
            squares: By parameter name, one number per record.
            norm: The bound as a tensor, for a CUDA graph, which reads it again at every replay.
        """
        whole = self.norm if norm is None else norm
        if self.by_layer:
            bound = whole / len(squares) ** 0.5
            return {name: clip_factors(square.sqrt(), bound, SLACK) for name, square in squares.items()}
        return dict.fromkeys(squares, clip_factors(_together(squares), whole, SLACK))

    def balance(self, squares: Mapping[str, Tensor], norm: Tensor | None = None) -> Tensor:
        """1/2 for every record within the bound, −1/2 for one beyond it or without a finite norm.

        Guarantee: adding or removing one record moves the sum of these numbers by exactly 1/2 (in float64, which holds
        the sums of up to 2^52 records exactly).
        """
        return (_together(squares) <= (self.norm if norm is None else norm)).double() - 0.5


def row_squares(rows: Tensor) -> Tensor:
    """‖g‖² of every record in float64, in one pass over the numbers.

    A GPU sums by a tree. A CPU sums sequentially in at least eight lanes, so a row is split into pieces of 1024, which
    are added up in float64: rounding then stays below 2^-17 of a square, however long the row is. Numbers below 2^-75
    may count as zero; a billion of them have a norm below 2^-59, far below any clip norm.
    """
    rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]  # a parameter may be a single number
    pieces = [rows] if rows.is_cuda else torch.split(rows, _PIECE, 1)
    return torch.stack([torch.linalg.vector_norm(piece, dim=1).double().square() for piece in pieces]).sum(0)


def _together(squares: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(squares.values())).sum(0).sqrt()


def clip_factors(norms: Tensor, clip_norm: float | Tensor, slack: float = 0.0) -> Tensor:
    """One factor in [0, 1] per record, in float64, such that factor × gradient is within the bound.

    Guarantee: for every record, finite or not, ‖factor · g‖ ≤ (1 − slack − 2^-17) · clip_norm, if its norm was computed
    to within 2^-17. A record whose norm is NaN or infinite gets the factor 0 and must be masked out by the caller (0 ·
    NaN is NaN).
    """
    norms = norms.double()
    factors = (clip_norm * (1.0 - slack - 2.0**-16) / norms.clamp_min(1e-300)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))

"""Bounding one record's effect: per-record clipping, flat or by layer, in a plain or in a shaped norm.

Flat clipping is Abadi et al. 2016, section 3.1; by layer McMahan et al. 2018, section 2.1. In a shaped norm every
coordinate is measured in units of its own scale s: ‖g/s‖ is bounded, and noise of the same shape, N(0, (z·s_i)²), then
costs exactly what isotropic noise costs for a plain norm, whatever s is, as long as s does not depend on the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Products round: float32 to 2^-24 and TF32, which GPUs may use for matrix products, to 2^-11 of each factor. This much
# slack keeps what is summed below the bound whatever it rounds to.
_SLACK, _SLACK_TF32 = 1.0 - 2.0**-16, 1.0 - 2.0**-8
_PIECE = 1024  # numbers that are summed one after the other

BALANCE = ".balance"  # the place of a counting clip's Σ (b − 1/2) beside the sums; no parameter's name starts so


@dataclass(frozen=True)
class Clip:
    """How one record's gradient is bounded.

    Guarantee: a record's clipped gradient has ‖g/s‖ ≤ norm over all parameters together. So adding or removing one
    record moves the sum of clipped gradients, measured in units of s, by at most `norm` in L2.

    Args:
        norm: The bound.
        by_layer: Clip every parameter tensor by itself to norm/√(number of tensors), instead of all together.
        scale: s, by parameter name: a scalar, or one number an output channel (shape (out, 1, ...)). Missing names and
            None mean 1. It must be public: from public data, or from what was already released.
        counting: Whether sums come with a count of the records within the bound, under the name BALANCE.
    """

    norm: float
    by_layer: bool = False
    scale: Mapping[str, Tensor] | None = None
    counting: bool = False

    def scale_of(self, name: str) -> Tensor | None:
        """The scale of a parameter; None means 1."""
        return None if self.scale is None else self.scale.get(name)

    def digest(self) -> str | None:
        """A short name of the scale; a run that goes on must have the same."""
        if self.scale is None:
            return None
        total = hashlib.sha256()
        for name in sorted(self.scale):
            total.update(name.encode() + self.scale[name].detach().cpu().double().numpy().tobytes())
        return total.hexdigest()[:16]

    def squares(self, name: str, rows: Tensor) -> Tensor:
        """‖g_p/s_p‖² of every record, from the records' gradients of one parameter."""
        scale = self.scale_of(name)
        return row_squares(rows if scale is None else rows / scale)

    def factors(self, squares: Mapping[str, Tensor], norm: Tensor | None = None) -> dict[str, Tensor]:
        """From ‖g_p/s_p‖² of every record, by parameter name, to the factor of every record, by parameter name.

        Args:
            squares: By parameter name, one number a record.
            norm: The bound as a tensor, for a CUDA graph, which reads it anew every time.
        """
        whole = self.norm if norm is None else norm
        if self.by_layer:
            bound = whole / len(squares) ** 0.5
            return {name: clip_factors(square.sqrt(), bound) for name, square in squares.items()}
        return dict.fromkeys(squares, clip_factors(_together(squares), whole))

    def balance(self, squares: Mapping[str, Tensor], norm: Tensor | None = None) -> Tensor:
        """1/2 for every record within the bound, −1/2 for one beyond it or without a finite norm.

        Guarantee: adding or removing one record moves the sum of these numbers by exactly 1/2 (in float32, which holds
        the sums of up to 2^24 records exactly).
        """
        return (_together(squares) <= (self.norm if norm is None else norm)).float() - 0.5


def row_squares(rows: Tensor) -> Tensor:
    """‖g‖² of every record, in one pass over the numbers.

    A GPU sums by a tree. A CPU sums one after the other in at least eight lanes, so a row is taken in pieces of 1024:
    rounding then stays below 2^-17 of a square, well within the slack of the clipping, however long the row is.
    """
    rows = rows.flatten(1)
    pieces = [rows] if rows.is_cuda else torch.split(rows, _PIECE, 1)
    return torch.stack([torch.linalg.vector_norm(piece, dim=1).square() for piece in pieces]).sum(0)


def _together(squares: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(squares.values())).sum(0).sqrt()


def clip_factors(norms: Tensor, clip_norm: float | Tensor) -> Tensor:
    """One factor in [0, 1] a record, such that factor × gradient has norm at most `clip_norm`.

    Guarantee: for every record, finite or not, ‖factor · g‖ ≤ clip_norm. A record whose norm is NaN or infinite gets
    the factor 0 and must be masked out by the caller (0 · NaN is NaN).
    """
    tf32 = norms.is_cuda and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    factors = (clip_norm * (_SLACK_TF32 if tf32 else _SLACK) / norms.clamp_min(1e-30)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))

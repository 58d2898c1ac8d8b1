"""privacy-sanitize (Wang et al. 2019, Algorithm 2), as published: it protects nothing.

A batch's loss L ≥ 0 becomes L / max(1, L/B) + N(0, σ²B²), where B is the mean so far of the same loss against an
auxiliary teacher that saw public records alone. What the student takes from it is its gradient. The noise does not
depend on the student's weights: its gradient is 0, whatever σ. L / max(1, L/B) is min(L, B): below the bound the
gradient is the teacher's own, above it is 0. So no noise reaches a weight, and clipping decides which batches count.
Without a gradient the student stays where it is, as in plain gradient descent; the paper names no optimiser, and Adam's
momentum would carry the student away while all its losses are above B, where none holds it back.

Only a loss that leaves as a number would be protected: one number is `GaussianDpEvent(σ)`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from airlock.mechanisms import Stream
from airlock.training.distillation.distil import DistillationObjective


class Sanitise:
    """Clips a batch's loss to B and adds N(0, σ²B²).

    Args:
        noise_scale: σ.
        auxiliary: The same loss against the auxiliary teacher; its mean so far is B.
        stream: Secret.
        device: Where the losses are.
        bound: B, where it is preset.
    """

    def __init__(
        self,
        noise_scale: float,
        auxiliary: DistillationObjective,
        stream: Stream,
        device: torch.device,
        bound: float | None = None,
    ) -> None:
        self.noise_scale, self.auxiliary, self.stream, self.bound = noise_scale, auxiliary, stream, bound
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.batches, self.clipped = torch.zeros_like(self.total), torch.zeros_like(self.total)

    def state(self) -> dict[str, Tensor]:
        """The sum of the auxiliary losses, the number of batches, and how many were clipped."""
        return {"total": self.total, "batches": self.batches, "clipped": self.clipped}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def __call__(self, loss: Tensor, outputs: Tensor, x: Tensor, place: Tensor, step: int) -> Tensor:
        """The sanitised loss of one batch."""
        with torch.no_grad():
            self.batches += 1
            if self.bound is None:
                self.total += self.auxiliary(outputs, x, place)
            else:
                self.total += self.bound
            bound = (self.total / self.batches).to(loss.dtype)
            above = loss > bound
            self.clipped += above
            noise = float(self.stream.child(step).normal(1)[0]) * self.noise_scale * bound
        return (bound if above else loss) + noise

    @property
    def share_clipped(self) -> float | None:
        """Of all batches so far; it follows from the teacher. None where this run made none: it was resumed later."""
        return float(self.clipped / self.batches) if self.batches > 0 else None

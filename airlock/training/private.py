"""Private gradients: clip every record's gradient, sum, add Gaussian noise, divide by a public constant.

DP-SGD (Abadi et al. 2016) under Poisson sampling. Per-record gradients come from torch.func's vmap, in chunks that fit
into memory; a lot is the sum over its chunks, so accumulation keeps exact Poisson semantics.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from airlock.mechanisms import GaussianNoise, Stream, clip_factors

_CHUNK_BYTES = 1 << 28  # memory for one chunk of per-record gradients


def clipped_sum(net: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> tuple[dict[str, Tensor], int]:
    """The sum of the per-record gradients, each clipped to `clip_norm`; and how many records were dropped.

    Guarantee: adding or removing one record moves the sum by at most `clip_norm` in L2 over all parameters together. A
    record whose gradient is not finite is dropped (it contributes zero) and counted.
    """
    trainable = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in trainable.items()}
    chunk = max(1, _CHUNK_BYTES // (4 * sum(p.numel() for p in trainable.values())))
    dropped = 0
    for start in range(0, len(y), chunk):
        rows = _record_gradients(net, trainable, x[start : start + chunk], y[start : start + chunk])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in rows.values()]).norm(dim=0)
        finite = torch.isfinite(norms)
        factors = clip_factors(norms, clip_norm)
        if not bool(finite.all()):
            dropped += int((~finite).sum())
            rows = {name: g[finite] for name, g in rows.items()}
            factors = factors[finite]
        for name, g in rows.items():
            total[name] += (factors @ g.flatten(1)).view_as(total[name])
    return total, dropped


def _record_gradients(net: nn.Module, trainable: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    rest = {name: p.detach() for name, p in net.named_parameters() if not p.requires_grad} | dict(net.named_buffers())

    def loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(net, values | rest, (record[None],))
        return F.cross_entropy(logits.float(), label[None])

    rows = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(trainable, x, y)
    return {name: g.float() for name, g in rows.items()}


class PrivateGradients:
    """The noisy mean of clipped per-record gradients.

    Guarantee: with a lot drawn by `Poisson(q)`, one call is `PoissonSampledDpEvent(q, GaussianDpEvent(z))` under
    add-remove. The divisor is public, so dividing is post-processing.

    Args:
        clip_norm: The bound on one record's gradient.
        noise_multiplier: z, the noise's standard deviation over `clip_norm`.
        expected_lot: The public constant to divide by: sampling probability × public number of records.
        stream: The secret stream; a step's noise is used once.
    """

    def __init__(self, clip_norm: float, noise_multiplier: float, expected_lot: float, stream: Stream) -> None:
        self.clip_norm, self.expected_lot, self._stream = clip_norm, expected_lot, stream
        self.noise = GaussianNoise(clip_norm, noise_multiplier)
        self.dropped = 0

    @property
    def mark(self) -> dict[str, object]:
        """Clip norm, noise, and whether the noise is the operating system's."""
        return {
            "gradients": "private",
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise.noise_multiplier,
            "expected_lot": self.expected_lot,
            "secure": self._stream.secure,
        }

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """One noisy gradient; an empty lot gives pure noise."""
        total, dropped = clipped_sum(net, x, y, self.clip_norm)
        self.dropped += dropped
        flat = torch.cat([g.flatten() for g in total.values()]).cpu().numpy()
        noisy = self.noise.add(flat, self._stream.child("noise", step))
        noisy /= self.expected_lot
        self._scatter(net, torch.from_numpy(noisy.astype(np.float32)))

    @staticmethod
    def _scatter(net: nn.Module, flat: Tensor) -> None:
        trainable = [p for p in net.parameters() if p.requires_grad]
        flat = flat.to(trainable[0].device)
        pieces = torch.split(flat, [p.numel() for p in trainable])
        for parameter, piece in zip(trainable, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).to(parameter.dtype)

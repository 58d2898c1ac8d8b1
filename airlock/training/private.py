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

from airlock.mechanisms import Clip, GaussianNoise, Stream

_CHUNK_BYTES = 1 << 28  # memory for one chunk of per-record gradients


def clipped_sum(net: nn.Module, x: Tensor, y: Tensor, clip: Clip) -> tuple[dict[str, Tensor], int]:
    """The sum of the clipped per-record gradients by parameter name, and how many records were dropped.

    Guarantee: adding or removing one record moves the sum, measured in units of the clip's scale, by at most
    `clip.norm` in L2 over all parameters together. A record whose gradient is not finite is dropped (it contributes
    zero) and counted.
    """
    trainable = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in trainable.items()}
    chunk = max(1, _CHUNK_BYTES // (4 * sum(p.numel() for p in trainable.values())))
    dropped = 0
    for start in range(0, len(y), chunk):
        rows = _record_gradients(net, trainable, x[start : start + chunk], y[start : start + chunk])
        squares = {name: _square(g, clip.scale_of(name)) for name, g in rows.items()}
        finite = torch.isfinite(torch.stack(list(squares.values())).sum(0))
        if not bool(finite.all()):
            dropped += int((~finite).sum())
            rows = {name: g[finite] for name, g in rows.items()}
            squares = {name: square[finite] for name, square in squares.items()}
        factors = clip.factors(squares)
        for name, g in rows.items():
            total[name] += (factors[name] @ g.flatten(1)).view_as(total[name])
    return total, dropped


def _square(rows: Tensor, scale: Tensor | None) -> Tensor:
    """Every record's squared norm, in units of the scale."""
    return _divided(rows, scale).flatten(1).square().sum(1)


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
    add-remove: in units of the clip's scale the sum has sensitivity `clip.norm` and gets N(0, (z · clip.norm)²) on
    every coordinate. Multiplying by the scale and dividing by the public divisor is post-processing.

    Args:
        clip: The bound on one record's gradient; a plain number is a flat clip.
        noise_multiplier: z, the noise's standard deviation over the clip norm.
        expected_lot: The public constant to divide by: sampling probability × public number of records.
        stream: The secret stream; a step's noise is used once.
    """

    def __init__(self, clip: Clip | float, noise_multiplier: float, expected_lot: float, stream: Stream) -> None:
        self.clip = clip if isinstance(clip, Clip) else Clip(clip)
        self.expected_lot, self._stream = expected_lot, stream
        self.noise = GaussianNoise(self.clip.norm, noise_multiplier)
        self.dropped = 0

    @property
    def mark(self) -> dict[str, object]:
        """Clipping, noise, and whether the noise is the operating system's."""
        return {
            "gradients": "private",
            "clip_norm": self.clip.norm,
            "by_layer": self.clip.by_layer,
            "noise_multiplier": self.noise.noise_multiplier,
            "expected_lot": self.expected_lot,
            "secure": self._stream.secure,
        }

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """One noisy gradient; an empty lot gives pure noise."""
        total, dropped = clipped_sum(net, x, y, self.clip)
        self.dropped += dropped
        scaled = [_divided(g, self.clip.scale_of(name)).flatten() for name, g in total.items()]
        noisy = self.noise.add(torch.cat(scaled).cpu().numpy(), self._stream.child("noise", step))
        noisy /= self.expected_lot
        self._scatter(net, torch.from_numpy(noisy.astype(np.float32)))

    def _scatter(self, net: nn.Module, flat: Tensor) -> None:
        trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
        flat = flat.to(next(iter(trainable.values())).device)
        pieces = torch.split(flat, [p.numel() for p in trainable.values()])
        for (name, parameter), piece in zip(trainable.items(), pieces, strict=True):
            scale = self.clip.scale_of(name)
            gradient = piece.view_as(parameter)
            parameter.grad = (gradient if scale is None else gradient * scale).to(parameter.dtype)


def _divided(value: Tensor, scale: Tensor | None) -> Tensor:
    return value if scale is None else value / scale

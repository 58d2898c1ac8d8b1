"""Private gradients: clip every record's gradient, sum, add Gaussian noise, divide by a public constant.

DP-SGD (Abadi et al. 2016) under Poisson sampling. Clipped sums come from book-keeping where that has been seen to be
right for the network, from torch.func otherwise; in chunks that fit into memory, so that a lot may be larger than
memory: a lot is the sum over its chunks, which keeps exact Poisson semantics.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from airlock.mechanisms import Clip, GaussianNoise, Stream
from airlock.training.bookkeeping import BookKeeper
from airlock.training.distributed import ALONE, Group
from airlock.training.functional import FunctionalGradients
from airlock.training.graphs import Graphs
from airlock.training.layers import Named

Engine = BookKeeper | FunctionalGradients

# A chunk is as large as this, or _LEAST records if they need no more than that: a CPU is fastest in its cache.
_CHUNK_BYTES = {"cpu": (1 << 26, 1 << 30), "cuda": (1 << 33, 1 << 33)}
_LEAST = 64
_AGREE = 1e-3
_ENGINES: WeakKeyDictionary[nn.Module, tuple[tuple[str, ...], Engine]] = WeakKeyDictionary()
_GRAPHS: WeakKeyDictionary[nn.Module, Graphs] = WeakKeyDictionary()


def clipped_sum(net: nn.Module, x: Tensor, y: Tensor, clip: Clip) -> tuple[Named, int]:
    """The sum of the clipped per-record gradients by parameter name, and how many records were dropped.

    Guarantee: adding or removing one record moves the sum, measured in units of the clip's scale, by at most
    `clip.norm` in L2 over all parameters together. A record whose gradient is not finite is dropped (it contributes
    zero) and counted.
    """
    engine = engine_for(net, x)
    step = _chunk(len(y), engine.bytes_per_record, x.device.type)
    chunks = [(x[i : i + step], y[i : i + step]) for i in range(0, max(1, len(y)), step)]
    total, dropped = _one_sum(engine, *chunks[0], clip)
    if len(chunks) > 1:
        total = {name: g.clone() for name, g in total.items()}  # a graph's own tensors are written over
    for chunk in chunks[1:]:
        part, more = _one_sum(engine, *chunk, clip)
        dropped += more
        for name, g in part.items():
            total[name] += g
    return total, dropped


def _chunk(records: int, bytes_per_record: int, device: str) -> int:
    """How many records to take at a time, in chunks of about the same size."""
    good, most = (limit // bytes_per_record for limit in _CHUNK_BYTES[device])
    step = max(1, good, min(_LEAST, most))
    return max(1, -(-records // max(1, -(-records // step))))


def _one_sum(engine: Engine, x: Tensor, y: Tensor, clip: Clip) -> tuple[Named, int]:
    if isinstance(engine, BookKeeper) and x.is_cuda and len(y):
        graphs = _GRAPHS.setdefault(engine.net, Graphs(engine))
        if graphs.keeper is engine:
            return graphs.clipped_sum(x, y, clip)
    return engine.clipped_sum(x, y, clip)


def engine_for(net: nn.Module, x: Tensor) -> Engine:
    """Book-keeping if it agrees with torch.func on two random records of this shape, else torch.func; remembered."""
    trainable = tuple(name for name, p in net.named_parameters() if p.requires_grad)
    known = _ENGINES.get(net)
    if known is None or known[0] != trainable:
        known = _ENGINES[net] = (trainable, _choose(net, x))
        _GRAPHS.pop(net, None)
    return known[1]


def _choose(net: nn.Module, x: Tensor) -> Engine:
    reference, keeper = FunctionalGradients(net), BookKeeper(net)
    modes = {module: module.training for module in net.modules()}
    shape, device = (2, *x.shape[1:]), x.device
    generator = torch.Generator(device=device).manual_seed(0)
    if x.is_floating_point():
        tried = torch.rand(shape, generator=generator, device=device, dtype=x.dtype)
    else:
        tried = torch.randint(0, 2, shape, generator=generator, device=device, dtype=x.dtype)
    labels, clip = torch.tensor([0, 1], device=device), Clip(1.0)
    try:
        net.eval()
        got = keeper.clipped_sum(tried, labels, clip)[0]
        wanted = reference.clipped_sum(tried, labels, clip)[0]
        return keeper if _same(got, wanted) else reference
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return reference
    finally:
        for module, mode in modes.items():
            module.training = mode


def _same(got: Named, wanted: Named) -> bool:
    size = torch.stack([g.norm() for g in wanted.values()]).norm()
    return all(bool((got[name] - g).norm() <= _AGREE * size) for name, g in wanted.items())


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
        self.group: Group = ALONE  # set by the loop: whose batches are parts of one lot
        self.dropped = 0

    @property
    def mark(self) -> dict[str, object]:
        """Clipping, noise, and whether the noise is the operating system's."""
        return {
            "gradients": "private",
            "clip_norm": self.clip.norm,
            "by_layer": self.clip.by_layer,
            "scale": self.clip.digest(),
            "noise_multiplier": self.noise.noise_multiplier,
            "expected_lot": self.expected_lot,
            "secure": self._stream.secure,
        }

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """One noisy gradient; an empty lot gives pure noise."""
        total, dropped = clipped_sum(net, x, y, self.clip)
        scaled = torch.cat([_divided(g, self.clip.scale_of(name)).flatten() for name, g in total.items()])
        noisy, dropped = self.group.once(scaled, dropped, lambda whole: self._noisy(whole, step))
        self.dropped += dropped
        put_gradient(net, noisy, self.clip)

    def _noisy(self, total: Tensor, step: int) -> Tensor:
        return self.noise.add_and_divide(total, self.expected_lot, self._stream.child("noise", step))


def put_gradient(net: nn.Module, flat: Tensor, clip: Clip | None = None) -> None:
    """Put a flat gradient into the trainable parameters, in units of the clip's scale where there is one."""
    trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
    pieces = torch.split(flat, [p.numel() for p in trainable.values()])
    for (name, parameter), piece in zip(trainable.items(), pieces, strict=True):
        scale = clip.scale_of(name) if clip else None
        gradient = piece.view_as(parameter)
        parameter.grad = (gradient if scale is None else gradient * scale).to(parameter.dtype)


def _divided(value: Tensor, scale: Tensor | None) -> Tensor:
    return value if scale is None else value / scale

"""The Gaussian mechanism on a GPU: ChaCha20 in one kernel; Box–Muller, rounding to the grid and adding in another.

The same stream as on the CPU, word for word (`Stream.normal` lays it out alike). The transform is in float64; CPU and
GPU may differ in the last place of a logarithm or a sine, which rounding to the grid nearly always removes.

Triton compiles the kernel where there is an NVIDIA or AMD GPU. Before its first use on a GPU its noise for one key is
compared with the CPU's: where the kernel cannot be compiled, or makes something else, the noise comes from the CPU.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

from airlock.mechanisms.randomness import Stream

_LANES = 128  # instances a program
_KNOWN, _TRIED = bytes(range(32)), 1000  # a key that is no secret, and how many of its numbers are compared


def takes(value: Tensor) -> bool:
    """Whether the kernel runs where this value lies, and makes the right noise there."""
    return value.is_cuda and available() and _agrees(value.device)


def available() -> bool:
    """Whether the kernel could run here: a GPU, and Triton to compile for it."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@functools.cache
def _agrees(device: torch.device) -> bool:
    wanted = torch.from_numpy(Stream(_KNOWN, secure=False).normal(_TRIED))
    try:
        got = add_noise(torch.zeros(_TRIED, device=device), _KNOWN, 1.0, 2.0**-30, 1.0).double().cpu()
    except Exception:  # noqa: BLE001  a compiler that is missing or too old may raise anything
        return False
    return bool((got - wanted).abs().max() < 1e-6)


def add_noise(
    value: Tensor, key: bytes, scale: float, grid: float, divisor: float, shape: Tensor | None = None
) -> Tensor:
    """(value on the grid + noise on the grid) / divisor, in float32.

    Args:
        value: Flat, float32, on the GPU.
        key: The stream's ChaCha20 key; the block counter starts at 0 and the nonce is 0.
        scale: The noise's standard deviation.
        grid: The spacing that value and noise are rounded to, a power of two.
        divisor: A public constant.
        shape: A factor on the noise of every coordinate, flat, float32, on the GPU.
    """
    from airlock.mechanisms.gpu_kernel import noise_kernel, stream_kernel

    count = value.numel()
    blocks = 2 * -(-count // 16)  # eight 64-bit words each: one half radii, one half angles
    pairs = 4 * blocks
    stream = torch.empty(16 * blocks, dtype=torch.int32, device=value.device)
    out = torch.empty(count, dtype=torch.float32, device=value.device)
    # Numbers travel as tensors: as plain arguments they would be cut down to float32.
    numbers = torch.tensor([scale / grid, grid, grid / divisor], dtype=torch.float64, device=value.device)
    words = torch.frombuffer(bytearray(key), dtype=torch.int32).to(value.device)
    shaped = shape is not None
    factors = value if shape is None else shape.contiguous()  # not read where there is none
    with torch.cuda.device_of(value):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
        launch: Any = stream_kernel[(-(-blocks // _LANES),)]
        launch(words, stream, blocks, LANES=_LANES)
        launch = noise_kernel[(-(-pairs // _LANES),)]
        launch(value.contiguous(), out, stream, factors, numbers, count, pairs, SHAPED=shaped, LANES=_LANES)
    return out

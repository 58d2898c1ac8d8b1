"""The Gaussian mechanism on a GPU: ChaCha20 in one kernel; Box–Muller, rounding to the grid and adding in another.

The same stream as on the CPU, word for word (`Stream.normal` lays it out alike). The transform is in float64; CPU and
GPU may differ in the last place of a logarithm or a sine, which rounding to the grid nearly always removes.

Triton compiles the kernel where there is an NVIDIA or AMD GPU; where it cannot, the noise comes from the CPU.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

_LANES = 128  # instances a program


def available() -> bool:
    """Whether the kernel can run here: a GPU, and Triton to compile for it."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def add_noise(value: Tensor, key: bytes, scale: float, grid: float, divisor: float) -> Tensor:
    """(value on the grid + noise on the grid) / divisor, in float32.

    Args:
        value: Flat, float32, on the GPU.
        key: The stream's ChaCha20 key; the block counter starts at 0 and the nonce is 0.
        scale: The noise's standard deviation.
        grid: The spacing that value and noise are rounded to, a power of two.
        divisor: A public constant.
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
    launch: Any = stream_kernel[(-(-blocks // _LANES),)]
    launch(words, stream, blocks, LANES=_LANES)
    launch = noise_kernel[(-(-pairs // _LANES),)]
    launch(value.contiguous(), out, stream, numbers, count, pairs, LANES=_LANES)
    return out

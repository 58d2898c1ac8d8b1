"""The Gaussian mechanism on a GPU: ChaCha20, Box–Muller, rounding to the grid and adding, in one kernel.

The same stream as on the CPU, word for word (`Stream.normal` lays it out alike): instance t computes two ChaCha20
blocks, one with eight radii and one with eight angles, and noises sixteen coordinates. The transform is in float64;
CPU and GPU may differ in the last place of a logarithm or a sine, which rounding to the grid nearly always removes.

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
    from airlock.mechanisms.gpu_kernel import noise_kernel

    count = value.numel()
    instances = -(-count // 16)
    out = torch.empty(count, dtype=torch.float32, device=value.device)
    # Numbers travel as tensors: as plain arguments they would be cut down to float32.
    numbers = torch.tensor([scale / grid, grid, grid / divisor], dtype=torch.float64, device=value.device)
    words = torch.frombuffer(bytearray(key), dtype=torch.int32).to(value.device)
    launch: Any = noise_kernel[(-(-instances // _LANES),)]
    launch(value.contiguous(), out, words, numbers, count, instances, LANES=_LANES)
    return out

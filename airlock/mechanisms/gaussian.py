"""The Gaussian mechanism on a grid (Dwork and Roth 2014, appendix A; Balle and Wang 2018 for its exact curve).

Noise in floating point leaks through low-order bits (Mironov 2012): the set of reachable sums differs between
neighbouring inputs. Here value and noise are both rounded to multiples of one public grid g, and their sum is exact in
float64. Because the value is on the grid, value + round(noise) = round(value + noise): the output is a rounding of the
ideal mechanism's output, and post-processing costs nothing. Rounding the value may increase the distance of two
neighbours by g per coordinate; the sensitivity that the noise is scaled to includes this.

On a GPU (`gpu_add_noise`): ChaCha20 in one kernel; Box–Muller, rounding to the grid and adding in another. The same
stream as on the CPU, word for word (`Stream.normal` uses the same layout). The transform is in float64; CPU and GPU may
differ in the last place of a logarithm or a sine, which rounding to the grid nearly always removes.

Triton compiles the kernel if there is an NVIDIA or AMD GPU. Before its first use on a GPU, its noise for one key is
compared with the CPU's: if the kernel cannot be compiled, or its output differs, the noise comes from the CPU.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.mechanisms.randomness import Normals, Stream

# On a GPU.

_LANES = 128  # instances per program
_KNOWN, _TRIED = bytes(range(32)), 1000  # a public key, and how many of its numbers are compared


def gpu_takes(value: Tensor) -> bool:
    """Whether the kernel runs on this value's device and produces the right noise there."""
    return value.is_cuda and gpu_available() and _gpu_agrees(value.device)


def gpu_available() -> bool:
    """Whether the kernel could run here: a GPU, and Triton to compile for it."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@functools.cache
def _gpu_agrees(device: torch.device) -> bool:
    wanted = torch.from_numpy(Stream(_KNOWN, secure=False).normal(_TRIED))
    try:
        got = gpu_add_noise(torch.zeros(_TRIED, device=device), _KNOWN, 1.0, 2.0**-30, 1.0).double().cpu()
    except Exception:  # noqa: BLE001  a compiler that is missing or too old may raise anything
        return False
    return bool((got - wanted).abs().max() < 1e-6)


def gpu_add_noise(
    value: Tensor, key: bytes, scale: float, grid: float, divisor: float, shape: Tensor | None = None
) -> Tensor:
    """(value on the grid + noise on the grid) / divisor, in float32.

    Args:
        value: Flat, float32, on the GPU.
        key: The stream's ChaCha20 key; the block counter starts at 0 and the nonce is 0.
        scale: The noise's standard deviation.
        grid: The spacing to which value and noise are rounded, a power of two.
        divisor: A public constant.
        shape: A factor on the noise of every coordinate, flat, float32, on the GPU.
    """
    from airlock.mechanisms.gpu_kernel import noise_kernel, stream_kernel

    count = value.numel()
    blocks = 2 * -(-count // 16)  # eight 64-bit words each: one half radii, one half angles
    pairs = 4 * blocks
    stream = torch.empty(16 * blocks, dtype=torch.int32, device=value.device)
    out = torch.empty(count, dtype=torch.float32, device=value.device)
    # Numbers are passed as tensors: as plain arguments they would be truncated to float32.
    numbers = torch.tensor([scale / grid, grid, grid / divisor], dtype=torch.float64, device=value.device)
    words = torch.frombuffer(bytearray(key), dtype=torch.int32).to(value.device)
    shaped = shape is not None
    factors = value if shape is None else shape.contiguous()  # not read if there is none
    with torch.cuda.device_of(value):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
        launch: Any = stream_kernel[(-(-blocks // _LANES),)]
        launch(words, stream, blocks, LANES=_LANES)
        launch = noise_kernel[(-(-pairs // _LANES),)]
        launch(value.contiguous(), out, stream, factors, numbers, count, pairs, SHAPED=shaped, LANES=_LANES)
    return out


# The mechanism.

_GRID_BITS = 30  # grid steps in one standard deviation, as a power of two; 10 σ and large sums stay below 2^53


@dataclass(frozen=True)
class GaussianNoise:
    """Adds N(0, (noise_multiplier · sensitivity)²) to every coordinate, on a grid.

    Guarantee: if neighbouring inputs are at most `sensitivity` apart in L2, one call is `GaussianDpEvent(
    noise_multiplier)`, up to the statistical error of a 53-bit uniform generator.

    With a `shape` u the noise of coordinate i has u_i times the standard deviation. The inputs may differ along the
    coordinate with the least noise, so then one call is `GaussianDpEvent(noise_multiplier · min u)`, and only if u is
    public: a u that depends on the records gives no guarantee.

    Args:
        sensitivity: The L2 sensitivity of the value, under the guarantee's relation.
        noise_multiplier: Standard deviation over sensitivity.
        together: In how many coordinates neighbouring inputs may differ, where they are released in several calls,
            piece by piece: then all calls together are that one event. 0 where one call has them all.
    """

    sensitivity: float
    noise_multiplier: float
    together: int = 0

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        return dpa.GaussianDpEvent(self.noise_multiplier)

    @property
    def grid(self) -> float:
        """The public spacing of the outputs: a power of two, about σ / 2^30."""
        return 2.0 ** (math.floor(math.log2(self.noise_multiplier * self.sensitivity)) - _GRID_BITS)

    def scale(self, dimension: int) -> float:
        """The standard deviation actually added: it includes the effect of rounding on the sensitivity."""
        return self.noise_multiplier * (self.sensitivity + self.grid * math.sqrt(max(dimension, self.together)))

    def sample(self, dimension: int, stream: Stream, shape: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
        """The noise alone: normal, rounded to the grid."""
        return self.add(np.zeros(dimension, np.float32), stream, shape)

    def add(
        self, value: NDArray[np.floating], stream: Stream, shape: NDArray[np.floating] | None = None
    ) -> NDArray[np.float64]:
        """The value on the grid plus noise on the grid; exact in float64."""
        flat = torch.from_numpy(np.ascontiguousarray(value).reshape(-1))
        noisy = torch.empty(value.size, dtype=torch.float64)
        blocks = stream.normal_blocks(value.size, self._in_steps(value.size))
        self._fill(noisy, flat, self.grid, blocks, None if shape is None else torch.from_numpy(shape))
        return noisy.numpy().reshape(value.shape)

    def add_and_divide(self, value: Tensor, divisor: float, stream: Stream, shape: Tensor | None = None) -> Tensor:
        """`add` for a flat tensor on its own device, then divided by a public constant (post-processing), in float32.

        Args:
            value: Flat.
            divisor: The constant.
            stream: Read once.
            shape: u, flat like the value and on the same device, entries from 0 to 2^16; without it, the noise is
                isotropic.
        """
        if gpu_takes(value):
            made = gpu_add_noise(value, stream.take_key(), self.scale(value.numel()), self.grid, divisor, shape)
            stream.note_drawn("gpu")
            return made
        noisy = torch.empty(value.numel(), dtype=torch.float32)
        blocks = stream.normal_blocks(value.numel(), self._in_steps(value.numel()))
        self._fill(noisy, value.cpu(), self.grid / divisor, blocks, None if shape is None else shape.cpu())
        return noisy.to(value.device)

    def add_to_piece(self, piece: Tensor, divisor: float, normals: Normals, start: int) -> Tensor:
        """What `add_and_divide` gives for a whole value, at the positions of a piece of it, which begins at `start`.

        Guarantee: that of `add_and_divide` for all pieces together, if they are disjoint and their noise comes from one
        `Normals` of the whole value's size. The noise on a coordinate follows from its position alone, however the
        value is divided; it is computed on the CPU.

        Args:
            piece: Flat.
            divisor: The public constant.
            normals: As many as the whole value has coordinates.
            start: The piece's first position.
        """
        noisy = torch.empty(piece.numel(), dtype=torch.float32)
        drawn = normals.blocks(start, start + piece.numel(), self._in_steps(normals.count))
        blocks = ((place - start, noise) for place, noise in drawn)
        self._fill(noisy, piece.cpu(), self.grid / divisor, blocks, None)
        return noisy.to(piece.device)

    def _in_steps(self, dimension: int) -> float:
        """The noise's standard deviation in steps of the grid."""
        return self.scale(dimension) / self.grid

    def _fill(
        self, room: Tensor, value: Tensor, unit: float, blocks: Iterable[tuple[int, Tensor]], shape: Tensor | None
    ) -> None:
        """Value plus noise, both in whole steps of the grid, times `unit`, block by block while it is in the cache."""
        steps = 1.0 / self.grid  # a power of two: exact in any precision
        for start, noise in blocks:
            where = slice(start, start + len(noise))
            if shape is not None:
                noise *= shape[where]
            on_grid = (value[where] * steps).round_()
            room[where] = noise.round_().add_(on_grid).mul_(unit)

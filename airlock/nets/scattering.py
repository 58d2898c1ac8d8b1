"""Scattering features: fixed wavelets, modulus, low-pass (Bruna and Mallat 2013); nothing in them is learned.

Orders 0 to 2 with J scales and L angles give 1 + JL + L²J(J-1)/2 maps per colour channel (81 for J=2, L=8), each with
1/2^J of the image's side. Every output depends only on its own record and on nothing fitted to data, so computing it
costs no privacy. Real and imaginary parts are separate real convolutions, and all maps of one resolution go through one
convolution: the module exports to ONNX and is fast on a CPU.

Maps of scale 1 are kept at half the resolution, which their bandwidth allows (as in Kymatio, Andreux et al. 2020). The
image is extended by reflection, so a constant image gives zero in every map but the first.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.float64]

SMALLEST = 8  # pixels per side
_TWO_SCALES = 16  # from this side length on, two scales fit; below it, one
_WIDTH, _FREQUENCY, _TAIL = 0.8, 3 * math.pi / 4, 3.0  # sigma and xi of the finest wavelet (Kymatio's); cut at 3 sigma
_TINY = 1e-12  # under the root: keeps its derivative finite
_DENSE = 32 * 32  # pixels up to which `dense` replaces convolutions by matrices
_IMAGES = 64  # processed together in one matrix product


def morlet(scale: int, angle: float, angles: int) -> NDArray[np.complex128]:
    """A Morlet wavelet of zero sum on an odd square grid: an oriented wave under a Gaussian of width 0.8 · 2^scale."""
    sigma, slant = _WIDTH * 2**scale, 4.0 / angles
    u, v = _grid(math.ceil(_TAIL * sigma / min(1.0, slant)), angle)
    window = np.exp(-(u**2 + (v * slant) ** 2) / (2 * sigma**2))
    wave = window * np.exp(1j * _FREQUENCY / 2**scale * u)
    zero_sum = wave - wave.sum() / window.sum() * window
    return np.asarray(zero_sum / (2 * math.pi * sigma**2 / slant), np.complex128)


def gaussian(sigma: float) -> Floats:
    """A Gaussian low-pass of sum 1 on an odd square grid."""
    u, v = _grid(math.ceil(_TAIL * sigma), 0.0)
    window = np.exp(-(u**2 + v**2) / (2 * sigma**2))
    return np.asarray(window / window.sum())


def _grid(reach: int, angle: float) -> tuple[Floats, Floats]:
    """Coordinates along and across a direction, in pixels from the centre."""
    axis = np.arange(-reach, reach + 1, dtype=np.float64)
    x, y = np.meshgrid(axis, axis)
    return x * math.cos(angle) + y * math.sin(angle), -x * math.sin(angle) + y * math.cos(angle)


class Scattering(nn.Module):
    """Maps images (batch, colours, height, width) to scattering maps (batch, colours · maps, rows, columns).

    The maps of one colour are contiguous: order 0; order 1, scale by scale; order 2, by first angle, then second.

    Args:
        shape: The shape of one image: (colours, height, width), at least 8 pixels per side.
        angles: The number of directions between 0 and π.
    """

    fine: Tensor
    coarse: Tensor
    low: Tensor
    low_half: Tensor

    def __init__(self, shape: tuple[int, ...], angles: int = 8) -> None:
        super().__init__()
        colours, height, width = shape
        self.angles, self.scales = angles, 2 if min(height, width) >= _TWO_SCALES else 1
        step = 2**self.scales
        self.rows, self.columns = -(-height // step), -(-width // step)
        spare = (step * self.columns - width, step * self.rows - height)
        self.margin = (spare[0] // 2, spare[0] - spare[0] // 2, spare[1] // 2, spare[1] - spare[1] // 2)
        self.channels = colours * (1 + angles * self.scales + angles**2 * (self.scales - 1))
        self.register_buffer("fine", _bank(0, angles))
        self.register_buffer("low", _kernel(gaussian(_WIDTH * 2 ** (self.scales - 1))))
        if self.scales == 2:
            self.register_buffer("coarse", _bank(1, angles))
            self.register_buffer("low_half", _kernel(gaussian(_WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        """Order 0, 1 and 2."""
        step, size = 2**self.scales, (self.rows, self.columns)
        image = F.pad(x, self.margin, mode="reflect").flatten(0, 1).unsqueeze(1)
        first = _modulus(image, self.fine, 1)
        maps = [_smooth(image, self.low, step), _smooth(first, self.low, step)]
        if self.scales == 2:
            maps.append(_smooth(_modulus(image, self.coarse, 2), self.low_half, 2))
            second = _modulus(first.flatten(0, 1).unsqueeze(1), self.coarse, 2)
            maps.append(_smooth(second, self.low_half, 2).reshape(-1, self.angles**2, *size))
        return torch.cat(maps, 1).reshape(-1, self.channels, *size)


class DenseScattering(nn.Module):
    """The maps of a `Scattering` of small images, each convolution written out as a matrix.

    A CPU has no fast float64 convolution: this does more multiplications but takes a fifth of the time or less
    (`airlock bench scattering`). The outputs are the same up to rounding.
    """

    def __init__(self, of: Scattering) -> None:
        super().__init__()
        self.angles, self.scales, self.margin = of.angles, of.scales, of.margin
        self.layout = (-1, of.channels, of.rows, of.columns)
        step = 2**of.scales
        whole = (step * of.rows, step * of.columns)
        self.fine, self.low = _matrix(of.fine, 1, whole), _matrix(of.low, step, whole)
        if of.scales == 2:
            self.coarse = _matrix(of.coarse, 2, whole)
            self.low_half = _matrix(of.low_half, 2, (whole[0] // 2, whole[1] // 2))

    def forward(self, x: Tensor) -> Tensor:
        """Order 0, 1 and 2."""
        images = F.pad(x, self.margin, mode="reflect").flatten(0, 1).flatten(1)
        return torch.cat([self._maps(part) for part in torch.split(images, _IMAGES)]).reshape(self.layout)

    def _maps(self, image: Tensor) -> Tensor:
        first = self._modulus(image @ self.fine)
        maps = [image @ self.low, first @ self.low]
        if self.scales == 2:
            maps.append(self._modulus(image @ self.coarse) @ self.low_half)
            maps.append(self._modulus(first.flatten(0, 1) @ self.coarse) @ self.low_half)
        return torch.cat([one.reshape(len(image), -1) for one in maps], 1)

    def _modulus(self, both: Tensor) -> Tensor:
        """(maps, angles, pixels) from real parts, then imaginary parts; in place."""
        real, imaginary = both.chunk(2, 1)
        found = real.square_().add_(imaginary.square_()).add_(_TINY).sqrt_()
        return found.reshape(len(both), self.angles, -1)


def dense(front: nn.Module) -> nn.Module:
    """A copy of a front end in which scattering of small images is done by matrices; other parts are unchanged."""
    made = copy.deepcopy(front)
    for parent in list(made.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Scattering) and child.rows * child.columns * 4**child.scales <= _DENSE:
                setattr(parent, name, DenseScattering(child))
    return made


def _matrix(bank: Tensor, stride: int, size: tuple[int, int]) -> Tensor:
    """A filter bank on an image of this size as a matrix, one column per output."""
    pixels = size[0] * size[1]
    each = torch.eye(pixels, dtype=bank.dtype, device=bank.device).reshape(pixels, 1, *size)
    return torch.cat([_through(part, bank, stride).flatten(1) for part in torch.split(each, _IMAGES)])


def _bank(scale: int, angles: int) -> Tensor:
    """The wavelets of a scale, all directions: real parts, then imaginary parts, as the weight of a convolution."""
    waves = [morlet(scale, math.pi * a / angles, angles) for a in range(angles)]
    return _kernel(np.stack([w.real for w in waves] + [w.imag for w in waves]))


def _kernel(values: Floats) -> Tensor:
    """As the weight of a convolution with one input channel; flipped, because torch correlates."""
    flipped = np.flip(values.reshape(-1, 1, *values.shape[-2:]), (2, 3))
    return torch.from_numpy(np.ascontiguousarray(flipped)).float()


def _modulus(x: Tensor, bank: Tensor, stride: int) -> Tensor:
    """One map in, one map per direction out."""
    real, imaginary = _through(x, bank, stride).chunk(2, 1)
    return (real.square() + imaginary.square() + _TINY).sqrt()


def _smooth(maps: Tensor, low: Tensor, stride: int) -> Tensor:
    """Every map separately through the low-pass filter, subsampled."""
    smooth = _through(maps.flatten(0, 1).unsqueeze(1), low, stride)
    return smooth.reshape(-1, maps.shape[1], *smooth.shape[2:])


def _through(x: Tensor, bank: Tensor, stride: int) -> Tensor:
    """One map through every filter of a bank; the map is extended by reflection."""
    reach = bank.shape[-1] // 2
    return F.conv2d(F.pad(x, (reach,) * 4, mode="reflect"), bank, stride=stride)

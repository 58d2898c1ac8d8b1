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
_SMALL = 32 * 32  # pixels up to which `by_matrices` replaces convolutions
_IMAGES = 32  # processed together: their maps fit in a CPU's cache
_SAME = 1e-14  # parts of filters that differ by less are the same


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


class MatrixScattering(nn.Module):
    """The maps of a `Scattering` of small images by matrix products; the outputs are the same up to rounding.

    A row of N pixels that is extended by reflection is a sum of waves cos(ωn), ω = πk/(N−1), k = 0 … N−1. A filter h
    makes of each

        Σ_o h(o) cos(ω(n + o)) = cos(ωn) · Σ_o h(o) cos(ωo) − sin(ωn) · Σ_o h(o) sin(ωo),

    so in two dimensions a filtered image has four parts: waves that are cosines or sines downwards, and cosines or
    sines across. Half the parts of a wavelet are zero, and its mirror image has the same ones up to their signs: the 16
    real filters of 8 angles have 16 parts. Columns are turned into waves once for all filters; for every wave down, one
    matrix takes a row of pixels to the samples of all parts; then the waves are added up. A CPU has no fast convolution
    in float64: this takes about an eighteenth of its time (`airlock bench scattering`).
    """

    def __init__(self, of: Scattering) -> None:
        super().__init__()
        self.margin, self.layout = of.margin, (-1, of.channels, of.rows, of.columns)
        self.scales, step = of.scales, 2**of.scales
        whole = (step * of.rows, step * of.columns)
        self.into_waves = _into_waves(whole[0]).to(of.fine.dtype)
        self.fine, self.low = _Filters(of.fine, 1, whole), _matrix(of.low, step, whole)
        if of.scales == 2:
            self.coarse = _Filters(of.coarse, 2, whole)
            self.low_half = _matrix(of.low_half, 2, (whole[0] // 2, whole[1] // 2))

    def forward(self, x: Tensor) -> Tensor:
        """Order 0, 1 and 2."""
        images = F.pad(x, self.margin, mode="reflect").flatten(0, 1)
        return torch.cat([self._maps(part) for part in torch.split(images, _IMAGES)]).reshape(self.layout)

    def _maps(self, images: Tensor) -> Tensor:
        """Images last: (rows, columns, images), so that single numbers are worked on in long runs."""
        count, angles = len(images), self.fine.angles
        both = images.new_empty(*images.shape[1:], 1 + angles, count)  # order 0 and 1 before their low-pass
        both[:, :, 0] = images.permute(1, 2, 0)
        self.fine.modulus(self._waves(both[:, :, 0]), both[:, :, 1:].permute(2, 0, 1, 3))
        maps = [(self.low @ both.flatten(2).flatten(0, 1)).view(-1, 1 + angles, count).permute(2, 1, 0)]
        if self.scales == 2:
            rows, columns = self.coarse.size
            second = images.new_empty(angles, rows, columns, (1 + angles) * count)
            self.coarse.modulus(self._waves(both.flatten(2)), second)
            smooth = self.low_half @ second.flatten(1, 2)
            maps.append(smooth.view(angles, -1, 1 + angles, count).permute(3, 2, 0, 1).flatten(1, 2))
        return torch.cat(maps, 1)

    def _waves(self, maps: Tensor) -> Tensor:
        """(waves down, columns, maps)."""
        return (self.into_waves @ maps.flatten(1)).view(len(maps), -1, maps.shape[2])


class _Filters:
    """A filter bank on images of one size that are extended by reflection.

    In every second pixel the waves k and N−1−k agree, up to the sign of a sine: they are added up first.

    Args:
        bank: As the weight of a convolution: real parts, then imaginary parts.
        stride: 1, or 2 for every second pixel.
        size: Rows and columns, both even.
    """

    def __init__(self, bank: Tensor, stride: int, size: tuple[int, int]) -> None:
        (rows, columns), reach = size, bank.shape[-1] // 2
        self.size, self.angles = (rows // stride, columns // stride), len(bank) // 2
        self.matrices: list[Tensor] = []  # (waves down, parts · samples, columns), for cosines and sines down
        self.rows: list[Tensor] = []  # (samples, waves down)
        self.terms: list[list[tuple[int, int, float]]] = [[] for _ in bank]  # which parts a filter has, with their sign
        offsets, filters = torch.arange(-reach, reach + 1), bank[:, 0].double()
        for down in (0, 1):
            found: list[Tensor] = []
            for across in (0, 1):
                heights, widths = _waves(offsets, rows)[down], _waves(offsets, columns)[across]
                responses = torch.einsum("fyx,yk,xl->fkl", filters, heights, widths) * (1.0 if down == across else -1.0)
                at = _waves(torch.arange(0, columns, stride), columns)[across]
                for own, response in zip(self.terms, responses, strict=True):
                    part = torch.einsum("lx,kl,ql->kqx", _into_waves(columns), response, at)
                    own += [(down, *term) for term in _placed(part, found)]
            matrices = torch.stack(found, 1).flatten(1, 2)
            if stride == 2 and down == 1:
                matrices[rows // 2 :] *= -1.0
            at_rows = _waves(torch.arange(0, rows, stride), rows)[down][:, : rows // stride]
            self.matrices.append(matrices.to(bank.dtype))
            self.rows.append(at_rows.to(bank.dtype).contiguous())

    def modulus(self, waves: Tensor, out: Tensor) -> None:
        """Write the modulus of filtered maps, (angles, rows, columns, maps), from (waves down, columns, maps)."""
        rows, columns = self.size
        parts = []
        for at, matrices in zip(self.rows, self.matrices, strict=True):
            found = torch.bmm(matrices[:rows], waves[:rows])
            for start in range(rows, len(waves), rows):
                found.baddbmm_(matrices[start : start + rows], waves[start : start + rows])
            parts.append((at @ found.flatten(1)).view(rows, -1, columns, waves.shape[2]))
        for angle, room in enumerate(out):
            real, imaginary = (self._sum(parts, f) for f in (angle, angle + self.angles))
            torch.mul(real, real, out=room).addcmul_(imaginary, imaginary).add_(_TINY).sqrt_()

    def _sum(self, parts: list[Tensor], place: int) -> Tensor:
        """One filter's output, up to its sign."""
        (down, index, first), *rest = self.terms[place]
        total = parts[down][:, index]
        for down, index, sign in rest:
            total = torch.add(total, parts[down][:, index], alpha=first * sign)
        return total


def _waves(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the frequencies of `count` pixels, (points, count): k = 0, 1, … and then N−1, N−2, …."""
    half = torch.arange(count // 2)
    frequencies = torch.cat([half, count - 1 - half]).double()
    turns = points.double()[:, None] * frequencies * (math.pi / (count - 1))
    return torch.cos(turns), torch.sin(turns)


def _into_waves(count: int) -> Tensor:
    """What takes pixels to the amounts of all cosines in them."""
    inverse: Tensor = torch.linalg.inv(_waves(torch.arange(count), count)[0])
    return inverse


def _placed(part: Tensor, found: list[Tensor]) -> list[tuple[int, float]]:
    """Where a part is among those found, to which it is added if it is new, and its sign; nowhere if it is zero."""
    size = float(part.abs().max())
    if size < _SAME:
        return []
    for index, other in enumerate(found):
        for sign in (1.0, -1.0):
            if float((part - sign * other).abs().max()) < _SAME:
                return [(index, sign)]
    found.append(part)
    return [(len(found) - 1, 1.0)]


def by_matrices(front: nn.Module) -> nn.Module:
    """A copy of a front end in which scattering of small images is done by matrices; other parts are unchanged."""
    made = copy.deepcopy(front)
    for parent in list(made.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Scattering) and child.rows * child.columns * 4**child.scales <= _SMALL:
                setattr(parent, name, MatrixScattering(child))
    return made


def _matrix(bank: Tensor, stride: int, size: tuple[int, int]) -> Tensor:
    """A filter bank on an image of this size as a matrix, one column per output."""
    pixels = size[0] * size[1]
    each = torch.eye(pixels, dtype=bank.dtype, device=bank.device).reshape(pixels, 1, *size)
    return torch.cat([_through(part, bank, stride).flatten(1) for part in torch.split(each, _IMAGES)]).T.contiguous()


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

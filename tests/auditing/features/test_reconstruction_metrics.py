"""PSNR and SSIM against their definitions, written out slowly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from airlock.auditing.features.reconstruction_metrics import psnr, ssim, total_variation
from airlock.errors import DataError


def slow_ssim(a: Tensor, b: Tensor, size: int) -> float:
    """Window after window, with the two-dimensional weights and the variance as a mean of squared deviations."""
    places = np.arange(size) - size // 2
    weights = np.exp(-(places[:, None] ** 2 + places[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    found = []
    for one, two in zip(a.double().numpy(), b.double().numpy(), strict=True):
        for row in range(one.shape[0] - size + 1):
            for column in range(one.shape[1] - size + 1):
                p, q = (x[row : row + size, column : column + size] for x in (one, two))
                mp, mq = (weights * p).sum(), (weights * q).sum()
                vp, vq = (weights * (p - mp) ** 2).sum(), (weights * (q - mq) ** 2).sum()
                both = (weights * (p - mp) * (q - mq)).sum()
                found.append((2 * mp * mq + 1e-4) * (2 * both + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(found))


@pytest.mark.parametrize(("side", "size"), [(14, 11), (8, 7), (5, 5)])
def test_ssim_is_its_definition(side: int, size: int) -> None:
    generator = torch.Generator().manual_seed(side)
    first = torch.rand(3, 2, side, side, generator=generator)
    second = (first + 0.2 * torch.randn(first.shape, generator=generator)).clamp(0, 1)
    slow = [slow_ssim(a, b, size) for a, b in zip(first, second, strict=True)]
    assert ssim(first, second).tolist() == pytest.approx(slow, abs=1e-5)
    assert ssim(first, first).tolist() == pytest.approx([1.0] * 3, abs=1e-5)


def test_psnr_is_its_definition() -> None:
    first = torch.zeros(2, 1, 4, 4)
    second = torch.stack([torch.full((1, 4, 4), 0.1), torch.full((1, 4, 4), 0.5)])
    assert psnr(first, second).tolist() == pytest.approx([20.0, -20 * math.log10(0.5)], abs=1e-4)
    assert psnr(first, first).tolist() == pytest.approx([100.0, 100.0])


def test_total_variation_of_an_edge() -> None:
    x = torch.zeros(1, 1, 4, 4)
    x[..., 2:] = 1
    assert total_variation(x).item() == pytest.approx(4 / 16)


def test_batches_of_different_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="one shape"):
        psnr(torch.zeros(2, 1, 4, 4), torch.zeros(1, 1, 4, 4))

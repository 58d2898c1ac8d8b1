"""Scattering against a plain complex convolution, its invariances, and its export; the front ends on top of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.signal import convolve2d
from torch import Tensor, nn

from airlock.bundle.export import to_onnx
from airlock.methods import NetworkArtefact
from airlock.nets import build, check
from airlock.nets.frontend import CONSTANT, Centre, Framed, Unit, pretrain
from airlock.nets.scattering import MatrixScattering, Scattering, by_matrices, gaussian, morlet
from airlock.nets.synthetic import draw

Floats = NDArray[np.float64]


def scatter(shape: tuple[int, ...], images: Tensor) -> Tensor:
    with torch.no_grad():
        return Scattering(shape)(images)


def reflected(image: Floats, kernel: NDArray[np.generic], stride: int) -> NDArray[np.complex128]:
    reach = kernel.shape[0] // 2
    out = convolve2d(np.pad(image, reach, mode="reflect"), kernel, mode="valid")
    return np.asarray(out[::stride, ::stride], np.complex128)


def naive(image: Floats, angles: int) -> Floats:
    """One image whose side is a multiple of four, two scales, straight from the definition."""
    turns = [math.pi * a / angles for a in range(angles)]
    first = [np.abs(reflected(image, morlet(0, t, angles), 1)) for t in turns]
    half = [np.abs(reflected(image, morlet(1, t, angles), 2)) for t in turns]
    half += [np.abs(reflected(u, morlet(1, t, angles), 2)) for u in first for t in turns]
    maps = [reflected(m, gaussian(1.6), 4) for m in [image, *first]] + [reflected(m, gaussian(0.8), 2) for m in half]
    return np.stack(maps).real


@pytest.mark.parametrize("angles", [4, 8])
def test_it_equals_a_plain_complex_convolution(angles: int) -> None:
    image = torch.rand(1, 2, 20, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        maps = Scattering((2, 20, 16), angles)(image)[0].numpy()
    wanted = np.concatenate([naive(image[0, colour].double().numpy(), angles) for colour in range(2)])
    assert maps.shape == wanted.shape
    assert np.abs(maps - wanted).max() < 1e-5


@pytest.mark.parametrize(
    ("shape", "maps"),
    [((1, 28, 28), (81, 7, 7)), ((3, 32, 32), (243, 8, 8)), ((1, 8, 8), (9, 4, 4)), ((1, 9, 19), (9, 5, 10))],
)
def test_the_maps_follow_from_the_shape(shape: tuple[int, ...], maps: tuple[int, ...]) -> None:
    found = scatter(shape, torch.rand(2, *shape))
    assert found.shape == (2, *maps)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("scale", [0, 1])
def test_wavelets_have_zero_sum_and_the_low_pass_sum_one(scale: int) -> None:
    for turn in range(8):
        assert abs(morlet(scale, math.pi * turn / 8, 8).sum()) < 1e-12
    assert gaussian(0.8 * 2**scale).sum() == pytest.approx(1.0)


def test_a_constant_image_has_nothing_but_its_mean() -> None:
    maps = scatter((1, 28, 28), torch.full((1, 1, 28, 28), 0.7))
    assert torch.allclose(maps[:, 0], torch.tensor(0.7), atol=1e-5)
    assert maps[:, 1:].abs().max() < 1e-5


def test_a_small_shift_moves_the_features_less_than_the_pixels() -> None:
    images = draw(50, (1, 32, 32), seed=3)
    inner = torch.nn.functional.pad(images[:, :, 4:-4, 4:-4], (4, 4, 4, 4))
    moved = inner.roll(1, dims=3)
    a, b = scatter((1, 32, 32), inner), scatter((1, 32, 32), moved)
    pixels = (inner - moved).flatten(1).norm(dim=1) / inner.flatten(1).norm(dim=1)
    features = (a - b).flatten(1).norm(dim=1) / a.flatten(1).norm(dim=1)
    assert features.mean() < 0.6 * pixels.mean()


def test_energy_does_not_grow() -> None:
    """Wavelets and low-pass cover the plane about once: the maps hold at most the image's energy, up to sampling."""
    images = draw(20, (1, 32, 32), seed=5)
    energy = images.square().sum((1, 2, 3))
    maps = scatter((1, 32, 32), images).square().sum((1, 2, 3)) * 16
    assert (maps < 1.2 * energy).all()
    assert (maps > 0.3 * energy).all()


def test_scaling_the_image_scales_the_maps() -> None:
    images = torch.rand(3, 1, 16, 16)
    assert torch.allclose(scatter((1, 16, 16), 0.5 * images), 0.5 * scatter((1, 16, 16), images), atol=1e-5)


def test_the_whole_network_is_the_same_in_onnx() -> None:
    shape = (2, 16, 17)
    net = build("scattering-linear", shape, 4)
    assert isinstance(net, Framed)
    assert isinstance(net.front, nn.Sequential)
    for tensor in (net.head.weight, net.centre.mean, net.front[3].weight):
        nn.init.normal_(tensor, std=0.1)  # type: ignore[arg-type]
    artefact = NetworkArtefact(net.eval().requires_grad_(False), "scattering-linear", shape, tuple("abcd"))
    assert to_onnx(artefact)  # it checks outputs and weights itself


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 9, 11), (1, 28, 28), (3, 16, 21), (3, 32, 32)])
def test_matrices_do_what_convolutions_do(shape: tuple[int, ...]) -> None:
    front = nn.Sequential(Scattering(shape), nn.Flatten()).double()
    quick = by_matrices(front)
    assert isinstance(quick[0], MatrixScattering)  # type: ignore[index]
    assert isinstance(front[0], Scattering)
    images = torch.rand(37, *shape, dtype=torch.float64)  # more than go together
    assert torch.allclose(quick(images), front(images), rtol=0, atol=1e-12)


def test_mirrored_wavelets_share_their_parts() -> None:
    """64 parts of 16 real filters, of which half are zero and two in three of the others occur twice."""
    maps = MatrixScattering(Scattering((1, 28, 28)))
    for filters, samples in ((maps.fine, 28), (maps.coarse, 14)):
        assert sum(matrices.shape[1] for matrices in filters.matrices) == 16 * samples
        assert sorted(map(len, filters.terms)) == [1] * 4 + [2] * 12


def test_wavelets_that_are_not_mirrored_are_right_too() -> None:
    """Nothing about a bank is assumed: parts are shared where they are found to be the same."""
    front = nn.Sequential(Scattering((1, 16, 20))).double()
    for bank in (front[0].fine, front[0].coarse):
        bank += 0.01 * torch.randn(bank.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = torch.rand(3, 1, 16, 20, dtype=torch.float64)
    assert torch.allclose(by_matrices(front)(images), front(images), rtol=0, atol=1e-12)


def test_large_images_keep_their_convolutions() -> None:
    quick = by_matrices(nn.Sequential(Scattering((1, 40, 40))))
    assert isinstance(quick[0], Scattering)  # type: ignore[index]


def ready(shape: tuple[int, ...]) -> Framed:
    net = build("scattering-linear", shape, 4)
    assert isinstance(net, Framed)
    pretrain(net, shape, seed=0)
    return net


def test_features_depend_on_their_own_record_and_have_norm_one() -> None:
    net = ready((1, 8, 8))
    check(net, "scattering-linear", (1, 8, 8), 4)
    images = torch.rand(6, 1, 8, 8)
    with torch.no_grad():
        features = net.front(images)
        alone = torch.cat([net.front(image[None]) for image in images])
    assert torch.allclose(features, alone, atol=1e-5)
    assert (features.double().norm(dim=1) <= 1).all()
    assert (features.norm(dim=1) > 0.999).all()


def test_only_the_head_can_be_trained() -> None:
    net = ready((1, 8, 8)).train()
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["head.weight"]
    assert not net.front.training


def test_synthetic_features_are_white_where_they_have_energy() -> None:
    net = ready((1, 8, 8))
    assert isinstance(net.front, nn.Sequential)
    with torch.no_grad():
        white = net.front[:4](draw(4000, (1, 8, 8), seed=0))
    values = torch.linalg.eigvalsh(white.T.cov())
    assert white.mean(0).abs().max() < 1e-2
    assert values.max() < 1.01
    assert values.max() > 0.9


def test_pretraining_follows_from_the_seed() -> None:
    first, second = ready((1, 8, 8)), ready((1, 8, 8))
    other = build("scattering-linear", (1, 8, 8), 4)
    assert isinstance(other, Framed)
    pretrain(other, (1, 8, 8), seed=1)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.state_dict()["front.3.weight"], other.state_dict()["front.3.weight"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 3e38, 1e-30])
def test_the_norm_is_bounded_whatever_the_record_holds(value: float) -> None:
    x = torch.rand(3, 50)
    x[1] = value
    x[2, 7] = value
    unit = Unit()(x)
    assert torch.isfinite(unit).all()
    assert (unit.double().norm(dim=1) <= 1).all()
    centred = Centre(50)(unit)
    assert (centred.double().norm(dim=1) <= 1).all()
    assert torch.allclose(centred[0, -1], torch.tensor(CONSTANT / math.hypot(1, CONSTANT)))


def test_synthetic_images_are_images_and_follow_from_the_seed() -> None:
    images = draw(30, (3, 12, 10), seed=2)
    assert images.shape == (30, 3, 12, 10)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.flatten(1).std(1).min() > 0.01
    assert torch.equal(images, draw(30, (3, 12, 10), seed=2))

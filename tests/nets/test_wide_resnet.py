"""Wide residual networks: standardised filters, and the way back from their gradient to that of what is trained."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from airlock.nets.wide_resnet import StandardisedConv2d, standardised, wide_resnet
from airlock.training.per_sample import use_of
from airlock.training.per_sample.bookkeeping import BookKeeper


def test_filters_have_mean_0_and_norm_1_whatever_the_noise_did() -> None:
    for weight in (torch.randn(5, 27), 1e3 * torch.randn(5, 27), torch.randn(5, 27) + 7):
        unit, _ = standardised(weight)
        assert unit.mean(1).abs().max() < 1e-5
        assert (unit.norm(dim=1) - 1).abs().max() < 1e-3


def test_a_filter_of_equal_numbers_gives_zeros() -> None:
    unit, size = standardised(torch.full((2, 9), 3.0))
    assert unit.abs().max() < 1e-3
    assert size.min() > 0


@given(st.integers(0, 999), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_way_back_is_that_of_autograd(seed: int, scale: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    weight = (scale * torch.randn(4, 18, generator=chance, dtype=torch.float64)).requires_grad_()
    given_back = torch.randn(3, 4, 18, generator=chance, dtype=torch.float64)
    wanted = [torch.autograd.grad(standardised(weight)[0], weight, g)[0] for g in given_back]
    layer = StandardisedConv2d(2, 4, 3)
    got = layer.pull_back(given_back.clone(), weight.detach())
    torch.testing.assert_close(got, torch.stack(wanted))


def standardised_layers_are_book_kept() -> None:
    """Also with several copies of a record: neither is left to a slower engine."""
    net = wide_resnet((1, 9, 8), 3, 10, 1)
    for copies in (1, 2):
        assert isinstance(use_of(net, torch.rand(2 * copies, 1, 9, 8), copies, 2.0, False).engine, BookKeeper)


def test_a_wide_network_goes_through_book_keeping() -> None:
    standardised_layers_are_book_kept()

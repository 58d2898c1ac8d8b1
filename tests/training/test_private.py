"""Clipped per-record gradients: equal to a loop over records, bounded, and noised as accounted for."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from airlock.mechanisms import Clip, Stream
from airlock.nets import build
from airlock.training import PrivateGradients
from airlock.training.per_sample import clipped_sum, engine
from airlock.training.per_sample.self_check import measure


def by_loop(net: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> dict[str, Tensor]:
    """The definition: one backward pass a record, clip, add."""
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters() if p.requires_grad}
    for record, label in zip(x, y, strict=True):
        net.zero_grad()
        F.cross_entropy(net(record[None]), label[None]).backward()
        grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        norm = torch.stack([g.norm() for g in grads.values()]).norm()
        for name, g in grads.items():
            total[name] += g * min(1.0, clip_norm / float(norm))
    return total


NETS = {"mlp": (6,), "linear": (6,), "digits-net": (1, 8, 8), "tanh-net": (1, 20, 20), "mnist-net": (1, 28, 28)}


@settings(max_examples=15)
@given(
    st.sampled_from(sorted(NETS)),
    st.integers(0, 7),
    st.sampled_from([0.01, 0.3, 1.0, 100.0]),
    st.integers(0, 99),
    st.sampled_from([1, 3, 1000]),
)
def test_equal_to_a_loop_over_records(name: str, records: int, clip_norm: float, seed: int, chunk: int) -> None:
    torch.manual_seed(seed)
    net = build(name, NETS[name], 4).eval()
    x, y = torch.rand(records, *NETS[name]), torch.randint(0, 4, (records,))
    step = chunk * measure(net, x, 1)[0]  # bytes
    with patch.dict(engine._CHUNK_BYTES, {"cpu": (step, step)}):
        got, dropped = clipped_sum(net, x, y, Clip(clip_norm))
    expected = by_loop(net, x, y, clip_norm)
    assert dropped == 0
    assert set(got) == set(expected)
    scale = max(float(torch.cat([v.flatten() for v in expected.values()]).norm()), 1e-9)
    for key, value in expected.items():
        # clipping keeps a slack of 2^-10 + 2^-12 below the bound
        assert torch.allclose(got[key].float(), value, rtol=2e-3, atol=2e-3 * scale), key


@settings(max_examples=15)
@given(st.integers(1, 8), st.floats(0.01, 10), st.integers(0, 99))
def test_one_record_moves_the_sum_by_at_most_the_bound(records: int, clip_norm: float, seed: int) -> None:
    torch.manual_seed(seed)
    net = build("mlp", (6,), 4)
    x, y = torch.randn(records, 6) * 50, torch.randint(0, 4, (records,))
    full, _ = clipped_sum(net, x, y, Clip(clip_norm))
    less, _ = clipped_sum(net, x[1:], y[1:], Clip(clip_norm))
    moved = torch.stack([(full[k] - less[k]).norm() for k in full]).norm()
    assert float(moved) <= clip_norm


def test_sums_of_the_all_convolutional_teachers_are_right_and_carry_no_graph() -> None:
    """Their 1 × 1 convolutions take another way than those of the other networks."""
    net, x, y = build("rona-digits-teacher", (1, 8, 8), 3), torch.rand(3, 1, 8, 8), torch.arange(3)
    found, _ = clipped_sum(net, x, y, Clip(0.5))
    wanted = by_loop(net, x, y, 0.5)
    assert all(not g.requires_grad and torch.allclose(g.float(), wanted[name], atol=1e-3) for name, g in found.items())


def test_frozen_parameters_get_no_gradient() -> None:
    net = build("mlp", (6,), 4)
    net[1].requires_grad_(False)  # type: ignore[index]
    got, _ = clipped_sum(net, torch.rand(3, 6), torch.tensor([0, 1, 2]), Clip(1.0))
    assert set(got) == {"3.weight", "3.bias"}
    PrivateGradients(1.0, 1.0, 3.0, Stream.from_seed(0))(net, torch.rand(3, 6), torch.tensor([0, 1, 2]), 0)
    assert net[1].weight.grad is None  # type: ignore[index]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_with_a_bad_gradient_is_dropped_and_counted(bad: float) -> None:
    net = build("mlp", (6,), 4)
    x, y = torch.rand(4, 6), torch.tensor([0, 1, 2, 3])
    x[2, 0] = bad
    got, dropped = clipped_sum(net, x, y, Clip(0.5))
    keep = torch.tensor([0, 1, 3])
    expected, _ = clipped_sum(net, x[keep], y[keep], Clip(0.5))
    assert dropped == 1
    for key in got:
        assert torch.allclose(got[key], expected[key], rtol=1e-5, atol=1e-7)
    source = PrivateGradients(0.5, 1.0, 4.0, Stream.from_seed(0))
    source(net, x, y, 0)
    assert source.dropped == 1


def noise_of(net: nn.Module, source: PrivateGradients, records: int) -> np.ndarray:
    x, y = torch.rand(records, 6), torch.zeros(records, dtype=torch.int64)
    total, _ = clipped_sum(net, x, y, source.clip)
    source(net, x, y, 0)
    pieces = [
        (p.grad * source.expected_lot - total[k]).flatten() for k, p in net.named_parameters() if p.grad is not None
    ]
    return torch.cat(pieces).numpy()


@pytest.mark.parametrize("records", [0, 5])
def test_every_coordinate_gets_noise_of_the_accounted_scale(records: int) -> None:
    """Also on an empty lot: a step without noise would tell that nobody was drawn."""
    from tests.mechanisms.test_gaussian import has_scale

    net = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 10))
    noise = noise_of(net, PrivateGradients(0.5, 3.0, 7.0, Stream.from_seed(1)), records)
    assert has_scale(noise, 1.5)
    assert not has_scale(noise / 2, 1.5)
    start = 0
    for parameter in net.parameters():
        piece = noise[start : start + parameter.numel()]
        start += parameter.numel()
        assert np.abs(piece).min() > 0 or parameter.numel() > 1000
        assert has_scale(piece, 1.5)

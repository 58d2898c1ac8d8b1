"""Clipping bounds every record, whatever its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from airlock.mechanisms import clip_factors
from airlock.mechanisms.clipping import row_squares

gradients = arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(-(2.0**50), 2.0**50, width=32)
)


@given(gradients, st.floats(1e-3, 1e3))
def test_no_record_exceeds_the_bound(rows: np.ndarray, clip_norm: float) -> None:
    g = torch.from_numpy(rows)
    factors = clip_factors(g.norm(dim=1), clip_norm)
    assert ((factors >= 0) & (factors <= 1)).all()
    clipped = (factors[:, None] * g).double().norm(dim=1)
    assert (clipped <= clip_norm).all()


def test_small_gradients_are_left_alone() -> None:
    assert torch.equal(clip_factors(torch.tensor([0.0, 0.5, 0.99]), 1.0), torch.ones(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_gets_nothing(bad: float) -> None:
    assert clip_factors(torch.tensor([bad, 2.0]), 1.0)[0] == 0


@pytest.mark.parametrize("width", [1, 7, 1024, 1025, 300_000])
def test_squares_of_long_rows_are_exact_enough(width: int) -> None:
    """Also where all terms are equal and rounding could add up in one direction."""
    for rows in (torch.full((2, width), 0.1), torch.rand(3, width), 1e-3 + torch.rand(2, width) * 1e-9):
        wanted = rows.double().square().sum(1)
        assert ((row_squares(rows).double() - wanted).abs() <= 2.0**-17 * wanted).all()

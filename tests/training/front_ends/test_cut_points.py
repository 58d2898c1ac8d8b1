"""Where numbers are cut: what one record changes, and what the cut points are good for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from airlock.training.front_ends import cut_points as at
from airlock.training.front_ends.cut_points import choose_cells, edges, sensitivity

CELLS = 256
EDGES = edges(CELLS)
TOTAL = len(EDGES) - 1


def count(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    return at.count(values, CELLS, weights)


def cut_points(counts: np.ndarray, cuts: int, noise: float) -> np.ndarray:
    return at.cut_points(counts, CELLS, cuts, noise)


values = arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 5)), elements=st.floats(-1, 2, width=32))


@given(values, st.data())
def test_one_record_moves_the_counts_by_the_stated_bound(x: np.ndarray, data: st.DataObject) -> None:
    dropped = data.draw(st.integers(0, len(x) - 1))
    moved = count(x) - count(np.delete(x, dropped, 0))
    assert np.linalg.norm(moved) == pytest.approx(sensitivity(x.shape[1]))
    assert count(x).sum() == x.size


@given(values)
def test_one_person_moves_the_counts_by_no_more(x: np.ndarray) -> None:
    own = np.full(len(x), 1.0 / len(x))
    assert np.linalg.norm(count(x, own)) <= sensitivity(x.shape[1]) * (1 + 1e-12)


def test_a_value_is_in_the_cell_that_a_comparison_with_its_edge_says() -> None:
    counts = count(EDGES[:-1, None])
    assert counts.tolist() == [[1.0] * TOTAL]


def test_cut_points_divide_the_records_evenly() -> None:
    rng = np.random.default_rng(0)
    x = rng.beta(2, 8, (5000, 1)).astype(np.float32)
    cuts = cut_points(count(x) + rng.normal(0, 20, (1, TOTAL)), 15, 20.0)[0]
    shares = np.diff([0, *(np.searchsorted(np.sort(x[:, 0]), cuts) / len(x)), 1])
    assert (np.sort(cuts) == cuts).all()
    assert shares.max() < 0.15


def test_a_value_that_many_share_is_cut_off_from_the_others() -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random(5000) < 0.8, 0.0, rng.random(5000)).astype(np.float32)[:, None]
    cuts = np.unique(cut_points(count(x), 7, 0.0)[0])
    assert cuts[0] == EDGES[1]
    assert len(cuts) == 7
    assert (np.diff(cuts[1:]) < 0.25).all()


def test_amounts_at_the_low_end_of_a_wide_range_are_still_told_apart() -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((5000, 1)) / 1000).astype(np.float32)
    cuts = np.unique(cut_points(count(x), 7, 0.0)[0])
    assert (cuts < 0.002).sum() >= 3


def test_noise_alone_gives_some_cut_points() -> None:
    rng = np.random.default_rng(0)
    cuts = cut_points(rng.normal(0, 5, (3, TOTAL)), 15, 5.0)
    assert cuts.shape == (3, 15)
    assert ((cuts > 0) & (cuts < 1)).all()
    assert cut_points(np.zeros((1, TOTAL)), 3, 1.0)[0].tolist() == [0.25, 0.5, 0.75]


def test_few_records_are_counted_in_few_cells() -> None:
    assert choose_cells(500, 30.0) == 64
    assert choose_cells(30_000, 30.0) == 256
    assert len(edges(64)) < len(edges(256))

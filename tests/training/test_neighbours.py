"""Cells of public inputs: what one record moves, what is public, and how far walks go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airlock.training import neighbours
from airlock.training.neighbours import UNIT, PublicGraph, tally


def clouds(count: int, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Two rings, and which of them each point is on."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    angle = rng.uniform(0, 2 * np.pi, count)
    ring = np.stack([np.cos(angle), np.sin(angle), 0.8 * (2 * y - 1) + rng.normal(0, 0.05, count)], 1)
    return torch.from_numpy(ring), y


def test_walks_stay_on_the_ring_that_they_begin_on() -> None:
    features, y = clouds(400)
    graph = PublicGraph.of(features, 0)
    asked, own = clouds(40, seed=1)
    reached = graph.reached(asked)
    assert reached.shape == (40, 400)
    best = np.argsort(-reached, 1)[:, :100]
    assert (y[best] == own[:, None]).mean() > 0.98


def test_smoothing_brings_values_to_those_that_are_joined() -> None:
    features, y = clouds(400)
    graph = PublicGraph.of(features, 0)
    known = np.zeros((400, 2))
    known[:20, :] = np.eye(2)[y[:20]]
    found = graph.smoothed(known, 0.95)
    assert (found.argmax(1) == y).mean() > 0.95


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 1)), min_size=1, max_size=20),
    st.integers(0, 19),
)
def test_one_record_moves_one_count_by_at_most_one(rows: list[tuple[int, int, float]], place: int) -> None:
    cells, labels, weights = (np.array(column) for column in zip(*rows, strict=True))
    left = np.delete(np.arange(len(rows)), place % len(rows))
    whole, less = (tally(cells[i], labels[i], weights[i], 4, 3) for i in (np.arange(len(rows)), left))
    assert (whole != less).sum() <= 1
    assert 0 <= (whole - less).sum() <= UNIT


def test_the_records_of_a_person_move_the_table_by_at_most_one() -> None:
    cells, labels = np.array([0, 1, 2]), np.array([0, 1, 0])
    found = tally(cells, labels, np.full(3, 1 / 3), 3, 2) / UNIT
    assert 0.99 < found.sum() <= 1
    assert np.linalg.norm(found) <= 1


def test_a_weight_that_is_too_large_counts_as_one() -> None:
    assert tally(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([7.0]), 1, 2).max() == UNIT


def test_a_record_has_the_same_cell_whoever_else_is_there() -> None:
    graph, (asked, _) = PublicGraph.of(clouds(300)[0], 0), clouds(2300, seed=2)
    cells = graph.cells(asked)
    assert np.array_equal(graph.cells(asked[5:]), cells[5:])
    assert np.array_equal(graph.cells(torch.flip(asked, (0,)))[::-1], cells)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_few_public_inputs_or_the_same_ones_are_a_graph_too(count: int) -> None:
    for features in (clouds(count)[0], torch.ones(count, 3).double(), torch.zeros(count, 3).double()):
        graph = PublicGraph.of(features, 0)
        assert np.isfinite(graph.reached(clouds(7)[0])).all()
        assert np.isfinite(graph.smoothed(np.ones((count, 2)), 0.9)).all()
        assert graph.cells(clouds(7)[0]).max() < count


def test_a_graph_comes_back_from_its_arrays() -> None:
    graph, (asked, _) = PublicGraph.of(clouds(60)[0], 0), clouds(9, seed=3)
    again = PublicGraph.load(graph.arrays())
    assert np.array_equal(graph.reached(asked), again.reached(asked))
    assert np.array_equal(graph.cells(asked), again.cells(asked))


def test_of_many_public_inputs_some_are_drawn_by_the_public_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LARGEST", 50)
    features = clouds(200)[0]
    one, again, other = (PublicGraph.of(features, seed).arrays()["points"] for seed in (0, 0, 1))
    assert one.shape == (50, 3)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_a_record_has_its_cell_wherever_it_stands() -> None:
    """Also where public inputs are there twice, and rounding decides between them."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        public = rng.normal(size=(300, 50))
        graph = PublicGraph.of(torch.from_numpy(np.concatenate([public, public[:100]])), 0)
        near = public[:100] + rng.normal(0, 1e-3, (100, 50))
        rows = torch.from_numpy(np.concatenate([rng.normal(size=(1100, 50)), near]))
        cells = graph.cells(rows)
        assert len(np.unique(cells)) > 200
        assert np.array_equal(graph.cells(rows[1:]), cells[1:])
        assert np.array_equal(graph.cells(rows.flip(0)), cells[::-1])
        assert graph.cells(rows[:0]).shape == (0,)

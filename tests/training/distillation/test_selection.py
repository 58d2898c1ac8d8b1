"""Selections of query samples: k-centre against a loop, ties, and what is refused."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from airlock.errors import ConfigError, TrainingError
from airlock.training.distillation import selection
from airlock.training.distillation.selection import diverse, k_centre, select, smallest_margin


def made(samples: int, classes: int, seed: int) -> Tensor:
    return 2 * torch.randn(samples, classes, generator=torch.Generator().manual_seed(seed))


def by_a_loop(logits: Tensor, count: int, first: int) -> list[int]:
    """Algorithm 3, word for word."""
    p = torch.softmax(logits.double(), 1)

    def distance(i: int, j: int) -> float:
        return float((p[i] * (p[i].log() - p[j].log())).sum())

    chosen = [first]
    while len(chosen) < count:
        rest = [i for i in range(len(p)) if i not in chosen]
        chosen.append(max(rest, key=lambda i: min(distance(i, j) for j in chosen)))
    return chosen


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 25), st.integers(2, 6), st.integers(0, 10**6))
def test_k_centre_is_algorithm_3(samples: int, classes: int, seed: int) -> None:
    logits, count, first = made(samples, classes, seed).double(), max(1, samples * 2 // 3), seed % samples
    assert k_centre(logits, count, first).tolist() == by_a_loop(logits, count, first)


def test_the_distance_is_from_the_rest_to_the_chosen_and_not_the_other_way() -> None:
    """KL is not symmetric: the other way round, the third sample would be the farthest from the first."""
    p = torch.tensor([[0.499, 0.499, 0.002], [0.34, 0.33, 0.33], [0.001, 0.997, 0.002]])
    assert k_centre(p.log(), 2, 0).tolist() == [0, 1]
    other_way = (p[0] * (p[0].log() - p.log())).sum(1)
    assert int(other_way.argmax()) == 2


def test_ties_go_to_the_sample_that_stands_first_and_none_is_taken_twice() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
    assert k_centre(logits, 2, 0).tolist() == [0, 1]
    assert sorted(k_centre(logits, 4, 2).tolist()) == [0, 1, 2, 3]
    same = torch.zeros(5, 3)
    assert k_centre(same, 5, 3).tolist() == [3, 0, 1, 2, 4]
    assert smallest_margin(same, 3).tolist() == [0, 1, 2]
    assert sorted(diverse(same, 5).tolist()) == [0, 1, 2, 3, 4]


def test_in_float32_the_cover_is_as_good_as_in_float64() -> None:
    """Near ties may fall another way; how far the farthest sample is from the chosen ones may not."""
    logits = made(1500, 10, 3)
    log_p = torch.log_softmax(logits.double(), 1)
    p = log_p.exp()

    def reach(chosen: np.ndarray) -> float:
        return float(((p * log_p).sum(1, keepdim=True) - p @ log_p[torch.from_numpy(chosen)].T).amin(1).max())

    single, double = (k_centre(own, 300, 0) for own in (logits, logits.double()))
    assert np.array_equal(single[:20], double[:20])
    assert reach(single) == pytest.approx(reach(double), rel=0.02)


def test_outputs_that_are_certain_to_the_last_bit_have_finite_distances() -> None:
    logits = torch.tensor([[500.0, 0.0, 0.0], [0.0, 500.0, 0.0], [0.0, 0.0, 500.0], [1.0, 0.0, 0.0]])
    assert sorted(k_centre(logits, 3, 0).tolist()) == [0, 1, 2]


def test_margin_takes_the_least_certain() -> None:
    assert smallest_margin(torch.tensor([[3.0, 0.0], [0.1, 0.0], [0.0, 0.5]]), 2).tolist() == [1, 2]


def test_diverse_takes_uncertain_samples_of_every_kind() -> None:
    """Two kinds, each with uncertain and certain samples: one of each kind comes before a second of either."""
    logits = torch.tensor([[1.0, 0.9, -9.0]] * 20 + [[-9.0, 0.9, 1.0]] * 20 + [[9.0, 0.0, 0.0]] * 20)
    first, second = diverse(logits, 2) // 20
    assert {int(first), int(second)} == {0, 1}


@pytest.mark.parametrize("name", get_args(selection.Name))
def test_every_selection_gives_different_samples_and_the_same_for_a_seed(name: selection.Name) -> None:
    logits = made(200, 4, 0)
    one, again, other = (select(name, logits, 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert len(set(one.tolist())) == 50
    assert one.dtype == np.int64
    if name in ("k-centre", "random"):
        assert one[0] != other[0]


def test_what_cannot_be_selected_is_refused() -> None:
    for count in (0, 11):
        with pytest.raises(ConfigError, match="from 1 to 10 samples"):
            select("k-centre", made(10, 3, 0), count, 0)
    with pytest.raises(TrainingError, match="finite outputs"):
        select("random", torch.full((4, 2), torch.nan), 2, 0)
    with pytest.raises(ConfigError, match="a selection"):
        select("best", made(4, 2, 0), 2, 0)  # type: ignore[arg-type]

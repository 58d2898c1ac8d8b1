"""Made-up records: such as the network takes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from airlock.nets.domain import declare, drawn, extreme, numbers, vocabulary_of
from airlock.training.per_sample.self_check import made_up


@given(st.integers(2, 40), st.integers(1, 20), st.integers(2, 1000), st.integers(0, 5))
def test_texts_are_whole_numbers_below_the_vocabulary_and_begin_at_the_left(
    count: int, places: int, vocabulary: int, seed: int
) -> None:
    x = numbers(count, (places,), vocabulary, np.random.default_rng(seed))
    assert x.shape == (count, places)
    assert x.dtype == np.float32
    assert (x == np.floor(x)).all()
    assert x.min() >= 0
    assert x.max() < vocabulary
    assert (x[:, 0] > 0).all()
    there = x > 0
    assert (there[:, :-1] >= there[:, 1:]).all()  # nothing stands behind the end
    assert there[-1].all()
    assert places == 1 or not there[0].all()


def test_other_records_are_numbers_from_0_to_1() -> None:
    x = numbers(50, (2, 3), None, np.random.default_rng(0))
    assert x.shape == (50, 2, 3)
    assert 0 <= x.min() < 0.1 < 0.9 < x.max() <= 1
    assert set(np.unique(numbers(50, (2,), None, np.random.default_rng(0), whole=True))) == {0, 1}
    assert (extreme((4,), None) == 1).all()
    assert (extreme((4,), 7) == 6).all()


class Reads(nn.Module):
    """A user's own network for text, which says nothing of its vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(x.long()).mean(1))
        return found


def test_a_network_is_told_the_vocabulary_of_the_data_unless_it_says_its_own() -> None:
    net = Reads()
    assert vocabulary_of(net) is None
    assert drawn(net, 20, (3,), 0).max() <= 1
    assert declare(net, None) is net
    assert vocabulary_of(declare(net, 9)) == 9
    assert drawn(net, 20, (3,), 0).max() > 5
    assert made_up(net, torch.zeros(1, 3), 20, 1, 0).max() > 5
    assert made_up(net, torch.zeros(1, 3, dtype=torch.int64), 20, 1, 0).dtype == torch.int64
    assert vocabulary_of(declare(net, 5)) == 9
    a_network_for_text_is_tried_on_texts()


def a_network_for_text_is_tried_on_texts() -> None:
    """Whatever draws for a network draws tokens."""
    net = declare(Reads(), 9)
    for x in (drawn(net, 20, (3,), 0), made_up(net, torch.zeros(1, 3), 20, 1, 0)):
        assert x.equal(x.floor())
        assert len(x.unique()) > 5

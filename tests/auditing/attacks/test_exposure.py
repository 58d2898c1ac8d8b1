"""Exposure of canary sentences: what was never there is at chance, and what is remembered is seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from airlock.auditing.attacks.exposure import Completed, Sentences, complete, measured, ranks
from airlock.data import Records
from airlock.nets.hugging_face import LanguageModel

VOCABULARY, TOKENS = 50, 8


def made(count: int = 40) -> Sentences:
    return Sentences.drawn(count, TOKENS, VOCABULARY, seed=3)


def test_other_fillings_share_the_beginning_and_nothing_else() -> None:
    canaries = made()
    assert canaries.texts.min() >= 1
    assert canaries.texts.max() < VOCABULARY
    first, again, other = (canaries.others(place, 500, seed=1) for place in (0, 0, 1))
    assert (first == again).all()
    assert (first[:, :4] == canaries.texts[0, :4]).all()
    assert (other[:, :4] == canaries.texts[1, :4]).all()
    assert len(np.unique(first[:, 4:], axis=0)) > 450
    assert sorted(np.unique(first[:, 4:]).tolist()) == list(range(1, VOCABULARY))


def test_a_model_that_never_saw_them_ranks_them_at_random() -> None:
    canaries, chance = made(300), np.random.default_rng(0)
    weight = chance.normal(size=(TOKENS, VOCABULARY))

    def losses(records: Records) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        ids = records.x.astype(np.int64)
        return np.asarray(weight[np.arange(TOKENS), ids].sum(1))

    found = ranks(canaries, losses, 99, seed=5)
    assert found.min() >= 1
    assert found.max() <= 100
    assert abs((found / 100).mean() - 0.505) < 4 * 0.29 / math.sqrt(300)
    result = measured(found, 99, 1, 4)
    assert not result.beats_chance
    assert abs(result.value - result.chance) < 2 * (result.high - result.low)


def test_a_model_that_remembers_them_ranks_them_first() -> None:
    canaries = made()
    known = {row.tobytes() for row in canaries.texts}
    found = ranks(canaries, lambda records: np.array([row.tobytes() not in known for row in records.x], float), 999, 5)
    assert (found == 1).all()
    result = measured(found, 999, 2, 4)
    assert result.value == result.most == pytest.approx(math.log2(1000))
    assert result.first == result.canaries == 40
    assert result.low < result.value  # alike as they are, they are not certain
    assert result.beats_chance


def test_a_loss_that_is_no_number_or_the_same_for_all_exposes_nothing() -> None:
    for value in (math.nan, 1.0):
        found = ranks(made(), lambda records, value=value: np.full(len(records), value), 99, 5)
        assert (found == 100).all()
        assert measured(found, 99, 1, 4).value == 0.0


def test_each_is_there_as_often_as_asked_and_belongs_to_one_new_person() -> None:
    canaries, x = made(3), np.zeros((5, TOKENS), np.float32)
    plain = canaries.inserted(Records(x, np.zeros(5, np.int64)), 2)
    assert len(plain) == 11
    assert plain.person is None
    assert (plain.x[5::2] == canaries.texts).all()
    whose = canaries.inserted(Records(x, np.zeros(5, np.int64), np.array([7, 7, 2, 9, 2])), 2).person
    assert whose is not None
    assert whose.tolist() == [7, 7, 2, 9, 2, 10, 10, 11, 11, 12, 12]


def test_chance_is_the_mean_of_a_uniform_rank() -> None:
    uniform = np.arange(1, 101)
    result = measured(uniform, 99, 1, 4)
    assert result.value == pytest.approx(result.chance)
    assert result.chance == pytest.approx(1 / math.log(2), abs=0.1)


class Recites(LanguageModel):
    """Continues the texts that it knows, and any other with the first token."""

    def __init__(self, known: Sentences) -> None:
        nn.Module.__init__(self)
        self.places, self.vocabulary, self.says_tokens = known.texts.shape[1], known.vocabulary, True
        self.known = torch.from_numpy(known.texts)
        self.weight = nn.Parameter(torch.zeros(1))

    def next_token(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probabilities."""
        said = torch.zeros(len(x), self.places, self.vocabulary - 1)
        said[:, :, 0] = 0.5
        for place in range(self.places - 1):
            begins = (x[:, None, : place + 1] == self.known[None, :, : place + 1]).all(2)
            for row, which in begins.nonzero():
                said[row, place, int(self.known[which, place + 1]) - 1] = 1.0
        return said.log_softmax(2)


def test_what_a_model_recites_is_extracted_and_what_it_never_saw_is_not() -> None:
    canaries, others = made(30), Sentences.drawn(30, TOKENS, VOCABULARY, seed=4)
    net = Recites(canaries)
    assert complete(net, canaries) == Completed(30, 1.0)
    found = complete(net, others)
    assert found.whole == 0
    assert found.share < 0.2
    result = measured(np.full(30, 5), 99, 1, canaries.secret, Completed(30, 1.0), found)
    assert (result.extracted, result.others_extracted) == (30, 0)
    assert complete(nn.Linear(1, 1), canaries) == Completed()

"""Label-only attacks see decisions and nothing else; their queries are what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from airlock.auditing.attacks import LabelSettings, label_only
from airlock.auditing.attacks.label_only import labels_of, queries, robustness, shifts
from airlock.data import Records
from airlock.errors import DataError
from airlock.nets import create
from airlock.training import Recipe, Resident, Run, train_together
from tests.auditing.attacks.toy import at_chance, auc, beats_chance, sides, world

SHIFT = LabelSettings(kind="shift", queries=8)
NOISE = LabelSettings(kind="noise", queries=24, levels=(0.1, 0.2, 0.4))


@pytest.mark.parametrize("settings", [SHIFT, NOISE])
def test_it_finds_what_a_net_remembers_and_nothing_else(settings: LabelSettings) -> None:
    here = world()
    found = label_only(labels_of(here.target), *sides(here), settings, 0)
    assert beats_chance(found), auc(found)
    assert at_chance(label_only(labels_of(here.stranger), *sides(here), settings, 0))
    assert (found.member_repeats is None) == (settings.kind == "shift")
    assert set(np.round(found.members * (settings.queries + 1), 6) % 1) == {0.0}


def test_binary_features_are_flipped() -> None:
    rng = np.random.default_rng(0)
    records = Records((rng.random((240, 60)) < 0.3).astype(np.float32), rng.integers(0, 5, 240))
    half = np.arange(120)
    recipe = Recipe(steps=150, optimiser="adam", learning_rate=0.003)
    data = Resident(records, torch.device("cpu"))
    nets = train_together(lambda i: create("mlp", (60,), 5, i), 1, data, [half], recipe, 0, Run())
    settings = LabelSettings(kind="flip", queries=16, levels=(0.05, 0.1))
    found = label_only(labels_of(nets.model(0)), records.take(half), records.take(half + 120), settings, 0)
    assert beats_chance(found), auc(found)


def test_queries_are_counted_and_start_with_the_record() -> None:
    x = torch.rand(5, 1, 8, 8)
    for settings in (SHIFT, NOISE):
        asked = list(queries(x, settings, 1))
        assert len(asked) == settings.queries + 1
        assert torch.equal(asked[0], x)
        assert all(copy.shape == x.shape and not torch.equal(copy, x) for copy in asked[1:])
    bits = (torch.rand(2000, 50) < 0.5).float()
    flipped = list(queries(bits, LabelSettings(kind="flip", queries=2, levels=(0.1, 0.3)), 1))
    shares = [float((copy != bits).float().mean()) for copy in flipped]
    assert shares == pytest.approx([0, 0.1, 0.3], abs=0.01)
    noisy = list(queries(torch.zeros(2000, 50), LabelSettings(kind="noise", queries=2, levels=(0.1, 0.3)), 1))
    assert [float(copy.std()) for copy in noisy] == pytest.approx([0, 0.1, 0.3], abs=0.005)


def test_shifts_move_images_nearest_first() -> None:
    assert set(shifts(4)) == {(0, 1), (1, 0), (0, -1), (-1, 0)}
    assert len(set(shifts(40))) == 40
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 2, 2] = 1
    where = [copy[0, 0].nonzero().tolist() for copy in queries(x, LabelSettings(kind="shift", queries=4), 0)]
    expected = [[2, 2], *([2 + down, 2 + right] for down, right in shifts(4))]
    assert where == [[place] for place in expected]


def test_permuted_records_have_permuted_scores_where_there_is_no_chance() -> None:
    here = world()
    order = np.random.default_rng(0).permutation(len(here.pool))
    whole = robustness(labels_of(here.target), here.pool, SHIFT, 0)
    assert np.array_equal(robustness(labels_of(here.target), here.pool.take(order), SHIFT, 0), whole[order])


def test_labels_are_all_it_gets() -> None:
    here, seen = world(), []

    def answer(x: Tensor) -> Tensor:
        seen.append(labels_of(here.target)(x))
        return seen[-1]

    label_only(answer, *sides(here), SHIFT, 0)
    assert len(seen) == 2 * 9
    assert all(labels.dtype == torch.int64 and labels.dim() == 1 for labels in seen)


def test_what_it_cannot_alter_is_refused() -> None:
    here = world()
    flat = Records(here.pool.x.reshape(len(here.pool), -1), here.pool.y)
    with pytest.raises(DataError, match="images to be shifted"):
        robustness(labels_of(here.target), flat, SHIFT, 0)
    with pytest.raises(DataError, match="0 or 1"):
        robustness(labels_of(here.target), here.pool, LabelSettings(kind="flip"), 0)


def test_from_a_text_some_tokens_are_left_out_and_the_others_move_together() -> None:
    x = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0], [7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    first, *copies = queries(x, LabelSettings(kind="drop", queries=20, levels=(0.5,)), 0)
    assert torch.equal(first, x)
    lengths = set()
    for copy in copies:
        assert torch.equal(copy[1], x[1])
        left = copy[0][copy[0] > 0].tolist()
        assert left[0] == 5.0
        assert left == sorted(left, reverse=True)
        assert torch.equal(copy[0, len(left) :], torch.zeros(7 - len(left)))
        lengths.add(len(left))
    assert len(lengths) > 2

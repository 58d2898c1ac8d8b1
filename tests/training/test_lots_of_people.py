"""Lots of people: who is drawn, which of their records enter, and that nothing about it is public."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock.data import Records
from airlock.errors import Interrupted, TrainingError
from airlock.mechanisms import Stream
from airlock.nets import create
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit
from airlock.training.devices import chosen_rows
from tests.training.test_loop import CPU, RECIPES, _press_after, blobs

MOST = 3


def people(sizes: Sequence[int]) -> Records:
    """The number of a record is its only feature; records of one person are not adjacent."""
    person = np.repeat(np.arange(len(sizes)), sizes)[np.random.default_rng(0).permutation(sum(sizes))]
    x = np.arange(len(person), dtype=np.float32)[:, None]
    return Records(x, np.zeros(len(person), np.int64), person)


def test_whoever_is_drawn_contributes_her_own_records_and_at_most_the_bound() -> None:
    records = people((1, 3, 9, 2, 40))
    data = Resident(records, CPU, MOST)
    assert data.units == 5
    for seed in range(50):
        chance = np.random.default_rng(seed)
        drawn = np.flatnonzero(chance.random(5) < 0.6)
        x, y, owners = data.lot(drawn, chance.random)
        assert owners is not None
        assert len(x) == len(y) == len(owners)
        rows = x[:, 0].numpy().astype(int)
        assert len(set(rows)) == len(rows)
        groups = records.groups()
        for place, one in enumerate(drawn.tolist()):
            own = groups.rows[groups.starts[one] : groups.starts[one + 1]].tolist()
            found = rows[owners.numpy() == place].tolist()
            assert set(found) <= set(own)
            assert len(found) == min(len(own), MOST)
            assert len(own) > MOST or found == own  # all of them, in their order


def test_of_too_many_records_every_choice_is_as_likely_whoever_else_is_drawn() -> None:
    """Six records, three of which enter: twenty sets. With others in the lot, and without."""
    groups, chance, draws = people((9, 6, 1, 7)).groups(), np.random.default_rng(0), 8000
    one = int(np.flatnonzero(np.diff(groups.starts) == 6)[0])
    own = groups.rows[groups.starts[one] : groups.starts[one + 1]].tolist()
    for drawn in ([one], [0, 1, 2, 3]):
        found: Counter[tuple[int, ...]] = Counter()
        for _ in range(draws):
            rows, owners = chosen_rows(groups, np.array(drawn), MOST, chance.random)
            found[tuple(sorted(rows[owners == drawn.index(one)].tolist()))] += 1
        assert set(found) == {tuple(sorted(rows)) for rows in combinations(own, MOST)}
        deviation = (draws / 20 * 0.95) ** 0.5
        assert max(abs(count - draws / 20) for count in found.values()) < 5 * deviation


class Watching:
    """Remembers the records of every step."""

    mark: dict[str, object] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.seen: list[list[float]] = []
        self.owners: list[list[int]] = []

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: Any) -> None:
        raise AssertionError

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int, owners: Tensor) -> None:
        self.seen.append(x[:, 0].tolist())
        self.owners.append(owners.tolist())


def watched(steps: int, secret: Stream | None, records: Records, probability: float = 0.5) -> Watching:
    found, net = Watching(), nn.Linear(1, 2)
    recipe, lots = Recipe(steps=steps, learning_rate=0.1), Poisson(probability, Stream.from_seed(0))
    fit(net, Resident(records, CPU, MOST), lots, found, recipe, 0, Run(), secret=secret)
    return found


def test_everybody_enters_a_lot_with_the_same_probability_however_many_records_she_has() -> None:
    records = people((1, 2, 30, 1, 5))
    steps, q = 2000, 0.2
    found = watched(steps, Stream.from_seed(3), records, q)
    assert records.person is not None
    counts = np.zeros(5)
    for rows in found.seen:
        counts[sorted({int(records.person[int(row)]) for row in rows})] += 1
    assert np.abs(counts / steps - q).max() < 5 * (q * (1 - q) / steps) ** 0.5
    sizes = np.array([max(owners, default=-1) + 1 for owners in found.owners])
    assert abs(sizes.var() - 5 * q * (1 - q)) < 0.12  # binomial


def test_which_records_of_a_person_enter_is_secret_and_new_in_each_step() -> None:
    records = people((40, 30))
    secrets = (None, Stream.from_seed(1), Stream.from_seed(1), Stream.from_seed(2), Stream.from_system())
    seen = [watched(4, secret, records, 1.0).seen for secret in secrets]
    assert seen[1] == seen[2]
    assert len({repr(one) for one in seen}) == 4
    assert len({repr(step) for step in seen[1]}) == 4


def of_people() -> Records:
    own = blobs(120)
    return Records(own.x, own.y, np.arange(120) // 3 % 25)


def trained(run: Run, most: int = MOST) -> nn.Module:
    net, stream = create("mlp", (5,), 3, 0), Stream.from_seed(1)
    gradients = PrivateGradients(
        1.0, 1.0, 10.0, stream.child("noise"), records_per_person=most, expected_rows=10.0 * most
    )
    lots, secret = Poisson(0.4, stream.child("lots")), stream.child("records")
    fit(net, Resident(of_people(), CPU, most), lots, gradients, RECIPES["sgd"], 0, run, secret=secret)
    return net


def test_a_resumed_run_on_people_ends_in_the_same_bits_and_keeps_their_bound(tmp_path: Path) -> None:
    whole = trained(Run())
    with pytest.raises(Interrupted):
        trained(Run(progress=_press_after(7), checkpoint=tmp_path))
    with pytest.raises(TrainingError, match="checkpoint of this very run"):
        trained(Run(checkpoint=tmp_path, resume=True), most=MOST + 1)
    resumed = trained(Run(checkpoint=tmp_path, resume=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_gradients_of_records_are_not_taken_for_those_of_people() -> None:
    x, y, owners = torch.rand(2, 5), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 0])
    net = nn.Linear(5, 3)
    with pytest.raises(RuntimeError, match="people"):
        PrivateGradients(1.0, 1.0, 1.0, Stream.from_seed(0))(net, x, y, 0, owners)
    with pytest.raises(RuntimeError, match="people"):
        PrivateGradients(1.0, 1.0, 1.0, Stream.from_seed(0), records_per_person=2)(net, x, y, 0)

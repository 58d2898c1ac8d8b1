"""Many noise levels at once: a step is the engine's, lots are Poisson, and noise is as large as it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from airlock.data import Records
from airlock.mechanisms import Stream
from airlock.mechanisms.clipping import SLACK
from airlock.nets import create
from airlock.reproduction.noise_levels import clipped_sums, lots, train_at_noise_levels
from airlock.training import PrivateGradients, Resident, Run


def made_up(count: int) -> Records:
    chance = np.random.default_rng(0)
    return Records(chance.normal(0, 2, (count, 6)).astype(np.float32), chance.integers(0, 3, count))


@pytest.mark.parametrize("clip_norm", [0.3, 50.0])
def test_the_sums_are_those_of_the_engine(clip_norm: float) -> None:
    records = made_up(20)
    nets = [create("mlp", (6,), 3, seed) for seed in (0, 1)]
    stacked = [torch.stack(pair) for pair in zip(*(net.parameters() for net in nets), strict=True)]
    x, y = torch.from_numpy(records.x).expand(2, -1, -1), torch.from_numpy(records.y).expand(2, -1)
    drawn = torch.ones(2, 20, dtype=torch.bool)
    drawn[:, 15:] = False
    ours = clipped_sums(stacked, x, y, drawn, clip_norm * (1 - SLACK))
    for number, net in enumerate(nets):
        gradients = PrivateGradients(clip_norm, 1e-9, 1.0, Stream.from_seed(0))
        gradients(net, x[number, :15], y[number, :15], 0)
        for parameter, total in zip(net.parameters(), ours, strict=True):
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad.float(), total[number], atol=1e-5)


def test_every_record_enters_a_lot_with_the_same_probability_whoever_else_does() -> None:
    chance = torch.Generator().manual_seed(0)
    data = Resident(Records(np.arange(50, dtype=np.float32)[:, None], np.arange(50)), torch.device("cpu"))
    found = torch.zeros(4000, 50, dtype=torch.bool)
    x, y, drawn = lots(data, 10.0, 4000, chance)
    assert torch.equal(x[:, :, 0].long(), y)
    rows, columns = torch.nonzero(drawn, as_tuple=True)
    found[rows, y[rows, columns]] = True
    assert int(found.sum()) == int(drawn.sum())  # nobody twice
    assert torch.allclose(found.double().mean(0), torch.tensor(0.2, dtype=torch.double), atol=0.03)
    sizes = found.sum(1).double()
    assert float(sizes.var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.1)


def test_each_network_gets_its_own_noise_and_without_any_it_learns() -> None:
    records = made_up(60)
    records = Records(records.x, (np.asarray(records.x, np.float32)[:, 0] > 0).astype(np.int64))
    net, data = create("mlp", (6,), 2, 0), Resident(records, torch.device("cpu"))
    before = [value.clone() for value in net.parameters()]

    def trained() -> list[nn.Module]:
        return train_at_noise_levels(
            net, data, [0.0, 1000.0], Run(),
            steps=60, lot=20, clip_norm=1.0, learning_rate=0.01, weight_decay=0.0, seed=3,
        )  # fmt: skip

    quiet, loud = trained()
    x, y = torch.from_numpy(records.x), torch.from_numpy(records.y)
    right = [float((one(x).argmax(1) == y).float().mean()) for one in (quiet, loud)]
    assert right[0] > 0.9 > right[1]
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert torch.equal(trained()[1](x), loud(x))

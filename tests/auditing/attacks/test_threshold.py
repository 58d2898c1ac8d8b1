"""The gradient's norm is that of every record by itself, and it tells members of a net that remembers."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from airlock.auditing.attacks import gradient_norm
from airlock.auditing.attacks.threshold import last_layer
from airlock.data import Records
from airlock.errors import NetError
from airlock.nets import create
from airlock.training.per_sample.norms import gradient_squares
from tests.auditing.attacks.toy import at_chance, auc, beats_chance, sides, world


def one_by_one(net: nn.Module, records: Records) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name, _ in net.named_parameters()}
    net.eval()
    for x, y in zip(torch.from_numpy(records.x), torch.from_numpy(records.y), strict=True):
        net.zero_grad()
        F.cross_entropy(net(x[None]), y[None]).backward()
        for name, p in net.named_parameters():
            assert p.grad is not None
            found[name].append(float(p.grad.square().sum()))
    return found


class Choosy(nn.Module):
    """Uses a weight behind its layer's back, which book-keeping does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.one(x.flatten(1)) + F.linear(x.flatten(1).square(), self.one.weight)
        return out


@pytest.mark.parametrize("kind", ["mlp", "digits-net", "choosy"])
def test_norms_equal_those_of_single_records(kind: str) -> None:
    records = world().pool.take(np.arange(30))
    net = Choosy() if kind == "choosy" else create(kind, (1, 8, 8), 10, 3)
    # Neither 0, where nothing flows back, nor so large that p − y is lost to rounding.
    nn.init.normal_([p for p in net.parameters() if p.dim() == 2][-1], std=0.1)
    expected = one_by_one(net, records)
    net.train()
    found = gradient_squares(net, records)
    assert net.training
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize("over", ["all", "last"])
def test_it_finds_what_a_net_remembers_and_nothing_else(over: Literal["all", "last"]) -> None:
    here = world()
    found = gradient_norm(here.target, *sides(here), over)
    assert beats_chance(found), auc(found)
    assert at_chance(gradient_norm(here.stranger, *sides(here), over))
    assert found.view == "white-box"


def test_the_last_layer_is_the_last_that_learns() -> None:
    net = create("mlp", (1, 8, 8), 10, 0)
    assert last_layer(net) == {"3.weight", "3.bias"}
    for p in list(net.parameters())[2:]:
        p.requires_grad_(False)
    assert last_layer(net) == {"1.weight", "1.bias"}
    for p in net.parameters():
        p.requires_grad_(False)
    with pytest.raises(NetError, match="trainable"):
        last_layer(net)

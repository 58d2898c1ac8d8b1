"""What a network keeps of a record is gone before the next one."""

from __future__ import annotations

import warnings
from collections import deque

import pytest
import torch
from torch import Tensor, nn

from airlock.errors import AirlockWarning
from airlock.mechanisms import Clip, Stream
from airlock.training import PrivateGradients
from airlock.training.per_sample import clipped_sum
from airlock.training.per_sample.sealed import USES, Sealed
from tests.training.per_sample.odd_nets import ODD, vectors


class Keeper(nn.Module):
    """Remembers in every way that it can."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("mean", torch.zeros(6))
        self.number, self.seen, self.by_name, self.past = 0, [], {}, deque([1, 2])
        self.kinds = {1}

    def forward(self, x: Tensor) -> Tensor:
        self.number += 1
        self.seen.append(x)
        self.by_name["last"] = x
        self.past.append(x)
        self.kinds.add(self.number)
        self.extra = x
        self.frozen.data.add_(1.0)
        self.mean = self.mean + x.mean(0)
        self.head.weight.data.mul_(0.5)
        logits: Tensor = self.head(x)
        return logits


def test_everything_is_put_back() -> None:
    net = Keeper()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    sealed, names = Sealed(net), set(vars(net))
    for _ in range(3):
        net(vectors(2))
    sealed.restore()
    assert set(vars(net)) == names
    assert (net.number, net.seen, net.by_name, list(net.past), net.kinds) == (0, [], {}, [1, 2], {1})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_what_an_optimiser_changed_stays() -> None:
    net = Keeper()
    sealed = Sealed(net)
    with torch.no_grad():
        net.head.weight.fill_(2.0)
    sealed.accept()
    net(vectors(2))
    sealed.restore()
    assert bool((net.head.weight == 2.0).all())


@pytest.mark.parametrize("name", ["writes a frozen parameter", "remembers"])
def test_training_leaves_nothing_of_a_record_in_the_network(name: str) -> None:
    """Planted: a network that keeps the mean of its inputs where no noise is added."""
    net = ODD[name].make()
    frozen = {key: value.clone() for key, value in net.state_dict().items() if not key.startswith("head")}
    attributes = {key: value for key, value in vars(net).items() if key != USES}
    gradients = PrivateGradients(1.0, 1.0, 8.0, Stream.from_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        for step in range(3):
            gradients(net, vectors(9), torch.arange(9) % 3, step)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in frozen.items())
    assert {key: value for key, value in vars(net).items() if key != USES} == attributes
    assert not getattr(net, "bank", [])


def test_a_copy_of_a_network_has_engines_of_its_own() -> None:
    import copy

    net = nn.Linear(6, 3)
    clipped_sum(net, vectors(3), torch.arange(3), Clip(1.0))
    other = copy.deepcopy(net)
    assert vars(other)[USES] == {}
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))

"""What a network says of a record is the same bits whoever is asked about with it, whatever the network does."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from airlock.errors import AirlockWarning
from airlock.nets import build
from airlock.training.per_sample import outputs
from airlock.training.per_sample.forward import Forward
from airlock.training.per_sample.sealed import USES
from tests.training.per_sample.odd_nets import ODD

BY_ONE = {
    "experts with capacity", "writes a frozen parameter", "remembers", "writes in place", "LSTM", "by place",
    "through numpy", "counts by shape",
}  # fmt: skip


def asked(net: nn.Module) -> Forward:
    (found,) = [use for use in vars(net)[USES].values() if isinstance(use, Forward)]
    return found


@pytest.mark.parametrize("name", sorted(ODD))
def test_neighbours_do_not_matter(name: str) -> None:
    odd = ODD[name]
    torch.manual_seed(1)
    net, x = odd.make().eval(), odd.draw(9)
    order = torch.tensor([4, 2, 8, 0, 6])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", AirlockWarning)
        every, some, one = outputs(net, x), outputs(net, x[order]), outputs(net, x[3:4])
    assert torch.equal(some, every[order])
    assert torch.equal(one, every[3:4])
    assert asked(net).by_one == (name in BY_ONE), asked(net).reason
    assert any("one record at a time" in str(one.message) for one in told) == (name in BY_ONE)


def test_outputs_are_the_networks() -> None:
    net, x = build("mnist-net", (1, 28, 28), 3).eval(), torch.rand(300, 1, 28, 28)
    with torch.no_grad():
        assert torch.allclose(outputs(net, x), net(x), atol=1e-5)
    assert outputs(net, x[:0]).shape == (0, 3)
    assert not asked(net).by_one


def test_a_network_that_begins_to_mix_is_asked_about_single_records() -> None:
    on = False

    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x - x.mean(0) if on else x)
            return logits

    net, x = Later().eval(), torch.rand(9, 6)
    outputs(net, x)
    on = True
    assert torch.equal(outputs(net, x)[:4], outputs(net, x[:4]))
    assert asked(net).by_one

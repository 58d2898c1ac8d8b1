"""The user's own network may be a function, a class, or a module that is ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from airlock.errors import NetError
from airlock.nets.registry import create

SOURCE = """
from torch import nn

class Net(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0], classes)

class Wide(nn.Linear):
    def __init__(self, hidden):
        super().__init__(hidden, 2)

def make(shape, classes):
    return nn.Linear(shape[0], classes)

model = nn.Linear(3, 2)
number = 7
"""


@pytest.fixture(autouse=True)
def _a_module_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "nets_of_her_own.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("nets_of_her_own", None)


@pytest.mark.parametrize("name", ["Net", "make", "model"])
def test_a_function_a_class_and_a_module_are_networks(name: str) -> None:
    net = create(f"nets_of_her_own:{name}", (3,), 2, seed=0)
    assert isinstance(net, nn.Linear)
    assert net.weight.shape == (2, 3)


def test_a_module_is_copied_with_its_parameters() -> None:
    first, second = (create("nets_of_her_own:model", (3,), 2, seed=seed) for seed in (0, 1))
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    assert torch.equal(first.weight, second.weight)
    with torch.no_grad():
        first.weight.zero_()
    assert second.weight.any()


@pytest.mark.parametrize(("name", "says"), [("Wide", "'hidden'"), ("number", "int"), ("nothing", "a class or a")])
def test_anything_else_is_refused_in_words(name: str, says: str) -> None:
    with pytest.raises(NetError, match=says):
        create(f"nets_of_her_own:{name}", (3,), 2, seed=0)

"""Networks on one frozen base: each is what it would be alone, and what they share is there once."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from airlock.config import TRANSFORMERS
from airlock.data import Records
from airlock.errors import Interrupted
from airlock.nets import create
from airlock.nets.domain import numbers
from airlock.nets.hugging_face import Tune
from airlock.nets.registry import tuned
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.ensembles.checkpoint_store import Slices
from airlock.training.ensembles.ensemble import Make, bytes_per_model
from airlock.training.ensembles.own_layers import divide
from airlock.training.ensembles.stacked import Looped, OneBatch, Vmapped, choose, shared, stack, tensors
from tests.tiny_models import IMAGES, VOCABULARY, save, shape_of, write
from tests.training.ensembles.test_ensemble import SEED, alone, assert_same, press

CPU = torch.device("cpu")
CLASSES = 3
ADAM = Recipe(steps=4, learning_rate=3e-3, optimiser="adam")
MEMBERS = [np.arange(0, 15), np.arange(9, 30), np.arange(20, 40)[::-1].copy()]  # last batches of 7, 5 and 4 of 8


def records(shape: tuple[int, ...]) -> Records:
    chance = np.random.default_rng(2)
    x = numbers(40, shape, VOCABULARY + 1 if len(shape) == 1 else None, chance)
    return Records(x, chance.integers(0, CLASSES, 40))


def adapted(kind: str, how: Tune, folder: Path, same: bool = True) -> Make:
    """Networks with a base from the folder, or each with another one, and adapters of their own."""
    name = f"{TRANSFORMERS}{write(kind, folder) if kind in IMAGES or not same else save(kind, folder, CLASSES)}"

    def make(model: int) -> nn.Module:
        return tuned(create(name, shape_of(kind), CLASSES, 0 if same else model), how, 2, model)

    return make


def train(make: Make, shape: tuple[int, ...], run: Run | None = None, chunk: int = 3, **more: Any) -> Ensemble:
    data = Resident(records(shape), CPU)
    room = chunk * bytes_per_model(make(0), data, 8, ADAM)
    given = {"batch_size": 8, "chunk_bytes": room, **more}
    return train_together(make, 3, data, MEMBERS, ADAM, SEED, run or Run(), **given)


@pytest.mark.parametrize(("kind", "how"), [("bert", "lora"), ("gpt2", "lora"), ("vit", "bias"), ("deberta", "bias")])
def test_every_model_is_what_plain_pytorch_makes_of_it_alone(kind: str, how: Tune, tmp_path: Path) -> None:
    make, shape = adapted(kind, how, tmp_path), shape_of(kind)
    assert isinstance(choose([make(0), make(2)], shape, CPU), OneBatch)
    found = train(make, shape)
    for model, own in enumerate(MEMBERS):
        wanted = alone(make, model, records(shape), own, ADAM, 8)
        assert_same(found.model(model), wanted, 2e-5)
        before = dict(make(model).named_parameters())
        changed = {name for name, p in wanted.named_parameters() if not p.equal(before[name])}
        assert changed
        assert all(before[name].requires_grad for name in changed)


def test_what_is_shared_is_there_once(tmp_path: Path) -> None:
    make = adapted("bert", "lora", tmp_path)
    net = make(0)
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    held = stack(make(model) for model in range(16))
    assert shared(net, tensors(held)) == frozen
    base = sum(p.numel() for name, p in net.named_parameters() if name in frozen)
    own = sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert sum(p.numel() for p in held.parameters()) == base + 16 * own
    found = train(make, shape_of("bert"))
    assert shared(net, found.values) == frozen
    assert len(found) == 3
    engine = choose([net, make(1)], shape_of("bert"), CPU)
    assert all(p.is_meta for p in engine.net.parameters())


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_step_takes_as_many_operators_for_many_as_for_two(kind: str, tmp_path: Path) -> None:
    make, shape = adapted(kind, "lora", tmp_path), shape_of(kind)
    engine = choose([make(0), make(1)], shape, CPU)
    found = []
    for models in (2, 7):
        held = stack(make(model) for model in range(models))
        x = torch.from_numpy(records(shape).x[:4]).expand(models, 4, *shape)
        with Counting() as count:
            engine(held, x, torch.zeros((models, 4), dtype=torch.int64), [4] * models, list(range(models)))
        found.append(count.seen)
    assert found[0] == found[1]


def test_other_bases_are_computed_each_by_itself(tmp_path: Path) -> None:
    make, shape = adapted("llama", "lora", tmp_path, same=False), shape_of("llama")
    found = train(make, shape)
    assert found.values["model.model.embed_tokens.weight"].dim() == 3  # only what starts as ones or zeros is shared
    for model, own in enumerate(MEMBERS):
        assert_same(found.model(model), alone(make, model, records(shape), own, ADAM, 8), 2e-5)


def test_one_base_among_others_is_noticed(tmp_path: Path) -> None:
    """The first and the last, on which the engine is tried, have the same."""
    make, shape = adapted("bert", "lora", tmp_path), shape_of("bert")

    def with_another(model: int) -> nn.Module:
        net = make(model)
        if model == 1:
            with torch.no_grad():
                next(p for p in net.parameters() if not p.requires_grad).add_(0.5)
        return net

    for chunk in (3, 1):
        found = train(with_another, shape, chunk=chunk)
        assert len(shared(make(0), found.values)) == len([p for p in make(0).parameters() if not p.requires_grad]) - 1
        for model, own in enumerate(MEMBERS):
            wanted = alone(with_another, model, records(shape), own, ADAM, 8)
            assert_same(found.model(model), wanted, 2e-5)


def test_chunks_files_and_resumed_runs_give_the_same(tmp_path: Path) -> None:
    make, shape = adapted("bert", "lora", tmp_path / "net"), shape_of("bert")
    whole, parts = train(make, shape, chunk=2), train(make, shape, chunk=1)
    for model in range(3):
        assert_same(parts.model(model), whole.model(model), 2e-5)
    with pytest.raises(Interrupted):
        train(make, shape, Run(progress=press(9), checkpoint=tmp_path / "c"), chunk=2)
    resumed = train(make, shape, Run(checkpoint=tmp_path / "c", resume=True), chunk=2)
    assert all(value.equal(resumed.values[name]) for name, value in whole.values.items())
    whole.save(tmp_path / "models.safetensors")
    again = Ensemble.load(tmp_path / "models.safetensors", make(0))
    data = Resident(records(shape), CPU)
    assert again.logits(data).equal(whole.logits(data))
    for model in range(3):
        with torch.no_grad():
            torch.testing.assert_close(again.logits(data)[model], again.model(model)(data.x))
    apart = Slices.of(whole).ensemble()
    assert_same(apart.model(1), whole.model(1), 0.0)


class Small(nn.Module):
    """A frozen layer below layers of several kinds; one parameter of a pair may be frozen, too."""

    def __init__(self, counts: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.base, self.drop = nn.Conv2d(1, 4, 3), nn.Dropout(drop)
        self.scale, self.conv = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)
        self.shift, self.matrix, self.head = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES, bias=False)
        for frozen in (self.base.weight, self.base.bias, self.shift.weight, self.matrix.bias, self.conv.bias):
            frozen.requires_grad_(False)
        self.counts = counts
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts and self.training:
            self.seen = self.seen + x.mean().detach()
        h = self.conv(self.drop(self.scale(self.base(x)).relu())).relu().flatten(1)
        out: Tensor = self.head(self.matrix(self.shift(h).tanh()).tanh())
        return out


def small(**given: Any) -> Make:
    torch.manual_seed(0)
    base = Small(**given)

    def make(model: int) -> nn.Module:
        net = Small(**given)
        net.load_state_dict(base.state_dict())
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(model)
            for p in net.parameters():
                if p.requires_grad:
                    p.add_(0.1 * torch.randn_like(p))
        return net

    return make


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_layers_of_all_kinds_and_dropout(drop: float) -> None:
    make, shape = small(drop=drop), (1, 8, 8)
    assert isinstance(choose([make(0), make(1)], shape, CPU), OneBatch)
    found = train(make, shape)
    for model, own in enumerate(MEMBERS):
        assert_same(found.model(model), alone(make, model, records(shape), own, ADAM, 8), 2e-5)


def test_what_changes_with_every_call_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = small(counts=True), (1, 8, 8)
    monkeypatch.setattr("airlock.training.ensembles.stacked._loops_faster", lambda net, device: False)
    assert type(choose([make(0), make(1)], shape, CPU)) is Vmapped
    found = train(make, shape)
    for model, own in enumerate(MEMBERS):
        assert_same(found.model(model), alone(make, model, records(shape), own, ADAM, 8), 2e-5)


class Sideways(nn.Module):
    """Its trained layer sees positions first, and records second."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.own, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.own(self.base(x.flatten(1, 2)).transpose(0, 1)).tanh()
        out: Tensor = self.head(h.mean(0))
        return out


def test_records_in_another_place_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    base = Sideways().base.state_dict()

    def make(model: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(model)
            net = Sideways()
        net.base.load_state_dict(base)
        return net

    with caplog.at_level(logging.INFO):
        assert type(choose([make(0), make(1)], (1, 8, 8), CPU)) is Vmapped
    assert "differ under one batch" in caplog.text


def test_a_divided_network_keeps_the_names_of_its_parameters() -> None:
    net = Small()
    names, kinds = list(net.state_dict()), [type(layer) for layer in net.modules()]
    divide(net)
    assert list(net.state_dict()) == names
    assert all(isinstance(layer, kind) for layer, kind in zip(net.modules(), kinds, strict=True))
    assert type(net.base) is nn.Conv2d


def test_networks_with_nothing_frozen_are_as_before() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    assert type(choose([net, net], (1, 8, 8), CPU)) is Vmapped
    assert not shared(net, tensors(stack([net, net])))
    assert not isinstance(choose([net, net], (1, 8, 8), CPU), Looped)

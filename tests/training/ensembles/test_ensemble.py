"""Many models as one: each is what it would be alone, whoever is trained beside it."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from airlock.data import Records
from airlock.errors import Interrupted, NetError, TrainingError
from airlock.nets import create
from airlock.training import Ensemble, PlainGradients, Recipe, Resident, Run, Shuffled, fit, train_together
from airlock.training.augment import named
from airlock.training.ensembles.chunks import Together
from airlock.training.ensembles.ensemble import Make, bytes_per_model, makes, model_seed
from airlock.training.ensembles.stacked import Looped, Vmapped, choose, stack
from airlock.training.loop import Augment, mix, scheduled_rate

CPU = torch.device("cpu")
SEED = 5
DIGITS = load_digits()


def digits(count: int = 120, shape: tuple[int, ...] = (1, 8, 8)) -> Records:
    """Real digits, laid into the middle of images of this shape."""
    channels, height, width = shape
    x = np.zeros((count, *shape), np.float32)
    top, left = (height - 8) // 2, (width - 8) // 2
    x[:, :, top : top + 8, left : left + 8] = DIGITS.images[:count, None].repeat(channels, 1) / 16
    return Records(x, DIGITS.target[:count].astype(np.int64))


class Normed(nn.Module):
    """BatchNorm mixes records; one more buffer is written anew on every call, one parameter is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.middle, self.head = nn.Linear(144, 144), nn.Linear(144, 10)
        self.again = nn.Linear(144, 144)
        self.again.weight = self.middle.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen * 0.9 + x.mean().detach()
        h = self.norm(self.conv(x)).relu().flatten(1)
        out: Tensor = self.head(torch.tanh(self.again(torch.tanh(self.middle(h)))))
        return out


class Choosy(nn.Module):
    """Looks at a value to decide, which vmap does not take; draws dropout by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x.flatten(1))
        h = torch.tanh(h) if float(h.detach().mean()) > 0 else torch.relu(h)
        out: Tensor = self.two(F.dropout(h, 0.2, self.training))
        return out


def built(kind: type[nn.Module]) -> Make:
    def make(model: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(model)
            return kind()

    return make


def with_dropout(model: int) -> nn.Module:
    """One of its dropouts is called twice."""
    flatten, one, tanh, two = create("mlp", (1, 8, 8), 10, model).children()
    drop = nn.Dropout(0.3)
    return nn.Sequential(nn.Dropout2d(0.1), flatten, drop, one, tanh, drop, two)


def twice(model: int) -> nn.Module:
    """One of its layers is called twice, and has two names."""
    flatten, _, tanh, last = create("mlp", (1, 8, 8), 10, model).children()
    torch.manual_seed(model)
    layer = nn.Linear(64, 64)
    return nn.Sequential(flatten, layer, tanh, layer, nn.Linear(64, last.out_features))  # type: ignore[arg-type]


def still(make: Make) -> Make:
    """Without dropout."""

    def changed(model: int) -> nn.Module:
        net = make(model)
        for layer in net.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return net

    return changed


def alone(
    make: Make, model: int, records: Records, own: Any, recipe: Recipe, batch: int, augment: Augment | None = None
) -> nn.Module:
    """One model in plain PyTorch: its own batches, seeds and torch.optim."""
    net, seed = make(model).train(), model_seed(SEED, model)
    adam = recipe.optimiser == "adam"
    kind: Any = torch.optim.Adam if adam else torch.optim.SGD
    more = {} if adam else {"momentum": recipe.momentum}
    optimiser = kind(net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **more)
    batches, steps = -(-len(own) // batch), range(recipe.steps)
    with torch.random.fork_rng(devices=[]):
        for step in steps:
            order = np.random.default_rng([seed, step // batches]).permutation(len(own))
            places = own[order[step % batches * batch :][:batch]]
            x, y = torch.from_numpy(records.x[places]), torch.from_numpy(records.y[places])
            torch.manual_seed(mix(seed, step))
            if augment:
                x = augment(x, torch.Generator().manual_seed(mix(seed, step) ^ 1))
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            for group in optimiser.param_groups:
                group["lr"] = scheduled_rate(recipe.schedule, recipe.learning_rate, recipe.warmup, step, recipe.steps)
            optimiser.step()
    return net


def assert_same(a: nn.Module, b: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, p), (_, q) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


SGD = Recipe(steps=8, learning_rate=0.05, weight_decay=0.01, schedule="cosine", warmup=0.2)
ADAM = Recipe(steps=6, learning_rate=1e-3, optimiser="adam", weight_decay=0.01)
FEW = Recipe(steps=2, learning_rate=0.02)
CASES: dict[str, tuple[Make, tuple[int, ...], Recipe, int]] = {
    "mlp": (makes("mlp", (1, 8, 8), 10, SEED), (1, 8, 8), SGD, 16),
    "mlp, adam": (makes("mlp", (1, 8, 8), 10, SEED), (1, 8, 8), ADAM, 16),
    "mlp with dropout": (with_dropout, (1, 8, 8), SGD, 16),
    "digits-net": (makes("digits-net", (1, 8, 8), 10, SEED), (1, 8, 8), SGD, 16),
    "mnist-net": (makes("mnist-net", (1, 28, 28), 10, SEED), (1, 28, 28), FEW, 20),
    "mnist-net without dropout": (still(makes("mnist-net", (1, 28, 28), 10, SEED)), (1, 28, 28), FEW, 20),
    "cifar-net": (makes("cifar-net", (3, 32, 32), 10, SEED), (3, 32, 32), FEW, 20),
    "BatchNorm": (built(Normed), (1, 8, 8), SGD, 16),
    "what vmap refuses": (built(Choosy), (1, 8, 8), SGD, 16),
    "one layer under two names": (twice, (1, 8, 8), SGD, 16),
}
MEMBERS = [np.arange(0, 35), np.arange(20, 71), np.arange(70, 102)[::-1].copy()]  # last batches of 3, 3 and 16 of 16


LOOPED_ON_A_CPU = ["mnist-net", "mnist-net without dropout", "cifar-net"]


@pytest.fixture
def stacks_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr("airlock.training.ensembles.stacked._loops_faster", lambda net, device: False)


class ReadsItsRate(nn.Module):
    """Attention of transformers hands the rate of its dropout on to a kernel, besides calling it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.inner, self.drop, self.outer = nn.Linear(64, 16), nn.Dropout(rate), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.inner(x.flatten(1))[:, None, None]
        mixed = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=self.drop.p if self.training else 0.0)
        found: torch.Tensor = self.outer(self.drop(mixed).flatten(1))
        return found


@pytest.mark.parametrize(("rate", "engine"), [(0.0, Vmapped), (0.5, Looped)])
def test_a_network_that_reads_the_rate_of_its_dropout_is_stacked_where_that_is_0(rate: float, engine: type) -> None:
    """Otherwise the kernel draws masks of its own, which no tape holds."""
    assert isinstance(choose([ReadsItsRate(rate), ReadsItsRate(rate)], (1, 8, 8), CPU), engine)


@pytest.mark.parametrize("name", LOOPED_ON_A_CPU)
def test_convolutions_are_looped_over_on_a_cpu(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, shape, recipe, batch = CASES[name]
    records = digits(shape=shape)
    with caplog.at_level(logging.INFO):
        found = train_together(make, 2, Resident(records, CPU), MEMBERS[:2], recipe, SEED, Run(), batch_size=batch)
    assert [(record.levelname, "convolutions" in record.message) for record in caplog.records] == [("INFO", True)]
    for model, own in enumerate(MEMBERS[:2]):
        assert_same(found.model(model), alone(make, model, records, own, recipe, batch))
    assert isinstance(choose([make(0), make(1)], shape, CPU), Looped)


@pytest.mark.parametrize("name", ["mlp", "digits-net", "BatchNorm"])
def test_without_convolutions_over_several_channels_they_are_stacked_on_a_cpu_too(name: str) -> None:
    make, shape, _, _ = CASES[name]
    assert isinstance(choose([make(0), make(1)], shape, CPU), Vmapped)


@pytest.mark.usefixtures("stacks_convolutions")
@pytest.mark.parametrize("name", CASES)
def test_every_model_is_what_plain_pytorch_makes_of_it_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, shape, recipe, batch = CASES[name]
    records = digits(shape=shape)
    found = train_together(make, 3, Resident(records, CPU), MEMBERS, recipe, SEED, Run(), batch_size=batch)
    for model, own in enumerate(MEMBERS):
        wanted = alone(make, model, records, own, recipe, batch)
        assert_same(found.model(model), wanted)
        assert ("one after another" in caplog.text) == (name == "what vmap refuses")
        assert any(not torch.equal(a, b) for a, b in zip(wanted.parameters(), make(model).parameters(), strict=True))
    if name == "BatchNorm":
        assert found.values["seen"].unique().numel() == 3


def test_it_is_what_fit_makes_of_one_model() -> None:
    records, recipe = digits(), Recipe(steps=9, learning_rate=0.05, ema=0.9)
    shift = named("shift")
    found = train_together(
        with_dropout, 2, Resident(records, CPU), MEMBERS[:2], recipe, SEED, Run(), shift, batch_size=16
    )
    for model, own in enumerate(MEMBERS[:2]):
        net, seed = with_dropout(model), model_seed(SEED, model)
        part = Resident(Records(records.x[own], records.y[own]), CPU)
        fit(net, part, Shuffled(16, seed), PlainGradients(), recipe, seed, Run(), shift)
        assert_same(found.model(model), net)


@pytest.mark.parametrize("name", ["mlp with dropout", "BatchNorm", "what vmap refuses"])
def test_neither_the_others_nor_the_chunk_change_a_model(name: str) -> None:
    make, shape, recipe, batch = CASES[name]
    data, augment = Resident(digits(shape=shape), CPU), named("shift")
    per_model = bytes_per_model(make(0), data, batch, recipe)

    def train(count: int, chunk: int) -> Ensemble:
        members = [*MEMBERS, np.arange(7), np.arange(50, 99)][:count]
        return train_together(
            make, count, data, members, recipe, SEED, Run(), augment, batch_size=batch, chunk_bytes=chunk * per_model
        )

    whole = train(5, 5)
    for other in (train(5, 2), train(5, 1), train(3, 3)):
        for model in range(len(other)):
            assert_same(other.model(model), whole.model(model))


def test_a_model_depends_on_its_own_records_and_seed() -> None:
    data = Resident(digits(), CPU)
    mask = np.zeros((3, 120), bool)
    mask[:, :40] = True
    mask[2, 40] = True
    same = makes("mlp", (1, 8, 8), 10, SEED, shared=True)
    found = train_together(same, 3, data, mask, SGD, SEED, Run(), batch_size=16)
    again = train_together(same, 3, data, mask[[0, 1, 0]], SGD, SEED, Run(), batch_size=16)
    weights, others = found.values["1.weight"], again.values["1.weight"]
    assert torch.allclose(weights[:2], others[:2], atol=1e-6)
    assert not torch.allclose(weights[2], others[2], atol=1e-4)  # one record more
    assert not torch.allclose(weights[0], weights[1], atol=1e-4)  # another order
    assert torch.equal(same(0)[1].weight, same(1)[1].weight)  # type: ignore[index]


def test_batches_are_those_of_shuffled() -> None:
    own = [np.array([3, 5, 7, 11, 13]), np.arange(20, 30)]
    batches = Together(own, 4, [8, 9])
    for step in [0, 1, 2, 3, 4, 9, 1]:  # also back again
        drawn = batches.draw(step, 30).reshape(2, -1)
        for model, size in enumerate(batches.sizes(step)):
            wanted = own[model][Shuffled(4, [8, 9][model]).draw(step, len(own[model]))]
            assert drawn[model, :size].tolist() == wanted.tolist()
            assert set(drawn[model, size:]) <= {wanted[0]}


def press(after: int) -> Any:
    def report(label: str, done: int, total: int) -> None:
        if done == after:
            os.kill(os.getpid(), signal.SIGINT)

    return report


def resumable(
    run: Run, recipe: Recipe = SGD, make: Make = CASES["mlp with dropout"][0], members: Any = None
) -> Ensemble:
    data = Resident(digits(), CPU)
    two = 2 * bytes_per_model(make(0), data, 16, recipe)  # chunks of models 0 and 1, and 2
    return train_together(make, 3, data, members or MEMBERS, recipe, SEED, run, batch_size=16, chunk_bytes=two)


@pytest.mark.parametrize("after", [6, 16, 19], ids=["within a chunk", "at its last step", "within the second"])
@pytest.mark.parametrize("kind", ["sgd", "adam and averaging", "BatchNorm"])
def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path, after: int, kind: str) -> None:
    recipe = SGD if kind != "adam and averaging" else Recipe(steps=8, learning_rate=0.01, optimiser="adam", ema=0.9)
    make = built(Normed) if kind == "BatchNorm" else with_dropout
    whole = resumable(Run(), recipe, make)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="Run the same command with --resume"):
        resumable(Run(progress=press(after), checkpoint=tmp_path / "c"), recipe, make)
    assert signal.getsignal(signal.SIGINT) is before
    kept = {path.name: (path.stat().st_mode & 0o777, path.is_dir()) for path in (tmp_path / "c").rglob("*")}
    assert ("models-0-2.safetensors" in kept) == (after >= 16)
    assert set(kept.values()) <= {(0o600, False), (0o700, True)}
    seen: list[int] = []
    run = Run(progress=lambda _, done, total: seen.append(done), checkpoint=tmp_path / "c", resume=True)
    resumed = resumable(run, recipe, make)
    assert seen[0] == (after + 1 if after >= 16 else after + 2)
    assert seen[-1] == 24
    for name, value in whole.values.items():
        assert torch.equal(value, resumed.values[name]), name
    assert not (tmp_path / "c").exists()


def test_ctrl_c_between_chunks_is_heard_in_the_next(tmp_path: Path) -> None:
    once = iter([2])

    def make(model: int) -> nn.Module:
        if model == 2 and next(once, 0):
            os.kill(os.getpid(), signal.SIGINT)
        return with_dropout(model)

    seen: list[int] = []
    run = Run(progress=lambda _, done, total: seen.append(done), checkpoint=tmp_path)
    with pytest.raises(Interrupted, match="after 1 of 8 steps"):
        resumable(run, make=make)
    assert seen[-1] == 17


def test_checkpoints_of_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        resumable(Run(progress=press(19), checkpoint=tmp_path))
    again = Run(checkpoint=tmp_path, resume=True)
    with pytest.raises(TrainingError, match="this very run"):
        resumable(again, SGD.model_copy(update={"learning_rate": 0.04}))
    with pytest.raises(TrainingError, match="this very run"):
        resumable(again, members=[MEMBERS[0], MEMBERS[0], MEMBERS[2]])
    with pytest.raises(TrainingError, match="this very run"):
        resumable(again, make=lambda model: with_dropout(model + 1))
    seen: list[int] = []
    resumable(Run(progress=lambda _, done, total: seen.append(done), checkpoint=tmp_path))
    assert seen[0] == 2  # without resume nothing is taken up


def test_what_an_ensemble_tells(tmp_path: Path) -> None:
    records, recipe = digits(300), Recipe(steps=60, learning_rate=0.1)
    data = Resident(records, CPU)
    mask = np.random.default_rng(0).random((4, 300)) < 0.5
    make = makes("digits-net", (1, 8, 8), 10, SEED)
    found = train_together(make, 4, data, mask, recipe, SEED, Run(), batch_size=32)
    logits = found.logits(data)
    assert logits.shape == (4, 300, 10)
    for model in range(4):
        with torch.no_grad():
            wanted = found.model(model)(data.x)
        torch.testing.assert_close(logits[model], wanted, rtol=1e-4, atol=1e-4)
    losses = found.losses(data)
    wanted = F.cross_entropy(logits.flatten(0, 1).double(), data.y.repeat(4), reduction="none").view(4, 300)
    np.testing.assert_allclose(losses, wanted.numpy(), rtol=1e-4, atol=1e-6)
    correct = found.correct(data)
    assert (correct == (logits.argmax(2) == data.y).numpy()).all()
    assert correct[mask].mean() > 0.95
    assert losses[mask].mean() < losses[~mask].mean()  # what shadow models are for
    found.save(tmp_path / "models.safetensors")
    assert (tmp_path / "models.safetensors").stat().st_mode & 0o777 == 0o600
    again = Ensemble.load(tmp_path / "models.safetensors", make(0))
    assert len(again) == 4
    assert torch.equal(again.logits(data), logits)
    with pytest.raises(NetError, match="parameters of this network"):
        Ensemble.load(tmp_path / "models.safetensors", create("mlp", (1, 8, 8), 10, 0))


def test_logits_of_a_net_that_vmap_refuses() -> None:
    data = Resident(digits(), CPU)
    found = Ensemble(
        Choosy(), {name: p.detach()[None].repeat_interleave(2, 0) for name, p in Choosy().named_parameters()}
    )
    with torch.no_grad():
        torch.testing.assert_close(found.logits(data)[1], found.model(1)(data.x))


def test_what_cannot_be_trained_is_refused() -> None:
    data, mlp = Resident(digits(), CPU), makes("mlp", (1, 8, 8), 10, SEED)
    with pytest.raises(TrainingError, match="3 models × 120 records"):
        train_together(mlp, 3, data, np.ones((2, 120), bool), SGD, SEED, Run())
    with pytest.raises(TrainingError, match="for model 1"):
        train_together(mlp, 2, data, [np.arange(3), np.arange(0)], SGD, SEED, Run())
    with pytest.raises(TrainingError, match="for model 0"):
        train_together(mlp, 1, data, [np.array([120])], SGD, SEED, Run())
    with pytest.raises(TrainingError, match="of 2 models"):
        train_together(mlp, 2, data, [np.arange(3)], SGD, SEED, Run())

    def mixed(model: int) -> nn.Module:
        return create(["mlp", "linear"][model], (1, 8, 8), 10, 0)

    with pytest.raises(NetError, match="same parameters"):
        train_together(mixed, 2, data, [np.arange(3)] * 2, SGD, SEED, Run())


def test_short_batches_are_filled_up_only_where_records_do_not_mix() -> None:
    filled, apart = (choose([make(0), make(1)], (1, 8, 8), CPU) for make in (with_dropout, built(Normed)))
    assert isinstance(filled, Vmapped)
    assert filled.fills
    assert isinstance(apart, Vmapped)
    assert not apart.fills


def test_a_wrong_gradient_under_vmap_is_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Vmapped.__call__

    def wrong(self: Vmapped, held: nn.Module, *rest: Any) -> None:
        whole(self, held, *rest)
        for p in held.parameters():
            p.grad = p.grad.flip(0) if p.grad is not None else None

    monkeypatch.setattr(Vmapped, "__call__", wrong)
    with caplog.at_level(logging.WARNING):
        assert not isinstance(choose([with_dropout(0), with_dropout(1)], (1, 8, 8), CPU), Vmapped)
    assert "differ under vmap" in caplog.text


def test_tied_parameters_stay_tied() -> None:
    held = stack([Normed(), Normed()])
    assert held.again.weight is held.middle.weight  # type: ignore[union-attr]
    assert held.middle.weight.shape == (2, 144, 144)  # type: ignore[union-attr]


def test_the_global_generator_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train_together(with_dropout, 2, Resident(digits(), CPU), MEMBERS[:2], FEW, SEED, Run(), batch_size=16)
    assert torch.equal(before, torch.get_rng_state())


def test_the_page_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/ensemble.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    for block in blocks:
        if "train_together(...," not in block:
            exec(block, names)
    assert capsys.readouterr().out == "(8, 200)\n"

"""The loop: it learns, it resumes to the same bits, and Ctrl-C leaves a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from airlock.data import Records
from airlock.errors import Interrupted, TrainingError
from airlock.mechanisms import Stream, gaussian
from airlock.nets import create
from airlock.training import (
    PlainGradients,
    Poisson,
    PrivateGradients,
    Recipe,
    Resident,
    Run,
    Shuffled,
    count_correct,
    fit,
)
from airlock.training.augment import named
from airlock.training.loop import Progress, precision, scheduled_rate

CPU = torch.device("cpu")


def blobs(count: int = 300) -> Records:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    return Records((rng.normal(size=(count, 5)) + 3 * np.eye(5)[y]).astype(np.float32), y)


def parts(private: bool, seed: int = 4) -> tuple[Any, Any]:
    if not private:
        return Shuffled(32, seed), PlainGradients()
    stream = Stream.from_seed(seed)
    return Poisson(0.2, stream.child("lots")), PrivateGradients(1.0, 1.0, 60.0, stream.child("noise"))


def train(recipe: Recipe, run: Run, private: bool, seed: int = 4) -> nn.Module:
    net = create("mlp", (5,), 3, 0)
    net.insert(2, nn.Dropout(0.1))  # type: ignore[operator]
    sampler, gradients = parts(private, seed)
    fit(net, Resident(blobs(), CPU), sampler, gradients, recipe, seed, run)
    return net


RECIPES = {
    "sgd": Recipe(steps=20, learning_rate=0.1),
    "sgd without momentum, cosine": Recipe(steps=20, learning_rate=0.1, momentum=0, schedule="cosine", warmup=0.2),
    "adam without the noise": Recipe(steps=20, learning_rate=0.01, optimiser="adam-bc"),
    "adam and averaging": Recipe(steps=20, learning_rate=0.01, optimiser="adam", ema=0.9, schedule="linear"),
}


@pytest.mark.parametrize("private", [False, True])
def test_it_learns(private: bool) -> None:
    net = train(Recipe(steps=60, learning_rate=0.2), Run(), private)
    assert count_correct(net, blobs()) > 270


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path, name: str, private: bool) -> None:
    recipe = RECIPES[name]
    whole = train(recipe, Run(), private)

    def press_ctrl_c(label: str, done: int, total: int) -> None:
        if done == 9:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="after 9 of 20 steps"):
        train(recipe, Run(progress=press_ctrl_c, checkpoint=tmp_path), private)
    file = tmp_path / "checkpoint.safetensors"
    assert file.stat().st_mode & 0o777 == 0o600
    steps: list[int] = []
    resumed = train(
        recipe, Run(progress=lambda _, done, total: steps.append(done), checkpoint=tmp_path, resume=True), private
    )
    assert steps == list(range(10, 21))
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not file.exists()


def _press_after(steps: int) -> Progress:
    def press(label: str, done: int, total: int) -> None:
        if done == steps:
            os.kill(os.getpid(), signal.SIGINT)

    return press


def interrupted(tmp_path: Path, private: bool = True) -> None:
    with pytest.raises(Interrupted):
        train(RECIPES["sgd"], Run(progress=_press_after(2), checkpoint=tmp_path), private)


def test_a_resumed_run_knows_where_the_noise_before_it_was_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def private(run: Run) -> Stream:
        stream, net = Stream.from_seed(1), create("mlp", (5,), 3, 0)
        gradients = PrivateGradients(1.0, 1.0, 60.0, stream.child("noise"))
        lots = Poisson(0.2, stream.child("lots"))
        with contextlib.suppress(Interrupted):
            fit(net, Resident(blobs(), CPU), lots, gradients, RECIPES["sgd"], 0, run)
        return stream

    with monkeypatch.context() as faked:
        faked.setattr(gaussian, "gpu_takes", lambda value: True)
        faked.setattr(gaussian, "gpu_add_noise", lambda value, *numbers: value)
        first = private(Run(progress=_press_after(2), checkpoint=tmp_path))
    assert first.drawn_on == ("gpu",)
    assert private(Run(checkpoint=tmp_path, resume=True)).drawn_on == ("cpu", "gpu")
    assert private(Run()).drawn_on == ("cpu",)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path)
    run = Run(checkpoint=tmp_path, resume=True)
    with pytest.raises(TrainingError, match="this very run"):
        train(RECIPES["sgd"], run, private=True, seed=5)
    with pytest.raises(TrainingError, match="this very run"):
        train(RECIPES["sgd"].model_copy(update={"steps": 19}), run, private=True)
    with pytest.raises(TrainingError, match="this very run"):
        train(RECIPES["sgd"], run, private=False)


def test_secure_and_seeded_noise_are_not_mixed_in_one_run(tmp_path: Path) -> None:
    interrupted(tmp_path)
    stream = Stream.from_system()
    net = create("mlp", (5,), 3, 0)
    net.insert(2, nn.Dropout(0.1))  # type: ignore[operator]
    gradients = PrivateGradients(1.0, 1.0, 60.0, stream.child("noise"))
    with pytest.raises(TrainingError, match="this very run"):
        fit(
            net,
            Resident(blobs(), CPU),
            Poisson(0.2, stream.child("lots")),
            gradients,
            RECIPES["sgd"],
            4,
            Run(checkpoint=tmp_path, resume=True),
        )


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(TrainingError, match="damaged"):
        train(RECIPES["sgd"], Run(checkpoint=tmp_path, resume=True), True)


def test_without_resume_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    interrupted(tmp_path)
    steps: list[int] = []
    train(RECIPES["sgd"], Run(progress=lambda _, done, total: steps.append(done), checkpoint=tmp_path), True)
    assert steps[0] == 1


def test_checkpoints_are_written_by_the_clock(tmp_path: Path) -> None:
    seen: list[bool] = []
    run = Run(
        progress=lambda *_: seen.append((tmp_path / "checkpoint.safetensors").exists()),
        checkpoint=tmp_path,
        checkpoint_seconds=0.0,
    )
    train(RECIPES["sgd"], run, True)
    assert seen == [False] + [True] * 19


def test_the_global_generator_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train(RECIPES["sgd"], Run(), False)
    assert torch.equal(before, torch.get_rng_state())


def test_ctrl_c_works_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    train(RECIPES["sgd"], Run(), False)
    assert signal.getsignal(signal.SIGINT) is before


def test_empty_lots_are_steps_too() -> None:
    net, stream = create("mlp", (5,), 3, 0), Stream.from_seed(0)
    before = [p.clone() for p in net.parameters()]
    steps = fit(
        net,
        Resident(blobs(), CPU),
        Poisson(1e-9, stream.child("lots")),
        PrivateGradients(1.0, 1.0, 10.0, stream.child("noise")),
        Recipe(steps=3, learning_rate=0.1),
        0,
        Run(),
        named("none"),
    )
    assert steps == 3
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_schedules() -> None:
    assert [scheduled_rate("constant", 2.0, 0.0, s, 4) for s in range(4)] == [2.0] * 4
    assert scheduled_rate("linear", 2.0, 0.0, 2, 4) == pytest.approx(1.0)
    assert scheduled_rate("cosine", 2.0, 0.0, 2, 4) == pytest.approx(1.0)
    assert [scheduled_rate("constant", 3.0, 0.5, s, 4) for s in range(4)] == pytest.approx([1.0, 2.0, 3.0, 3.0])


@pytest.mark.parametrize("name", ["shift", "flip", "shift+flip"])
def test_augmentation_changes_each_record_by_itself(name: Any) -> None:
    augment = named(name)
    assert augment is not None
    x = torch.rand(6, 2, 8, 8)
    changed = augment(x, torch.Generator().manual_seed(0))
    assert changed.shape == x.shape
    assert not torch.equal(changed, x)
    other = x.clone()
    other[1:] = 0
    assert torch.equal(augment(other, torch.Generator().manual_seed(0))[0], changed[0])


def test_shift_moves_by_whole_pixels() -> None:
    augment = named("shift")
    assert augment is not None
    x = torch.zeros(50, 1, 8, 8)
    x[:, 0, 4, 4] = 1
    moved = augment(x, torch.Generator().manual_seed(1))
    assert torch.equal(moved.sum((1, 2, 3)), torch.ones(50))
    assert 1 < len(moved.sum(0)[0].nonzero()) <= 9


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_bfloat16_sees_the_weights_move() -> None:
    """Autocast may keep its copies of the weights until it ends, which is after the last step."""
    before = torch.is_autocast_cache_enabled()
    with precision("bf16", Run(device=torch.device("cuda"))):
        assert not torch.is_autocast_cache_enabled()
    assert torch.is_autocast_cache_enabled() == before

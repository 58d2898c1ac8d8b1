"""A collection of parameters: its models, its stages, its slices, resuming, and what is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock.data import Records
from airlock.errors import Interrupted, NetError, TrainingError
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.ensembles import checkpoint_store
from airlock.training.ensembles.checkpoint_store import Collection, Slices, collect
from airlock.training.ensembles.ensemble import Make, makes

SEED, MODELS = 3, 5
RECIPE = Recipe(steps=6, learning_rate=0.1)
RNG = np.random.default_rng(0)
DATA = Resident(Records(RNG.random((50, 6), np.float32), RNG.integers(0, 3, 50)), torch.device("cpu"))
MAKE = makes("mlp", (6,), 3, SEED, shared=True)


def collected(
    folder: Path, run: Run | None = None, recipe: Recipe = RECIPE, stages: Sequence[int] = (2, 4), make: Make = MAKE
) -> Collection:
    chunk = 2 * collection_bytes()
    return collect(
        make, MODELS, DATA, recipe, SEED, run or Run(), folder, stages, batch_size=16, chunk_bytes=chunk
    )  # fmt: skip


def collection_bytes() -> int:
    from airlock.training.ensembles.ensemble import bytes_per_model

    return bytes_per_model(MAKE(0), DATA, 16, RECIPE)


def together(steps: int, ema: float = 0.0) -> Ensemble:
    recipe = RECIPE.model_copy(update={"steps": steps, "ema": ema})
    everyone = [np.arange(50)] * MODELS
    return train_together(MAKE, MODELS, DATA, everyone, recipe, SEED, Run(), batch_size=16)


def whole(slices: Slices, columns: int = 1000) -> Tensor:
    return torch.cat([block for _, block in slices.blocks(columns)], 1)


@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_models_at_every_stage_are_those_of_a_training_that_ends_there(tmp_path: Path, ema: float) -> None:
    found = collected(tmp_path / "c", recipe=RECIPE.model_copy(update={"ema": ema}))
    assert found.stages == (2, 4, 6)
    for stage in found.stages:
        wanted = whole(Slices.of(together(stage, ema)))
        torch.testing.assert_close(whole(found.at(stage)), wanted, rtol=1e-4, atol=1e-6)
    assert not torch.equal(whole(found.at(2)), whole(found.at(4)))
    files = list((tmp_path / "c").rglob("*.safetensors"))
    assert len(files) >= 9  # several chunks at three stages
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_slices_come_in_the_order_of_the_parameters_whatever_the_block(tmp_path: Path) -> None:
    slices = collected(tmp_path / "c").at()
    rows = whole(slices)
    assert rows.shape == (MODELS, slices.parameters)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, whole(slices, 7))
    assert [start for start, _ in slices.blocks(100)] == list(range(0, slices.parameters, 100))
    net = slices.model(rows[3])
    for place, parameter in zip(_starts(net), net.parameters(), strict=True):
        assert torch.equal(parameter.flatten(), rows[3, place : place + parameter.numel()])
    torch.testing.assert_close(slices.average(), rows.mean(0))


def _starts(net: nn.Module) -> list[int]:
    sizes = [p.numel() for p in net.parameters()]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def test_models_differ_but_start_alike(tmp_path: Path) -> None:
    rows = whole(collected(tmp_path / "c", stages=(1,)).at(1))
    start = torch.cat([p.detach().flatten() for p in MAKE(0).parameters()])
    assert len(torch.unique(rows, dim=0)) == MODELS
    assert float((rows - start).abs().max()) < 0.2
    apart = collected(tmp_path / "d", make=makes("mlp", (6,), 3, SEED), stages=(1,)).at(1)
    assert float(whole(apart).std(0).mean()) > 5 * float(rows.std(0).mean())


def press(after: int) -> Callable[[str, int, int], None]:
    def progress(label: str, done: int, total: int) -> None:
        if done == after:
            os.kill(os.getpid(), signal.SIGINT)

    return progress


@pytest.mark.parametrize("after", [6, 18], ids=["within a chunk", "within the second"])
def test_an_interrupted_collection_is_resumed_to_the_same_bits(tmp_path: Path, after: int) -> None:
    wanted = collected(tmp_path / "w")
    run = Run(progress=press(after), checkpoint=tmp_path / "r")
    with pytest.raises(Interrupted):
        collected(tmp_path / "r/c", run)
    found = collected(tmp_path / "r/c", Run(checkpoint=tmp_path / "r", resume=True))
    for stage in wanted.stages:
        assert torch.equal(whole(found.at(stage)), whole(wanted.at(stage)))


def test_a_whole_collection_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = whole(collected(tmp_path / "c").at())

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(checkpoint_store, "train_chunks", refuse)
    assert torch.equal(whole(collected(tmp_path / "c", Run(resume=True)).at()), first)
    with pytest.raises(TrainingError, match="this very run"):
        collected(tmp_path / "c", Run(resume=True), RECIPE.model_copy(update={"learning_rate": 0.2})).at()
    with pytest.raises(AssertionError, match="trained again"):
        collected(tmp_path / "c")
    assert not (tmp_path / "c").exists()  # what lay there is not mixed with what comes


def test_a_collection_with_a_missing_chunk_is_refused(tmp_path: Path) -> None:
    found = collected(tmp_path / "c")
    next((tmp_path / "c/step-00000006").glob("models-0-*")).unlink()
    with pytest.raises(TrainingError, match="all 5 models after 6 steps"):
        found.at()
    with pytest.raises(TrainingError, match="after 3 steps"):
        found.at(3)


def test_too_few_models_and_stages_that_are_no_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="at least 2 models"):
        collect(MAKE, 1, DATA, RECIPE, SEED, Run(), tmp_path / "c")
    with pytest.raises(TrainingError, match="stages between 1 and 6"):
        collected(tmp_path / "c", stages=(7,))
    assert not (tmp_path / "c").exists()


def test_parameters_that_are_not_finite_are_refused() -> None:
    made = together(1)
    next(iter(made.values.values()))[2].fill_(float("nan"))
    with pytest.raises(TrainingError, match="finite parameters"):
        list(Slices.of(made).blocks())


def test_models_of_different_shapes_are_refused(tmp_path: Path) -> None:
    net = nn.Linear(6, 3)
    with pytest.raises(NetError, match="21 parameters"):
        Slices(net, [torch.zeros(2, 21), torch.zeros(2, 22)])
    with pytest.raises(NetError, match="same parameters"):
        collected(tmp_path / "c", make=lambda model: nn.Linear(6, 3 + model))
    assert not list(tmp_path.rglob("*.safetensors"))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("fixed", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x) * self.fixed)
        return out


def test_buffers_that_training_moves_are_refused_and_fixed_ones_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(NetError, match="batch normalisation"):
        collected(tmp_path / "c", make=lambda model: Normed()).at()
    net = Normed()
    same = {name: torch.stack([value] * 3) for name, value in net.named_buffers()}
    slices = Slices(net, [torch.zeros(3, sum(p.numel() for p in net.parameters()))], [same])
    kept = dict(slices.model(torch.zeros(slices.parameters)).named_buffers())
    assert float(kept["fixed"]) == 2.0

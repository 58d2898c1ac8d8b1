"""A collection of parameters: M models of one network on disk, at several stages of training, read slice by slice.

In: how to make a model and the records. Out: a `Collection`; at each of its stages M models are stacked in safetensors
shards, one per chunk of models that were trained together. `Slices` reads them by columns: a block is (M, some
parameters), so that neither the models nor the stages have to fit into memory. Parameters come in the order of
`named_parameters`, each flattened, in float32. Buffers are not parameters: they have to be the same in all models.

As in `ensemble`, there is no privacy mechanism here: a collection may reveal its records and stays in the vault.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from airlock.errors import NetError, TrainingError
from airlock.training import checkpoint
from airlock.training.devices import Resident
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import open_models
from airlock.training.ensembles.ensemble import Ensemble, Make, train_chunks
from airlock.training.ensembles.stacked import spread, tensors
from airlock.training.gradients import Named
from airlock.training.loop import Augment, Recipe, Run, Watch

COLUMNS = 16_384  # parameters per block, by default
_ROWS, _BUFFER = "parameters", "buffer/"
_FILE = re.compile(r"models-(\d+)-(\d+)\.safetensors")


def collect(
    make: Make,
    count: int,
    data: Resident,
    recipe: Recipe,
    seed: int,
    run: Run,
    folder: Path,
    stages: Sequence[int] = (),
    augment: Augment | None = None,
    *,
    batch_size: int = 128,
    chunk_bytes: int | None = None,
) -> Collection:
    """Train `count` models, each on all records in an order of its own, and save them after given numbers of steps.

    Model i is the same as from `train_together`; with `run.resume`, models already in the folder are not trained again.

    Args:
        make: Returns model i before training; with the same weights for all, or weights of its own.
        count: M, at least 2.
        data: All records.
        recipe: How to optimise.
        seed: Public.
        run: Device, progress, checkpoints.
        folder: Where the models are saved; in the vault. Its previous content is removed unless the run is resumed.
        stages: After how many steps to save the models; the last step is always included.
        augment: Random changes to the records of a batch.
        batch_size: Records of one model in a step.
        chunk_bytes: How much memory models that are trained together may take.

    Raises:
        TrainingError: There are fewer than two models, a stage is not a step of the recipe, or the folder belongs to
            another run.
        NetError: The models have different shapes.
    """
    _check(count, stages, recipe.steps)
    net = make(0)
    mark = _mark(net, make(count - 1), data, recipe, seed, count, batch_size)
    found = Collection(folder, net, count, tuple(sorted({*stages, recipe.steps})), mark)
    if run.resume and found.whole:
        return found
    if not run.resume:
        found.remove()
    everyone = np.arange(len(data), dtype=np.int64)
    train_chunks(
        make, count, data, [everyone] * count, recipe, seed, run, augment, "training the collection",
        batch_size=batch_size, chunk_bytes=chunk_bytes, watches=_Keep(folder, found.stages, mark, net),
    )  # fmt: skip
    return found


def _check(count: int, stages: Sequence[int], steps: int) -> None:
    if count < 2:
        raise TrainingError(
            "at least 2 models in a collection", f"{count}", "One model has no distribution of its parameters."
        )
    if any(not 1 <= stage <= steps for stage in stages):
        raise TrainingError(f"stages between 1 and {steps} steps", f"{list(stages)}")


def _mark(
    first: nn.Module, last: nn.Module, data: Resident, recipe: Recipe, seed: int, count: int, batch_size: int
) -> str:
    """A digest of what the models depend on; kept only in the vault."""
    found = hashlib.sha256(digest([data.x, data.y, *tensors(first).values(), *tensors(last).values()]))
    found.update(json.dumps([recipe.model_dump(), seed, count, batch_size], sort_keys=True).encode())
    return found.hexdigest()


@dataclass(frozen=True)
class _Keep:
    """Writes the models of a chunk at every stage."""

    folder: Path
    stages: tuple[int, ...]
    mark: str
    net: nn.Module

    def __call__(self, chunk: range) -> Watch:
        def watch(done: int, ended: Callable[[], Named]) -> None:
            if done in self.stages:
                file = _stage(self.folder, done) / f"models-{chunk.start}-{chunk.stop}.safetensors"
                checkpoint.write(file, _shard(self.net, ended()), {"mark": self.mark})

        return watch


def _shard(net: nn.Module, values: Named) -> Named:
    values = spread(net, values)
    rows = torch.cat([values[name].flatten(1).float().cpu() for name, _ in net.named_parameters()], 1)
    return {_ROWS: rows, **{f"{_BUFFER}{name}": values[name].cpu() for name, _ in net.named_buffers()}}


def _stage(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


@dataclass(frozen=True)
class Collection:
    """M models of one network at several stages, on disk.

    Args:
        folder: Where they are.
        net: A network of their shape.
        count: M.
        stages: After how many steps of training, in order.
        mark: The mark of the run that made them.
    """

    folder: Path
    net: nn.Module
    count: int
    stages: tuple[int, ...]
    mark: str

    @property
    def whole(self) -> bool:
        """Whether every model of this very run is present at every stage."""
        return all(self._covers(_stage(self.folder, step)) for step in self.stages)

    def _covers(self, stage: Path) -> bool:
        chunks = sorted(_chunk(file) for file in _files(stage))
        ends = [0, *(stop for _, stop in chunks)]
        return [start for start, _ in chunks] == ends[:-1] and ends[-1] == self.count

    def at(self, stage: int | None = None) -> Slices:
        """The models after `stage` steps; by default, the final ones.

        Raises:
            TrainingError: There is no such stage, or the models belong to another run.
        """
        step = self.stages[-1] if stage is None else stage
        place = _stage(self.folder, step)
        if step not in self.stages or not self._covers(place):
            raise TrainingError(
                f"all {self.count} models after {step} steps",
                "only some, or other chunks",
                "A slice needs the parameter of every model.",
                "Train the collection anew: --again.",
            )
        return Slices.open(self.net, sorted(_files(place), key=_chunk), self.mark)

    def remove(self) -> None:
        """Remove all models."""
        if self.folder.is_dir():
            shutil.rmtree(self.folder)


def _files(stage: Path) -> list[Path]:
    return [file for file in stage.glob("models-*.safetensors") if _FILE.fullmatch(file.name)]


def _chunk(file: Path) -> tuple[int, int]:
    found = _FILE.fullmatch(file.name)
    assert found is not None
    return int(found[1]), int(found[2])


class Slices:
    """The models of one stage by columns: slice j holds parameter j of every model.

    Args:
        net: A network of their shape.
        parts: Rows of models, as anything that returns a tensor for [:, start:stop].
        buffers: Buffers by name, stacked; part by part.

    Raises:
        NetError: The models' shape is not the network's, or buffers differ between models.
    """

    def __init__(self, net: nn.Module, parts: Sequence[Any], buffers: Sequence[Named] = ()) -> None:
        self.net, self._parts = net, parts
        self.parameters = sum(p.numel() for p in net.parameters())
        shapes = [_shape(part) for part in parts]
        if any(len(shape) != 2 or shape[1] != self.parameters for shape in shapes):
            raise NetError(
                f"models of {self.parameters} parameters each",
                f"models of {sorted({shape[-1] for shape in shapes})}",
                "Models of different shapes have no common slices.",
                "Collect models of one network.",
            )
        self.models = sum(shape[0] for shape in shapes)
        self._buffers = _fixed(net, buffers)

    @classmethod
    def open(cls, net: nn.Module, files: Sequence[Path], mark: str | None = None) -> Slices:
        """Shards on disk, which stay there until a block is read."""
        parts, buffers = [], []
        for file in files:
            content = open_models(file, mark)
            parts.append(content.get_slice(_ROWS))
            names = [name for name in content.keys() if name.startswith(_BUFFER)]  # noqa: SIM118
            buffers.append({name.removeprefix(_BUFFER): content.get_tensor(name) for name in names})
        return cls(net, parts, buffers)

    @classmethod
    def of(cls, ensemble: Ensemble) -> Slices:
        """Models in memory."""
        shard = _shard(ensemble.net, ensemble.values)
        buffers = {name.removeprefix(_BUFFER): value for name, value in shard.items() if name.startswith(_BUFFER)}
        return cls(ensemble.net, [shard[_ROWS]], [buffers])

    def blocks(self, columns: int = COLUMNS) -> Iterator[tuple[int, Tensor]]:
        """Blocks of slices, (models, at most `columns`), each with the position of its first parameter.

        Raises:
            TrainingError: A parameter is not a finite number.
        """
        for start in range(0, self.parameters, columns):
            block = torch.cat([part[:, start : min(start + columns, self.parameters)] for part in self._parts])
            if not torch.isfinite(block).all():
                raise TrainingError(
                    "models with finite parameters",
                    "some that are not",
                    "The density of such a slice is undefined.",
                    "Training diverged: lower settings.learning_rate.",
                )
            yield start, block

    def ensemble(self) -> Ensemble:
        """All models at once; they have to fit into memory."""
        rows = torch.cat([block for _, block in self.blocks()], 1)
        values: Named = {}
        place = 0
        for name, parameter in self.net.named_parameters():
            own = rows[:, place : place + parameter.numel()]
            values[name] = own.reshape(self.models, *parameter.shape).to(parameter.dtype)
            place += parameter.numel()
        for name, value in self.net.named_buffers():
            kept = self._buffers.get(name, value)
            values[name] = kept.expand(self.models, *kept.shape).clone()
        return Ensemble(self.net, values)

    def average(self) -> Tensor:
        """The mean of every slice: (parameters,)."""
        return torch.cat([block.double().mean(0).float() for _, block in self.blocks()])

    def model(self, values: Tensor) -> nn.Module:
        """A network with these parameters and the buffers of the collection, on the CPU, ready for evaluation."""
        net = copy.deepcopy(self.net).cpu().eval()
        place = 0
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(values[place : place + parameter.numel()].view_as(parameter))
                place += parameter.numel()
            for name, value in net.named_buffers():
                value.copy_(self._buffers.get(name, value))
        return net


def _shape(part: Any) -> list[int]:
    return list(part.shape) if isinstance(part, Tensor) else list(part.get_shape())


def _fixed(net: nn.Module, buffers: Sequence[Named]) -> Named:
    """The buffers that all models share; those that training changes are refused."""
    found: Named = {}
    for name, _ in net.named_buffers():
        values = torch.cat([own[name] for own in buffers if name in own]) if buffers else None
        if values is None:
            continue
        if not (values == values[:1]).all():
            raise NetError(
                "buffers that are the same in all models",
                f"'{name}', which training changed",
                "It depends on the records and is not a parameter, so it would be released without being sampled.",
                "Use a network without batch normalisation.",
            )
        found[name] = values[0]
    return found

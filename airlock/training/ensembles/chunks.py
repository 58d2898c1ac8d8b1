"""The chunks of an ensemble: which models are trained together, and how; what is saved; which engine trains them.

A `Job` is all the models of one call. An `Engine` trains the chunks that are still missing, wherever it runs, and
passes every finished one to `Job.keep`, which puts it into the ensemble and, with a checkpoint folder, on disk. A file
of finished models records which models they are and what they depend on: a run may be resumed by another engine or with
other chunks. The steps done for an unfinished chunk can only be used for the same chunk.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from airlock.errors import Interrupted, OutputError, TrainingError
from airlock.training import checkpoint
from airlock.training.devices import Resident, room
from airlock.training.distributed import digest
from airlock.training.ensembles.stacked import Looped, Vmapped, choose, stack, tensors
from airlock.training.gradients import MEAN, Named, Objective
from airlock.training.loop import Augment, Progress, Recipe, Run, Watch, fit, forked_generator, interruption, mix
from airlock.training.sampling import Index, order

Make = Callable[[int], nn.Module]
Watches = Callable[[range], Watch]

_CPU_BYTES = 1 << 26  # a CPU is fastest within its cache, and stacking does not speed up large networks there
_NAME = re.compile(r"models-(\d+)-(\d+)\.safetensors")


def model_seed(seed: int, model: int) -> int:
    """The seed of one model's batches, dropout and augmentation: a function of its number alone."""
    return mix(seed, model)


def budget(device: torch.device) -> int:
    """Bytes for the models of a chunk; depends on the machine, not its load, so a resumed run has the same chunks."""
    return room(device) if device.type == "cuda" else _CPU_BYTES


class Together:
    """The batches of several models in parallel, each from its model's own permutations of its own records.

    A batch that is shorter than the longest of its step is padded with its own first record; `sizes` says how many
    count.

    Args:
        members: The positions of every model's records.
        batch_size: The batch size of one model.
        seeds: One per model.
    """

    def __init__(self, members: Sequence[Index], batch_size: int, seeds: Sequence[int]) -> None:
        self.members, self.batch_size, self.seeds = members, batch_size, seeds
        self._epochs = [-1] * len(members)
        self._orders: list[Index] = list(members)

    def sizes(self, step: int) -> list[int]:
        """How many records each model's batch has."""
        return [min(self.batch_size, len(own) - self._place(own, step)[1]) for own in self.members]

    def draw(self, step: int, records: int) -> Index:
        """Positions of (models × longest batch) records, model after model."""
        sizes = self.sizes(step)
        out = np.empty((len(sizes), max(sizes)), np.int64)
        for i, size in enumerate(sizes):
            epoch, start = self._place(self.members[i], step)
            if epoch != self._epochs[i]:
                shuffled = order(self.seeds[i], epoch, len(self.members[i]))
                self._epochs[i], self._orders[i] = epoch, self.members[i][shuffled]
            out[i, :size] = self._orders[i][start : start + size]
            out[i, size:] = out[i, 0]
        return out.reshape(-1)

    def _place(self, own: Index, step: int) -> tuple[int, int]:
        epoch, place = divmod(step, -(-len(own) // self.batch_size))
        return epoch, place * self.batch_size


class TogetherGradients:
    """Every model's mean gradient on its own batch: no privacy."""

    def __init__(self, engine: Looped | Vmapped, batches: Together, augment: Augment | None, task: str) -> None:
        self.engine, self.batches, self.augment, self.task = engine, batches, augment, task

    @property
    def mark(self) -> dict[str, object]:
        """Which models, on which records."""
        return {"gradients": "together", "task": self.task}

    def state(self) -> dict[str, Tensor]:
        """Empty: a step's batches follow from its number."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Put one gradient per model into the stacked parameters."""
        sizes = self.batches.sizes(step)
        chances = [mix(seed, step) for seed in self.batches.seeds]
        x, y = x.view(len(sizes), -1, *x.shape[1:]), y.view(len(sizes), -1)
        if self.augment is not None:
            for i, (size, chance) in enumerate(zip(sizes, chances, strict=True)):
                x[i, :size] = self.augment(x[i, :size], torch.Generator(device=x.device).manual_seed(chance ^ 1))
        self.engine(net, x, y, sizes, chances)


class EnsembleTask:
    """What all chunks have in common; one chunk is one run of the loop.

    Args:
        make: Returns model i.
        data: All records, on the training device.
        members: The positions of every model's records; at least for the models trained here.
        recipe: How to optimise.
        seed: The seed of all models.
        augment: Changes a batch.
        batch_size: The batch size of one model.
        fingerprint: A digest of the records; computed if left out.
        watches: Returns the callback that watches a chunk in training.
        objective: What each model minimises.
    """

    def __init__(
        self,
        make: Make,
        data: Resident,
        members: Mapping[int, Index],
        recipe: Recipe,
        seed: int,
        augment: Augment | None,
        batch_size: int,
        fingerprint: bytes | None = None,
        watches: Watches | None = None,
        objective: Objective = MEAN,
    ) -> None:
        self.make, self.data, self.members, self.recipe = make, data, members, recipe
        self.seed, self.augment, self.batch_size, self._given = seed, augment, batch_size, fingerprint
        self.watches, self.objective = watches, objective
        self._engine: Looped | Vmapped | None = None

    def train(self, chunk: range, run: Run, wanted: str | None = None) -> tuple[Named, str]:
        """The trained tensors of these models, on the CPU, and the mark of what they depend on.

        Args:
            chunk: Which models.
            run: Its checkpoint is the folder of this chunk alone; without one, the mark is empty.
            wanted: The mark that they must have.
        """
        held = stack(self.make(i).to(run.device) for i in chunk)
        mark = self.mark(chunk, held) if run.checkpoint else ""
        if wanted is not None and mark != wanted:
            raise TrainingError(
                "the same initial weights of a model wherever it is created",
                "others",
                "The result would depend on which worker trains the models.",
                "Initialise the network from its number alone, under one version of torch.",
            )
        if self._engine is None or not self._engine.takes(held):
            with forked_generator(run.device):
                ends = [self.make(i).to(run.device) for i in (chunk[0], chunk[-1])]
                self._engine = choose(ends, tuple(self.data.x.shape[1:]), run.device, self.objective)
                if not self._engine.takes(held):  # the others differ in more than the first and the last
                    self._engine = Looped(ends[0], objective=self.objective)
                del ends
        batches = Together([self.members[i] for i in chunk], self.batch_size, [model_seed(self.seed, i) for i in chunk])
        gradients = TogetherGradients(self._engine, batches, self.augment, mark)
        watch = self.watches(chunk) if self.watches else None
        fit(held, self.data, batches, gradients, self.recipe, self.seed, run, watch=watch)
        return {name: value.cpu() for name, value in tensors(held).items()}, mark

    def mark(self, chunk: range, held: nn.Module | None = None) -> str:
        """A digest of what these models depend on, including their initial weights."""
        first = tensors(held or stack(self.make(i) for i in chunk))
        found = hashlib.sha256(self.fingerprint + digest(first.values()))
        settings = [self.recipe.model_dump(), self.seed, self.batch_size, chunk.start, chunk.stop, self.augment is None]
        settings.append(self.objective.mark)
        found.update(json.dumps(settings, sort_keys=True).encode())
        for i in chunk:
            found.update(len(self.members[i]).to_bytes(8, "little") + self.members[i].tobytes())
        return found.hexdigest()

    @cached_property
    def fingerprint(self) -> bytes:
        """A digest of all records."""
        return self._given or digest([self.data.x, self.data.y])


class Job:
    """All models of one call: which are still to be trained, and where finished ones go.

    Args:
        task: How to train them.
        count: The number of models.
        run: Device, progress, checkpoints.
        label: For the progress bar.
        per_model: Roughly how many bytes one model takes in training.
        chunk_bytes: How many bytes models that are trained together may take; None for a default by device.
        put: Receives finished models.
        interrupted: Whether Ctrl-C was pressed.
    """

    def __init__(
        self,
        task: EnsembleTask,
        count: int,
        run: Run,
        label: str,
        per_model: int,
        chunk_bytes: int | None,
        put: Callable[[range, Named], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.task, self.count, self.run, self.label = task, count, run, label
        self.per_model, self.chunk_bytes, self.put, self.interrupted = per_model, chunk_bytes, put, interrupted
        self.missing = set(range(count))
        if run.resume:
            self._restore()
        else:
            self.forget()

    def chunks(self, room: int, workers: int = 1) -> list[range]:
        """The missing models in chunks of about equal size, of at most `room` bytes and at least one per worker."""
        parts = max(-(-self.count // max(1, room // self.per_model)), min(workers, self.count))
        step = -(-self.count // parts)
        cells = [range(start, min(start + step, self.count)) for start in range(0, self.count, step)]
        return [chunk for cell in cells for chunk in _runs(i for i in cell if i in self.missing)]

    def folder(self, chunk: range) -> Path | None:
        """Where the steps of an unfinished chunk are kept."""
        return self.run.checkpoint and self.run.checkpoint / f"models-{chunk.start}-{chunk.stop}"

    def keep(self, chunk: range, values: Named, mark: str) -> None:
        """Store finished models."""
        folder = self.folder(chunk)
        if folder:
            checkpoint.write(folder.with_name(f"{folder.name}.safetensors"), values, {"mark": mark})
            checkpoint.remove(folder)
        self.put(chunk, values)
        self.missing -= set(chunk)

    def report(self, under_way: Mapping[range, int]) -> None:
        """Show overall progress, from the steps done in chunks that are in progress."""
        if self.run.progress:
            self.run.progress(self.label, self._done(under_way), self.count * self.task.recipe.steps)

    def interruption(self, under_way: Mapping[range, int]) -> Interrupted:
        """Ctrl-C, as an error."""
        kept = self.run.checkpoint is not None
        return interruption(self._done(under_way), self.count * self.task.recipe.steps, kept)

    def _done(self, under_way: Mapping[range, int]) -> int:
        finished = (self.count - len(self.missing)) * self.task.recipe.steps
        return finished + sum(len(chunk) * steps for chunk, steps in under_way.items())

    def _restore(self) -> None:
        for file in sorted(self.run.checkpoint.glob("models-*")) if self.run.checkpoint else ():
            name = _NAME.fullmatch(file.name)
            if name:
                chunk = range(int(name[1]), int(name[2]))
                known = 0 <= chunk.start < chunk.stop <= self.count
                self.put(chunk, read(file, self.task.mark(chunk) if known else ""))
                self.missing -= set(chunk)

    def forget(self) -> None:
        """Remove the job's files; a finished job needs none."""
        folder = self.run.checkpoint
        if folder and folder.is_dir():
            for place in folder.glob("models-*-*"):
                if place.is_dir():
                    checkpoint.remove(place)
                elif _NAME.fullmatch(place.name):
                    place.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()


def _runs(numbers: Iterable[int]) -> list[range]:
    """Ascending numbers as ranges without gaps."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


class EnsembleEngine(Protocol):
    """Trains the models."""

    def __call__(self, job: Job) -> None:
        """Train the missing models and pass every chunk to `job.keep`.

        Raises:
            Interrupted: Ctrl-C; finished models are kept.
        """


def train_here(job: Job) -> None:
    """The engine "local": one chunk after another, in this process."""
    for chunk in job.chunks(job.chunk_bytes or budget(job.run.device)):
        run = replace(job.run, progress=_reporting(job, chunk), checkpoint=job.folder(chunk))
        job.keep(chunk, *job.task.train(chunk, run))
        if job.interrupted() and job.missing:
            raise job.interruption({})


def _reporting(job: Job, chunk: range) -> Progress | None:
    return (lambda _, done, steps: job.report({chunk: done})) if job.run.progress else None


def read(file: Path, mark: str | None = None) -> Named:
    """The models in a safetensors file; if a mark is given, they must have it."""
    content = open_models(file, mark)
    return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118


def open_models(file: Path, mark: str | None = None) -> Any:
    """An open safetensors file of models, from which nothing is read yet."""
    try:
        content: Any = safe_open(file, framework="pt")
        metadata = content.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise OutputError("a readable file of models", f"an error ({error})") from error
    if mark is not None and metadata.get("mark") != mark:
        raise TrainingError(
            "finished models of this very run",
            "models of other settings, another seed or other records",
            "They would be mistaken for the models of this run.",
            f"Use the settings that they were trained with. {checkpoint.ANEW}",
        )
    return content

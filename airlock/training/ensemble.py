"""Many models trained together: shadow models of an attack, a collection of parameters, disjoint teachers.

In: how to make a model, the records (on the device once), and which of them each model learns from. Out: an `Ensemble`.
Model i is what `fit` would make of `make(i)` with `Shuffled(batch_size, model_seed(seed, i))` over its own records, up
to rounding: its batches, its dropout and its augmentation follow from its own seed, so that neither the number of
models nor which of them share a chunk changes it. All models take `recipe.steps` steps; one with fewer records goes
through more epochs.

There is no privacy here. Every model of an ensemble remembers its records: an ensemble is made to attack or to be
computed on, it belongs into the vault, and nothing of it may be released.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from airlock.errors import NetError, OutputError, TrainingError
from airlock.nets import create
from airlock.training import checkpoint
from airlock.training.distributed import digest
from airlock.training.layers import Named
from airlock.training.loop import Augment, Recipe, Run, fit, forked_generator, interruption, mix, watch_interrupt
from airlock.training.resident import Resident, to_input
from airlock.training.sampling import Index, order
from airlock.training.stacked import Looped, Vmapped, choose, forward, forward_one_by_one, stack, tensors

Make = Callable[[int], nn.Module]
Membership = NDArray[np.bool_] | Sequence[Index]

_CPU_BYTES = 1 << 26  # a CPU is fastest in its cache, and large networks gain nothing there from company
_BLOCK = 1000  # records of an evaluation at a time
_NO_VMAP = (RuntimeError, TypeError, ValueError, NotImplementedError)


def model_seed(seed: int, model: int) -> int:
    """The seed of one model's batches, dropout and augmentation: a function of its number alone."""
    return mix(seed, model)


def makes(name: str, shape: tuple[int, ...], classes: int, seed: int, shared: bool = False) -> Make:
    """A built-in or the user's own network for every model, each initialised by its own seed or all alike."""
    return lambda model: create(name, shape, classes, seed if shared else model_seed(seed, model))


def train_together(
    make: Make,
    count: int,
    data: Resident,
    membership: Membership,
    recipe: Recipe,
    seed: int,
    run: Run,
    augment: Augment | None = None,
    label: str = "training models",
    *,
    batch_size: int = 64,
    chunk_bytes: int | None = None,
) -> Ensemble:
    """Train `count` models at once, in chunks that fit into memory.

    Args:
        make: Gives model i; all have the same parameters.
        count: How many models.
        data: All records, once.
        membership: Which records each model learns from: a mask (models, records), or positions for every model.
        recipe: How to descend; its `channels_last` is left aside.
        seed: Public; every model's own seed follows from it and the model's number.
        run: Device, progress, checkpoints. Finished chunks are kept in the checkpoint's folder until the last is done.
        augment: Applied to every model's batch with the model's own generator; it must keep the number of records.
        label: For the progress bar, which counts steps of models.
        batch_size: Records of one model in a step; the last batch of an epoch may be smaller, as with `Shuffled`.
        chunk_bytes: How much memory models that are trained at once may take; by default, what suits the device.

    Raises:
        Interrupted: Ctrl-C; with a checkpoint folder, the same call goes on from there if `run.resume`.
    """
    members = _members(membership, count, len(data))
    first = make(0)
    budget = chunk_bytes or _budget(run.device)
    step = max(1, budget // bytes_per_model(first, data, batch_size, recipe))
    step = -(-count // -(-count // step))  # chunks of about the same size
    task = _Task(
        make, data, members, recipe.model_copy(update={"channels_last": False}), seed, run, augment, batch_size
    )
    task.forget(unless=run.resume)
    ensemble = Ensemble.empty(first, count)
    with watch_interrupt() as interrupted:
        for start in range(0, count, step):
            chunk = range(start, min(start + step, count))
            ensemble.put(chunk, task.finish(chunk, _scaled(label, chunk, count, run)))
            if interrupted() and chunk.stop < count:
                raise interruption(chunk.stop * recipe.steps, count * recipe.steps, run.checkpoint is not None)
    task.forget()
    return ensemble


def _scaled(label: str, chunk: range, count: int, run: Run) -> Callable[[str, int, int], None] | None:
    """Progress of all models out of the progress of a chunk."""
    report = run.progress
    if report is None:
        return None
    return lambda _, done, steps: report(label, chunk.start * steps + len(chunk) * done, count * steps)


def _members(membership: Membership, count: int, records: int) -> list[Index]:
    if isinstance(membership, np.ndarray) and membership.dtype == np.bool_:
        if membership.shape != (count, records):
            raise TrainingError(
                f"a mask of {count} models × {records} records",
                f"one of shape {membership.shape}",
                do="Give one row a model.",
            )
        found = [np.flatnonzero(row).astype(np.int64) for row in membership]
    else:
        found = [np.asarray(row, dtype=np.int64) for row in membership]
    if len(found) != count:
        raise TrainingError(f"the records of {count} models", f"those of {len(found)}", do="Give positions for each.")
    for model, row in enumerate(found):
        if not len(row) or row.min() < 0 or row.max() >= records:
            raise TrainingError(
                f"at least one record of positions 0 to {records - 1} for every model",
                f"none or others for model {model}",
                "A model without records cannot be trained.",
            )
    return found


def _budget(device: torch.device) -> int:
    """Bytes for the models of a chunk; by the machine, not by its load, so that a resumed run has the same chunks."""
    return torch.cuda.get_device_properties(device).total_memory // 4 if device.type == "cuda" else _CPU_BYTES


def bytes_per_model(net: nn.Module, data: Resident, batch_size: int, recipe: Recipe) -> int:
    """About what one model takes in training: its weights, gradients, optimiser state, and activations of a batch."""
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    copies = 3 + (recipe.optimiser == "adam" or recipe.momentum > 0) + (recipe.optimiser == "adam") + (recipe.ema > 0)
    outputs = [data.x[:1].numel()]
    probe = copy.deepcopy(net).cpu().eval()

    def note(layer: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not any(True for _ in layer.children()):
            outputs.append(output.numel())

    for layer in probe.modules():
        layer.register_forward_hook(note)
    with torch.no_grad():
        probe(to_input(data.x[:1].cpu()))
    return copies * weights + 2 * 4 * batch_size * sum(outputs)


class Together:
    """The batches of several models side by side, each from its model's own permutations of its own records.

    A batch that is shorter than the longest of its step is filled up with its own first record; `sizes` says how many
    count.

    Args:
        members: Every model's positions.
        batch_size: Of one model.
        seeds: One a model.
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
        """None: a step's batches follow from its number."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """One gradient a model into the stacked parameters."""
        sizes = self.batches.sizes(step)
        chances = [mix(seed, step) for seed in self.batches.seeds]
        x, y = x.view(len(sizes), -1, *x.shape[1:]), y.view(len(sizes), -1)
        if self.augment is not None:
            for i, (size, chance) in enumerate(zip(sizes, chances, strict=True)):
                x[i, :size] = self.augment(x[i, :size], torch.Generator(device=x.device).manual_seed(chance ^ 1))
        self.engine(net, x, y, sizes, chances)


class _Task:
    """All that the chunks have in common; one chunk is one run of the loop."""

    def __init__(
        self,
        make: Make,
        data: Resident,
        members: list[Index],
        recipe: Recipe,
        seed: int,
        run: Run,
        augment: Augment | None,
        batch_size: int,
    ) -> None:
        self.make, self.data, self.members, self.recipe = make, data, members, recipe
        self.seed, self.run, self.augment, self.batch_size = seed, run, augment, batch_size
        self._engine: Looped | Vmapped | None = None

    def finish(self, chunk: range, progress: Callable[[str, int, int], None] | None) -> Named:
        """The trained tensors of these models, from the folder if they lie there."""
        nets = [self.make(i).to(self.run.device) for i in chunk]
        folder, held = self.run.checkpoint, stack(nets)
        mark = self._mark(chunk, held) if folder else ""
        file = folder / f"models-{chunk.start}-{chunk.stop}.safetensors" if folder else None
        if file and self.run.resume and file.exists():
            return _read(file, mark)
        if self._engine is None:
            with forked_generator(self.run.device):
                self._engine = choose([nets[0], nets[-1]], tuple(self.data.x.shape[1:]), self.run.device)
        del nets
        batches = Together([self.members[i] for i in chunk], self.batch_size, [model_seed(self.seed, i) for i in chunk])
        gradients = TogetherGradients(self._engine, batches, self.augment, mark)
        fit(held, self.data, batches, gradients, self.recipe, self.seed, replace(self.run, progress=progress))
        found = {name: value.cpu() for name, value in tensors(held).items()}
        if file:
            checkpoint.write(file, found, {"mark": mark})
        return found

    def _mark(self, chunk: range, held: nn.Module) -> str:
        """A digest of what these models depend on, their first weights included."""
        found = hashlib.sha256(digest([self.data.x, self.data.y, *tensors(held).values()]))
        settings = [self.recipe.model_dump(), self.seed, self.batch_size, chunk.start, chunk.stop, self.augment is None]
        found.update(json.dumps(settings, sort_keys=True).encode())
        for i in chunk:
            found.update(len(self.members[i]).to_bytes(8, "little") + self.members[i].tobytes())
        return found.hexdigest()

    def forget(self, unless: bool = False) -> None:
        """Remove the chunks in the folder."""
        folder = self.run.checkpoint
        if folder and folder.is_dir() and not unless:
            for file in folder.glob("models-*-*.safetensors"):
                file.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()


def _read(file: Path, mark: str | None = None) -> Named:
    try:
        with safe_open(file, framework="pt") as content:
            found: Named = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            metadata = content.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise OutputError("a readable file of models", f"an error ({error})") from error
    if mark is not None and metadata.get("mark") != mark:
        raise TrainingError(
            "finished models of this very run",
            "some of other settings, another seed or other records",
            "They would be taken for models that they are not.",
            "Use the settings they were trained with, or start without --resume.",
        )
    return found


class Ensemble:
    """Trained models, stacked. None of them is private: they stay where the records are.

    Args:
        net: One network of their shape.
        values: Parameters and buffers of all models by name, stacked along the first axis, on the CPU.
    """

    def __init__(self, net: nn.Module, values: Named) -> None:
        wanted = {name: tuple(value.shape) for name, value in tensors(net).items()}
        if {name: tuple(value.shape[1:]) for name, value in values.items()} != wanted:
            raise NetError(
                "models with the parameters of this network", "others", do="Give the network they were made of."
            )
        self.net, self.values = copy.deepcopy(net).cpu().eval(), values

    @classmethod
    def empty(cls, net: nn.Module, count: int) -> Ensemble:
        """Room for so many models."""
        return cls(net, {name: value.new_empty((count, *value.shape)).cpu() for name, value in tensors(net).items()})

    def put(self, models: range, values: Named) -> None:
        """Fill in trained models."""
        for name, value in values.items():
            self.values[name][models.start : models.stop] = value

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def model(self, place: int) -> nn.Module:
        """One model as a module of its own, ready for evaluation."""
        net = copy.deepcopy(self.net)
        for name, value in tensors(net).items():
            value.copy_(self.values[name][place])
        return net

    def logits(self, data: Resident) -> Tensor:
        """Every model's logits on every record: (models, records, classes), on the CPU."""
        return torch.cat([part.cpu() for part in self._logits(data)])

    def losses(self, data: Resident) -> NDArray[np.float64]:
        """Every model's cross-entropy on every record: (models, records)."""
        return np.concatenate([_cross_entropy(part, data.y) for part in self._logits(data)])

    def correct(self, data: Resident) -> NDArray[np.bool_]:
        """Which records each model classifies correctly: (models, records)."""
        return np.concatenate([(part.argmax(2) == data.y).cpu().numpy() for part in self._logits(data)])

    def _logits(self, data: Resident) -> Iterator[Tensor]:
        """Logits of one block of models after another, where the records are."""
        device, net = data.x.device, copy.deepcopy(self.net).to(data.x.device)
        per_model = bytes_per_model(self.net, data, min(_BLOCK, len(data)), Recipe(steps=1, learning_rate=1.0))
        step = max(1, _budget(device) // per_model)
        way = forward
        for start in range(0, len(self), step):
            own = {name: value[start : start + step].to(device) for name, value in self.values.items()}
            try:
                found = _in_blocks(way, net, own, data)
            except _NO_VMAP:
                way = forward_one_by_one
                found = _in_blocks(way, net, own, data)
            yield found

    def save(self, file: Path) -> None:
        """One safetensors file, readable by its owner alone."""
        checkpoint.write(file, self.values, {})

    @classmethod
    def load(cls, file: Path, net: nn.Module) -> Ensemble:
        """What `save` wrote; `net` is any network of the same shape."""
        return cls(net, _read(file))


@torch.no_grad()
def _in_blocks(way: Callable[[nn.Module, Named, Tensor], Tensor], net: nn.Module, own: Named, data: Resident) -> Tensor:
    blocks = [way(net, own, to_input(data.x[i : i + _BLOCK])).float() for i in range(0, len(data), _BLOCK)]
    return torch.cat(blocks, 1)


def _cross_entropy(logits: Tensor, y: Tensor) -> NDArray[np.float64]:
    found = [F.cross_entropy(own.double(), y, reduction="none").cpu().numpy() for own in logits]
    return np.stack(found).astype(np.float64)

"""Many models trained together: shadow models of an attack, a collection of parameters, disjoint teachers.

In: how to make a model, the records (once on the device), and which of them each model learns from. Out: an `Ensemble`.
Model i is what `fit` would make of `make(i)` with `Shuffled(batch_size, model_seed(seed, i))` over its own records, up
to rounding: its batches, its dropout and its augmentation follow from its own seed, so that it depends neither on the
number of models nor on which of them share a chunk. All models take `recipe.steps` steps; one with fewer records goes
through more epochs.

There is no privacy mechanism here. Every model of an ensemble may memorise its records: an ensemble is used for attacks
or as input to a mechanism, it belongs in the vault, and no part of it may be released.

A common start (`common_start`) is one network trained on all records for a while, from which the others diverge. Models
that start from the same random weights leave each other's basin when they learn fast; models that diverge after some
epochs stay in one basin (Frankle, Dziugaite, Roy and Carbin 2020). There is no privacy mechanism here, either: the
start depends on its records and stays in the vault.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.errors import ConfigError, NetError, TrainingError
from airlock.nets import create
from airlock.nets.bert import at_once
from airlock.training import checkpoint
from airlock.training.devices import Resident, to_input
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import EnsembleEngine, EnsembleTask, Job, Watches, budget, read, train_here
from airlock.training.ensembles.chunks import Make as Make
from airlock.training.ensembles.chunks import model_seed as model_seed
from airlock.training.ensembles.stacked import forward, forward_one_by_one, shared, spread, tensors
from airlock.training.gradients import MEAN, Named, Objective
from airlock.training.loop import Augment, Recipe, Run, watch_interrupt
from airlock.training.sampling import Index

EngineName = Literal["local", "ray"]
Membership = NDArray[np.bool_] | Sequence[Index]
Put = Callable[[range, Named], None]

_BLOCK = 1000  # records of an evaluation at a time
_NO_VMAP = (RuntimeError, TypeError, ValueError, NotImplementedError)


def makes(name: str, shape: tuple[int, ...], classes: int, seed: int, shared: bool = False) -> Make:
    """A built-in or the user's own network for every model, initialised from its own seed or all from the same one."""
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
    engine: EngineName | EnsembleEngine = "local",
    objective: Objective = MEAN,
) -> Ensemble:
    """Train `count` models at once, in chunks that fit into memory.

    Neither the engine nor the chunks change a model, up to rounding; with the same chunks, on a CPU with the same
    number of threads, the result is bit-identical.

    Args:
        make: Returns model i; all have the same parameter shapes.
        count: The number of models.
        data: All records, once.
        membership: Which records each model learns from: a mask (models, records), or positions for every model.
        recipe: How to optimise; its `channels_last` is ignored.
        seed: Public; every model's own seed follows from it and the model's number.
        run: Device, progress, checkpoints. Finished chunks are kept in the checkpoint's folder until the last is done.
        augment: Applied to every model's batch with the model's own generator; it must preserve the number of records.
        label: For the progress bar, which counts steps of models.
        batch_size: Records of one model in a step; the last batch of an epoch may be smaller, as with `Shuffled`.
        chunk_bytes: How much memory models that are trained together may take; the default depends on the device.
        engine: What trains the chunks: "local", this process; "ray", the workers of a Ray cluster (`ray_engine.Ray` has
            its settings).
        objective: What each model minimises; the mean cross-entropy by default.

    Raises:
        Interrupted: Ctrl-C; with a checkpoint folder, the same call continues from there if `run.resume`.
    """
    ensemble = Ensemble.empty(make(0), count)
    train_chunks(
        make, count, data, membership, recipe, seed, run, augment, label,
        batch_size=batch_size, chunk_bytes=chunk_bytes, engine=engine, put=ensemble.put, objective=objective,
    )  # fmt: skip
    return ensemble


def train_chunks(
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
    engine: EngineName | EnsembleEngine = "local",
    put: Put | None = None,
    watches: Watches | None = None,
    objective: Objective = MEAN,
) -> None:
    """Like `train_together`, with the same arguments, but with no more models in memory than are trained together.

    `put` receives every finished chunk: the numbers of its models and their tensors, stacked. `watches` returns the
    callback that watches a chunk in training (`loop.fit`), in this process only; a chunk that was finished before a
    resume is not watched again.
    """
    if watches and engine != "local":
        raise ConfigError("the engine 'local' for models that are watched in training", f"'{engine}'")
    members = dict(enumerate(_members(membership, count, len(data))))
    descent = recipe.model_copy(update={"channels_last": False})
    task = EnsembleTask(make, data, members, descent, seed, augment, batch_size, watches=watches, objective=objective)
    net = make(0)
    per_model = bytes_per_model(net, data, batch_size, recipe)
    if any(not p.requires_grad for p in net.parameters()):
        per_model += _bytes_apart(net, make(count - 1))
    del net
    train = open_engine(engine)
    with watch_interrupt() as interrupted:
        job = Job(task, count, run, label, per_model, chunk_bytes, put or (lambda chunk, values: None), interrupted)
        train(job)
    job.forget()


def open_engine(engine: str | EnsembleEngine) -> EnsembleEngine:
    """The engine of this name; Ray is imported only on request."""
    if engine == "local":
        return train_here
    if engine == "ray":
        from airlock.training.ensembles.ray_engine import Ray

        return Ray()
    if isinstance(engine, str):
        raise ConfigError("an engine ('local' or 'ray')", f"'{engine}'")
    return engine


def _members(membership: Membership, count: int, records: int) -> list[Index]:
    if isinstance(membership, np.ndarray) and membership.dtype == np.bool_:
        if membership.shape != (count, records):
            raise TrainingError(
                f"a mask of {count} models × {records} records",
                f"one of shape {membership.shape}",
                do="Pass one row per model.",
            )
        found = [np.flatnonzero(row).astype(np.int64) for row in membership]
    else:
        found = [np.asarray(row, dtype=np.int64) for row in membership]
    if len(found) != count:
        raise TrainingError(f"the records of {count} models", f"those of {len(found)}", do="Pass positions for each.")
    for model, row in enumerate(found):
        if not len(row) or row.min() < 0 or row.max() >= records:
            raise TrainingError(
                f"at least one record of positions 0 to {records - 1} for every model",
                f"none or invalid ones for model {model}",
                "A model without records cannot be trained.",
            )
    return found


def bytes_per_model(net: nn.Module, data: Resident, batch_size: int, recipe: Recipe) -> int:
    """Roughly what one model needs in training: weights, gradients, optimiser state, and activations of a batch.

    What is frozen is taken to be shared, and counts for nothing.
    """
    weights = sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)
    adam = recipe.optimiser != "sgd"
    copies = 3 + (adam or recipe.momentum > 0) + adam + (recipe.ema > 0)
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


def _bytes_apart(net: nn.Module, other: nn.Module) -> int:
    """What is frozen but not shared."""
    pairs = zip(net.parameters(), other.parameters(), strict=False)
    return sum(p.numel() * p.element_size() for p, q in pairs if not p.requires_grad and not p.equal(q))


class Ensemble:
    """Trained models, stacked. They carry no privacy guarantee and stay where the records are.

    Args:
        net: One network of their shape.
        values: Parameters and buffers of all models by name, stacked along the first axis, on the CPU; a tensor of one
            model where all have the same (`stacked.stack`).
    """

    def __init__(self, net: nn.Module, values: Named) -> None:
        wanted = {name: value.shape for name, value in tensors(net).items()}
        fits = values.keys() == wanted.keys() and all(
            shape in (values[name].shape, values[name].shape[1:]) for name, shape in wanted.items()
        )
        if not fits:
            raise NetError(
                "models with the parameters of this network", "others", do="Pass the network that they were made from."
            )
        self.net, self.values = copy.deepcopy(net).cpu().eval(), values

    @classmethod
    def empty(cls, net: nn.Module, count: int) -> Ensemble:
        """Space for this many models; what is frozen in them is that of this network until others are put in."""
        frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
        shapes = {name: () if name in frozen else (count,) for name in tensors(net)}
        return cls(
            net, {name: value.cpu().expand(*shapes[name], *value.shape).clone() for name, value in tensors(net).items()}
        )

    def put(self, models: range, values: Named) -> None:
        """Fill in trained models."""
        one, count = shared(self.net, self.values), len(self)
        for name, value in values.items():
            if name in one:
                if value.shape == self.values[name].shape and value.equal(self.values[name]):
                    continue
                self.values[name] = self.values[name].expand(count, *self.values[name].shape).clone()
            self.values[name][models.start : models.stop] = value

    def __len__(self) -> int:
        one = shared(self.net, self.values)
        return next((len(value) for name, value in self.values.items() if name not in one), 1)

    def model(self, place: int) -> nn.Module:
        """One model as a module of its own, ready for evaluation."""
        net = copy.deepcopy(self.net)
        for name, value in tensors(net).items():
            own = self.values[name]
            value.copy_(own if own.dim() == value.dim() else own[place])
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
        """Logits block by block of models, on the records' device."""
        device, net = data.x.device, copy.deepcopy(self.net).to(data.x.device)
        per_model = bytes_per_model(self.net, data, min(_BLOCK, len(data)), Recipe(steps=1, learning_rate=1.0))
        step = max(1, budget(device) // per_model)
        way, one = forward, shared(self.net, self.values)
        for start in range(0, len(self), step):
            chosen = {name: v if name in one else v[start : start + step] for name, v in self.values.items()}
            own = {name: value.to(device) for name, value in chosen.items()}
            try:
                found = _in_blocks(way, net, own, data)
            except _NO_VMAP:
                way = forward_one_by_one
                found = _in_blocks(way, net, own, data)
            yield found

    def spread(self) -> Named:
        """Every model's own tensors, stacked, also those that are the same in all."""
        return spread(self.net, self.values)

    def save(self, file: Path) -> None:
        """One safetensors file, readable by its owner alone."""
        checkpoint.write(file, self.values, {})

    @classmethod
    def load(cls, file: Path, net: nn.Module) -> Ensemble:
        """Read what `save` wrote; `net` is any network of the same shape."""
        return cls(net, read(file))


@torch.no_grad()
def _in_blocks(way: Callable[[nn.Module, Named, Tensor], Tensor], net: nn.Module, own: Named, data: Resident) -> Tensor:
    step = min(_BLOCK, at_once(net) or _BLOCK)
    blocks = [way(net, own, to_input(data.x[i : i + step])).float() for i in range(0, len(data), step)]
    return torch.cat(blocks, 1)


def _cross_entropy(logits: Tensor, y: Tensor) -> NDArray[np.float64]:
    found = [F.cross_entropy(own.double(), y, reduction="none").cpu().numpy() for own in logits]
    return np.stack(found).astype(np.float64)


# A common start for models.

_NAME = "start.safetensors"
_NUMBER = 1 << 31  # larger than any model's number, so that it shares its batches with none


def common_start(
    make: Make, data: Resident, recipe: Recipe, seed: int, run: Run, folder: Path, *, batch_size: int = 128
) -> Make:
    """Train one network, save it in the folder, and return a factory of copies.

    Args:
        make: Returns the network before training.
        data: All records.
        recipe: How to optimise.
        seed: Public.
        run: Device, progress; with `resume`, a start found in the folder is reused.
        folder: A folder in the vault.
        batch_size: Records in a step.

    Raises:
        TrainingError: The start in the folder belongs to other settings, another seed or other records.
    """
    net, file = make(0), folder / _NAME
    own = model_seed(seed, _NUMBER)
    known = json.dumps([recipe.model_dump(), own, batch_size], sort_keys=True).encode()
    mark = hashlib.sha256(digest([data.x, data.y, *tensors(net).values()]) + known).hexdigest()
    if not (run.resume and file.exists()):
        everyone = [np.arange(len(data), dtype=np.int64)]
        found = train_together(
            make, 1, data, everyone, recipe, own, run, None, "training the common start", batch_size=batch_size
        )
        checkpoint.write(file, tensors(found.model(0)), {"mark": mark})
    kept = read(file, mark)
    with torch.no_grad():
        for name, value in tensors(net).items():
            value.copy_(kept[name])
    return lambda model: copy.deepcopy(net)

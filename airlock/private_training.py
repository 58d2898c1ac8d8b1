"""A torch module of one's own in memory, trained and released: `airlock.train_private`, for those who know Opacus.

In: an `nn.Module`, a `Dataset`, a `DataLoader` or arrays, and what is declared about them. Out: a trained copy of the
module, and its release. The way is that of `airlock.release`: the noise is found for (ε, δ) from public facts, the
network is put on trial in court, the budget is charged, a part of the items is held back to measure on, clipping is
shown to hold for this network, and what leaves is attacked.

Items are read once, each by itself: one that cannot be read, or has another shape, is left out, and nothing is raised
because of it. Python's, numpy's and torch's generators are in the same public state before each item, so that a random
transform does to an item what it would do without all others. What a dataset itself keeps from one item to the next, in
a generator of its own, say, is beyond that: it is assumed to keep nothing. Lots are Poisson samples, whatever a loader
does: its batch size becomes the expected size of a lot.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn, optim
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from airlock import api, data, methods, nets
from airlock.bundle import Bundle, Card, bundle
from airlock.bundle.rendering import page
from airlock.config import from_table
from airlock.data import memory
from airlock.data.remarks import Fault, Faults
from airlock.errors import ConfigError
from airlock.pipeline import COURT_SECONDS

Shape = tuple[int, ...]
IMAGE_AXES = 3
_PLAIN = (RandomSampler, SequentialSampler, BatchSampler, type(None))  # samplers that take all items alike
PERSON = "person"  # what the identifiers are called
_UNREAD = Fault("an item that cannot be read as a pair of an input and a label", "Correct it.")
_SHAPELESS = Fault("an item of another shape", "Correct it, or `shape`.")
_NO_NUMBER = Fault("an input with NaN or infinity", "Correct it.")
BY_ANYONE = (
    "Anyone can check the bundle: who signed it, every file, the card, and that ε follows from the recorded events."
)
WITH_MODULE = (
    "Whoever has the module can check more with airlock.verify(BUNDLE, net=MODULE): that the plan leads to this noise, "
    "and that model.onnx computes what the module does with these weights. No name leads to a network in memory, so "
    "nobody else can. Pass 'package.module:Class' instead of the module to let every receiver with that package do it."
)
WITH_NAME = (
    "Whoever has {net} installed can check more with `airlock verify --net {net}`: that the plan leads to this noise, "
    "and that model.onnx computes what the network does with these weights."
)


@dataclass(frozen=True, repr=False)
class PrivatelyTrained:
    """A trained module and its release.

    Args:
        module: The trained copy, on the CPU, in evaluation mode; the module that was passed in is unchanged. It may
            leave.
        card: The bundle's card.
        files: The bundle, file by file.
        folder: Where it was written; None if it was not.
    """

    module: nn.Module
    card: Card
    files: Mapping[str, bytes] = field(repr=False)
    folder: Path | None = None

    @property
    def epsilon(self) -> float:
        """What was spent; infinite where nothing is proven."""
        spent = self.card.guarantee.epsilon
        return math.inf if spent is None else spent

    @property
    def verifiable(self) -> tuple[str, ...]:
        """What whoever receives the bundle can check, and what only those can who have the network."""
        net = self.card.network
        assert net is not None
        if not nets.is_foreign(net.name):
            return (BY_ANYONE,)
        return (BY_ANYONE, WITH_MODULE if net.name == nets.MEMORY else WITH_NAME.format(net=net.name))

    def release(self, path: Path | str, *, force: bool = False) -> Bundle:
        """Put the bundle at its place: the same files, signed as they were made. It spends nothing more.

        Args:
            path: The folder that becomes the bundle.
            force: Replace an existing bundle.

        Raises:
            OutputError: The folder cannot be used.
        """
        return bundle.write_files(Path(path), self.files, force=force)

    def __repr__(self) -> str:
        return page.summary(self.card, self.folder or Path("memory"))

    def _repr_html_(self) -> str:
        return page.in_notebook(repr(self), page.render_html(self.card))


def train_private(
    module: nn.Module | str,
    items: Dataset[Any] | DataLoader[Any] | tuple[Any, Any],
    *,
    epsilon: float,
    delta: float,
    records: int | None = None,
    classes: int | Sequence[str] | None = None,
    shape: Sequence[int] | None = None,
    groups: object = None,
    people: int | None = None,
    public_schema: bool = False,
    epochs: float | None = None,
    lot_size: int | None = None,
    clip_norm: float | None = None,
    optimizer: optim.Optimizer | None = None,
    settings: Mapping[str, object] | None = None,
    method: str = "gaussian",
    config: Mapping[str, object] | None = None,
    out: Path | str | None = None,
    vault: Path | str | None = None,
    court_seconds: float = COURT_SECONDS,
    resume: bool = False,
    again: bool = False,
) -> PrivatelyTrained:
    """Train a module of one's own with differential privacy, and release it.

    >>> import airlock, torch
    >>> chance = torch.Generator().manual_seed(0)
    >>> x = torch.rand(400, 4, generator=chance)
    >>> y = (x[:, 0] > x[:, 1]).long()
    >>> module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> trained = airlock.train_private(
    ...     module, torch.utils.data.TensorDataset(x, y), epsilon=3.0, delta=1e-3, records=400, epochs=2, lot_size=64
    ... )
    >>> trained.epsilon <= 3.0, trained.module(x[:5]).shape
    (True, torch.Size([5, 2]))
    >>> trained.release("trained").folder.name
    'trained'

    Args:
        module: The network, which gives one logit for each class; or its name, "package.module:Class".
        items: A dataset with a length whose items are (input, label), a loader of one, or (inputs, labels). Inputs are
            vectors, or images (channels, height, width) with 1 or 3 channels, as bytes or as numbers from 0 to 1.
        epsilon: The ε of the whole training, card included.
        delta: The δ at which it is stated.
        records: About how many items there are: a round public figure.
        classes: The class names in the order of the outputs, or their number; as many as there are outputs if omitted.
            A label is a number from 0, or a name.
        shape: Of an input. Tensors have it; for any other dataset it has to be declared.
        groups: Whose each item is, one identifier each.
        people: About how many people there are.
        public_schema: Read `records` and `people` off the items if they are left out. That is right only where they are
            public anyway: no ε covers it, and the card's first lines say so.
        epochs: How often an item takes part on average; a few hundred steps if omitted.
        lot_size: The expected number of items (or of people) in a lot; a loader's batch size if omitted.
        clip_norm: The bound on one item's gradient.
        optimizer: SGD or Adam, of which learning rate, momentum and weight decay are taken.
        settings: Further settings of the method, which have the last word.
        method: A method of the channel `weights` that trains a whole network.
        config: Further keys of a config: `{"split": {"test": 0.1}, "about": {...}, "register": "data.sqlite"}`.
        out: The folder for the bundle; `PrivatelyTrained.release` puts it somewhere later if omitted.
        vault: Where what must not leave is kept.
        court_seconds: The longest time the court tests the module, on made-up items, before the training.
        resume: Continue a training that was interrupted, of a module with the same initial weights.
        again: Begin anew although there is an unfinished one, which spends again.

    Raises:
        ConfigError: A declaration is missing, or loader or optimiser do what cannot be accounted for.
        NetError: The module cannot be trained per item, such as one with BatchNorm.
    """
    (more, beside), (dataset, batch) = api.further(config), _opened(items)
    form = _form(dataset, None if shape is None else tuple(shape))
    whose = None if groups is None else _array(groups).reshape(-1)
    with _named(module):
        told = _declared(module, form, _length(dataset), whose, records, classes, people, public_schema)
        kept = _read(dataset, form, whose)
        kept = replace(kept, y=_by_name(kept.y, told["classes"]))
        table: dict[str, Any] = {"channel": "weights", "method": method, "epsilon": epsilon, "delta": delta}
        table |= {"net": module if isinstance(module, str) else nets.MEMORY, **more}
        table["data"] = {**beside, **told, "source": memory.SOURCE}
        table["settings"] = _of_optimizer(optimizer) | _known(lot_size=lot_size or batch, clip_norm=clip_norm)
        table["settings"] |= dict(settings or {})
        if epochs is not None and "steps" not in table["settings"]:
            with memory.held(kept):
                table["settings"]["steps"] = _steps(table, epochs)
        table["data"]["source"] = kept
        how = {"vault": vault, "court_seconds": court_seconds, "resume": resume, "again": again}
        with api.made_aside(table, out, **how) as (made, files):
            folder = None if out is None else made.bundle.folder
            return PrivatelyTrained(made.release.network.net, made.bundle.card, files, folder)


def _named(module: object) -> contextlib.AbstractContextManager[None]:
    """A block within which the module is found."""
    if type(module).__name__ == "GradSampleModule":  # its hooks would be copied, and keep every gradient
        raise ConfigError(
            "the module itself", "one that Opacus has wrapped", do="Pass module._module, or make it anew."
        )
    if isinstance(module, nn.Module):
        return nets.held(module)
    if isinstance(module, str) and nets.is_foreign(module):
        return contextlib.nullcontext()
    raise ConfigError(
        "a torch.nn.Module, or its name as package.module:Class",
        f"{module!r}" if isinstance(module, str) else type(module).__name__,
    )


# What is declared.


def _declared(
    module: nn.Module | str, form: Shape, count: int, whose: NDArray[Any] | None, records: int | None, classes: Any,
    people: int | None, public_schema: bool,
) -> dict[str, Any]:  # fmt: skip
    """The keys of [data]; sizes are read off only where they are public."""
    left_out = [name for name, given in (("records", records), ("people", people)) if given is None]
    left_out = [name for name in left_out if name == "records" or whose is not None]
    if left_out and not public_schema:
        raise ConfigError(
            " and ".join(f"about how many {name} there are in `{name}`" for name in left_out),
            "nothing declared",
            "Their number is itself private: give a public round figure, which need not be exact.",
            "Where it is public anyway, public_schema=True reads it off, and the card says so.",
        )
    found: dict[str, Any] = {"records": max(1, count) if records is None else records, "read_off": tuple(left_out)}
    found["classes"] = _outputs(module, form) if classes is None else classes
    if isinstance(module, nn.Module):
        named = found["classes"] if classes is None else classes
        number = named if isinstance(named, int) else len(named)
        nets.check(nets.held_net(), nets.MEMORY, form, number)  # before a large dataset is read for nothing
    if whose is None:
        return found
    counted = len(set(memory.text(whose))) if people is None else people
    return {**found, "person": PERSON, "people": counted}


def _outputs(module: nn.Module | str, form: Shape) -> int:
    """How many classes a module tells apart: it is public, and is tried on an input that is made up."""
    if isinstance(module, str):
        raise ConfigError("the classes of a network that is named", "none", do="Pass classes=10, or their names.")
    with torch.no_grad():
        try:
            return int(nets.held_net().eval()(torch.zeros(2, *form)).shape[-1])
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"a module that gives logits for inputs of shape {' × '.join(map(str, form))}",
                f"an error from it: {str(error).splitlines()[0]}",
                do="Correct the module or `shape`.",
            ) from error


def _known(**settings: object) -> dict[str, object]:
    return {name: value for name, value in settings.items() if value is not None}


def _of_optimizer(optimizer: optim.Optimizer | None) -> dict[str, Any]:
    """The settings of plain SGD or Adam, and no average of the weights, as with that optimiser.

    Raises:
        ConfigError: It is another one, or does more than that.
    """
    if optimizer is None:
        return {}
    kinds = {optim.SGD: "sgd", optim.Adam: "adam"}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    extras = ("nesterov", "dampening", "amsgrad", "maximize")
    odd = [name for name in extras if groups[0].get(name)]
    if type(optimizer) not in kinds or odd or any(group != groups[0] for group in groups):
        found = f"one with {odd[0]}" if odd else "several groups" if len(groups) > 1 else type(optimizer).__name__
        raise ConfigError(
            "plain torch.optim.SGD or Adam with one group of parameters",
            found,
            "Airlock trains with an optimiser of its own, which takes over what these two say.",
            "Pass learning rate and momentum in settings instead.",
        )
    told = {"optimiser": kinds[type(optimizer)], "learning_rate": float(groups[0]["lr"]), "ema": 0.0}
    told |= {"weight_decay": float(groups[0]["weight_decay"])}
    return told | ({"momentum": float(groups[0]["momentum"])} if "momentum" in groups[0] else {})


def _steps(table: Mapping[str, Any], epochs: float) -> int:
    """How many lots make so many passes over the private part, at its public size."""
    if not epochs > 0:
        raise ConfigError("epochs above 0", f"{epochs:g}")
    asked = from_table(table)
    channel = methods.build(asked, data.describe(asked))
    size = channel.facts.expected("private", asked.split)
    lot = min(size, getattr(getattr(channel, "settings", None), "lot_size", size))
    return max(1, round(epochs * size / lot))


# The items.


def _opened(items: object) -> tuple[Any, int | None]:
    """A dataset or arrays, and a loader's batch size.

    Raises:
        ConfigError: The loader chooses items in its own way, or the dataset has no length.
    """
    if isinstance(items, DataLoader):
        own = [one for one in (items.sampler, items.batch_sampler, items.collate_fn) if type(one) not in _PLAIN]
        own = [one for one in own if one not in (default_collate, default_convert)]
        if own:
            raise ConfigError(
                "a DataLoader that takes all items alike, each as it is",
                f"one with a {getattr(own[0], '__name__', type(own[0]).__name__)}",
                "Lots are Poisson samples, in which every item takes part by itself with the same probability.",
                "Pass the dataset itself, with items as they should enter the module.",
            )
        return _opened(items.dataset)[0], items.batch_size
    if isinstance(items, IterableDataset) or not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise ConfigError(
            "a dataset with a length and items by number, or (inputs, labels)",
            type(items).__name__,
            "Every lot is drawn from all items.",
            "Read the stream into a TensorDataset.",
        )
    if isinstance(items, TensorDataset):
        if len(items.tensors) != 2:
            raise ConfigError("a TensorDataset of inputs and labels", f"{len(items.tensors)} tensors")
        return _opened(tuple(items.tensors))
    if isinstance(items, tuple) and len(items) == 2:
        return (_inputs(items[0]), _array(items[1])), None
    return items, None


def _inputs(value: Any) -> NDArray[Any]:
    """Inputs as an array; in a list of images each keeps its own scale, which is that of its type."""
    found = _array(value)
    if not isinstance(value, list | tuple) or found.ndim <= 2:
        return found
    return np.stack([_unit(_array(one)) for one in value])


def _unit(image: NDArray[Any]) -> NDArray[np.float32]:
    """An image as numbers from 0 to 1, by its own type."""
    if image.dtype == np.uint8:
        return image.astype(np.float32) / np.float32(255)
    return (image if image.dtype.kind in "fiub" else memory.as_numbers(image)).astype(np.float32)


def _length(items: Any) -> int:
    return len(items[0] if isinstance(items, tuple) else items)


def _form(items: Any, shape: Shape | None) -> Shape:
    """The shape of an input, which is public; no item is read.

    Raises:
        ConfigError: Neither tensors nor `shape` say it, or it is none that can be released.
    """
    if isinstance(items, tuple):
        x, y = items
        shape = tuple(x.shape[1:]) if shape is None else shape
        if tuple(x.shape[1:]) != shape or y.ndim != 1:
            raise ConfigError(
                f"inputs (N, {', '.join(map(str, shape))}) and labels (N)", f"{tuple(x.shape)} and {tuple(y.shape)}"
            )
    if shape is None:
        raise ConfigError(
            "the shape of an input in `shape`",
            "a dataset that does not have it",
            "Read off an item, it would follow from that item alone.",
            "Pass shape=(1, 28, 28), or whatever it is.",
        )
    if len(shape) not in (1, 2, IMAGE_AXES) or (len(shape) == IMAGE_AXES and shape[0] not in (1, 3)):
        raise ConfigError(
            "vectors, or images (channels, height, width) with 1 or 3 channels",
            f"inputs of shape {' × '.join(map(str, shape)) or 'of one number'}",
            do="Flatten the inputs, and give them their shape inside the module.",
        )
    return (1, *shape) if len(shape) == 2 else shape


def _read(items: Any, form: Shape, groups: NDArray[Any] | None) -> memory.Arrays:
    """All items as arrays."""
    if isinstance(items, tuple):
        (x, y), faults = items, Faults()
        x = x.reshape(len(x), *form)
    else:
        x, y, faults = _one_by_one(items, form)
    return memory.Arrays(x if len(form) == 1 else _pixels(x, faults), y, groups, faults)


def _array(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else memory.as_array(value)


def _one_by_one(items: Any, form: Shape) -> tuple[NDArray[Any], NDArray[Any], Faults]:
    """Every item by itself; one that cannot be read is left out, and whatever it raises is not passed on."""
    count, faults = len(items), Faults()
    x, y = np.zeros((count, *form), np.float32), np.zeros(count, object)
    with _same_chance() as begin:
        for place in range(count):
            try:
                begin()
                item = items[place]
                value = _array(item[0])
                y[place] = _array(item[1]).item() if hasattr(item[1], "shape") else item[1]
                fits = value.shape in (form, form[1:] if form[0] == 1 else form)
                if fits:
                    x[place] = _unit(value) if len(form) > 1 else value
            except Exception:  # noqa: BLE001  an item may raise anything, and whether one does must not be seen
                faults.add(_UNREAD, [place])
            else:
                faults.add(_SHAPELESS, [] if fits else [place])
    return x, y, faults


@contextlib.contextmanager
def _same_chance() -> Iterator[Callable[[], None]]:
    """Puts the generators that all code shares into one public state, as often as it is called; they are put back.

    A transform that draws from them would otherwise do something else to every item behind one that is added.
    """
    plain, whole = random.getstate(), np.random.get_state()
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if used else []

    def begin() -> None:
        random.seed(0)
        np.random.seed(0)
        torch.default_generator.manual_seed(0)
        if devices:
            torch.cuda.manual_seed_all(0)

    with torch.random.fork_rng(devices=devices):
        try:
            yield begin
        finally:
            random.setstate(plain)
            np.random.set_state(whole)


def _by_name(y: NDArray[Any], classes: Any) -> NDArray[Any]:
    """Labels as names of classes, where these have names: a label may be one, or its number."""
    if isinstance(classes, int):
        return y
    names = {**{str(place): name for place, name in enumerate(classes)}, **{name: name for name in classes}}
    return np.array([None if text is None else names.get(text, text) for text in memory.text(y)], object)


def _pixels(x: NDArray[Any], faults: Faults) -> NDArray[np.uint8]:
    """Pixels as bytes, by a scale that is public: 0 to 1 becomes 0 to 255, and what lies outside is the nearest end."""
    if x.dtype == np.uint8:
        return x
    values = _unit(x)
    faults.add(_NO_NUMBER, np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1)))
    return np.rint(np.clip(np.nan_to_num(values), 0.0, 1.0) * 255).astype(np.uint8)

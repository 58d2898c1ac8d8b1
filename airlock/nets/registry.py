"""The table of built-in networks, those of other packages, the user's own by name or in memory, and their seeds.

A network of another package (entry points `airlock.nets`) is a function of `shape` and `classes`, as the user's own by
`package.module:function` is. Both are strangers to the engine, and the same is asked of both: `nets.check`, the
self-check of clipped gradients, and a short trial in court before the records are read. Neither is built because a
bundle names it: `build` knows the built-in ones alone.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from airlock import plugins
from airlock.config import MINILM as ENCODER
from airlock.config import TRANSFORMERS
from airlock.errors import NetError
from airlock.nets import hugging_face
from airlock.nets.backbones import RESIDUAL_WIDTHS, trained_linear, trained_name
from airlock.nets.bert import NAME as MINILM
from airlock.nets.bert import compact, is_compact, minilm_linear
from airlock.nets.classifiers import cifar_net, digits_net, linear, mlp, mnist_net, tanh_net
from airlock.nets.compact import FAMILY, compact_net
from airlock.nets.compact import SMALLEST as SMALLEST_COMPACT
from airlock.nets.frontend import Framed, pixels_linear, scattering_linear, whitened
from airlock.nets.scattering import SMALLEST
from airlock.nets.tables import blank, is_steps
from airlock.nets.wide_resnet import LAYOUTS as WIDE
from airlock.nets.wide_resnet import SMALLEST as SMALLEST_WIDE
from airlock.nets.wide_resnet import wide_resnet

# Torch's own generators, which draw initial weights and dropout.


def seed_torch(seed: int, device: torch.device | None = None) -> None:
    """Like `torch.manual_seed`, but on one device, or on the devices that are present.

    For every kind of accelerator that is not initialised yet, torch records and keeps the whole stack trace. When
    training a small network, that takes longer than a step, at every step.
    """
    if device is not None and device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device is None and torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


# Networks by name.

Shape = tuple[int, ...]
F = TypeVar("F", bound=Callable[..., nn.Module])

_TABLE: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mnist-net": lambda shape, classes: mnist_net(classes),
    "cifar-net": lambda shape, classes: cifar_net(classes),
    "digits-net": digits_net,
    "tanh-net": tanh_net,
    "mlp": mlp,
    "linear": linear,
    "scattering-linear": scattering_linear,
    "pixels-linear": pixels_linear,
    **{name: partial(compact_net, layout=layout, dropout=dropout) for name, (layout, dropout) in FAMILY.items()},
    **{name: partial(wide_resnet, depth=depth, width=width) for name, (depth, width) in WIDE.items()},
}
# Which record shapes a built-in network accepts, in words and as a test.
_SHAPES: dict[str, tuple[str, Callable[[Shape], bool]]] = {
    "mnist-net": ("1 × 28 × 28 images", lambda s: s == (1, 28, 28)),
    "cifar-net": ("3 × 32 × 32 images", lambda s: s == (3, 32, 32)),
    "digits-net": ("images of 4 to 16 pixels per side", lambda s: len(s) == 3 and all(4 <= n <= 16 for n in s[1:])),
    "tanh-net": ("images of at least 17 pixels per side", lambda s: len(s) == 3 and min(s[1:]) >= 17),
    "mlp": ("records of any shape", lambda s: True),
    "linear": ("records of any shape", lambda s: True),
    "scattering-linear": ("images of at least 8 pixels per side", lambda s: len(s) == 3 and min(s[1:]) >= SMALLEST),
    "pixels-linear": ("records of any shape", lambda s: True),
    **dict.fromkeys(
        FAMILY, ("images of at least 4 pixels per side", lambda s: len(s) == 3 and min(s[1:]) >= SMALLEST_COMPACT)
    ),
    **dict.fromkeys(
        WIDE, ("images of at least 8 pixels per side", lambda s: len(s) == 3 and min(s[1:]) >= SMALLEST_WIDE)
    ),
}
# Networks that only methods with heads build, because they need public weights or public images;
# "<name>-white-linear" also has a whitening.
_TRAINED: dict[str, Callable[[Shape, int], Framed]] = {
    MINILM: minilm_linear,
    **{
        f"{trained_name(w, m)}-linear": partial(trained_linear, width=w, mirror=m)
        for w in RESIDUAL_WIDTHS
        for m in (False, True)
    },
}


def names() -> tuple[str, ...]:
    """The built-in networks."""
    return tuple(_TABLE)


def is_built_in(name: object) -> bool:
    """Whether this names a network that `build` makes: one of `names`, or a small encoder with its number of tokens."""
    return name in _TABLE or (isinstance(name, str) and is_compact(name))


def others() -> tuple[str, ...]:
    """The networks of other packages, by name; none is imported for this."""
    return OTHERS.names()


# A network in memory.

MEMORY = ":memory:"  # what a config says in place of a name
_HELD: ContextVar[nn.Module | None] = ContextVar("airlock_net", default=None)


@contextlib.contextmanager
def held(net: nn.Module) -> Iterator[None]:
    """Make a network in memory that of `MEMORY` until the block ends; it is copied, and never changed."""
    token = _HELD.set(net)
    try:
        yield
    finally:
        _HELD.reset(token)


def held_net() -> nn.Module:
    """A copy of the network that is held, on the CPU, with its parameters as they are.

    Raises:
        NetError: There is none, as when a config file names `MEMORY`, or it cannot be copied.
    """
    found = _HELD.get()
    if found is None:
        raise NetError(
            f"a network in memory, as net = '{MEMORY}' says",
            "none",
            "It was there in the Python session that made the release, and no name leads to it.",
            "Pass it in Python: airlock.train_private(MODULE, ...), airlock.verify(BUNDLE, net=MODULE).",
        )
    try:
        return copy.deepcopy(found).cpu()
    except (RuntimeError, TypeError) as error:
        raise NetError(
            "a network that can be copied",
            f"{type(found).__name__}, which cannot ({str(error).splitlines()[0]})",
            "Training starts from a copy, and so does the trial in court.",
            "Detach its parameters, and keep no locks, files or generators in it.",
        ) from error


def held_mark() -> str:
    """A digest of the network that is held: its modules and its parameters."""
    net = held_net()
    total = hashlib.sha256(repr(net).encode())
    for name, tensor in net.state_dict().items():
        total.update(name.encode() + repr((tensor.shape, tensor.dtype)).encode())
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def is_foreign(name: object) -> bool:
    """Whether this names a network that is not Airlock's own: another package's, or `package.module:function`."""
    return isinstance(name, str) and (":" in name or name in OTHERS)


def register(name: str) -> Callable[[F], F]:
    """Make a network known to this process under a name; a decorator of a function of `shape` and `classes`."""

    def known(function: F) -> F:
        OTHERS.register(name, function)
        return function

    return known


def front_names() -> tuple[str, ...]:
    """The networks of `head`: a front end with a linear head, and the same with a whitening between them."""
    plain = ("pixels-linear", "scattering-linear", *_TRAINED)
    return plain + tuple(name.removesuffix("linear") + "white-linear" for name in plain)


def is_front(name: str) -> bool:
    """Whether this names a front end with a linear head, which only methods that train heads build."""
    return name in front_names() or is_steps(name)


def build_front(name: str, shape: Shape, classes: int) -> Framed:
    """A network for which `is_front`, freshly initialised.

    Raises:
        NetError: It does not accept records of this shape.
    """
    if is_steps(name):
        return blank(name, shape, classes)
    plain = name.replace("-white-", "-")
    net = _TRAINED[plain](shape, classes) if plain in _TRAINED else build(plain, shape, classes)
    assert isinstance(net, Framed)
    return whitened(net) if plain != name else net


def default_name(shape: Shape, vocabulary: int | None = None) -> str:
    """The network for records of this shape, by the shape alone; for texts, the encoder that comes with them."""
    if vocabulary is not None:
        return TRANSFORMERS + ENCODER
    for name in ("digits-net", "tanh-net"):
        if _SHAPES[name][1](shape):
            return name
    return "mlp"


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """A built-in network, freshly initialised from torch's global generator.

    Raises:
        NetError: The name is unknown, or the network does not accept records of this shape.
    """
    if is_compact(name):
        return compact(name, shape, classes)
    if name not in _TABLE:
        known = (*_TABLE, *OTHERS.names())
        near = difflib.get_close_matches(name, known, n=1)
        missing = "Install the package that brings it, or give your own as package.module:function."
        hint = f"Did you mean '{near[0]}'?" if near else missing
        raise NetError(f"a built-in net ({', '.join(known)})", f"'{name}'", do=hint)
    words, takes = _SHAPES[name]
    if not takes(shape):
        raise NetError(
            f"{words} for net '{name}'",
            f"records of shape {' × '.join(map(str, shape))}",
            do="Use another net, or leave `net` out to have one chosen by shape.",
        )
    return _TABLE[name](shape, classes)


def public_name(name: str) -> str:
    """What a card calls a network: its name, or of a folder what is public about it."""
    return hugging_face.public_name(name) if hugging_face.is_named(name) else name


def create(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """A network from `seed`: built in, of another package or transformers, or the user's own (`module:function`)."""
    if name == MEMORY:
        return held_net()
    if hugging_face.is_named(name):
        make = hugging_face.open_net
    else:
        make = open_user_net if ":" in name else _open_foreign if name in OTHERS else build
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        return make(name, shape, classes)


def tuned(net: nn.Module, how: hugging_face.Tune, rank: int, seed: int) -> nn.Module:
    """The network with only these of its parameters to be trained (`hugging_face`); adapters are drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        return hugging_face.tuned(net, how, rank)


def open_user_net(name: str, shape: Shape, classes: int) -> nn.Module:
    """The user's own network by `package.module:name`; the module is also looked for in the current folder.

    The name may be that of a function or a class, which is called with the keywords `shape` and `classes` if it accepts
    them, or of a network that is ready: that is copied, with its parameters as they are.

    Raises:
        NetError: There is nothing of that name, or what it gives is no network.
    """
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise NetError(
            "your own network as package.module:function", f"'{name}'", do='For example net = "my_nets:make".'
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # behind what is installed: one may stand in a folder that came from elsewhere
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise NetError(
            f"a function, a class or a network at '{name}'",
            f"none ({error})",
            do="Run from the folder that holds the module, or install it.",
        ) from error
    return copy.deepcopy(found) if isinstance(found, nn.Module) else _called(found, name, shape, classes)


def _open_foreign(name: str, shape: Shape, classes: int) -> nn.Module:
    """A network of another package; nothing has seen a record here, so that its own words may be repeated."""
    function = OTHERS.get(name)
    with OTHERS.blamed(name, f"give a network for records of shape {' × '.join(map(str, shape))}", quote=True):
        return _called(function, name, shape, classes)


_OFFERED = ("shape", "classes")
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _called(function: Callable[..., object], name: str, shape: Shape, classes: int) -> nn.Module:
    """What a function or a class gives, with the keywords `shape` and `classes` where it takes them."""
    if not callable(function):
        raise NetError(f"a function, a class or a torch.nn.Module at '{name}'", type(function).__name__)
    takes = inspect.signature(function).parameters
    needed = [key for key, one in takes.items() if one.default is one.empty and one.kind not in _STARRED]
    if unknown := [key for key in needed if key not in _OFFERED]:
        raise NetError(
            f"'{name}' to need no arguments but shape and classes",
            f"'{unknown[0]}'",
            "Airlock knows the shape of a record and the number of classes, and nothing else about your network.",
            f"Give '{unknown[0]}' a default, or name a function that calls it.",
        )
    offered = {"shape": shape, "classes": classes}
    net = function(**{key: value for key, value in offered.items() if key in takes})
    if not isinstance(net, nn.Module):
        raise NetError(f"a torch.nn.Module from '{name}'", type(net).__name__)
    return net


def _function(thing: object, name: str) -> Callable[..., object]:
    if not callable(thing):
        raise NetError(f"a function of shape and classes as the net '{name}'", type(thing).__name__)
    return thing


OTHERS = plugins.Registry(plugins.NETS, "net", ("auto", *_TABLE, *front_names()), _function, NetError)

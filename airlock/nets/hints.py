"""Hints: the output of a layer inside a network, and an adapter from a student's layer to the size of a teacher's.

This works with any network, built-in or the user's own: a layer is found by its name (`named_modules`), a hook takes
its output, and what comes after it is not computed. The adapter between the two layers follows from their shapes: a 1 ×
1 convolution for feature maps of the same height and width, a dense layer for vectors (Wang et al. 2019, after Eq. 3).
"""

from __future__ import annotations

import difflib
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.registry import seed_torch

Shape = tuple[int, ...]


class _Reached(Exception):
    """The layer's output is known; the rest of the network is not needed."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def find_layer(net: nn.Module, name: str, whose: str) -> nn.Module:
    """The layer with this name; `whose` says which network it is, for the message.

    Raises:
        NetError: There is none; the message lists the existing layers.
    """
    known: dict[str, nn.Module] = {path: layer for path, layer in net.named_modules() if path}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else "Use one of these."
    raise NetError(f"a layer of the {whose} ({', '.join(known) or 'it has none'})", f"'{name}'", do=hint)


def output_at(net: nn.Module, name: str, x: Tensor, whose: str = "network") -> Tensor:
    """The layer's output for these inputs, with its gradient; for a layer that is used twice, the first output.

    Raises:
        NetError: There is no such layer, the network does not use it, or its output is not a tensor with one row per
            record.
    """

    def stop(layer: nn.Module, inputs: Any, output: Any) -> NoReturn:
        raise _Reached(output)

    handle = find_layer(net, name, whose).register_forward_hook(stop)
    try:
        net(x)
    except _Reached as reached:
        output = reached.output
    else:
        raise NetError(f"a layer that the {whose} uses", f"'{name}', which its forward pass never reaches")
    finally:
        handle.remove()
    if not isinstance(output, Tensor) or output.dim() < 2 or len(output) != len(x):
        raise NetError(f"a tensor with one row per record from layer '{name}' of the {whose}", "something else")
    return output


def shape_at(net: nn.Module, name: str, shape: Shape, whose: str) -> Shape:
    """The shape of the layer's output for one record; the network is not changed."""
    training, device = net.training, next(net.parameters()).device
    with torch.no_grad():
        found = output_at(net.eval(), name, torch.zeros(2, *shape, device=device), whose).shape[1:]
    net.train(training)
    return tuple(found)


class Guided(nn.Module):
    """A student up to its guided layer, with an adapter on top; it shares the student's parameters.

    Args:
        net: The student.
        guide: The name of its guided layer.
        adapter: Maps that layer's output to the size of the hint.
    """

    def __init__(self, net: nn.Module, guide: str, adapter: nn.Module) -> None:
        super().__init__()
        self.net, self.adapter, self.guide = net, adapter, guide
        find_layer(net, guide, "student")

    def forward(self, x: Tensor) -> Tensor:
        """The student's prediction of the hint."""
        adapted: Tensor = self.adapter(output_at(self.net, self.guide, x, "student"))
        return adapted


def guided(student: nn.Module, guide: str, teacher: nn.Module, hint: str, shape: Shape, seed: int) -> Guided:
    """The student up to `guide`, with an adapter to the output of the teacher's layer `hint`.

    Args:
        student: Any network.
        guide: The name of one of its layers.
        teacher: Any network.
        hint: The name of one of its layers.
        shape: The shape of one record.
        seed: Initialises the adapter; public.

    Raises:
        NetError: A layer does not exist, or no adapter fits the two.
    """
    ours, theirs = shape_at(student, guide, shape, "student"), shape_at(teacher, hint, shape, "teacher")
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        return Guided(student, guide, _adapter(ours, theirs, guide, hint))


def _adapter(ours: Shape, theirs: Shape, guide: str, hint: str) -> nn.Module:
    if len(ours) == len(theirs) == 3 and ours[1:] == theirs[1:]:
        return nn.Conv2d(ours[0], theirs[0], 1)
    if len(ours) == len(theirs) == 1:
        return nn.Linear(ours[0], theirs[0])
    maps = len(ours) == len(theirs) == 3
    raise NetError(
        "feature maps of the same height and width, or two vectors, as guide and hint",
        f"{_words(ours)} from '{guide}' of the student and {_words(theirs)} from '{hint}' of the teacher",
        "A 1 × 1 convolution connects maps of the same size, a dense layer connects vectors; nothing fits these.",
        "Name layers after the same number of poolings." if maps else "Name two layers of the same kind.",
    )


def _words(shape: Shape) -> str:
    return " × ".join(map(str, shape))

"""Layers of networks that share everything else: one batch with all networks' records, and parameters of their own.

Networks that were made from one frozen base differ in few parameters, such as adapters and a head. `divide` prepares
one of them for a batch in which the records of the first network come first, then those of the second, and so on. What
is frozen sees this batch as any other: one large matrix product in place of one for every network. A layer with
trainable parameters gets these stacked along a new first axis, and divides the batch among the networks: a dense layer
by one batched product, any other by vmap.

That is right only if records are the first dimension of whatever such a layer is called with, and if nothing else mixes
them, so the caller compares the gradients with those of single networks (`stacked.choose`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten


def divide(net: nn.Module) -> None:
    """Replace every layer with trainable parameters, in place; parameters keep their names."""
    covered: set[nn.Module] = set()
    for layer in net.modules():
        if layer in covered or not any(p.requires_grad for p in layer.parameters(recurse=False)):
            continue
        covered |= set(layer.modules())
        if type(layer) is nn.Linear:
            layer.__class__ = OwnLinear
        else:
            vars(layer)["dims_alone"] = {name: value.dim() for name, value in _values(layer)}
            vars(layer)["alone"] = False
            layer.__class__ = type(f"Own{type(layer).__name__}", (OwnLayer, type(layer)), {})


def _values(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters()
    yield from layer.named_buffers()


class OwnLinear(nn.Linear):
    """A dense layer of which each network has its own weight, bias or both."""

    def forward(self, x: Tensor) -> Tensor:
        """The output for all networks' records."""
        weight, bias = self.weight, self._parameters["bias"]
        if weight.dim() == 2:
            out = F.linear(x, weight)
            return out if bias is None else _by_network(out, len(bias)).add(bias[:, None]).view_as(out)
        rows, columns = _by_network(x, len(weight)), weight.transpose(1, 2)
        if bias is None:
            out = torch.bmm(rows, columns)
        else:
            out = torch.baddbmm(bias[:, None] if bias.dim() > 1 else bias, rows, columns)
        return out.view(*x.shape[:-1], weight.shape[1])


def _by_network(x: Tensor, models: int) -> Tensor:
    """(networks, positions, numbers)."""
    if len(x) % models:
        raise ValueError(f"{len(x)} records are not equally many of {models} networks")
    return x.reshape(models, -1, x.shape[-1])


class OwnLayer(nn.Module):
    """In front of the class of any other layer: calls it on each network's records, with that network's parameters."""

    dims_alone: dict[str, int]  # of parameters and buffers of one network
    alone: bool  # whether it is being called for one network

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The output for all networks' records."""
        if self.alone:
            return super().forward(*inputs, **keywords)
        values = dict(_values(self))
        own = {name: 0 if value.dim() > self.dims_alone[name] else None for name, value in values.items()}
        models = next(len(values[name]) for name, place in own.items() if place == 0)
        leaves, structure = tree_flatten((inputs, keywords))
        given = [_divided(leaf, models) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        places = [0 if isinstance(leaf, Tensor) else None for leaf in leaves]

        told: list[Any] = []  # what is no tensor, and how the output is put together

        def call(parameters: dict[str, Tensor], parts: list[Any]) -> list[Tensor]:
            positional, named = tree_unflatten(parts, structure)
            leaves, shape = tree_flatten(functional_call(self, parameters, positional, named))
            told[:] = [leaf for leaf in leaves if not isinstance(leaf, Tensor)], [type(leaf) for leaf in leaves], shape
            return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        self.alone = True
        try:
            found = iter(vmap(call, (own, places), randomness="error")(values, given))
        finally:
            self.alone = False
        rest, kinds, shape = iter(told[0]), *told[1:]
        parts = [next(found).flatten(0, 1) if issubclass(kind, Tensor) else next(rest) for kind in kinds]
        return tree_unflatten(parts, shape)


def _divided(x: Tensor, models: int) -> Tensor:
    if not x.dim() or len(x) % models:
        raise ValueError(f"a tensor of shape {tuple(x.shape)} does not hold equally many records of {models} networks")
    return x.reshape(models, len(x) // models, *x.shape[1:])

"""Restores a network to its state before a record went through it.

A network may count, cache or remember things: in buffers, in frozen parameters that it writes to, in its attributes.
What it remembers of one record would be seen by the next, and would leave without noise. `Sealed` keeps every tensor of
the state and every attribute of every module, and restores what has changed.

Guarantee: after `restore`, parameters, buffers, attributes, and the lists, dicts and sets among the attributes are
those at the time the seal was set (for trainable parameters: at the last `accept`). What a network keeps in global
variables, in files or deeper inside other objects is not covered; that is an assumption about its code.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

USES = "_airlock_uses"  # the attribute in which a network's engines are cached
_OWN = frozenset({"_parameters", "_buffers", "_modules", USES})
_CONTAINERS = (list, dict, set, deque)


class Uses(dict[tuple[object, ...], object]):
    """How a network is used; attached to it, but not copied with it."""

    def __deepcopy__(self, memo: object) -> Uses:
        return Uses()

    def __reduce__(self) -> tuple[type[Uses], tuple[()]]:
        return Uses, ()


class Sealed:
    """Everything that a network holds, to be restored.

    Args:
        net: The network.
        parameters: Whether its parameters belong to the seal. Those in shards do not: what a network writes to them is
            gone when they are gathered anew (`training.sharding`).
    """

    def __init__(self, net: nn.Module, parameters: bool = True) -> None:
        self.net = net
        kept = [*(net.parameters() if parameters else ()), *net.buffers()]
        self._tensors = [(t, t.detach().clone()) for t in kept if not _trains(t)]
        self._trained = [(t, t.detach().clone()) for t in kept if _trains(t)]
        tables: list[dict[str, Any]] = [t for m in net.modules() for t in (m._parameters, m._buffers)]
        self._places = [(table, dict(table)) for table in tables]
        self._attributes = [(vars(module), _shallow(vars(module))) for module in net.modules()]

    @property
    def constants(self) -> list[Tensor]:
        """Tensors among the attributes, which existed before any record was seen."""
        found = [value for _, kept in self._attributes for value in kept.values()]
        return [t for value in found for t in _inside(value) if isinstance(t, Tensor)]

    def accept(self) -> None:
        """Keep the trainable parameters that an optimiser has changed."""
        with torch.no_grad():
            for tensor, kept in self._trained:
                kept.copy_(tensor)

    def restore(self, tensors: bool = True) -> None:
        """Restore everything, or everything but the numbers in parameters and buffers."""
        for table, kept in self._places:
            if table.keys() != kept.keys() or any(table[name] is not value for name, value in kept.items()):
                table.clear()
                table.update(kept)
        if tensors:
            with torch.no_grad():
                for tensor, value in (*self._tensors, *self._trained):
                    tensor.detach().copy_(value)
        for own, before in self._attributes:
            _put_back(own, before)


def _trains(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes, with copies of the containers among them kept along with the containers themselves."""
    kept = {name: value for name, value in attributes.items() if name not in _OWN}
    return {name: (value, value.copy()) if isinstance(value, _CONTAINERS) else value for name, value in kept.items()}


def _inside(value: Any) -> list[Any]:
    """An attribute, or its contents if it is a container."""
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], _CONTAINERS)):
        return [value]
    return list(value[1].values()) if isinstance(value[1], dict) else list(value[1])


def _put_back(own: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [name for name in own if name not in before and name not in _OWN]:
        del own[name]
    for name, value in before.items():
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], _CONTAINERS):
            container, content = value
            own[name] = container
            if len(container) != len(content) or not _same(container, content):
                container.clear()
                container.extend(content) if isinstance(container, list | deque) else container.update(content)
        elif own.get(name) is not value:
            own[name] = value


def _same(container: Any, content: Any) -> bool:
    """By identity: comparing tensors by value is neither needed nor safe."""
    if isinstance(container, set):
        return bool(container == content)
    if isinstance(container, dict):
        return all(name in content and content[name] is value for name, value in container.items())
    return all(one is other for one, other in zip(container, content, strict=True))

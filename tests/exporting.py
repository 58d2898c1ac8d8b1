"""torch.onnx.export for tests: the graph of a network is made once a session, and every network's own weights put in.

Most tests that make a release are not about the exporter, which is two thirds of the time of a small one. A graph is
shared only between networks that are alike in all but their tensors: the same modules with the same plain attributes.
Whatever holds anything else is exported anew. The release still compares what it writes with the network in ONNX
Runtime, and `tests/bundle/test_export.py` compares files that were made both ways, byte by byte.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from airlock.training.per_sample.sealed import USES

OURS = ("torch.nn.", "airlock.nets.")
PLAIN = (bool, int, float, str, type(None))
# Tensors and modules are compared for themselves; the last are the notes of the engine.
NOT_ITS_OWN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", USES}


def once(export: Callable[..., Any]) -> Callable[..., Any]:
    """The exporter with a memory."""
    graphs: dict[str, Any] = {}

    @functools.wraps(export)
    def remembering(net: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> Any:
        key = architecture(net, inputs, options)
        if key is None:
            return export(net, inputs, **options)
        if key not in graphs:
            program = export(net, inputs, **options)
            if program is None:
                return None
            graphs[key] = program.model_proto
        return SimpleNamespace(model_proto=with_tensors_of(net, graphs[key]))

    return remembering


def architecture(net: nn.Module, inputs: tuple[torch.Tensor, ...], options: dict[str, Any]) -> str | None:
    """All that a graph depends on beside the values of the network's tensors; None where that cannot be told."""
    parts = [repr(options), repr([(each.shape, each.dtype) for each in inputs])]
    for name, module in net.named_modules(remove_duplicate=False):
        own = {key: value for key, value in vars(module).items() if not (key in NOT_ITS_OWN or _no_hooks(key, value))}
        if not type(module).__module__.startswith(OURS) or not all(map(_is_plain, own.values())):
            return None
        parts.append(f"{name} {type(module)} {sorted(own.items())}")
    tensors = _tensors(net)
    if len({tensor.data_ptr() for tensor in tensors.values()}) < len(tensors):
        return None  # one tensor under two names
    parts += [f"{name} {tensor.shape} {tensor.dtype}" for name, tensor in tensors.items()]
    return "\n".join(parts)


def with_tensors_of(net: nn.Module, graph: Any) -> Any:
    """A copy of the graph with this network's tensors under their names."""
    import onnx
    from onnx import numpy_helper

    made, tensors = onnx.ModelProto(), _tensors(net)
    made.CopyFrom(graph)
    for initializer in made.graph.initializer:
        if initializer.name in tensors:
            values = tensors[initializer.name].detach().cpu().contiguous().numpy()
            initializer.raw_data = numpy_helper.from_array(values).raw_data
    return made


def _tensors(net: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers(remove_duplicate=False))}


def _no_hooks(key: str, value: object) -> bool:
    return "hooks" in key and not value


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)

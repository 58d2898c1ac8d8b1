"""Tracks the records' axis through every operator that a network runs: are the records of a batch kept apart?

Clipping bounds one record's effect only if what is measured and summed for a record depends on that record alone. Here
this is proved, not tested: a dispatch mode sees every operator of a forward and a backward pass and knows, for every
tensor, one of four things:

* `Axis(dim, inner)`: along `dim`, which has outer · R · inner positions, position p belongs to record (p // inner) % R,
and its content depends on that record alone (and on parameters and constants). So (B, T, E), (T, B, E), (B · T, E) and
several adjacent views of a record are all covered;
* `CONSTANT`: it depends on no record;
* `RANDOM`: fresh random numbers, one per position, independent of everything else;
* `Mixed(reason)`: nothing is known.

An operator without a rule gives Mixed. A constant that differs between positions along the records' axis gives Mixed
when it is combined with records (a record's position depends on who else was drawn). Whatever leaves torch as a Python
value (`item`, `tolist`, `numpy`) invalidates the proof, with one exception: a *decision*, a single boolean, is answered
by a public value that was fixed on made-up records, so that no record affects what is computed for another.

Guarantee: if a pass ends with every layer's input, every layer's output gradient and the losses having an Axis, then
each of them depends, at the positions of record i, only on record i, parameters, constants, fixed decisions and fresh
random numbers. The rules below are the proof, one operator at a time. It relies on torch's operators computing what
they are documented to compute, and on the network's Python code keeping no records in global variables (its own
attributes are restored after every lot: `sealed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from airlock.training.per_sample.operator_rules import (
    CONSTANT,
    Axis,
    Kind,
    Mixed,
    OperatorCall,
    State,
    Unshown,
    is_uniform,
)

# Methods that pass a tensor's numbers to something other than torch, and functions that make a tensor of such numbers.
_TAKEN_OUT = {"tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "__reduce_ex__"}
_MADE_ANEW = {"tensor", "as_tensor", "asarray", "new_tensor", "sparse_coo_tensor", "from_numpy"}


class RecordAxis(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches one forward and backward pass.

    Args:
        records: R, at least 2.
        constants: Tensors that exist before the pass and depend on no record: parameters, buffers and the like.
        decisions: The fixed answers to the network's decisions, in order; None records the answers on made-up records.
        light: Only answer decisions; for a pass whose other properties were shown before (inside a CUDA graph, say).
    """

    def __init__(
        self,
        records: int,
        constants: Iterable[Tensor] = (),
        decisions: Sequence[bool] | None = None,
        light: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records, self.light = records, light
        self.fixed = None if decisions is None else list(decisions)
        self.decided: list[bool] = []
        self._states: dict[int, dict[tuple[Any, ...], State]] = {}
        self._outside: set[int] = set()  # storages that this pass may read but not write
        self._python = _Python(self)
        for tensor in constants:
            self.note(tensor, CONSTANT)

    def __enter__(self) -> RecordAxis:
        if not self.light:
            self._python.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if not self.light:
            self._python.__exit__(*error)  # type: ignore[no-untyped-call]

    def note(self, tensor: Tensor, state: State) -> None:
        """State what is known about a tensor from before the pass. It may not be written to."""
        self._states.setdefault(storage_of(tensor), {})[_geometry(tensor)] = state
        self._outside.add(storage_of(tensor))

    def state(self, tensor: Tensor) -> State:
        """What is known about it; Mixed for one of unknown origin, such as a cache of earlier records."""
        with torch._C.DisableTorchFunction():
            return self._state(tensor)

    def _state(self, tensor: Tensor) -> State:
        known = self._states.get(storage_of(tensor))
        found = known.get(_geometry(tensor)) if known else None
        if found is None:
            return Mixed("a tensor that came from outside this pass") if tensor.numel() else CONSTANT
        return found

    def place(self, tensor: Tensor, axis: Axis) -> None:
        """Declare where records are in a tensor of this pass that is the same for all of them."""
        with torch._C.DisableTorchFunction():
            self._states[storage_of(tensor)] = {_geometry(tensor): axis}

    def uniform(self, tensor: Tensor, axis: Axis) -> bool:
        """Whether a tensor that depends on no record is the same for every record along this axis."""
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            return is_uniform(tensor, axis, self.records)

    def axis(self, tensor: Tensor, what: str) -> Axis | None:
        """Where its records are; None if it depends on none.

        Raises:
            Unshown: It depends on several records.
        """
        found = self.state(tensor)
        if isinstance(found, Mixed):
            raise Unshown(f"{what} depends on several records ({found.reason})")
        return found if isinstance(found, Axis) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            kwargs = kwargs or {}
            if func._schema.name == "aten::_local_scalar_dense":
                return self._read(func, args[0])
            out = func(*args, **kwargs)
            if not self.light:
                self._follow(OperatorCall(self.records, self._state, func, args, kwargs, out))
            return out

    def _follow(self, call: OperatorCall) -> None:
        """Store what is known about every output and everything written to."""
        states, written = call.infer(), call.written() if call.operator.writes else []
        for target in written:
            self._write(target, states[0] if states else Mixed(f"{call.name} writes to it"))
        shared, changed = {storage_of(t) for t in call.inputs}, {(storage_of(t), _geometry(t)) for t in written}
        for result, state in zip(call.results, states, strict=True):
            if not changed or (storage_of(result), _geometry(result)) not in changed:
                self._settle(result, state, shared)

    def _read(self, func: Any, tensor: Tensor) -> Any:
        """A value that Python sees: allowed for constants, fixed for decisions, refused otherwise."""
        if self.light:
            return self._decision(None) if tensor.dtype == torch.bool else func(tensor)
        if isinstance(self._state(tensor), Kind):
            return func(tensor)
        if tensor.dtype != torch.bool:
            raise Unshown("a value that depends on records is read into Python")
        return self._decision(func(tensor) if self.fixed is None else None)

    def _decision(self, found: bool | None) -> bool:
        if self.fixed is not None:
            if len(self.decided) >= len(self.fixed):
                raise Unshown("the network decides more often than it did on made-up records")
            found = self.fixed[len(self.decided)]
        self.decided.append(bool(found))
        return bool(found)

    def _settle(self, tensor: Tensor, state: State, shared: set[int]) -> None:
        """Record a tensor returned by an operator, in a new storage unless it is one of `shared`."""
        place = storage_of(tensor)
        if place not in shared:
            self._states[place] = {}  # whatever was at this address before is gone
            self._outside.discard(place)
        self._states.setdefault(place, {})[_geometry(tensor)] = state

    def _write(self, tensor: Tensor, state: State) -> None:
        """Record that an operator wrote to the tensor.

        Raises:
            Unshown: It existed before the pass: what is written would be seen by other records, or leave.
        """
        place, before = storage_of(tensor), self._state(tensor)
        if place in self._outside:
            raise Unshown("a parameter, a buffer or another tensor from before the pass is written to")
        known = self._states.setdefault(place, {})
        if isinstance(before, Axis) and isinstance(state, Kind):
            return  # the rest is unchanged, and what is new depends on no record
        if before != state and len(known) > 1:
            state = Mixed("a part of a tensor is written to")
            known.update(dict.fromkeys(known, state))
        known[_geometry(tensor)] = state


class _Python(TorchFunctionMode):
    """Detects what would carry records out of torch, and back into it, untracked."""

    def __init__(self, watch: RecordAxis) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _TAKEN_OUT or name in _MADE_ANEW:
            for tensor in _nested((args if name in _MADE_ANEW else args[:1], kwargs)):
                if not isinstance(self._watch.state(tensor), Kind):
                    raise Unshown(f"records are taken out of torch by {name}")
        return func(*args, **(kwargs or {}))


def _nested(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _nested(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _nested(one)


def storage_of(tensor: Tensor) -> int:
    """The address of its storage."""
    return int(tensor.untyped_storage()._cdata)


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride()

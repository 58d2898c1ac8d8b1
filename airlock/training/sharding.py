"""A network whose parameters are in shards over several processes (FSDP2), for one that no device holds whole.

Every process keeps an equal share of every parameter's rows, and of the optimiser's state and the averaged weights for
these rows. The network is divided into units: modules with at most a sixteenth of its parameters each, such as the
blocks of a transformer. A unit's parameters are whole in a process only while its module computes.

FSDP2 (`torch.distributed.fsdp.fully_shard`) holds the shards of a unit and gathers them. It is given the parameters in
a module of their own that is never called, so that its hooks on forward and backward passes are not in use, for two
reasons. They reduce gradients of weights, which are not computed here: the engine adds up clipped gradients of records.
And a pass here has to go on after it has failed: a record on which the network fails is dropped, and must not be the
reason why the processes wait for each other for ever. So a pass follows a *plan*: what the processes do together, in
which order, is recorded on made-up records. A process that fails, or that is about to do something else, carries out
the rest of the plan with nothing in its hands; then all learn the worst that happened to any of them (`worst`).

A parameter's sum is reduced as soon as it is final, in float64: each process gets the sum over all processes, never the
mean, of its own rows. What this adds to the rounding of a sum is in the bound of `per_sample.sums`.

Outside a pass the network's parameters have a shape but no memory. torch does not notice if they are used nevertheless;
the process would crash. Passes on made-up records are therefore watched (`watched`), and a network that uses a
parameter outside the unit it is in is gathered as a whole instead.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from airlock.errors import ConfigError, TrainingError
from airlock.training.distributed import Group, answers
from airlock.training.gradients import Named

_UNITS = 16  # a unit has at most this fraction of the parameters, or is a single layer
WHOLE_LAYERS = (nn.MultiheadAttention,)  # use their children's parameters without calling the children
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)

Event = tuple[Literal["gather", "reduce"], Hashable]
Plans = dict[Hashable, tuple[Event, ...]]


class OtherPlan(Exception):
    """A pass departs from its plan, or uses a parameter that is not gathered."""


@dataclass(frozen=True)
class Piece:
    """This process' rows of a parameter.

    Args:
        shape: Of the whole parameter; one without dimensions counts as one row.
        start: The first row.
        stop: The row after the last.
        local: These rows; the optimiser steps on them.
    """

    shape: torch.Size
    start: int
    stop: int
    local: nn.Parameter

    @property
    def width(self) -> int:
        """The numbers in a row."""
        return self.shape[1:].numel()

    @property
    def offset(self) -> int:
        """The place of the first of these numbers in the whole parameter."""
        return self.start * self.width

    def cut(self, value: Tensor) -> Tensor:
        """This process' part of a tensor that has an entry for every row, along the first dimension, or one for all."""
        rows = value.dim() == len(self.shape) > 0 and len(value) == self.shape[0]
        return value[self.start : self.stop] if rows else value


class ShardedParameters:
    """The parameters of a network in shards. The network can be used within `passing` and `whole` alone.

    Args:
        net: The same in all processes; its parameters lose their memory.
        group: The processes.
        device: Where this one computes.

    Raises:
        ConfigError: This torch, or these devices, cannot do it.
    """

    def __init__(self, net: nn.Module, group: Group, device: torch.device) -> None:
        self.net, self.group = net, group
        self._processes = group.for_tensors(device)
        stations, rest = _stations(net)
        named = {id(p): (name, p) for name, p in net.named_parameters()}
        self._units: list[_Unit] = []
        self._place: dict[int, int] = {}  # the unit that each parameter is in
        found: dict[str, Piece] = {}
        for parameters in ([rest] if rest else []) + [list(module.parameters()) for module in stations]:
            for own in _by_type(p for p in parameters if id(p) not in self._place):
                unit = _Unit(own, self._processes, device)
                self._place |= {id(p): len(self._units) for p in own}
                self._units.append(unit)
                found |= {named[id(p)][0]: self._piece(p, local) for p, local in zip(own, unit.locals(), strict=True)}
        self.pieces = {name: found[name] for name, _ in named.values()}  # in the network's order
        self._around = {module: self._units_of(module.parameters()) for module in stations}
        self._always = self._units_of(rest)
        self._plan: tuple[Event, ...] | None = None
        self._done: list[Event] = []
        self._in_pass = False
        self.peak = 0  # the most numbers of gathered parameters at a time
        net.to(device)  # buffers: the parameters are there

    @property
    def local(self) -> Named:
        """This process' rows of every parameter."""
        return {name: piece.local for name, piece in self.pieces.items()}

    def _piece(self, parameter: nn.Parameter, local: nn.Parameter) -> Piece:
        rows = len(parameter) if parameter.dim() else 1
        start = min(rows, self.group.rank * self._share(rows))
        return Piece(parameter.shape, start, start + len(local), local)

    def _share(self, rows: int) -> int:
        """How many of these rows a process has, at most."""
        return -(-rows // self.group.world)

    def _units_of(self, parameters: Iterable[nn.Parameter]) -> list[int]:
        return sorted({self._place[id(p)] for p in parameters})

    # Passes.

    @contextlib.contextmanager
    def passing(self, kind: Hashable, plans: Plans) -> Iterator[None]:
        """A forward and a backward pass through the network, and what is computed from it.

        Args:
            kind: What is computed.
            plans: The plan of each kind; that of a kind that is not among them is recorded.

        Raises:
            OtherPlan: This pass departs from its plan.
        """
        self._plan, self._done, self._in_pass = plans.get(kind), [], True
        hooks = [m.register_forward_pre_hook(self._before) for m in self._around]
        hooks += [m.register_forward_hook(self._after) for m in self._around]
        try:
            self._gather(self._always)
            yield
            if self._plan is not None and len(self._done) < len(self._plan):
                raise OtherPlan("the network calls fewer modules than before")
            plans.setdefault(kind, tuple(self._done))
        except TrainingError:  # a process does not answer
            raise
        except Exception:
            self._go_along()
            raise
        finally:
            self._in_pass = False
            for hook in hooks:
                hook.remove()
            self._free_all()

    @contextlib.contextmanager
    def gathered(self, layer: nn.Module) -> Iterator[None]:
        """A layer's parameters are whole in here, and no other's."""
        needed = self._units_of(layer.parameters())
        self._free_but(needed)
        self._gather(needed)
        yield
        self._free_but(())

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """All parameters are whole in here, in every process."""
        try:
            self._gather(range(len(self._units)))
            yield
        finally:
            self._free_all()

    def reduce(self, name: str, value: Tensor) -> Tensor:
        """This process' rows of the sum of all processes' values of a parameter."""
        found = self._together(("reduce", name), value)
        assert found is not None
        return found

    def worst(self, level: int) -> int:
        """The highest level of all processes."""
        return self.group.highest(level)

    def lengths(self, values: Named) -> Named:
        """The norm of every parameter's value in float64, from each process' rows of it."""
        squares = torch.stack([value.double().square().sum() for value in values.values()])
        with answers(self.group.world):
            dist.all_reduce(squares, group=self._processes)
        return dict(zip(values, squares.sqrt(), strict=True))

    def copies(self, instead: Named | None = None) -> Named:
        """All parameters as a whole, on the CPU, in every process.

        Args:
            instead: This process' rows of other values, which are gathered in place of the parameters' own.
        """
        names = {id(p): name for name, p in self.net.named_parameters()}
        kept = {name: self.pieces[name].local.detach().clone() for name in instead or {}}
        self._overwrite(instead or {})
        found: Named = {}
        for place, unit in enumerate(self._units):
            self._gather([place])
            found |= {names[id(p)]: p.detach().to("cpu", copy=True) for p in unit.parameters}
            self._free_all()
        self._overwrite(kept)
        return {name: found[name] for name in self.pieces}

    def _overwrite(self, values: Named) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.pieces[name].local.copy_(value)

    def dissolve(self) -> None:
        """Make it an ordinary network again, on the CPU."""
        whole = self.copies()
        for name, parameter in self.net.named_parameters():
            parameter.data = whole[name]
        self.net.to("cpu")
        self._let_go()

    def abandon(self) -> None:
        """Leave the network without numbers: whatever uses it then gets an error instead of a crash."""
        for parameter in self.net.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype)
        self._let_go()

    def _let_go(self) -> None:
        """Of everything that refers to the group of processes: it is destroyed before the process ends."""
        self._units, self._processes, self._around = [], None, {}
        gc.collect()  # FSDP2's objects refer to each other

    # What the processes do together.

    def _together(self, event: Event, value: Tensor | None = None) -> Tensor | None:
        if self._in_pass:
            if self._plan is not None and self._plan[len(self._done) : len(self._done) + 1] != (event,):
                raise OtherPlan("the network calls its modules in another order than before")
            self._done.append(event)
        return self._carry_out(event, value)

    def _carry_out(self, event: Event, value: Tensor | None = None) -> Tensor | None:
        kind, what = event
        with answers(self.group.world), _unseen():
            if kind == "reduce":
                return self._scatter(str(what), value)
            assert isinstance(what, int)
            self._units[what].gather()
        self.peak = max(self.peak, sum(unit.numbers for unit in self._units if unit.present))
        return None

    def _scatter(self, name: str, value: Tensor | None) -> Tensor:
        """Add up over the processes, and keep the own rows."""
        piece = self.pieces[name]
        rows, device = piece.shape[0] if piece.shape else 1, piece.local.device
        padded = self._share(rows) * self.group.world
        if value is None or padded > rows:
            whole = torch.zeros(padded, piece.width, dtype=torch.float64, device=device)
            if value is not None:
                whole[:rows] = value.reshape(rows, piece.width)
        else:
            whole = value.reshape(rows, piece.width).contiguous()
        own = whole.new_empty(self._share(rows), piece.width)
        add_up = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        add_up(own, whole, group=self._processes)
        return own[: piece.stop - piece.start].view_as(piece.local)

    def _go_along(self) -> None:
        """Carry out the rest of the plan for the sake of the others."""
        self._free_all()
        for event in (self._plan or ())[len(self._done) :]:
            self._carry_out(event)
            self._free_all()

    def _gather(self, places: Iterable[int]) -> None:
        for place in places:
            if not self._units[place].present:
                self._together(("gather", place))

    def _free_but(self, places: Iterable[int]) -> None:
        kept = {*places, *self._always}
        with _unseen():
            for place, unit in enumerate(self._units):
                if unit.present and place not in kept:
                    unit.free()

    def _free_all(self) -> None:
        with _unseen():
            for unit in self._units:
                if unit.present:
                    unit.free()

    # Hooks on the modules around which units are gathered.

    def _before(self, module: nn.Module, inputs: Any) -> None:
        self._gather(self._around[module])

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """The backward pass through this module begins when the gradient of an output is there."""
        for part in tree_leaves(output):
            if isinstance(part, Tensor) and part.grad_fn is not None:
                part.register_hook(functools.partial(self._back, module))  # type: ignore[no-untyped-call]
        self._free_but(())

    def _back(self, module: nn.Module, gradient: Tensor) -> None:
        """Operators go backward in the opposite order, so those of the modules after this one are done."""
        self._free_but(self._around[module])
        self._gather(self._around[module])


class _Unit:
    """Parameters that are gathered together; FSDP2 holds the shards."""

    def __init__(self, parameters: list[nn.Parameter], processes: Any, device: torch.device) -> None:
        try:
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ConfigError("torch 2.6 or later for parameters in shards", torch.__version__) from error
        self.parameters = parameters
        self._holder: Any = nn.Module()
        for place, parameter in enumerate(parameters):
            whole = parameter.detach().to(device).reshape(parameter.shape or (1,)).contiguous()
            self._holder.register_parameter(str(place), nn.Parameter(whole, parameter.requires_grad))
        mesh = DeviceMesh.from_group(processes, device.type)
        fully_shard(self._holder, mesh=mesh, reshard_after_forward=False)
        self._shards: list[Any] = list(self._holder.parameters())
        self.numbers = sum(p.numel() for p in parameters)
        self.gather()  # from now on the network's parameters share the memory of those that FSDP2 gathers
        self.free()

    def locals(self) -> list[nn.Parameter]:
        """This process' rows of each, in the memory from which they are gathered."""
        return [nn.Parameter(shard.to_local().detach(), shard.requires_grad) for shard in self._shards]

    def gather(self) -> None:
        """Give the network's parameters their memory and numbers."""
        self._holder.unshard()
        for parameter, whole in zip(self.parameters, self._holder.parameters(), strict=True):
            if parameter.untyped_storage()._cdata != whole.untyped_storage()._cdata:
                parameter.data = whole.detach().view(parameter.shape)
        self.present = True

    def free(self) -> None:
        """Take it away again."""
        self._holder.reshard()
        self.present = False


def _stations(net: nn.Module) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """The modules around which units are gathered, and the parameters that are outside all of them."""
    most = sum(p.numel() for p in net.parameters()) // _UNITS
    stations: list[nn.Module] = []
    rest: list[nn.Parameter] = []

    def divide(module: nn.Module) -> None:
        size = sum(p.numel() for p in module.parameters())
        inner = [child for child in module.children() if next(child.parameters(), None) is not None]
        if isinstance(module, _NEVER_CALLED) or (inner and size > most and not isinstance(module, WHOLE_LAYERS)):
            rest.extend(module.parameters(recurse=False))
            for child in inner:
                divide(child)
        elif size:
            stations.append(module)

    divide(net)
    return list(dict.fromkeys(stations)), rest


def _by_type(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """FSDP2 gathers numbers of one type."""
    found: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in dict.fromkeys(parameters):
        found.setdefault(parameter.dtype, []).append(parameter)
    return list(found.values())


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """What happens in here is not the network's doing: whoever follows its operators does not see it."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            for value in tree_leaves((args, kwargs or {})):
                if isinstance(value, Tensor) and value.numel() and not value.untyped_storage().nbytes():
                    raise OtherPlan("a parameter is used outside the module that it belongs to")
        return func(*args, **(kwargs or {}))


def watched() -> contextlib.AbstractContextManager[object]:
    """Within it, using a parameter that is not gathered raises OtherPlan."""
    return _Watch()  # type: ignore[no-untyped-call]

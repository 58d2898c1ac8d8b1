"""Many networks of one shape as one: parameters stacked along a new first axis, one gradient step for all of them.

Every network has its own batch and its own dropout. The masks are drawn network by network from its own seed, exactly
as the network would draw them when trained alone, so they do not depend on which others are computed with it. Batches
of different sizes are combined: padded with records of weight zero if the network does not mix records, in groups of
equal size if it does (BatchNorm). What torch.func's vmap does not support is computed one network after another, with
the same result.

What is frozen and equal in all networks, such as the base below adapters, is held once: it is the tensor of one
network, without the new axis. If that is all that is frozen, records of all networks go through it in one batch
(`OneBatch`).

A step of many networks may run as one CUDA graph (`Replays`): one launch instead of hundreds, and thousands fewer
Python calls. A graph is captured when the same shapes occur for the third time; whatever cannot be captured, or is not
on a GPU, uses ordinary launches.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from airlock.errors import NetError
from airlock.nets.check import check_independence
from airlock.nets.domain import drawn
from airlock.nets.registry import seed_torch
from airlock.training.devices import capture, upload
from airlock.training.ensembles import own_layers, stacked_layers
from airlock.training.gradients import MEAN, Named, Objective
from airlock.training.per_sample.layers import called_with
from airlock.training.per_sample.self_check import plainly

# A step as one CUDA graph.

_PATIENCE = 2  # ordinary steps before one is captured, in which libraries choose their kernels


@dataclass
class StackedBatch:
    """The inputs of networks in one step: records, labels, every record's weight in the loss, and dropout masks."""

    where: Any  # which of the networks: a slice or positions
    x: Tensor
    y: Tensor
    weights: Tensor
    masks: list[Tensor]

    @property
    def inputs(self) -> list[Tensor]:
        """Everything that changes from step to step."""
        return [self.x, self.y, self.weights, *self.masks]


Work = Callable[[nn.Module, list[StackedBatch]], list[Tensor | None]]


@dataclass
class _Graph:
    graph: Any
    part: StackedBatch
    found: list[Tensor | None]

    def replay(self, part: StackedBatch) -> list[Tensor | None]:
        for room, value in zip(self.part.inputs, part.inputs, strict=True):
            room.copy_(value)
        self.graph.replay()
        return self.found


class Replays:
    """Does `work` on parts of all networks, by a graph if there is one; the next call overwrites its results.

    Args:
        work: Returns the gradients of the stacked networks; reads only them and the part, and changes nothing.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self._held: nn.Module | None = None
        self._graphs: dict[Hashable, _Graph] = {}
        self._seen: Counter[Hashable] = Counter()
        self._broken = False

    def __call__(self, held: nn.Module, part: StackedBatch) -> list[Tensor | None]:
        """Equivalent to `work(held, [part])`."""
        if held is not self._held:  # a graph identifies parameters by their address
            self._held = held
            self._graphs.clear()
            self._seen.clear()
        precision = torch.is_autocast_enabled("cuda"), torch.backends.cudnn.allow_tf32
        key = part.x.shape, part.x.dtype, part.x.stride(), precision
        self._seen[key] += 1
        if self._broken or not part.x.is_cuda or self._seen[key] <= _PATIENCE:
            return self.work(held, [part])
        graph = self._graphs.get(key) or self._capture(key, held, part)
        return self.work(held, [part]) if graph is None else graph.replay(part)

    def _capture(self, key: Hashable, held: nn.Module, part: StackedBatch) -> _Graph | None:
        x, y, weights, *masks = (value.clone() for value in part.inputs)
        room = StackedBatch(part.where, x, y, weights, masks)
        captured = capture(lambda: self.work(held, [room]))
        if captured is None:
            self._broken = True
            return None
        self._graphs[key] = _Graph(captured[0], room, captured[1])
        return self._graphs[key]


# Stacked networks.

DRAW_TOGETHER = True  # dropout masks of all networks by one kernel, where there is one; a benchmark may turn it off

_AGREE = 1e-2  # relative to the gradient's norm: a wrong gradient differs by more, TF32 by less
_DROPOUTS: dict[type, Callable[[Tensor, float, bool], Tensor]] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
}
_NO_VMAP = (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError)
_log = logging.getLogger(__name__)


def tensors(net: nn.Module) -> Named:
    """Parameters and buffers by name."""
    return {name: value.detach() for name, value in (*net.named_parameters(), *net.named_buffers())}


def stack(nets: Iterable[nn.Module]) -> nn.Module:
    """A module with the names of one network whose tensors are the stacked ones of all; it cannot be called.

    Frozen parameters that are equal in all of them are held once, and are not stacked. Of networks that are made one by
    one, no more than two are there at a time.

    Raises:
        NetError: The networks do not have the same parameters.
    """
    found = iter(nets)
    first = next(found)
    held, form, count = copy.deepcopy(first), _form(first), 1
    values = {name: [value] for name, value in tensors(first).items()}
    frozen = {name for name, p in first.named_parameters() if not p.requires_grad}
    del first
    for net in found:
        if _form(net) != form:
            raise NetError(
                "networks with the same parameters, to be trained together",
                f"network {count}, which differs from the first",
                do="Train networks of different shapes in separate calls.",
            )
        for name, value in tensors(net).items():
            own = values[name]
            if name in frozen and len(own) == 1 and torch.equal(value, own[0]):
                continue
            own += [*own * (count - len(own)), value]
        count += 1
    one = {name for name in frozen if len(values[name]) == 1}
    whole = {name: own[0] if name in one else torch.stack(own) for name, own in values.items()}
    _hold(held, whole)
    return held


def _form(net: nn.Module) -> list[object]:
    parts = [(name, p.shape, p.dtype, p.requires_grad) for name, p in net.named_parameters()]
    return [*parts, *((name, b.shape, b.dtype) for name, b in net.named_buffers())]


def _hold(held: nn.Module, whole: Named) -> None:
    """Put these into the module in place of its own; tied parameters stay tied."""
    names = {id(value): name for name, value in (*held.named_parameters(), *held.named_buffers())}
    made: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor replaced, so that its address is not used again
    for module in held.modules():
        module._non_persistent_buffers_set.clear()  # a checkpoint needs them too
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, value in table.items():
                if value is None:
                    continue
                if id(value) not in made:
                    own = whole[names[id(value)]]
                    is_parameter = isinstance(value, nn.Parameter)
                    made[id(value)] = value, nn.Parameter(own, value.requires_grad) if is_parameter else own
                table[name] = made[id(value)][1]


def shared(net: nn.Module, values: Named) -> set[str]:
    """What is held once for all networks, given one of them and the stacked tensors."""
    alone = tensors(net)
    return {name for name, value in values.items() if value.dim() == alone[name].dim()}


def spread(net: nn.Module, values: Named) -> Named:
    """Every network's own tensors, also those that are held once; these are views."""
    one = shared(net, values)
    count = next((len(value) for name, value in values.items() if name not in one), 1)
    return {name: value.expand(count, *value.shape) if name in one else value for name, value in values.items()}


def forward(net: nn.Module, values: Named, x: Tensor) -> Tensor:
    """Every network's outputs (networks, records, ...) on the same records."""
    one = shared(net, values)
    places = {name: None if name in one else 0 for name in values}
    with _slow_operators():
        found: Tensor = vmap(lambda own: called_with(net, own, (x,)), (places,), randomness="error")(values)
    return found


@contextlib.contextmanager
def _slow_operators() -> Iterator[None]:
    """No warnings about operators that vmap has no rule for: what they give is right."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def forward_one_by_one(net: nn.Module, values: Named, x: Tensor) -> Tensor:
    """The same without vmap."""
    whole = spread(net, values)
    count = len(next(iter(whole.values())))
    return torch.stack([called_with(net, {k: v[i] for k, v in whole.items()}, (x,)) for i in range(count)])


class _Masked(nn.Module):
    """Replaces a dropout and takes the next mask from the tape; it has the rate, which networks may read."""

    def __init__(self, tape: list[Tensor], rate: float) -> None:
        super().__init__()
        self.tape, self.p = tape, rate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.tape.pop(0).to(x.dtype)


def _drops(layer: nn.Module | None) -> bool:
    """Whether it is a dropout that draws anything."""
    return type(layer) in _DROPOUTS and float(layer.p) > 0  # type: ignore[union-attr, arg-type]


class _Linear(nn.Linear):
    """A dense layer whose stacked gradient has the memory layout of the weights; vmap's own is transposed."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return super().forward(x)
        out = torch.mm(self.weight, x.t()).t()
        return out if self.bias is None else out + self.bias


class Dropouts:
    """The masks that a network trained alone would draw from a seed, in the same order."""

    def __init__(self, net: nn.Module, shape: tuple[int, ...], device: torch.device) -> None:
        self.any = any(_drops(layer) for layer in net.modules())
        self.net = copy.deepcopy(net).to(device).train() if self.any else None
        self.shape, self.device = shape, device
        self._calls: dict[int, list[tuple[Callable[[Tensor, float, bool], Tensor], float, torch.Size]]] = {}
        self._ones: dict[torch.Size, Tensor] = {}

    def masks(self, chance: int, records: int) -> list[Tensor]:
        """Zeros and 1 / (1 - p), one mask per call of a dropout."""
        if not self.any:
            return []
        calls = self.calls(records)
        seed_torch(chance, self.device)
        return [drop(self._one(shape), p, True) for drop, p, shape in calls]

    def together(self, chances: Sequence[int], sizes: Sequence[int], width: int) -> list[Tensor] | None:
        """The masks of many networks at once, filled up with zeros, by one kernel; None where there is none."""
        if not (DRAW_TOGETHER and self.any and stacked_layers.available(self.device)):
            return None
        calls = self.calls(width)
        if any(drop is not F.dropout or shape[1:].numel() % 4 for drop, _, shape in calls):
            return None
        from airlock.training.ensembles.stacked_kernels import draw_masks, draws_masks

        if not draws_masks(self.device):
            return None
        return draw_masks(list(chances), list(sizes), [(p, tuple(shape)) for _, p, shape in calls], self.device)

    def _one(self, shape: torch.Size) -> Tensor:
        if shape not in self._ones:
            self._ones[shape] = torch.ones(shape, device=self.device)
        return self._ones[shape]

    def calls(self, records: int) -> list[tuple[Callable[[Tensor, float, bool], Tensor], float, torch.Size]]:
        """Which dropouts are called on a batch of this size, and on what shapes; found by a trial."""
        if self.net is None:
            return []
        if records not in self._calls:
            found = self._calls.setdefault(records, [])

            def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                found.append((_DROPOUTS[type(layer)], float(layer.p), inputs[0].shape))  # type: ignore[arg-type]

            layers = [layer for layer in self.net.modules() if _drops(layer)]
            hooks = [layer.register_forward_pre_hook(note) for layer in layers]
            with torch.no_grad():
                self.net(torch.zeros((records, *self.shape), device=self.device))
            for hook in hooks:
                hook.remove()
        return self._calls[records]


def _mean_weights(sizes: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Every record's weight in its network's mean loss; padding has weight zero."""
    size = np.asarray(sizes)[:, None]
    return upload(((np.arange(width) < size) / size).astype(np.float32), device)


def _trainable(held: nn.Module) -> list[nn.Parameter]:
    return [p for p in held.parameters() if p.requires_grad]


class Looped:
    """Gradients one network after another: for whatever vmap does not support, and the reference for what it does.

    Args:
        net: One of the networks.
        dropouts: The source of the masks; if left out, its dropouts draw their own.
        objective: What each network minimises.
    """

    def __init__(self, net: nn.Module, dropouts: Dropouts | None = None, objective: Objective = MEAN) -> None:
        self.tape: list[Tensor] = []
        self.dropouts, self.objective = dropouts, objective
        self.net = (_masked(copy.deepcopy(net), self.tape) if dropouts else copy.deepcopy(net)).train()

    def takes(self, held: nn.Module) -> bool:
        """Whether these networks can be computed: any can."""
        return True

    def __call__(self, held: nn.Module, x: Tensor, y: Tensor, sizes: Sequence[int], chances: Sequence[int]) -> None:
        """Put every network's gradient into the stacked parameters; buffers are updated."""
        self.net.to(x.device)
        held.zero_grad(set_to_none=True)
        trainable = [name for name, p in held.named_parameters() if p.requires_grad]
        whole = spread(self.net, tensors(held))
        for i, (size, chance) in enumerate(zip(sizes, chances, strict=True)):
            own = {name: value[i].requires_grad_(name in trainable) for name, value in whole.items()}
            state = dict(own)
            if self.dropouts:
                self.tape[:] = self.dropouts.masks(chance, size)
            seed_torch(chance, x.device)
            logits = called_with(self.net, state, (x[i, :size],)).float()
            weights, stacked = _mean_weights([size], size, y.device), {name: own[name][None] for name in trainable}
            loss = self.objective(logits[None], y[i : i + 1, :size], weights, stacked)
            found = torch.autograd.grad(loss, [own[name] for name in trainable], allow_unused=True)
            for name, gradient in zip(trainable, found, strict=True):
                _put(held.get_parameter(name), i, gradient)
            _move_buffers(held, whole, state, [i], one=True)


def _put(parameter: Tensor, place: int, gradient: Tensor | None) -> None:
    if gradient is not None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad[place] = gradient


def _move_buffers(held: nn.Module, whole: Named, state: Named, rows: Sequence[int], one: bool = False) -> None:
    """Write back the buffers that a forward pass updated."""
    for name, _ in held.named_buffers():
        new = state[name].detach()[None] if one else state[name].detach()
        if new.data_ptr() != whole[name][rows[0]].data_ptr():
            whole[name][list(rows)] = new


class Vmapped:
    """Gradients of all networks in one pass: batched matrix products, grouped convolutions.

    Args:
        net: One of the networks.
        dropouts: The source of the masks.
        fills: Whether a short batch may be padded: only if a record's output depends on that record alone.
        fused: Use the GPU's own kernels where they apply.
        objective: What each network minimises.
    """

    def __init__(
        self, net: nn.Module, dropouts: Dropouts, fills: bool, fused: bool = False, objective: Objective = MEAN
    ) -> None:
        self.tape: list[Tensor] = []
        self.objective = objective
        self.net, self.dropouts, self.fills = self._prepared(copy.deepcopy(net)), dropouts, fills
        self.fused = fused and stacked_layers.fuse(self.net)
        self.replays = Replays(self._gradients) if fills and not any(True for _ in net.buffers()) else None

    def __call__(self, held: nn.Module, x: Tensor, y: Tensor, sizes: Sequence[int], chances: Sequence[int]) -> None:
        """Put every network's gradient into the stacked parameters; buffers are updated."""
        held.zero_grad(set_to_none=True)
        parts = [self._part(x, y, sizes, chances, rows, width) for rows, width in self._groups(sizes)]
        with _slow_operators():
            found = self.replays(held, parts[0]) if self.replays else self._gradients(held, parts)
        for parameter, gradient in zip(_trainable(held), found, strict=True):
            parameter.grad = gradient

    def _part(
        self, x: Tensor, y: Tensor, sizes: Sequence[int], chances: Sequence[int], rows: list[int], width: int
    ) -> StackedBatch:
        where = slice(None) if len(rows) == len(sizes) else torch.tensor(rows, device=x.device)
        own = [sizes[i] for i in rows]
        masks = self._masks(own, width, [chances[i] for i in rows])
        return StackedBatch(where, x[where, :width], y[where, :width], _mean_weights(own, width, y.device), masks)

    def _gradients(self, held: nn.Module, parts: list[StackedBatch]) -> list[Tensor | None]:
        named: Named = dict(held.named_parameters())
        one = shared(self.net, named)
        places = {name: None if name in one else 0 for name in named}
        total = parts[0].x.new_zeros((), dtype=torch.float32)
        for part in parts:
            every = isinstance(part.where, slice)
            parameters = named if every else {n: p if n in one else p[part.where] for n, p in named.items()}
            buffers = {name: value[part.where].clone() for name, value in held.named_buffers()}
            logits, moved = vmap(self._forward, (places, 0, 0, 0), randomness="error")(
                parameters, buffers, part.x, part.masks
            )
            trainable = {name: p for name, p in parameters.items() if p.requires_grad}
            total = total + self.objective(logits.float(), part.y, part.weights, trainable)
            for name, value in held.named_buffers():
                value[part.where] = moved[name].detach()
        found = torch.autograd.grad(total, _trainable(held), allow_unused=True)
        return [gradient if gradient is None else gradient.contiguous() for gradient in found]

    def _forward(self, parameters: Named, buffers: Named, x: Tensor, masks: list[Tensor]) -> tuple[Tensor, Named]:
        self.tape[:] = masks
        state = parameters | buffers
        logits = called_with(self.net, state, (x,))
        return logits, {name: state[name] for name in buffers}

    def _prepared(self, net: nn.Module) -> nn.Module:
        return _masked(net, self.tape).train()

    def takes(self, held: nn.Module) -> bool:
        """Whether these networks can be computed."""
        return True

    def _groups(self, sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Which networks are computed together, and how many records each of their batches has."""
        if self.fills:
            yield list(range(len(sizes))), max(sizes)
            return
        for width in sorted(set(sizes)):
            yield [i for i, size in enumerate(sizes) if size == width], width

    def _masks(self, sizes: Sequence[int], width: int, chances: Sequence[int]) -> list[Tensor]:
        together = self.dropouts.together(chances, sizes, width) if self.fills else None
        if together is not None:
            return together
        drawn = [self.dropouts.masks(chance, size) for size, chance in zip(sizes, chances, strict=True)]
        return [
            torch.stack([_filled(mask, width) if self.fills else mask for mask in masks])
            for masks in zip(*drawn, strict=True)
        ]


class OneBatch(Vmapped):
    """Gradients of networks in which all that is frozen is shared: one batch of all networks' records goes through it.

    Args:
        net: One of the networks.
        dropouts: The source of the masks.
        fills: Whether a record's output depends on that record alone; others cannot be computed.
        objective: What each network minimises.
    """

    def __init__(self, net: nn.Module, dropouts: Dropouts, fills: bool, objective: Objective = MEAN) -> None:
        super().__init__(net, dropouts, fills, objective=objective)
        self.replays = Replays(self._gradients)

    def _prepared(self, net: nn.Module) -> nn.Module:
        """Without numbers of its own: it computes with the tensors of the networks that it is called for."""
        net = _masked(net, self.tape, dense=False).train()
        own_layers.divide(net)
        return net.to("meta")

    def takes(self, held: nn.Module) -> bool:
        """Whether nothing but what is trained differs between these networks."""
        frozen = {name: p.detach() for name, p in held.named_parameters() if not p.requires_grad}
        same = all(bool((value == value[:1]).all()) for value in held.buffers())
        return self.fills and same and shared(self.net, frozen) == set(frozen)

    def _gradients(self, held: nn.Module, parts: list[StackedBatch]) -> list[Tensor | None]:
        (part,) = parts
        models = len(part.y)
        values: Named = dict(held.named_parameters(remove_duplicate=False))
        values |= {name: value[0] for name, value in held.named_buffers(remove_duplicate=False)}
        self.tape[:] = [mask.flatten(0, 1) for mask in part.masks]
        logits = called_with(self.net, values, (part.x.flatten(0, 1),)).unflatten(0, (models, -1))
        trainable: Named = {name: p for name, p in held.named_parameters() if p.requires_grad}
        total = self.objective(logits.float(), part.y, part.weights, trainable)
        found = torch.autograd.grad(total, _trainable(held), allow_unused=True)
        return [gradient if gradient is None else gradient.contiguous() for gradient in found]


def _filled(mask: Tensor, width: int) -> Tensor:
    return mask if len(mask) == width else torch.cat([mask, mask.new_zeros(width - len(mask), *mask.shape[1:])])


def _masked(net: nn.Module, tape: list[Tensor], dense: bool = True) -> nn.Module:
    """The network with masks instead of dropouts, and dense layers that are fast when stacked."""
    for module in list(net.modules()):
        for name, layer in list(module._modules.items()):
            if layer is not None and _drops(layer):
                setattr(module, name, _Masked(tape, float(getattr(layer, "p", 0.0))))
            elif dense and type(layer) is nn.Linear and layer.weight.requires_grad:
                layer.__class__ = _Linear
    return net


def choose(
    nets: Sequence[nn.Module], shape: tuple[int, ...], device: torch.device, objective: Objective = MEAN
) -> Looped | Vmapped:
    """The fastest engine that agrees with a loop on random records and is not slower, else the loop.

    Networks with frozen parameters are tried in one batch first; then all are tried under vmap. If it is the loop, the
    reason is logged. The choice depends only on the network and the device, so that a resumed run computes as before.
    """
    why = ""
    for called, make in _ways(nets[0], device):
        if make is not OneBatch and _loops_faster(nets[0], device):
            _log.info("Networks are trained one after another: on a CPU, grouped convolutions are slower.")
            return Looped(nets[0], objective=objective)
        try:
            engine = _try(make, nets, shape, device, objective)
        except _NO_VMAP as error:
            why = f"{called} does not support them ({_first_line(error)})"
        else:
            if engine is not None:
                return engine
            why = f"their gradients differ under {called}"
        if make is not Vmapped:
            _log.info("Not used for many networks: %s.", why)
    _log.warning("Networks are trained one after another: %s.", why)
    return Looped(nets[0], objective=objective)


def _ways(net: nn.Module, device: torch.device) -> Iterator[tuple[str, Callable[..., Vmapped]]]:
    """What may compute many such networks, the fastest first."""
    if not all(p.requires_grad for p in net.parameters()):
        yield "one batch", OneBatch
    if stacked_layers.available(device):
        yield "kernels for many networks", partial(Vmapped, fused=True)
    yield "vmap", Vmapped


def _loops_faster(net: nn.Module, device: torch.device) -> bool:
    """Whether a CPU computes such networks faster one after another (figures: docs/results/audit.md).

    Stacked convolutions become grouped ones. That slows down convolutions over several channels, but not over one.
    """
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.modules.conv._ConvNd)]
    return device.type == "cpu" and any(layer.in_channels > layer.groups for layer in convolutions)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _try(
    make: Callable[..., Vmapped],
    nets: Sequence[nn.Module],
    shape: tuple[int, ...],
    device: torch.device,
    objective: Objective,
) -> Vmapped | None:
    """The engine if it is right for these networks, else None."""
    nets, records = (nets[0], nets[-1]), 4
    dropouts = Dropouts(nets[0], shape, device)
    fills = not _mixes(nets[0], shape) and all(call[2][0] == records for call in dropouts.calls(records))
    engine = make(nets[0], dropouts, fills=fills, objective=objective)
    x = drawn(nets[0], 2 * records, shape, 0).view(2, records, *shape).to(device)
    y = torch.zeros((2, records), dtype=torch.int64, device=device)
    found = []
    for each in (engine, Looped(nets[0], dropouts, objective)):
        held = stack(nets).to(device)
        if not engine.takes(held):
            return None
        buffers = {name: value.clone() for name, value in held.named_buffers()}
        with plainly(
            device
        ):  # what rounds coarsely may flip a maximum, and then gradients differ though both are right
            each(held, x, y, [records, records - 1], [1, 2])
        found.append({name: p.grad for name, p in held.named_parameters()} | dict(held.named_buffers()))
    if isinstance(engine, OneBatch) and any(not value.equal(buffers[name]) for name, value in held.named_buffers()):
        return None  # they change, each network's in its own way
    return engine if _agree(found[0], found[1]) else None


def _agree(got: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> bool:
    if any((got[name] is None) != (g is None) for name, g in wanted.items()):
        return False
    pairs = [(g.double(), got[name].double()) for name, g in wanted.items() if g is not None]  # type: ignore[union-attr]
    size = torch.stack([g.norm() for g, _ in pairs]).norm()
    return bool(torch.stack([(a - b).norm() for a, b in pairs]).norm() <= _AGREE * size)


def _mixes(net: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        check_independence(copy.deepcopy(net).cpu(), "", shape)
    except NetError:
        return True
    return False

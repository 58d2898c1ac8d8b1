"""Many networks of one shape as one: parameters stacked along a new first axis, one gradient step for all of them.

Every network has its own batch and its own dropout. The masks are drawn network by network from its own seed, exactly
as the network would draw them when trained alone, so they do not depend on which others are computed with it. Batches
of different sizes are combined: padded with records of weight zero if the network does not mix records, in groups of
equal size if it does (BatchNorm). What torch.func's vmap does not support is computed one network after another, with
the same result.

A step of many networks may run as one CUDA graph (`Replays`): one launch instead of hundreds, and thousands fewer
Python calls. A graph is captured when the same shapes occur for the third time; whatever cannot be captured, or is not
on a GPU, uses ordinary launches.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from airlock.errors import NetError
from airlock.nets.check import check_independence
from airlock.nets.domain import drawn
from airlock.nets.registry import seed_torch
from airlock.training.devices import capture
from airlock.training.ensembles import stacked_layers
from airlock.training.gradients import MEAN, Named, Objective
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


def stack(nets: Sequence[nn.Module]) -> nn.Module:
    """A module with the names of one network whose tensors are the stacked ones of all; it cannot be called.

    Raises:
        NetError: The networks do not have the same parameters.
    """
    _check_alike(nets)
    held = copy.deepcopy(nets[0])
    made: dict[int, tuple[Tensor, Tensor]] = {}  # tied parameters stay tied
    for path, module in held.named_modules():
        module._non_persistent_buffers_set.clear()  # a checkpoint needs them too
        for table, read in ((module._parameters, nn.Module.get_parameter), (module._buffers, nn.Module.get_buffer)):
            for name, value in table.items():
                if value is None:
                    continue
                if id(value) not in made:
                    whole = torch.stack([read(net, f"{path}.{name}".lstrip(".")).detach() for net in nets])
                    is_parameter = isinstance(value, nn.Parameter)
                    made[id(value)] = value, nn.Parameter(whole, value.requires_grad) if is_parameter else whole
                table[name] = made[id(value)][1]
    return held


def _check_alike(nets: Sequence[nn.Module]) -> None:
    def form(net: nn.Module) -> list[object]:
        parts = [(name, p.shape, p.dtype, p.requires_grad) for name, p in net.named_parameters()]
        return [*parts, *((name, b.shape, b.dtype) for name, b in net.named_buffers())]

    for place, net in enumerate(nets):
        if form(net) != form(nets[0]):
            raise NetError(
                "networks with the same parameters, to be trained together",
                f"network {place} of {len(nets)}, which differs from the first",
                do="Train networks of different shapes in separate calls.",
            )


def forward(net: nn.Module, values: Named, x: Tensor) -> Tensor:
    """Every network's outputs (networks, records, ...) on the same records."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of an operator without a rule: it is right
        found: Tensor = vmap(lambda own: functional_call(net, own, (x,)), randomness="error")(values)
    return found


def forward_one_by_one(net: nn.Module, values: Named, x: Tensor) -> Tensor:
    """The same without vmap."""
    count = len(next(iter(values.values())))
    return torch.stack([functional_call(net, {k: v[i] for k, v in values.items()}, (x,)) for i in range(count)])


class _Masked(nn.Module):
    """Replaces a dropout and takes the next mask from the tape; it has the rate, which networks may read."""

    def __init__(self, tape: list[Tensor], rate: float) -> None:
        super().__init__()
        self.tape, self.p = tape, rate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.tape.pop(0).to(x.dtype)


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
        self.net, self.shape, self.device = copy.deepcopy(net).to(device).train(), shape, device
        self.any = any(type(layer) in _DROPOUTS for layer in net.modules())
        self._calls: dict[int, list[tuple[Callable[[Tensor, float, bool], Tensor], float, torch.Size]]] = {}
        self._ones: dict[torch.Size, Tensor] = {}

    def masks(self, chance: int, records: int) -> list[Tensor]:
        """Zeros and 1 / (1 - p), one mask per call of a dropout."""
        if not self.any:
            return []
        calls = self.calls(records)
        seed_torch(chance, self.device)
        return [drop(self._one(shape), p, True) for drop, p, shape in calls]

    def _one(self, shape: torch.Size) -> Tensor:
        if shape not in self._ones:
            self._ones[shape] = torch.ones(shape, device=self.device)
        return self._ones[shape]

    def calls(self, records: int) -> list[tuple[Callable[[Tensor, float, bool], Tensor], float, torch.Size]]:
        """Which dropouts are called on a batch of this size, and on what shapes; found by a trial."""
        if records not in self._calls:
            found = self._calls.setdefault(records, [])

            def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                found.append((_DROPOUTS[type(layer)], float(layer.p), inputs[0].shape))  # type: ignore[arg-type]

            layers = [layer for layer in self.net.modules() if type(layer) in _DROPOUTS]
            hooks = [layer.register_forward_pre_hook(note) for layer in layers]
            with torch.no_grad():
                self.net(torch.zeros((records, *self.shape), device=self.device))
            for hook in hooks:
                hook.remove()
        return self._calls[records]


def _mean_weights(sizes: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Every record's weight in its network's mean loss; padding has weight zero."""
    size = np.asarray(sizes)[:, None]
    return torch.from_numpy(((np.arange(width) < size) / size).astype(np.float32)).to(device)


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

    def __call__(self, held: nn.Module, x: Tensor, y: Tensor, sizes: Sequence[int], chances: Sequence[int]) -> None:
        """Put every network's gradient into the stacked parameters; buffers are updated."""
        self.net.to(x.device)
        held.zero_grad(set_to_none=True)
        trainable = [name for name, p in held.named_parameters() if p.requires_grad]
        whole = tensors(held)
        for i, (size, chance) in enumerate(zip(sizes, chances, strict=True)):
            own = {name: value[i].requires_grad_(name in trainable) for name, value in whole.items()}
            state = dict(own)
            if self.dropouts:
                self.tape[:] = self.dropouts.masks(chance, size)
            seed_torch(chance, x.device)
            logits = functional_call(self.net, state, (x[i, :size],)).float()
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
        self.net, self.dropouts, self.fills = _masked(copy.deepcopy(net), self.tape).train(), dropouts, fills
        self.fused = fused and stacked_layers.fuse(self.net)
        self.replays = Replays(self._gradients) if fills and not any(True for _ in net.buffers()) else None

    def __call__(self, held: nn.Module, x: Tensor, y: Tensor, sizes: Sequence[int], chances: Sequence[int]) -> None:
        """Put every network's gradient into the stacked parameters; buffers are updated."""
        self.net.to(x.device)
        held.zero_grad(set_to_none=True)
        parts = [self._part(x, y, sizes, chances, rows, width) for rows, width in self._groups(sizes)]
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
        total = parts[0].x.new_zeros((), dtype=torch.float32)
        for part in parts:
            every = isinstance(part.where, slice)
            parameters = named if every else {name: p[part.where] for name, p in named.items()}
            buffers = {name: value[part.where].clone() for name, value in held.named_buffers()}
            logits, moved = vmap(self._forward, randomness="error")(parameters, buffers, part.x, part.masks)
            trainable = {name: p for name, p in parameters.items() if p.requires_grad}
            total = total + self.objective(logits.float(), part.y, part.weights, trainable)
            for name, value in held.named_buffers():
                value[part.where] = moved[name].detach()
        found = torch.autograd.grad(total, _trainable(held), allow_unused=True)
        return [gradient if gradient is None else gradient.contiguous() for gradient in found]

    def _forward(self, parameters: Named, buffers: Named, x: Tensor, masks: list[Tensor]) -> tuple[Tensor, Named]:
        self.tape[:] = masks
        state = parameters | buffers
        logits = functional_call(self.net, state, (x,))
        return logits, {name: state[name] for name in buffers}

    def _groups(self, sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Which networks are computed together, and how many records each of their batches has."""
        if self.fills:
            yield list(range(len(sizes))), max(sizes)
            return
        for width in sorted(set(sizes)):
            yield [i for i, size in enumerate(sizes) if size == width], width

    def _masks(self, sizes: Sequence[int], width: int, chances: Sequence[int]) -> list[Tensor]:
        drawn = [self.dropouts.masks(chance, size) for size, chance in zip(sizes, chances, strict=True)]
        return [
            torch.stack([_filled(mask, width) if self.fills else mask for mask in masks])
            for masks in zip(*drawn, strict=True)
        ]


def _filled(mask: Tensor, width: int) -> Tensor:
    return mask if len(mask) == width else torch.cat([mask, mask.new_zeros(width - len(mask), *mask.shape[1:])])


def _masked(net: nn.Module, tape: list[Tensor]) -> nn.Module:
    """The network with masks instead of dropouts, and dense layers that are fast when stacked."""
    for module in list(net.modules()):
        for name, layer in list(module._modules.items()):
            if isinstance(layer, nn.modules.dropout._DropoutNd) and type(layer) in _DROPOUTS:
                setattr(module, name, _Masked(tape, layer.p))
            elif type(layer) is nn.Linear:
                layer.__class__ = _Linear
    return net


def choose(
    nets: Sequence[nn.Module], shape: tuple[int, ...], device: torch.device, objective: Objective = MEAN
) -> Looped | Vmapped:
    """The vmap engine if it agrees with a loop on random records and is not slower, else the loop.

    If it is the loop, the reason is logged. The choice depends only on the network and the device, so that a resumed
    run computes as before.
    """
    if _loops_faster(nets[0], device):
        _log.info("Networks are trained one after another: on a CPU, grouped convolutions are slower.")
        return Looped(nets[0], objective=objective)
    why = ""
    for fused in (True, False) if stacked_layers.available(device) else (False,):
        try:
            engine = _try_vmap(nets, shape, device, fused, objective)
        except _NO_VMAP as error:
            why = f"vmap does not support them ({_first_line(error)})"
        else:
            if engine is not None:
                return engine
            why = "their gradients differ under vmap"
        if fused:
            _log.info("Kernels for many networks at once are not used: %s.", why)
    _log.warning("Networks are trained one after another: %s.", why)
    return Looped(nets[0], objective=objective)


def _loops_faster(net: nn.Module, device: torch.device) -> bool:
    """Whether a CPU computes such networks faster one after another (figures: docs/results/audit.md).

    Stacked convolutions become grouped ones. That slows down convolutions over several channels, but not over one.
    """
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.modules.conv._ConvNd)]
    return device.type == "cpu" and any(layer.in_channels > layer.groups for layer in convolutions)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _try_vmap(
    nets: Sequence[nn.Module], shape: tuple[int, ...], device: torch.device, fused: bool, objective: Objective
) -> Vmapped | None:
    nets, records = [copy.deepcopy(net) for net in (nets[0], nets[-1])], 4
    dropouts = Dropouts(nets[0], shape, device)
    fills = not _mixes(nets[0], shape) and all(call[2][0] == records for call in dropouts.calls(records))
    engine = Vmapped(nets[0], dropouts, fills, fused, objective)
    x = drawn(nets[0], 2 * records, shape, 0).view(2, records, *shape).to(device)
    y = torch.zeros((2, records), dtype=torch.int64, device=device)
    found = []
    for way in (engine, Looped(nets[0], dropouts, objective)):
        held = stack(nets).to(device)
        with plainly(
            device
        ):  # what rounds coarsely may flip a maximum, and then gradients differ though both are right
            way(held, x, y, [records, records - 1], [1, 2])
        found.append({name: p.grad for name, p in held.named_parameters()} | dict(held.named_buffers()))
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

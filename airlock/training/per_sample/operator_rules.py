"""What every operator does to the records' axis: one rule per kind of operator, each with its reason.

In: an operator, its arguments, and what is known about them (`State`). Out: what is known about the results. A rule
gives an `Axis` only if each position of a result is computed from the same record's positions of the arguments and from
what depends on no record. An operator without a rule, or used in a way that no rule covers, gives `Mixed`.

Operators marked as pointwise by torch have one rule for all. Random numbers are independent between positions, so it
does not matter which of them is combined with which record; any other constant must be the same for every record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Unshown(Exception):
    """Why records cannot be shown to be kept apart."""


@dataclass(frozen=True)
class Axis:
    """Where the records are: along `dim`, each at `inner` adjacent positions, the whole pattern possibly repeated."""

    dim: int
    inner: int = 1


@dataclass(frozen=True)
class Mixed:
    """It may depend on several records; with the reason."""

    reason: str


@dataclass(frozen=True)
class Kind:
    """What depends on no record."""

    name: str


CONSTANT, RANDOM, EMPTY = Kind("constant"), Kind("random"), Kind("empty")
State = Axis | Mixed | Kind

PLACES = "a tensor that differs between positions is combined with the records"


class _NoRule(Exception):
    """With these arguments, this operator cannot be shown to keep records apart."""


@dataclass(frozen=True)
class Operator:
    """What is known about an operator before it is called: looked up once."""

    name: str
    rule: Rule | None
    pointwise: bool
    places: dict[str, tuple[int | None, Any]]  # argument positions by name (None for a keyword), and defaults
    writes: tuple[str, ...]  # the arguments that it writes to
    tells: bool  # the shape of a result, or a result that is not a tensor, depends on values

    @classmethod
    def of(cls, func: Any) -> Operator:
        """From its schema and its tags."""
        schema, marks = func._schema, set(func.tags)
        name = schema.name.removeprefix("aten::")
        is_pointwise = torch.Tag.pointwise in marks
        return cls(
            name,
            _RULES.get(name) or (pointwise if is_pointwise or name in _POINTWISE else None),
            is_pointwise,
            {a.name: (None if a.kwarg_only else place, a.default_value) for place, a in enumerate(schema.arguments)},
            tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write),
            bool(marks & {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}) and name != "index",
        )


_KNOWN: dict[Any, Operator] = {}


class OperatorCall:
    """One operator with its arguments, what is known about them, and its result.

    Args:
        records: R.
        state: What is known about a tensor.
        func: The operator.
        args: Its arguments.
        kwargs: Its keyword arguments.
        out: Its result.
    """

    def __init__(
        self, records: int, state: Callable[[Tensor], State], func: Any, args: Any, kwargs: Any, out: Any
    ) -> None:
        operator = _KNOWN.get(func)
        self.operator = operator = operator if operator is not None else _KNOWN.setdefault(func, Operator.of(func))
        self.name = operator.name
        self.records, self.state, self.args, self.kwargs, self.out = records, state, args, kwargs, out
        self.results = tensors(out)
        self.inputs = [t for value in args for t in tensors(value)]
        if kwargs:
            self.inputs += [t for value in kwargs.values() for t in tensors(value)]
        if self.name in _OVERWRITES:  # the previous content does not matter
            self.inputs = self.inputs[1:]
        self.states = [state(t) for t in self.inputs]

    def written(self) -> list[Tensor]:
        """The tensors that the operator writes to."""
        return [t for name in self.operator.writes for t in tensors(self.named(name))]

    def infer(self) -> list[State]:
        """What is known about every output tensor.

        Raises:
            Unshown: Something that depends on records was passed to Python.
        """
        if self.name in _CREATED:
            return [_CREATED[self.name]] * len(self.results)
        mixed = next((state for state in self.states if isinstance(state, Mixed)), None)
        touched = mixed is not None or any(isinstance(state, Axis) for state in self.states)
        if touched and self._tells_python():
            raise Unshown(f"what {self.name} returns to Python depends on records")
        if mixed is not None:
            return [mixed] * len(self.results)
        if not touched:
            return [self._without_records()] * len(self.results)
        try:
            if self.operator.rule is None:
                raise _NoRule("an operator without a rule")
            found = self.operator.rule(self)
        except _NoRule as error:
            found = Mixed(f"{self.name}: {error}")
        return list(found) if isinstance(found, list) else [found] * len(self.results)

    def _tells_python(self) -> bool:
        """Whether the shape of a result, or a result that is not a tensor, depends on values."""
        if self.operator.tells:
            return True
        if self.name == "index":
            picked = [t for t in tensors(self.args[1]) if t.dtype in (torch.bool, torch.uint8)]
            return any(not isinstance(self.state(t), Kind) for t in picked)
        values = self.out if isinstance(self.out, list | tuple) else (self.out,)
        plain = any(isinstance(value, bool | int | float | complex) for value in values)
        return plain and self.name not in _ATTENTIONS and self.name != "is_same_size"

    def _without_records(self) -> State:
        """The state of the result of an operator that saw no record."""
        if EMPTY in self.states:
            return EMPTY if self.name in _VIEWS else Mixed("uninitialised memory is read")
        if RANDOM in self.states and (self.operator.pointwise or self.name in _SPREADS):
            return RANDOM
        return RANDOM if self.name in _RANDOM else CONSTANT

    def named(self, name: str) -> Any:
        """An argument by its name in the schema; None if there is none of that name."""
        place, default = self.operator.places.get(name, (None, None))
        if place is not None and place < len(self.args):
            return self.args[place]
        return self.kwargs.get(name, default)

    def axis(self, tensor: Any) -> Axis | None:
        """Where records are in an argument; None if there are none."""
        found = self.state(tensor) if isinstance(tensor, Tensor) else None
        return found if isinstance(found, Axis) else None

    def only(self, tensor: Any) -> Axis:
        """Where records are in the one argument that may have some."""
        found = self.axis(tensor)
        if found is None or sum(isinstance(state, Axis) for state in self.states) != 1:
            raise _NoRule("there are records on both sides")
        return found

    def same(self, *given: Any) -> Axis:
        """Where records are in all of these that have some."""
        found = {axis for axis in map(self.axis, given) if axis is not None}
        if len(found) != 1:
            raise _NoRule("records lie in different ways")
        return found.pop()

    def agree(self, *given: Tensor) -> Axis:
        """The same, with all others uniform along that axis."""
        own = self.same(*given)
        if not all(self.axis(t) is not None or self.uniform(t, own) for t in given):
            raise _NoRule(PLACES)
        return own

    def uniform(self, tensor: Tensor, axis: Axis) -> bool:
        """Whether something that depends on no record is the same for every record along this axis."""
        if not 0 <= axis.dim < tensor.dim():
            return True
        return self.state(tensor) == RANDOM or is_uniform(tensor, axis, self.records)

    def lifted(self, tensor: Tensor, dims: int) -> Axis | None:
        """Its axis after broadcasting to this many dimensions."""
        found = self.axis(tensor)
        return Axis(found.dim + dims - tensor.dim(), found.inner) if found else None


Rule = Callable[[OperatorCall], "State | list[State]"]
_RULES: dict[str, Rule] = {}


def is_uniform(tensor: Tensor, axis: Axis, records: int) -> bool:
    """Whether its numbers are the same at the positions of every record."""
    size = tensor.shape[axis.dim]
    if size == 1 or tensor.stride(axis.dim) == 0:
        return True
    if size % (records * axis.inner):
        return False
    rounds = tensor.detach().reshape(*tensor.shape[: axis.dim], -1, records, axis.inner, *tensor.shape[axis.dim + 1 :])
    return bool((rounds == rounds.narrow(axis.dim + 1, 0, 1)).all())


def tensors(value: Any) -> list[Tensor]:
    """The tensors in an argument or a result."""
    if isinstance(value, Tensor):
        return [value]
    return [one for one in value if isinstance(one, Tensor)] if isinstance(value, list | tuple) else []


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return keep


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CREATED: dict[str, State] = {
    **dict.fromkeys(_words("zeros_like ones_like full_like new_zeros new_ones new_full lift_fresh"), CONSTANT),
    **dict.fromkeys(_words("empty empty_like new_empty empty_strided new_empty_strided empty_permuted"), EMPTY),
    **dict.fromkeys(_words("rand randn randint rand_like randn_like randint_like"), RANDOM),
}
_RANDOM = _words("bernoulli_ normal_ uniform_ exponential_ cauchy_ log_normal_ geometric_ random_ bernoulli")
_OVERWRITES = _words(
    "zero_ fill_ copy_ bernoulli_ normal_ uniform_ exponential_ cauchy_ log_normal_ geometric_ random_"
)
_VIEWS = _words(
    "view _unsafe_view _reshape_alias expand permute transpose t unsqueeze squeeze detach alias slice select"
)
_SPREADS = _words("view _unsafe_view _reshape_alias unsqueeze squeeze detach alias _to_copy clone")
# Pointwise operators that torch does not mark as such.
_POINTWISE = _words(
    "_to_copy native_dropout leaky_relu_backward hardtanh_backward elu_backward log_sigmoid_forward "
    "log_sigmoid_backward softplus_backward mish_backward _prelu_kernel _prelu_kernel_backward rrelu_with_noise "
    "hardswish hardswish_backward hardsigmoid_backward bernoulli copy_ masked_fill_ detach alias softshrink_backward "
    "hardshrink_backward"
)
_ATTENTIONS = frozenset(
    f"_scaled_dot_product_{kind}{back}"
    for kind in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
    for back in ("", "_backward")
)


def pointwise(call: OperatorCall) -> State:
    """out[…, p, …] is computed from the arguments at p: records are at the same positions."""
    dims = max(t.dim() for t in call.inputs)
    found = {call.lifted(t, dims) for t in call.inputs} - {None}
    if len(found) != 1:
        raise _NoRule("records of one side meet others of the other side")
    own = found.pop()
    assert own is not None
    for tensor in call.inputs:
        if call.axis(tensor) is None and not call.uniform(tensor, Axis(own.dim - dims + tensor.dim(), own.inner)):
            raise _NoRule(PLACES)
    return own


def _flat(shape: Sequence[int], axis: Axis) -> int:
    """How many adjacent numbers of the flattened tensor belong to one record at a time."""
    return axis.inner * math.prod(shape[axis.dim + 1 :])


@_rule("view", "_unsafe_view", "_reshape_alias", "reshape")
def _reshaped(call: OperatorCall) -> State:
    """The flattened order does not change: number i belongs to record (i // w) % R before and after."""
    source = call.args[0]
    if not isinstance(call.out, Tensor) or source.numel() != call.out.numel():
        raise _NoRule("it changes the type")
    wide, weight = _flat(source.shape, call.only(source)), 1
    for dim in range(call.out.dim() - 1, -1, -1):
        size = call.out.shape[dim]
        fits = weight <= wide and weight * size >= wide * call.records
        if fits and wide % weight == 0 and (weight * size) % (wide * call.records) == 0:
            return Axis(dim, wide // weight)
        weight *= size
    raise _NoRule("it tears the records' axis apart")


@_rule("expand")
def _expanded(call: OperatorCall) -> State:
    own = call.only(call.args[0])
    return Axis(own.dim + call.out.dim() - call.args[0].dim(), own.inner)


@_rule("permute")
def _permuted(call: OperatorCall) -> State:
    own, dims = call.only(call.args[0]), call.args[0].dim()
    return Axis([d % dims for d in call.args[1]].index(own.dim), own.inner)


@_rule("transpose", "transpose_", "t")
def _transposed(call: OperatorCall) -> State:
    own, dims = call.only(call.args[0]), call.args[0].dim()
    one, other = (call.args[1] % dims, call.args[2] % dims) if call.name != "t" else (0, dims - 1)
    return Axis({one: other, other: one}.get(own.dim, own.dim), own.inner)


@_rule("unsqueeze", "unsqueeze_")
def _unsqueezed(call: OperatorCall) -> State:
    own, place = call.only(call.args[0]), call.args[1] % call.out.dim()
    return Axis(own.dim + (place <= own.dim), own.inner)


@_rule("squeeze", "squeeze_")
def _squeezed(call: OperatorCall) -> State:
    own, source = call.only(call.args[0]), call.args[0]
    wanted = call.args[1] if len(call.args) > 1 else range(source.dim())
    away = {d % source.dim() for d in ([wanted] if isinstance(wanted, int) else wanted)}
    return Axis(own.dim - sum(d in away and source.shape[d] == 1 for d in range(own.dim)), own.inner)


@_rule("select")
def _selected(call: OperatorCall) -> State:
    own, dim = call.only(call.args[0]), call.args[1] % call.args[0].dim()
    if dim == own.dim:
        raise _NoRule("it picks out single records")
    return Axis(own.dim - (dim < own.dim), own.inner)


def _cut(call: OperatorCall, own: Axis, start: int, length: int, step: int = 1) -> Axis:
    """Some positions along the records' axis: whole rounds of all records, or the same position of every record."""
    whole = call.records * own.inner
    if step == 1 and start % whole == 0 and length % whole == 0 and length:
        return own
    if step == own.inner > 1 and start < own.inner and length * own.inner % whole == 0:
        return Axis(own.dim, 1)
    raise _NoRule("it picks out some of the records")


@_rule("slice")
def _sliced(call: OperatorCall) -> State:
    source, own = call.args[0], call.only(call.args[0])
    dim = int(call.named("dim") or 0) % source.dim()
    if dim != own.dim:
        return own
    start, size, step = int(call.named("start") or 0), source.shape[dim], int(call.named("step") or 1)
    return _cut(call, own, max(0, start + size if start < 0 else start), call.out.shape[dim], step)


@_rule("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "split_copy")
def _divided(call: OperatorCall) -> list[State]:
    source, own = call.args[0], call.only(call.args[0])
    dim, start, found = int(call.named("dim") or 0) % source.dim(), 0, []
    for piece in call.out:
        found.append(own if dim != own.dim else _cut(call, own, start, piece.shape[dim]))
        start += piece.shape[dim]
    return list(found)


@_rule("unbind")
def _unbound(call: OperatorCall) -> list[State]:
    source, own = call.args[0], call.only(call.args[0])
    dim = int(call.named("dim") or 0) % source.dim()
    if dim == own.dim:
        raise _NoRule("it takes the records apart")
    return [Axis(own.dim - (dim < own.dim), own.inner)] * len(call.out)


@_rule("unfold")
def _windows(call: OperatorCall) -> State:
    own, dim = call.only(call.args[0]), call.args[1] % call.args[0].dim()
    if dim == own.dim:
        raise _NoRule("windows hold several records")
    return own


@_rule("cat")
def _joined(call: OperatorCall) -> State:
    """Along another dimension, or whole rounds of all records in sequence."""
    given = [t for t in call.args[0] if t.numel()]
    own = call.agree(*given)
    whole = call.records * own.inner
    if int(call.named("dim") or 0) % call.out.dim() == own.dim and any(t.shape[own.dim] % whole for t in given):
        raise _NoRule("something else stands among the records")
    return own


@_rule("stack")
def _stacked(call: OperatorCall) -> State:
    own, place = call.agree(*call.args[0]), int(call.named("dim") or 0) % call.out.dim()
    return Axis(own.dim + (place <= own.dim), own.inner)


@_rule("repeat")
def _tiled(call: OperatorCall) -> State:
    own = call.only(call.args[0])
    return Axis(own.dim + call.out.dim() - call.args[0].dim(), own.inner)


_REDUCTIONS = _words(
    "sum mean amax amin prod var std var_mean std_mean logsumexp any all argmax argmin max min median nanmedian mode "
    "norm linalg_vector_norm nansum count_nonzero aminmax kthvalue"
)


@_rule(*_REDUCTIONS)
def _reduced(call: OperatorCall) -> State:
    if len(call.inputs) == 2:
        return pointwise(call)
    source, own = call.args[0], call.only(call.args[0])
    dims = call.named("dim")
    if dims is None or dims == []:
        raise _NoRule("it goes over all records")
    away = {d % source.dim() for d in ([dims] if isinstance(dims, int) else dims)}
    if own.dim in away:
        raise _NoRule("it goes over the records")
    first = call.out if isinstance(call.out, Tensor) else call.out[0]
    kept = first.dim() == source.dim()
    return Axis(own.dim - (0 if kept else sum(d < own.dim for d in away)), own.inner)


_ALONG = _words(
    "_softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin logcumsumexp sort argsort topk flip roll glu "
    "_fft_r2c _fft_c2c _fft_c2r"
)


@_rule(*_ALONG)
def _along(call: OperatorCall) -> State:
    """Works along some dimensions, none of which may be the records'."""
    source, own = call.args[0], call.only(call.args[0])
    dims = next((call.named(key) for key in ("dim", "dims") if call.named(key) is not None), None)
    if dims is None or dims == []:
        dims = -1 if call.name in ("sort", "argsort", "topk", "glu") else list(range(source.dim()))
    if own.dim in {d % source.dim() for d in ([dims] if isinstance(dims, int) else dims)}:
        raise _NoRule("it goes along the records")
    return own


@_rule("_softmax_backward_data", "_log_softmax_backward_data", "glu_backward")
def _along_back(call: OperatorCall) -> State:
    own, dim = call.agree(*call.args[:2]), call.args[2]
    if dim % call.args[1].dim() == own.dim:
        raise _NoRule("it goes along the records")
    return own


@_rule("tril", "triu")
def _triangle(call: OperatorCall) -> State:
    own = call.only(call.args[0])
    if own.dim >= call.args[0].dim() - 2:
        raise _NoRule("records lie along the matrix")
    return own


@_rule("slice_backward", "select_backward")
def _placed_back(call: OperatorCall) -> State:
    """The gradient of a slice along another dimension: zeros around it."""
    gradient, sizes, dim = call.args[0], call.args[1], call.args[2]
    own, dim = call.only(gradient), dim % len(sizes)
    place = own.dim + (call.name == "select_backward" and dim <= own.dim)
    if dim == place:
        start, step, length = (*call.args[3:6:2], gradient.shape[dim]) if call.name == "slice_backward" else (0, 0, 0)
        if step == 1 and start >= 0:
            return _cut(call, own, start, length)
        if 0 <= start < step and own.inner == 1 and length * step == sizes[dim]:
            return Axis(dim, step)
        raise _NoRule("it fills in some of the records")
    return Axis(place, own.inner)


@_rule("unfold_backward")
def _windows_back(call: OperatorCall) -> State:
    own = call.only(call.args[0])
    if call.args[2] % len(call.args[1]) == own.dim:
        raise _NoRule("windows hold several records")
    return own


@_rule("mm")
def _product(call: OperatorCall) -> State:
    return _matrices(call, call.args[0], call.args[1], 0)


@_rule("bmm")
def _products(call: OperatorCall) -> State:
    return _matrices(call, call.args[0], call.args[1], 1)


@_rule("addmm", "baddbmm")
def _added_product(call: OperatorCall) -> State:
    added, one, other = call.args[:3]
    own, theirs = _matrices(call, one, other, call.out.dim() - 2), call.lifted(added, call.out.dim())
    if theirs not in (None, own):
        raise _NoRule("records of one side meet others of the other side")
    if theirs is None and not call.uniform(added, Axis(own.dim - call.out.dim() + added.dim(), own.inner)):
        raise _NoRule(PLACES)
    return own


def _matrices(call: OperatorCall, one: Tensor, other: Tensor, batch: int) -> Axis:
    """Rows of the left, columns of the right, or the batch of both; never what is summed over."""
    left, right = call.axis(one), call.axis(other)
    if left is not None and right is not None:
        if left == right and left.dim < batch:
            return left
        raise _NoRule("records of one side meet those of the other")
    own, rows = (left, True) if left is not None else (right, False)
    if own is None:
        raise _NoRule("records are only in what is added")
    if own.dim < batch:
        if not call.uniform(other if rows else one, own):
            raise _NoRule(PLACES)
        return own
    if own.dim != batch + (0 if rows else 1):
        raise _NoRule("it sums over the records")
    return own


@_rule("mv")
def _vector(call: OperatorCall) -> State:
    return _first(call, call.args[0])


def _first(call: OperatorCall, tensor: Tensor) -> Axis:
    own = call.only(tensor)
    if own.dim != 0:
        raise _NoRule("records lie elsewhere than in front")
    return own


@_rule("convolution")
def _convolved(call: OperatorCall) -> State:
    return _first(call, call.args[0])


def _of_input(call: OperatorCall, own: Axis) -> list[State]:
    """Of several gradients, only the input's has an axis; those of parameters are sums over the records."""
    mixed = Mixed(f"{call.name}: it sums over the records")
    return [own if place == 0 else mixed for place, t in enumerate(call.out) if isinstance(t, Tensor)]


@_rule("convolution_backward")
def _convolved_back(call: OperatorCall) -> list[State]:
    own = call.same(*call.args[:2])
    if own.dim != 0 or call.axis(call.args[0]) is None or call.axis(call.args[2]) is not None:
        raise _NoRule("records meet in the gradient")
    return _of_input(call, own)


@_rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: OperatorCall) -> State:
    own = call.only(call.args[0])
    if own.dim >= call.args[0].dim() - len(call.args[1]):
        raise _NoRule("it averages over the records")
    return own


@_rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_back(call: OperatorCall) -> list[State]:
    own = call.agree(*call.args[:2])
    if own.dim >= call.args[1].dim() - len(call.args[2]):
        raise _NoRule("it averages over the records")
    return _of_input(call, own)


@_rule("native_group_norm")
def _group_norm(call: OperatorCall) -> State:
    return _first(call, call.args[0])


@_rule("native_group_norm_backward")
def _group_norm_back(call: OperatorCall) -> list[State]:
    own = call.agree(*call.args[:4])
    if own.dim != 0:
        raise _NoRule("it averages over the records")
    return _of_input(call, own)


@_rule("native_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: OperatorCall) -> list[State]:
    """With fixed statistics every channel is scaled; batch statistics mix records, unless these are along channels."""
    own = call.only(call.args[0])
    if own.dim == 1 and call.named("running_mean") is None and _along_channels(call, own):
        return [own, *[Axis(0, own.inner)] * (len(call.results) - 1)]
    if call.named("training") or own.dim == 1:
        raise _NoRule("it averages over the records")
    return [own, *[CONSTANT] * (len(call.results) - 1)]


def _along_channels(call: OperatorCall, own: Axis) -> bool:
    """Whether every per-channel argument is the same for every record."""
    given = [t for t in (call.named("weight"), call.named("bias")) if t is not None]
    return all(call.uniform(t, Axis(0, own.inner)) for t in given)


@_rule("native_batch_norm_backward")
def _batch_norm_back(call: OperatorCall) -> list[State]:
    own = call.agree(*call.args[:2])
    if own.dim == 1 and call.named("running_mean") is None and _along_channels(call, own):
        return _of_input(call, own)
    if call.named("train") or own.dim == 1:
        raise _NoRule("it averages over the records")
    return _of_input(call, own)


# By the number of last dimensions that they work along.
_POOLS = {
    "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3, "avg_pool2d": 2, "avg_pool3d": 3,
    "_adaptive_avg_pool2d": 2, "_adaptive_avg_pool3d": 3, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3,
    "reflection_pad1d": 1, "reflection_pad2d": 2, "replication_pad1d": 1, "replication_pad2d": 2,
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_bilinear2d": 2, "upsample_bicubic2d": 2,
    "im2col": 3, "col2im": 2, "pixel_shuffle": 3, "pixel_unshuffle": 3,
}  # fmt: skip


@_rule(*_POOLS)
def _pooled(call: OperatorCall) -> State:
    own = call.only(call.args[0])
    if own.dim >= call.args[0].dim() - _POOLS[call.name]:
        raise _NoRule("it goes along the records")
    return own


@_rule(*(f"{name}_backward" for name in _POOLS))
def _pooled_back(call: OperatorCall) -> State:
    """Gradient, input and selected positions have the same layout, with records before channels and spatial sides."""
    own = call.agree(*call.inputs)
    if own.dim != 0 or call.out.dim() < 3:
        raise _NoRule("it goes along the records")
    return own


@_rule("constant_pad_nd")
def _padded(call: OperatorCall) -> State:
    own, sides = call.only(call.args[0]), call.args[1]
    last = call.args[0].dim() - 1 - own.dim
    if len(sides) > 2 * last and any(sides[2 * last : 2 * last + 2]):
        raise _NoRule("it adds places to the records")
    return own


@_rule("grid_sampler_2d", "grid_sampler_2d_backward")
def _sampled(call: OperatorCall) -> State:
    own = call.agree(*(t for t in call.inputs))
    if own.dim != 0:
        raise _NoRule("records lie elsewhere than in front")
    return own


@_rule(*_ATTENTIONS)
def _attention(call: OperatorCall) -> list[State]:
    """Each entry of the first dimension attends only to itself; a mask is uniform or has the same layout."""
    own = call.same(*(t for t in call.inputs if t.dim() > 2))
    if own.dim != 0:
        raise _NoRule("records attend to each other")
    for tensor in call.inputs:
        if tensor.dim() > 2 and call.axis(tensor) is None and not call.uniform(tensor, own):
            raise _NoRule(PLACES)
        if tensor.dim() <= 2 and call.axis(tensor) is not None:
            raise _NoRule("records lie in different ways")
    return [own if t.dim() > 2 else CONSTANT for t in call.results]


@_rule("embedding")
def _looked_up(call: OperatorCall) -> State:
    table, places = call.args[:2]
    if call.axis(table) is not None:
        raise _NoRule("records are looked up among each other")
    return call.only(places)


@_rule("gather", "scatter", "scatter_add", "scatter_", "scatter_add_")
def _gathered(call: OperatorCall) -> State:
    """out[i][j] = self[i][index[i][j]]: everything has the same layout, and the work is along another dimension."""
    given = [t for t in call.inputs if t.dim()]
    own = call.agree(*given)
    if call.args[1] % call.args[0].dim() == own.dim or len({t.shape[own.dim] for t in given}) > 1:
        raise _NoRule("it goes along the records")
    return own


@_rule("index_select")
def _picked(call: OperatorCall) -> State:
    source, dim, places = call.args
    own = call.axis(source)
    if own is not None and dim % source.dim() != own.dim and call.axis(places) is None:
        return own
    if own is None:
        return Axis(dim % source.dim(), call.only(places).inner)
    raise _NoRule("records are looked up among each other")


@_rule("index")
def _indexed(call: OperatorCall) -> State:
    """x[i, j, …] by tensors: the records' axis is untouched, kept in order by a constant, or only in the indices.

    Results have the indices' common shape at the position of the first one, or in front if others stand between them.
    """
    source, given = call.args[0], [(dim, place) for dim, place in enumerate(call.args[1]) if place is not None]
    shape = _common_shape([place for _, place in given])
    together = given[-1][0] - given[0][0] + 1 == len(given)
    front = given[0][0] if together else 0
    own = call.axis(source)
    found = {call.lifted(place, len(shape)) for _, place in given} - {None}
    along = next((place for dim, place in given if own is not None and dim == own.dim), None)
    if along is not None:
        found.add(_in_order(call, source.shape[own.dim] if own else 0, along, shape))
    if len(found) > 1 or (own is not None and along is None and found):
        raise _NoRule("records are looked up among each other")
    if not found:  # the records' axis moves with the remaining dimensions
        assert own is not None
        before = sum(dim < own.dim for dim, _ in given)
        return Axis(own.dim - before + (len(shape) if not together or front < own.dim else 0), own.inner)
    here = found.pop()
    assert here is not None
    for _, place in given:
        lower = Axis(here.dim - len(shape) + place.dim(), here.inner)
        if place is not along and call.axis(place) is None and not call.uniform(place, lower):
            raise _NoRule(PLACES)
    return Axis(here.dim + front, here.inner)


def _common_shape(places: Sequence[Tensor]) -> Sequence[int]:
    together = sum(
        (torch.zeros(1, device="meta").expand(place.shape) for place in places), torch.zeros((), device="meta")
    )
    return together.shape


def _in_order(call: OperatorCall, size: int, along: Tensor, shape: Sequence[int]) -> Axis:
    """Where records are in the result of indexing their axis by a constant: 0, 1, … R − 1 along one dimension."""
    if call.axis(along) is not None or size != call.records:
        raise _NoRule("records are looked up among each other")
    picked = along.expand(shape)
    for dim in range(len(shape)):
        line = torch.arange(shape[dim], device=along.device).view(-1, *[1] * (len(shape) - 1 - dim))
        if shape[dim] == call.records and bool((picked == line).all()):
            return Axis(dim)
    raise _NoRule("it moves or picks out records")


@_rule("index_put", "_unsafe_index_put")
def _put(call: OperatorCall) -> State:
    """The gradient of `index`: values go back to where they were picked, into something uniform."""
    source, given = call.args[0], [(dim, place) for dim, place in enumerate(call.args[1]) if place is not None]
    values, own = call.args[2], call.axis(call.args[2])
    shape = _common_shape([place for _, place in given])
    together = given[-1][0] - given[0][0] + 1 == len(given)
    front = given[0][0] if together else 0
    left = [dim for dim in range(source.dim()) if dim not in dict(given)]
    if own is None or values.dim() != len(shape) + len(left):
        raise _NoRule("it writes to places that depend on records")
    if front <= own.dim < front + len(shape):
        here = Axis(own.dim - front, own.inner)
        along = [dim for dim, place in given if _kept(call, source, dim, place, shape) == here]
        if len(along) != 1:
            raise _NoRule("it moves records")
        found = Axis(along[0])
    else:
        here = Axis(-1)
        found = Axis(left[own.dim if own.dim < front else own.dim - len(shape)], own.inner)
    for dim, place in given:
        lower = Axis(here.dim - len(shape) + place.dim(), here.inner)
        if call.axis(place) is not None and call.lifted(place, len(shape)) != here:
            raise _NoRule("it moves records")
        if call.axis(place) is None and dim != found.dim and not call.uniform(place, lower):
            raise _NoRule(PLACES)
    if call.axis(source) not in (None, found) or not call.uniform(source, found):
        raise _NoRule(PLACES)
    return found


def _kept(call: OperatorCall, source: Tensor, dim: int, place: Tensor, shape: Sequence[int]) -> Axis | None:
    try:
        return _in_order(call, source.shape[dim], place, shape)
    except _NoRule:
        return None


@_rule("nll_loss_forward")
def _nll(call: OperatorCall) -> list[State]:
    own = call.agree(*call.args[:2])
    if own.dim != 0 or call.args[3] != 0 or call.args[0].dim() != 2:
        raise _NoRule("it adds over the records")
    return [own, CONSTANT]


@_rule("nll_loss_backward")
def _nll_back(call: OperatorCall) -> State:
    own = call.agree(*call.args[:3])
    if own.dim != 0 or call.args[4] != 0:
        raise _NoRule("it adds over the records")
    return own

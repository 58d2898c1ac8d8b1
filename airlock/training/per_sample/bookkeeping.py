"""Clipped per-record gradient sums with one forward and one backward pass (book-keeping, Bu et al. 2023).

The backward pass stops at activations: parameters take no part in it. The inputs of every layer with trainable
parameters and its output gradients are kept for the duration of the call; per-record norms and the weighted sum follow
from these by the layer's rule (`layers`). A parameter that is used more than once (tied weights, a layer called several
times) has its per-record gradients added up before their norm is taken.

Guarantee: the sum is Σ f_i g_i, where g_i is computed by the rules from record i's slices of the layers' inputs and
output gradients, and f_i follows from the norm of that same g_i. `RecordAxis` shows that these slices depend on record
i alone, and hence so does g_i. Where people are protected, i is a row, and g_p is the mean over a person's rows
(`people`). If a gradient were missing, the sum would be wrong but just as private. That g_i is the
gradient is tested by `self_check`, against ordinary backward passes over single records.

A pass is tracked (`RecordAxis`) the first time, and every time unless the network is known to be steady, that is, to
perform the same operations on every batch of one size and mode. A pass that is not tracked must call the same layers in
the same order.

Where parameters are in shards (`training.sharding`), a layer's parameters are there only while it computes. Its sum is
reduced as soon as it is final, and the result holds this process' rows. A sum needs the norms of whole gradients first,
but no second pass: both follow from the layers' inputs and output gradients, which are kept anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from airlock.mechanisms.clipping import Clip
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample.layers import (
    AdapterRule,
    AnyRule,
    LayerCall,
    Rule,
    adapted,
    adapter_of,
    apart,
    as_one_product,
    check_axis,
    rule_for,
    weighted_rows,
)
from airlock.training.per_sample.operator_rules import CONSTANT, PLACES, Axis, Unshown
from airlock.training.per_sample.people import People
from airlock.training.per_sample.record_axis import RecordAxis, storage_of
from airlock.training.per_sample.sums import settle, weighted_sum
from airlock.training.sharding import WHOLE_LAYERS, Plans, ShardedParameters, watched


@dataclass
class _Kept:
    """One recorded call of a layer: its inputs, how they were passed, and the output tensors."""

    layer: nn.Module
    leaves: list[Any]
    structure: Any
    outputs: list[Tensor]
    spread: tuple[_Spread, ...]


# An output that depends on no record has to be expanded to every record before it can have a gradient for each: it may
# already have a row per record, one row for all, or no row.
_Spread = Literal["own", "row", "no row"]


@dataclass(frozen=True)
class _Layout:
    """Where the records are in the tensors of one call of a layer."""

    layer: nn.Module
    inputs: tuple[Axis | None, ...]
    outputs: tuple[Axis, ...]
    spread: tuple[_Spread, ...]


class BookKeeper:
    """Computes a network's per-record gradients layer by layer.

    Args:
        net: The network, in the mode in which it is used.
        constants: Tensors other than parameters and buffers that the network holds and no record has touched.
        steady: Whether it is enough to track one pass of each kind.
        loss: Of one record.
        shards: The network's parameters, if they are in shards.
    """

    def __init__(
        self,
        net: nn.Module,
        constants: Sequence[Tensor] = (),
        steady: bool = False,
        loss: Loss = CROSS_ENTROPY,
        shards: ShardedParameters | None = None,
    ) -> None:
        self.net, self.constants, self.steady, self.loss = net, tuple(constants), steady, loss
        self.shards = shards
        self._plans: Plans = {}
        self.names = {id(p): name for name, p in net.named_parameters() if p.requires_grad}
        self.rules: dict[nn.Module, Rule] = dict(_rules(net, together=shards is None))
        self._owners = {
            self._full(layer, name): (rule, name) for layer, rule in self.rules.items() for name in rule.names
        }
        self._layouts: dict[tuple[Any, ...], tuple[_Layout, ...]] = {}
        self.decisions: tuple[bool, ...] | None = None  # the network's decisions on made-up records
        self.bytes_per_record, self.places = 1, 1
        self._recording = False

    def forget(self) -> tuple[bool, ...] | None:
        """Track the next pass as if it were the first; returns the decisions of the passes so far."""
        self._layouts.clear()
        before, self.decisions = self.decisions, None
        return before

    def masked_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        clip: Clip,
        norm: Tensor | None = None,
        people: People | None = None,
    ) -> tuple[Named, Tensor]:
        """The sum over the records with a mask above 0 in float64, and which are usable; does not synchronise.

        If one of these records is not usable, the sum may be NaN and has to be computed again without it.

        Args:
            x: The rows; a label is a record, and if there are more rows than labels, each label has equally many.
            y: The labels.
            mask: 1 for a record that counts, a fraction for one that counts less, 0 for padding.
            clip: How gradients are bounded.
            norm: The clip's norm as a tensor, for a CUDA graph.
            people: Who owns the records; all of a person's records have one mask, and are usable or not together.
        """
        with self._together("sum"):
            calls = self._run(x, y, people)
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                rows = self._added(calls, self._shared(calls), people)
                squares, kept = self._squares(calls, rows, clip)
                self._note_size(calls, [rows, *kept.values()], len(y))
                factors, finite, balance = settle(squares, mask, clip, norm, people)
                total = self._sum(calls, rows, kept, factors, clip.scale is not None, people)
        return total | balance, finite

    def squares(self, x: Tensor, y: Tensor, exact: bool = True, people: People | None = None) -> Named:
        """The squared norm of every record's gradient in float64, by parameter name; not private.

        With `people`, that of the sum over a person's records, at the first of them.
        """
        with self._together("squares"):
            calls = self._run(x, y, people)
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                rows = self._added(calls, self._shared(calls), people)
                found, kept = self._squares(calls, rows, Clip(1.0), exact)
                self._note_size(calls, [rows, *kept.values()], len(y))
        zeros = torch.zeros(len(y), dtype=torch.float64, device=x.device)
        return {name: found.get(name, zeros) for name in self.names.values()}

    def traces(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Everything that the rules use from a pass, record by record, as raw bits: for comparing two passes."""
        with self._together("traces"):
            calls = self._run(x, y)
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                return [part.flatten(1) for layer, call in calls for part in self.rules[layer].used(call)]

    def _together(self, kind: str) -> contextlib.AbstractContextManager[None]:
        """A pass that all processes make together, if parameters are in shards."""
        return contextlib.nullcontext() if self.shards is None else self.shards.passing(kind, self._plans)

    def _at_hand(self, layer: nn.Module) -> contextlib.AbstractContextManager[None]:
        """The numbers in a layer's parameters can be read, where its rule does."""
        apart = self.shards is not None and self.rules[layer].reads_parameters
        return self.shards.gathered(layer) if self.shards is not None and apart else contextlib.nullcontext()

    def _final(self, name: str, value: Tensor) -> Tensor:
        """A sum over this process' records as it is returned."""
        return value if self.shards is None else self.shards.reduce(name, value)

    def _run(self, x: Tensor, y: Tensor, people: People | None = None) -> list[tuple[nn.Module, LayerCall]]:
        """One forward pass with the layers' inputs kept, one backward pass to their outputs."""
        calls = self._passed(x, y)
        for _, call in calls:
            call.people = people
        return calls

    def _passed(self, x: Tensor, y: Tensor) -> list[tuple[nn.Module, LayerCall]]:
        copies = len(x) // len(y)
        modes = tuple(module.training for module in self.net.modules())
        key = (len(y), copies, x.shape[1:], x.dtype, modes, torch.is_autocast_enabled(x.device.type))
        known = self._layouts.get(key)
        labels = y if copies == 1 else y.repeat_interleave(copies)
        share = torch.full((len(labels),), 1 / copies, device=x.device)
        if known is not None and (self.steady or _capturing(x)):
            answers = RecordAxis(len(y), decisions=self.decisions, light=True)
            with answers if self.decisions else contextlib.nullcontext():
                kept, _, backs = self._pass(x, labels, share, [layout.spread for layout in known])
            return self._calls(kept, backs, known, len(y))
        watch = RecordAxis(len(y), self._constants(), self.decisions)
        watch.note(x, Axis(0, copies))
        watch.note(labels, Axis(0, copies))
        watch.note(share, CONSTANT)
        with watch, contextlib.nullcontext() if self.shards is None else watched():
            kept, losses, backs = self._pass(x, labels, share, watch)
        if watch.axis(losses, "a loss") != Axis(0, copies):
            raise Unshown("losses that do not belong to one record each")
        if self.decisions is None:
            self.decisions = tuple(watch.decided)
        found = self._layouts[key] = self._look(kept, backs, watch)
        return self._calls(kept, backs, found, len(y))

    def _pass(
        self, x: Tensor, labels: Tensor, share: Tensor, how: RecordAxis | Sequence[tuple[_Spread, ...]]
    ) -> tuple[list[_Kept], Tensor, list[Tensor | None]]:
        """The two passes, tracked by `how`, or with outputs expanded as before."""
        kept: list[_Kept] = []

        def keep(layer: nn.Module, inputs: Any, keywords: Any, output: Any) -> Any:
            if not self._recording:
                return output
            leaves, structure = tree_flatten((inputs, keywords))
            parts, shape = tree_flatten(output)
            places = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.is_floating_point()]
            if isinstance(how, RecordAxis):
                spread = tuple(_spread_of(parts[i], how, len(x), len(x) // how.records) for i in places)
            elif len(kept) < len(how):
                spread = how[len(kept)]
            else:
                raise Unshown("the network calls more layers than before")
            for i, kind in zip(places, spread, strict=True):
                parts[i] = _led(parts[i], kind, len(x), how)
            detached = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            kept.append(_Kept(layer, detached, structure, [parts[i] for i in places], spread))
            return tree_unflatten(parts, shape)

        with self._prepared(keep), torch.enable_grad():
            losses = self.loss(self.net(x), labels)
            outputs = [part for one in kept for part in one.outputs]
            backs: list[Tensor | None] = []
            if outputs:
                backs += torch.autograd.grad(losses, outputs, share, allow_unused=True)
        return kept, losses, backs

    def _look(self, kept: Sequence[_Kept], backs: Sequence[Tensor | None], watch: RecordAxis) -> tuple[_Layout, ...]:
        """Where the records are in everything that the rules will use."""
        found, rest = [], iter(backs)
        for one in kept:
            name = type(one.layer).__name__
            inputs = [watch.axis(t, f"what goes into {name}") if isinstance(t, Tensor) else None for t in one.leaves]
            own = [next(rest) for _ in one.outputs]
            after = [Axis(0) if back is None else _of(watch.axis(back, f"what comes back to {name}")) for back in own]
            if one.spread[:1] == ("own",) and inputs and inputs[0] is None:  # one row per record, all equal
                inputs[0] = after[0]
            found.append(_Layout(one.layer, tuple(inputs), tuple(after), one.spread))
        return tuple(found)

    def _calls(
        self, kept: Sequence[_Kept], backs: Sequence[Tensor | None], layouts: Sequence[_Layout], records: int
    ) -> list[tuple[nn.Module, LayerCall]]:
        if [one.layer for one in kept] != [layout.layer for layout in layouts]:
            raise Unshown("the network calls other layers than before")
        calls, rest = [], iter(backs)
        for one, layout in zip(kept, layouts, strict=True):
            shares: list[Tensor | None] = []
            for axis, kind in zip(layout.outputs, layout.spread, strict=True):
                back = next(rest)
                share = None if back is None else apart(back, axis, records)
                if share is not None and kind != "own":
                    share = share.sum(1, keepdim=kind == "row")
                shares.append(share)
            if any(share is not None for share in shares):
                rule = self.rules[one.layer]
                if not isinstance(rule, AnyRule):
                    check_axis(rule, one.outputs[0].dim(), layout.inputs[0], layout.outputs[0], layout.spread[0])
                calls.append((one.layer, LayerCall(records, one.leaves, one.structure, list(layout.inputs), shares)))
        return calls

    def _constants(self) -> Iterable[Tensor]:
        yield from self.net.parameters()
        yield from self.net.buffers()
        yield from self.constants

    def _note_size(self, calls: Sequence[tuple[nn.Module, LayerCall]], formed: Sequence[Named], records: int) -> None:
        """Roughly what a call holds in memory, for choosing a size: activations, their gradients, and rows formed."""
        numbers = sum(call.numbers for _, call in calls) + sum(g.numel() for rows in formed for g in rows.values())
        self.bytes_per_record = max(1, 4 * numbers // records)
        self.places = max((self.rules[layer].places(call) for layer, call in calls), default=1)

    @contextlib.contextmanager
    def _prepared(self, keep: Any) -> Iterator[None]:
        """Install hooks, exclude parameters from the backward pass and disable in-place operations; undone on exit."""
        hooks = [layer.register_forward_hook(keep, with_kwargs=True) for layer in self.rules]
        trainable = [p for p in self.net.parameters() if p.requires_grad]
        overwriting = [m for m in self.net.modules() if getattr(m, "inplace", False) is True]
        with_adapters = [layer for layer, rule in self.rules.items() if isinstance(rule, AdapterRule)]
        self._recording = True
        try:
            for layer in with_adapters:
                layer.forward = partial(as_one_product, layer)
            for parameter in trainable:
                parameter.requires_grad_(False)
            for module in overwriting:
                module.inplace = False  # type: ignore[assignment]
            yield
        finally:
            self._recording = False
            for hook in hooks:
                hook.remove()
            for layer in with_adapters:
                vars(layer).pop("forward", None)
            for parameter in trainable:
                parameter.requires_grad_(True)
            for module in overwriting:
                module.inplace = True  # type: ignore[assignment]

    def _full(self, layer: nn.Module, name: str) -> str:
        return self.names[id(layer.get_parameter(name))]

    def _shared(self, calls: Sequence[tuple[nn.Module, LayerCall]]) -> set[str]:
        """Parameters that were used more than once."""
        seen: set[str] = set()
        twice: set[str] = set()
        for layer, _ in calls:
            for name in self.rules[layer].names:
                full = self._full(layer, name)
                (twice if full in seen else seen).add(full)
        return twice

    def _added(
        self, calls: Sequence[tuple[nn.Module, LayerCall]], shared: set[str], people: People | None = None
    ) -> Named:
        """Per-record gradients of the shared parameters, added over their uses, in the parameter's own layout."""
        rows: Named = {}
        for layer, call in calls:
            rule = self.rules[layer]
            names = [name for name in rule.names if self._full(layer, name) in shared]
            if not names:
                continue
            with self._at_hand(layer):
                found = rule.rows(call)
            for name in names:
                full, own = self._full(layer, name), torch.stack([rule.restore(name, g) for g in found[name]])
                rows[full] = rows[full] + own if full in rows else own
        return rows if people is None else {name: people.add_up(g) for name, g in rows.items()}

    def _squares(
        self, calls: Sequence[tuple[nn.Module, LayerCall]], shared: Named, clip: Clip, exact: bool = False
    ) -> tuple[Named, dict[int, Named]]:
        """Squared norms by parameter, and by call the rows that had to be formed for them."""
        squares = {name: clip.squares(name, g) for name, g in shared.items()}
        kept: dict[int, Named] = {}
        for place, (layer, call) in enumerate(calls):
            rule = self.rules[layer]
            full = {name: self._full(layer, name) for name in rule.names}
            if all(name in shared for name in full.values()):
                continue
            scales = None if clip.scale is None else {name: clip.scale_of(whole) for name, whole in full.items()}
            found = rule.squares(call, scales, exact)
            if found is None:
                with self._at_hand(layer):
                    rows = _by_person(rule.rows(call), call)
                found = {name: clip.squares(full[name], g) for name, g in rows.items()}
                kept[place] = (
                    rows if call.people is None else {name: call.people.one_each(g) for name, g in rows.items()}
                )
            squares |= {full[name]: value for name, value in found.items() if full[name] not in shared}
        return squares, kept

    def _weighted(self, rule: Rule, call: LayerCall, rows: Named | None, factors: Named, scaled: bool) -> Named:
        if rows is None:
            return rule.weighted(call, factors, scaled)
        return {name: rule.restore(name, g) for name, g in weighted_rows(rows, factors).items()}

    def _sum(
        self,
        calls: Sequence[tuple[nn.Module, LayerCall]],
        shared: Named,
        kept: dict[int, Named],
        factors: Named,
        scaled: bool,
        people: People | None = None,
    ) -> Named:
        """The sum by parameter, zero for one that was not used; each is final before the next one begins."""
        of_rows = factors if people is None else {name: people.one_each(factor) for name, factor in factors.items()}
        one_each = shared if people is None else {name: people.one_each(g) for name, g in shared.items()}
        total = {name: self._final(name, weighted_sum(of_rows[name], g)) for name, g in one_each.items()}
        for place, (layer, call) in enumerate(calls):
            full = {name: self._full(layer, name) for name in self.rules[layer].names}
            if all(name in shared for name in full.values()):
                continue
            own = {name: (of_rows if place in kept else factors)[whole] for name, whole in full.items()}
            found = self._weighted(self.rules[layer], call, kept.get(place), own, scaled)
            total |= {full[name]: self._final(full[name], g) for name, g in found.items() if full[name] not in shared}
        return {
            name: total[name] if name in total else self._final(name, self._zero(name)) for name in self.names.values()
        }

    def _zero(self, name: str) -> Tensor:
        return torch.zeros_like(self.net.get_parameter(name), dtype=torch.float64)


def _by_person(rows: Named, call: LayerCall) -> Named:
    """Rows that were formed, added up over each person's; a copy, where they are a tensor of the pass itself."""
    if call.people is None:
        return rows
    passed = {storage_of(t) for t in (*call.leaves, *call.backs) if isinstance(t, Tensor)}
    own = {name: g.clone() if storage_of(g) in passed else g for name, g in rows.items()}
    return {name: call.people.add_up(g) for name, g in own.items()}


def _rules(net: nn.Module, together: bool) -> Iterator[tuple[nn.Module, Rule]]:
    """A rule for every layer with trainable parameters of its own; some layers handle their children too.

    Args:
        net: The network.
        together: Whether a dense layer and the adapter beside it may be one.
    """
    covered: set[nn.Module] = set()
    for layer in net.modules():
        if layer in covered:
            continue
        whole = isinstance(layer, WHOLE_LAYERS) or (together and _only_adapter(layer))
        own = tuple(name for name, p in layer.named_parameters(recurse=whole) if p.requires_grad)
        covered |= set(layer.modules()) if whole else set()
        if own:
            yield layer, rule_for(layer, own)


def _only_adapter(layer: nn.Module) -> bool:
    """Whether it is a dense layer of which only the adapter is trained."""
    if not adapted(layer):
        return False
    narrow = {id(one.weight) for one in adapter_of(layer)[:2]}
    return all(id(p) in narrow for p in layer.parameters() if p.requires_grad)


def _spread_of(part: Tensor, watch: RecordAxis, rows: int, copies: int) -> _Spread:
    """How an output has to be expanded to every record.

    Raises:
        Unshown: It depends on several records, or differs between positions.
    """
    if part.requires_grad or watch.axis(part, "a layer's output") is not None:
        return "own"
    if part.dim() and part.shape[0] == rows:
        if not watch.uniform(part, Axis(0, copies)):
            raise Unshown(PLACES)
        return "own"
    return "row" if part.dim() and part.shape[0] == 1 else "no row"


def _led(part: Tensor, kind: _Spread, rows: int, how: object) -> Tensor:
    """A layer's output as the backward pass needs it: with a row for every record, and a leaf if it is the first."""
    if kind != "own":
        part = (part if kind == "row" else part[None]).expand(rows, *part.shape[kind == "row" :]).clone()
    if not part.requires_grad:
        part = part.detach().requires_grad_()
        if isinstance(how, RecordAxis) and how.axis(part, "a layer's output") is None:
            how.place(part, Axis(0, rows // how.records))  # the same for every record
    return part


def _of(axis: Axis | None) -> Axis:
    if axis is None:
        raise Unshown("a gradient that belongs to no record")
    return axis


def _capturing(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()

"""Clipped per-record gradient sums with one forward and one backward pass (book-keeping, Bu et al. 2023).

The backward pass stops at activations: parameters take no part in it. What went into every layer with trainable
parameters and what came back is kept for the time of the call; per-record norms and the weighted sum follow from these
by the layer's rule (`layers`). A parameter that is used more than once (tied weights, a layer called several times) has
its per-record gradients added up before they are measured. A label is a record: where x has more rows than y, a record
is so many copies side by side, and its gradient is their mean.

Clipping bounds what is summed here, whatever that is: were a gradient missing, the sum would be wrong and private. That
it is right is tried once a network, on random records, against the gradients of torch.func; a network for which it is
not (one that uses a layer's weight behind the layer's back, say) is left to torch.func as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.mechanisms import BALANCE, Clip
from airlock.training.layers import Call, Named, Rule, copies_in, rule_for, spread, weighted_rows

Sums = tuple[Named, int]


class BookKeeper:
    """Takes a network's per-record gradients apart layer by layer."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.names = {id(p): name for name, p in net.named_parameters() if p.requires_grad}
        self.rules: dict[nn.Module, Rule] = {}
        for layer in net.modules():
            own = tuple(name for name, p in layer.named_parameters(recurse=False) if p.requires_grad)
            if own:
                self.rules[layer] = rule_for(layer, own)
        self._owners = {
            self._full(layer, name): (rule, name) for layer, rule in self.rules.items() for name in rule.names
        }
        self._recording = False
        self.bytes_per_record = 1

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip) -> Sums:
        """The sum of the clipped per-record gradients by parameter name, and how many records were dropped."""
        if not len(y):
            return self._zeros() | ({BALANCE: x.new_zeros((), dtype=torch.float32)} if clip.counting else {}), 0
        total, finite = self.masked_sum(x, y, None, clip)
        if not bool(finite.all()):  # asked last: on a GPU the answer has to be waited for
            return self._without(finite, x, y, clip)
        return total, 0

    def masked_sum(
        self, x: Tensor, y: Tensor, mask: Tensor | None, clip: Clip, norm: Tensor | None = None
    ) -> tuple[Named, Tensor]:
        """The sum over the records with mask 1, and which records are fit to be summed; waits for nothing.

        If one is not, the sum may be NaN and has to be taken again without it. `norm` is the clip's, as a tensor.
        """
        calls = self._run(x, y)
        rows = self._added(calls, self._shared(calls))
        squares, kept = self._squares(calls, rows, clip)
        self.bytes_per_record = max(1, self._bytes(calls, [rows, *kept.values()]) // len(y))
        finite = torch.isfinite(torch.stack(list(squares.values())).sum(0))
        factors = clip.factors(squares, norm)
        if mask is not None:
            finite = finite | (mask == 0)
            factors = {name: factor * mask for name, factor in factors.items()}
        total = self._sum(calls, rows, kept, factors)
        if clip.counting:
            sides = clip.balance(squares, norm)
            total[BALANCE] = (sides if mask is None else sides * mask).sum()
        return total, finite

    def squares(self, x: Tensor, y: Tensor) -> Named:
        """The squared norm of every record's gradient, by parameter name: what clipping looks at, and not private."""
        calls = self._run(x, y)
        rows = self._added(calls, self._shared(calls))
        found, kept = self._squares(calls, rows, Clip(1.0))
        self.bytes_per_record = max(1, self._bytes(calls, [rows, *kept.values()]) // len(y))
        return {
            name: found[name] if name in found else torch.zeros(len(y), device=x.device) for name in self.names.values()
        }

    def _zeros(self) -> Named:
        return {name: self._zero(name) for name in self.names.values()}

    def _without(self, finite: Tensor, x: Tensor, y: Tensor, clip: Clip) -> Sums:
        """Once more without the records whose gradients are not finite; they are rare, and beyond any bound."""
        total, more = self.clipped_sum(x[spread(finite, copies_in(x, y))], y[finite], clip)
        dropped = int((~finite).sum())
        if clip.counting:
            total[BALANCE] = total[BALANCE] - 0.5 * dropped
        return total, more + dropped

    def _run(self, x: Tensor, y: Tensor) -> list[tuple[nn.Module, Call]]:
        """One forward pass with the layers' inputs kept, one backward pass to their outputs."""
        kept: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Tensor]] = []

        def keep(layer: nn.Module, inputs: Any, keywords: Any, output: Tensor) -> Tensor:
            if not self._recording:
                return output
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            kept.append((layer, inputs, keywords, output))
            return output

        copies = copies_in(x, y)
        with self._prepared(keep), torch.enable_grad():
            loss = F.cross_entropy(self.net(x).float(), spread(y, copies), reduction="sum")
        outputs = [output for *_, output in kept]
        share = torch.full_like(loss, 1 / copies)
        backs = torch.autograd.grad(loss, outputs, share, allow_unused=True)
        return [
            (layer, Call(inputs, keywords, back, copies))
            for (layer, inputs, keywords, _), back in zip(kept, backs, strict=True)
            if back is not None
        ]

    def _bytes(self, calls: Sequence[tuple[nn.Module, Call]], formed: Sequence[Named]) -> int:
        """About what a call holds: activations there and back, and the rows that were formed."""
        activations = sum(call.a.numel() + 2 * call.back.numel() for _, call in calls)
        return 4 * (activations + sum(g.numel() for rows in formed for g in rows.values()))

    @contextlib.contextmanager
    def _prepared(self, keep: Any) -> Iterator[None]:
        """Hooks in place, parameters out of the backward pass, nothing overwritten in place; all put back."""
        hooks = [layer.register_forward_hook(keep, with_kwargs=True) for layer in self.rules]
        trainable = [p for p in self.net.parameters() if p.requires_grad]
        overwriting = [m for m in self.net.modules() if getattr(m, "inplace", False) is True]
        self._recording = True
        try:
            for parameter in trainable:
                parameter.requires_grad_(False)
            for module in overwriting:
                module.inplace = False  # type: ignore[assignment]
            yield
        finally:
            self._recording = False
            for hook in hooks:
                hook.remove()
            for parameter in trainable:
                parameter.requires_grad_(True)
            for module in overwriting:
                module.inplace = True  # type: ignore[assignment]

    def _full(self, layer: nn.Module, name: str) -> str:
        return self.names[id(layer.get_parameter(name))]

    def _shared(self, calls: Sequence[tuple[nn.Module, Call]]) -> set[str]:
        """Parameters that were used more than once."""
        seen: set[str] = set()
        twice: set[str] = set()
        for layer, _ in calls:
            for name in self.rules[layer].names:
                full = self._full(layer, name)
                (twice if full in seen else seen).add(full)
        return twice

    def _added(self, calls: Sequence[tuple[nn.Module, Call]], shared: set[str]) -> Named:
        """Per-record gradients of the shared parameters, added over their uses."""
        rows: Named = {}
        for layer, call in calls:
            names = [name for name in self.rules[layer].names if self._full(layer, name) in shared]
            if not names:
                continue
            found = self.rules[layer].rows(call)
            for name in names:
                full = self._full(layer, name)
                rows[full] = rows[full] + found[name] if full in rows else found[name]
        return rows

    def _squares(
        self, calls: Sequence[tuple[nn.Module, Call]], shared: Named, clip: Clip
    ) -> tuple[Named, dict[int, Named]]:
        """Squared norms by parameter, and by call the rows that had to be formed for them."""
        squares = {name: clip.squares(name, g) for name, g in shared.items()}
        kept: dict[int, Named] = {}
        for place, (layer, call) in enumerate(calls):
            rule = self.rules[layer]
            full = {name: self._full(layer, name) for name in rule.names}
            if all(name in shared for name in full.values()):
                continue
            found = rule.squares(call, {name: clip.scale_of(whole) for name, whole in full.items()})
            if found is None:
                kept[place] = rule.rows(call)
                found = {name: clip.squares(full[name], g) for name, g in kept[place].items()}
            squares |= {full[name]: value for name, value in found.items() if full[name] not in shared}
        return squares, kept

    def _weighted(self, rule: Rule, call: Call, rows: Named | None, factors: Named) -> Named:
        if rows is None:
            return rule.weighted(call, factors)
        return {name: rule.restore(name, g) for name, g in weighted_rows(rows, factors).items()}

    def _sum(
        self,
        calls: Sequence[tuple[nn.Module, Call]],
        shared: Named,
        kept: dict[int, Named],
        factors: Named,
    ) -> Named:
        """By parameter; zero for one that took no part."""
        total: Named = {}
        for name, g in weighted_rows(shared, factors).items():
            rule, own_name = self._owners[name]
            total[name] = rule.restore(own_name, g)
        for place, (layer, call) in enumerate(calls):
            full = {name: self._full(layer, name) for name in self.rules[layer].names}
            if all(name in shared for name in full.values()):
                continue
            own = {name: factors[whole] for name, whole in full.items()}
            rule = self.rules[layer]
            found = self._weighted(rule, call, kept.get(place), own)
            for name, g in found.items():
                if full[name] not in shared:
                    total[full[name]] = g
        return {name: total[name] if name in total else self._zero(name) for name in self.names.values()}

    def _zero(self, name: str) -> Tensor:
        return torch.zeros_like(self.net.get_parameter(name))

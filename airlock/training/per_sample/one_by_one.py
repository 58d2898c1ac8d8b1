"""Per-record gradients by ordinary backward passes, one record at a time: slow, but correct for every network.

It is the reference that the faster engines are tested against, and the fallback for a network whose records they cannot
show to be kept apart (because of operators without a rule, data-dependent control flow, or recurrent layers).

Guarantee: the network sees one record at a time, in a batch of its own, and is restored before the next one (`sealed`).
So g_i depends only on record i, the parameters and fresh random numbers, whatever the network does. A record for which
it raises an error has no gradient, and is dropped like one whose gradient is not finite.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from airlock.mechanisms.clipping import BALANCE, Clip, row_squares
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample.people import People
from airlock.training.per_sample.sealed import Sealed
from airlock.training.sharding import OtherPlan, Plans, ShardedParameters

FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError, NotImplementedError)


class OneByOne:
    """One backward pass per record."""

    def __init__(self, net: nn.Module, sealed: Sealed | None = None, loss: Loss = CROSS_ENTROPY) -> None:
        self.net, self.sealed, self.loss = net, sealed or Sealed(net), loss
        self.trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self.bytes_per_record, self.places = 1, 1
        self.counts = 1.0  # by how much this process' records count where all processes sum the same ones

    def lengths(self, values: Named) -> Named:
        """The norm of every parameter's value, in float64."""
        return {name: value.double().norm() for name, value in values.items()}

    def gradient(self, x: Tensor, label: Tensor) -> Named | None:
        """The gradient of one record's mean loss over its rows, by name, in float32; None if the network fails."""
        try:
            with torch.enable_grad():
                loss = self.loss(self.net(x.clone()), label.expand(len(x))).mean()
                found = torch.autograd.grad(loss, list(self.trainable.values()), allow_unused=True)
        except FAILURES:
            return None
        finally:
            self.sealed.restore()
        pairs = zip(self.trainable.items(), found, strict=True)
        return {name: torch.zeros_like(p) if g is None else g.detach().float() for (name, p), g in pairs}

    def masked_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        clip: Clip,
        norm: Tensor | None = None,
        people: People | None = None,
    ) -> tuple[Named, Tensor]:
        """The sum over the records with a mask above 0 in float64, each by its mask; others are left out.

        With `people`, a person's gradient is the mean over her records, added up in float64; she is left out if one of
        them is.
        """
        counted = mask.tolist()  # a Poisson lot may be empty
        heads = range(len(y)) if people is None else people.head.tolist()
        owned: dict[int, list[int]] = {}
        for i, head in enumerate(heads):
            if counted[i]:
                owned.setdefault(head, []).append(i)
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in self.trainable.items()}
        balance = torch.zeros((), dtype=torch.float64, device=x.device)
        self.dropped = 0
        for own in owned.values():
            found = self.mean(x, y, own)
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                squares = None if found is None else {name: clip.squares(name, g[None]) for name, g in found.items()}
                if found is None or squares is None or not bool(torch.stack(list(squares.values())).sum().isfinite()):
                    self.dropped += 1
                    balance -= 0.5
                    continue
                factors = clip.factors(squares, norm)
                for name, g in found.items():
                    total[name] += g.double() * factors[name] * counted[own[0]]
                balance += clip.balance(squares, norm).sum()
        return total | ({BALANCE: balance} if clip.counting else {}), torch.ones(len(y), dtype=torch.bool)

    def mean(self, x: Tensor, y: Tensor, own: list[int]) -> Named | None:
        """The mean gradient of these records; None if the network fails on one of them."""
        copies = len(x) // len(y)
        total: Named = {}
        for i in own:
            found = self.gradient(x[i * copies : (i + 1) * copies], y[i])
            if found is None:
                return None
            if len(own) == 1:
                return found
            total = {name: total[name] + g if name in total else g.double() for name, g in found.items()}
        return {name: g / len(own) for name, g in total.items()}

    def squares(self, x: Tensor, y: Tensor, exact: bool = True) -> Named:
        """The squared norm of every record's gradient in float64, by parameter name; infinite if it has no gradient."""
        copies = len(x) // len(y)
        rows = [self.gradient(x[i * copies : (i + 1) * copies], y[i]) for i in range(len(y))]
        endless = torch.full((1,), torch.inf, dtype=torch.float64, device=x.device)
        return {
            name: torch.cat([endless if row is None else row_squares(row[name][None]) for row in rows])
            for name in self.trainable
        }


class OneByOneInShards(OneByOne):
    """The same for parameters in shards, as the reference that an engine is tested against; not for private records.

    All processes compute the gradient of the same record, and each keeps its rows: of a parameter's whole gradient, as
    soon as it is there.
    """

    def __init__(self, net: nn.Module, sealed: Sealed, loss: Loss, shards: ShardedParameters) -> None:
        super().__init__(net, sealed, loss)
        self.shards = shards
        self.counts = float(shards.group.lead)
        self._plans: Plans = {}

    def lengths(self, values: Named) -> Named:
        """The norm of every parameter's value, from all processes' rows."""
        return self.shards.lengths(values)

    def gradient(self, x: Tensor, label: Tensor) -> Named | None:
        """This process' rows of the gradient."""
        found = {name: torch.zeros_like(self.shards.pieces[name].local) for name in self.trainable}

        def keep(name: str, parameter: Tensor) -> None:
            assert parameter.grad is not None
            piece = self.shards.pieces[name]
            rows = parameter.grad.reshape(-1, *parameter.shape[1:]) if parameter.dim() else parameter.grad.reshape(1)
            found[name].copy_(rows[piece.start : piece.stop].detach())
            parameter.grad = None

        hooks = [
            p.register_post_accumulate_grad_hook(partial(keep, name))  # type: ignore[no-untyped-call]
            for name, p in self.trainable.items()
        ]
        try:
            with self.shards.passing("one record", self._plans), torch.enable_grad():
                self.loss(self.net(x.clone()), label.expand(len(x))).mean().backward()  # type: ignore[no-untyped-call]
        except (OtherPlan, *FAILURES):
            return None
        finally:
            for hook in hooks:
                hook.remove()
            self.sealed.restore()
        return {name: g.detach().float() for name, g in found.items()}

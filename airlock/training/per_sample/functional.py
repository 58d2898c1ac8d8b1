"""Per-record gradients of a whole network by torch.func's vmap: every record's gradient is formed.

Guarantee: by its semantics, vmap gives what the network would give for each record individually: inside it the network
sees one record, and values of records can neither mix nor affect Python's control flow. So g_i depends on record i
alone. Its limits are vmap's: no in-place operator without a batching rule, no data-dependent control flow.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from airlock.mechanisms.clipping import Clip, row_squares
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample.layers import called_with, weighted_rows
from airlock.training.per_sample.people import People
from airlock.training.per_sample.sums import settle


class FunctionalGradients:
    """One gradient per record, formed and kept for the duration of the call."""

    def __init__(self, net: nn.Module, loss: Loss = CROSS_ENTROPY) -> None:
        self.net, self.loss = net, loss
        self.bytes_per_record = max(4, 8 * sum(p.numel() for p in net.parameters() if p.requires_grad))
        self.places = 1

    def masked_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        clip: Clip,
        norm: Tensor | None = None,
        people: People | None = None,
    ) -> tuple[Named, Tensor]:
        """The sum over the records, each by its mask, in float64, and which are usable; by person with `people`."""
        rows = self._by_person(x, y, people)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            squares = {name: clip.squares(name, g) for name, g in rows.items()}
            factors, finite, balance = settle(squares, mask, clip, norm, people)
            return weighted_rows(rows, factors) | balance, finite

    def squares(self, x: Tensor, y: Tensor, exact: bool = True, people: People | None = None) -> Named:
        """The squared norm of every record's gradient in float64, by parameter name; see `BookKeeper.squares`."""
        return {name: row_squares(g) for name, g in self._by_person(x, y, people).items()}

    def _by_person(self, x: Tensor, y: Tensor, people: People | None) -> Named:
        """The gradients, added up over each person's records; of copies, because vmap may return shared tensors."""
        rows = self.rows(x, y)
        return rows if people is None else {name: people.add_up(g.clone()) for name, g in rows.items()}

    def traces(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Every record's gradient, as raw bits: for comparing two passes."""
        return [g.flatten(1) for g in self.rows(x, y).values()]

    def rows(self, x: Tensor, y: Tensor) -> Named:
        """Every record's gradient, by parameter name; the mean over its copies if x has more rows than y."""
        trainable = {name: p.detach() for name, p in self.net.named_parameters() if p.requires_grad}
        rest = {name: p.detach() for name, p in self.net.named_parameters() if not p.requires_grad}
        rest |= dict(self.net.named_buffers())
        copies = len(x) // len(y)
        records = x.reshape(len(y), copies, *x.shape[1:])

        def loss(values: Named, record: Tensor, label: Tensor) -> Tensor:
            logits = called_with(self.net, values | rest, (record,))
            return self.loss(logits, label.expand(copies)).mean()

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # an operation without a batching rule
            rows = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(trainable, records, y)
        return {name: g.detach().float() for name, g in rows.items()}

"""Per-record gradients of a whole network by torch.func's vmap: every record's gradient is formed.

Guarantee: by its semantics, vmap gives what the network would give for each record individually: inside it the network
sees one record, and values of records can neither mix nor affect Python's control flow. So g_i depends on record i
alone. Its limits are vmap's: no in-place operator without a batching rule, no data-dependent control flow.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from airlock.mechanisms.clipping import BALANCE, Clip, row_squares
from airlock.training.gradients import Named
from airlock.training.per_sample.layers import weighted_rows


class FunctionalGradients:
    """One gradient per record, formed and kept for the duration of the call."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.bytes_per_record = max(4, 8 * sum(p.numel() for p in net.parameters() if p.requires_grad))
        self.places = 1

    def masked_sum(
        self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, norm: Tensor | None = None
    ) -> tuple[Named, Tensor]:
        """The sum over the records with mask 1 in float64, and which records are usable."""
        rows = self.rows(x, y)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            squares = {name: clip.squares(name, g) for name, g in rows.items()}
            finite = torch.isfinite(torch.stack(list(squares.values())).sum(0)) | (mask == 0)
            factors = {name: factor * mask for name, factor in clip.factors(squares, norm).items()}
            balance = {BALANCE: (clip.balance(squares, norm) * mask).sum()} if clip.counting else {}
            return weighted_rows(rows, factors) | balance, finite

    def squares(self, x: Tensor, y: Tensor, exact: bool = True) -> Named:
        """The squared norm of every record's gradient in float64, by parameter name."""
        return {name: row_squares(g) for name, g in self.rows(x, y).items()}

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
            logits = functional_call(self.net, values | rest, (record,))
            return F.cross_entropy(logits.float(), label.expand(copies))

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # an operation without a batching rule
            rows = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(trainable, records, y)
        return {name: g.detach().float() for name, g in rows.items()}

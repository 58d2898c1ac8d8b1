"""Per-record gradients of a whole network by torch.func's vmap: slow, and right for whatever torch.func can take.

It is the reference that book-keeping is tried against, and what is left for networks that book-keeping does not take.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from airlock.mechanisms import BALANCE, Clip
from airlock.mechanisms.clipping import row_squares
from airlock.training.layers import Named, copies_in, weighted_rows


class FunctionalGradients:
    """One gradient a record, formed and kept for the time of the call."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.bytes_per_record = max(4, 4 * sum(p.numel() for p in net.parameters() if p.requires_grad))

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip) -> tuple[Named, int]:
        """The sum of the clipped per-record gradients by parameter name, and how many records were dropped."""
        if not len(y):
            zeros = {name: torch.zeros_like(p) for name, p in self.net.named_parameters() if p.requires_grad}
            return zeros | ({BALANCE: x.new_zeros((), dtype=torch.float32)} if clip.counting else {}), 0
        rows = self.rows(x, y)
        squares = {name: clip.squares(name, g) for name, g in rows.items()}
        finite = torch.isfinite(torch.stack(list(squares.values())).sum(0))
        balance = {BALANCE: clip.balance(squares).sum()} if clip.counting else {}
        if not bool(finite.all()):
            rows = {name: g[finite] for name, g in rows.items()}
            squares = {name: square[finite] for name, square in squares.items()}
        return weighted_rows(rows, clip.factors(squares)) | balance, int((~finite).sum())

    def squares(self, x: Tensor, y: Tensor) -> Named:
        """The squared norm of every record's gradient, by parameter name."""
        return {name: row_squares(g) for name, g in self.rows(x, y).items()}

    def rows(self, x: Tensor, y: Tensor) -> Named:
        """Every record's gradient, by parameter name; the mean over its copies where x has more rows than y."""
        trainable = {name: p.detach() for name, p in self.net.named_parameters() if p.requires_grad}
        rest = {name: p.detach() for name, p in self.net.named_parameters() if not p.requires_grad}
        rest |= dict(self.net.named_buffers())
        copies = copies_in(x, y)
        records = x.reshape(len(y), copies, *x.shape[1:])

        def loss(values: Named, record: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(self.net, values | rest, (record,))
            return F.cross_entropy(logits.float(), label.expand(copies))

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # an operation without a batching rule
            rows = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(trainable, records, y)
        return {name: g.float() for name, g in rows.items()}

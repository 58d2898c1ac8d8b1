"""The sum over a lot where the network's parameters are in shards (`training.sharding`).

In: this process' part of the lot. Out: this process' rows of the sum over the whole lot.

All processes make the same passes, however their parts differ: whoever has fewer chunks, or none, passes made-up
records that do not count. After each pass they learn whether a record was not finite anywhere, or made the network
fail; then all look for it, or sum again without it, together.

Guarantee: that of `engine.clipped_sum` for the whole lot. A record is in one process' part, its gradient and its norm
are complete there, its summand has norm at most (1 − 2^-10) of the bound, and the processes' sums are added up
(`sums` bounds the rounding). What is padded counts for nothing.

A network that cannot be shown right in this way is gathered as a whole in every step, and summed by `engine`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from airlock.errors import AirlockWarning
from airlock.mechanisms.clipping import BALANCE, Clip
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample import self_check
from airlock.training.per_sample.engine import (
    Chunk,
    Lot,
    Use,
    cached,
    chunk_size,
    chunks_of,
    clipped_sum,
    copies_in,
    groups_of,
    key_of,
    lot_of,
    share_of,
)
from airlock.training.per_sample.one_by_one import FAILURES
from airlock.training.per_sample.operator_rules import Unshown
from airlock.training.per_sample.people import People
from airlock.training.per_sample.sealed import Sealed
from airlock.training.per_sample.sums import Total
from airlock.training.sharding import OtherPlan, ShardedParameters

_FINE, _NOT_FINITE, _FAILED, _OTHER = range(4)  # what may happen in a pass, the worst last


class _Stopped(Unshown):
    """A pass that ended early; `records` may be the cause, and `here` says whether one of this process is."""

    def __init__(self, reason: str, records: bool, here: bool) -> None:
        super().__init__(reason)
        self.records, self.here = records, here


class SharedUse(Use):
    """One use of a network that all processes make together."""

    def __init__(
        self, shards: ShardedParameters, net: nn.Module, like: Tensor, copies: int, lot: Lot, loss: Loss
    ) -> None:
        self.shards = shards
        super().__init__(net, like, copies, lot, loss)

    def _prepare(self, like: Tensor) -> None:
        """By book-keeping.

        Raises:
            Unshown: It could not be shown right.
        """
        net, copies, most, loss = self.net, self.copies, self.lot.most, self.loss
        self.sealed = Sealed(net, parameters=False)
        measured = self_check.measure(net, like, copies, most, loss, self.shards)
        self.size = chunk_size(*measured, self.lot, like.device)
        self.filling = self_check.made_up(net, like, self.size, copies, 3)
        found = self_check.choose(net, like, copies, self.size, most, loss, self.shards)
        self.engine, self.reason, self.care = found
        self.sealed.restore()

    def chunk_sum(self, clip: Clip, chunk: Chunk) -> tuple[Named, int]:
        """This process' rows of the sum over all processes' chunks, and how many records were dropped from its own.

        Raises:
            Unshown: In one of the processes the network did something else than on made-up records; it is raised in
                all of them.
        """
        mask = self._mask(len(chunk.y), chunk.weights)
        people = self._people(chunk.sizes, self.size, chunk.y.device)
        rows, labels = self.filled(chunk.x, chunk.y)
        try:
            part, finite, fine = self._pass(rows, labels, mask, clip, people)
        except _Stopped as stopped:
            if not stopped.records:
                raise
            self._failed = stopped.here
            finite, fine = self._works(rows, labels, mask, people), False
        return (part, 0) if fine else self._without(rows, labels, mask, clip, finite, people)

    def _pass(
        self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: People | None
    ) -> tuple[Named, Tensor, bool]:
        """The sum, which of the own records are usable, and whether all are in all processes.

        Raises:
            _Stopped: The pass did not come to its end in one of the processes; it is raised in all.
        """
        level, reason = _FINE, "it did something else than on made-up records in another process"
        part: Named = {}
        finite = torch.ones_like(mask, dtype=torch.bool)
        try:
            part, finite = super()._sum(x, y, mask, clip, people)
            level = _FINE if bool(finite.all()) else _NOT_FINITE
        except (Unshown, OtherPlan) as found:
            level, reason = _OTHER, str(found)
        except FAILURES:
            level = _FAILED
        worst = self.shards.worst(level)
        if worst > _NOT_FINITE:
            raise _Stopped(reason, worst == _FAILED, level == _FAILED)
        return part, finite, worst == _FINE

    def _sum(
        self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: People | None = None
    ) -> tuple[Named, Tensor]:
        part, finite, _ = self._pass(x, y, mask, clip, people)
        return part, finite

    def _bears(self, share: Tensor, label: Tensor, counts: bool) -> bool:
        """Whether the network works on a chunk of nothing but this record; all processes try as many."""
        rows = torch.empty_like(self.filling).copy_(share.repeat(self.size, *[1] * (share.dim() - 1)))
        try:
            self.engine.squares(rows, label.expand(self.size).clone())
        except (Unshown, OtherPlan, *FAILURES):
            return not counts
        return True

    def _require_a_cause(self, found: bool) -> None:
        """All processes refuse, or none does."""
        super()._require_a_cause(not self.shards.worst(int(self._failed and not found)))

    def _zeros(self, clip: Clip) -> Named:
        """Of a chunk without any record that counts, which the others' chunks are added to."""
        nobody = torch.zeros(self.size, device=self.filling.device)
        labels = torch.zeros(self.size, dtype=torch.int64, device=self.filling.device)
        part, _ = self._sum(self.filling, labels, nobody, clip)
        return part


def sharded_sum(
    shards: ShardedParameters,
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    clip: Clip,
    expected_lot: float,
    sampled: bool = True,
    owners: Tensor | None = None,
    records_per_person: int | None = None,
    expected_rows: float | None = None,
    weights: Tensor | None = None,
    loss: Loss = CROSS_ENTROPY,
) -> tuple[Named, int]:
    """This process' rows of the sum over all processes' records, and how many of its own records were dropped.

    Of a counting clip, BALANCE is that of its own records.

    Args:
        shards: The network's parameters.
        net: The network.
        x: The rows of this process' records.
        y: Their labels.
        clip: How gradients are bounded.
        expected_lot: The public expected number of records in a part of the lot; the same in all processes.
        sampled: As for `clipped_sum`, and so are the other arguments.
        owners: The person whom each label belongs to.
        records_per_person: The public bound on a person's labels.
        expected_rows: The public expected number of labels in a part.
        weights: By how much each label's clipped gradient counts.
        loss: Of one record.
    """
    lot, sizes = lot_of(y, expected_lot, sampled, owners, records_per_person, expected_rows, shards.group.world)
    copies = shards.worst(copies_in(x, y))  # nobody knows from an empty part
    total, dropped = Total(), 0
    for where, rows in groups_of(net, x, sizes is None and copies == 1):
        use = _use(shards, net, rows, copies, share_of(lot, where, x, rows), loss)
        if not use:
            break
        try:
            dropped += _add(total, use[0], clip, chunks_of(use[0], rows, y, copies, sizes, weights, where))
        except Unshown as reason:
            use.clear()
            _tell_whole(str(reason))
            break
    else:
        return total.settle(), dropped
    with shards.whole():
        found, dropped = clipped_sum(
            net, x, y, clip, expected_lot, sampled, owners, records_per_person, expected_rows, weights, loss,
            shards.group.world,
        )  # fmt: skip
    return {name: value if name == BALANCE else shards.reduce(name, value) for name, value in found.items()}, dropped


def _use(shards: ShardedParameters, net: nn.Module, like: Tensor, copies: int, lot: Lot, loss: Loss) -> list[SharedUse]:
    """How all processes use this network, cached; nothing where it has to be gathered as a whole."""

    def make() -> list[SharedUse]:
        found, reason = [], "in another process"
        try:
            found.append(SharedUse(shards, net, like, copies, lot, loss))
        except Unshown as unshown:
            reason = str(unshown)
        if shards.worst(int(not found)):
            _tell_whole(reason)
            return []
        return found

    return cached(net, ("shards", *key_of(net, like, copies, lot, loss)), make)


def _add(total: Total, use: SharedUse, clip: Clip, chunks: Iterator[Chunk]) -> int:
    """Add the chunks of all processes, of which there are as many as the process with the most has."""
    first = next(chunks)
    nothing = Chunk(first.x[:0], first.y[:0], None if first.sizes is None else first.sizes[:0])
    chunk: Chunk | None = first
    dropped = 0
    while use.shards.worst(int(chunk is not None)):
        part, lost = use.chunk_sum(clip, chunk or nothing)
        total.add(part)
        dropped, chunk = dropped + lost, next(chunks, None)
    use.close()
    return dropped


def _tell_whole(reason: str) -> None:
    warnings.warn(
        "The network's parameters are gathered as a whole in every step, in every process: only the optimiser's state "
        f"and averaged weights are in shards. It could not be shown to work layer by layer: {reason}. "
        "The guarantee is the same.",
        AirlockWarning,
        stacklevel=4,
    )

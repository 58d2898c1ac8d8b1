"""The sum of clipped per-record gradients of a lot, in chunks of one size, by the fastest engine that can be trusted.

Every chunk has the same size, which follows from public figures: how many records a network sees at a time, and so what
it computes for each, does not depend on how many were drawn. The last chunk is padded with made-up records that do not
count. A lot is the sum over its chunks, so it may be larger than memory and is exactly what was drawn.

Guarantee of `clipped_sum`: adding or removing one record moves the sum, measured in units of the clip's scale, by at
most `clip.norm` in L2 over all parameters together, rounding included. Each record's gradient g_i is a function of that
record alone, bit for bit (`self_check`); its summand has norm at most (1 − 2^-10) of the bound; and the rounding of
float64 is bounded in `sums`. A record whose gradient is not finite, or on which the network fails, contributes zero. A
counting clip's sum has one more entry, BALANCE, which one record moves by 1/2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from airlock.errors import TrainingError
from airlock.mechanisms.clipping import BALANCE, Clip
from airlock.training.devices import room
from airlock.training.gradients import Named
from airlock.training.per_sample import self_check
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.graphs import Graphs
from airlock.training.per_sample.one_by_one import FAILURES, OneByOne
from airlock.training.per_sample.operator_rules import Unshown
from airlock.training.per_sample.sealed import USES, Sealed, Uses
from airlock.training.per_sample.sums import MULTIPLE, Total, largest_chunk

# A chunk has this many bytes, or at least _LEAST records: a CPU is fastest within its cache.
_CHUNK_BYTES = {"cpu": (1 << 26, 1 << 30), "cuda": (1 << 33, 1 << 33)}
_LEAST = 64
_SPREAD = 2.0  # standard deviations by which a lot may exceed its expected size before it needs another chunk
_KEPT = 8  # uses of one network that are cached


class Use:
    """One use of a network: a mode, precision, shape and chunk size, and the engine chosen for it."""

    def __init__(self, net: nn.Module, like: Tensor, copies: int, expected_lot: float, sampled: bool) -> None:
        self.net, self.copies, self.lot = net, copies, expected_lot
        self.sealed = Sealed(net)
        self.graphs: Graphs | None = None
        self._masked: tuple[int, Tensor] | None = None
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            self.size = _size(*self_check.measure(net, like, copies), expected_lot, sampled, like.device)
            self.filling = self_check.made_up(like, self.size, copies, 3)
            self.engine, self.reason, self.careful = self_check.choose(net, like, copies, self.size)
            self.sealed.restore()
            if isinstance(self.engine, OneByOne):
                self._settle_for_slow(self.reason)
            elif isinstance(self.engine, BookKeeper) and like.is_cuda:
                self.graphs = Graphs(self.engine)

    def filled(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A chunk of full size, in one memory format, padded with made-up records."""
        if len(y) == self.size and x.stride() == self.filling.stride():
            return x, y
        whole = self.filling.clone(memory_format=torch.preserve_format)
        whole[: len(x)] = x
        labels = y.new_zeros(self.size)
        labels[: len(y)] = y
        return whole, labels

    def chunk_sum(self, x: Tensor, y: Tensor, clip: Clip) -> tuple[Named, int]:
        """The clipped sum of one chunk, and how many records were dropped from it."""
        if isinstance(self.engine, OneByOne):
            part, _ = self.engine.masked_sum(x, y, torch.ones(len(y)), clip)
            return part, self.engine.dropped
        mask = self._mask(len(y))
        rows, labels = self.filled(x, y)
        try:
            part, finite = self._sum(rows, labels, mask, clip)
        except Unshown as reason:  # it behaves differently than on made-up records
            self._settle_for_slow(str(reason))
            return self.chunk_sum(x, y, clip)
        except FAILURES:  # one of the records caused it: it is found and left out
            finite = self._works(rows, labels, mask)
        if bool(finite.all()):  # checked last: on a GPU this synchronises
            return part, 0
        return self._without(rows, labels, mask, clip, finite)

    def _mask(self, count: int) -> Tensor:
        """1 for the first `count` records, 0 for the rest; cached, because the same sizes recur."""
        if self._masked is None or self._masked[0] != count:
            mask = torch.zeros(self.size, device=self.filling.device)
            mask[:count] = 1
            self._masked = count, mask
        return self._masked[1]

    def close(self) -> None:
        """After a lot: restore whatever state the network changed."""
        if isinstance(self.engine, BookKeeper) and self.engine.steady:
            return  # it has no state
        if not isinstance(self.engine, OneByOne):  # which restores it after every record
            self.sealed.restore(tensors=not isinstance(self.engine, BookKeeper))

    def _sum(self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip) -> tuple[Named, Tensor]:
        with self_check.carefully(self.careful):
            return (self.graphs or self.engine).masked_sum(x, y, mask, clip)

    def _works(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Which records the network accepts individually; at least one of them must fail."""
        single = OneByOne(self.net, self.sealed)
        shares = x.reshape(-1, self.copies, *x.shape[1:])
        works = [not counts or single.gradient(shares[i], y[i]) is not None for i, counts in enumerate(mask.tolist())]
        if all(works):
            raise TrainingError(
                "a network that computes gradients of a chunk of records",
                "an error from it that no single record causes",
                "Training is impossible this way.",
                'Set device = "cpu" or a smaller settings.lot_size to find the cause.',
            )
        return torch.tensor(works, device=x.device)

    def _without(self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, finite: Tensor) -> tuple[Named, int]:
        """Sum again, with a usable record in place of the unusable ones and of the padding."""
        fit, lost = finite & (mask > 0), int((~finite).sum())
        if bool(fit.any()):
            places = torch.where(fit, torch.arange(len(y), device=x.device), int(fit.nonzero()[0]))
            shares = x.reshape(-1, self.copies, *x.shape[1:])
            rows = torch.empty_like(x).copy_(shares[places].flatten(0, 1))  # in the same memory format
            part, _ = self._sum(rows, y[places], fit.to(mask.dtype), clip)
        else:
            part = self._zeros(clip)
        if clip.counting:
            part[BALANCE] = part[BALANCE] - 0.5 * lost
        return part, lost

    def _zeros(self, clip: Clip) -> Named:
        trainable = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        found = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trainable.items()}
        device = next(iter(found.values())).device
        return found | ({BALANCE: torch.zeros((), dtype=torch.float64, device=device)} if clip.counting else {})

    def _settle_for_slow(self, reason: str) -> None:
        self.sealed.accept()
        self.engine, self.graphs, self.reason = OneByOne(self.net, self.sealed), None, reason
        if (
            self.engine.gradient(
                self.filling[: self.copies], torch.zeros((), dtype=torch.int64).to(self.filling.device)
            )
            is None
        ):
            raise TrainingError(
                "a network that can compute a gradient for a made-up record",
                f"an error from it ({reason})",
                "It could not learn from any record.",
                "Try it on a single record, in training mode and on this device.",
            )
        self_check.tell_slow(self.engine, reason, self.filling, self.copies, self.lot)


def clipped_sum(
    net: nn.Module, x: Tensor, y: Tensor, clip: Clip, expected_lot: float | None = None, sampled: bool = True
) -> tuple[Named, int]:
    """The sum of the clipped per-record gradients by parameter name in float64, and how many records were dropped.

    Args:
        net: The network, in the mode in which it is to be used.
        x: The rows. A label is a record: if x has more rows than y, a record is several adjacent rows, and its gradient
            is their mean (augmentation multiplicity, De et al. 2022).
        y: The labels.
        clip: How gradients are bounded.
        expected_lot: The public expected number of records in a lot; it determines the chunk size. Defaults to the
            number of records given, which is for experiments only because it may depend on private records.
        sampled: Whether the lot size varies around that number, as with Poisson sampling.
    """
    copies = copies_in(x, y)
    varies = sampled and expected_lot is not None
    use = use_of(net, x, copies, max(1, len(y)) if expected_lot is None else expected_lot, varies)
    if len(y) <= use.size:
        found = use.chunk_sum(x, y, clip)
        use.close()
        return found
    total, dropped = Total(), 0
    for start in range(0, len(y), use.size):
        rows, labels = x[start * copies : (start + use.size) * copies], y[start : start + use.size]
        part, lost = use.chunk_sum(rows, labels, clip)
        total.add(part)
        dropped += lost
    use.close()
    return total.settle(), dropped


def use_of(net: nn.Module, like: Tensor, copies: int, expected_lot: float, sampled: bool = True) -> Use:
    """How this network is used here: chosen on made-up records, and cached."""
    names = tuple(name for name, p in net.named_parameters() if p.requires_grad)
    modes = tuple(module.training for module in net.modules())
    shape = (copies, like.shape[1:], like.dtype, like.device, like.stride()[1:])
    key = (names, modes, shape, self_check.precision(like.device), round(expected_lot), sampled)
    uses: Uses = vars(net).setdefault(USES, Uses())
    if key not in uses:
        while len(uses) >= _KEPT:
            uses.pop(next(iter(uses)))
        uses[key] = Use(net, like, copies, expected_lot, sampled)
    use = uses[key]
    assert isinstance(use, Use)
    if not isinstance(use.engine, BookKeeper):
        use.sealed.accept()
    return use


def _size(bytes_per_record: int, places: int, lot: float, sampled: bool, device: torch.device) -> int:
    """Records per chunk: as few chunks as possible, for a lot somewhat larger than expected."""
    limits = _CHUNK_BYTES[device.type]
    if device.type == "cuda":
        limits = (min(limits[0], room(device) // 2),) * 2
    good, most = (limit // bytes_per_record for limit in limits)
    step = max(1, min(max(good, min(_LEAST, most)), largest_chunk(lot, places)))
    target = max(1, math.ceil(lot + (_SPREAD * math.sqrt(lot) if sampled else 0.0)))
    size = -(-target // max(1, -(-target // step)))
    return -(-size // MULTIPLE) * MULTIPLE if most >= MULTIPLE else size


def copies_in(x: Tensor, y: Tensor) -> int:
    """How many rows of x are one record: a label is a record, and its copies are adjacent."""
    copies = len(x) // max(1, len(y))
    if copies * len(y) != len(x) or (len(y) and not copies):
        raise ValueError(f"{len(x)} rows cannot be equally many copies of {len(y)} records")
    return max(1, copies)

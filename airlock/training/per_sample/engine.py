"""The sum of clipped per-record gradients of a lot, in chunks of one size, by the fastest engine that can be trusted.

Every chunk has the same size, which follows from public figures: how many records a network sees at a time, and so what
it computes for each, does not depend on how many were drawn. The last chunk is padded with made-up records that do not
count. A lot is the sum over its chunks, so it may be larger than memory and is exactly what was drawn.

Guarantee of `clipped_sum`: adding or removing one record moves the sum, measured in units of the clip's scale, by at
most `clip.norm` in L2 over all parameters together, rounding included. Each record's gradient g_i is a function of that
record alone, bit for bit (`self_check`); its summand has norm at most (1 − 2^-10) of the bound; and the rounding of
float64 is bounded in `sums`. A record whose gradient is not finite, or on which the network fails, contributes zero. A
counting clip's sum has one more entry, BALANCE, which one record moves by 1/2.

With `weights` a record counts as a fraction of itself: its clipped gradient times a number in [0, 1] that follows from
the record alone. That is never longer than the clipped gradient, so all of the above holds; BALANCE counts it whole.

Texts may be seen without the padding at their end, in one of a few public lengths (`nets.domain.by_length`). Each
length has chunks of its own. Which one a record goes to follows from the record alone, so all of the above holds for
each length, and for the sum over them.

With `owners` all of this holds for people instead of records: adding or removing one person, with all of her rows,
moves the sum by at most `clip.norm`, and BALANCE by 1/2. Her gradient is the mean over her rows, clipped once
(`people` has the proof). She is never divided between chunks, which have at least as many rows as a person may have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.errors import TrainingError
from airlock.mechanisms.clipping import BALANCE, Clip
from airlock.nets.domain import by_length, lengths
from airlock.training.devices import room
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample import self_check
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.graphs import Graphs
from airlock.training.per_sample.one_by_one import FAILURES, OneByOne
from airlock.training.per_sample.operator_rules import Unshown
from airlock.training.per_sample.people import FixedPeople, People, fixes, pack, people_of, sizes_of
from airlock.training.per_sample.sealed import USES, Sealed, Uses
from airlock.training.per_sample.sums import MULTIPLE, Total, largest_chunk

# A chunk has this many bytes, or at least _LEAST records: a CPU is fastest within its cache.
_CHUNK_BYTES = {"cpu": (1 << 26, 1 << 30), "cuda": (1 << 33, 1 << 33)}
_LEAST = 64
_SHARE = 1 / 16  # of a lot, in a chunk of the longest texts if they come in several lengths; of shorter ones, more
_WORTH = {"cpu": 0, "cuda": 8192}  # positions in such a chunk below which a GPU is kept waiting: one length is quicker
_SPREAD = 2.0  # standard deviations by which a lot may exceed its expected size before it needs another chunk
_KEPT = 8  # uses of one network that are cached

Sizes = NDArray[np.int64]  # how many rows each person has


class Use:
    """One use of a network: a mode, precision, shape and chunk size, and the engine chosen for it."""

    def __init__(self, net: nn.Module, like: Tensor, copies: int, lot: Lot, loss: Loss = CROSS_ENTROPY) -> None:
        self.net, self.copies, self.lot, self.loss = net, copies, lot, loss
        self.graphs: Graphs | None = None
        self._masked: tuple[int, Tensor] | None = None
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            self._prepare(like)

    def _prepare(self, like: Tensor) -> None:
        """Choose the size of a chunk and an engine, on made-up records."""
        net, copies = self.net, self.copies
        self.sealed = Sealed(net)
        measured = self_check.measure(net, like, copies, self.lot.most, self.loss)
        self.size = chunk_size(*measured, self.lot, like.device)
        self.engine, self.reason, self.care = self._choose(like)
        self.filling = self_check.made_up(net, like, self.size, copies, 3)
        self.sealed.restore()
        if isinstance(self.engine, OneByOne):
            self._settle_for_slow(self.reason)
        elif isinstance(self.engine, BookKeeper) and like.is_cuda:
            self.graphs = Graphs(self.engine)

    def _choose(self, like: Tensor) -> tuple[self_check.Engine, str, int]:
        """An engine for chunks of this size, or of the largest one that fits into memory, since sizes are estimates."""
        while True:
            try:
                return self_check.choose(self.net, like, self.copies, self.size, self.lot.most, self.loss)
            except self_check.OutOfMemory:
                smaller = half(self.size, self.lot.most)
                if smaller == self.size:
                    raise
                self.size = smaller

    def filled(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A chunk of full size, in one memory format, padded with made-up records."""
        if len(y) == self.size and x.stride() == self.filling.stride():
            return x, y
        whole = self.filling.clone(memory_format=torch.preserve_format)
        whole[: len(x)] = x
        labels = y.new_zeros(self.size)
        labels[: len(y)] = y
        return whole, labels

    def chunk_sum(self, clip: Clip, chunk: Chunk) -> tuple[Named, int]:
        """The clipped sum of one chunk, and how many records (or people) were dropped from it."""
        x, y, sizes, weights = chunk.x, chunk.y, chunk.sizes, chunk.weights
        if isinstance(self.engine, OneByOne):
            people = self._people(sizes, len(y), y.device)
            mask = torch.ones(len(y)) if weights is None else weights
            part, _ = self.engine.masked_sum(x, y, mask, clip, people=people)
            return part, self.engine.dropped
        mask, people = self._mask(len(y), weights), self._people(sizes, self.size, y.device)
        rows, labels = self.filled(x, y)
        try:
            part, finite = self._sum(rows, labels, mask, clip, people)
        except Unshown as reason:  # it behaves differently than on made-up records
            self._settle_for_slow(str(reason))
            return self.chunk_sum(clip, chunk)
        except FAILURES:  # one of the records caused it: it is found and left out
            finite = self._works(rows, labels, mask, people)
        if bool(finite.all()):  # checked last: on a GPU this synchronises
            return part, 0
        return self._without(rows, labels, mask, clip, finite, people)

    def queued(self, clip: Clip, chunk: Chunk) -> tuple[Named, Tensor] | None:
        """The same without waiting for a GPU, and whether all records were usable: if not, the sum is worth nothing.

        None if it has to be waited for.
        """
        if not self.filling.is_cuda or isinstance(self.engine, OneByOne):
            return None
        mask, people = self._mask(len(chunk.y), chunk.weights), self._people(chunk.sizes, self.size, chunk.y.device)
        try:
            part, finite = self._sum(*self.filled(chunk.x, chunk.y), mask, clip, people)
        except (Unshown, *FAILURES):
            return None
        return part, finite.all()

    def _people(self, sizes: Sizes | None, rows: int, device: torch.device) -> People | None:
        return None if sizes is None else people_of(sizes, rows, self.lot.most, device)

    def _mask(self, count: int, weights: Tensor | None = None) -> Tensor:
        """1 or their weight for the first `count` records, 0 for the rest; cached, because the same sizes recur."""
        if weights is not None:
            mask = torch.zeros(self.size, device=self.filling.device)
            mask[:count] = weights
            return mask
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

    def _sum(
        self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: People | None = None
    ) -> tuple[Named, Tensor]:
        if self.graphs is not None and (people is None or isinstance(people, FixedPeople)):  # of fixed shapes
            return self.graphs.masked_sum(x, y, mask, clip, people, lambda: self_check.carefully(self.care))
        with self_check.carefully(self.care):
            return self.engine.masked_sum(x, y, mask, clip, people=people)

    def _works(self, x: Tensor, y: Tensor, mask: Tensor, people: People | None = None) -> Tensor:
        """Which records the network accepts individually; at least one of them must fail. People fail as a whole."""
        shares = x.reshape(-1, self.copies, *x.shape[1:])
        works = [self._bears(shares[i], y[i], counts > 0) for i, counts in enumerate(mask.tolist())]
        self._require_a_cause(not all(works))
        found = torch.tensor(works, device=x.device)
        if people is None:
            return found
        failing = torch.zeros_like(mask).index_add_(0, people.head, (~found).to(mask.dtype))
        return people.spread(failing == 0)

    def _bears(self, share: Tensor, label: Tensor, counts: bool) -> bool:
        """Whether the network works on a record; on one that does not count, it need not be tried."""
        return not counts or OneByOne(self.net, self.sealed, self.loss).gradient(share, label) is not None

    def _require_a_cause(self, found: bool) -> None:
        """Refuse to go on with a network that fails whatever the records are."""
        if not found:
            raise TrainingError(
                "a network that computes gradients of a chunk of records",
                "an error from it that no single record causes",
                "Training is impossible this way.",
                'Set device = "cpu" or a smaller settings.lot_size to find the cause.',
            )

    def _without(
        self, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, finite: Tensor, people: People | None = None
    ) -> tuple[Named, int]:
        """Sum again, with a usable record in place of the unusable ones and of the padding."""
        lost = int((~finite if people is None else ~finite & people.first).sum())
        fit = finite & (mask > 0)
        if bool(fit.any()):
            places = torch.where(fit, torch.arange(len(y), device=x.device), int(fit.nonzero()[0]))
            shares = x.reshape(-1, self.copies, *x.shape[1:])
            rows = torch.empty_like(x).copy_(shares[places].flatten(0, 1))  # in the same memory format
            part, _ = self._sum(rows, y[places], mask * fit, clip, people)
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
        self.engine, self.graphs, self.reason = OneByOne(self.net, self.sealed, self.loss), None, reason
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
        self_check.tell_slow(self.engine, reason, self.filling, self.copies, self.lot.rows)


def clipped_sum(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    clip: Clip,
    expected_lot: float | None = None,
    sampled: bool = True,
    owners: Tensor | None = None,
    records_per_person: int | None = None,
    expected_rows: float | None = None,
    weights: Tensor | None = None,
    loss: Loss = CROSS_ENTROPY,
    processes: int = 1,
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
        owners: The person whom each label belongs to: 0, ..., 0, 1, ..., 1, 2, .... A person's gradient is the mean
            over her labels, and `expected_lot` is a number of people. None: each label is a record of its own.
        records_per_person: The public bound on a person's labels; a chunk has room for as many. Defaults to the largest
            number given, which is for experiments only.
        expected_rows: The public expected number of labels in a lot; as many as people if it is left out.
        weights: By how much each label's clipped gradient counts, in [0, 1] and by the label alone (`class_weights`); a
            person's counts with the mean of hers.
        loss: Of one record.
        processes: How many sum parts like this one of a lot, which then has as many times the expected size.
    """
    lot, sizes = lot_of(y, expected_lot, sampled, owners, records_per_person, expected_rows, processes)
    copies = copies_in(x, y)
    total, dropped = Total(), 0
    groups = [
        (use_for(net, rows, copies, share_of(lot, where, x, rows), loss), where, rows)
        for where, rows in groups_of(net, x, sizes is None and copies == 1 and worth_it(lot, x))
    ]
    groups = [group for group in groups if len(group[2])] or groups[-1:]
    if x.is_cuda and sizes is None:
        several = [(use, list(chunks_of(use, rows, y, copies, None, weights, where))) for use, where, rows in groups]
        if (queued := _queued(several, clip)) is not None:
            return queued, 0
    for use, where, rows in groups:
        chunks = chunks_of(use, rows, y, copies, sizes, weights, where)
        first, following = next(chunks), next(chunks, None)
        if where is None and following is None:
            found = use.chunk_sum(clip, first)
            use.close()
            return found
        for chunk in chain([first], [] if following is None else [following], chunks):
            part, lost = use.chunk_sum(clip, chunk)
            total.add(part)
            dropped += lost
        use.close()
    return total.settle(), dropped


def _queued(several: list[tuple[Use, list[Chunk]]], clip: Clip) -> Named | None:
    """The sum over several chunks, all of which a GPU is told of before it has finished the first.

    None if there is only one, or if a record is not usable: it is found by computing the sum again, chunk by chunk.
    """
    if sum(len(chunks) for _, chunks in several) < 2:
        return None
    total, usable = Total(), list[Tensor]()
    try:
        for use, chunks in several:
            for chunk in chunks:
                found = use.queued(clip, chunk)
                if found is None:
                    return None
                total.add(found[0])
                usable.append(found[1])
    finally:
        for use, _ in several:
            use.close()
    return total.settle() if bool(torch.stack(usable).all()) else None


@dataclass(frozen=True)
class Chunk:
    """At most one chunk of rows.

    Args:
        x: The rows.
        y: Their labels.
        sizes: How many adjacent rows each person has; None if each row is a record of its own. The largest come first,
            unless shapes are fixed.
        weights: By how much each row's record or person counts, in [0, 1]; all rows of a person have the same.
    """

    x: Tensor
    y: Tensor
    sizes: Sizes | None = None
    weights: Tensor | None = None


def chunks_of(
    use: Use,
    x: Tensor,
    y: Tensor,
    copies: int,
    sizes: Sizes | None,
    weights: Tensor | None,
    where: Tensor | None = None,
) -> Iterator[Chunk]:
    """Rows in chunks, at least one, of whole people where these are protected.

    Args:
        use: Says how large a chunk is.
        x: The rows.
        y: The labels of the lot.
        copies: How many rows a label has.
        sizes: How many labels each person has.
        weights: By how much each label counts.
        where: The positions of the rows in the lot, if they are not all of it.
    """
    if sizes is None:
        labels, own = (y, weights) if where is None else (y[where], None if weights is None else weights[where])
        for start in range(0, max(1, len(labels)), use.size):
            part, places = slice(start, start + use.size), slice(start * copies, (start + use.size) * copies)
            yield Chunk(x[places], labels[part], None, None if own is None else own[part])
        return
    whole = None if weights is None else _mean_of_each(weights, sizes)
    if len(y) <= use.size and fixes(use.lot.most, y.device):  # in any order
        yield Chunk(x, y, sizes, whole)
        return
    starts, shares = np.cumsum(sizes) - sizes, x.reshape(len(y), copies, *x.shape[1:])
    for chosen in list(pack(sizes, use.size)) or [np.zeros(0, np.int64)]:
        own_sizes = sizes[chosen]
        places_of = np.repeat(starts[chosen] - (np.cumsum(own_sizes) - own_sizes), own_sizes)
        at = torch.from_numpy(places_of + np.arange(int(own_sizes.sum()))).to(y.device)
        counts = None if whole is None else whole[at]
        yield Chunk(shares.index_select(0, at).flatten(0, 1), y[at], own_sizes, counts)


def groups_of(net: nn.Module, x: Tensor, alone: bool) -> Iterator[tuple[Tensor | None, Tensor]]:
    """Rows by length (`nets.domain`): every length that there may be, in one order, also if no row has it.

    A network is tried in all lengths before any record is: whether it is refused, or slow, follows from none of them.

    Args:
        net: The network.
        x: The rows.
        alone: Whether each row is a record of its own; otherwise they are left together.
    """
    found = lengths(net, x.shape[1]) if alone and x.dim() == 2 else []
    if len(found) < 2:
        yield None, x
        return
    there = {rows.shape[1]: (where, rows) for where, rows in by_length(net, x)}
    nobody = torch.zeros(0, dtype=torch.int64, device=x.device)
    for length in found:
        yield there.get(length, (nobody, x[:0, :length].contiguous()))


def worth_it(lot: Lot, x: Tensor) -> bool:
    """Whether texts of a lot of this expected size are divided by length; decided by public figures alone.

    A GPU needs three to four milliseconds for a chunk, however small (an H200, MiniLM), in which it can do the work of
    some thousand positions.
    """
    return _SHARE * lot.expected * x.shape[-1] >= _WORTH[x.device.type]


def share_of(lot: Lot, where: Tensor | None, x: Tensor, rows: Tensor) -> Lot:
    """The figures of those rows of a lot that have one length, if there are several."""
    return lot if where is None else replace(lot, share=_SHARE * x.shape[1] / rows.shape[1])


def _mean_of_each(weights: Tensor, sizes: Sizes) -> Tensor:
    """At each row the mean weight of its person's rows; added up in her own order, so that nobody else is in it."""
    each = weights.double().cpu().numpy()
    ends = np.cumsum(sizes)
    means = [sum(each[end - size : end].tolist()) / size for end, size in zip(ends, sizes, strict=True)]
    return torch.from_numpy(np.repeat(np.minimum(means, 1.0), sizes)).to(weights.device)


@dataclass(frozen=True)
class Lot:
    """The public figures of a lot.

    Args:
        expected: How many records, or people if they are protected, are expected in it.
        rows: How many rows those are.
        most: The most rows of one person.
        sampled: Whether its size varies, as with Poisson sampling.
        share: How much of it goes into a chunk, at most.
        processes: Of how many parts of this size the whole lot consists.
    """

    expected: float
    rows: float
    most: int = 1
    sampled: bool = True
    share: float = 1.0
    processes: int = 1

    @property
    def target(self) -> int:
        """The rows of a lot somewhat larger than expected: if people differ in size, it varies more."""
        each = 1.0 if self.most == 1 else 1.0 + self.rows / self.expected  # E k²/E k, if k were a Poisson number
        whole = self.rows + (_SPREAD * math.sqrt(each * self.rows) if self.sampled else 0.0)
        return max(1, math.ceil(whole * self.share))


def lot_of(
    y: Tensor,
    expected_lot: float | None,
    sampled: bool,
    owners: Tensor | None,
    records_per_person: int | None,
    expected_rows: float | None,
    processes: int,
) -> tuple[Lot, Sizes | None]:
    """The public figures of a lot, and how many rows each person in it has; see `clipped_sum`."""
    if owners is not None:
        sizes = sizes_of(owners, len(y), records_per_person)
        most = records_per_person or int(sizes.max(initial=1))
        if most > 1 and expected_lot is None:
            return Lot(max(1, len(sizes)), max(1, len(y)), most, sampled=False), sizes
        if most > 1 and expected_lot is not None:
            return Lot(expected_lot, max(expected_lot, expected_rows or 0.0), most, sampled, processes), sizes
    if expected_lot is None:
        return Lot(max(1, len(y)), max(1, len(y)), sampled=False), None
    return Lot(expected_lot, expected_lot, 1, sampled, processes), None


def use_of(
    net: nn.Module, like: Tensor, copies: int, expected_lot: float, sampled: bool = True, loss: Loss = CROSS_ENTROPY
) -> Use:
    """How this network is used here for records: chosen on made-up ones, and cached."""
    return use_for(net, like, copies, Lot(expected_lot, expected_lot, 1, sampled), loss)


def use_for(net: nn.Module, like: Tensor, copies: int, lot: Lot, loss: Loss = CROSS_ENTROPY) -> Use:
    """How this network is used here: chosen on made-up records, and cached."""
    use = cached(net, key_of(net, like, copies, lot, loss), lambda: Use(net, like, copies, lot, loss))
    if not isinstance(use.engine, BookKeeper):
        use.sealed.accept()
    return use


def key_of(net: nn.Module, like: Tensor, copies: int, lot: Lot, loss: Loss) -> tuple[object, ...]:
    """What tells one use of a network from another."""
    names = tuple(name for name, p in net.named_parameters() if p.requires_grad)
    modes = tuple(module.training for module in net.modules())
    shape = (copies, like.shape[1:], like.dtype, like.device, like.stride()[1:])
    return names, modes, shape, self_check.precision(like.device), *_public(lot), loss.name


Made = TypeVar("Made")


def cached(net: nn.Module, key: tuple[object, ...], make: Callable[[], Made]) -> Made:
    """What was made for this use of a network, or will be now."""
    uses: Uses = vars(net).setdefault(USES, Uses())
    if key not in uses:
        while len(uses) >= _KEPT:
            uses.pop(next(iter(uses)))
        uses[key] = make()
    return cast(Made, uses[key])


def _public(lot: Lot) -> tuple[object, ...]:
    return round(lot.expected), round(lot.rows), lot.most, lot.sampled, lot.share, lot.processes


def chunk_size(bytes_per_record: int, places: int, lot: Lot, device: torch.device) -> int:
    """Rows per chunk: as few chunks as possible, for a lot somewhat larger than expected; room for any one person."""
    limits = _CHUNK_BYTES[device.type]
    if device.type == "cuda":
        limits = (min(limits[0], room(device) // 2),) * 2
    good, most = (limit // bytes_per_record for limit in limits)
    exact = largest_chunk(lot.expected * lot.processes, places)
    if lot.most > max(1, exact):
        raise TrainingError(
            f"at most {exact:,} records of one person in lots of {lot.expected * lot.processes:,.0f} people",
            f"{lot.most:,}",
            "Rounding in a larger chunk could exceed the bound on one person's effect.",
            "Lower the number of records per person, or settings.lot_size.",
        )
    step = max(1, min(max(good, min(_LEAST, most)), exact))
    size = max(lot.most, -(-lot.target // max(1, -(-lot.target // step))))
    return -(-size // MULTIPLE) * MULTIPLE if max(most, lot.most) >= MULTIPLE else size


def half(size: int, most: int) -> int:
    """About half as many rows for a chunk, in steps as in `chunk_size`; still room for any one person."""
    found = max(most, -(-size // 2))
    return min(size, -(-found // MULTIPLE) * MULTIPLE) if found > MULTIPLE else found


def copies_in(x: Tensor, y: Tensor) -> int:
    """How many rows of x are one record: a label is a record, and its copies are adjacent."""
    copies = len(x) // max(1, len(y))
    if copies * len(y) != len(x) or (len(y) and not copies):
        raise ValueError(f"{len(x)} rows cannot be equally many copies of {len(y)} records")
    return max(1, copies)

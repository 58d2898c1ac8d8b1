"""Which public net was the front end cut from, and which of its channels left? A few known records suffice to tell.

The attacker holds the features of a few records that it knows, and a pool of public nets, each cut after each layer.
Every released map is compared with every channel of every candidate: a map that is a multiple of a channel is fitted
exactly by least squares. The attacker names the candidate whose channels fit best and, for each map, the best-fitting
channel. Where features are clipped, each record has its own scale factor, so the fit is made record by record.

A channel that is constant on the known records (dead behind a ReLU) looks like any other dead one: it cannot be named
and is not counted.

Where channels of the layers before the last were left out as well (PrivyNet's way to hide the front end, `draw_inner`),
no map is a multiple of a channel, and least squares name nothing. `uncover` searches instead: every channel of those
layers gets a weight between 0 and 1, all weights are moved until each released map correlates with some channel, and
then until the best-fitting channels have the released values. The weights that end above one half are the channels that
were kept. How well the front end cut in that way fits the known records tells the attacker whether it was found, so the
search is tried from several starts, and over the nets of a pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from airlock.errors import DataError, NetError
from airlock.nets.prefix import Prefix
from airlock.nets.stages import Layer

_DEAD = 1e-10  # of a channel's variance, where the layer's is 1


@dataclass(frozen=True)
class Guess:
    """What the attacker names.

    Args:
        candidate: The public net and its layer.
        channels: Of that layer, one for each released map.
        fits: How much of each released map that channel explains, 0 to 1.
        live: Which released maps were not constant.
    """

    candidate: str
    channels: tuple[int, ...]
    fits: tuple[float, ...]
    live: tuple[bool, ...]

    def right(self, candidate: str, channels: Sequence[int]) -> int:
        """How many live channels are named correctly; none if the net is wrong."""
        if candidate != self.candidate:
            return 0
        named = zip(self.channels, channels, self.live, strict=True)
        return sum(live and guess == true for guess, true, live in named)


def identify(
    released: Tensor, records: Tensor, candidates: Mapping[str, nn.Module], *, by_record: bool = False
) -> Guess:
    """Name the front end.

    Args:
        released: Maps of the known records, (k, channels, height, width), as they left.
        records: The known records, (k, ...).
        candidates: By name, modules from records to all maps of a layer.
        by_record: Whether each record has its own scale factor, as clipped features do.

    Raises:
        DataError: No candidate has maps of this size.
    """
    live = _live(released)
    if not bool(live.any()):
        return Guess("", (0,) * released.shape[1], (0.0,) * released.shape[1], tuple(live.tolist()))
    best: Guess | None = None
    highest = -1.0
    for name, candidate in candidates.items():
        with torch.no_grad():
            maps = candidate(records)
        if maps.dim() != released.dim() or maps.shape[2:] != released.shape[2:]:
            continue
        fits, channels = _fit(released, maps, by_record).max(1)
        score = float(fits[live].mean())
        if score > highest:
            named, explained = tuple(channels.tolist()), tuple(fits.tolist())
            best, highest = Guess(name, named, explained, tuple(live.tolist())), score
    if best is None:
        raise DataError(
            f"a candidate with maps of {tuple(released.shape[2:])}", "none", "Maps of another size cannot be compared."
        )
    return best


def _live(maps: Tensor) -> Tensor:
    """Which channels are not constant over the known records."""
    spread = maps.transpose(0, 1).flatten(1).var(1)
    return spread > _DEAD * spread.max().clamp_min(1e-30)


def _fit(released: Tensor, maps: Tensor, by_record: bool) -> Tensor:
    """(released, candidate channels): the share of a released map's square that a multiple of the channel explains.

    Without per-record factors, one multiple and one constant serve all records: the squared correlation.
    """
    ours, theirs = released.flatten(2).double(), maps.flatten(2).double()  # (k, channels, places)
    if by_record:
        inner = torch.einsum("kap,kbp->kab", ours, theirs) ** 2
        sizes = ours.square().sum(2)[:, :, None] * theirs.square().sum(2)[:, None]
        return torch.where(sizes > 0, inner / sizes.clamp_min(1e-30), 0.0).mean(0)
    ours, theirs = (one.transpose(0, 1).flatten(1) for one in (ours, theirs))
    ours, theirs = (one - one.mean(1, keepdim=True) for one in (ours, theirs))
    ours, theirs = (one / one.norm(dim=1, keepdim=True).clamp_min(1e-15) for one in (ours, theirs))
    explained: Tensor = (ours @ theirs.T).square()
    return explained


# Front ends whose inner channels are secret too.


@dataclass(frozen=True)
class Uncovered:
    """What the attacker names where channels of every layer were left out.

    Args:
        inner: The channels kept in each layer with weights before the last.
        channels: Of the last layer, one for each released map.
        fit: How much of the released maps this front end explains on known records, 0 to 1.
    """

    inner: tuple[tuple[int, ...], ...]
    channels: tuple[int, ...]
    fit: float


@dataclass(frozen=True)
class UncoverSettings:
    """How thoroughly to search.

    Args:
        steps: Of Adam from one start; half of them for correlation, half for values.
        batch_size: Known records in a step.
        learning_rate: At the start of each half; it falls along a half cosine.
        starts: At most; no further one is tried once the fit is nearly perfect.
        enough: What counts as that.
    """

    steps: int = 1600
    batch_size: int = 16
    learning_rate: float = 0.1
    starts: int = 4
    enough: float = 0.99999


_SOFTEST, _HARDEST = 10.0, 100.0  # how sharply the best-correlated channel counts, from the first step to the last
_AT_ONCE, _NAMED_FROM, _UNCERTAIN = 64, 0.7, 32
_FARTHEST = (3.0, 6.0)  # of a weight's logit, in either half


def uncover(
    released: Tensor, records: Tensor, front: Prefix, seed: int, settings: UncoverSettings | None = None
) -> Uncovered:
    """Name the kept channels of all layers of a public net.

    Args:
        released: Maps of the known records, (k, channels, height, width), as they left.
        records: The known records, (k, ...).
        front: The whole net, cut where the maps have this size.
        seed: Of starts and batches.
        settings: How thoroughly.

    Raises:
        NetError: Nothing lies before the last layer with weights, or maps have another size.
    """
    how, best = settings or UncoverSettings(), None
    if len(front.widths) < 2 or front.shape[1:] != released.shape[2:]:
        raise NetError(
            f"a net with layers before its last and maps of {tuple(released.shape[2:])}",
            f"{len(front.widths)} layers with weights and maps of {tuple(front.shape[1:])}",
        )
    for start in range(how.starts):
        found = _searched(released, records, front, seed + start, how)
        best = found if best is None or found.fit > best.fit else best
        if best.fit >= how.enough:
            break
    assert best is not None
    return best


def _searched(released: Tensor, records: Tensor, front: Prefix, seed: int, how: UncoverSettings) -> Uncovered:
    """One start."""
    chance = torch.Generator().manual_seed(seed)
    logits = [
        (0.1 * torch.randn(width, generator=chance)).to(records.device).requires_grad_() for width in front.widths[:-1]
    ]
    size, half = min(how.batch_size, len(records)), how.steps // 2

    def maps(places: Tensor) -> Tensor:
        return _weighted(front, [torch.sigmoid(one) for one in logits], records[places])

    for stage in (0, 1):
        optimiser = torch.optim.Adam(logits)
        for step in range(half):
            if stage and step % 50 == 0:
                channels, weights = _named(released, records, front, logits)
            places = torch.randperm(len(records), generator=chance)[:size].to(records.device)
            made, wanted = maps(places), released[places]
            if stage:
                apart = (made[:, channels] - wanted).square().mean((0, 2, 3)) / wanted.square().mean(
                    (0, 2, 3)
                ).clamp_min(1e-12)
                loss = (apart * weights).sum()
            else:
                sharp = _SOFTEST * (_HARDEST / _SOFTEST) ** (step / half)
                loss = -(torch.logsumexp(sharp * _correlation(wanted, made), 1) / sharp).mean()
            for group in optimiser.param_groups:
                group["lr"] = how.learning_rate * (0.5 + 0.5 * math.cos(math.pi * step / half))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            with torch.no_grad():  # a weight that is all but 0 or 1 has no slope, and would never come back
                for one in logits:
                    one.clamp_(-_FARTHEST[stage], _FARTHEST[stage])
    channels, _ = _named(released, records, front, logits)
    kept = _settled(released[:_AT_ONCE], records[:_AT_ONCE], front, channels, [one.detach() for one in logits])
    inner = tuple(tuple(torch.nonzero(one).flatten().tolist()) for one in kept)
    return Uncovered(inner, tuple(channels.tolist()), _explained(released, records, front, channels, kept))


def _settled(
    released: Tensor, records: Tensor, front: Prefix, channels: Tensor, logits: Sequence[Tensor]
) -> list[Tensor]:
    """Weights of 0 or 1: the least certain ones are tried both ways, one after another."""
    kept = [(one > 0).float() for one in logits]
    fit = _explained(released, records, front, channels, kept)
    places = [(float(value.abs()), layer, place) for layer, one in enumerate(logits) for place, value in enumerate(one)]
    for _, layer, place in sorted(places)[:_UNCERTAIN]:
        kept[layer][place] = 1 - kept[layer][place]
        other = _explained(released, records, front, channels, kept)
        if other > fit:
            fit = other
        else:
            kept[layer][place] = 1 - kept[layer][place]
    return kept


def _weighted(front: Prefix, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """All maps of the last layer, with every channel before it multiplied by its weight."""
    x, left = front.plain(x), list(weights)
    for layer in front.layers:
        assert isinstance(layer, Layer)
        x = layer(x)
        if layer.weighted and left:
            x = x * left.pop(0)[:, None, None]
    return x


def _correlation(released: Tensor, maps: Tensor) -> Tensor:
    """(released, channels): over records and places."""
    ours, theirs = (one.transpose(0, 1).flatten(1) for one in (released, maps))
    ours, theirs = (one - one.mean(1, keepdim=True) for one in (ours, theirs))
    ours, theirs = (one / one.norm(dim=1, keepdim=True).clamp_min(1e-9) for one in (ours, theirs))
    found: Tensor = ours @ theirs.T
    return found


@torch.no_grad()
def _named(released: Tensor, records: Tensor, front: Prefix, logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """For each released map the best-correlated channel, and how much it should count."""
    weights = [torch.sigmoid(one) for one in logits]
    found = [
        _correlation(maps, _weighted(front, weights, x))
        for maps, x in zip(torch.split(released, _AT_ONCE)[:4], torch.split(records, _AT_ONCE)[:4], strict=True)
    ]
    best = torch.stack(found).mean(0).max(1)
    counts = (best.values - _NAMED_FROM).clamp_min(0).square() + 1e-6
    return best.indices, counts / counts.sum()


@torch.no_grad()
def _explained(released: Tensor, records: Tensor, front: Prefix, channels: Tensor, kept: Sequence[Tensor]) -> float:
    """1 − the share of the released maps' square that the named front end leaves over; at least 0."""
    over = [
        (_weighted(front, kept, x)[:, channels] - maps).square().sum()
        for maps, x in zip(torch.split(released, _AT_ONCE), torch.split(records, _AT_ONCE), strict=True)
    ]
    return max(0.0, 1.0 - float(torch.stack(over).sum() / released.square().sum().clamp_min(1e-30)))

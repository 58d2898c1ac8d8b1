"""Which public net was the front end cut from, and which of its channels left? A few known records suffice to tell.

The attacker holds the features of a few records that it knows, and a pool of public nets, each cut after each layer.
Every released map is compared with every channel of every candidate: a map that is a multiple of a channel is fitted
exactly by least squares. The attacker names the candidate whose channels fit best and, for each map, the best-fitting
channel. Where features are clipped, each record has its own scale factor, so the fit is made record by record.

A channel that is constant on the known records (dead behind a ReLU) looks like any other dead one: it cannot be named
and is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from airlock.errors import DataError

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

"""What records a network takes: made-up ones for checks, self-checks and trials are drawn here, from nothing private.

A network that says nothing takes numbers from 0 to 1. One for text says how many numbers its `vocabulary` has: a record
is then a row of whole numbers, a token's id plus 1 each, with 0 where there is no token; what is there comes first.
Random numbers from 0 to 1 would all be "no token", and nothing that is tried on them would be about text.

A network of which `halvings` says so sees texts that leave half of their length empty without that half (`by_length`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Shape = tuple[int, ...]


def declare(net: nn.Module, vocabulary: int | None) -> nn.Module:
    """Let a network say that it takes text of this vocabulary, unless it says so itself; None is for other records."""
    if vocabulary is not None and vocabulary_of(net) is None:
        vars(net)["vocabulary"] = vocabulary
    return net


def vocabulary_of(net: nn.Module) -> int | None:
    """How many numbers the records of this network are made of; None unless it, or a layer of it, is for text."""
    found = (getattr(module, "vocabulary", None) for module in net.modules())
    return next((one for one in found if isinstance(one, int) and not isinstance(one, bool) and one > 1), None)


def numbers(
    count: int, shape: Shape, vocabulary: int | None, chance: np.random.Generator, *, whole: bool = False
) -> NDArray[np.float32]:
    """Made-up records.

    Texts have random lengths; of several, the first is shorter than a record may be and the last is not, so that a
    network which asks whether any place of a batch is empty gets the same answer every time.

    Args:
        count: How many.
        shape: Of one.
        vocabulary: Of text; None for numbers from 0 to 1.
        chance: Where they are drawn from.
        whole: Draw 0 and 1 in place of numbers between them: valid indices of every embedding.
    """
    if vocabulary is None:
        return (
            chance.integers(0, 2, (count, *shape)).astype(np.float32)
            if whole
            else chance.random((count, *shape), np.float32)
        )
    places = int(np.prod(shape))
    lengths = chance.integers(1, places + 1, count)
    if count > 1:
        lengths[0], lengths[-1] = max(1, places // 2), places
    ids = chance.integers(1, vocabulary, (count, places))
    ids[np.arange(places) >= lengths[:, None]] = 0
    return ids.astype(np.float32).reshape(count, *shape)


def extreme(shape: Shape, vocabulary: int | None) -> NDArray[np.float32]:
    """A record that every network still takes, as far from the others as can be."""
    return np.full(shape, 1.0 if vocabulary is None else vocabulary - 1, np.float32)


def drawn(net: nn.Module, count: int, shape: Shape, seed: int) -> Tensor:
    """Made-up records for this network, as floats."""
    return torch.from_numpy(numbers(count, shape, vocabulary_of(net), np.random.default_rng(seed)))


def lengths(net: nn.Module, places: int) -> list[int]:
    """The lengths in which a network may see rows of so many places, the shortest first; public."""
    said = [getattr(layer, "halvings", None) for layer in net.modules()]
    times = min((one for one in said if isinstance(one, int)), default=0)
    return sorted({-(-places // 2**time) for time in range(times + 1)})


def by_length(net: nn.Module, x: Tensor) -> Iterator[tuple[Tensor | None, Tensor]]:
    """Rows in groups of one length each, with their positions: for a network in which what is empty changes nothing.

    Guarantee: a row's group and what is left of it follow from that row alone. All rows as they are, with None, for
    other networks.

    Args:
        net: Its layers say how often rows may be halved.
        x: One row per record.
    """
    found = lengths(net, x.shape[1]) if x.dim() == 2 else []
    if len(found) < 2:
        yield None, x
        return
    places = torch.arange(1, x.shape[1] + 1, device=x.device)
    needed = ((x >= 1) * places).amax(1)
    before = -1
    for length in found:
        rows = torch.nonzero((needed > before) & (needed <= length)).flatten()
        before = length
        if len(rows):
            yield rows, x.index_select(0, rows)[:, :length].contiguous()

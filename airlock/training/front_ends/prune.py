"""Which channels may leave: the leakiest out, the least useful out, and some of the rest by a secret key.

Leakage is the PSNR of each channel alone on public data (`training.front_ends.characterise`); usefulness is Fisher's
criterion (`training.front_ends.lda`) or the accuracy of each channel alone. As PrivyNet has it: of 128 channels the 32
leakiest and the 64 least useful go, so a quarter and a half. The choice among the rest comes from a stream whose key
stays inside. That is no protection: whoever has pairs of images and features finds the channels by least squares.

Fisher's criterion on private records is a function of them that no noise protects; on public ones it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airlock.errors import ConfigError
from airlock.mechanisms import Stream

LEAKIEST, LEAST_USEFUL = 1 / 4, 1 / 2  # shares of the channels that go
Scores = Mapping[int, float]


@dataclass(frozen=True)
class Pruned:
    """What is left of a layer's channels, and why the others went; a channel may have gone for both reasons."""

    left: tuple[int, ...]
    leaky: tuple[int, ...] = ()
    useless: tuple[int, ...] = ()


def prune(
    width: int,
    leakage: Scores | None = None,
    usefulness: Scores | None = None,
    leakiest: int | None = None,
    least_useful: int | None = None,
) -> Pruned:
    """Take out the leakiest and the least useful of `width` channels; ties go by number.

    Args:
        width: How many channels the layer has.
        leakage: PSNR by channel, for all of them; None takes out none.
        usefulness: Fisher's J or accuracy by channel, for all of them; None takes out none.
        leakiest: How many go for leaking; a quarter when left out.
        least_useful: How many go for being of no use; half when left out.

    Raises:
        ConfigError: Scores are missing, or no channel would be left.
    """
    leaky = _worst(width, leakage, round(width * LEAKIEST) if leakiest is None else leakiest, sign=-1)
    useless = _worst(width, usefulness, round(width * LEAST_USEFUL) if least_useful is None else least_useful, sign=1)
    left = tuple(c for c in range(width) if c not in {*leaky, *useless})
    if not left:
        raise ConfigError(
            "at least one channel to be left", f"none of {width}", do="Take out fewer leaky or less useful channels."
        )
    return Pruned(left, leaky, useless)


def _worst(width: int, scores: Scores | None, count: int, sign: int) -> tuple[int, ...]:
    """The `count` channels with the lowest signed score."""
    if scores is None or count <= 0:
        return ()
    missing = [c for c in range(width) if c not in scores]
    if missing:
        raise ConfigError(f"a score for each of the {width} channels", f"none for channel {missing[0]}")
    return tuple(sorted(sorted(range(width), key=lambda c: (sign * scores[c], c))[:count]))


def draw(left: Sequence[int], depth: int, stream: Stream) -> tuple[int, ...]:
    """`depth` of the channels that are left, each subset equally likely, in rising order.

    Raises:
        ConfigError: Fewer are left.
    """
    if not 1 <= depth <= len(left):
        raise ConfigError(
            f"at most the {len(left)} channels that are left",
            f"settings.channels = {depth}",
            "The leakiest and the least useful ones do not leave.",
            "Lower settings.channels, take a layer with more channels, or prune less.",
        )
    order = np.argsort(stream.uniform(len(left)), kind="stable")
    return tuple(sorted(left[int(place)] for place in order[:depth]))


def draw_inner(widths: Sequence[int], wanted: Sequence[int], stream: Stream) -> tuple[tuple[int, ...], ...]:
    """Channels of the layers before the last: {64, 64, 128} to {32, 32, 64}, say.

    Raises:
        ConfigError: Another number of layers, or a layer has fewer.
    """
    if len(wanted) != len(widths):
        raise ConfigError(
            f"settings.inner with {len(widths)} numbers, one for each layer with weights before the last",
            f"{len(wanted)}",
        )
    return tuple(
        draw(range(width), depth, stream.child("inner", place))
        for place, (width, depth) in enumerate(zip(widths, wanted, strict=True))
    )


def draw_front(pool: Sequence[str], stream: Stream) -> str:
    """One front end of a pool, each equally likely."""
    if not pool:
        raise ConfigError("at least one front end in the pool", "none")
    return pool[min(len(pool) - 1, int(stream.uniform(1)[0] * len(pool)))]

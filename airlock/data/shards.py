"""Private records in M disjoint shards, for models that are trained on one shard each.

Guarantee: a record's shard follows from a keyed hash of its own content, so every record lies in exactly one shard and
one record more or less changes one shard and no other. Equal records share a shard. A record that is *replaced* may
leave one shard and enter another: two shards change then. A shard lists its records by their digests, not by their
places, so what is computed from it does not depend on the records of other shards. It may be empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlock.data.split import Records, positions

_PURPOSE = b"airlock shards"


def shard(records: Records, count: int, seed: int) -> list[NDArray[np.int64]]:
    """The positions of the records of every shard.

    Args:
        records: The private ones.
        count: How many shards.
        seed: The key of the hash; public.
    """
    numbers, digests = positions(records, seed, _PURPOSE)
    own = np.minimum((numbers * count).astype(np.int64), count - 1)
    by_digest = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    ordered = by_digest[np.argsort(own[by_digest], kind="stable")]
    return np.split(ordered, np.searchsorted(own[ordered], np.arange(1, count)))


def even(own: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Exactly so many positions: the first ones, or all of them over and over."""
    return np.resize(own, count)

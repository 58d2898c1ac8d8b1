"""Which rows leave: exactly as many as a public figure says, whoever is there, in a secret order.

How many private records there are is private, and so is who fell into another part. So the number of rows is not
counted: m rows leave, m being public. Where there are fewer records the rest are rows of nobody, which hold zeros and a
label by chance. Where there are more, those with the smallest hashes of their content under a secret key are kept. The
order of rows is drawn without looking at any of them.

Guarantee: adding or removing one record changes at most one of the m rows, from one record (or nobody) to another.

Proof. Fix the key. Let S(D) be the multiset of what is kept of D: all of D and m − |D| times nobody, or if |D| ≥ m
those with the m smallest hashes. (Equal records have equal hashes, and are the same to whoever reads a row.) Add
a record r. If |D| < m, S(D + r) is S(D) with one nobody changed to r. If |D| ≥ m, either r is not among the m smallest
and S does not change, or it is, and the largest of S(D) makes room: one element changes to r. So S(D + r) is S(D) with
at most one element changed, whatever the key is. Removing is the same, read backwards. Rows are S in a uniformly random
order from a stream of its own: write S(D) as a list, S(D + r) as the same list with one entry changed, and apply the
same permutation to both. A uniformly permuted list is distributed alike however its multiset was written down, so
this couples the two releases such that their lists of rows differ in one place. ∎

So a mechanism that treats every row by itself, and whose output on one row is (ε, δ)-close for any two contents of that
row, is (ε, δ)-DP under add-remove: conditioned on key and permutation the outputs differ in one independent row, and a
mixture over both, with the same weights on either side, is no further apart. The same holds for replacing a record
inside the private part: r instead of s changes at most one element of S as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlock.data import Records, content_digests
from airlock.mechanisms import Stream
from airlock.training.front_ends.extract import NOBODY

Whole = NDArray[np.int64]


def draw_rows(records: Records, count: int, choices: Stream) -> Whole:
    """The position of each row's record, NOBODY where it has none.

    Args:
        records: The private ones.
        count: m; public.
        choices: Secret; a run that goes on must have the same.
    """
    kept = keep(records, count, choices.child("kept").take_key())
    slots = np.append(kept, np.full(count - len(kept), NOBODY, np.int64))
    return slots[permutation(count, choices.child("order"))]


def keep(records: Records, count: int, key: bytes) -> Whole:
    """The positions of all records, or of the `count` with the smallest keyed hashes where there are more."""
    if len(records) <= count:
        return np.arange(len(records), dtype=np.int64)
    digests = content_digests(records, key)
    return np.array(sorted(range(len(records)), key=digests.__getitem__)[:count], np.int64)


def permutation(count: int, stream: Stream) -> Whole:
    """Uniform: the order of so many random numbers."""
    return np.argsort(stream.uniform(count), kind="stable").astype(np.int64)

"""Which rows leave: always a public, fixed number, whatever the number of records, in a secret order.

The number of private records is private, and so is the assignment of records to the other parts. So the rows are not
one per record: exactly m rows leave, where m is public. If there are fewer records, the remaining rows are empty
(`NOBODY`): they hold zeros and a random label. If there are more, those whose content has the smallest hashes under a
secret key are kept. The order of the rows is drawn independently of their content.

Guarantee: adding or removing one record changes at most one of the m rows, from one record (or an empty row) to
another.

Proof. Fix the key. Let S(D) be the multiset kept of D: all of D and m − |D| empty rows, or, if |D| ≥ m, the records
with the m smallest hashes. (Identical records have equal hashes and give indistinguishable rows.) Add a record r. If
|D| < m, S(D + r) is S(D) with one empty row changed to r. If |D| ≥ m, either r is not among the m smallest and S does
not change, or it is, and replaces the record of S(D) with the largest hash: one element changes to r. So S(D + r) is
S(D) with at most one element changed, whatever the key is. Removing is the same, read backwards. The rows are S in a
uniformly random order, drawn from a separate stream: write S(D) as a list, S(D + r) as the same list with one entry
changed, and apply the same permutation to both. The distribution of a uniformly permuted list does not depend on how
its multiset was written down, so this couples the two releases such that their lists of rows differ in at most one
place. ∎

So a mechanism that processes every row independently, and whose output on one row is (ε, δ)-close for any two contents
of that row, is (ε, δ)-DP under add-remove: conditioned on key and permutation the outputs differ in one independent
row, and mixing over both, with the same weights on either side, preserves (ε, δ)-closeness. The same holds for
replacing a record inside the private part: r instead of s changes at most one element of S as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlock.data import Records, content_digests, person_digests
from airlock.mechanisms import Stream
from airlock.training.front_ends.extract import NOBODY

Whole = NDArray[np.int64]


def draw_rows(records: Records, count: int, choices: Stream) -> Whole:
    """The position of each row's record; NOBODY for an empty row.

    Args:
        records: The private ones.
        count: m; public.
        choices: Secret; a resumed run must use the same.
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


def keep_people(records: Records, count: int, key: bytes) -> Whole:
    """The positions of the records of all people, or of the `count` people with the smallest keyed hashes.

    Adding or removing one person changes at most one of the `count` places for people, from one person or nobody to
    another: the argument above, for people in the order of (hash, number), which is that of their identifiers and no
    one else's (`data.people`). Where nothing says whose a record is, each is somebody of its own (`keep`).
    """
    if records.person is None:
        return keep(records, count, key)
    groups, digests = records.groups(), person_digests(records, key)
    firsts, ends = groups.rows[groups.starts[:-1]], groups.starts
    order = sorted(range(len(firsts)), key=lambda i: (digests[firsts[i]], int(records.person[firsts[i]])))  # type: ignore[index]
    own = [groups.rows[ends[i] : ends[i + 1]] for i in order[:count]]
    return np.concatenate([np.empty(0, np.int64), *own])


def permutation(count: int, stream: Stream) -> Whole:
    """A uniformly random permutation: the order of `count` random numbers."""
    return np.argsort(stream.uniform(count), kind="stable").astype(np.int64)

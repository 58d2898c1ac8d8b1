"""Which rows leave: always a public, fixed number, whatever the number of records, in a secret order.

The number of private records is private, and so is the assignment of records to the other parts. So the rows are not
one per record: exactly m rows leave, where m is public. If there are fewer records, the remaining rows are empty
(`NOBODY`): they hold zeros and a random label. If there are more, those whose content has the smallest hashes under a
secret key are kept. The order of the rows is drawn independently of their content. Where the unit is a person, at most
K records of each take part, a declared number; which ones follows from her own records alone (`data.split.limited`).

Guarantee: adding or removing one record changes at most one of the m rows, from one record (or an empty row) to
another. Adding or removing one person with all her records changes at most K of them.

Proof. Fix the key. Let P be the records of somebody that take part: at most K, or one where the unit is a record (then
K = 1). Let D be those of all others: who else is there decides nothing about either. Let S(D) be the multiset kept of
D: the m smallest of D and m empty rows, where records are ordered by their hashes and come before all empty rows.
(Identical records have equal hashes and give indistinguishable rows.) Let a ≤ K be the number of elements of P in
S(D + P). The other m − a are the m − a smallest of D and the empty rows, and these are in S(D). So S(D + P) is S(D)
with its a largest elements changed to elements of P, whatever the key is. Removing is the same, read backwards. The
rows are S in a uniformly random order, drawn from a separate stream: write S(D) as a list, S(D + P) as the same list
with a entries changed, and apply the same permutation to both. The distribution of a uniformly permuted list does not
depend on how its multiset was written down, so this couples the two releases such that their lists of rows differ in at
most K places. ∎

So a mechanism that processes every row independently, and whose output on K rows is (ε, δ)-close for any two contents
of these rows, is (ε, δ)-DP under add-remove: conditioned on key and permutation the outputs differ in K independent
rows, and mixing over both, with the same weights on either side, preserves (ε, δ)-closeness. How many rows are
somebody's is not revealed by their number, which is m on either side. The same holds for replacing somebody inside the
private part: with Q in place of P and b of its elements kept, both multisets hold the m − max(a, b) smallest of D and
the empty rows, and max(a, b) ≤ K.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlock.data import Records, limited, person_digests
from airlock.data.split import each_content_digest, halves, in_order
from airlock.mechanisms import Stream
from airlock.training.front_ends.extract import NOBODY

Whole = NDArray[np.int64]


def draw_rows(records: Records, count: int, choices: Stream, most: int | None = None, seed: int = 0) -> Whole:
    """The position of each row's record; NOBODY for an empty row.

    Args:
        records: The private ones.
        count: m; public.
        choices: Secret; a resumed run must use the same.
        most: K, where the unit is a person; public.
        seed: Decides which of somebody's records take part; public.
    """
    key = choices.child("kept").take_key()
    if most is None:
        kept = keep(records, count, key)
    else:
        own = limited(records, most, seed)
        kept = own[keep(records.take(own), count, key)]
    slots = np.append(kept, np.full(count - len(kept), NOBODY, np.int64))
    return slots[permutation(count, choices.child("order"))]


def keep(records: Records, count: int, key: bytes) -> Whole:
    """The positions of all records, or of the `count` with the smallest keyed hashes where there are more."""
    if len(records) <= count:
        return np.arange(len(records), dtype=np.int64)
    return in_order(halves(each_content_digest(records, key), len(records)))[:count]


def keep_people(records: Records, count: int, key: bytes) -> Whole:
    """The positions of the records of all people, or of the `count` people with the smallest keyed hashes.

    Adding or removing one person changes at most one of the `count` places for people, from one person or nobody to
    another: the argument above, with people for records, in the order of (hash, number), which is that of their
    identifiers and no one else's (`data.people`). Where nothing says whose a record is, each is somebody of its own.
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

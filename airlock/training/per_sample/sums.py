"""Norms and sums of single records' gradients, with known precision, whatever precision the network uses.

A network may compute in float32, TF32 or bfloat16: what it computes for a record is that record's gradient, rounding
included. Only the arithmetic over several records at once needs a bound on its rounding. A record's gradient g arrives
here in one of two ways:

* as a row of numbers. Its norm is that of these numbers (`row_squares`), and they are summed in float64;
* as Σ_t b_t a_tᵀ over T positions, never formed. Its norm follows from two Gram matrices in float64, and the sum over
records and positions is a matrix product in float64. Terms may cancel, so that g is far smaller than the terms of the
sum, A = ‖a‖ ‖b‖ ≥ Σ_t ‖a_t‖ ‖b_t‖. A is therefore included: ‖g‖² + (A/2^8)² takes the place of ‖g‖². On a GPU with
Triton, kernels form g tile by tile while they sum it (`sum_kernels`): then it is a row of numbers, though it is never
stored.

Guarantee, for a lot of n records in chunks of at most B with T positions each (1 for rows): with factors f_i from
`Clip.factors`, ‖f_i g_i‖ ≤ (1 − 2^-10) C and f_i A_i ≤ 2^8 C. A float64 sum of k terms is off by at most k · 2^-53
times the sum of their sizes, so a chunk's sum is off by at most BT · 2^-53 · Σ f_i A_i; chunks are added up with
compensated summation (`Total`), which adds almost nothing. Nor does adding up the sums of W processes in float64: at
most W · 2^-53 · n C. (In float32 it were 2^29 times as much, which lots of a few thousand cannot bear.) Two lots that
differ in one record therefore differ by at most

    (1 − 2^-10) C + 2 BT · 2^-53 · 2^8 n C + …  ≤  C        as long as BT · n ≤ 2^33.

`largest_chunk` keeps B that small; n is that of all processes together. Where people are protected, n counts people and
B rows (`people`). (A Gram matrix in float64 gives ‖g‖² to within (T² + in + out) 2^-53 A², which is far below
(A/2^8)².) All of this holds for arbitrary numbers: nothing is assumed about their distribution.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from airlock.mechanisms.clipping import BALANCE, SMALLEST, Clip
from airlock.training.per_sample.people import TRITON, FixedPeople, People

_SMALL = 1 << 16  # below this many numbers, a separate kernel does not pay off
# A CPU computes the last few numbers of an array with other instructions than the rest, and the last bit may differ:
# with a multiple of this many records in a chunk there is no remainder, and every record is treated alike.
MULTIPLE = 32
FLOOR = 2.0**-16  # times A², added to a square
_LOST = 2.0**-62  # float32 does not hold the squares of smaller numbers
_TERMS = 2.0**33
_BYTES_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 31}  # for copies: limited by a CPU's cache and a GPU's memory


def largest_chunk(lot: float, places: int) -> int:
    """The most records that a chunk may have, for lots of up to four times the expected size."""
    return max(1, int(_TERMS / (4 * max(lot, 1.0) * places)))


def weighted_sum(factors: Tensor, rows: Tensor) -> Tensor:
    """Σ factor · row in float64, in the rows' layout."""
    flat = rows.flatten(1) if rows.dim() > 1 else rows[:, None]  # a parameter may be a single number
    if flat.is_cuda:
        return _on_gpu(factors, flat).view(rows.shape[1:])
    total = torch.empty(flat.shape[1], dtype=torch.float64)
    step = max(256, at_once(flat, 2 * len(flat)))
    for start in range(0, flat.shape[1], step):
        torch.mv(flat[:, start : start + step].double().t(), factors, out=total[start : start + step])
    return total.view(rows.shape[1:])


def _on_gpu(factors: Tensor, flat: Tensor) -> Tensor:
    if TRITON and flat.is_contiguous() and flat.dtype == torch.float32 and flat.numel() > _SMALL:
        from airlock.training.per_sample import sum_kernels

        found: Tensor = sum_kernels.weighted_sum(factors, flat)
        return found
    return (flat * factors.float()[:, None]).sum(0, dtype=torch.float64)


def formed_in_kernels(device: str, places: int) -> bool:
    """Whether gradients over several positions are formed by kernels that do not store them."""
    return TRITON and device == "cuda" and places > 1


def product_squares(a: Tensor, b: Tensor, plain: bool = True, exact: bool = False) -> Tensor:
    """‖Σ_t b_t a_tᵀ‖² of every record in float64, plus the margin for cancellation unless only the norm is wanted.

    Args:
        a: (records, T, in).
        b: (records, T, out), in units of the clip's scale.
        plain: Whether that scale is 1, so that the same b is also summed.
        exact: Without the margin: for comparisons, not for clipping.
    """
    if plain and formed_in_kernels(a.device.type, a.shape[1]):
        from airlock.training.per_sample import sum_kernels

        return in_range(*sum_kernels.product_squares(a, b, 0.0 if exact else FLOOR), (a.shape, b.shape))
    own, sizes = _squares_and_sizes(a, b)
    return own if a.shape[1] == 1 or exact else own + FLOOR * sizes


def product_squares_by_person(a: Tensor, b: Tensor, people: People, plain: bool = False, exact: bool = False) -> Tensor:
    """The same over all rows of a person, at her first row; a is (rows, T, in), b is (rows, T, out)."""
    several = a.shape[1] > 1
    if isinstance(people, FixedPeople) and a.is_cuda and (plain or not several):
        from airlock.training.per_sample import people_kernels

        # Squares below 2^-126 vanish in float32: all of them together are at most `lost`.
        lost = a.shape[2] * b.shape[2] * 2.0**-125
        found: Tensor
        if several:
            found = people_kernels.product_squares(a, b, people.length) + lost
        else:
            pair = (a[:, 0], b[:, 0], people.rest, people.length)
            found = people_kernels.pair_squares(*pair, people.longest, 0.0 if exact else FLOOR)
        return found
    own, sizes = _squares_and_sizes(a, b)

    def products(one: list[Tensor], other: list[Tensor]) -> Tensor:
        pairs = [torch.bmm(x, y.transpose(1, 2)) for x, y in zip(one, other, strict=True)]
        both = pairs[0].mul_(pairs[1]).flatten(1)
        return both.sum(1) if several else both[:, 0]

    cross_terms = partial(people.cross_terms, (a, b), products)
    return people.squares(own, sizes.sqrt(), cross_terms, 0.0 if exact else FLOOR, alone=several)


def in_range(squares: Tensor, most_a: Tensor, most_b: Tensor, shapes: tuple[torch.Size, torch.Size]) -> Tensor:
    """The squares that a kernel computed in float32; infinite where a or b is so small that they may be lost.

    Below 2^-62 the squares of a are zero in float32, or nearly, and then so is what the kernel says of a gradient b aᵀ,
    however large b is; and the other way round. Such a record is left out, like one whose gradient is not finite,
    unless a bound on its gradient, from the largest numbers of both, shows that it is below every clip norm.

    Args:
        squares: Of every record.
        most_a: The largest number in its a, without sign.
        most_b: The same in its b.
        shapes: Of a and b: (records, T, in) and (records, T, out).
    """
    (_, places, into), (_, _, out) = shapes
    at_most = most_a.double() * most_b.double() * (places * (into * out) ** 0.5)
    lost = ((most_a < _LOST) | (most_b < _LOST)) & (at_most > SMALLEST / 4)
    return torch.where(lost, torch.inf, squares)


def _squares_and_sizes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The squared norms from Gram matrices, and A², in float64.

    In float32 the square of a small a could be zero, and that of a large b infinite, where their product is neither.
    """
    if a.shape[1] == 1:
        own = _flat_squares(a.flatten(1)).mul_(_flat_squares(b.flatten(1)))
        return own, own
    step = at_once(a, 2 * a[0].numel() + 2 * b[0].numel())  # a few records at a time
    parts = zip(torch.split(a, step), torch.split(b, step), strict=True)
    found = [_gram_at_once(one.double(), other.double()) for one, other in parts]
    return torch.cat([gram for gram, _ in found]), torch.cat([size for _, size in found])


def _flat_squares(rows: Tensor) -> Tensor:
    """The squared norm of every row in float64; a few rows at a time, since copies are slow in fresh memory."""
    parts = torch.split(rows, at_once(rows, 2 * rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]).square_()


def _gram_at_once(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """From both Gram matrices, whose diagonals hold ‖a_t‖² and ‖b_t‖²."""
    one, other = (torch.bmm(side, side.transpose(1, 2)) for side in (a, b))
    sizes = one.diagonal(dim1=1, dim2=2).sum(1) * other.diagonal(dim1=1, dim2=2).sum(1)
    return one.mul_(other).flatten(1).sum(1).clamp_min_(0), sizes


def weighted_product(factors: Tensor, a: Tensor, b: Tensor, plain: bool = True, people: People | None = None) -> Tensor:
    """Σ factor · Σ_t b_t a_tᵀ over all records, by matrix products in float64.

    With `people`, factors are those of people, at their first rows.
    """
    if plain and people is None and formed_in_kernels(a.device.type, a.shape[1]):
        from airlock.training.per_sample import sum_kernels

        found: Tensor = sum_kernels.product_sum(factors, a, b)
        return found
    if people is not None:
        if plain and isinstance(people, FixedPeople) and formed_in_kernels(a.device.type, a.shape[1]):
            from airlock.training.per_sample import people_kernels

            summed: Tensor = people_kernels.product_sum(factors, a, b, people.length)
            return summed
        factors = people.spread(factors)
    weighted = b.double().mul_(factors[:, None, None]) if b.dtype != torch.float64 else b * factors[:, None, None]
    left, right = weighted.flatten(0, 1), a.flatten(0, 1)
    step = at_once(right, 2 * right.shape[1])  # a few rows at a time, since copies are slow in fresh memory
    total = left.new_zeros(left.shape[1], right.shape[1])
    for rows, columns in zip(torch.split(left, step), torch.split(right, step), strict=True):
        total.addmm_(rows.t(), columns.double())
    return total


def at_once(like: Tensor, numbers: int) -> int:
    """How many records to process at a time if each needs this many float32 numbers of memory."""
    return max(1, _BYTES_AT_ONCE[like.device.type] // (4 * numbers))


def settle(
    squares: dict[str, Tensor], mask: Tensor, clip: Clip, norm: Tensor | None = None, people: People | None = None
) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """From squared norms by parameter: the factors of all records, which are usable, and a counting clip's balance.

    With `people`, squares are those of sums over a person's records, at the first of them, and so are the factors; the
    others get the factor 0. A record whose mask is a fraction enters the sum with that fraction of its clipped
    gradient, and the balance as a whole.
    """
    counts = mask
    if people is not None:
        squares = {name: square * people.share.square() for name, square in squares.items()}
        counts = mask * people.first
    whole = torch.stack(list(squares.values())).sum(0)
    finite = torch.isfinite(whole) | (counts == 0)
    share = counts if people is None else counts * people.share
    factors = {name: factor * share for name, factor in clip.factors(squares, norm).items()}
    balance = {BALANCE: (clip.balance(squares, norm) * (counts > 0)).sum()} if clip.counting else {}
    return factors, finite if people is None else people.spread(finite), balance


class Total:
    """A running sum of chunks in float64, with the rounding errors kept separately (Knuth's two-sum)."""

    def __init__(self) -> None:
        self._sum: dict[str, Tensor] = {}
        self._rest: dict[str, Tensor] = {}

    def add(self, part: dict[str, Tensor]) -> None:
        """Add one chunk; the tensors are not kept."""
        names, values = list(part), list(part.values())
        if not self._sum:
            self._sum = dict(zip(names, torch._foreach_mul(values, 1.0), strict=True))
            return
        before = [self._sum[name] for name in names]
        after = torch._foreach_add(before, values)
        seen = torch._foreach_sub(after, before)
        lost = torch._foreach_sub(before, torch._foreach_sub(after, seen))
        torch._foreach_add_(lost, torch._foreach_sub(values, seen))
        if self._rest:
            torch._foreach_add_(lost, [self._rest[name] for name in names])
        self._rest = dict(zip(names, lost, strict=True))
        self._sum = dict(zip(names, after, strict=True))

    def settle(self) -> dict[str, Tensor]:
        """The sum of all chunks."""
        return {name: value + self._rest[name] if name in self._rest else value for name, value in self._sum.items()}

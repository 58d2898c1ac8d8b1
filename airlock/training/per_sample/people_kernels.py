"""Sums over the rows of a person on a GPU as Triton kernels; imported only if Triton is installed.

A person's rows are adjacent. `length` says at the first of them how many there are, and 0 elsewhere. Every program
works for one person at a time and reads nobody else's rows: what it computes depends on hers alone, bit for bit.

`add_up`: formed rows, added one after the other. `pair_squares`: norms from all pairs of her rows, in float64.
`product_squares` and `product_sum`: a gradient over several positions is formed tile by tile over all positions of all
of her rows, and never stored: once for its norm and once for the sum, from the same numbers.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from airlock.training.per_sample.sum_kernels import _places, _sizes, _splits

_WIDE = 1024  # numbers of a row that a program adds up at a time


@triton.jit
def _add_up_kernel(rows, length, COLUMNS, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    many = tl.load(length + row)
    if many > 1:
        column = tl.program_id(1).to(tl.int64) * WIDE + tl.arange(0, WIDE)
        inside = column < COLUMNS
        where = rows + row * COLUMNS + column
        total = tl.load(where, mask=inside, other=0.0)
        for place in range(1, many):
            total += tl.load(where + place * COLUMNS, mask=inside, other=0.0)
        tl.store(where, total, mask=inside)


def add_up(rows: Tensor, length: Tensor) -> None:
    """In place: at a person's first row the sum over hers, in their order; rows are (rows, columns), contiguous."""
    count, columns = rows.shape
    if count == 0 or columns == 0:
        return
    wide = min(_WIDE, triton.next_power_of_2(columns))
    _add_up_kernel[(count, triton.cdiv(columns, wide))](rows, length, columns, WIDE=wide, num_warps=4)


@triton.jit
def _dot(value, one, other, WIDTH, WIDE: tl.constexpr):
    total = tl.zeros((WIDE,), dtype=tl.float64)
    for start in range(0, WIDTH, WIDE):
        column = start + tl.arange(0, WIDE)
        inside = column < WIDTH
        x = tl.load(value + one * WIDTH + column, mask=inside, other=0.0).to(tl.float64)
        y = tl.load(value + other * WIDTH + column, mask=inside, other=0.0).to(tl.float64)
        total += x * y
    return tl.sum(total, 0)


@triton.jit
def _pairs_kernel(a, b, rest, gram, size, INTO, OUTOF, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    own = _dot(a, row, row, INTO, WIDE) * _dot(b, row, row, OUTOF, WIDE)
    total = own
    for lag in range(1, tl.load(rest + row) + 1):
        total += 2.0 * _dot(a, row, row + lag, INTO, WIDE) * _dot(b, row, row + lag, OUTOF, WIDE)
    tl.store(gram + row, total)
    tl.store(size + row, tl.sqrt(own))


@triton.jit
def _of_person_kernel(gram, size, length, out, ROWS, FLOOR: tl.constexpr, MOST: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    many = tl.load(length + row, mask=row < ROWS, other=0)
    total, sizes = tl.zeros((WIDE,), dtype=tl.float64), tl.zeros((WIDE,), dtype=tl.float64)
    for place in range(0, MOST):
        total += tl.load(gram + row + place, mask=place < many, other=0.0)
        sizes += tl.load(size + row + place, mask=place < many, other=0.0)
    margin = tl.where(many > 1, FLOOR * sizes * sizes, 0.0)
    tl.store(out + row, tl.where(total < 0.0, 0.0, total) + margin, mask=row < ROWS)  # not a number stays what it is


def pair_squares(a: Tensor, b: Tensor, rest: Tensor, length: Tensor, most: int, floor: float) -> Tensor:
    """‖Σ_r b_r a_rᵀ‖² of every person at her first row, in float64, with the margin where she has several; 0 elsewhere.

    Args:
        a: (rows, in).
        b: (rows, out).
        rest: How many rows of the same person are behind each.
        length: How many rows of a person begin at each.
        most: The most rows of one person.
        floor: What is added, times A².
    """
    a, b = a.contiguous(), b.contiguous()
    rows, wide = len(a), min(1024, triton.next_power_of_2(max(a.shape[1], b.shape[1])))
    gram, size, out = torch.empty((3, rows), dtype=torch.float64, device=a.device)
    _pairs_kernel[(rows,)](a, b, rest, gram, size, a.shape[1], b.shape[1], WIDE=wide, num_warps=4)
    own = {"FLOOR": floor, "MOST": most, "WIDE": 128}
    _of_person_kernel[(triton.cdiv(rows, 128),)](gram, size, length, out, rows, **own, num_warps=4)
    return out


@triton.jit
def _taken(value, start, t, column, POSITIONS, WIDTH):
    """Some of a person's positions, which begin at `start`, as (positions, columns)."""
    where = value + (start + t)[:, None] * WIDTH + column[None, :]
    return tl.load(where, mask=(t < POSITIONS)[:, None] & (column < WIDTH)[None, :], other=0.0)


@triton.jit
def _person_tile(
    a, b, row, many, o, i, T, INTO, OUTOF, OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of one person's gradient; it is formed nowhere else."""
    tile = tl.zeros((OUT, IN), dtype=tl.float32)
    for begin in tl.range(0, many * T, AT, num_stages=1):
        t = begin + tl.arange(0, AT)
        given = _taken(b, row * T, t, o, many * T, OUTOF)
        into = _taken(a, row * T, t, i, many * T, INTO)
        tile = tl.dot(tl.trans(given), into, tile, input_precision=PRECISION)
    return tile


@triton.jit
def _norm_kernel(
    a, b, length, out, ROWS, T, INTO, OUTOF, TILES, SPLITS: tl.constexpr,
    OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o, i = _places(tl.program_id(0), INTO, OUT, IN)
    for number in range(tl.program_id(1), ROWS, SPLITS):
        row = tl.zeros((), tl.int64) + number
        many = tl.load(length + row)
        if many > 0:
            tile = _person_tile(a, b, row, many, o, i, T, INTO, OUTOF, OUT, IN, AT, PRECISION)
            tl.store(out + row * TILES + tl.program_id(0), tl.sum(tl.sum(tile * tile, 1), 0))


@triton.jit
def _sum_kernel(
    a, b, length, factors, out, ROWS, T, INTO, OUTOF, SPLITS: tl.constexpr,
    OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o, i = _places(tl.program_id(0), INTO, OUT, IN)
    total = tl.zeros((OUT, IN), dtype=tl.float64)
    for number in range(tl.program_id(1), ROWS, SPLITS):
        row = tl.zeros((), tl.int64) + number
        many = tl.load(length + row)
        if many > 0:
            tile = _person_tile(a, b, row, many, o, i, T, INTO, OUTOF, OUT, IN, AT, PRECISION)
            total += tile.to(tl.float64) * tl.load(factors + row)
    where = out + tl.program_id(1).to(tl.int64) * INTO * OUTOF + o[:, None] * INTO + i[None, :]
    tl.store(where, total, mask=(o < OUTOF)[:, None] & (i < INTO)[None, :])


def _shape(a: Tensor, b: Tensor) -> tuple[tuple[int, int, int], int, dict[str, object]]:
    sizes, tiles, shape = _sizes(a, b)
    return sizes, tiles, {key: shape[key] for key in ("OUT", "IN", "AT", "PRECISION", "num_warps")}


def product_squares(a: Tensor, b: Tensor, length: Tensor) -> Tensor:
    """‖Σ_r Σ_t b_t a_tᵀ‖² of every person as `product_sum` forms it, in float64, at her first row; 0 elsewhere.

    Args:
        a: (rows, T, in).
        b: (rows, T, out).
        length: How many rows of a person begin at each.
    """
    a, b = a.contiguous(), b.contiguous()
    sizes, tiles, shape = _shape(a, b)
    out = torch.zeros((len(a), tiles), dtype=torch.float32, device=a.device)
    splits = _splits(len(a), tiles)
    _norm_kernel[(tiles, splits)](a, b, length, out, len(a), *sizes, tiles, SPLITS=splits, **shape)
    return out.sum(1, dtype=torch.float64)


def product_sum(factors: Tensor, a: Tensor, b: Tensor, length: Tensor) -> Tensor:
    """Σ factor · Σ_r Σ_t b_t a_tᵀ over all people, in float64 (out, in); a factor is at her first row."""
    a, b = a.contiguous(), b.contiguous()
    sizes, tiles, shape = _shape(a, b)
    splits = _splits(len(a), tiles)
    out = torch.empty((splits, sizes[2], sizes[1]), dtype=torch.float64, device=a.device)
    _sum_kernel[(tiles, splits)](a, b, length, factors, out, len(a), *sizes, SPLITS=splits, **shape)
    return out.sum(0)

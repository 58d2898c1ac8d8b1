"""Sums over records on a GPU as Triton kernels; imported only if Triton is installed.

`weighted_sum`: Σ factor · row in float64, in one pass over the rows. `product_squares` and `product_sum`: norms and
sums of gradients g = Σ_t b_t a_tᵀ that are never written to memory. The sum forms a record's gradient tile by tile in
float32 (or TF32) and adds it up over the records in float64: a record's contribution is a row of numbers that depends
on it alone.

Its norm is that of the same row, formed a second time in the same order; or, where one side is narrow, of the row as
other threads form it, which may round otherwise; or, with at most 128 positions and where that is cheaper, it follows
from Gram matrices of the same rounded numbers, which add up 64 of them at a time in float32 and the rest in float64.
In the last two cases ĝ, what is summed, is not exactly g. With A = ‖a‖ ‖b‖, ‖ĝ − g‖ ≤ γ A, and the squared norm
from Gram matrices is off by at most δ A². A matrix unit adds eight products to a sum at a time, and of each of these
nine numbers it may lose 2^-24 of the largest: γ ≤ 16 · 9 · 2^-24 for 128 positions, and δ ≤ 2 · 8 · 9 · 2^-24 for 64
numbers in a row. (One by one, in plain float32: γ ≤ 128 · 2^-24, δ ≤ 2 · 64 · 2^-24.) 2^-16 A² is added to the square,
of which m A² with m ≥ 112 · 2^-24 is left. By Cauchy and Schwarz, over all layers together,

    ‖ĝ‖ ≤ ‖g‖ + γ A ≤ √(1 + γ²/m) · √(‖g‖² + m A²) ≤ (1 + 2^-17) · the norm by which it is clipped.

A row that other threads form is as far from g again, so that γ counts twice; it has at most 64 positions, for which γ
is half of that, and all of 2^-16 A² is left: the same bound holds.

Squares of numbers below 2^-62 may vanish in float32, so the kernels also say what the largest number is on each side
(`product_squares`).
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _MOST_PLACES = 64, 64  # side of a gradient tile, and positions processed at a time
_GRAM_PLACES = 128  # the most positions for which rounding in Gram matrices and gradients is within its bound


@triton.jit
def _weighted_sum_kernel(
    rows, factors, out, RECORDS, COLUMNS, SPLITS: tl.constexpr, AT_ONCE: tl.constexpr, WIDE: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    inside = column < COLUMNS
    total = tl.zeros((WIDE,), dtype=tl.float64)
    for start in range(tl.program_id(1) * AT_ONCE, RECORDS, SPLITS * AT_ONCE):
        record = start + tl.arange(0, AT_ONCE)
        there = record < RECORDS
        factor = tl.load(factors + record, mask=there, other=0.0)
        where = rows + record.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        value = tl.load(where, mask=there[:, None] & inside[None, :], other=0.0)
        total += tl.sum(value.to(tl.float64) * factor[:, None], 0)
    tl.store(out + tl.program_id(1).to(tl.int64) * COLUMNS + column, total, mask=inside)


def weighted_sum(factors: Tensor, rows: Tensor) -> Tensor:
    """Σ factor · row, float64 (columns,); rows are (records, columns) float32, contiguous."""
    records, columns = rows.shape
    wide, at_once, most = (512, 8, 16) if columns >= 8192 else (128, 16, 32)
    splits = max(1, min(most, records // at_once))
    out = torch.empty((splits, columns), dtype=torch.float64, device=rows.device)
    _weighted_sum_kernel[(triton.cdiv(columns, wide), splits)](
        rows, factors, out, records, columns, SPLITS=splits, AT_ONCE=at_once, WIDE=wide, num_warps=4
    )
    return out.sum(0)


@triton.jit
def _taken(value, record, t, column, T, WIDTH):
    """Some positions of one record, as (positions, columns)."""
    where = value + (record * T + t)[:, None] * WIDTH + column[None, :]
    return tl.load(where, mask=(t < T)[:, None] & (column < WIDTH)[None, :], other=0.0)


@triton.jit
def _row_tile(
    a, b, record, o, i, T, INTO, OUTOF, OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr, ROUNDS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of one record's gradient; it is formed nowhere else."""
    tile = tl.zeros((OUT, IN), dtype=tl.float32)
    for number in tl.static_range(ROUNDS):
        t = number * AT + tl.arange(0, AT)
        given, into = _taken(b, record, t, o, T, OUTOF), _taken(a, record, t, i, T, INTO)
        tile = tl.dot(tl.trans(given), into, tile, input_precision=PRECISION)
    return tile


@triton.jit
def _places(tile, INTO, OUT: tl.constexpr, IN: tl.constexpr):
    """Which outputs and inputs a tile holds."""
    across = tl.cdiv(INTO, IN)
    return (tile // across) * OUT + tl.arange(0, OUT), (tile % across) * IN + tl.arange(0, IN)


@triton.jit
def _norm_kernel(
    a, b, out, RECORDS, T, INTO, OUTOF, TILES, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr, ROUNDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o, i = _places(tl.program_id(0), INTO, OUT, IN)
    for number in tl.range(tl.program_id(1), RECORDS, SPLITS, num_stages=STAGES):
        record = tl.zeros((), tl.int64) + number
        tile = _row_tile(a, b, record, o, i, T, INTO, OUTOF, OUT, IN, AT, ROUNDS, PRECISION)
        tl.store(out + record * TILES + tl.program_id(0), tl.sum(tl.sum(tile * tile, 1), 0))


@triton.jit
def _small_norm_kernel(
    a, b, out, most, RECORDS, T, INTO, OUTOF, TILES, OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr,
    ROUNDS: tl.constexpr, PRECISION: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """All tiles of one record's gradient, one after another, and the sizes and largest numbers of its two sides."""
    record = tl.program_id(0).to(tl.int64)
    found, most_a, most_b = tl.zeros((), tl.float64), tl.zeros((), tl.float32), tl.zeros((), tl.float32)
    of_a, of_b = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    across, t = tl.cdiv(INTO, IN), tl.arange(0, AT)
    for number in range(0, TILES):
        o, i = _places(number, INTO, OUT, IN)
        tile = _row_tile(a, b, record, o, i, T, INTO, OUTOF, OUT, IN, AT, ROUNDS, PRECISION)
        found += tl.sum(tl.sum(tile * tile, 1), 0).to(tl.float64)
        for part in tl.static_range(ROUNDS):
            places = part * AT + t
            into, given = _taken(a, record, places, i, T, INTO), _taken(b, record, places, o, T, OUTOF)
            most_a = tl.maximum(most_a, tl.max(tl.max(tl.abs(into), 1), 0))
            most_b = tl.maximum(most_b, tl.max(tl.max(tl.abs(given), 1), 0))
            square_a, square_b = tl.sum(tl.sum(into * into, 1), 0), tl.sum(tl.sum(given * given, 1), 0)
            of_a += tl.where(number < across, square_a, 0.0).to(tl.float64)  # each part of a side once
            of_b += tl.where(number % across == 0, square_b, 0.0).to(tl.float64)
    tl.store(out + record, found + FLOOR * of_a * of_b)
    tl.store(most + record, most_a)
    tl.store(most + RECORDS + record, most_b)


@triton.jit
def _gram(value, record, rows, columns, T, WIDTH, PLACES: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr):
    """The products of some positions of one record with others, in float64, and the largest number at the first."""
    products, most = tl.zeros((PLACES, PLACES), dtype=tl.float64), tl.zeros((PLACES,), dtype=tl.float32)
    for start in range(0, WIDTH, WIDE):
        column = start + tl.arange(0, WIDE)
        one, other = _taken(value, record, rows, column, T, WIDTH), _taken(value, record, columns, column, T, WIDTH)
        products += tl.dot(one, tl.trans(other), input_precision=PRECISION).to(tl.float64)
        most = tl.maximum(most, tl.max(tl.abs(one), 1))
    return products, tl.max(most, 0)


@triton.jit
def _gram_kernel(
    a, b, out, most, RECORDS, T, INTO, OUTOF, BLOCKS: tl.constexpr, PLACES: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    record = tl.program_id(0).to(tl.int64)
    found = tl.zeros((), dtype=tl.float64)
    of_a, of_b = tl.zeros((), dtype=tl.float64), tl.zeros((), dtype=tl.float64)
    most_a, most_b = tl.zeros((), dtype=tl.float32), tl.zeros((), dtype=tl.float32)
    for block in tl.static_range(BLOCKS):
        rows = block * PLACES + tl.arange(0, PLACES)
        for beside in tl.static_range(block, BLOCKS):
            columns = beside * PLACES + tl.arange(0, PLACES)
            one, top_a = _gram(a, record, rows, columns, T, INTO, PLACES, WIDE, PRECISION)
            other, top_b = _gram(b, record, rows, columns, T, OUTOF, PLACES, WIDE, PRECISION)
            pairs = tl.sum(tl.sum(one * other, 1), 0)
            if block == beside:
                same = tl.arange(0, PLACES)[:, None] == tl.arange(0, PLACES)[None, :]
                of_a += tl.sum(tl.sum(tl.where(same, one, 0.0), 1), 0)
                of_b += tl.sum(tl.sum(tl.where(same, other, 0.0), 1), 0)
                most_a, most_b = tl.maximum(most_a, top_a), tl.maximum(most_b, top_b)
                found += pairs
            else:
                found += 2.0 * pairs
    tl.store(out + record, tl.where(found < 0.0, 0.0, found) + FLOOR * of_a * of_b)  # not a number stays what it is
    tl.store(most + record, most_a)
    tl.store(most + RECORDS + record, most_b)


@triton.jit
def _most_kernel(value, out, COLUMNS, WIDE: tl.constexpr):
    record = tl.program_id(0).to(tl.int64)
    most = tl.zeros((WIDE,), dtype=tl.float32)
    for start in range(0, COLUMNS, WIDE):
        column = start + tl.arange(0, WIDE)
        part = tl.load(value + record * COLUMNS + column, mask=column < COLUMNS, other=0.0)
        most = tl.maximum(most, tl.abs(part))
    tl.store(out + record, tl.max(most, 0))


@triton.jit
def _sum_kernel(
    a, b, factors, out, RECORDS, T, INTO, OUTOF, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    OUT: tl.constexpr, IN: tl.constexpr, AT: tl.constexpr, ROUNDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o, i = _places(tl.program_id(0), INTO, OUT, IN)
    total = tl.zeros((OUT, IN), dtype=tl.float64)
    for number in tl.range(tl.program_id(1), RECORDS, SPLITS, num_stages=STAGES):
        record = tl.zeros((), tl.int64) + number
        tile = _row_tile(a, b, record, o, i, T, INTO, OUTOF, OUT, IN, AT, ROUNDS, PRECISION)
        total += tile.to(tl.float64) * tl.load(factors + record)
    where = out + tl.program_id(1).to(tl.int64) * INTO * OUTOF + o[:, None] * INTO + i[None, :]
    tl.store(where, total, mask=(o < OUTOF)[:, None] & (i < INTO)[None, :])


def _sizes(a: Tensor, b: Tensor) -> tuple[tuple[int, int, int], int, dict[str, object]]:
    """T, in and out; how many tiles a gradient has; and how the kernels that form gradients split it."""
    places, into, outof = a.shape[1], a.shape[2], b.shape[2]
    out_tile, in_tile = (min(_TILE, max(16, triton.next_power_of_2(n))) for n in (outof, into))
    at = min(_MOST_PLACES, max(16, triton.next_power_of_2(places)))
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    tiles = triton.cdiv(outof, out_tile) * triton.cdiv(into, in_tile)
    shape = {"OUT": out_tile, "IN": in_tile, "AT": at, "ROUNDS": triton.cdiv(places, at), "PRECISION": precision}
    return (places, into, outof), tiles, {**shape, "STAGES": 1, "num_warps": 4}


def _splits(records: int, tiles: int) -> int:
    """How many programs share the records, so that a GPU is fully used."""
    return max(1, min(records // 8, triton.cdiv(1056, tiles)))


def narrow(places: int, into: int, outof: int) -> bool:
    """Whether one side is so narrow, as beside an adapter, that a gradient takes less work than its Gram matrices."""
    at = max(16, triton.next_power_of_2(places))
    return at <= _MOST_PLACES and max(16, min(into, outof)) * max(into, outof) <= at * (into + outof)


def by_gram(places: int, into: int, outof: int) -> bool:
    """Whether norms follow from Gram matrices: with few positions, if that takes less work than the gradient."""
    blocks = triton.cdiv(places, _MOST_PLACES)
    pairs = blocks * (blocks + 1) // 2 * _MOST_PLACES**2
    return blocks == 1 or (places <= _GRAM_PLACES and pairs * (into + outof) < places * into * outof)


def product_squares(a: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """‖Σ_t b_t a_tᵀ‖² of every record as `product_sum` forms it, in float64; never less than that, plus `floor` · A².

    Also the largest number of every record in a, and in b.

    Args:
        a: (records, T, in).
        b: (records, T, out).
        floor: What is added unless the gradient is formed exactly as `product_sum` forms it.
    """
    a, b = a.contiguous(), b.contiguous()
    sizes, tiles, shape = _sizes(a, b)
    most = torch.empty((2, len(a)), dtype=torch.float32, device=a.device)
    if narrow(*sizes):
        out = torch.empty(len(a), dtype=torch.float64, device=a.device)
        whole = {key: value for key, value in shape.items() if key != "STAGES"} | {"FLOOR": floor, "num_warps": 1}
        _small_norm_kernel[(len(a),)](a, b, out, most, len(a), *sizes, tiles, **whole)
        return out, most[0], most[1]
    if by_gram(*sizes):
        out = torch.empty(len(a), dtype=torch.float64, device=a.device)
        own = {"PLACES": shape["AT"], "BLOCKS": shape["ROUNDS"], "PRECISION": shape["PRECISION"], "FLOOR": floor}
        warps = 4 if shape["AT"] > 32 else 1  # timed on an H200
        _gram_kernel[(len(a),)](a, b, out, most, len(a), *sizes, **own, WIDE=64, num_warps=warps)
        return out, most[0], most[1]
    for value, top in ((a, most[0]), (b, most[1])):
        _most_kernel[(len(a),)](value, top, value[0].numel(), WIDE=2048, num_warps=8)
    found = torch.empty((len(a), tiles), dtype=torch.float32, device=a.device)
    splits = _splits(len(a), tiles)
    _norm_kernel[(tiles, splits)](a, b, found, len(a), *sizes, tiles, SPLITS=splits, **shape)
    return found.sum(1, dtype=torch.float64), most[0], most[1]


def product_sum(factors: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Σ factor · Σ_t b_t a_tᵀ over the records, in float64 (out, in)."""
    a, b = a.contiguous(), b.contiguous()
    sizes, tiles, shape = _sizes(a, b)
    splits = _splits(len(a), tiles)
    out = torch.empty((splits, sizes[2], sizes[1]), dtype=torch.float64, device=a.device)
    _sum_kernel[(tiles, splits)](a, b, factors, out, len(a), *sizes, SPLITS=splits, **shape)
    return out.sum(0)

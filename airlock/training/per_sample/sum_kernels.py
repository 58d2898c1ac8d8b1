"""Sums over records on a GPU as Triton kernels; imported only if Triton is installed.

`weighted_sum`: Σ factor · row in float64, in one pass over the rows. `product_squares` and `product_sum`: norms and
sums of gradients Σ_t b_t a_tᵀ that are never written to memory. The sum forms a record's gradient tile by tile in
float32 (or TF32) and adds it up over the records in float64: a record's contribution is a row of numbers that depends
on it alone. With few positions, its norm follows from Gram matrices of the same rounded numbers: these are off by at
most 2^-20 A², A = ‖a‖ ‖b‖, and 2^-16 A² is added; with many positions, the gradient is formed a second time.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _MOST_PLACES = 64, 64  # side of a gradient tile, and positions processed at a time


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
def _gram(value, record, t, T, WIDTH, PLACES: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr):
    """The products of all pairs of positions of one record, and the sum of its squares."""
    products, squares = tl.zeros((PLACES, PLACES), dtype=tl.float32), tl.zeros((WIDE,), dtype=tl.float32)
    for start in range(0, WIDTH, WIDE):
        part = _taken(value, record, t, start + tl.arange(0, WIDE), T, WIDTH)
        products = tl.dot(part, tl.trans(part), products, input_precision=PRECISION)
        squares += tl.sum(part * part, 0)
    return products, tl.sum(squares, 0)


@triton.jit
def _gram_kernel(
    a, b, out, T, INTO, OUTOF, PLACES: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, FLOOR: tl.constexpr
):
    record = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, PLACES)
    one, of_a = _gram(a, record, t, T, INTO, PLACES, WIDE, PRECISION)
    other, of_b = _gram(b, record, t, T, OUTOF, PLACES, WIDE, PRECISION)
    found = tl.maximum(tl.sum(tl.sum(one * other, 1), 0), 0.0)
    tl.store(out + record, found + FLOOR * of_a * of_b)


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
    """T, in and out; how many tiles a gradient has; and how both kernels split it."""
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


def product_squares(a: Tensor, b: Tensor, floor: float) -> Tensor:
    """‖Σ_t b_t a_tᵀ‖² of every record as `product_sum` forms it, in float64; never less than that, plus `floor` · A².

    Args:
        a: (records, T, in).
        b: (records, T, out).
        floor: What is added if Gram matrices are used; nothing is added if the gradient is formed.
    """
    a, b = a.contiguous(), b.contiguous()
    sizes, tiles, shape = _sizes(a, b)
    if shape["ROUNDS"] == 1:
        out = torch.empty(len(a), dtype=torch.float32, device=a.device)
        own = {"PLACES": shape["AT"], "WIDE": 64, "PRECISION": shape["PRECISION"], "FLOOR": floor}
        _gram_kernel[(len(a),)](a, b, out, *sizes, **own, num_warps=4)
        return out.double()
    out = torch.empty((len(a), tiles), dtype=torch.float32, device=a.device)
    splits = _splits(len(a), tiles)
    _norm_kernel[(tiles, splits)](a, b, out, len(a), *sizes, tiles, SPLITS=splits, **shape)
    return out.sum(1, dtype=torch.float64)


def product_sum(factors: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Σ factor · Σ_t b_t a_tᵀ over the records, in float64 (out, in)."""
    a, b = a.contiguous(), b.contiguous()
    sizes, tiles, shape = _sizes(a, b)
    splits = _splits(len(a), tiles)
    out = torch.empty((splits, sizes[2], sizes[1]), dtype=torch.float64, device=a.device)
    _sum_kernel[(tiles, splits)](a, b, factors, out, len(a), *sizes, SPLITS=splits, **shape)
    return out.sum(0)

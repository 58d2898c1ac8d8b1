"""Every record's own gradient of a Conv2d weight as one Triton kernel; imported only if Triton is installed.

An implicit matrix product: a program handles one record, up to three neighbouring positions of one kernel row and one
tile of (out, in) channels, and iterates over the output's positions. The output gradient is read once for the three
positions, and no patches are ever written to memory.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows_kernel(
    a, back, out,
    a_record, a_channel, a_row, a_column,
    b_record, b_channel, b_row, b_column,
    INTO: tl.constexpr, OUTOF: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    POSITIONS: tl.constexpr, COLUMNS: tl.constexpr,
    DOWN: tl.constexpr, RIGHT: tl.constexpr, ABOVE: tl.constexpr, BEFORE: tl.constexpr,
    KERNEL_ROWS: tl.constexpr, KERNEL_COLUMNS: tl.constexpr, TAPS: tl.constexpr,
    OUT: tl.constexpr, IN: tl.constexpr, AT_ONCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    runs: tl.constexpr = (KERNEL_COLUMNS + TAPS - 1) // TAPS
    tiles: tl.constexpr = (INTO + IN - 1) // IN
    places: tl.constexpr = KERNEL_ROWS * KERNEL_COLUMNS
    record = (tl.program_id(0) // (KERNEL_ROWS * runs)).to(tl.int64)
    run = tl.program_id(0) % (KERNEL_ROWS * runs)
    row, column = run // runs, (run % runs) * TAPS
    o = (tl.program_id(1) // tiles) * OUT + tl.arange(0, OUT)
    c = (tl.program_id(1) % tiles) * IN + tl.arange(0, IN)
    inner = (c < INTO)[None, :]
    first = tl.zeros((OUT, IN), dtype=tl.float32)
    second = tl.zeros((OUT, IN), dtype=tl.float32)
    third = tl.zeros((OUT, IN), dtype=tl.float32)
    for start in range(0, POSITIONS, AT_ONCE):
        t = start + tl.arange(0, AT_ONCE)
        p, q = t // COLUMNS, t % COLUMNS
        given = tl.load(
            back + record * b_record + (p * b_row + q * b_column)[:, None] + (o * b_channel)[None, :],
            mask=(t < POSITIONS)[:, None] & (o < OUTOF)[None, :],
            other=0.0,
        )
        given = tl.trans(given)
        i, j = p * DOWN + row - ABOVE, q * RIGHT + column - BEFORE
        level = (t < POSITIONS) & (i >= 0) & (i < HIGH)
        where = a + record * a_record + (i * a_row + j * a_column)[:, None] + (c * a_channel)[None, :]
        taken = tl.load(where, mask=(level & (j >= 0) & (j < WIDE))[:, None] & inner, other=0.0)
        first = tl.dot(given, taken, first, input_precision=PRECISION)
        if TAPS > 1:
            inside = level & (j + 1 >= 0) & (j + 1 < WIDE)
            taken = tl.load(where + a_column, mask=inside[:, None] & inner, other=0.0)
            second = tl.dot(given, taken, second, input_precision=PRECISION)
        if TAPS > 2:
            inside = level & (j + 2 >= 0) & (j + 2 < WIDE)
            taken = tl.load(where + 2 * a_column, mask=inside[:, None] & inner, other=0.0)
            third = tl.dot(given, taken, third, input_precision=PRECISION)
    place = row * KERNEL_COLUMNS + column
    spot = out + record * (OUTOF * places * INTO) + (o[:, None] * places + place) * INTO + c[None, :]
    fit = (o < OUTOF)[:, None] & inner
    tl.store(spot, first, mask=fit)
    if TAPS > 1:
        tl.store(spot + INTO, second, mask=fit & (column + 1 < KERNEL_COLUMNS))
    if TAPS > 2:
        tl.store(spot + 2 * INTO, third, mask=fit & (column + 2 < KERNEL_COLUMNS))


def conv_rows(a: Tensor, back: Tensor, layer: torch.nn.Conv2d, padding: list[int]) -> Tensor:
    """(records, out, kernel rows, kernel columns, in), in float32; one group, no dilation.

    Tile sizes are those that were fastest on an H200 for 1 to 64 channels.
    """
    a, back = (t.float().contiguous(memory_format=torch.channels_last) for t in (a, back))
    records, into, high, wide = a.shape
    _, outof, rows, columns = back.shape
    kernel = layer.kernel_size
    out = torch.empty((records, outof, *kernel, into), dtype=torch.float32, device=a.device)
    tile_out, tile_in = (min(64, max(16, triton.next_power_of_2(n))) for n in (outof, into))
    taps = min(3, kernel[1])
    few = into < 16
    grid = (
        records * kernel[0] * triton.cdiv(kernel[1], taps),
        triton.cdiv(outof, tile_out) * triton.cdiv(into, tile_in),
    )
    _rows_kernel[grid](
        a, back, out, *a.stride(), *back.stride(),
        into, outof, high, wide, rows * columns, columns,
        *layer.stride, *padding, *kernel, taps,
        OUT=tile_out, IN=tile_in, AT_ONCE=32 if few else 16,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        num_warps=2 if tile_out == 64 else 1, num_stages=1 if few else 3,
    )  # fmt: skip
    return out

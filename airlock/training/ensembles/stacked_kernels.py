"""Convolutions and poolings of many networks at once as Triton kernels; imported only if Triton is installed.

cuDNN is slow at grouped convolutions, above all at the weights' gradients, and one call per network leaves most of a
GPU idle. Here a program belongs to one network; channels are last in memory, and patches are never stored: the entry
(position, k) of the matrix of patches is at base(position) + offset(k), where k = (kernel row, kernel column, channel).

Dropout masks of many networks are drawn by one program, too: one call per network takes longer than a small network's
step. They have to be the ones that each network would draw when it is trained alone, so the kernel does what torch's
does: thread t of a network takes four numbers at a time from Philox, with its seed as the key and t as the subsequence.
Before its first use on a GPU, its masks are compared with torch's (`draws_masks`).
"""
# mypy: ignore-errors

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from airlock.training.devices import upload

_LIMIT = 2**31 - 1  # entries of one network's activations: positions are 32-bit numbers


@triton.jit
def _inside(r, s, row, column, HIGH: tl.constexpr, WIDE: tl.constexpr):
    i, j = row[:, None] + r[None, :], column[:, None] + s[None, :]
    return (i >= 0) & (i < HIGH) & (j >= 0) & (j < WIDE)


@triton.jit
def _convolve_kernel(
    x, weights, bias, out, positions,
    HIGH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INTO: tl.constexpr, OUTOF: tl.constexpr, KERNEL_ROWS: tl.constexpr, KERNEL_COLUMNS: tl.constexpr,
    ABOVE: tl.constexpr, BEFORE: tl.constexpr,
    HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
    AT_ONCE: tl.constexpr, OUT: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    whole: tl.constexpr = KERNEL_ROWS * KERNEL_COLUMNS * INTO
    along: tl.constexpr = KERNEL_COLUMNS * INTO
    padded: tl.constexpr = (ABOVE > 0) or (BEFORE > 0)
    model = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    o = tl.program_id(2) * OUT + tl.arange(0, OUT)
    record, rest = t // (ROWS * COLUMNS), t % (ROWS * COLUMNS)
    row, column = rest // COLUMNS - ABOVE, rest % COLUMNS - BEFORE
    records = positions // (ROWS * COLUMNS)
    base = ((record * HIGH + row) * WIDE + column) * INTO
    x += model * records * (HIGH * WIDE * INTO)
    weights += model * (whole * OUTOF)
    sums = tl.zeros((AT_ONCE, OUT), dtype=tl.float32)
    for start in range(0, whole, STEP):
        k = start + tl.arange(0, STEP)
        r, offset = k // along, k % along
        there = (t < positions)[:, None] & (k < whole)[None, :]
        if padded:
            there &= _inside(r, offset // INTO, row, column, HIGH, WIDE)
        patches = tl.load(x + base[:, None] + (r * (WIDE * INTO) + offset)[None, :], mask=there, other=0.0)
        taken = tl.load(
            weights + k[:, None] * OUTOF + o[None, :], mask=(k < whole)[:, None] & (o < OUTOF)[None, :], other=0.0
        )
        sums = tl.dot(patches, taken, sums, input_precision=PRECISION)
    fits = (t < positions)[:, None] & (o < OUTOF)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + model * OUTOF + o, mask=o < OUTOF, other=0.0)[None, :]
    if RELU:
        sums = tl.where(sums <= 0, 0.0, sums)  # NaN stays NaN
    where = model * positions * OUTOF + t[:, None] * OUTOF + o[None, :]
    tl.store(out + where, sums, mask=fits)


@triton.jit
def _weights_kernel(
    x, back, out, bias_out, positions, each,
    HIGH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INTO: tl.constexpr, OUTOF: tl.constexpr, KERNEL_ROWS: tl.constexpr, KERNEL_COLUMNS: tl.constexpr,
    ABOVE: tl.constexpr, BEFORE: tl.constexpr, SHARES: tl.constexpr,
    AT_ONCE: tl.constexpr, OUT: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    whole: tl.constexpr = KERNEL_ROWS * KERNEL_COLUMNS * INTO
    along: tl.constexpr = KERNEL_COLUMNS * INTO
    padded: tl.constexpr = (ABOVE > 0) or (BEFORE > 0)
    tiles: tl.constexpr = (whole + STEP - 1) // STEP
    model = tl.program_id(1).to(tl.int64)
    share, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    k = tile * STEP + tl.arange(0, STEP)
    o = tl.program_id(2) * OUT + tl.arange(0, OUT)
    r, offset = k // along, k % along
    spread = (r * (WIDE * INTO) + offset)[None, :]
    records = positions // (ROWS * COLUMNS)
    x += model * records * (HIGH * WIDE * INTO)
    back += model * positions * OUTOF
    sums = tl.zeros((OUT, STEP), dtype=tl.float32)
    total = tl.zeros((OUT,), dtype=tl.float32)
    for start in range(share * each, tl.minimum(share * each + each, positions), AT_ONCE):
        t = start + tl.arange(0, AT_ONCE)
        record, rest = t // (ROWS * COLUMNS), t % (ROWS * COLUMNS)
        row, column = rest // COLUMNS - ABOVE, rest % COLUMNS - BEFORE
        base = ((record * HIGH + row) * WIDE + column) * INTO
        there = (t < positions)[:, None] & (k < whole)[None, :]
        if padded:
            there &= _inside(r, offset // INTO, row, column, HIGH, WIDE)
        given = tl.load(
            back + t[:, None] * OUTOF + o[None, :], mask=(t < positions)[:, None] & (o < OUTOF)[None, :], other=0.0
        )
        patches = tl.load(x + base[:, None] + spread, mask=there, other=0.0)
        sums = tl.dot(tl.trans(given), patches, sums, input_precision=PRECISION)
        total += tl.sum(given, 0)
    piece = model * SHARES + share
    tl.store(
        out + piece * (whole * OUTOF) + k[:, None] * OUTOF + o[None, :],
        tl.trans(sums), mask=(k < whole)[:, None] & (o < OUTOF)[None, :],
    )  # fmt: skip
    if tile == 0:
        tl.store(bias_out + piece * OUTOF + o, total, mask=o < OUTOF)


@triton.jit
def _pool_kernel(
    x, out, chosen, entries,
    HIGH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, rest = e % CHANNELS, e // CHANNELS
    q, rest = rest % COLUMNS, rest // COLUMNS
    p, record = rest % ROWS, rest // ROWS
    there = e < entries
    first = x + ((record * HIGH + 2 * p) * WIDE + 2 * q) * CHANNELS + c
    best = tl.load(first, mask=there, other=0.0)
    place = tl.zeros((BLOCK,), dtype=tl.int32)
    for other in tl.static_range(1, 4):
        value = tl.load(first + ((other // 2) * WIDE + other % 2) * CHANNELS, mask=there, other=0.0)
        larger = (value > best) | (value != value)
        best, place = tl.where(larger, value, best), tl.where(larger, other, place)
    tl.store(out + e, tl.where(best <= 0, 0.0, best), mask=there)
    tl.store(chosen + e, tl.where(best <= 0, 4, place).to(tl.uint8), mask=there)


@triton.jit
def _unpool_kernel(
    back, chosen, out, entries, b_record, b_channel, b_row, b_column,
    HIGH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, rest = e % CHANNELS, e // CHANNELS
    j, rest = rest % WIDE, rest // WIDE
    i, record = rest % HIGH, rest // HIGH
    p, q = i // 2, j // 2
    there = (e < entries) & (p < ROWS) & (q < COLUMNS)
    place = tl.load(chosen + ((record * ROWS + p) * COLUMNS + q) * CHANNELS + c, mask=there, other=4)
    hit = there & (place == (i % 2) * 2 + j % 2)
    value = tl.load(back + record * b_record + c * b_channel + p * b_row + q * b_column, mask=hit, other=0.0)
    tl.store(out + e, value, mask=e < entries)


@triton.jit
def _mask_kernel(seeds, sizes, threads, counters, out, entries, keep, scale, BLOCK: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of four numbers, which one thread of torch's kernel draws
    size, each = tl.load(sizes + model), tl.load(threads + model)
    counter = (tl.load(counters + model) + group // each).to(tl.uint32)
    thread, zero = (group % each).to(tl.uint32), (group * 0).to(tl.uint32)
    words = tl.philox(tl.load(seeds + model), counter, zero, thread, zero)
    for place in tl.static_range(4):
        where = group * 4 + place
        uniform = words[place].to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
        value = tl.where((uniform < keep) & (where < size), scale, 0.0)
        tl.store(out + model * entries + where, value, mask=where < entries)


_THREADS, _EACH = 256, 4  # of a block of torch's kernel for dropout, and how many numbers a thread draws at a time


def draw_masks(
    seeds: list[int], records: list[int], calls: list[tuple[float, tuple[int, ...]]], device: torch.device
) -> list[Tensor]:
    """The dropout masks that networks would draw alone, each from its own seed: one tensor per call of a dropout.

    Args:
        seeds: One per network.
        records: How many records each network's batch has; masks are zero for the rest.
        calls: By call, in their order: the share that is dropped, and the shape of the longest batch.
        device: The GPU.
    """
    card = torch.cuda.get_device_properties(device)
    most = card.multi_processor_count * (card.max_threads_per_multi_processor // _THREADS)
    keys = upload(np.array(seeds, np.int64), device)
    counters, found = [0] * len(seeds), []
    for dropped, shape in calls:
        out = torch.empty((len(seeds), *shape), dtype=torch.float32, device=device)
        entries = out[0].numel()
        sizes = [count * (entries // shape[0]) for count in records]
        threads = [_THREADS * min(most, -(-size // _THREADS)) for size in sizes]
        table = upload(np.array([sizes, threads, counters], np.int32), device)
        keep = torch.tensor(1.0 - dropped, dtype=torch.float32)
        groups = triton.cdiv(triton.cdiv(entries, _EACH), 256)
        with torch.cuda.device(device):
            _mask_kernel[(groups, len(seeds))](
                keys, *table, out, entries, float(keep), float((1.0 / keep.double()).float()), BLOCK=256
            )
        counters = [
            before + (size - 1) // (_EACH * each) + 1
            for before, size, each in zip(counters, sizes, threads, strict=True)
        ]
        found.append(out)
    return found


@functools.cache
def draws_masks(device: torch.device) -> bool:
    """Whether the kernel's masks on this GPU are those that torch draws, bit by bit."""
    place = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[place]
    before = generator.get_state()
    seeds, records = [3, 2**62 + 12_345, 77], [16, 5, 16]
    calls = [(0.25, (16, 70_000)), (0.5, (16, 4)), (0.1, (16, 36))]
    try:
        got = draw_masks(seeds, records, calls, device)
        for place, (seed, count) in enumerate(zip(seeds, records, strict=True)):
            generator.manual_seed(seed)
            for mask, (dropped, (width, each)) in zip(got, calls, strict=True):
                wanted = F.dropout(torch.ones((count, each), device=device), dropped, True)
                if not torch.equal(mask[place], F.pad(wanted, (0, 0, 0, width - count))):
                    return False
    except Exception:  # noqa: BLE001  a compiler that is missing or too old may raise anything
        return False
    finally:
        generator.set_state(before)
    return True


def convolve(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    kernel: tuple[int, int],
    padding: tuple[int, int],
    relu: bool = False,
) -> Tensor:
    """Every network's convolution of its own records, stride 1.

    Args:
        x: (networks, records, rows, columns, channels), dense.
        weights: (networks, kernel rows · kernel columns · channels, out).
        bias: (networks, out).
        kernel: Rows and columns.
        padding: Rows above and below, columns left and right.
        relu: Set negative outputs to zero.
    """
    models, records, high, wide, into = x.shape
    rows, columns = high + 2 * padding[0] - kernel[0] + 1, wide + 2 * padding[1] - kernel[1] + 1
    outof, positions = weights.shape[2], records * rows * columns
    _fits(records * high * wide * into, positions * outof)
    out = torch.empty((models, records, rows, columns, outof), dtype=torch.float32, device=x.device)
    tile = min(64, max(16, triton.next_power_of_2(outof)))
    step = min(32, max(16, triton.next_power_of_2(weights.shape[1])))
    at_once = 128 if into < 16 else 512
    stages = 1 if weights.shape[1] <= step else 3  # without pipelining, the loop gave wrong results for a 5 × 5 kernel
    grid = (triton.cdiv(positions, at_once), models, triton.cdiv(outof, tile))
    _convolve_kernel[grid](
        x, weights, weights if bias is None else bias, out, positions,
        high, wide, rows, columns, into, outof, *kernel, *padding,
        HAS_BIAS=bias is not None, RELU=relu,
        AT_ONCE=at_once, OUT=tile, STEP=step, PRECISION=_precision(),
        num_warps=4 if into < 16 else 8, num_stages=stages,
    )  # fmt: skip
    return out


def weight_gradients(
    x: Tensor, back: Tensor, kernel: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The gradients of `convolve` with respect to weights and bias, given the gradient of its output.

    Positions are divided among programs, whose sums are then added in a fixed order. Tile sizes, here and in
    `convolve`, are those that were fastest on an H200 for 1 to 64 channels.
    """
    models, records, high, wide, into = x.shape
    rows, columns, outof = back.shape[2:]
    positions, whole = records * rows * columns, kernel[0] * kernel[1] * into
    _fits(records * high * wide * into, positions * outof)
    tile = min(64, max(16, triton.next_power_of_2(outof)))
    step = min(64, max(16, triton.next_power_of_2(whole)))
    at_once = 64 if into < 16 else 16
    tiles = triton.cdiv(whole, step)
    shares = max(1, min(64, 8000 // (tiles * models), positions // (8 * at_once)))
    each = triton.cdiv(positions, shares * at_once) * at_once
    out = torch.empty((models, shares, whole, outof), dtype=torch.float32, device=x.device)
    bias = torch.empty((models, shares, outof), dtype=torch.float32, device=x.device)
    _weights_kernel[(shares * tiles, models, triton.cdiv(outof, tile))](
        x, back, out, bias, positions, each,
        high, wide, rows, columns, into, outof, *kernel, *padding, SHARES=shares,
        AT_ONCE=at_once, OUT=tile, STEP=step, PRECISION=_precision(),
        num_warps=1, num_stages=1 if into < 16 else 3,
    )  # fmt: skip
    return out.sum(1), bias.sum(1)


def relu_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU, then the maximum of 2 × 2, and its position (4 if none was positive); channels are last."""
    records, high, wide, channels = x.shape
    out = torch.empty((records, high // 2, wide // 2, channels), dtype=x.dtype, device=x.device)
    chosen = torch.empty(out.shape, dtype=torch.uint8, device=x.device)
    _pool_kernel[(triton.cdiv(out.numel(), 1024),)](
        x, out, chosen, out.numel(), high, wide, *out.shape[1:3], channels, BLOCK=1024
    )
    return out, chosen


def relu_pool_back(back: Tensor, chosen: Tensor, high: int, wide: int) -> Tensor:
    """The gradient of `relu_pool`; `back` is (records, channels, rows, columns), in any memory layout."""
    records, rows, columns, channels = chosen.shape
    out = torch.empty((records, high, wide, channels), dtype=back.dtype, device=back.device)
    _unpool_kernel[(triton.cdiv(out.numel(), 1024),)](
        back, chosen, out, out.numel(), *back.stride(), high, wide, rows, columns, channels, BLOCK=1024
    )
    return out


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _fits(*entries: int) -> None:
    if max(entries) > _LIMIT:
        raise ValueError(f"more than {_LIMIT} activations of one network")

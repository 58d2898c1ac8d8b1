"""The Triton kernels of `gaussian`; imported only if Triton is installed."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _quarter(a, b, c, d):
    """RFC 8439, section 2.1, on unsigned 32-bit lanes."""
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _block(words, counter):
    """RFC 8439, section 2.3, with nonce 0: sixteen words for every counter."""
    zero = counter * 0
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0 = zero + tl.load(words + 0).to(tl.uint32, bitcast=True)
    k1 = zero + tl.load(words + 1).to(tl.uint32, bitcast=True)
    k2 = zero + tl.load(words + 2).to(tl.uint32, bitcast=True)
    k3 = zero + tl.load(words + 3).to(tl.uint32, bitcast=True)
    k4 = zero + tl.load(words + 4).to(tl.uint32, bitcast=True)
    k5 = zero + tl.load(words + 5).to(tl.uint32, bitcast=True)
    k6 = zero + tl.load(words + 6).to(tl.uint32, bitcast=True)
    k7 = zero + tl.load(words + 7).to(tl.uint32, bitcast=True)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, counter, zero, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    x0, x1, x2, x3 = x0 + s0, x1 + s1, x2 + s2, x3 + s3
    x4, x5, x6, x7 = x4 + k0, x5 + k1, x6 + k2, x7 + k3
    x8, x9, x10, x11 = x8 + k4, x9 + k5, x10 + k6, x11 + k7
    x12 = x12 + counter
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def _uniform(low, high):
    """The midpoint of (0, 1) that 64 bits select; the upper 52 count."""
    bits = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    return ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _rint(x):
    """To the nearest whole number, ties to even, for |x| < 2^51: float64 rounds the sum itself."""
    shift = 6755399441055744.0
    return (x + shift) - shift


@triton.jit
def stream_kernel(words, out, blocks, LANES: tl.constexpr):
    """The key stream as 32-bit words: sixteen per block, block after block."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = lane < blocks
    x = _block(words, lane.to(tl.uint32))
    for i in tl.static_range(16):
        tl.store(out + lane.to(tl.int64) * 16 + i, x[i].to(tl.int32, bitcast=True), mask=live)


@triton.jit
def noise_kernel(value, out, stream, shape, numbers, count, pairs, SHAPED: tl.constexpr, LANES: tl.constexpr):
    """Pair p: radius from the stream's 64-bit word p, angle from word pairs + p; for coordinates p and pairs + p."""
    p = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = p < pairs
    scale, grid, back = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    low_r = tl.load(stream + 2 * p, mask=live, other=0).to(tl.uint32, bitcast=True)
    high_r = tl.load(stream + 2 * p + 1, mask=live, other=0).to(tl.uint32, bitcast=True)
    low_a = tl.load(stream + 2 * (pairs + p), mask=live, other=0).to(tl.uint32, bitcast=True)
    high_a = tl.load(stream + 2 * (pairs + p) + 1, mask=live, other=0).to(tl.uint32, bitcast=True)
    radius = tl.sqrt(-2.0 * tl.log(_uniform(low_r, high_r)))
    angle = _uniform(low_a, high_a) * 6.283185307179586
    _add(value, out, shape, p, radius * tl.sin(angle), live & (p < count), scale, grid, back, SHAPED)
    _add(value, out, shape, pairs + p, radius * tl.cos(angle), live & (pairs + p < count), scale, grid, back, SHAPED)


@triton.jit
def _add(value, out, shape, where, noise, inside, scale, grid, back, SHAPED: tl.constexpr):
    given = tl.load(value + where, mask=inside, other=0.0).to(tl.float64)
    scaled = noise * scale
    if SHAPED:
        scaled = scaled * tl.load(shape + where, mask=inside, other=0.0).to(tl.float64)
    total = _rint(given / grid) + _rint(scaled)
    tl.store(out + where, (total * back).to(tl.float32), mask=inside)

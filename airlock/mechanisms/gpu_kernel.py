"""The Triton kernel of `gpu_noise`; imported only where Triton is."""
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
    for _ in tl.static_range(10):
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
def _pair(value, out, place, low_r, high_r, low_a, high_a, pairs, count, ratio, grid, back):
    radius = tl.sqrt(-2.0 * tl.log(_uniform(low_r, high_r)))
    angle = _uniform(low_a, high_a) * 6.283185307179586
    first, second = radius * tl.sin(angle), radius * tl.cos(angle)
    for half in tl.static_range(2):
        noise = first if half == 0 else second
        where = place + half * pairs
        inside = where < count
        given = tl.load(value + where, mask=inside, other=0.0).to(tl.float64)
        total = _rint(given / grid) + _rint(noise * ratio)
        tl.store(out + where, (total * back).to(tl.float32), mask=inside)


@triton.jit
def noise_kernel(value, out, words, numbers, count, instances, LANES: tl.constexpr):
    """Sixteen coordinates an instance: pairs 8t to 8t + 7, first halves and second halves of the output."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = lane < instances
    ratio, grid, back = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    pairs = instances * 8
    r = _block(words, lane.to(tl.uint32))
    a = _block(words, (lane + instances).to(tl.uint32))
    place = tl.where(live, lane * 8, count)
    for i in tl.static_range(8):
        here = tl.where(live, place + i, count)
        _pair(value, out, here, r[2 * i], r[2 * i + 1], a[2 * i], a[2 * i + 1], pairs, count, ratio, grid, back)

"""The privacy stream: the right cipher, the right distributions, and nothing used twice."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from scipy import stats

from airlock.mechanisms import Randomness, Stream


def test_the_key_stream_is_chacha20() -> None:
    """RFC 8439, appendix A.1, test vector 1: key 0, nonce 0, counter 0."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert Stream(bytes(32), secure=False).key_stream(64).tobytes() == expected


def test_long_reads_continue_the_counter() -> None:
    """Block by block from an independent ChaCha20 (RFC 8439, section 2.3), across the reads' own block size."""
    key = hashlib.sha256(b"key").digest()
    stream = Stream(key, secure=False).key_stream((1 << 18) + 64).tobytes()
    for counter in (0, 1, (1 << 12) - 1, 1 << 12):
        assert stream[64 * counter : 64 * counter + 64] == chacha_block(key, counter)


def chacha_block(key: bytes, counter: int) -> bytes:
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    start += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)] + [counter, 0, 0, 0]
    x = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for p, q, r, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) & 0xFFFFFFFF
            mixed = x[r] ^ x[p]
            x[r] = ((mixed << bits) | (mixed >> (32 - bits))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return b"".join(((a + b) & 0xFFFFFFFF).to_bytes(4, "little") for a, b in zip(x, start, strict=True))


def test_a_leaf_is_read_once_and_a_label_opened_once() -> None:
    stream = Stream.from_seed(1)
    leaf = stream.child("noise", 3)
    leaf.normal(4)
    with pytest.raises(RuntimeError, match="twice"):
        leaf.normal(4)
    with pytest.raises(RuntimeError, match="twice"):
        stream.child("noise", 3)


@pytest.mark.system_randomness
def test_system_streams_differ_and_seeded_ones_repeat() -> None:
    assert not np.array_equal(Stream.from_system().normal(8), Stream.from_system().normal(8))
    assert np.array_equal(Stream.from_seed(7).child("a").normal(9), Stream.from_seed(7).child("a").normal(9))
    one = Stream.from_seed(7)
    assert not np.array_equal(one.child("a", 1).normal(8), one.child("a", 2).normal(8))
    assert Stream.from_system().secure
    assert not Stream.from_seed(7).secure
    assert Randomness.make(0).privacy.secure
    assert not Randomness.make(0, insecure_seed=0).privacy.secure


def test_a_tree_remembers_where_its_noise_was_computed() -> None:
    root = Stream.from_seed(1)
    root.child("lots").child("lot", 3).uniform(5)
    assert root.drawn_on == ()  # which records are drawn is no noise
    leaf = root.child("gradients").child("noise", 0)
    leaf.normal(4)
    assert root.drawn_on == leaf.drawn_on == ("cpu",)
    leaf.note_drawn("gpu")
    assert root.drawn_on == ("cpu", "gpu")
    assert Stream.from_seed(1).drawn_on == ()


def test_the_key_is_not_shown() -> None:
    assert repr(Stream.from_system()) == "Stream(system)"


def test_uniform_is_uniform() -> None:
    values = Stream.from_seed(11).uniform(200_000)
    assert 0 < values.min() < values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 70_001])
def test_any_count_of_normals(count: int) -> None:
    assert Stream.from_seed(count).normal(count).shape == (count,)


def test_normal_is_standard_normal_with_independent_pairs() -> None:
    values = Stream.from_seed(5).normal(400_000)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert abs(stats.kurtosis(values)) < 0.05
    half = len(values) // 2
    for a, b in ((values[:half], values[half:]), (values[:-1], values[1:])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.01
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < 0.01
    assert (np.abs(values) > 4).mean() == pytest.approx(2 * stats.norm.sf(4), abs=8e-5)


def test_a_stream_that_is_shared_begins_no_noise_anew() -> None:
    lead, other = Stream.from_seed(1), Stream.from_seed(2)
    lead.child("noise", 0).normal(3)
    key = lead.take_key()
    here, there = lead.shared(key), other.shared(key)
    with pytest.raises(RuntimeError, match="twice"):
        here.child("noise", 0)
    assert np.array_equal(here.child("noise", 1).normal(3), there.child("noise", 1).normal(3))
    assert np.array_equal(there.shared(key).child("noise", 2).normal(3), here.child("noise", 2).normal(3))
    assert lead.drawn_on == other.drawn_on == ("cpu",)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 300_001])
@pytest.mark.parametrize("ranges", [1, 2, 3, 7])
def test_numbers_drawn_range_by_range_are_those_drawn_at_once(count: int, ranges: int) -> None:
    """In any order, and across the blocks of the cipher."""
    wanted, got = Stream.from_seed(1).normal(count), np.full(count, np.nan)
    normals = Stream.from_seed(1).normals(count)
    ends = np.linspace(0, count, ranges + 1).astype(int)
    for start, stop in reversed(list(itertools.pairwise(ends))):
        for place, block in normals.blocks(int(start), int(stop)):
            got[place : place + len(block)] = block.numpy()
    assert np.allclose(got, wanted, rtol=0, atol=1e-12)  # a logarithm may be rounded differently elsewhere in an array


def test_no_number_is_drawn_twice() -> None:
    stream = Stream.from_seed(1)
    normals = stream.normals(100)
    list(normals.blocks(10, 20))
    list(normals.blocks(20, 30))
    for start, stop in [(10, 11), (0, 100), (15, 25), (29, 40), (0, 11)]:
        with pytest.raises(RuntimeError, match="twice"):
            list(normals.blocks(start, stop))
    for start, stop in [(-1, 5), (90, 101), (50, 40)]:
        with pytest.raises(RuntimeError, match="among 100 numbers"):
            list(normals.blocks(start, stop))
    with pytest.raises(RuntimeError, match="twice"):
        stream.normal(100)
    assert stream.drawn_on == ("cpu",)

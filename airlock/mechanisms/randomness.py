"""Where randomness comes from.

There are two kinds, never mixed:

* *training randomness* (initialisation, batch order without privacy) follows the config's seed and is public;
* *privacy randomness* (noise, which records enter a lot, how they are augmented there) comes from a `Stream`: ChaCha20
  (RFC 8439) under a 256-bit key from the operating system. The key is never written anywhere, except that of a search,
  which stays in the vault until it is finished (`methods.search`). A seeded stream exists for tests and for reproducing
  a run; it voids the guarantee against anyone who knows the seed, and the card says so.

A stream is a tree: `stream.child("noise", 17)` is an independent stream. A leaf can be read once and a child can be
opened once, because the same noise added twice could be subtracted. The whole tree records where its noise was
computed, for the card.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Place = Literal["cpu", "gpu"]

_BLOCK = 1 << 16  # pairs; one block of the Box–Muller transform fits in the cache and occupies several threads
_ZEROS = bytes(1 << 17)
_WORDS = 8  # of 64 bits, in a block of the cipher


class Stream:
    """A one-time cryptographic stream keyed by the operating system, or by a seed for tests."""

    def __init__(self, key: bytes, secure: bool, drawn: set[Place] | None = None) -> None:
        self._key, self.secure = key, secure
        self._drawn: set[Place] = set() if drawn is None else drawn  # one set for the whole tree
        self._opened: set[tuple[str | int, ...]] = set()
        self._read = False

    @classmethod
    def from_system(cls) -> Stream:
        """Keyed by 256 bits of the operating system's generator."""
        return cls(os.urandom(32), secure=True)

    @classmethod
    def from_seed(cls, seed: int) -> Stream:
        """Keyed by a seed: anyone who knows it can remove the noise."""
        return cls(hashlib.sha256(b"airlock insecure seed %d" % seed).digest(), secure=False)

    def child(self, *label: str | int) -> Stream:
        """An independent stream for this label; every label can be opened once."""
        if label in self._opened:
            raise RuntimeError(f"privacy randomness {label} was already used; noise must never be used twice")
        self._opened.add(label)
        return Stream(hashlib.sha256(self._key + repr(label).encode()).digest(), self.secure, self._drawn)

    @property
    def drawn_on(self) -> tuple[Place, ...]:
        """Where noise of this tree has been computed so far; the choice of lots is not noise."""
        return tuple(sorted(self._drawn))

    def note_drawn(self, *places: Place) -> None:
        """Record where noise was computed. `normal` does so itself; code that makes noise in another way calls this."""
        self._drawn.update(places)

    def key_stream(self, count: int) -> NDArray[np.uint8]:
        """`count` bytes of the key stream; a stream can be read once."""
        self._spend()
        stream = np.empty(count, np.uint8)
        _Words(self._key).fill(stream)
        return stream

    def take_key(self) -> bytes:
        """The ChaCha20 key, for a kernel that generates the same stream elsewhere; counts as reading it."""
        self._spend()
        return self._key

    def _spend(self) -> None:
        if self._read:
            raise RuntimeError("this stream was already read; noise must never be used twice")
        self._read = True

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Uniform on the 2^52 midpoints of (0, 1): never 0, never 1, and exact in float64."""
        import torch

        self._spend()
        values = torch.empty(count, dtype=torch.float64)
        _Words(self._key).midpoints(values)
        return values.numpy()

    def uniform_blocks(self, count: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """The same numbers, each block with its first position; it is valid until the next one is requested."""
        import torch

        self._spend()
        words, room = _Words(self._key), torch.empty(min(count, _BLOCK), dtype=torch.float64)
        for start in range(0, count, _BLOCK):
            part = room[: count - start]
            words.midpoints(part)
            yield start, part.numpy()

    def normal(self, count: int) -> NDArray[np.float64]:
        """Standard normal numbers, all at once."""
        values = np.empty(count)
        for start, block in self.normal_blocks(count):
            values[start : start + len(block)] = block.numpy()
        return values

    def normal_blocks(self, count: int, scale: float = 1.0) -> Iterator[tuple[int, Tensor]]:
        """Normal numbers of this scale, by Box and Muller (1958), in float64: each block with its first position.

        Pair p takes its radius from the stream's 64-bit word p and its angle from word pairs + p, and gives the numbers
        p and pairs + p. A block is valid until the next one is requested, which reuses its memory: allocating would
        cost more than the numbers.
        """
        import torch

        self._spend()
        self.note_drawn("cpu")
        pairs = _pairs(count)
        radii, angles = _Words(self._key), _Words(self._key, skip=pairs // _WORDS)
        room = torch.empty(3, min(pairs, _BLOCK), dtype=torch.float64)
        for start in range(0, pairs, _BLOCK):
            radius, angle, out = room[:, : min(_BLOCK, pairs - start)]
            _polar(radii, angles, radius, angle, scale)
            torch.sin(angle, out=out).mul_(radius)
            yield start, out[: count - start]
            angle.cos_().mul_(radius)
            if count > pairs + start:
                yield pairs + start, angle[: count - pairs - start]

    def normals(self, count: int) -> Normals:
        """The numbers of `normal(count)`, to be drawn range by range."""
        self._spend()
        return Normals(self, self._key, count)

    def shared(self, key: bytes) -> Stream:
        """The stream that another process read this key from, in place of this one.

        What was opened of this one stays opened, and where its noise is computed is recorded in this tree.
        """
        found = Stream(key, self.secure, self._drawn)
        found._opened = self._opened
        return found

    def __repr__(self) -> str:
        return f"Stream({'system' if self.secure else 'insecure seed'})"


class Normals:
    """Normal numbers that can be drawn from any position on: number i of `count` is the same, whoever draws it.

    Several processes that hold one key each draw the ranges that they own. A position can be drawn once.
    """

    def __init__(self, stream: Stream, key: bytes, count: int) -> None:
        self.count = count
        self._stream, self._key, self._drawn = stream, key, [(0, 0)]

    def blocks(self, start: int, stop: int, scale: float = 1.0) -> Iterator[tuple[int, Tensor]]:
        """The numbers from `start` to before `stop` at this scale: each block with its first position."""
        import torch

        self._spend(start, stop)
        self._stream.note_drawn("cpu")
        pairs = _pairs(self.count)
        for first, last, half in ((start, min(stop, pairs), torch.sin_), (max(start, pairs), stop, torch.cos_)):
            shift = 0 if half is torch.sin_ else pairs
            for place, block in self._half(first - shift, last - shift, half, scale):
                yield place + shift, block

    def _half(
        self, start: int, stop: int, half: Callable[[Tensor], Tensor], scale: float
    ) -> Iterator[tuple[int, Tensor]]:
        """One number from each of these pairs; whole blocks of the cipher are computed, as in `normal_blocks`."""
        import torch

        first, skip = start // _WORDS * _WORDS, start // _WORDS
        radii = _Words(self._key, skip=skip)
        angles = _Words(self._key, skip=_pairs(self.count) // _WORDS + skip)
        end = -(-stop // _WORDS) * _WORDS
        room = torch.empty(2, max(0, min(end - first, _BLOCK)), dtype=torch.float64)
        for place in range(first, end if start < stop else first, _BLOCK):
            radius, angle = room[:, : min(_BLOCK, end - place)]
            _polar(radii, angles, radius, angle, scale)
            half(angle).mul_(radius)
            inside = max(start, place)
            yield inside, angle[inside - place : stop - place]

    def _spend(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.count:
            raise RuntimeError(f"positions {start} to {stop} are not among {self.count} numbers")
        if any(start < end and begin < stop for begin, end in self._drawn):
            raise RuntimeError("some of these numbers were already drawn; noise must never be used twice")
        self._drawn.append((start, stop))


def _pairs(count: int) -> int:
    """How many pairs of normal numbers are made for so many: whole blocks of the cipher."""
    return -(-count // (2 * _WORDS)) * _WORDS


def _polar(radii: _Words, angles: _Words, radius: Tensor, angle: Tensor, scale: float) -> None:
    """The next radii, times the scale, and angles of Box and Muller."""
    radii.midpoints(radius)
    angles.midpoints(angle)
    radius.log_().mul_(-2.0 * scale * scale).sqrt_()
    angle.mul_(2.0 * math.pi)


class _Words:
    """The key stream from a given 64-byte block onwards, written into the caller's arrays in turn."""

    def __init__(self, key: bytes, skip: int = 0) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(key, skip.to_bytes(16, "little")), mode=None).encryptor()

    def fill(self, room: NDArray[np.generic]) -> None:
        """The next bytes; a stream cipher applied to zeros gives its key stream."""
        flat = room.view(np.uint8)
        for start in range(0, len(flat), len(_ZEROS)):
            part = flat[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS if len(part) == len(_ZEROS) else _ZEROS[: len(part)], part.data)

    def midpoints(self, room: Tensor) -> None:
        """Uniform on the 2^52 midpoints of (0, 1), from one 64-bit word each: its upper bits k give (k + 1/2) / 2^52.

        Exact: the bits are placed after the exponent of 1, and 1 - 2^-53 is subtracted.
        """
        import torch

        self.fill(room.numpy())
        bits = room.view(torch.int64)
        bits.bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1).bitwise_or_(0x3FF << 52)
        room.sub_(1.0 - 2.0**-53)


@dataclass(frozen=True)
class Randomness:
    """Both kinds together: a public seed for training, a secret stream for privacy."""

    seed: int
    privacy: Stream

    @classmethod
    def make(cls, seed: int, insecure_seed: int | None = None) -> Randomness:
        """Secure unless an insecure seed is given."""
        return cls(seed, Stream.from_system() if insecure_seed is None else Stream.from_seed(insecure_seed))

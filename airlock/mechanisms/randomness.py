"""Where chance comes from.

Two kinds, never mixed:

* *training randomness* (initialisation, batch order, augmentation) follows the config's seed and is public;
* *privacy randomness* (noise, and which records enter a lot) comes from a `Stream`: ChaCha20 (RFC 8439) under a
  256-bit key from the operating system. The key is never written anywhere. A seeded stream exists for tests and for
  reproducing a run; it voids the guarantee against whoever knows the seed, and the card says so.

A stream is a tree: `stream.child("noise", 17)` is an independent stream. A leaf can be read once and a child can be
opened once, because the same noise added twice could be subtracted.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

_BLOCK = 1 << 14  # pairs; one block of the Box–Muller transform stays in the cache
_ZEROS = bytes(1 << 18)  # a stream cipher applied to zeros gives its key stream


class Stream:
    """A one-time cryptographic stream keyed by the operating system, or by a seed for tests."""

    def __init__(self, key: bytes, secure: bool) -> None:
        self._key, self.secure = key, secure
        self._opened: set[tuple[str | int, ...]] = set()
        self._read = False

    @classmethod
    def from_system(cls) -> Stream:
        """Keyed by 256 bits of the operating system's generator."""
        return cls(os.urandom(32), secure=True)

    @classmethod
    def from_seed(cls, seed: int) -> Stream:
        """Keyed by a seed: whoever knows it can take the noise off again."""
        return cls(hashlib.sha256(b"airlock insecure seed %d" % seed).digest(), secure=False)

    def child(self, *label: str | int) -> Stream:
        """An independent stream for this label; every label can be opened once."""
        if label in self._opened:
            raise RuntimeError(f"privacy randomness {label} was already used; noise must never be used twice")
        self._opened.add(label)
        return Stream(hashlib.sha256(self._key + repr(label).encode()).digest(), self.secure)

    def key_stream(self, count: int) -> NDArray[np.uint8]:
        """`count` bytes of the key stream; a stream can be read once."""
        self._spend()
        cipher = Cipher(algorithms.ChaCha20(self._key, bytes(16)), mode=None).encryptor()
        stream = np.empty(-(-count // len(_ZEROS)) * len(_ZEROS), np.uint8)
        for start in range(0, len(stream), len(_ZEROS)):
            cipher.update_into(_ZEROS, stream[start : start + len(_ZEROS)].data)
        return stream[:count]

    def take_key(self) -> bytes:
        """The ChaCha20 key, for a kernel that makes this very stream elsewhere; counts as reading it."""
        self._spend()
        return self._key

    def _spend(self) -> None:
        if self._read:
            raise RuntimeError("this stream was already read; noise must never be used twice")
        self._read = True

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Uniform on the 2^52 midpoints of (0, 1): never 0, never 1, and exact in float64."""
        return _midpoints(self.key_stream(8 * count).view("<u8"))

    def normal(self, count: int) -> NDArray[np.float64]:
        """Standard normal, by Box and Muller (1958), in float64; radii first, then angles, in whole cipher blocks."""
        pairs = -(-count // 16) * 8
        bits = self.key_stream(16 * pairs).view("<u8").reshape(2, pairs)
        values = np.empty((2, pairs))
        for start in range(0, pairs, _BLOCK):
            block = slice(start, start + _BLOCK)
            radius = np.log(_midpoints(bits[0, block]))
            radius *= -2.0
            np.sqrt(radius, out=radius)
            angle = torch.from_numpy(_midpoints(bits[1, block])).mul_(2.0 * np.pi)
            np.multiply(radius, torch.sin(angle).numpy(), out=values[0, block])
            np.multiply(radius, torch.cos(angle).numpy(), out=values[1, block])
        return values.reshape(-1)[:count]

    def __repr__(self) -> str:
        return f"Stream({'system' if self.secure else 'insecure seed'})"


def _midpoints(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    values = (bits >> np.uint64(12)).astype(np.float64)
    values += 0.5
    values *= 2.0**-52
    return values


@dataclass(frozen=True)
class Randomness:
    """Both kinds side by side: a public seed for training, a secret stream for privacy."""

    seed: int
    privacy: Stream

    @classmethod
    def make(cls, seed: int, insecure_seed: int | None = None) -> Randomness:
        """Secure unless an insecure seed is given."""
        return cls(seed, Stream.from_system() if insecure_seed is None else Stream.from_seed(insecure_seed))

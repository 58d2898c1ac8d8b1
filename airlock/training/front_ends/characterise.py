"""What features reveal and how useful they are, measured on public data for many front ends at once.

A point is a prefix of m layers, some of its output channels, and a seed. Its utility is the test accuracy of the
paper's classifier trained on the features, its privacy loss the mean PSNR of the paper's reconstructor on test images
(`training.front_ends.probe_networks`).

Every result is a cell cached under the hash of everything that determines it, so that an interrupted run can continue
and a second one costs nothing. The PSNR of one trained reconstructor is a lower bound on what leaks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from airlock.data import Records, digest
from airlock.errors import DataError, NetError
from airlock.nets.prefix import Prefix
from airlock.training.devices import give_back
from airlock.training.front_ends.probe_networks import PAPER as PAPER
from airlock.training.front_ends.probe_networks import QUICK as QUICK
from airlock.training.front_ends.probe_networks import Effort as Effort
from airlock.training.front_ends.probe_networks import Judges, Kind, Sets
from airlock.training.front_ends.probe_networks import Learning as Learning
from airlock.training.front_ends.probe_networks import Point as Point
from airlock.training.loop import Run

_VERSION = 1  # of networks and training: a change must change every key


@dataclass(frozen=True)
class Measurement:
    """What was measured at a point; None if it was not requested."""

    point: Point
    utility: float | None = None
    psnr: float | None = None


@dataclass(frozen=True)
class Characterisation:
    """Everything that was measured for one front end on one public set.

    Args:
        front: Its name.
        public: The name of the public set.
        widths: The number of channels after m layers.
        cells: The results.
    """

    front: str
    public: str
    widths: Mapping[int, int]
    cells: tuple[Measurement, ...] = field(repr=False)

    def surface(self, kind: Kind) -> dict[tuple[int, int], list[float]]:
        """Values of all seeds and draws by (m, D')."""
        found: dict[tuple[int, int], list[float]] = {}
        for cell in self.cells:
            value = cell.utility if kind == "utility" else cell.psnr
            if value is not None:
                found.setdefault((cell.point.layers, len(cell.point.channels)), []).append(value)
        return dict(sorted(found.items()))

    def mean(self, kind: Kind) -> dict[tuple[int, int], float]:
        """The surface, averaged."""
        return {place: float(np.mean(values)) for place, values in self.surface(kind).items()}

    def single(self, kind: Kind, layers: int) -> dict[int, float]:
        """The scores of single channels after `layers` layers, averaged over seeds."""
        found: dict[int, list[float]] = {}
        for cell in self.cells:
            value = cell.utility if kind == "utility" else cell.psnr
            if cell.point.layers == layers and len(cell.point.channels) == 1 and value is not None:
                found.setdefault(cell.point.channels[0], []).append(value)
        return {channel: float(np.mean(values)) for channel, values in sorted(found.items())}

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        cells = [
            {"m": c.point.layers, "channels": list(c.point.channels), "seed": c.point.seed, "utility": c.utility,
             "psnr": c.psnr}
            for c in self.cells
        ]  # fmt: skip
        widths = {str(m): width for m, width in self.widths.items()}
        return {"front": self.front, "public": self.public, "widths": widths, "cells": cells}

    @classmethod
    def from_dict(cls, table: Mapping[str, object]) -> Characterisation:
        """Read back the output of `to_dict`.

        Raises:
            DataError: It is not a characterisation.
        """
        try:
            cells = tuple(
                Measurement(Point(int(c["m"]), tuple(map(int, c["channels"])), int(c["seed"])), c["utility"], c["psnr"])
                for c in table["cells"]  # type: ignore[attr-defined]
            )
            widths = {int(m): int(width) for m, width in table["widths"].items()}  # type: ignore[attr-defined]
            return cls(str(table["front"]), str(table["public"]), widths, cells)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                "a characterisation, as `airlock features characterise` writes it", "another file"
            ) from error


def grid(widths: Mapping[int, int], depths: Sequence[int], draws: int = 1, seed: int = 0) -> tuple[Point, ...]:
    """Random channel subsets: `draws` of them for every m and every possible D'."""
    points = []
    for m, width in widths.items():
        for depth in depths:
            if depth > width:
                continue
            for draw in range(draws):
                chance = np.random.default_rng([seed, m, depth, draw])
                own = np.sort(chance.choice(width, depth, replace=False))
                points.append(Point(m, tuple(own.tolist()), draw))
    return tuple(points)


def singles(layers: int, width: int, seed: int = 0) -> tuple[Point, ...]:
    """Every single channel."""
    return tuple(Point(layers, (channel,), seed) for channel in range(width))


def characterise(
    fronts: Mapping[int, Prefix],
    public: Records,
    classes: int,
    points: Sequence[Point],
    run: Run,
    effort: Effort | None = None,
    kinds: Sequence[Kind] = ("utility", "privacy"),
    name: str = "public data",
    cache: Path | None = None,
) -> Characterisation:
    """Measure the points on public records.

    Args:
        fronts: The complete prefix of m layers, for every m that a point names.
        public: Records that need no protection; the last `effort.test_records` of a shuffle are the test set.
        classes: The number of classes.
        points: The points to measure.
        run: Where to compute; its progress counts cells.
        effort: How thoroughly to measure.
        kinds: Which quantities to measure.
        name: The name of the public set.
        cache: Where results are cached; the user's cache folder when left out.

    Raises:
        NetError: A point names a prefix or channels that do not exist.
        DataError: There are too few public records.
        Interrupted: Ctrl-C; what was measured so far is kept.
    """
    effort = effort or Effort()
    _check(fronts, points)
    sets = Sets(public, effort)
    store = _Store(cache, fronts, digest(public), classes, effort)
    found: dict[tuple[Kind, Point], float] = {}
    work = [(kind, m, own) for m in sorted(fronts) for kind in kinds for own in _chunks(points, m, effort.at_once)]
    missing: list[tuple[Kind, int, list[Point]]] = []
    for kind, m, own in work:
        kept = {point: store.read(kind, point) for point in own}
        found |= {(kind, point): value for point, value in kept.items() if value is not None}
        left = [point for point, value in kept.items() if value is None]
        missing += [(kind, m, left)] if left else []
    total, done = sum(len(own) for *_, own in missing), 0
    for kind, m, own in missing:
        values = Judges(kind, fronts[m], own, classes, sets, effort, run).measure()
        for point, value in zip(own, values, strict=True):
            found[kind, point] = value
            store.write(kind, point, value)
        give_back()
        done += len(own)
        if run.progress:
            run.progress("characterising", done, total)
    cells = tuple(Measurement(p, found.get(("utility", p)), found.get(("privacy", p))) for p in points)
    front = next(iter(fronts.values()))
    return Characterisation(front.name, name, {m: prefix.channels for m, prefix in fronts.items()}, cells)


def _check(fronts: Mapping[int, Prefix], points: Sequence[Point]) -> None:
    for point in points:
        front = fronts.get(point.layers)
        if front is None:
            raise NetError(f"a prefix of {point.layers} layers", "none")
        if not point.channels or not set(point.channels) <= set(range(front.channels)):
            raise NetError(
                f"channels among the {front.channels} after {point.layers} layers",
                f"{len(point.channels)} channels up to {max(point.channels, default=-1)}",
            )


def _chunks(points: Sequence[Point], m: int, at_once: int) -> Iterator[list[Point]]:
    """Points of one m that are trained together: grouped by similar width, so that little padding is computed."""
    own = sorted({p for p in points if p.layers == m}, key=lambda p: (len(p.channels), p.seed, p.channels))
    for start in range(0, len(own), at_once):
        yield own[start : start + at_once]


class _Store:
    """Results on disk, one small file each, keyed by the hash of everything that determines them."""

    def __init__(
        self, folder: Path | None, fronts: Mapping[int, Prefix], data: str, classes: int, effort: Effort
    ) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(root) / "airlock" / "characterised"
        self.data, self.classes, self.effort = data, classes, effort
        self.fronts = {m: _fingerprint(prefix) for m, prefix in fronts.items()}

    def _file(self, kind: Kind, point: Point) -> Path:
        how = (self.effort.utility if kind == "utility" else self.effort.privacy).model_dump()
        key = [_VERSION, kind, self.fronts[point.layers], self.data, self.classes, how, self.effort.test_records]
        text = json.dumps([*key, self.effort.seed, list(point.channels), point.seed], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def read(self, kind: Kind, point: Point) -> float | None:
        try:
            value = json.loads(self._file(kind, point).read_text())["value"]
            return float(value)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, kind: Kind, point: Point, value: float) -> None:
        """Best effort: a cache that cannot be written only costs time."""
        with contextlib.suppress(OSError):
            target = self._file(kind, point)
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_suffix(f".{os.getpid()}.part")
            aside.write_text(json.dumps({"value": value}))
            os.replace(aside, target)


def _fingerprint(prefix: Prefix) -> str:
    """SHA-256 of a prefix: its layers and its tensors."""
    found = hashlib.sha256(repr((prefix.name, prefix.names, prefix.image_shape, prefix.widths)).encode())
    for key, value in sorted(prefix.state_dict().items()):
        found.update(key.encode())
        found.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return found.hexdigest()

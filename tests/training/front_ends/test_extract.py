"""Extraction: who computes changes nothing, queues stay short, and a run that goes on keeps what is finished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.data import feature_files as ff
from airlock.data.feature_files import Layout
from airlock.errors import Interrupted, TrainingError
from airlock.mechanisms import LocalGaussian, Stream
from airlock.training import Run
from airlock.training.front_ends import extract as ex
from airlock.training.front_ends.extract import Extraction, Ordered, extract, feature_shape

LAYOUT = Layout((3, 4, 4), "parquet", "float32", per_shard=600)
N = 1500


def front() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU()).requires_grad_(False)


@pytest.fixture(scope="module")
def records() -> Records:
    rng = np.random.default_rng(0)
    return Records(rng.integers(0, 256, (N, 1, 8, 8), np.uint8), rng.integers(0, 3, N))


def noisy(features: Tensor, labels: NDArray[np.int64], stream: Stream) -> tuple[Any, Any]:
    return LocalGaussian(1.0, 1.0).add(features, stream), labels


def made(records: Records, folder: Path, order: NDArray[np.int64] | None = None, **more: Any) -> Records:
    run = more.pop("run", Run())
    source = Ordered(records, np.arange(N) if order is None else order)
    shards = extract(front(), source, LAYOUT, folder, run, mark=more.pop("mark", "m"), **more)
    return ff.load(folder, ff.make_manifest(LAYOUT, "abc", None, shards))


def wanted(records: Records) -> NDArray[np.float32]:
    with torch.no_grad():
        return front()(torch.from_numpy(records.x).float() / 255).numpy()


def test_features_are_those_of_the_records_in_order(records: Records, tmp_path: Path) -> None:
    assert feature_shape(front(), (1, 8, 8)) == LAYOUT.shape
    seen: list[tuple[str, int, int]] = []
    order = np.random.default_rng(1).permutation(N)
    found = made(records, tmp_path / "f", order, run=Run(progress=lambda *step: seen.append(step)))
    np.testing.assert_allclose(found.x, wanted(records)[order], atol=1e-5)
    np.testing.assert_array_equal(found.y, records.y[order])
    assert seen[-1] == ("features", N, N)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "f").iterdir())


def test_processes_compute_the_same(records: Records, tmp_path: Path) -> None:
    found = made(records, tmp_path, how=Extraction(workers=1))
    np.testing.assert_allclose(found.x, wanted(records), atol=1e-5)


def test_noise_is_added_before_anything_is_written(records: Records, tmp_path: Path) -> None:
    found = made(records, tmp_path, protect=noisy, stream=Stream.from_seed(1))
    clean = LocalGaussian(1.0, 1.0).clip(torch.from_numpy(wanted(records))).reshape(N, 3, 4, 4).numpy()
    assert abs((found.x - clean).std() / 2 - 1) < 0.02
    again = made(records, tmp_path, protect=noisy, stream=Stream.from_seed(2))
    assert (found.x != again.x).mean() > 0.99


def test_a_run_that_goes_on_keeps_finished_shards_and_draws_fresh_noise(records: Records, tmp_path: Path) -> None:
    """One noisy version of a record is all that is ever there."""

    def stop(block: Any, *rest: Any) -> Any:
        if threading.current_thread().name == "features" and len(list(tmp_path.glob("features-*.parquet"))) == 1:
            raise OSError(28, "No space left on device")
        return noisy(block, *rest)

    with pytest.raises(OSError, match="No space"):
        made(records, tmp_path, protect=stop, stream=Stream.from_seed(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["features-00000.parquet", "features.mark"]
    first = (tmp_path / "features-00000.parquet").read_bytes()
    stream = Stream.from_seed(2)
    found = made(records, tmp_path, run=Run(resume=True), protect=noisy, stream=stream)
    assert (tmp_path / "features-00000.parquet").read_bytes() == first
    assert len(found) == N
    assert stream.drawn_on == ("cpu",)
    done = Stream.from_seed(3)
    again = made(records, tmp_path, run=Run(resume=True), protect=noisy, stream=done)
    np.testing.assert_array_equal(again.x, found.x)  # nothing is drawn twice
    assert done.drawn_on == ("cpu",)  # the card says that there is noise
    with pytest.raises(TrainingError, match="this very extraction"):
        made(records, tmp_path, run=Run(resume=True), mark="other records")
    fresh = made(records, tmp_path, protect=noisy, stream=Stream.from_seed(4))
    assert (fresh.x != found.x).mean() > 0.99  # without --resume nothing old is left


def test_ctrl_c_keeps_whole_shards(records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[int] = []

    class Watch:
        def __enter__(self) -> Callable[[], bool]:
            return lambda: len(pressed) >= 4

        def __exit__(self, *rest: object) -> None:
            return None

    monkeypatch.setattr(ex, "watch_interrupt", Watch)
    with pytest.raises(Interrupted, match="856 of 1,500"):
        made(records, tmp_path, run=Run(progress=lambda *step: pressed.append(1)))
    assert not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    assert len(made(records, tmp_path, run=Run(resume=True))) == N


def test_no_more_blocks_wait_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are made on the way; a slow writer holds the front end back instead of filling the memory."""
    monkeypatch.setattr(ex, "_BLOCK", 10)
    read, written, largest = [0], [0], [0]

    class Endless:
        def __len__(self) -> int:
            return 3000

        def block(self, where: slice) -> Records:
            read[0] += where.stop - where.start
            largest[0] = max(largest[0], read[0] - written[0])
            return Records(np.zeros((where.stop - where.start, 1, 8, 8), np.uint8), np.zeros(10, np.int64))

    def slow(features: Tensor, labels: NDArray[np.int64], stream: Stream) -> tuple[Any, Any]:
        threading.Event().wait(0.0005)
        written[0] += len(labels)
        return features.numpy(), labels

    how = Extraction(queue=2)
    shards = extract(
        front(), Endless(), LAYOUT, tmp_path, Run(), mark="m", protect=slow, stream=Stream.from_seed(0), how=how
    )
    assert sum(shard.records for shard in shards) == 3000
    assert largest[0] <= 10 * (2 + 2)  # those that wait, the one being written, the one being computed

"""What one process may plan with on a GPU that it shares."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from airlock.training import devices
from airlock.training.ensembles.chunks import budget
from airlock.training.per_sample.engine import Lot, chunk_size

GPU, GIB = torch.device("cuda"), 1 << 30


def lot(records: int, sampled: bool) -> Lot:
    return Lot(records, records, 1, sampled)


@pytest.fixture(autouse=True)
def gpu_of_64_gib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=64 * GIB))
    yield
    devices.share_gpu(1)


def test_a_share_of_a_gpu_makes_smaller_chunks() -> None:
    assert budget(GPU) == 16 * GIB
    assert chunk_size(1 << 20, 1, lot(1 << 20, False), GPU) == 2048  # what a million records may have at a time: `sums`
    assert chunk_size(1 << 20, 1, lot(1 << 16, False), GPU) == 8192  # 8 GiB
    devices.share_gpu(4)
    assert budget(GPU) == 4 * GIB
    assert chunk_size(1 << 20, 1, lot(1 << 16, False), GPU) == 2048
    assert chunk_size(1 << 40, 1, lot(10, False), GPU) == 1  # one record at least


def test_a_cpu_is_not_shared_so() -> None:
    before = budget(torch.device("cpu")), chunk_size(1 << 16, 1, lot(4096, True), torch.device("cpu"))
    devices.share_gpu(4)
    assert (budget(torch.device("cpu")), chunk_size(1 << 16, 1, lot(4096, True), torch.device("cpu"))) == before


def test_giving_back_without_a_gpu_does_nothing() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    devices.give_back()
    assert not torch.cuda.is_initialized()

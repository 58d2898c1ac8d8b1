"""Shared by all tests: a cache and a vault of their own, one thread, and small real data."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# Machines are shared and slow at times; what counts is the property, not the clock. CI tries the same examples every
# time, so that a change is judged by what it changed; everywhere else new ones are looked for.
settings.register_profile(
    "airlock", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("airlock")

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _own_chance(request: pytest.FixtureRequest) -> None:
    """What a test draws from the global generators does not hang on which tests ran before it in the same process."""
    seed = zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(seed)
    np.random.seed(seed)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, vault or data folder; the workers of one run share a new cache."""
    root = tmp_path_factory.getbasetemp()
    whole = root.parent if os.environ.get("PYTEST_XDIST_WORKER") else root
    monkeypatch.setenv("XDG_CACHE_HOME", str(whole / "cache"))
    monkeypatch.setenv("AIRLOCK_VAULT", str(root / "vault"))
    monkeypatch.delenv("AIRLOCK_DATA", raising=False)
    monkeypatch.setattr("airlock.data.sources._DEBIAN_FASHION", root / "no-debian-package")


@pytest.fixture(scope="session", autouse=True)
def _operators_read_once() -> Iterator[None]:
    """torch.onnx reads its table of operators anew for every export, half of the time of one; here once a session."""
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):  # it lies elsewhere in other releases of torch
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture
def digits_config(tmp_path: Path) -> Path:
    """The five lines that are a complete config, with few steps."""
    path = tmp_path / "digits.toml"
    path.write_text(
        'channel = "weights"\nmethod = "gaussian"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n'
        "[settings]\nsteps = 3\n"
    )
    return path

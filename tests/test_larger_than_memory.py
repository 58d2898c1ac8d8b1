"""Records that do not fit into memory: the same release, bit for bit, by a process that could not hold them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from airlock import pipeline
from airlock.bundle import Vault
from airlock.config import ReleaseConfig, from_table
from airlock.data import Records
from airlock.data.limits import MEMORY_VARIABLE, Storage
from airlock.errors import AirlockWarning, Interrupted, OutputError
from airlock.mechanisms import Stream
from airlock.pipeline import make_release
from airlock.training import Poisson, Resident
from tests.test_pipeline import press

CPU = torch.device("cpu")
ASKED = {"channel": "weights", "method": "gaussian", "epsilon": 3.0, "delta": 1e-4}
HOW = {"steps": 4, "lot_size": 60}
PEOPLE = {"person": "whose", "people": 80, "records_per_person": 2}
OF_ITS_OWN = ("release_id", "created", "hashes")  # differ between any two releases


def asked(folder: Path, data: dict[str, Any] | None = None, **changes: Any) -> ReleaseConfig:
    """Rows of which many are equal, one cannot be used, and everybody has five."""
    rng, file = np.random.default_rng(0), folder / "d.npz"
    x = rng.random((400, 6)).round(1)
    x[3], x[5] = np.nan, x[6]
    np.savez(file, x=x, y=np.arange(400) % 2, whose=np.arange(400) % (data or {}).get("people", 1))
    table = {"source": str(file), "records": 400, "classes": 2, **(data or {})}
    return from_table({**ASKED, "data": table, "settings": HOW, **changes})


def made(config: ReleaseConfig, folder: Path, **how: Any) -> dict[str, Any]:
    """What left and what stayed, but for names and times; remarks are part of what stayed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        outcome = make_release(config, folder, insecure_seed=3, vault=folder.with_name(f"{folder.name}-vault"), **how)
    card = json.loads((folder / "card.json").read_text())
    inside = outcome.dossier.model_dump(mode="json", exclude={"release_id", "created"})
    secrets = {
        name: {key: array.tobytes() for key, array in kept.items()} for name, kept in outcome.release.secrets.items()
    }
    return {
        "weights": (folder / "model.safetensors").read_bytes(),
        "card": {key: value for key, value in card.items() if key not in OF_ITS_OWN},
        "inside": inside,
        "secrets": secrets,
    }


@pytest.mark.parametrize("data", [{}, PEOPLE], ids=["records", "people"])
def test_a_release_from_a_file_is_that_from_memory(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asked(tmp_path, data, attack_share=0.0)
    resident = made(config, tmp_path / "memory")
    monkeypatch.setenv(MEMORY_VARIABLE, "0")
    from_file = made(config, tmp_path / "file")
    assert from_file == resident
    assert not list((tmp_path / "file-vault" / "records").iterdir())
    assert not (tmp_path / "memory-vault" / "records").exists()


def test_paid_attacks_and_a_search_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"search": {"settings.learning_rate": [1.0, 2.0]}, "mean": 2}
    many = asked(tmp_path, {**PEOPLE, "people": 400}, attack_share=0.1, split={"test": 0.1, "holdout": 0.4})
    for number, config in enumerate((many, asked(tmp_path, tune=rates))):
        monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
        resident = made(config, tmp_path / f"memory{number}")
        monkeypatch.setenv(MEMORY_VARIABLE, "0")
        assert made(config, tmp_path / f"file{number}") == resident
        assert (tmp_path / f"file{number}-vault" / "records").is_dir()


def test_a_run_goes_on_from_the_other_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the records are held is no part of a run."""
    config, vault = asked(tmp_path), tmp_path / "vault"
    whole = made(config, tmp_path / "whole")
    with pytest.raises(Interrupted), pytest.warns(AirlockWarning):
        make_release(config, tmp_path / "bundle", insecure_seed=3, vault=vault, progress=press)
    monkeypatch.setenv(MEMORY_VARIABLE, "0")
    with pytest.warns(AirlockWarning):
        make_release(config, tmp_path / "bundle", insecure_seed=3, vault=vault, resume=True)
    assert (tmp_path / "bundle/model.safetensors").read_bytes() == whole["weights"]


@pytest.mark.parametrize("most", [None, 2])
def test_lots_are_the_same(most: int | None, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (300, 1, 4, 4), np.uint8)
    person = None if most is None else np.arange(300) % 60
    y = np.arange(300) % 3
    there = Storage(tmp_path).gather([x[:100], x[100:]], x[:0])
    both = [Resident(Records(one, y, person), CPU, most) for one in (x, there)]
    assert [one.in_file for one in both] == [False, True]
    for step in range(5):
        drawn = Poisson(0.2, Stream.from_seed(step)).draw(step, both[0].units)
        first, second = (one.lot(drawn, np.random.default_rng(step).random) for one in both)
        assert len(first[0])
        assert all(torch.equal(a, b) if a is not None else b is None for a, b in zip(first, second, strict=True))
        first[0].zero_()  # a network may write to its input
        second[0].zero_()
    assert np.array_equal(there, x)


def test_a_lot_is_drawn_block_by_block_with_the_same_numbers() -> None:
    for records in (0, 1, 65_536, 200_001):
        chance = Stream.from_seed(1).child("lot", 4).uniform(records)
        drawn = Poisson(0.3, Stream.from_seed(1)).draw(4, records)
        assert np.array_equal(drawn, np.flatnonzero(chance < 0.3))


def test_methods_that_hold_everything_in_memory_say_so_before_a_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "0")

    def never(*told: Any) -> None:
        raise AssertionError("read")

    monkeypatch.setattr("airlock.data.load", never)
    config = from_table({**ASKED, "method": "head", "data": "digits", "settings": {"steps": 2}})
    with pytest.warns(AirlockWarning, match="All records will be held in memory"), pytest.raises(AssertionError):
        make_release(config, tmp_path / "bundle", insecure_seed=1)


def test_a_disk_without_room_is_refused_before_anything_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asked(tmp_path)
    monkeypatch.setenv(MEMORY_VARIABLE, "0")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 4000))
    with pytest.raises(OutputError, match="bytes of free disk"):
        make_release(config, tmp_path / "bundle", insecure_seed=1)
    assert not (tmp_path / "bundle").exists()
    assert not Vault.open().is_unfinished(pipeline._run_key(config, 1))


# Ten times larger than the memory that is allowed.

ALLOWED, TIMES, WIDTH = 24 << 20, 10, 1000
_LIMITED = """
import json, resource, sys, warnings
from pathlib import Path
import numpy as np
from airlock import data, pipeline
from airlock.config import from_table
from airlock.errors import DataError

def held():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    return int(line.split()[1]) << 10

folder, allowed = Path(sys.argv[1]), int(sys.argv[2])
warnings.simplefilter("ignore")
def release(name):
    table = json.loads((folder / f"{name}.json").read_text())
    pipeline.preview(from_table(table), folder / "vault")
    return table
release("small")  # everything is imported, every pool of threads and memory is there
limit = held() + allowed
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
table = release("large")
try:
    data.load(from_table(table))
except (DataError, MemoryError):
    print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts no private memory")
def test_a_set_ten_times_larger_than_the_memory_limit(tmp_path: Path) -> None:
    """The system refuses the process every byte of private memory beyond the limit; pages of a file are not counted.

    They are read, checked, divided, trained on and attacked. Then the same limit stops the same records from being read
    into memory.
    """
    rng = np.random.default_rng(0)
    sizes = {"small": (2000, 0.05), "large": (TIMES * ALLOWED // (4 * WIDTH), 0.01)}  # attacks hold what they look at
    for name, (count, holdout) in sizes.items():
        np.savez(tmp_path / f"{name}.npz", x=rng.random((count, WIDTH), np.float32), y=np.arange(count) % 2)
        table = {"source": str(tmp_path / f"{name}.npz"), "records": count, "classes": 2}
        rest = {"device": "cpu", "net": "linear", "accountant": "rdp", "split": {"holdout": holdout}}
        how = {"steps": 6, "lot_size": 100}
        (tmp_path / f"{name}.json").write_text(json.dumps({**ASKED, **rest, "data": table, "settings": how}))
    command = [sys.executable, "-c", _LIMITED, str(tmp_path), str(ALLOWED)]
    at_once = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18)}  # what is freed goes back to the system, and is not counted
    surroundings = {**os.environ, **at_once, MEMORY_VARIABLE: "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]

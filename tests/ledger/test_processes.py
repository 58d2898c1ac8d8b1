"""Real processes on one budget, killed at every step and at random moments, and a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.worker import STEPS
from tests.waiting import LONG

ROOT = Path(__file__).resolve().parents[2]


def work(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.ledger.worker", *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_eight_processes_never_overspend_by_a_unit(place: str, mark: Path) -> None:
    found = work("share", place, mark, 8, 20)
    assert found == {"codes": [0] * 8, "cap": 120, "paid": 120, "refused": 40, "spent": 120, "ok": True}


def test_killed_at_each_step_of_a_spend(place: str, mark: Path) -> None:
    found = work("steps", place, mark)
    assert list(found) == list(STEPS)
    for name, (_, charges) in STEPS.items():
        killed, charged, again, ok = found[name]
        assert killed, name
        assert charged == int(charges), name
        stored = name == "before the answer is sent"
        assert again == ("Replay" if stored else "KeyReused" if charges else "Charge"), name
        assert ok, name


def test_killed_at_random_moments_under_load(place: str, mark: Path) -> None:
    """The worker itself checks each round: charged is never less than answered, and the chain verifies."""
    found = work("crash", place, mark, 6)
    assert found["answered"] >= 6 * 3
    assert found["replayed"] == 6 * 3
    assert found["most_lost"] <= 8 * 3, "no more than what eight threads had under way"


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    found = work("full", tmp_path / "ledger.db", tmp_path / "mark", 400_000)
    assert found["refusals"] == ["LedgerUnavailable"]
    assert found["during"]
    assert found["ok"]
    assert found["spent"] == found["paid"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of one megabyte can be mounted by root alone")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(300_000))
    found = work("full", small_disk / "ledger.db", tmp_path / "mark", 0)
    assert found["refusals"] == ["LedgerUnavailable"]
    assert found["during"]
    assert found["ok"]
    assert found["spent"] == found["paid"]

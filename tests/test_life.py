"""A scripted life of a data set adds up to the last charge, however often it is killed, on both databases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.ledger.conftest import folder, new_database, place  # noqa: F401

FEWEST_KILLS = 200


@pytest.mark.parametrize("kills", [3, pytest.param(FEWEST_KILLS, marks=pytest.mark.long)])
def test_a_life_adds_up(place: str, tmp_path: Path, kills: int) -> None:  # noqa: F811
    command = [sys.executable, "-m", "tests.life", str(tmp_path), place, str(kills)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout.splitlines()[-1])
    states = Counter(state for state, _ in told["states"])
    assert told["kills"] == kills
    assert told["spent"] == sum(units for state, units in told["states"] if state != "returned")
    assert len(told["bundles"]) == 4 * told["years"]
    for release, cost in told["bundles"].items():
        (charged,) = told["released"][release]  # once, and no less than its events cost
        assert charged >= cost
    assert states["released"] >= len(told["bundles"])
    assert sum(states.values()) - len(told["bundles"]) <= kills, "a kill costs one charge at most"
    assert not (tmp_path / "too-much").exists()
    assert told["hidden"] == [], "what a killed write left is gone"
    print(f"{kills} kills in {told['years']} years: {dict(states)}, {told['spent']:,} units")

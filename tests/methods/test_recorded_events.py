"""What every method plans to spend is what it planned before the house was rebuilt.

`recorded_events.json` holds the events of each method, by several ways through it, for one data set. They follow from
the config and from public figures alone: whoever changes them changes what is promised, and has to say so. Write the
file anew with `python -m tests.methods.test_recorded_events`, and tell in CHANGELOG what costs more or less.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from airlock import methods
from airlock.accounting import to_json
from airlock.errors import AirlockWarning
from tests.methods.test_missing_records import FACTS, MORE, NAMES, config

FILE = Path(__file__).with_name("recorded_events.json")
WAYS = {" ".join([name, *map(str, more.items())]): (name, more) for name in NAMES for more in [{}, *MORE.get(name, [])]}
RECORDED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def planned(name: str, more: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        return to_json(methods.build(config(name, **more), FACTS).plan().guarantee.events)


def same(one: Any, other: Any) -> bool:
    """The same fields and kinds; numbers may differ by what another processor makes of the last bits of a search."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-6)
    return type(one) is type(other) and bool(one == other)


def test_every_way_is_recorded() -> None:
    assert set(RECORDED) == set(WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_events_are_those_that_were_recorded(way: str) -> None:
    assert same(planned(*WAYS[way]), RECORDED[way])


def test_a_little_less_noise_is_noticed() -> None:
    event = RECORDED["weights/gaussian"]
    assert same(event, json.loads(json.dumps(event)))
    assert not same(event, json.loads(json.dumps(event).replace('"noise_multiplier": ', '"noise_multiplier": 1')))


if __name__ == "__main__":
    found = {way: planned(*asked) for way, asked in WAYS.items()}
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")

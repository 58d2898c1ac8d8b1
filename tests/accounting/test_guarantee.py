"""A guarantee computes its own ε."""

from __future__ import annotations

import dataclasses
import json
import math

import dp_accounting as dpa
import pytest

from airlock.accounting import Claim, Guarantee, compute_epsilon, from_json


def make(**changes: object) -> Guarantee:
    fields: dict[str, object] = {
        "unit": "record",
        "relation": "add-remove",
        "events": dpa.GaussianDpEvent(3.0),
        "delta": 1e-5,
        "status": "proven",
        "assumptions": ("One person, one record.",),
    }
    return Guarantee(**{**fields, **changes})  # type: ignore[arg-type]


def test_epsilon_is_computed_and_cannot_be_typed_in() -> None:
    assert make().epsilon == compute_epsilon(dpa.GaussianDpEvent(3.0), 1e-5).epsilon
    with pytest.raises(TypeError):
        make(epsilon=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().epsilon = 0.1  # type: ignore[misc]


def test_no_unit_means_no_privacy() -> None:
    guarantee = make(unit="none", status="claimed", claim=Claim(1.0, 1e-5, "Theorem 3"))
    assert guarantee.epsilon == math.inf
    plain = guarantee.to_dict()
    assert plain["epsilon"] is None
    assert plain["claim"] == {"epsilon": 1.0, "delta": 1e-5, "theorem": "Theorem 3"}
    json.dumps(plain, allow_nan=False)


def test_its_json_gives_the_same_epsilon_again() -> None:
    guarantee = make(events=dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)))
    plain = json.loads(json.dumps(guarantee.to_dict()))
    assert compute_epsilon(from_json(plain["events"]), plain["delta"]).epsilon == plain["epsilon"]
    assert "Poisson" in plain["sampling"]
    assert "none" in make().to_dict()["sampling"]

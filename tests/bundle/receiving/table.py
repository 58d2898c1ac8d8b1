"""A table with every kind of column, a network for it, and rows that fit, do not fit, and barely fit."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch

from airlock.accounting import Guarantee
from airlock.accounting.calibrate import suggesting
from airlock.bundle import Card, make_card
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts
from airlock.mechanisms import Stream
from airlock.methods import build as build_method
from airlock.methods.contract import NetworkArtefact, Plan, Release
from airlock.nets import build
from airlock.training.outcomes import Outcomes

CLASSES = ("no", "yes")
COLUMNS: dict[str, Any] = {
    "age": {"min": 18, "max": 90, "missing": 60, "unit": "years"},
    "Größe in cm": {"min": 120, "max": 220, "missing": "indicator"},
    "amount": {"min": 0, "max": 100_000, "scale": "log", "outside": "refuse"},
    "since": {"min": "2000-01-01", "max": "2020-12-31", "missing": "2010-01-01"},
    "city": {"categories": ["Bern", "Basel", "Chur"], "other": True},
    "group": {"categories": ["a", "b", "x, y"], "missing": "indicator"},
    "sex": {"categories": ["f", "m"], "missing": "f"},
    "code": {"categories": ["1", "2"]},
}
GOOD: dict[str, Any] = {
    "age": 54, "Größe in cm": 171.5, "amount": 1200.0, "since": "2004-05-06", "city": "Bern", "group": "b", "sex": "m",
    "code": "2",
}  # fmt: skip
CONFIG = from_table(
    {"channel": "weights", "method": "gaussian", "net": "linear", "epsilon": 2.366, "delta": 1e-4,
     "data": {"source": "own.csv", "name": "people", "label": "ill", "classes": list(CLASSES), "records": 1797,
              "columns": COLUMNS},
     "settings": {"steps": 1, "lot_size": 10_000, "clip_norm": 1.0}}
)  # fmt: skip


def facts(config: ReleaseConfig = CONFIG) -> Facts:
    columns = tuple(config.data.columns.items())
    width = sum(column.width for _, column in columns)
    origin = "The owner's CSV file; the number of records is declared, not counted; classes are declared."
    return Facts("people", (width,), CLASSES, 1797, None, origin, columns=columns)


@cache
def planned() -> Plan:
    with suggesting([1.5]):
        return build_method(CONFIG, facts()).planned


def release() -> Release:
    """As if it had been trained: the weights are random, and nobody asks how good they are."""
    torch.manual_seed(5)
    shape = facts().shape
    net = build("linear", shape, len(CLASSES)).eval().requires_grad_(False)
    promise = Guarantee(
        unit="record", relation="add-remove", events=dpa.GaussianDpEvent(1.5), delta=1e-4, status="proven",
        assumptions=planned().guarantee.assumptions,
    )  # fmt: skip
    labels = np.arange(200, dtype=np.int64) % 2
    return Release(
        plan=dataclasses.replace(planned(), guarantee=promise),
        artefact=NetworkArtefact(net, "linear", shape, CLASSES),
        guarantee=promise,
        utility=Outcomes(labels, np.where(labels % 7, labels, 1 - labels), np.linspace(0.3, 0.9, 200)),
        secure_noise=True,
        noise_made_on=("cpu",),
        secrets={"weights": np.arange(12, dtype=np.float32)},
    )


def card() -> Card:
    return make_card(CONFIG, facts(), release(), Stream.from_seed(3))


def rows(**changes: object) -> list[dict[str, Any]]:
    """One good row, and one for every value of a change."""
    return [GOOD, *({**GOOD, name: value} for name, value in changes.items())]

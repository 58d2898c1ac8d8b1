"""The benchmark of the attacks at a small size: it runs, and keeps apart what has to be apart."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

from airlock.data import Records
from tests.auditing.attacks.toy import RUN

ROOT = Path(__file__).resolve().parents[3]


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_lira", ROOT / "benchmarks/lira.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_attack_is_measured_on_every_target() -> None:
    module = benchmark()
    rows = module.case_rows(module.Case("mlp", "digits", 600, 8, 2, 20, 0.1, 32, 100, 200), RUN)
    assert len({row["attack"] for row in rows}) == len(rows) == 9
    for row in rows:
        assert row["train"] > row["test"] > 0.5
        assert 0 <= row["TPR at 0.1%"] <= row["TPR at 1%"] <= 1
        assert 0.4 < row["AUC"] <= 1


def test_the_design_has_targets_of_their_own_and_balanced_shadows() -> None:
    module = benchmark()
    case = module.Case("mlp", "digits", 100, 8, 3)
    inside = module.design(case, 100)
    assert inside.shape == (11, 100)
    assert (inside.sum(1) == 50).all()
    assert (inside[3:].sum(0) == 4).all()
    assert len({row.tobytes() for row in inside}) == 11


def test_the_population_is_apart_and_equal_records_count_once() -> None:
    module = benchmark()
    pool, beside = module.read(module.Case("mlp", "digits", 1200))
    rows = [set(map(bytes, records.x.reshape(len(records), -1))) for records in (pool, beside)]
    assert not rows[0] & rows[1]
    twice = Records(np.repeat(pool.x[:5], 2, 0), np.repeat(pool.y[:5], 2))
    assert np.array_equal(module.distinct(twice).x, pool.x[:5])

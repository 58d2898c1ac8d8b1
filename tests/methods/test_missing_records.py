"""Every method goes through whatever records there are: no class, no record and no part has to be there.

A release that failed for want of somebody's record would tell that the record is missing. So what is planned is
executed, event for event, and what leaves has the planned form, also where nothing can be learnt.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from airlock import methods
from airlock.accounting import to_json
from airlock.bundle.verify import verify
from airlock.config import DataConfig, SplitConfig, from_table
from airlock.data import Facts, Records, Split, divide
from airlock.data.feature_files import load
from airlock.errors import AirlockWarning, DataError
from airlock.mechanisms import Randomness, Stream
from airlock.methods import METHODS, FeatureSet, Interface, NetworkArtefact, Release
from airlock.methods.interface import as_queries, ask
from airlock.pipeline import make_release
from airlock.training import Run

NAMES = [f"{channel}/{method}" for channel, own in METHODS.items() for method in own]
COUNT = 400
FACTS = Facts("digits", (1, 8, 8), tuple("0123456789"), COUNT, None, "a part of digits, declared")
STUDENT = {
    "hint_epochs": 1, "rounds": 1, "self_epochs": 1, "distil_epochs": 1, "query_batch": 32, "self_batch": 128,
    "teacher_epochs": 1, "teacher_batch": 128,
}  # fmt: skip
FRONT = {"front": "tests.methods.features.test_methods:own_front", "layers": 2}
LINEAR = {**STUDENT, "teacher": "linear", "hint_epochs": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "weights/gaussian": {"steps": 3, "lot_size": 400},
    "weights/shaped": {"steps": 2, "lot_size": 400},
    "weights/published": {"steps": 2, "lot_size": 400, "solver": "closed"},
    "weights/head": {"steps": 3},
    "twin/sharded": {"shards": 100, "dimensions": 8, "noise_limit": 1e3},
    "twin/kde-sharded": {"shards": 100, "dimensions": 4, "noise_limit": 1e3},
    "twin/published": {"models": 3, "epochs": 0.5, "constant": "keep"},
    "student/ensemble": {
        **LINEAR, "hint": "1", "guide": "leaky6", "teachers": 20, "queries": 10, "bound": 1.0, "shard_epochs": 1,
    },
    "student/private-teacher": {**LINEAR, "private": {"steps": 2, "lot_size": 400, "clip_norm": 0.5}},
    "student/neighbours": {"epochs": 1},
    "student/published": {**STUDENT, "select_rate": 0.2},
    "features/noised": {**FRONT, "project": 4},
    "features/published": {**FRONT, "channels": 4, "epochs": 1},
    "answers/head": {"features": "pixels"},
    "answers/per-query": {"features": "pixels", "queries": 5},
    "answers/votes": {"features": "pixels", "queries": 5, "heads": 30},
    "answers/neighbours": {"features": "pixels", "queries": 5},
    "answers/published": {"epochs": 1},
}  # fmt: skip
MORE = {  # the same methods by other ways through the code
    "weights/gaussian": [{"clip": "adaptive"}, {"augment": "shift", "augment_multiplicity": 2}],
    "weights/shaped": [{"shape_from": "public"}],
    "weights/published": [{"solver": "projected"}, {"sensitivity_from": "lot"}],
    "weights/head": [{"features": "pixels", "public": "split"}],
    "twin/published": [{"generator": "dp-pgp", "clusters": 2}, {"bandwidth": "sheather-jones"}],
    "student/ensemble": [{"answers": "votes", "bound": None}, {"answers": "confident-votes", "bound": None}],
    "features/noised": [{"public": "split"}, {"label_epsilon": 0.5}, {"format": "npz"}],
    "features/published": [{"prune": "lda", "channels": 2}],
    "answers/per-query": [{"gives": "label"}],
    "answers/published": [{"alpha": "search"}, {"loss": "mean"}],
}  # fmt: skip


@cache
def digits() -> Records:
    x, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(y))[:COUNT]
    return Records((x[chosen] / 16).astype(np.float32).reshape(-1, 1, 8, 8), y[chosen].astype(np.int64))


def config(name: str, **more: Any) -> Any:
    channel, method = name.split("/")
    table = {"channel": channel, "method": method, "data": "digits", "epsilon": 8.0, "delta": 1e-4, "device": "cpu"}
    settings = {key: value for key, value in {**SETTINGS[name], **more}.items() if value is not None}
    return from_table({**table, "split": {"public": 0.3}, "settings": settings})


def without(part: str, label: int | None = None, keep: int = 0) -> Callable[[Split], Split]:
    """Takes all records of a part away, or those of one class, but for the first few."""

    def change(split: Split) -> Split:
        own: Records = getattr(split, part)
        gone = np.flatnonzero(np.ones(len(own), bool) if label is None else own.y == label)[keep:]
        return replace(split, **{part: own.take(np.delete(np.arange(len(own)), gone))})  # type: ignore[arg-type]

    return change


MISSING = {
    "nothing": lambda split: split,
    "a class in private": without("private", 3),
    "all private": without("private"),
    "all private but one": without("private", keep=1),
    "a class in public": without("public", 3),
    "a class everywhere": lambda split: without("test", 3)(without("public", 3)(without("private", 3)(split))),
    "all test": without("test"),
    "all holdout": without("holdout"),
    "everything but public": lambda split: without("holdout")(without("test")(without("private")(split))),
}
WORST = ("a class in private", "all private", "everything but public")  # the others are left to `make test-full`
CASES = [(name, missing, {}) for name in NAMES for missing in MISSING]
CASES += [(name, missing, more) for name, ways in MORE.items() for more in ways
          for missing in ("a class in private", "all private", "a class in public")]  # fmt: skip
MARKED = [pytest.param(*case, marks=() if case[1] in WORST else pytest.mark.long) for case in CASES]


def release(name: str, split: Split, more: dict[str, Any]) -> Release:
    asked = config(name, **more)
    seen: list[tuple[int, int]] = []
    run = Run(progress=lambda label, done, total: seen.append((done, total)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)  # of plans, about noise
        return methods.build(asked, FACTS).release(split, Randomness.make(0, insecure_seed=1), run)


def test_every_method_is_tried() -> None:
    assert set(SETTINGS) == set(NAMES)


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
@pytest.mark.parametrize(("name", "missing", "more"), MARKED, ids=str)
def test_a_release_is_made_and_spends_what_was_planned(name: str, missing: str, more: dict[str, Any]) -> None:
    asked = config(name, **more)
    split = MISSING[missing](divide(FACTS, digits(), None, asked.split, asked.seed))
    plan = methods.build(asked, FACTS).plan()
    made = release(name, split, more)
    assert to_json(made.guarantee.events) == to_json(plan.guarantee.events)
    assert made.guarantee.epsilon == plan.guarantee.epsilon
    assert 0 <= made.utility.accuracy <= 1
    assert made.utility.records <= len(split.test)
    if isinstance(made.artefact, NetworkArtefact):
        values = made.artefact.net(torch.zeros(2, *FACTS.shape))
        assert values.shape == (2, 10)
        assert all(torch.isfinite(tensor).all() for tensor in (values, *made.artefact.net.parameters()))
    elif isinstance(made.artefact, Interface):
        desk = methods.named(name).answerer(made.artefact, made.secrets)
        found = ask(desk, as_queries(digits().take(np.arange(3))), Stream.from_seed(1))
        assert set(found.labels) <= set(range(-1, 10))  # -1: it does not know
        assert found.values is None or np.isfinite(found.values).all()
    else:
        assert isinstance(made.artefact, FeatureSet)
        if name == "features/noised":
            assert made.artefact.manifest.records == FACTS.expected("private", asked.split)
            assert np.isfinite(load(made.artefact.folder, made.artefact.manifest).x).all()


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
@pytest.mark.parametrize("name", NAMES)
def test_without_public_records_what_needs_them_says_so_and_the_rest_goes_on(name: str) -> None:
    """Who is public is public: this is the one thing that may be missed aloud."""
    asked = config(name)
    split = without("public")(divide(FACTS, digits(), None, asked.split, asked.seed))
    try:
        made = release(name, split, {})
    except DataError as error:
        as_it_should = "public record" in error.expected
    else:
        as_it_should = to_json(made.guarantee.events) == to_json(methods.build(asked, FACTS).plan().guarantee.events)
    assert as_it_should


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
@pytest.mark.parametrize("name", ["weights/gaussian", "features/noised", "features/published", "answers/votes"])
def test_a_bundle_of_nobody_verifies(name: str, tmp_path: Path) -> None:
    """From files without a single record to a bundle, attacks and card included."""
    x, y = np.zeros((0, 8, 8), np.uint8), np.zeros(0, np.int64)
    np.savez(tmp_path / "none.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = {"source": str(tmp_path / "none.npz"), "classes": 10, "records": COUNT}
    asked = config(name).model_copy(update={"split": SplitConfig(), "data": DataConfig(**data)})
    make_release(asked, tmp_path / "bundle", accept_unproven=True, vault=tmp_path / "vault")
    assert verify(tmp_path / "bundle").ok

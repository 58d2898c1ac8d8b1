"""A small comparison as it comes out of a run on digits: every kind of row, verdict, gap and failure, made by hand."""

from __future__ import annotations

import datetime
from typing import Any

from airlock.comparison.page import Comparison
from airlock.comparison.values import (
    BASELINE,
    PUBLIC,
    WORDS,
    Advice,
    AttackSummary,
    Cell,
    ComparedData,
    Dropped,
    Kind,
    MethodVerdict,
    Need,
    Ranked,
    Skipped,
)

TEST = 360
RECORD = "One record, added or removed, against everyone who studies what leaves."
NOTHING = "Nothing is promised to the people in the data."
LEAVES = {
    "weights/gaussian": "A trained model with all its weights, from steps with random noise.",
    "weights/published": "A trained model with all its weights; its noise was shaped by the records unprotected.",
    "answers/per-query": "Answers to a limited number of questions, each with random noise.",
    "student/published": "A compact model that learnt from a teacher's answers about public records.",
    BASELINE: "Nothing: this model was trained without privacy, for comparison, and is not kept.",
    PUBLIC: "Nothing: this model was trained on the public records alone, for comparison, and is not kept.",
}


def attacked(auc: float, bound: float = 0.0) -> AttackSummary:
    return AttackSummary(
        name="loss threshold", view="black-box", aim="membership", score="AUC", auc=auc, low=auc - 0.04,
        high=auc + 0.04, chance=0.5, advantage=round(2 * (auc - 0.5), 4), advantage_low=-0.05, advantage_high=0.3,
        epsilon_lower_bound=bound,
    )  # fmt: skip


def cell(
    method: str, asked: float | None, seed: int, correct: int, auc: float, status: Kind = "proven", **more: Any
) -> Cell:
    channel = "none" if method in WORDS else method.partition("/")[0]
    attack = attacked(auc, more.pop("bound", 0.0))
    given = {
        "title": method,
        "epsilon": asked and asked * 0.998 if status == "proven" else None,
        "low": max(0.0, correct / TEST - 0.04),
        "high": min(1.0, correct / TEST + 0.04),
        "attacks": (attack,),
        "not_tested": ("LiRA was not run: it trains many models.",),
        "epsilon_measured": attack.epsilon_lower_bound,
        "seconds": 4.25,
        "bytes": None if channel == "none" else 37_000,
        "parameters": None if channel in ("none", "answers") else 9_098,
        "leaves": LEAVES[method],
        "protects": RECORD if status == "proven" else NOTHING,
    }
    return Cell(
        method=method, channel=channel, status=status, epsilon_asked=asked, seed=seed, accuracy=correct / TEST,
        correct=correct, records=TEST, **(given | more),
    )  # fmt: skip


def failed(method: str, asked: float, seed: int, error: str) -> Cell:
    channel = method.partition("/")[0]
    return Cell(
        method=method, channel=channel, title=method, status="proven", epsilon_asked=asked, seed=seed, seconds=0.4,
        leaves=LEAVES[method], protects=RECORD, error=error,
    )  # fmt: skip


def cells() -> tuple[Cell, ...]:
    found = [cell(BASELINE, None, seed, 345 + seed, 0.61, "none", parameters=None) for seed in (0, 1)]
    for seed in (0, 1):
        found += [cell("weights/gaussian", e, seed, c + seed, 0.51) for e, c in ((1.0, 268), (3.0, 316), (8.0, 331))]
        found += [
            cell("answers/per-query", e, seed, c - seed, 0.5, parameters=None, queries=100)
            for e, c in ((1.0, 214), (3.0, 300))
        ]
        found += [
            cell("weights/published", e, seed, c, 0.56, "claimed", claim_epsilon=e)
            for e, c in ((1.0, 330), (3.0, 338), (8.0, 340))
        ]
    found.append(cell("student/published", None, 0, 331, 0.55, "claimed", claim_epsilon=5.2, bound=0.4))
    found.append(failed("answers/per-query", 8.0, 0, "Expected training to converge, found a loss that is not finite."))
    return tuple(found)


def advice() -> Advice:
    return Advice(
        method="weights/gaussian",
        epsilon=3.0,
        sentence=(
            "For a model that the receiver holds and runs on a phone, at ε = 3: weights/gaussian, the most accurate "
            "of 2 proven methods that fit (88.0%, 95% interval 84.0% to 92.0%)."
        ),
        ranking=(
            Ranked(
                method="weights/gaussian", channel="weights", title="weights/gaussian", status="proven",
                recommended=True, reason="Proven, and the most accurate here.", epsilon=2.994, accuracy=0.88,
                low=0.84, high=0.92, figures={"noise_multiplier": 1.31, "steps": 300},
            ),
            Ranked(
                method="answers/per-query", channel="answers", title="answers/per-query", status="proven",
                recommended=False, reason="Its model stays inside, and the receiver needs the model.", epsilon=2.994,
                accuracy=0.83, low=0.79, high=0.87, queries=100,
            ),
            Ranked(
                method="weights/published", channel="weights", title="weights/published", status="claimed",
                recommended=False, reason="Not proven: its noise is shaped by the records without protection.",
            ),
        ),
        measured=True,
    )  # fmt: skip


def verdicts() -> tuple[MethodVerdict, ...]:
    return (
        MethodVerdict(
            method="weights/gaussian", status="proven", claim_epsilon=1.0, claim_delta=1e-4, refuted=False,
            lower_bound=0.41, would_show=1.6, pairs=900, seconds=5.0,
            sentence="Not refuted: weights/gaussian claims (ε, δ) = (1, 0.0001); could have refuted ε ≥ 1.60. "
            "This is no proof.",
        ),
        MethodVerdict(
            method="weights/published", status="claimed", claim_epsilon=1.0, claim_delta=1e-4, refuted=True,
            lower_bound=2.7, would_show=1.6, pairs=420, seconds=2.5,
            sentence="Refuted: weights/published claims (ε, δ) = (1, 0.0001), and that is false, with 95% confidence.",
        ),
    )  # fmt: skip


def comparison(**more: Any) -> Comparison:
    """The example; `more` replaces fields of it."""
    given: dict[str, Any] = {
        "data": ComparedData(name="digits", records=1797, classes=tuple("0123456789"), shape=(1, 8, 8), named=True),
        "epsilons": (1.0, 3.0, 8.0),
        "delta": 1e-4,
        "seeds": (0, 1),
        "cells": cells(),
        "skipped": (
            Skipped(method="student/ensemble", reason="Expected public records, found split.public = 0."),
            Skipped(method="twin/sharded", reason="Expected enough shards for ε = 1, found 5.", epsilons=(1.0,)),
        ),
        "dropped": (
            Dropped(method="student/published", epsilon_asked=None, seed=1, reason="The time was over."),
            Dropped(method="answers/per-query", epsilon_asked=None, seed=None, reason="The time was over."),
        ),
        "court": verdicts(),
        "need": Need(receives="white-box", runs_on="phone"),
        "advice": advice(),
        "version": "0.1.0",
        "started": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "seconds": 182.0,
        "complete": False,
    }
    return Comparison(**(given | more))

"""Run one cell and keep only its figures. Models, bundles and vaults of a comparison are thrown away."""

from __future__ import annotations

import math
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from airlock import data, methods
from airlock.accounting.terms import PROTECTED
from airlock.auditing import Audit, judge, proportion_interval
from airlock.auditing.evaluation import Figures, exact
from airlock.auditing.usefulness import compare_with_blind
from airlock.bundle.packing import packing_of
from airlock.comparison.matrix import ASIDE, Task, protects, title_of
from airlock.comparison.settings import BaselineSettings
from airlock.comparison.values import CONFIDENCE, PUBLIC, AttackSummary, Cell, MethodVerdict
from airlock.errors import AirlockError, Interrupted
from airlock.mechanisms import Randomness
from airlock.methods import NetworkArtefact, Plan, open_case
from airlock.methods.artefact import Artefact
from airlock.pipeline import Preview, preview, train_openly
from airlock.threads import one_thread
from airlock.training import Recipe
from airlock.training.loop import Progress

_NO_START = ("CUBLAS_STATUS", "CUSOLVER_STATUS", "CUDNN_STATUS")  # usually because there is no memory left
ANSWERS = 21  # that are timed
CLAIMS = 10  # times as long: a trial ends once it refutes, and a slow machine should not change the verdict


@dataclass(frozen=True)
class Ways:
    """How cells are run, the same for all of them.

    Args:
        scratch: The folder for the bundle and vault of a running cell.
        baseline: How the model without privacy is trained.
        court_seconds: How long the court tries a proven method; an unproven claim gets `CLAIMS` times as long.
        data_dir: The folder of named data sets.
    """

    scratch: Path
    baseline: BaselineSettings
    court_seconds: float
    data_dir: Path | None = None


Work = Callable[[Task, Ways, Progress | None], Cell | MethodVerdict]


def run_task(task: Task, ways: Ways, progress: Progress | None = None) -> Cell | MethodVerdict:
    """Run one cell; a failure becomes a cell that gives the reason.

    Raises:
        Interrupted: Ctrl-C.
    """
    begin = time.monotonic()
    ways_to: dict[str, Work] = {"court": _tried, "baseline": _opened, "release": _released}
    try:
        with warnings.catch_warnings():  # the plan has already warned, once
            warnings.simplefilter("ignore")
            return ways_to[task.kind](task, ways, progress)
    except Interrupted:
        raise
    except AirlockError as error:
        return failure(task, str(error), time.monotonic() - begin)
    except (RuntimeError, ValueError, ArithmeticError, MemoryError, OSError) as error:  # such as a GPU out of memory
        first = (str(error).strip().splitlines() or ["no message"])[0]
        return failure(task, f"{type(error).__name__}: {first[:300]}", time.monotonic() - begin)


def short_of_memory(found: Cell | MethodVerdict | str) -> bool:
    """Whether a cell failed because a GPU ran out of memory: torch says so, or a CUDA library failed to start."""
    error = "" if isinstance(found, str) else found.error or ""
    return error.startswith("OutOfMemoryError") or any(name in error for name in _NO_START)


def failure(task: Task, reason: str, seconds: float) -> Cell | MethodVerdict:
    """A cell, or a trial, without a result."""
    if task.kind == "court":
        return MethodVerdict(
            method=task.method, status=methods.named(task.method).status, claim_epsilon=task.epsilon or 0.0,
            claim_delta=task.config.delta, refuted=False, lower_bound=0.0, pairs=0, seconds=seconds,
            sentence=f"No verdict: {reason}", error=reason,
        )  # fmt: skip
    return Cell(**_about(task), seconds=seconds, error=reason)


def _about(task: Task) -> dict[str, Any]:
    """What is known about a cell before it runs."""
    found: dict[str, Any] = {
        "method": task.method,
        "title": title_of(task.method),
        "epsilon_asked": task.epsilon,
        "seed": task.seed or 0,
    }
    if task.plan is None:
        return found | {"channel": "none"} | ASIDE[task.method]
    promise = task.plan.guarantee
    return found | {
        "channel": task.plan.channel,
        "status": promise.status,
        "claim_epsilon": promise.claim.epsilon if promise.claim else None,
        "leaves": task.plan.leaves,
        "protects": protects(promise),
    }


def _opened(task: Task, ways: Ways, progress: Progress | None) -> Cell:
    """A model without noise; the number of steps follows from the epochs and the public number of private records.

    If it is trained on the public records alone, it gets the same number of steps: fewer records, seen more often.
    """
    how, config, begin = ways.baseline, task.config, time.monotonic()
    facts = data.describe(config, ways.data_dir)
    records = facts.expected("private", config.split)
    steps = how.epochs * math.ceil(records / how.batch_size)
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=how.learning_rate, schedule="cosine")
    found = train_openly(config, ways.data_dir, progress, recipe=recipe, batch_size=how.batch_size,
                         part="public" if task.method == PUBLIC else "private")  # fmt: skip
    return Cell(
        **_about(task),
        **_use(found.utility.correct, found.utility.records, exact(found.utility, len(facts.classes))),
        **_attacked(found.audit.rounded()),
        seconds=time.monotonic() - begin,
        parameters=found.parameters,
    )


def _released(task: Task, ways: Ways, progress: Progress | None) -> Cell:
    """A whole release in a scratch folder; only its card and figures are kept."""
    place, begin = ways.scratch / task.name, time.monotonic()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, mode=0o700)
    try:
        seen = preview(task.config, place / "vault", ways.data_dir, progress)
        return from_preview(task, seen, time.monotonic() - begin)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def from_preview(task: Task, seen: Preview, seconds: float) -> Cell:
    """The figures of a finished release; ε comes from the executed events, and is given only if it is proven."""
    inside, release = seen.dossier, seen.release
    promise = release.guarantee
    assert inside.utility is not None  # no comparison is of a regression (`settings`)
    proven = promise.status == "proven" and promise.unit in PROTECTED and math.isfinite(promise.epsilon)
    queries = release.artefact.questions
    return Cell(
        **_about(task) | {"protects": protects(promise, queries)},
        **_use(inside.utility.correct, inside.utility.records, inside.utility.figures),
        **_attacked(inside.audit),
        epsilon=promise.epsilon if proven and release.secure_noise else None,
        seconds=seconds,
        bytes=packing_of(release.artefact.kind).size(release.artefact),
        parameters=release.artefact.parameters,
        answer_milliseconds=_answer_milliseconds(release.artefact),
        queries=queries,
    )


def _answer_milliseconds(artefact: Artefact) -> float | None:
    """The processor time of one answer on one thread, the median of many; None where no network leaves."""
    if not isinstance(artefact, NetworkArtefact):
        return None
    like, taken = torch.zeros(1, *artefact.input_shape), []
    with one_thread(), torch.no_grad():
        for _ in range(ANSWERS):
            begin = time.thread_time()
            artefact.net(like)
            taken.append(1000 * (time.thread_time() - begin))
    return statistics.median(taken[1:])  # the first is a warm-up


def planned_questions(plan: Plan) -> int | None:
    """How many questions a plan covers; None for methods outside `answers`, which do not count them."""
    found = plan.details.get("queries", plan.details.get("queries_a_unit"))
    return int(found) if plan.channel == "answers" and isinstance(found, int) else None


def _use(correct: int, records: int, figures: Figures) -> dict[str, Any]:
    low, high = proportion_interval(correct, records, CONFIDENCE)
    return {
        "accuracy": correct / records,
        "low": low,
        "high": high,
        "correct": correct,
        "records": records,
        "majority": figures.majority.value,
        "balanced_accuracy": figures.balanced_accuracy.value,
        "scores_auc": None if figures.auc is None else figures.auc.value,
        "use": compare_with_blind(figures).state,
    }


def _attacked(audit: Audit) -> dict[str, Any]:
    found = tuple(
        AttackSummary(
            name=one.name, view=one.view, aim=one.aim, score=one.score, auc=one.value, low=one.low, high=one.high,
            chance=one.chance, advantage=one.advantage.value if one.advantage else None,
            advantage_low=one.advantage.low if one.advantage else None,
            advantage_high=one.advantage.high if one.advantage else None, epsilon_lower_bound=one.epsilon_lower_bound,
        )
        for one in audit.attacks
    )  # fmt: skip
    measured = max((one.epsilon_lower_bound for one in found), default=None)
    return {"attacks": found, "not_tested": audit.not_tested, "epsilon_measured": measured}


def _tried(task: Task, ways: Ways, progress: Progress | None) -> MethodVerdict:
    """The court's verdict on a method, on synthetic records; no private record is used.

    Where people are protected, a person of many records is put in and left out.
    """
    assert task.epsilon is not None
    people = data.describe(task.config, ways.data_dir).unit == "person"
    case, status = open_case(task.method, task.epsilon, task.config.delta, people), methods.named(task.method).status
    seconds = ways.court_seconds * (1 if status == "proven" else CLAIMS)
    found = judge(case, Randomness.make(0).privacy, seconds=seconds, progress=progress)
    return MethodVerdict(
        method=task.method,
        status=status,
        claim_epsilon=case.claim.epsilon,
        claim_delta=case.claim.delta,
        refuted=found.refuted,
        lower_bound=max(0.0, found.epsilon_lower_bound),
        would_show=found.would_show,
        pairs=found.pairs,
        seconds=found.seconds,
        sentence=found.sentence(task.method),
    )

"""The smallest noise that keeps a mechanism within (ε, δ), cached on disk.

The answer is the upper end of a bracket of width 1e-3: its ε has been computed and is at most the target, and the ε of
1e-3 less noise has been computed and exceeds it. Calibration takes seconds, so answers are cached in the user's cache
folder, keyed by everything they depend on; the ε of a cached answer is always computed again. Nothing is cached for
another package's accountant, which may change under the same name.

Whoever checks an answer need not search for it: within `suggesting`, an answer that is suggested is taken if its ε is
at most the target and that of 1e-3 less noise exceeds it, which is all that is promised of an answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

import dp_accounting as dpa
from scipy.special import log_ndtr

from airlock.accounting.epsilon import (
    OWN,
    Accountant,
    accounting_version,
    compute_epsilon,
    compute_epsilon_roughly,
)
from airlock.accounting.events import to_json
from airlock.accounting.terms import Relation
from airlock.errors import AccountingError

TOLERANCE = 1e-3
_LARGEST_NOISE = 1e6

_HALVINGS = 200

MakeEvent = Callable[[float], dpa.DpEvent]
End = tuple[float, float]  # a noise multiplier and its ε
_SUGGESTED: ContextVar[tuple[float, ...]] = ContextVar("suggested", default=())
_OR_MORE: ContextVar[bool] = ContextVar("or_more", default=False)


def calibrate(
    make_event: MakeEvent,
    epsilon: float,
    delta: float,
    relation: Relation = "add-remove",
    accountant: Accountant = "auto",
) -> float:
    """The smallest noise multiplier, to 1e-3, at which `make_event(noise_multiplier)` costs at most ε at δ.

    Args:
        make_event: From a noise multiplier to the event of the whole release; ε must fall as it grows.
        epsilon: The target; never exceeded.
        delta: The δ at which it is stated.
        relation: The neighbouring relation.
        accountant: As in `compute_epsilon`.
    """
    key = json.dumps([to_json(make_event(1.0)), epsilon, delta, relation, accountant, accounting_version()])
    kept = accountant in OWN
    remembered, suggested = _recall(key) if kept else None, _SUGGESTED.get()
    if remembered is not None and (not suggested or remembered in suggested):
        return remembered

    def cost(noise: float) -> float:
        return compute_epsilon(make_event(noise), delta, relation, accountant).epsilon

    def rough_cost(noise: float) -> float:
        return compute_epsilon_roughly(make_event(noise), delta, accountant)

    def fits(noise: float) -> bool:
        return cost(noise) <= epsilon and (_OR_MORE.get() or epsilon < cost(noise - TOLERANCE))

    right = next((noise for noise in suggested if fits(noise)), remembered)
    if right is not None:
        return right
    start = _bisect(rough_cost, epsilon, *_bracket(rough_cost, epsilon, 1.0, 2.0), tolerance=0.02)
    noise = _bisect(cost, epsilon, *_bracket(cost, epsilon, start, 1.01), tolerance=TOLERANCE)
    if kept:
        _remember(key, noise)
    return noise


@contextlib.contextmanager
def suggesting(noises: Sequence[float], *, or_more: bool = False) -> Iterator[None]:
    """Within this, noise multipliers that `calibrate` tries before it searches; `or_more`: larger ones will do, too."""
    token = _SUGGESTED.set(tuple(noise for noise in noises if TOLERANCE < noise <= _LARGEST_NOISE))
    loose = _OR_MORE.set(or_more)
    try:
        yield
    finally:
        _OR_MORE.reset(loose)
        _SUGGESTED.reset(token)


def _bisect(cost: Callable[[float], float], target: float, low: End, high: End, tolerance: float) -> float:
    while high[0] - low[0] > tolerance:
        guess = _interpolate(low, high, target)
        width = high[0] - low[0]
        for noise in (guess - 0.45 * tolerance, guess + 0.45 * tolerance):
            low, high = _tighten(low, high, noise, cost, target)
        if high[0] - low[0] > width / 2:
            low, high = _tighten(low, high, (low[0] + high[0]) / 2, cost, target)
    return high[0]


def _bracket(cost: Callable[[float], float], target: float, noise: float, factor: float) -> tuple[End, End]:
    """Two noise multipliers that bracket the target, found by ever larger steps from `noise`."""
    value = cost(noise)
    grows = value > target
    while True:
        following = noise * factor if grows else noise / factor
        factor = min(factor**2, 2.0)
        if following > _LARGEST_NOISE:
            raise AccountingError("an ε that some noise can reach", f"{target}", "It is too small for this mechanism.")
        if following < TOLERANCE:
            return (0.0, math.inf), (noise, value)
        ahead = cost(following)
        if (ahead > target) != (value > target):
            ends = sorted([(noise, value), (following, ahead)])
            return ends[0], ends[1]
        noise, value = following, ahead


def _interpolate(low: End, high: End, target: float) -> float:
    """Where a power law through both ends meets the target; the midpoint if there is no such law."""
    if not (low[0] > 0 and math.isfinite(low[1]) and high[1] > 0 and low[1] > high[1]):
        return (low[0] + high[0]) / 2
    share = math.log(low[1] / target) / math.log(low[1] / high[1])
    return math.exp(math.log(low[0]) + share * math.log(high[0] / low[0]))


def _tighten(low: End, high: End, noise: float, cost: Callable[[float], float], target: float) -> tuple[End, End]:
    if not low[0] < noise < high[0]:
        return low, high
    value = cost(noise)
    return ((noise, value), high) if value > target else (low, (noise, value))


def _file(key: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "airlock" / "calibration" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _recall(key: str) -> float | None:
    try:
        entry = json.loads(_file(key).read_text(encoding="utf-8"))
        if entry["key"] == key and math.isfinite(entry["noise_multiplier"]) and entry["noise_multiplier"] > 0:
            return float(entry["noise_multiplier"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _remember(key: str, noise: float) -> None:
    """Best effort: a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError, RuntimeError):
        target = _file(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as file:
            json.dump({"key": key, "noise_multiplier": noise}, file)
        os.replace(file.name, target)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Roughly the noise multiplier of one Gaussian mechanism that is (ε, δ)-DP, in closed form (Balle and Wang 2018).

    For rules of thumb, which have to be public and quick; a guarantee is computed by `calibrate`.
    """
    low, high = math.log(1e-6), math.log(1e9)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _gaussian_delta(epsilon, math.exp(middle)) > delta else (low, middle)
    return math.exp(high)


def _gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """Φ(1/2z − εz) − e^ε Φ(−1/2z − εz)."""
    half, reach = 0.5 / noise_multiplier, epsilon * noise_multiplier
    both = [float(log_ndtr(half - reach)), epsilon + float(log_ndtr(-half - reach))]
    return math.exp(both[0]) - math.exp(min(both[1], both[0]))

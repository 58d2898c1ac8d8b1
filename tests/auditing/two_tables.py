"""What holds of both kinds of tables about the test part: of errors, and of losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from airlock.auditing.two_tables import UNIT
from airlock.mechanisms import NoisyCounts, Stream
from airlock.training.outcomes import Outcomes

Tables = Callable[[Outcomes], tuple[NDArray[np.int64], NDArray[np.int64]]]


def one_record_moves_each_by_one_unit(tables: Tables, pairs: Sequence[tuple[int, int]], i: int) -> None:
    labels, predicted = np.array(pairs, np.int64).T
    keep = np.arange(len(pairs)) != i % len(pairs)
    whole = tables(Outcomes(labels, predicted))
    less = tables(Outcomes(labels[keep], predicted[keep]))
    for table, fewer in zip(whole, less, strict=True):
        assert (table >= 0).all()
        assert table.sum() == UNIT * len(pairs)
        assert np.abs(table - fewer).sum() == UNIT


def noise_has_the_accounted_scale(
    tables: Tables, evaluate: Callable[[Outcomes, float, Stream], Any], names: tuple[str, str], known: Outcomes
) -> None:
    epsilon = 2.0
    made = [evaluate(known, epsilon, Stream.from_seed(seed)) for seed in range(100)]
    for name, table, share in zip(names, tables(known), (0.75, 0.25), strict=True):
        away = np.array([getattr(one, name) for one in made]) - table
        scale = NoisyCounts(share * epsilon / UNIT).variance ** 0.5
        assert away.std() == pytest.approx(scale, rel=0.15)
        assert stats.kstest(away.ravel() / scale, stats.laplace(scale=0.5**0.5).cdf).pvalue > 1e-4


def intervals_cover(of: Callable[[int], Any], truth: Any, names: Sequence[str], tries: int = 60) -> None:
    """Of figures by seed, at least 93%."""
    hits = dict.fromkeys(names, 0)
    for seed in range(tries):
        found = of(seed)
        for key in hits:
            one = getattr(found, key)
            hits[key] += one.low <= getattr(truth, key).value <= one.high
    assert all(count >= 0.93 * tries for count in hits.values()), hits

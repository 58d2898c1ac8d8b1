"""LiRA against its formulas written out record by record, and on nets that do and do not remember."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from airlock.auditing.attacks import balanced, lira
from airlock.auditing.attacks.lira import from_signals, offline, online
from airlock.auditing.attacks.signals import scaled_logit
from airlock.data import Records
from airlock.errors import ConfigError, DataError
from airlock.training import Resident, predict
from airlock.training.augment import named
from airlock.training.devices import to_input
from tests.auditing.attacks.toy import MODELS, POOL, RUN, at_chance, auc, beats_chance, world

Kind = Literal["online", "offline"]


def slow(kind: str, target: np.ndarray, shadows: np.ndarray, inside: np.ndarray, variance: str) -> np.ndarray:
    """Record by record and query by query."""
    records, queries = target.shape
    pooled = {}
    for side in (True, False):
        for q in range(queries):
            rest = [shadows[inside[:, r] == side, r, q] for r in range(records)]
            over = sum(((own - own.mean()) ** 2).sum() for own in rest)
            pooled[side, q] = np.sqrt(over / sum(len(own) - 1 for own in rest))
    found = np.zeros(records)
    for r in range(records):
        for q in range(queries):
            own = {side: shadows[inside[:, r] == side, r, q] for side in (True, False)}
            sd = {s: np.std(own[s], ddof=1) if variance == "record" else pooled[s, q] for s in own}
            law = {s: stats.norm(own[s].mean(), sd[s]) for s in own}
            t = target[r, q]
            found[r] += law[True].logpdf(t) - law[False].logpdf(t) if kind == "online" else -law[False].logsf(t)
    return found / queries


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("variance", ["global", "record"])
def test_scores_equal_the_formulas(variance: Any, queries: int) -> None:
    rng = np.random.default_rng(queries)
    inside = balanced(10, 17, 0)
    shadows = rng.normal(size=(10, 17, queries)) * 2 + 3 * inside[..., None]
    target = rng.normal(size=(17, queries)) * 3
    for kind, score in (("online", online), ("offline", offline)):
        expected = slow(kind, target, shadows, inside, variance)
        assert np.abs(score(target, shadows, inside, variance) - expected).max() < 1e-9
        if queries == 1:
            assert np.abs(score(target[:, 0], shadows[..., 0], inside, variance) - expected).max() < 1e-9


@given(st.permutations(range(9)), st.integers(0, 99))
def test_permuted_records_have_permuted_scores(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside, shadows, target = balanced(6, 9, seed), rng.normal(size=(6, 9)), rng.normal(size=9)
    for score in (online, offline):
        whole = score(target, shadows, inside)
        assert np.allclose(score(target[order], shadows[:, order], inside[:, order]), whole[order], atol=1e-12)


@pytest.mark.parametrize("kind", ["online", "offline"])
@pytest.mark.parametrize("variance", ["global", "record"])
def test_it_finds_what_a_net_remembers_and_nothing_else(kind: Kind, variance: Any) -> None:
    here = world()
    found = lira(kind, predict(here.target, here.pool).numpy(), here.member, here.shadows, variance)
    assert beats_chance(found), auc(found)
    assert at_chance(lira(kind, predict(here.stranger, here.pool).numpy(), here.member, here.shadows, variance))
    assert found.member_repeats is not None
    assert found.member_repeats.shape == (2, len(found.members))
    assert stats.spearmanr(*found.member_repeats).statistic > 0.3
    assert not np.array_equal(*found.member_repeats)


def test_several_queries_about_a_record_are_scored_together() -> None:
    """Each record and three shifted copies of it, the same ones for all models."""
    here = world()
    change = named("shift")
    assert change is not None
    x = to_input(torch.from_numpy(here.pool.x))
    copies = [change(x, torch.Generator().manual_seed(copy)).numpy() for copy in range(3)]
    asked = [here.pool, *(Records(own, here.pool.y) for own in copies)]

    def ask(models: Any) -> np.ndarray:
        return np.stack([scaled_logit(models(records), records.y) for records in asked], -1)

    many = ask(lambda records: here.models.logits(Resident(records, RUN.device)).numpy())
    assert many.shape == (MODELS, POOL, 4)
    alone = ask(lambda records: predict(here.models.model(3), records).numpy())
    assert np.allclose(many[3], alone, atol=1e-3)
    assert np.allclose(many[..., 0], here.shadows.each(scaled_logit), atol=1e-3)
    target = ask(lambda records: predict(here.target, records).numpy())
    found = from_signals("online", target, here.member, many, here.shadows.inside, here.pool.y)
    assert beats_chance(found), auc(found)


def test_online_beats_the_loss_alone() -> None:
    here = world()
    logits = predict(here.target, here.pool).numpy()
    own = scaled_logit(logits, here.pool.y)
    plain = np.mean(own[here.member][:, None] > own[~here.member])
    assert auc(lira("online", logits, here.member, here.shadows))[0] > plain


def test_offline_needs_no_model_with_the_record() -> None:
    rng = np.random.default_rng(0)
    inside, shadows = np.zeros((8, 30), bool), rng.normal(size=(8, 30))
    member = np.arange(30) < 15
    found = from_signals("offline", shadows[0] + 5 * member, member, shadows, inside, np.zeros(30, np.int64))
    assert beats_chance(found)
    with pytest.raises(ConfigError, match="at least two shadow models"):
        online(shadows[0], shadows, inside)
    with pytest.raises(DataError, match="same records"):
        offline(shadows[0, :9], shadows, inside)

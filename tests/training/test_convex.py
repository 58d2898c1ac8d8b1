"""Certified heads: neighbours stay within the sensitivity, the certificate is honest, and no other head comes out."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from airlock.config import STEPS
from airlock.errors import TrainingError
from airlock.training import convex
from airlock.training.convex import ConvexHead, HuberHead, LogisticHead, _Heads, solve

Shard = tuple[Tensor, Tensor]


def random_shard(seed: int, count: int, width: int, classes: int) -> Shard:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=chance, dtype=torch.float64)
    return x, torch.randint(classes, (count,), generator=chance)


def hard_shard(count: int, cosine: float = 0.05) -> Shard:
    """Records nearly orthogonal to (1, 0, ...), all of class 1: they make class 0 unlikely there and hardly hold on."""
    sign = 1.0 - 2.0 * (torch.arange(count) % 2)
    x = torch.stack([torch.full((count,), cosine), sign * math.sqrt(1 - cosine**2)], 1)
    return x.double(), torch.ones(count, dtype=torch.int64)


HARD_RECORD = (torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0]))


def joined(a: Shard, b: Shard) -> Shard:
    return torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])


def without(shard: Shard, i: int) -> Shard:
    keep = torch.arange(len(shard[1])) != i
    return shard[0][keep], shard[1][keep]


def apart(a: Shard, b: Shard, objective: ConvexHead) -> float:
    return float((solve([a], objective) - solve([b], objective)).norm())


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 6), st.floats(1e-4, 1.0), st.floats(0.3, 3.0))
@settings(max_examples=40, deadline=None)
def test_one_record_moves_a_head_by_no_more_than_the_sensitivity(
    seed: int, count: int, classes: int, regularisation: float, bound: float
) -> None:
    """Real numbers of records beside the public one, features beyond the bound, the head that one record less gives."""
    objective = LogisticHead(classes, regularisation, 30, bound=bound)
    shard = random_shard(seed, count, 4, classes)
    less = without(shard, seed % count)
    assert apart(shard, less, objective) <= objective.sensitivity()
    other = joined(less, random_shard(seed + 1, 1, 4, classes))
    assert apart(shard, other, objective) <= objective.sensitivity("replace-one")


def with_targets(shard: Shard, seed: int) -> Shard:
    """Targets in steps, some of them far outside the range."""
    chance = torch.Generator().manual_seed(seed)
    return shard[0], torch.randint(-3 * STEPS, 4 * STEPS, (len(shard[1]),), generator=chance)


@given(st.integers(0, 10**6), st.integers(1, 60), st.floats(0.01, 0.5), st.floats(1e-4, 1.0), st.floats(0.3, 3.0))
@settings(max_examples=40, deadline=None)
def test_one_record_moves_a_regression_by_no_more_than_the_sensitivity(
    seed: int, count: int, threshold: float, regularisation: float, bound: float
) -> None:
    objective = HuberHead(1, regularisation, 30, bound=bound, threshold=threshold)
    shard = with_targets(random_shard(seed, count, 4, 2), seed)
    less = without(shard, seed % count)
    assert apart(shard, less, objective) <= objective.sensitivity()
    other = joined(less, with_targets(random_shard(seed + 1, 1, 4, 2), seed + 1))
    assert apart(shard, other, objective) <= objective.sensitivity("replace-one")


def test_a_record_far_off_moves_a_regression_by_almost_the_sensitivity() -> None:
    """Nobody else stands in its direction, so that only regularisation holds it back."""
    objective = HuberHead(1, 1e-2, 1000, threshold=0.1)
    others = with_targets(hard_shard(400, cosine=0.0), 1)
    record = (torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([STEPS]))
    moved = apart(joined(others, record), others, objective)
    assert 0.95 * objective.sensitivity() < moved <= objective.sensitivity()


def test_a_regression_is_at_its_minimum() -> None:
    """At a wide threshold and targets close to zero it is ridge regression, which has a formula."""
    objective = HuberHead(1, 0.01, 200, tolerance=1e-6, threshold=0.5)
    x, _ = random_shard(3, 200, 4, 2)
    x = objective.bounded(x)
    t = 0.3 * x[:, 0]
    found = solve([(x, torch.round((t + 0.5) * STEPS).long())], objective)[0]
    wanted = torch.linalg.solve(x.mT @ x / 200 + 0.01 * torch.eye(4, dtype=torch.float64), x.mT @ t / 200)
    assert torch.allclose(found[0], wanted, atol=1e-5)


@pytest.mark.parametrize(("outputs", "threshold"), [(2, 0.1), (1, 0.0), (1, 0.6)])
def test_a_regression_that_the_proof_does_not_cover_is_refused(outputs: int, threshold: float) -> None:
    with pytest.raises(ValueError, match="one output"):
        HuberHead(outputs, 0.1, 10, threshold=threshold)


def test_a_hard_record_comes_near_the_sensitivity_and_half_of_it_would_not_do() -> None:
    objective = LogisticHead(2, 1e-3, 1000)
    others = hard_shard(400, cosine=0.02)
    moved = apart(joined(others, HARD_RECORD), others, objective)
    assert 0.9 * objective.sensitivity() < moved <= objective.sensitivity()


def test_the_sensitivity_is_the_papers_formula_with_the_gap() -> None:
    objective = LogisticHead(10, 2e-3, 500, tolerance=1e-2, bound=1.5)
    exact = math.sqrt(2) * 1.5 / (2e-3 * 500)
    assert objective.exact_sensitivity == pytest.approx(exact)
    gap = 2 * objective.largest_gradient / 2e-3
    assert objective.sensitivity() == pytest.approx(exact + gap)
    assert objective.sensitivity("replace-one") == pytest.approx(2 * exact + gap)
    assert gap == pytest.approx(1e-2 * exact)


@given(st.integers(0, 10**6), st.integers(2, 4), st.floats(0.0, 200.0))
@settings(max_examples=15, deadline=None)
def test_no_gradients_norm_is_above_its_certificate(seed: int, classes: int, size: float) -> None:
    """Against the gradient in 50 digits, at heads of any size, also where the computed one is near zero."""
    objective, shard = LogisticHead(classes, 0.01, 12), random_shard(seed, 12, 3, classes)
    heads = _Heads([shard], objective)
    minimiser = solve([shard], LogisticHead(classes, 0.01, 12, tolerance=1e-9))
    far = size * torch.randn(1, classes, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for w in (minimiser, far):
        computed = heads.gradient(w)
        exact = exact_gradient(w[0], heads.x[0], shard[1], objective)
        pairs = zip(computed.flatten().tolist(), exact, strict=True)
        error = math.sqrt(sum(float(mpmath.mpf(c) - e) ** 2 for c, e in pairs))
        norm = float(mpmath.sqrt(sum(e**2 for e in exact)))
        assert norm <= float(heads.certified(w, computed))
        stated = objective._error(3, 12, 1.01 * float(w.norm()), 1.01 * float(w.norm(dim=2).max()))
        assert error <= stated
        assert stated < 1e-11 * (1 + size)


def exact_gradient(
    w: Tensor, x: Tensor, y: Tensor, objective: LogisticHead, weights: list[float] | None = None
) -> list[mpmath.mpf]:
    with mpmath.workdps(50):
        rows = [[mpmath.mpf(float(v)) for v in row] for row in w]
        total = [[mpmath.mpf(objective.regularisation) * v for v in row] for row in rows]
        for record, label, weight in zip(x.tolist(), y.tolist(), weights or [1.0] * len(y), strict=True):
            powers = [mpmath.exp(sum(a * mpmath.mpf(b) for a, b in zip(row, record, strict=True))) for row in rows]
            for c, power in enumerate(powers):
                share = mpmath.mpf(weight) * (power / sum(powers) - (c == label))
                for d, b in enumerate(record):
                    total[c][d] += share * mpmath.mpf(b) / objective.records
        return [v for row in total for v in row]


def test_the_distance_to_the_minimiser_is_the_certified_one() -> None:
    shard = random_shard(3, 200, 6, 4)
    rough, sharp = (LogisticHead(4, 1e-2, 200, tolerance=t) for t in (0.5, 1e-8))
    gap = float((solve([shard], rough) - solve([shard], sharp)).norm())
    assert 0 < gap <= rough.largest_gradient / 1e-2


@pytest.mark.parametrize("names", [["_MOST"], ["_WIDEST"], ["_MOST", "_WIDEST"]])
def test_a_head_is_certified_however_the_solver_fares(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without iterations of L-BFGS, without factors of the curvature: it takes longer and comes out the same."""
    objective, shards = LogisticHead(4, 1e-3, 200), [random_shard(3, 200, 6, 4), random_shard(4, 0, 6, 4)]
    expected = solve(shards, objective)
    for name in names:
        monkeypatch.setattr(convex, name, 1)
    found = solve(shards, objective)
    assert torch.allclose(found, expected, atol=2 * objective.largest_gradient / 1e-3)
    assert not convex._Heads(shards, objective).uncertified(found).any()


@pytest.fixture
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as many as the minimum takes, in a test that asks for more than floating point can give."""
    monkeypatch.setattr(convex, "_MOST", 300)


@pytest.mark.usefixtures("few_iterations")
def test_votes_need_no_certificate() -> None:
    objective, shard = LogisticHead(4, 1e-2, 200, tolerance=1e-13), random_shard(3, 200, 6, 4)
    assert torch.isfinite(solve([shard], objective, certify=False)).all()


@pytest.mark.usefixtures("few_iterations")
def test_a_tolerance_below_floating_point_is_refused() -> None:
    objective, shard = LogisticHead(4, 1e-2, 200, tolerance=1e-13), random_shard(3, 200, 6, 4)
    assert objective.largest_gradient < objective.sharpest(6)
    with pytest.raises(TrainingError, match="floating point"):
        solve([shard], objective)


def test_heads_of_disjoint_shards_are_those_that_each_shard_gives_alone() -> None:
    objective = LogisticHead(3, 1e-2, 40)
    shards = [random_shard(i, count, 5, 3) for i, count in enumerate((40, 7, 1, 0))]
    together = solve(shards, objective)
    for shard, head in zip(shards, together, strict=True):
        assert float((solve([shard], objective)[0] - head).norm()) <= 2 * objective.largest_gradient / 1e-2
    assert not together[3].any()


def test_features_are_brought_within_the_bound() -> None:
    rows = [[3.0, 4.0], [math.nan, 0.0], [math.inf, 1.0], [1e200, 1e200], [0.0, 0.0], [0.1, 0.1]]
    x = torch.tensor(rows, dtype=torch.float64)
    found = LogisticHead(2, 1.0, 1, bound=0.5).bounded(x)
    assert (found.norm(dim=1) <= 0.5).all()
    assert found[0].tolist() == pytest.approx([0.3, 0.4])
    assert not found[1:3].any()
    assert found[3].norm() == pytest.approx(0.5)
    assert torch.equal(found[5], x[5])


# People.


def of_people(seed: int, counts: list[int], classes: int) -> tuple[Shard, Tensor, Tensor]:
    """So many records of each person, their weights, and whose they are."""
    whose = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return random_shard(seed, len(whose), 4, classes), 1.0 / torch.tensor(counts, dtype=torch.float64)[whose], whose


@given(st.integers(0, 10**6), st.lists(st.integers(1, 50), min_size=1, max_size=12), st.floats(1e-4, 1.0))
@settings(max_examples=30, deadline=None)
def test_one_person_moves_a_head_by_no_more_than_the_sensitivity(
    seed: int, counts: list[int], regularisation: float
) -> None:
    objective = LogisticHead(3, regularisation, 8)
    (x, y), weights, whose = of_people(seed, counts, 3)
    rest = whose != seed % len(counts)
    whole, less = (
        solve([(x[own], y[own])], objective, weights=[weights[own]]) for own in (torch.ones_like(rest), rest)
    )
    assert float((whole - less).norm()) <= objective.sensitivity()


def test_a_person_of_fifty_records_comes_near_the_sensitivity_and_without_weights_goes_far_beyond() -> None:
    objective, others = LogisticHead(2, 1e-3, 1000), hard_shard(400, cosine=0.02)
    person = (HARD_RECORD[0].repeat(50, 1), HARD_RECORD[1].repeat(50))
    both = joined(others, person)
    weights = torch.cat([torch.ones(400), torch.full((50,), 1 / 50)]).double()
    less = solve([others], objective)
    moved = float((solve([both], objective, weights=[weights]) - less).norm())
    assert 0.9 * objective.sensitivity() < moved <= objective.sensitivity()
    assert float((solve([both], objective) - less).norm()) > 4 * objective.sensitivity()


def test_a_person_of_equal_records_is_as_one_record() -> None:
    objective, (x, y) = LogisticHead(3, 0.01, 20, tolerance=1e-7), random_shard(1, 20, 4, 3)
    times = torch.arange(20) % 7 + 1
    weights = 1.0 / times.double().repeat_interleave(times)
    many = solve([(x.repeat_interleave(times, 0), y.repeat_interleave(times))], objective, weights=[weights])
    assert float((many - solve([(x, y)], objective)).norm()) < 4 * objective.largest_gradient / 0.01


@given(st.integers(0, 10**6), st.lists(st.integers(1, 12), min_size=2, max_size=5), st.floats(0.0, 50.0))
@settings(max_examples=10, deadline=None)
def test_no_weighted_gradients_norm_is_above_its_certificate(seed: int, counts: list[int], size: float) -> None:
    """Against 50 digits, in one block and in blocks of four."""
    objective = LogisticHead(3, 0.01, 4)
    shard, weights, _ = of_people(seed, counts, 3)
    w = size * torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for block in (convex._BLOCK, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(convex, "_BLOCK", block)
            heads = _Heads([shard], objective, [weights])
            computed = heads.gradient(w)
            exact = exact_gradient(w[0], heads.x[0], shard[1], objective, weights.tolist())
            certified = float(heads.certified(w, computed))
            stated = objective._error(4, heads.total, 1.01 * float(w.norm()), 1.01 * float(w.norm()), len(weights))
        pairs = zip(computed.flatten().tolist(), exact, strict=True)
        assert math.sqrt(sum(float(mpmath.mpf(c) - e) ** 2 for c, e in pairs)) <= stated < 1e-11 * (1 + size)
        assert float(mpmath.sqrt(sum(e**2 for e in exact))) <= certified


def test_rounding_grows_with_people_and_hardly_with_their_records() -> None:
    objective = LogisticHead(2, 1e-3, 1000)
    assert objective.sharpest(10, 10_000, convex.MOST_ROWS) < 20 * objective.sharpest(10, 10_000)
    assert objective.largest_gradient > 2 * objective.sharpest(10, 10_000, convex.MOST_ROWS)

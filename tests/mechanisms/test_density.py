"""The exponential mechanism over a density: its scores, its distribution, its sensitivity, its bandwidths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import Tensor

from airlock.errors import AccountingError
from airlock.mechanisms import Stream
from airlock.mechanisms.density import (
    TOLERANCE,
    DensityMechanism,
    largest_score,
    published_sensitivity,
    sensitivity,
    sheather_jones,
    silverman,
)

MODELS = 12


def slices(columns: int, models: int = MODELS, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(models, columns, generator=made, dtype=torch.float64) * 0.01 + torch.arange(columns) / 7


def around(block: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
    return block.amin(0) - bandwidth, block.amax(0) + bandwidth


def by_definition(column: Tensor, grid: Tensor, bandwidth: float, window: float) -> np.ndarray:
    ends = [(grid.numpy()[:, None] + side * window * bandwidth / 2 - column.numpy()) / bandwidth for side in (1, -1)]
    return np.asarray((stats.norm.cdf(ends[0]) - stats.norm.cdf(ends[1])).mean(1))


def test_scores_are_those_of_scipys_kernel_density() -> None:
    block = slices(5, models=50)
    bandwidth = silverman(block)
    low, high = around(block, bandwidth)
    mechanism = DensityMechanism(1.0, published_sensitivity(50))
    found, grid = mechanism.scores(block, low, high, bandwidth), mechanism.grid(low, high)
    for j in range(5):
        kernel = stats.gaussian_kde(block[:, j].numpy(), "silverman")
        b = math.sqrt(kernel.covariance[0, 0])
        assert float(bandwidth[j]) == pytest.approx(b, rel=1e-12)
        wanted = [kernel.integrate_box_1d(t - b / 2, t + b / 2) for t in grid[j].tolist()]
        np.testing.assert_allclose(found[j].numpy(), wanted, rtol=0, atol=TOLERANCE)


@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=30),
    st.floats(0.003, 3.0),
    st.floats(0.05, 6.0),
    st.floats(0.05, 8.0),
    st.integers(2, 40),
)
@settings(max_examples=150, deadline=None)
def test_scores_are_right_within_the_tolerance_for_any_values_range_and_bandwidth(
    values: list[float], bandwidth: float, window: float, radius: float, points: int
) -> None:
    block = torch.tensor(values, dtype=torch.float64)[:, None]
    mechanism = DensityMechanism(1.0, 0.1, window, points)
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (-radius, radius))
    b = torch.tensor([bandwidth], dtype=torch.float64)
    found = mechanism.scores(block, low, high, b)[0].numpy()
    wanted = by_definition(block[:, 0], mechanism.grid(low, high)[0], bandwidth, window)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def test_columns_of_very_different_bandwidths_do_not_disturb_each_other() -> None:
    block = slices(40)
    block[0, :10] = 50.0  # one value far off: a small part of the range is a bandwidth
    bandwidth = torch.logspace(-4, 1, 40, dtype=torch.float64)
    low, high = torch.full((40,), -3.0).double(), torch.full((40,), 9.0).double()
    mechanism = DensityMechanism(1.0, 0.1)
    found = mechanism.scores(block, low, high, bandwidth)
    grid = mechanism.grid(low, high)
    for j in range(40):
        wanted = by_definition(block[:, j], grid[j], float(bandwidth[j]), 1.0)
        np.testing.assert_allclose(found[j].numpy(), wanted, rtol=0, atol=TOLERANCE)


def plausible(places: Tensor, probabilities: np.ndarray) -> bool:
    counts = np.bincount(places.numpy(), minlength=len(probabilities))
    return bool(stats.chisquare(counts, probabilities * counts.sum()).pvalue > 1e-4)


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_draws_follow_the_exponential_mechanism_and_twice_the_epsilon_is_noticed(epsilon: float) -> None:
    column = slices(1)
    bandwidth = silverman(column)
    low, high = around(column, bandwidth)
    mechanism = DensityMechanism(epsilon, published_sensitivity(MODELS), points=16)
    scores = by_definition(column[:, 0], mechanism.grid(low, high)[0], float(bandwidth), 1.0)

    def wanted(strength: float) -> np.ndarray:
        weights = np.exp(strength * scores / (2 * published_sensitivity(MODELS)))
        return np.asarray(weights / weights.sum())

    many = 60_000
    ends = (low.expand(many), high.expand(many), bandwidth.expand(many))
    places = mechanism.pick(column.expand(-1, many), *ends, Stream.from_seed(4))
    assert plausible(places, wanted(epsilon))
    assert not plausible(places, wanted(2 * epsilon))
    assert not plausible(places, wanted(epsilon / 2))
    exact = mechanism.probabilities(column, low, high, bandwidth)[0].numpy()
    np.testing.assert_allclose(exact, wanted(epsilon), atol=1e-6)


def test_values_are_those_of_the_grid_and_noise_is_never_used_twice() -> None:
    block = slices(3000).float()
    bandwidth = silverman(block)
    low, high = around(block.double(), bandwidth)
    mechanism = DensityMechanism(1.0, 0.01, points=32)
    stream = Stream.from_seed(1)
    drawn = mechanism.sample(block, low, high, bandwidth, stream)
    assert drawn.dtype == block.dtype
    gaps = (mechanism.grid(low, high) - drawn[:, None].double()).abs().amin(1)
    assert float((gaps / bandwidth).max()) < 1e-2  # float32
    assert stream.drawn_on == ("cpu",)
    with pytest.raises(RuntimeError, match="already read"):
        mechanism.sample(block, low, high, bandwidth, stream)


@given(st.integers(2, 60), st.floats(0.1, 5.0), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_one_model_moves_a_score_by_at_most_kappa_over_m(models: int, window: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = torch.from_numpy(rng.normal(size=(models, 1)) * rng.choice([0.01, 1.0, 10.0]))
    other = block.clone()
    other[0] = rng.normal() * 10
    ends = [torch.tensor([v], dtype=torch.float64) for v in (-15.0, 15.0, 0.5)]
    mechanism = DensityMechanism(1.0, 1.0, window)
    whole = mechanism.scores(block, *ends)
    for neighbour in (other, block[1:]):
        moved = float((whole - mechanism.scores(neighbour, *ends)).abs().max())
        assert moved <= sensitivity(models, window) + 2 * TOLERANCE


def test_the_sensitivity_is_reached_and_the_papers_is_18_times_too_small() -> None:
    block = torch.zeros(50, 1, dtype=torch.float64)
    far = block.clone()
    far[0] = 5.0
    ends = [torch.tensor([v], dtype=torch.float64) for v in (-10.0, 10.0, 0.5)]
    mechanism = DensityMechanism(1.0, published_sensitivity(50), points=4001)
    moved = float((mechanism.scores(block, *ends) - mechanism.scores(far, *ends)).abs().max())
    assert moved == pytest.approx(sensitivity(50, 1.0), rel=1e-6)
    assert moved / published_sensitivity(50) == pytest.approx(18.76, abs=0.01)
    assert largest_score(1.0) == pytest.approx(stats.norm.cdf(0.5) - stats.norm.cdf(-0.5))


def test_the_stated_epsilon_of_a_column_bounds_every_ratio_and_the_papers_does_not() -> None:
    """Every other model at one place, the last there or far off: the ratio comes close to the bound."""
    close = torch.zeros(50, 1, dtype=torch.float64)
    far = close.clone()
    far[-1] = 5.0
    ends = [torch.tensor([v], dtype=torch.float64) for v in (-6.0, 6.0, 0.5)]
    mechanism = DensityMechanism(1.0, published_sensitivity(50))
    one, other = (mechanism.probabilities(block, *ends).log() for block in (far, close[:-1]))
    largest = float((one - other).abs().max())
    bound = mechanism.true_epsilon(50) + mechanism.slack
    assert 18.0 < largest <= bound < 18.77
    correct = DensityMechanism(1.0, sensitivity(50, 1.0))
    assert correct.true_epsilon(50) == pytest.approx(1.0)
    assert correct.slack < 1e-6
    assert correct.distance * 1_199_882 < 2e-5


def textbook(column: np.ndarray) -> float:
    """Sheather and Jones' equation, term by term, for one column."""
    n = len(column)
    gaps = (column[:, None] - column)[~np.eye(n, dtype=bool)]
    quartiles = np.percentile(column, [25, 75])
    scale = min(column.std(ddof=1), (quartiles[1] - quartiles[0]) / 1.349)

    def fourth(h: float) -> float:
        z = gaps / h
        return float(((z**4 - 6 * z**2 + 3) * stats.norm.pdf(z)).sum() + 3 * n * stats.norm.pdf(0)) / (
            n * (n - 1) * h**5
        )

    def sixth(h: float) -> float:
        z = gaps / h
        total = ((z**6 - 15 * z**4 + 45 * z**2 - 15) * stats.norm.pdf(z)).sum() - 15 * n * stats.norm.pdf(0)
        return -float(total) / (n * (n - 1) * h**7)

    ratio = fourth(1.24 * scale * n ** (-1 / 7)) / sixth(1.23 * scale * n ** (-1 / 9))
    alpha = 1.357 * ratio ** (1 / 7)
    top = 1.144 * column.std(ddof=1) * n**-0.2

    def equation(h: float) -> float:
        return float((1 / (2 * math.sqrt(math.pi) * n * fourth(alpha * h ** (5 / 7)))) ** 0.2 - h)

    return float(optimize.brentq(equation, 0.1 * top, top, xtol=1e-14))


def test_sheather_jones_solves_its_equation_on_every_column() -> None:
    block = slices(6, models=40, seed=3)
    block[::2, 3:] += 0.05  # two heaps: a smaller bandwidth than Silverman's
    found = sheather_jones(block)
    for j in range(6):
        assert float(found[j]) == pytest.approx(textbook(block[:, j].numpy()), rel=1e-4)
    assert bool((found[3:] < 0.8 * silverman(block)[3:]).all())
    torch.testing.assert_close(sheather_jones(block * 1e-6), found * 1e-6, rtol=1e-6, atol=0)


def test_bandwidths_where_there_is_no_density() -> None:
    block = torch.zeros(20, 2, dtype=torch.float64)
    block[0, 1] = 1.0  # the inner half is constant
    assert silverman(block)[0] == 0
    torch.testing.assert_close(sheather_jones(block), silverman(block))


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"sensitivity": 0.0}, {"window": -1.0}, {"points": 1}])
def test_a_mechanism_without_a_budget_or_a_grid_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(AccountingError, match="above 0"):
        DensityMechanism(**{"epsilon": 1.0, "sensitivity": 1.0, **wrong})  # type: ignore[arg-type]

"""DP-PGP's groups: selection, residuals in both readings, and what may be said about them."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import stats

from airlock.accounting.epsilon import compute_epsilon
from airlock.errors import ConfigError, TrainingError
from airlock.mechanisms import PrivateKMeans, Stream
from airlock.papers.twin.groups import GroupSettings, claimed_epsilon, count_selected, publish_groups, select

LAYER = np.random.default_rng(0).normal(size=2000) * 0.1


def test_nothing_is_selected_with_a_share_of_0() -> None:
    stream = Stream.from_seed(0)
    found = publish_groups(LAYER, GroupSettings(share=0.0), stream)
    assert len(found.positions) == len(found.values) == len(found.centroids) == 0
    assert found.claimed_epsilon == 0
    assert found.event == dpa.NoOpDpEvent()
    assert stream.drawn_on == ()
    assert claimed_epsilon([found], 1.5) == 1.5


@pytest.mark.parametrize(
    ("size", "share", "wanted"), [(5, 0.2, 1), (10, 0.3, 3), (4, 0.2, 0), (7, 1.0, 7), (9, 0.5, 4)]
)
def test_how_many_are_selected(size: int, share: float, wanted: int) -> None:
    assert count_selected(size, share) == wanted
    assert len(select(np.arange(size, dtype=float), share)) == wanted


def test_the_largest_magnitudes_are_selected_or_what_is_significant() -> None:
    layer = np.array([0.1, -3.0, 0.2, 2.0, -0.3])
    assert select(layer, 0.4).tolist() == [1, 3]
    assert select(layer, 0.4, np.array([5.0, 1.0, 4.0, 0.0, 0.0])).tolist() == [0, 2]
    with pytest.raises(ConfigError, match="one significance for each of 5"):
        select(layer, 0.4, np.ones(3))


def test_with_large_budgets_the_parameters_come_back_and_as_printed_their_reflections() -> None:
    settings = GroupSettings(share=0.3, clusters=6, cluster_epsilon=50.0, residual_epsilon=1e6)
    found = publish_groups(LAYER, settings, Stream.from_seed(1))
    own = LAYER[found.positions]
    assert len(own) == 600
    assert np.abs(found.values - own).max() < 1e-5
    printed = publish_groups(LAYER, GroupSettings(0.3, 6, 50.0, 1e6, printed=True), Stream.from_seed(1))
    nearest = printed.centroids[np.abs(own[:, None] - printed.centroids).argmin(1)]
    assert np.abs(printed.values - (2 * nearest - own)).max() < 1e-5
    assert np.abs(printed.values - own).max() > 0.01


def residuals_have_scale(values: np.ndarray, scale: float) -> bool:
    """Whether noise around the parameters is Laplace of this scale, at 1e-4."""
    return bool(stats.kstest(values / scale, "laplace").pvalue > 1e-4)


def test_the_noise_of_a_residual_is_its_sensitivity_over_epsilon() -> None:
    settings = GroupSettings(1.0, 4, 1.0, 2.0, bound=0.2, sensitivity="range")
    found = publish_groups(LAYER, settings, Stream.from_seed(2))
    noise = found.values - np.clip(LAYER, -0.2, 0.2)
    assert residuals_have_scale(noise, 0.4 / 2.0)
    assert not residuals_have_scale(noise / 2, 0.4 / 2.0)


def test_the_noise_of_a_cluster_goes_by_its_diameter() -> None:
    layer = np.concatenate([np.random.default_rng(1).uniform(-1.0, -0.9, 1000), np.linspace(0.2, 1.0, 1000)])
    found = publish_groups(layer, GroupSettings(1.0, 2, 20.0, 2.0), Stream.from_seed(2))
    for own, width in ((slice(0, 1000), np.ptp(layer[:1000])), (slice(1000, 2000), 0.8)):
        noise = found.values[own] - layer[own]
        assert residuals_have_scale(noise, width / 2.0)
        assert not residuals_have_scale(noise / 2, width / 2.0)


def test_what_is_claimed_and_what_it_costs() -> None:
    published = publish_groups(LAYER, GroupSettings(0.01, 4, 1.0, 4.0), Stream.from_seed(0))
    assert published.claimed_epsilon == 5.0
    assert claimed_epsilon([published], 1.0) == 5.0
    assert claimed_epsilon([published], 7.0) == 7.0
    assert published.event == dpa.NonPrivateDpEvent()
    for other in (
        GroupSettings(0.01, 4, bound=1.0),
        GroupSettings(0.01, 4, bound=1.0, sensitivity="range", printed=True),
    ):
        assert publish_groups(LAYER, other, Stream.from_seed(0)).event == dpa.NonPrivateDpEvent()


def test_costs_add_up_over_the_parameters_of_a_layer() -> None:
    """20 selected: 20 residuals of ε3, and a k-means in which each of 20 points leaves a cluster and enters another."""
    settings = GroupSettings(0.01, 4, 0.01, 0.1, bound=0.5, sensitivity="range")
    event = publish_groups(LAYER, settings, Stream.from_seed(0)).event
    assert isinstance(event, dpa.ComposedDpEvent)
    clusters, residuals = event.events
    assert residuals == dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(10.0), 20)
    assert compute_epsilon(clusters, 1e-12).epsilon == pytest.approx(2 * 20 * 0.01, rel=0.01)
    assert compute_epsilon(PrivateKMeans(4, 0.01, 20).event, 1e-12).epsilon == pytest.approx(0.01, rel=0.05)
    assert compute_epsilon(event, 1e-12).epsilon == pytest.approx(20 * 0.1 + 0.4, rel=0.02)


def test_equal_parameters_get_no_noise_as_published() -> None:
    found = publish_groups(np.full(50, 0.3), GroupSettings(1.0, 1, 100.0, 1.0), Stream.from_seed(0))
    assert found.values == pytest.approx(np.full(50, 0.3))


def test_bad_settings_are_refused() -> None:
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="γ from 0 to 1"):
            GroupSettings(share=share)
    for bad in ({"cluster_epsilon": 0.0}, {"residual_epsilon": -1.0}, {"bound": math.inf}):
        with pytest.raises(ConfigError, match="above 0"):
            GroupSettings(**bad)
    with pytest.raises(ConfigError, match="at least 1 cluster"):
        GroupSettings(clusters=0)
    with pytest.raises(ConfigError, match="1 to 4 clusters, at most as many as points"):
        publish_groups(LAYER[:20], GroupSettings(0.2, 5), Stream.from_seed(0))
    with pytest.raises(TrainingError, match="NaN or infinity"):
        publish_groups(np.array([1.0, math.nan]), GroupSettings(1.0, 1), Stream.from_seed(0))


def test_zeros_alone_have_no_range_and_stay() -> None:
    made = publish_groups(np.zeros(9), GroupSettings(1.0, 1), Stream.from_seed(0))
    assert not made.values.any()
    assert made.event == dpa.NonPrivateDpEvent()

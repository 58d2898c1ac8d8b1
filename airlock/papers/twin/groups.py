"""DP-PGP's groups (Mao et al. 2020, section IV and algorithm 2): the most significant parameters of a layer, clustered.

In: one layer of the target model, flat. Out: its most significant parameters, each as the centroid of its group and a
noisy residual; the rest of the layer goes through DP-PG. What the paper claims for it is ε2 + ε3 for the groups of a
layer, ε1 for the rest, and the largest of these over all layers for the model: `claimed_epsilon`.

The claim does not hold, whatever the numbers, and `LayerGroups.event` says what does. Which parameters are selected is
published without noise. A group's own diameter, used as sensitivity, depends on the values, and a parameter that lands
in another group gets noise of another scale, so no ε bounds the ratio of densities. Even with a public bound, one model
moves every parameter of the layer and not just one of them, so their costs add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.errors import ConfigError, TrainingError
from airlock.mechanisms.kmeans import PrivateKMeans, assign_nearest
from airlock.mechanisms.laplace import LaplaceNoise
from airlock.mechanisms.randomness import Stream
from airlock.training.ensembles.checkpoint_store import Slices

Values = NDArray[np.float64]
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class GroupSettings:
    """How the significant parameters of a layer are published.

    Args:
        share: γ, the share of a layer's parameters that are selected, from 0 to 1.
        clusters: k of a layer.
        cluster_epsilon: ε2, of the private k-means.
        residual_epsilon: ε3, of a residual's noise.
        printed: Line 21 of algorithm 2 as printed, c + (c - θ) + noise, which reflects a parameter at its centroid;
            without, c - (c - θ + noise), which is near it.
        bound: A public bound of the parameters' magnitude, to which they are clipped; without it, as published, the
            largest of the selected ones.
        sensitivity: Δo: "cluster", the diameter of a parameter's own group, clipped to the bounds (as published), or
            "range", that of the bounds.
    """

    share: float = 0.2
    clusters: int = 8
    cluster_epsilon: float = 1.0
    residual_epsilon: float = 4.0
    printed: bool = False
    bound: float | None = None
    sensitivity: Literal["cluster", "range"] = "cluster"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError("a selection ratio γ from 0 to 1", f"{self.share}", "It is a share of a layer.")
        if self.clusters < 1:
            raise ConfigError("at least 1 cluster", f"{self.clusters}")
        for name, value in (("ε2", self.cluster_epsilon), ("ε3", self.residual_epsilon), ("a bound", self.bound)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} above 0", f"{value}", "Noise needs a finite scale above 0.")


@dataclass(frozen=True)
class LayerGroups:
    """The published parameters of one layer.

    Args:
        positions: Which were selected, in ascending order.
        values: What is published in their places.
        centroids: Of their groups; empty where nothing was selected.
        claimed_epsilon: ε2 + ε3, or 0 where nothing was selected.
        event: What this costs if one whole model may change, *were the selection public*: that of the k-means in which
            every point may move, and of as many residuals as were selected. `NonPrivateDpEvent` where the bounds or
            Δo depend on the values, and as printed (a reflection moves by more than Δo when the group changes). The
            selection itself is never accounted for: nothing is proven by this event.
    """

    positions: Positions
    values: Values
    centroids: Values
    claimed_epsilon: float
    event: dpa.DpEvent


def count_selected(size: int, share: float) -> int:
    """How many of a layer's parameters are selected: γ · n, rounded down (but 0.2 · 5 is 1)."""
    return min(size, int(share * size + 1e-9))


def select(layer: Values, share: float, significance: Values | None = None) -> Positions:
    """The positions of the most significant parameters, ascending; as published, without noise.

    Args:
        layer: Of the target model, flat.
        share: γ.
        significance: One number per parameter, the larger the more significant; the magnitude when left out.
    """
    worth = np.abs(layer) if significance is None else significance
    if worth.shape != layer.shape:
        raise ConfigError(f"one significance for each of {layer.size} parameters", f"an array {worth.shape}")
    order = np.argsort(-worth, kind="stable")
    return np.sort(order[: count_selected(layer.size, share)]).astype(np.int64)


def publish_groups(
    layer: Values, settings: GroupSettings, stream: Stream, significance: Values | None = None
) -> LayerGroups:
    """Select, cluster privately, and publish every selected parameter by centroid and noisy residual.

    Args:
        layer: Of the target model, flat.
        settings: γ, k, ε2, ε3 and what the paper leaves open.
        stream: Secret; its children are read once.
        significance: As in `select`.

    Raises:
        ConfigError: There are more clusters than selected parameters.
        TrainingError: A parameter is not finite.
    """
    layer = np.asarray(layer, np.float64).reshape(-1)
    if not np.isfinite(layer).all():
        raise TrainingError("finite parameters in the target model", "NaN or infinity", "They have no magnitude.")
    positions = select(layer, settings.share, significance)
    if not len(positions):
        return LayerGroups(positions, np.empty(0), np.empty(0), 0.0, dpa.NoOpDpEvent())
    bound = float(np.abs(layer[positions]).max()) if settings.bound is None else settings.bound
    if bound == 0:  # zeros alone have no range to cluster in, and stay
        return LayerGroups(positions, np.zeros(len(positions)), np.zeros(1), 0.0, dpa.NonPrivateDpEvent())
    kmeans = PrivateKMeans(settings.clusters, settings.cluster_epsilon, len(positions), -bound, bound)
    points = np.clip(layer[positions], -bound, bound)
    centroids = kmeans.fit(points, stream.child("clusters"))
    group = assign_nearest(points[:, None], centroids)
    values = _tuned(points, centroids[:, 0], group, bound, settings, stream.child("residuals"))
    claimed = settings.cluster_epsilon + settings.residual_epsilon
    return LayerGroups(positions, values, centroids[:, 0], claimed, _event(kmeans, len(points), settings))


def _tuned(
    points: Values, centroids: Values, group: Positions, bound: float, settings: GroupSettings, stream: Stream
) -> Values:
    """Every point as its centroid and a noisy residual, group by group, because each group has its own Δo."""
    values = np.empty_like(points)
    for place, centroid in enumerate(centroids):
        own = points[group == place]
        if not len(own):
            continue
        width = 2.0 * bound if settings.sensitivity == "range" else float(own.max() - own.min())
        residuals = centroid - own
        if width > 0:  # a group of equal points has a diameter of 0 and, as published, no noise
            residuals = LaplaceNoise(width, 1.0 / settings.residual_epsilon).add(residuals, stream.child(place))
        values[group == place] = centroid + residuals if settings.printed else centroid - residuals
    return values


def _event(kmeans: PrivateKMeans, count: int, settings: GroupSettings) -> dpa.DpEvent:
    """One model more or less, in the average that is published, may move each of `count` points anywhere in the range.

    Every point that moves leaves one cluster and enters another, so counts and sums of an iteration change by up to
    2 · count instead of 1; a residual's noise covers the whole range, and there are `count` of them.
    """
    if settings.bound is None or settings.sensitivity != "range" or settings.printed:
        return dpa.NonPrivateDpEvent()
    noises = (kmeans.count_noise, kmeans.sum_noise)
    iteration = dpa.ComposedDpEvent([dpa.LaplaceDpEvent(own.noise_multiplier / (2 * count)) for own in noises])
    residual = dpa.LaplaceDpEvent(1.0 / settings.residual_epsilon)
    return dpa.ComposedDpEvent(
        [dpa.SelfComposedDpEvent(iteration, kmeans.iterations), dpa.SelfComposedDpEvent(residual, count)]
    )


def claimed_epsilon(groups: Sequence[LayerGroups], rest_epsilon: float) -> float:
    """What the paper prints for a model: the largest over layers of ε2 + ε3 and ε1 (its equation 9, corollary 4)."""
    return max([rest_epsilon, *(layer.claimed_epsilon for layer in groups)])


def publish_layers(values: Tensor, slices: Slices, settings: GroupSettings, stream: Stream) -> list[LayerGroups]:
    """Put every layer's published parameters into a drawn model, in place; a layer is a module's own parameters.

    The target model is the average of the collection.
    """
    average = slices.average().double().numpy()
    found = []
    for number, places in enumerate(layers(slices.net)):
        layer = publish_groups(average[places], settings, stream.child(number))
        values[torch.from_numpy(places[layer.positions])] = torch.from_numpy(layer.values).to(values.dtype)
        found.append(layer)
    return found


def check_sizes(net: nn.Module, settings: GroupSettings) -> None:
    """Refuse more clusters than a layer has significant parameters, before anything is trained.

    Raises:
        ConfigError: A layer is too small.
    """
    for places in layers(net):
        selected = count_selected(len(places), settings.share)
        if 0 < selected < settings.clusters:
            raise ConfigError(
                f"at least {settings.clusters} significant parameters in every layer, one per cluster",
                f"{selected} of {len(places)} in one",
                do="Lower settings.clusters, or raise settings.significant.",
            )


def layers(net: nn.Module) -> list[Positions]:
    """The positions of every module's own parameters among all, in the order of `named_parameters`."""
    own: dict[str, list[Positions]] = {}
    place = 0
    for name, parameter in net.named_parameters():
        positions = np.arange(place, place + parameter.numel(), dtype=np.int64)
        own.setdefault(name.rpartition(".")[0], []).append(positions)
        place += parameter.numel()
    return [np.concatenate(parts) for parts in own.values()]

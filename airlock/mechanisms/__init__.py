"""Randomised primitives, each small and cited, with its guarantee in the docstring.

Randomness is passed in as a `Stream`. The cost of one call is the mechanism's `event`, or is stated in its guarantee.

    randomness     secret streams as a tree, each leaf read once, and public seeds
    clipping       per-record clipping, flat or by layer
    gaussian       the Gaussian mechanism on a grid, on a CPU or a GPU
    gpu_kernel     its Triton kernels; imported only if Triton is installed
    laplace        the Laplace mechanism on a grid
    discrete       discrete Gaussian and Laplace noise, sampled exactly
    counts         counts with two-sided geometric noise
    exponential    the exponential mechanism over a few options
    repeat_and_select  the best of a secret random number of runs
    quantile       a clipping bound that follows a quantile of the gradients' norms
    local          local mechanisms, which randomise every record by itself
    reconstruction what nobody can reconstruct from the output of such a mechanism
    aggregate      sample and aggregate: one release from disjoint shards
    kmeans         private k-means
    density        the exponential mechanism over a kernel density estimate
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.mechanisms.aggregate import (
        ShardDensity,
        ShardMean,
        ShardProbabilities,
        ShardVotes,
        SureVotes,
        bounded,
        probable,
    )
    from airlock.mechanisms.clipping import BALANCE, Clip, clip_factors
    from airlock.mechanisms.counts import NoisyCounts
    from airlock.mechanisms.discrete import GridNoise
    from airlock.mechanisms.exponential import ExponentialMechanism
    from airlock.mechanisms.gaussian import GaussianNoise
    from airlock.mechanisms.kmeans import PrivateKMeans
    from airlock.mechanisms.laplace import LaplaceNoise
    from airlock.mechanisms.local import LocalGaussian, RandomisedResponse
    from airlock.mechanisms.quantile import QuantileBound
    from airlock.mechanisms.randomness import Place, Randomness, Stream
    from airlock.mechanisms.repeat_and_select import RepeatAndSelect

__all__ = [
    "BALANCE",
    "Clip",
    "ExponentialMechanism",
    "GaussianNoise",
    "GridNoise",
    "LaplaceNoise",
    "LocalGaussian",
    "NoisyCounts",
    "Place",
    "PrivateKMeans",
    "QuantileBound",
    "RandomisedResponse",
    "Randomness",
    "RepeatAndSelect",
    "ShardDensity",
    "ShardMean",
    "ShardProbabilities",
    "ShardVotes",
    "Stream",
    "SureVotes",
    "bounded",
    "clip_factors",
    "probable",
]

lazy.load(__name__)

"""Randomised primitives, each small, cited, and with its guarantee in the docstring.

Randomness is passed in as a `Stream`. What one call costs is a mechanism's `event`, or stands in its guarantee.

    randomness     secret streams as a tree, each leaf read once, and public seeds
    clipping       per-record clipping, flat or by layer
    gaussian       the Gaussian mechanism on a grid, on a CPU or a GPU
    gpu_kernel     its Triton kernels; imported only where Triton is
    laplace        the Laplace mechanism on a grid
    discrete       discrete Gaussian and Laplace noise, sampled exactly
    counts         counts with two-sided geometric noise
    exponential    the exponential mechanism over a few options
    quantile       a clipping bound that follows a quantile of the gradients' norms
    local          mechanisms that make every record safe by itself
    reconstruction what nobody can rebuild from the output of such a mechanism
    aggregate      sample and aggregate: what disjoint shards say, released once
    kmeans         private k-means
    density        the exponential mechanism over a kernel density estimate
"""

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

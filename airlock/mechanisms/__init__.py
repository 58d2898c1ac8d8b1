"""Randomised primitives, each small, cited, and with its guarantee in the docstring."""

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
from airlock.mechanisms.exponential import Choice
from airlock.mechanisms.gaussian import GaussianNoise
from airlock.mechanisms.kmeans import PrivateKMeans
from airlock.mechanisms.laplace import LaplaceNoise
from airlock.mechanisms.local import LocalGaussian, RandomisedResponse
from airlock.mechanisms.quantile import QuantileBound
from airlock.mechanisms.randomness import Place, Randomness, Stream
from airlock.mechanisms.sparse_vector import AboveThreshold

__all__ = [
    "BALANCE",
    "AboveThreshold",
    "Choice",
    "Clip",
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

"""Randomised primitives, each small, cited, and with its guarantee in the docstring."""

from airlock.mechanisms.clipping import BALANCE, Clip, clip_factors
from airlock.mechanisms.gaussian import GaussianNoise
from airlock.mechanisms.quantile import QuantileBound
from airlock.mechanisms.randomness import Randomness, Stream

__all__ = ["BALANCE", "Clip", "GaussianNoise", "QuantileBound", "Randomness", "Stream", "clip_factors"]

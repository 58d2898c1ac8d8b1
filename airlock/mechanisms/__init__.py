"""Randomised primitives, each small, cited, and with its guarantee in the docstring."""

from airlock.mechanisms.clipping import Clip, clip_factors
from airlock.mechanisms.gaussian import GaussianNoise
from airlock.mechanisms.randomness import Randomness, Stream

__all__ = ["Clip", "GaussianNoise", "Randomness", "Stream", "clip_factors"]

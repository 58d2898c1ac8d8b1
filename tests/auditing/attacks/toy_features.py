"""A small front end with random weights and made-up pictures, for the attacks on features."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on, push
from airlock.data import Records
from airlock.nets.synthetic import draw_classes

CPU = torch.device("cpu")
SHAPE, CLASSES = (3, 8, 8), 4


def conv_front(channels: int = 8, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        front = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU())
    return front.eval().requires_grad_(False)


@cache
def pictures(count: int, seed: int = 0) -> Records:
    x, y = draw_classes(count, SHAPE, CLASSES, seed)
    return Records(x.numpy(), y.numpy())


def sides(pipeline: FeaturePipeline, known: int = 200, attacked: int = 60) -> tuple[Pairs, Pairs, Tensor]:
    """What the attacker knows, what it attacks, and the features of the latter as they left."""
    records = pictures(known + attacked)
    both = push(pipeline, records, CPU)
    target = both.take(slice(known, None))
    return both.take(slice(known)), target, pipeline.noisy(target.clean, generator_on(CPU, 99))

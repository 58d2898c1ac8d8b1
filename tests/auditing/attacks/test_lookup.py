"""Without noise membership is a look-up; with noise the score is the likelihood ratio of one mixture over another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from airlock.auditing.attacks.lookup import lookup
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on, push
from airlock.auditing.metrics import measure
from tests.auditing.attacks.toy_features import CPU, conv_front, pictures


def parts(pipeline: FeaturePipeline) -> tuple[Pairs, Pairs, Pairs, Tensor]:
    """Members, others, a population, and what left of the members."""
    both = push(pipeline, pictures(300), CPU)
    members, others, population = (both.take(slice(100 * i, 100 * (i + 1))) for i in range(3))
    return members, others, population, pipeline.noisy(members.clean, generator_on(CPU, 7))


def blocks(left: Tensor, y: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(left[i : i + 30].numpy(), y[i : i + 30].numpy()) for i in range(0, len(y), 30)]


def test_published_features_are_found_and_no_others() -> None:
    members, others, population, left = parts(FeaturePipeline(conv_front()))
    scores = lookup(FeaturePipeline(conv_front()), blocks(left, members.y), members, others, population)
    assert scores.name == "look-up of features"
    assert scores.view == "front"
    assert scores.members.min() > scores.others.max()
    assert measure(scores, 1e-5).value == 1.0


def test_the_score_under_noise_is_the_likelihood_ratio() -> None:
    pipeline = FeaturePipeline(conv_front(2), clip=1.0, sigma=0.3)
    members, others, population, left = parts(pipeline)
    scores = lookup(pipeline, blocks(left, members.y), members, others, population)
    x, ratio = members.clean[3].flatten().double(), 0.0
    for z in left[members.y == members.y[3]].flatten(1).double():

        def density(centre: Tensor, z: Tensor = z) -> Tensor:
            return (-((z - centre).square().sum(-1)) / (2 * 0.3**2)).exp()

        usual = density(population.clean[population.y == members.y[3]].flatten(1).double()).mean()
        ratio += float(density(x) / usual)
    assert scores.members[3] == pytest.approx(np.log(ratio), rel=1e-6)


def test_noise_hides_members_by_degrees() -> None:
    found = []
    for sigma in (0.03, 0.2, 20.0):
        pipeline = FeaturePipeline(conv_front(), clip=1.0, sigma=sigma)
        members, others, population, left = parts(pipeline)
        found.append(measure(lookup(pipeline, blocks(left, members.y), members, others, population), 1e-5).value)
    assert found[0] > 0.95 > found[1] > 0.5
    assert 0.35 < found[2] < 0.65


def test_a_label_that_never_left_scores_lowest() -> None:
    members, others, population, left = parts(FeaturePipeline(conv_front()))
    alone = Pairs(others.x, others.clean, torch.full_like(others.y, 9))
    scores = lookup(FeaturePipeline(conv_front()), blocks(left, members.y), members, alone, population)
    assert np.isfinite(scores.others).all()
    assert scores.others.max() < scores.members.min()

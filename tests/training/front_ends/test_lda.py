"""Fisher's criterion per channel: what the definition gives, streamed, with a ridge where there is no inverse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from airlock.data import Records
from airlock.errors import NetError
from airlock.nets.prefix import open_prefix
from airlock.nets.synthetic import draw_classes
from airlock.training import Run
from airlock.training.devices import to_input
from airlock.training.front_ends.lda import Scatter, discriminability, usefulness


def records(seed: int, count: int, classes: int, channels: int = 3, side: int = 2) -> tuple[Tensor, Tensor]:
    chance = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), chance.integers(classes, size=count - classes)])
    centres = chance.normal(size=(classes, channels, side, side)) * chance.uniform(0, 2, size=(1, channels, 1, 1))
    maps = centres[labels] + chance.normal(size=(count, channels, side, side))
    return torch.from_numpy(maps), torch.from_numpy(labels)


def dense(maps: Tensor, labels: Tensor) -> list[float]:
    """By the definition, one channel after another."""
    found = []
    for channel in range(maps.shape[1]):
        z, y = maps[:, channel].flatten(1).numpy(), labels.numpy()
        within = sum(np.cov(z[y == k].T, bias=True) * (y == k).sum() for k in np.unique(y))
        off = np.stack([z[y == k].mean(0) - z.mean(0) for k in np.unique(y)])
        found.append(float(scipy.linalg.eigh(off.T @ off, within, eigvals_only=True)[-1]))
    return found


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(30, 90), classes=st.integers(2, 6), cut=st.integers(1, 29))
def test_streamed_is_what_the_definition_gives(seed: int, count: int, classes: int, cut: int) -> None:
    maps, labels = records(seed, count, classes)

    def batches() -> list[tuple[Tensor, Tensor]]:
        return [(maps[:cut], labels[:cut]), (maps[cut:], labels[cut:])]

    wanted = dense(maps, labels)
    assert np.allclose(discriminability(batches, (3, 2, 2), classes), wanted, rtol=1e-6)
    assert np.allclose(discriminability(batches, (3, 2, 2), classes, limit=1), wanted, rtol=1e-6)
    assert np.allclose(discriminability(lambda: [(7 * maps + 3, labels)], (3, 2, 2), classes), wanted, rtol=1e-5)


def test_with_two_classes_it_is_the_distance_that_sklearn_finds() -> None:
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    maps, labels = records(1, 400, 2, channels=1)
    z = maps.flatten(1).numpy()
    fitted = discriminant.LinearDiscriminantAnalysis(solver="eigen").fit(z, labels.numpy())
    line = z @ fitted.scalings_[:, 0]
    own = [line[labels.numpy() == k] for k in (0, 1)]
    within = sum(((part - part.mean()) ** 2).sum() for part in own)
    between = sum((part.mean() - line.mean()) ** 2 for part in own)
    assert discriminability(lambda: [(maps, labels)], (1, 2, 2), 2)[0] == pytest.approx(between / within, rel=1e-6)


def test_dead_and_repeated_places_need_no_inverse() -> None:
    maps, labels = records(2, 60, 3)
    maps[:, 0] = 0
    maps[:, 1, :, 1] = maps[:, 1, :, 0]
    scores = discriminability(lambda: [(maps, labels)], (3, 2, 2), 3)
    assert scores[0] == 0
    half = dense(maps[:, 1:2, :, :1], labels)[0]
    assert scores[1] == pytest.approx(half, rel=0.02)
    assert torch.isfinite(scores).all()
    few = discriminability(lambda: [(maps[:5], labels[:5])], (3, 2, 2), 3)
    assert torch.isfinite(few).all()


def test_what_tells_classes_apart_scores_higher() -> None:
    maps, labels = records(3, 300, 4)
    maps[:, 2] = torch.randn(300, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = discriminability(lambda: [(maps, labels)], (3, 2, 2), 4)
    assert scores.argmin() == 2


def test_channels_of_a_front_end_by_its_first_records() -> None:
    images, labels = draw_classes(40, (3, 8, 8), 3, 0)
    front, public = open_prefix("vgg16", 3, (3, 8, 8)), Records(images.numpy(), labels.numpy())
    found = usefulness(front, public, 3, Run(), count=30)
    wanted = discriminability(lambda: [(front(to_input(images[:30])), labels[:30])], front.shape, 3)
    assert list(found) == list(range(64))
    assert np.allclose(list(found.values()), wanted, rtol=1e-4)


def test_one_class_alone_is_refused() -> None:
    scatter = Scatter(1, 4, 3)
    scatter.add(torch.rand(5, 1, 2, 2), torch.zeros(5))
    with pytest.raises(NetError, match="at least two classes"):
        scatter.scores()
    with pytest.raises(NetError, match="found none"):
        discriminability(lambda: [], (1, 2, 2), 2)

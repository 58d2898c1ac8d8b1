"""A few known records name the front end and its channels; dead channels are not counted, noise makes it harder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from airlock.auditing.attacks.identify import Guess, identify
from airlock.auditing.features.feature_pipeline import FeaturePipeline, generator_on
from airlock.auditing.features.reconstruction_metrics import named
from airlock.errors import DataError
from airlock.training.devices import to_input
from tests.auditing.attacks.toy_features import CPU, conv_front, pictures


def net(seed: int, layers: int) -> nn.Module:
    """Two convolutions with 24 channels each, cut after the first or the second."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
    with torch.no_grad():
        whole[2].bias[:3] = -100.0  # three dead channels of the second
    return whole[: 2 * layers].eval().requires_grad_(False)


POOL = {f"net {seed}, layer {layers}": net(seed, layers) for seed in range(4) for layers in (1, 2)}
TRUE = "net 2, layer 2"
X = to_input(torch.from_numpy(pictures(8).x))


@pytest.mark.parametrize("clip", [None, 0.5])
def test_four_known_records_name_every_live_channel(clip: float | None) -> None:
    kept = [5, 0, 1, 2, *range(23, 5, -1)]
    chosen = nn.Sequential(POOL[TRUE], _Pick(kept))
    pipeline = FeaturePipeline(chosen, clip=clip)
    guess = identify(pipeline.clean(X[:4]), X[:4], POOL, by_record=clip is not None)
    assert guess.candidate == TRUE
    assert sum(guess.live) <= len(kept) - 3  # the dead ones
    assert guess.right(TRUE, kept) == sum(guess.live) > 10
    assert guess.right("net 1, layer 2", kept) == 0


def test_noise_hides_the_channels() -> None:
    kept = list(range(3, 24))
    pipeline = FeaturePipeline(nn.Sequential(POOL[TRUE], _Pick(kept)), clip=1.0, sigma=1.0)
    found = []
    for k in (1, 4):
        noisy = pipeline.noisy(pipeline.clean(X[:k]), generator_on(CPU, k))
        found.append((k, identify(noisy, X[:k], POOL, by_record=True)))
    result = named(found, TRUE, kept, [24] * 8)
    assert result.known == (1, 4)
    assert result.candidates == 8
    assert result.chance == pytest.approx(1 / 192)
    assert result.right[-1] < result.live[-1] / 2
    assert result.low <= result.right[-1] / result.live[-1] <= result.high


def test_nothing_live_names_nothing_and_other_sizes_are_refused() -> None:
    guess = identify(torch.zeros(2, 3, 8, 8), X[:2], POOL)
    assert guess == Guess("", (0,) * 3, (0.0,) * 3, (False,) * 3)
    assert named([(2, guess)], TRUE, [0, 1, 2], [24]).high == 1.0
    with pytest.raises(DataError, match="another size"):
        identify(torch.rand(2, 3, 5, 5), X[:2], {"front": conv_front()})


class _Pick(nn.Module):
    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, self.channels]

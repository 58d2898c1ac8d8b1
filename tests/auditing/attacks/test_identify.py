"""A few known records name the front end and its channels; dead channels are not counted, noise makes it harder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from airlock.auditing.attacks.identify import Guess, UncoverSettings, identify, uncover
from airlock.auditing.features.feature_pipeline import FeaturePipeline, generator_on
from airlock.auditing.features.reconstruction_metrics import named
from airlock.errors import DataError, NetError
from airlock.nets.prefix import Prefix, narrow
from airlock.nets.stages import ByChannel, Convolution
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


# Channels of every layer kept secret.


def deep(seed: int) -> Prefix:
    """Three convolutions and a pooling."""
    layers, inputs = {}, 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for place, width in enumerate((12, 12, 16)):
            conv = nn.Conv2d(inputs, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            layers[f"conv{place}"], inputs = Convolution(conv, nn.ReLU()), width
    return Prefix(nn.Identity(), layers | {"pool": ByChannel(nn.MaxPool2d(2))}, (3, 12, 12), "deep")


def test_channels_left_out_of_every_layer_are_named_though_no_map_is_a_channels_multiple() -> None:
    whole, x = deep(0), torch.rand(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    inner, own = ((0, 2, 4, 5, 9, 11), (1, 2, 3, 6, 7, 10)), (3, 9, 0, 14)
    released = narrow(whole, own, inner)(x)
    assert identify(released, x, {"whole": whole}).right("whole", own) < 4
    found = uncover(released, x, whole, 0, UncoverSettings(steps=400))
    assert (found.inner, found.channels) == (inner, own)
    assert found.fit > 0.9999
    assert uncover(released, x, deep(9), 0, UncoverSettings(steps=100, starts=1)).fit < 0.9  # another net is not it


def test_a_net_that_cannot_have_given_these_maps_is_refused() -> None:
    with pytest.raises(NetError, match="maps of"):
        uncover(torch.zeros(2, 4, 5, 5), torch.zeros(2, 3, 12, 12), deep(0), 0)

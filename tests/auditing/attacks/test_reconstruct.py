"""Features turned back into pictures: attackers beat the blind guess where they should, and noise takes that away."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from airlock.auditing.attacks.invert import InvertSettings, Tuned, invert, tune
from airlock.auditing.attacks.reconstruct import ReconstructSettings, _solve, learn_linear, learn_net
from airlock.auditing.features.attack import Attackers
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on
from airlock.auditing.features.reconstruction_metrics import (
    best_prior_baseline,
    candidates,
    hits_at_most,
    mean_interval,
    psnr,
    rebuilt,
    trust,
)
from airlock.errors import DataError, Interrupted, TrainingError
from airlock.training import Run
from tests.auditing.attacks.toy_features import CPU, conv_front, sides

QUICK = InvertSettings(steps=40, learning_rate=0.1, variation=(0.0, 0.01), batch_size=15)
FEW = ReconstructSettings(epochs=15, batch_size=50, learning_rate=3e-3)


def test_a_clipped_record_has_no_more_than_the_norm_and_noise_its_spread() -> None:
    free, pipeline = FeaturePipeline(conv_front()), FeaturePipeline(conv_front(), clip=1.0, sigma=0.5)
    known, _, _ = sides(pipeline)
    assert known.clean.flatten(1).norm(dim=1).max() <= 1 + 1e-5
    raw = free.clean(known.x)
    assert torch.allclose(known.clean, raw / raw.flatten(1).norm(dim=1).view(-1, 1, 1, 1), atol=1e-6)
    noise = pipeline.noisy(known.clean, generator_on(CPU, 0)) - known.clean
    assert noise.std().item() == pytest.approx(0.5, rel=0.02)
    assert free.noisy(known.clean, generator_on(CPU, 0)) is known.clean


def test_the_blind_guess_is_the_best_of_four_and_sees_no_features() -> None:
    known, target, _ = sides(FeaturePipeline(conv_front()))
    blind = best_prior_baseline(known)
    assert blind.name.endswith("of the class")  # pictures of a class share shapes
    found = [psnr(one(target.y), target.x).mean().item() for one in candidates(known)]
    assert psnr(blind(target.y), target.x).mean().item() >= max(found) - 0.3
    mean, constant = (psnr(one(known.y), known.x).mean() for one in candidates(known)[:2])
    assert constant > mean  # which is not the best constant for a mean of logarithms
    other = Pairs(known.x, torch.zeros_like(known.clean), known.y)
    assert torch.equal(best_prior_baseline(other).pictures, blind.pictures)


def test_linear_attacker_rebuilds_and_more_noise_leaves_less() -> None:
    found = []
    for sigma in (0.0, 0.2, 5.0):
        pipeline = FeaturePipeline(conv_front(), clip=4.0, sigma=sigma)
        known, target, left = sides(pipeline)
        found.append(
            psnr(learn_linear(pipeline, known, best_prior_baseline(known), 0)(left, target.y), target.x).mean().item()
        )
        blind = psnr(best_prior_baseline(known)(target.y), target.x).mean().item()
    assert found[0] > found[1] + 2 > found[2] + 2
    assert found[0] > blind + 5
    assert blind - 0.3 < found[2] < blind + 1


def test_noise_as_a_ridge_is_the_noise_that_is_drawn() -> None:
    """The closed form is the limit of a ridge regression on very many noisy copies."""
    front = nn.Sequential(nn.Flatten(), nn.Linear(192, 6, bias=False)).requires_grad_(False)
    pipeline = FeaturePipeline(front, sigma=0.7)
    known, _, _ = sides(pipeline, known=40, attacked=2)
    noise = torch.randn(4000, *known.clean.shape, generator=torch.Generator().manual_seed(0))
    copies = (known.clean + 0.7 * noise).flatten(0, 1).double()
    copies = copies - copies.mean(0)
    mean = candidates(known)[0]
    pixels = (known.x.flatten(1) - known.x.flatten(1).mean(0)).repeat(4000, 1).double()
    drawn = torch.linalg.solve(copies.T @ copies, copies.T @ pixels)
    (solved,), (half,) = (_solve(known, mean, sigma, (0.0,)) for sigma in (0.7, 0.35))
    ours, halved = ((one.basis.T @ one.weights).double() for one in (solved, half))
    assert (ours - drawn).norm() < 0.1 * drawn.norm() < (halved - drawn).norm()


def test_inversion_finds_pictures_that_explain_the_features() -> None:
    pipeline = FeaturePipeline(conv_front(16), clip=3.0)
    known, target, left = sides(pipeline, attacked=20)
    blind = best_prior_baseline(known)
    tuned = tune(pipeline, known, [blind(known.y)], blind(known.y), known.clean, 0, QUICK)
    assert tuned.weight in QUICK.variation
    assert tuned.trust == 1.0
    found = invert(pipeline, left, [blind(target.y)], blind(target.y), tuned, 0, Run(), QUICK)
    assert found.shape == target.x.shape
    assert found.min() >= 0
    assert found.max() <= 1
    assert psnr(found, target.x).mean() > psnr(blind(target.y), target.x).mean() + 6


def test_inversion_never_sees_the_true_picture() -> None:
    """The start is chosen by the objective: a start that is the truth in pixels wins only because its features fit."""
    pipeline = FeaturePipeline(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).requires_grad_(False))
    _, target, left = sides(pipeline, attacked=10)
    settings = InvertSettings(steps=1, learning_rate=1e-9, restarts=0, variation=(0.0,))
    tuned, guess = Tuned(torch.tensor(1.0), 0.0, 1.0), torch.zeros_like(target.x)
    wrong = pipeline.clean(target.x.roll(1, 0))
    pick = invert(pipeline, wrong, [target.x, target.x.roll(1, 0)], guess, tuned, 0, Run(), settings)
    assert torch.allclose(pick, target.x.roll(1, 0), atol=1e-6)
    with pytest.raises(DataError, match="a start"):
        invert(pipeline, left, [], guess, tuned, 0, Run(), settings)


def test_trust_is_the_least_squares_step_from_the_blind_guess_or_all_the_way() -> None:
    guess, truth = torch.zeros(4, 1, 2, 2), torch.rand(4, 1, 2, 2)
    assert trust(guess, truth, truth) == 1.0
    assert trust(guess, 2 * truth, truth) == pytest.approx(0.5)
    assert trust(guess, -truth, truth) == 0.0
    mostly = torch.cat([truth[:3], -9 * truth[3:]])  # three of four are right to the last bit
    assert trust(guess, mostly, truth) == 1.0


def test_no_attacker_is_much_worse_than_the_blind_guess_under_noise() -> None:
    pipeline = FeaturePipeline(conv_front(4), clip=1.0, sigma=3.0)
    known, target, left = sides(pipeline)
    everybody = Attackers.learn(pipeline, known, 0, Run(), QUICK, None)
    blind = psnr(everybody.baseline(target.y), target.x).mean().item()
    for made in everybody.make(left, target.y).values():
        assert psnr(made, target.x).mean().item() > blind - 0.5


def test_a_net_learns_to_turn_features_back_and_follows_its_seed() -> None:
    pipeline = FeaturePipeline(conv_front(4), clip=3.0, sigma=0.01)
    known, target, left = sides(pipeline)

    def small(features: tuple[int, ...], image: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Conv2d(features[0], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, image[0], 3, padding=1))

    first, again = (learn_net(pipeline, known, 3, Run(), FEW, small)(left) for _ in range(2))
    assert torch.equal(first, again)
    blind = best_prior_baseline(known)
    assert psnr(first, target.x).mean() > psnr(blind(target.y), target.x).mean() + 2
    with pytest.raises(DataError, match="two known pairs"):
        learn_net(pipeline, known.take(slice(1)), 0, Run(), FEW)


def test_an_interrupted_net_goes_on_where_it_was_and_ends_the_same(tmp_path: Path) -> None:
    pipeline = FeaturePipeline(conv_front(2), sigma=0.1)
    known, _, left = sides(pipeline)
    whole = learn_net(pipeline, known, 3, Run(), FEW)(left)

    def stop(_: str, done: int, __: int) -> None:
        if done == 40:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="--resume"):
        learn_net(pipeline, known, 3, Run(checkpoint=tmp_path, progress=stop), FEW)
    seen: list[int] = []
    again = Run(checkpoint=tmp_path, resume=True, progress=lambda _, done, __: seen.append(done))
    assert torch.equal(learn_net(pipeline, known, 3, again, FEW)(left), whole)
    assert seen[0] == 42
    with pytest.raises(TrainingError, match="this very run"):
        learn_net(pipeline, known, 4, again, FEW)


def test_figures_stand_beside_the_blind_guess() -> None:
    known, target, _ = sides(FeaturePipeline(conv_front()))
    blind = best_prior_baseline(known)
    same = rebuilt("blind", "features", target.x, target.y, blind(target.y), blind, len(known), 20.0)
    assert same.gain == same.gain_low == same.gain_high == 0.0
    assert same.psnr == same.blind_psnr
    assert same.share == same.blind_share
    near = (target.x + 0.01).clamp(0, 1)
    good = rebuilt("near", "front", target.x, target.y, near, blind, len(known), 30.0)
    assert good.low <= good.psnr <= good.high
    assert good.psnr > 39.9
    assert good.share == 1.0
    assert good.share_high == 1.0
    assert good.share_low < 1.0
    assert good.gain_low > good.smallest_effect > 0
    assert good.best_tenth >= good.middle
    assert good.ssim > 0.9 > same.ssim


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says() -> None:
    chance = torch.Generator().manual_seed(1)
    hits = 0
    for trial in range(60):
        low, high = mean_interval(torch.randn(80, generator=chance).exp().numpy(), seed=trial)
        hits += low <= 1.6487 <= high
    assert 48 <= hits <= 60
    with pytest.raises(DataError, match="two values"):
        mean_interval(torch.zeros(1).numpy())


def test_no_picture_hits_more_of_them_than_the_bound_says() -> None:
    known, target, _ = sides(FeaturePipeline(conv_front()))
    guesses = torch.cat([known.x, *(one.pictures for one in candidates(target)), *_middles(target.x)])
    for threshold in (8.0, 12.0, 16.0, 60.0):
        near = torch.stack([psnr(guess.expand_as(target.x), target.x) >= threshold for guess in guesses])
        assert near.double().mean(1).max().item() <= hits_at_most(target.x, threshold) <= 1
    assert hits_at_most(target.x, 60.0) == 1 / 60
    assert hits_at_most(target.x, 0.0) == 1.0
    heaps = torch.cat([torch.zeros(5, 1, 4, 4), torch.ones(3, 1, 4, 4)]) + 0.01 * torch.rand(8, 1, 4, 4)
    assert hits_at_most(heaps, 30.0) == 5 / 8


def _middles(x: torch.Tensor) -> list[torch.Tensor]:
    """Means of every two."""
    return [(one[None] + x) / 2 for one in x]

"""Choosing what leaves: the paper's two regimes, the limit that binds, and which channels go."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.training.front_ends.characterise import Characterisation, Measurement, Point
from airlock.training.front_ends.choose import Chosen, Limits, Option, choose, options
from airlock.training.front_ends.profiling import Profile
from airlock.training.front_ends.prune import draw, draw_front, draw_inner, prune

DEPTHS = (2, 4, 8, 16, 32, 64)


def surface() -> tuple[Option, ...]:
    """Made up in the shape of the paper's Fig. 3: deeper and fewer leak less; deep and few serve less."""
    made = []
    for m in range(1, 7):
        for place, depth in enumerate(DEPTHS):
            psnr = 34 - 3 * m + 1.7 * place - (6 if place == 0 else 0) + (0 if m > 1 or place > 1 else -4.5)
            utility = min(0.8, 0.74 - 0.09 * (3.2 - 0.7 * m) * (place < 2) + 0.01 * place)
            made.append(Option(m, depth, psnr, utility, 1.0 * m * m + depth / 64, 1000.0 * m * depth))
    return tuple(made)


def test_a_generous_limit_takes_the_shallowest_and_a_strict_one_the_deepest() -> None:
    points = surface()
    wide = choose(points, Limits(psnr=40))
    assert (wide.regime, wide.option.layers, wide.option.channels) == ("shallowest", 1, 64)
    strict = choose(points, Limits(psnr=18))
    assert (strict.regime, strict.option.layers) == ("deepest", 6)
    assert strict.option.psnr <= 18
    assert "36 points keep to 18 dB" in strict.why
    assert "deepest" in strict.why
    cheap = choose(points, Limits(psnr=23, milliseconds=10))
    assert cheap.option.layers <= 3
    assert all(p.milliseconds <= 10 and p.psnr <= 23 for p in cheap.feasible)  # type: ignore[operator]


def test_the_papers_two_examples() -> None:
    """Figures in the manner of its Fig. 8: 28 dB take one layer with four channels, 17 dB six layers with four."""
    psnr = {(1, 2): 22.0, (1, 4): 27.6, (1, 8): 31.0, (4, 2): 16.8, (4, 4): 20.1, (4, 8): 23.5, (5, 2): 16.5}
    psnr |= {(5, 4): 18.9, (6, 2): 15.1, (6, 4): 16.9, (6, 8): 18.3, (6, 64): 23.9}
    utility = {2: 0.52, 4: 0.71, 8: 0.74, 64: 0.76}
    served = {(1, 2): 0.68, (1, 4): 0.75, (4, 2): 0.58, (5, 2): 0.56}
    points = [Option(m, d, value, served.get((m, d), utility[d])) for (m, d), value in psnr.items()]
    high, low = choose(points, Limits(psnr=28)).option, choose(points, Limits(psnr=17)).option
    assert (high.layers, high.channels) == (1, 4)
    assert (low.layers, low.channels) == (6, 4)


def test_without_utility_the_decibels_decide() -> None:
    points = [Option(m, d, 30.0 - 2 * m + d) for m in (1, 6) for d in (1, 2)]
    assert choose(points, Limits(psnr=28.9)).option == Option(6, 2, 20.0)  # m = 1 does not keep to it
    assert choose(points, Limits(psnr=29)).option == Option(1, 1, 29.0)
    low = [Option(m, 4, 20.0 - m) for m in (1, 6)]
    assert choose(low, Limits(psnr=19)).option.layers == 6


@settings(max_examples=40, deadline=None)
@given(psnr=st.floats(5, 45) | st.none(), time=st.floats(0.5, 50) | st.none(), size=st.floats(500, 500_000) | st.none())
def test_what_is_taken_keeps_to_every_limit_or_the_error_says_what_binds(
    psnr: float | None, time: float | None, size: float | None
) -> None:
    points, limits = surface(), Limits(psnr, time, size)
    try:
        found = choose(points, limits)
    except ConfigError as error:
        assert "binds" in str(error) or "No single limit" in str(error)
        return
    assert isinstance(found, Chosen)
    assert not any(found.option.exceeds(name, limit) for name, limit in limits.given().items())
    same = [p.channels for p in found.feasible if p.layers == found.option.layers]
    assert found.option.channels == max(same)


def test_the_limit_that_binds_is_named_with_how_much_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"psnr binds: the least is 10 dB \(m = 6, D' = 2\), 5 dB too much"):
        choose(surface(), Limits(psnr=5, milliseconds=100))
    with pytest.raises(ConfigError, match="they contradict each other") as caught:
        choose(surface(), Limits(psnr=11, milliseconds=4))
    assert "psnr binds" in str(caught.value)
    assert "milliseconds binds" in str(caught.value)
    with pytest.raises(ConfigError, match="only where it was measured"):
        choose([Option(1, 4, 20.0)], Limits(bytes=10))
    with pytest.raises(ConfigError, match=r"a positive settings.psnr"):
        Limits(psnr=-3)
    with pytest.raises(ConfigError, match="a characterised front end"):
        choose([], Limits())


def test_options_join_what_was_measured() -> None:
    cells = tuple(Measurement(Point(2, (1, seed)), 0.5 + seed, 20.0 + seed) for seed in (3, 5))
    found = Characterisation("vgg16", "shapes", {2: 64}, cells)
    cost = Profile(2, 2, 3.0, 1.0, 2.0, 0.5, 400, 80, 7)
    assert options(found, [cost]) == (Option(2, 2, 24.0, 4.5, 2.0, 400),)
    assert options(found) == (Option(2, 2, 24.0, 4.5),)
    json.dumps(found.to_dict())


def test_the_leakiest_and_the_least_useful_go() -> None:
    leakage, usefulness = {c: float(c) for c in range(8)}, {c: float(c % 4) for c in range(8)}
    found = prune(8, leakage, usefulness)
    assert (found.leaky, found.useless, found.left) == ((6, 7), (0, 1, 4, 5), (2, 3))
    assert prune(8, leakage, None, leakiest=1).left == tuple(range(7))
    assert prune(8).left == tuple(range(8))
    assert len(prune(128, {c: -c for c in range(128)}, {c: c for c in range(128)}).left) == 64 - 0 - 0
    with pytest.raises(ConfigError, match="none of 8"):
        prune(8, leakage, usefulness, leakiest=4, least_useful=8)
    with pytest.raises(ConfigError, match="none for channel 1"):
        prune(8, {0: 1.0})


def test_subsets_are_equally_likely_and_follow_from_the_key() -> None:
    left = (2, 5, 7, 11)
    seen = Counter(draw(left, 2, Stream.from_seed(i)) for i in range(1200))
    assert len(seen) == 6
    assert all(abs(count - 200) < 5 * (200 * 5 / 6) ** 0.5 for count in seen.values())
    assert draw(left, 3, Stream.from_seed(1)) == draw(left, 3, Stream.from_seed(1))
    with pytest.raises(ConfigError, match="at most the 4 channels that are left"):
        draw(left, 5, Stream.from_seed(0))


def test_inner_channels_and_fronts_are_drawn() -> None:
    found = draw_inner((64, 64, 128), (32, 32, 64), Stream.from_seed(3))
    assert [len(own) for own in found] == [32, 32, 64]
    assert found[0] != found[1]
    with pytest.raises(ConfigError, match="3 numbers"):
        draw_inner((64, 64, 128), (32,), Stream.from_seed(3))
    seen = Counter(draw_front(("a", "b", "c"), Stream.from_seed(i)) for i in range(300))
    assert set(seen) == {"a", "b", "c"}
    assert min(seen.values()) > 60
    with pytest.raises(ConfigError, match="in the pool"):
        draw_front((), Stream.from_seed(0))

"""The audit in one run, and the coverage of every lower bound: `python docs/results/one_run.py ROWS [PART ...]`.

Writes JSON lines. The parts:

* `power`: Gaussian noise for (ε, δ) = (1, 1e-5) that is divided by a number, on coins alone: how often one run refutes
  the claim, by its curve and by its (ε, δ), and the mean lower bounds. 400 runs a row.
* `court`: the same with whole releases of `weights`/`gaussian`, its noise divided in the code that a release runs; ten
  releases a row.
* `mnist-net`: one private training of MNIST-Net (1,199,882 weights) at (1, 1e-5) on 400 records of MNIST: ten steps on
  lots of half of them. Each of 4,000 or 16,000 canaries is a coordinate of its own that gets a gradient of the clip
  norm whenever the canary is in and drawn; what is scored is the sum of the noisy gradients there. Needs AIRLOCK_DATA.
* `coverage`: how often each lower bound of the package exceeds the truth, of 400 simulated runs a row.

One thread; seeds are in the rows.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.accounting import Claim, calibrate, compute_epsilon
from airlock.auditing import dp_audit, judge_one_run, metrics, one_run_audit, one_run_curve
from airlock.auditing.bounds import Floats, auc_interval, epsilon_lower_bound, proportion_interval
from airlock.auditing.noisy_proportion import CountNoise, noisy_interval
from airlock.auditing.one_run_audit import Coins
from airlock.auditing.paid_auc import paid_auc
from airlock.data import Records
from airlock.data.sources import named
from airlock.mechanisms import GaussianNoise, Stream
from airlock.methods import Canaries, open_canaries
from airlock.methods.case import LessNoise, less_noise
from airlock.nets import create
from airlock.training import Poisson, private

Row = dict[str, Any]
Rng = np.random.Generator
EPSILON, DELTA, RUNS = 1.0, 1e-5, 400
DIVISORS = (1.0, 1.5, 2.0, 3.0, 4.0)


def noise_for(event: Callable[[float], dpa.DpEvent]) -> float:
    """The least noise multiplier that keeps the claim."""
    return calibrate(event, EPSILON, DELTA)


def family_of(event: dpa.DpEvent) -> LessNoise:
    """The mechanism with less noise."""
    found = less_noise(event, DELTA)
    assert found is not None
    return found


def coins_with_noise(noise: float, divisor: float, count: int, family: LessNoise) -> Canaries:
    """Canaries whose score is their coin with noise."""

    def run(coins: Coins, stream: Stream) -> NDArray[np.float64]:
        rng = np.random.default_rng(stream.key_stream(16).tolist())
        return np.asarray(coins + rng.normal(0, noise / divisor, len(coins)), np.float64)

    return Canaries(Claim(EPSILON, DELTA, "accounting"), count, "coins", "their sum", run, family)


def summed(canaries: Canaries, seeds: int, row: Row) -> Row:
    """How often a claim is refuted, and by what."""
    begin, found = time.process_time(), [judge_one_run(canaries, Stream.from_seed(seed)) for seed in range(seeds)]
    curve = [verdict.on_curve for verdict in found if verdict.on_curve is not None]
    bounds = [verdict.epsilon_lower_bound for verdict in found]
    row |= {
        "canaries": canaries.count,
        "runs": seeds,
        "seeds": f"0 to {seeds - 1}",
        "refuted": sum(v.refuted for v in found),
    }
    row |= {"by the curve": sum(look.refuted for look in curve), "by (ε, δ)": sum(b >= EPSILON for b in bounds)}
    row |= {"right on the curve": round(float(np.mean([look.correct / look.guesses for look in curve])), 4)}
    some = found[:10]
    row |= {
        "ε by (ε, δ), mean": round(float(np.mean(bounds)), 3),
        "ε by the curve, mean of 10": round(float(np.mean([v.epsilon_of_less_noise or 0.0 for v in some])), 3),
        "noise divided by, mean of 10": round(float(np.mean([v.noise_divided_by or 0.0 for v in some])), 3),
        "could refute noise over": None if found[0].less_noise is None else round(found[0].less_noise, 3),
    }
    return row | {"seconds": round(time.process_time() - begin, 1)}


def power() -> Iterator[Row]:
    """Gaussian noise on coins alone."""
    noise = noise_for(dpa.GaussianDpEvent)
    family = family_of(dpa.GaussianDpEvent(noise))
    for count in (400, 1000, 2000, 5000):
        for divisor in DIVISORS:
            true = round(compute_epsilon(dpa.GaussianDpEvent(noise / divisor), DELTA).epsilon, 3)
            row = {"part": "power", "noise divided by": divisor, "true ε": true}
            yield summed(coins_with_noise(noise, divisor, count, family), RUNS, row)


@contextmanager
def noise_over(divisor: float) -> Iterator[None]:
    """Less noise than is accounted for, in the code that a release runs."""
    scale = GaussianNoise.scale
    GaussianNoise.scale = lambda self, dimension: scale(self, dimension) / divisor  # type: ignore[method-assign]
    try:
        yield
    finally:
        GaussianNoise.scale = scale  # type: ignore[method-assign]


def court() -> Iterator[Row]:
    """Whole releases of a method."""
    for count in (1000, 2000, 4000):
        canaries = open_canaries("weights/gaussian", EPSILON, DELTA, count)
        for divisor in (1.0, 2.0, 3.0):
            with noise_over(divisor):
                yield summed(canaries, 10, {"part": "court", "method": "weights/gaussian", "noise divided by": divisor})


STEPS, RATE, REAL, CLIP = 10, 0.5, 400, 1.0


def mnist_net() -> Iterator[Row]:
    """One training with canaries that are gradients."""

    def event(z: float) -> dpa.DpEvent:
        return dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(RATE, dpa.GaussianDpEvent(z)), STEPS)

    noise = noise_for(event)
    known = named("mnist", None)
    place = known[0].find(known[1]) if known else None
    if place is None:
        raise SystemExit("mnist is not in AIRLOCK_DATA")
    raw, _ = place.read()
    real = Records(raw.x[:REAL], np.asarray(raw.y[:REAL], np.int64))
    for count, divisor in ((4000, 1.0), (4000, 2.0), (16_000, 1.0), (16_000, 2.0)):
        for seed in range(3):

            def run(coins: Coins, stream: Stream) -> NDArray[np.float64]:
                with noise_over(divisor):  # noqa: B023
                    return np.asarray(trained(real, coins, noise, stream), np.float64)

            canaries = Canaries(Claim(EPSILON, DELTA, "accounting"), count, "", "", run, family_of(event(noise)))
            begin, verdict = time.process_time(), judge_one_run(canaries, Stream.from_seed(100 + seed))
            assert verdict.on_curve is not None
            row = {"part": "mnist-net", "noise divided by": divisor, "canaries": count, "seed": 100 + seed}
            row |= {"guesses": verdict.on_curve.guesses, "right": verdict.on_curve.correct, "refuted": verdict.refuted}
            row |= {"ε by (ε, δ)": round(verdict.epsilon_lower_bound, 3), "noise multiplier": round(noise, 4)}
            row |= {"ε by the curve": round(verdict.epsilon_of_less_noise or 0.0, 3)}
            row |= {"noise divided by at least": round(verdict.noise_divided_by or 0.0, 3)}
            yield row | {"seconds": round(time.process_time() - begin, 1)}


def trained(real: Records, coins: Coins, noise: float, stream: Stream) -> Floats:
    """What the noisy gradients of one training show at every canary's coordinate."""
    net = create("mnist-net", (1, 28, 28), 10, 0).eval()  # without dropout
    size = sum(p.numel() for p in net.parameters())
    places = np.random.default_rng(5).permutation(size)[: len(coins)]
    inside = places[coins]
    sampler, optimiser = Poisson(RATE, stream.child("lots")), torch.optim.SGD(net.parameters(), lr=0.5)
    gradients = private.PrivateGradients(CLIP, noise, RATE * REAL, stream.child("noise"))
    scores, drawn, summed_up = np.zeros(len(coins)), np.empty(0, np.int64), vars(private)["clipped_sum"]

    def with_canaries(net: nn.Module, *given: Any, **more: Any) -> tuple[dict[str, Tensor], int]:
        total, dropped = summed_up(net, *given, **more)
        flat = torch.cat([part.flatten() for part in total.values()])
        flat[torch.from_numpy(inside[drawn])] += CLIP
        parts = torch.split(flat, [part.numel() for part in total.values()])
        return {name: part.view_as(total[name]) for name, part in zip(total, parts, strict=True)}, dropped

    vars(private)["clipped_sum"] = with_canaries
    try:
        for step in range(STEPS):
            lot = sampler.draw(step, len(real) + len(inside))
            own, drawn = lot[lot < len(real)], lot[lot >= len(real)] - len(real)
            gradients(net, torch.from_numpy(real.x[own]).float() / _largest(real), torch.from_numpy(real.y[own]), step)
            noisy = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
            scores += noisy[torch.from_numpy(places)].double().numpy()
            optimiser.step()
    finally:
        vars(private)["clipped_sum"] = summed_up
    return scores


def _largest(records: Records) -> float:
    return 255.0 if records.x.dtype == np.uint8 else 1.0


# Coverage.


def coverage() -> Iterator[Row]:
    """Every lower bound at 95%: how often it is above the truth."""
    noise = noise_for(dpa.GaussianDpEvent)
    for place, (name, truth, wrong) in enumerate(bounds(noise)):
        rng = np.random.default_rng((23, place))
        count = sum(bool(wrong(rng)) for _ in range(RUNS))
        high = proportion_interval(count, RUNS, 0.90)[1]
        row = {"part": "coverage", "bound": name, "truth": truth, "runs": RUNS, "wrong": count}
        yield row | {"seed": f"(23, {place})", "its rate is at most, 95%": round(high, 4)}


def response(coins: Coins, epsilon: float, rng: Rng) -> Floats:
    """Randomised response to every coin."""
    kept = rng.random(len(coins)) < 1 / (1 + math.exp(-epsilon))
    return np.where(coins == kept, 1.0, 0.0) + 0.01 * rng.random(len(coins))


def bounds(noise: float) -> Iterator[tuple[str, str, Callable[[Rng], bool]]]:
    """Name, truth, and a run that says whether the bound is wrong."""
    for epsilon in (0.0, 1.0, 3.0):

        def one_run(rng: Rng, epsilon: float = epsilon) -> bool:
            coins = rng.random(400) < 0.5
            looks = one_run_audit.look_at_guesses(response(coins, epsilon, rng), coins, 0.0, 0.95)
            return one_run_audit.best_look(looks).bound > epsilon

        def members(rng: Rng, epsilon: float = epsilon) -> bool:
            coins = rng.random(1000) < 0.5
            scores = response(coins, epsilon, rng)
            return one_run_audit.membership_bound(scores[coins], scores[~coins], 0.0, 0.95) > epsilon

        def pairs(rng: Rng, epsilon: float = epsilon) -> bool:
            coins = rng.random(600) < 0.5
            scores = np.stack([response(coins, epsilon, rng), response(~coins, epsilon, rng)])
            one, other = np.where(coins, scores[0], scores[1]), np.where(coins, scores[1], scores[0])
            return one_run_audit.membership_bound(one, other, 0.0, 0.95, relation="replace-one") > 2 * epsilon

        def fixed(rng: Rng, epsilon: float = epsilon) -> bool:
            one, other = (response(np.full(1000, side), epsilon, rng) for side in (True, False))
            return dp_audit.fixed(one, other, 0.0) > epsilon

        def anytime(rng: Rng, epsilon: float = epsilon) -> bool:
            chance = 1 / (1 + math.exp(-epsilon))
            return dp_audit.anytime(rng.random(2000) < chance, rng.random(2000) < 1 - chance, 0.0, 0.05) > epsilon

        def test_of_one(rng: Rng, epsilon: float = epsilon) -> bool:
            chance = 1 / (1 + math.exp(-epsilon))
            hits = rng.binomial(500, chance), rng.binomial(500, 1 - chance)
            return epsilon_lower_bound(int(hits[0]), 500, int(hits[1]), 500, 0.0) > epsilon

        truth = f"randomised response, ε = {epsilon:g}"
        yield "one run, canaries (look_at_guesses)", truth, one_run
        yield "one release, members (membership_bound)", truth, members
        yield "one release, replaced (membership_bound)", truth, pairs
        yield "many runs (dp_audit.fixed)", truth, fixed
        yield "many runs (dp_audit.anytime)", truth, anytime
        yield "one test (epsilon_lower_bound)", truth, test_of_one
    family = family_of(dpa.GaussianDpEvent(noise))
    for divisor in (1.0, 2.0):
        curve = family.trade_off(divisor)
        assert curve is not None
        for count in (400, 2000):
            guesses = one_run_curve.guesses_of(count)
            fewest = one_run_curve.fewest_correct(curve, count, guesses, 0.05)

            def on_curve(rng: Rng, count: int = count, divisor: float = divisor, fewest: int = fewest) -> bool:
                coins = rng.random(count) < 0.5
                scores = coins + rng.normal(0, noise / divisor, count)
                return one_run_audit.hits(scores, coins, one_run_curve.guesses_of(count)) >= fewest

            yield f"one run, {count} canaries (one_run_curve)", f"Gaussian, noise ÷ {divisor:g}", on_curve
    whole = family.trade_off(1.0)
    assert whole is not None
    least = one_run_curve.fewest_correct(whole, 500, 500, 0.05)
    top = _most_right(whole, 0.045)

    def lucky(rng: Rng) -> bool:
        return rng.binomial(500, top if rng.random() < 0.045 else 0.5) >= least

    yield "one run, 500 canaries (one_run_curve)", "in 4.5% of runs all are told as well as the curve allows", lucky
    for low, count in ((0.0001, 10_000), (0.001, 2000), (0.01, 2000)):

        def rate(rng: Rng, at: float = low, shift: float = 1.0, count: int = count) -> bool:
            others, members = rng.normal(size=count), rng.normal(shift, 1, count)
            found = metrics.rate_at(members, others, at)
            allowed = int(at * count + 1e-9)
            bar = np.partition(others, count - 1 - allowed)[count - 1 - allowed]
            return bool((found.low or 0.0) > 0.5 * math.erfc((bar - shift) / 2**0.5))

        def false(rng: Rng, at: float = low, count: int = count) -> bool:
            others = rng.normal(size=count)
            found = metrics.rate_at(others[:10], others, at)
            allowed = int(at * count + 1e-9)
            bar = np.partition(others, count - 1 - allowed)[count - 1 - allowed]
            high = found.false_positive_rate_high
            return bool((1.0 if high is None else high) < 0.5 * math.erfc(bar / 2**0.5))

        yield f"members found at {100 * low:g}%, lower end (rate_at)", "normal scores, 1 apart", rate
        yield f"members found at {100 * low:g}%: false alarms at most (rate_at)", "normal scores", false

    def gain(rng: Rng) -> bool:
        found = metrics.advantage(rng.normal(size=500), rng.normal(size=500))
        return found is not None and found.low > 0

    def area(rng: Rng) -> bool:
        return auc_interval(rng.normal(0.5, 1, 300), rng.normal(size=300))[1] > 0.5 * math.erfc(-0.5 / 2)

    def paid(rng: Rng) -> bool:
        stream = Stream.from_seed(int(rng.integers(2**31)))
        found = paid_auc("x", rng.normal(0.5, 1, 300), rng.normal(size=300), 300, 300, 1.0, stream)
        return found.low > 0.5 * math.erfc(-0.5 / 2)

    def noisy_share(rng: Rng) -> bool:
        cells = CountNoise(1.0, 1)
        hits = int(rng.binomial(200, 0.9))
        told = [count + int(rng.geometric(p) - rng.geometric(p)) for count in (hits, 200 - hits)
                for p in [-math.expm1(-1.0)]]  # fmt: skip
        parts = ((cells, 1.0, 1.0), (cells, 0.0, 1.0))
        return noisy_interval(told[0], sum(told), parts, CountNoise(1.0, 2))[0] > 0.9

    def sequential(rng: Rng) -> bool:
        chance = 1 / (1 + math.exp(-1.0))
        return dp_audit.Sequential(1.0, 0.0, 0.05).bet(rng.random(2000) < chance, rng.random(2000) < 1 - chance)

    def whole_claim(rng: Rng) -> bool:
        canaries = coins_with_noise(noise, 1.0, 1000, family)
        return judge_one_run(canaries, Stream.from_seed(int(rng.integers(2**31)))).refuted

    yield "advantage, lower end", "uninformative scores", gain
    yield "AUC, lower end (DeLong, asymptotic)", "normal scores, 0.5 apart", area
    yield "AUC on a card, lower end (paid_auc, ε = 1)", "normal scores, 0.5 apart", paid
    yield "proportion of noisy counts, lower end (noisy_interval)", "0.9 of 200, ε = 1", noisy_share
    yield "a true claim refuted by bets (Sequential)", "randomised response, ε = 1", sequential
    yield "a true claim refuted in one run (judge_one_run)", "Gaussian, 1,000 canaries", whole_claim


def _most_right(curve: Any, share: float) -> float:
    """The share of right guesses q with share · q = F(share · (1 − q))."""
    low, high = 0.5, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share * middle <= curve.most_true(share * (1 - middle)) else (low, middle)
    return low


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "coverage": coverage,
    "court": court,
    "mnist-net": mnist_net,
    "power": power,
}


def main() -> None:
    """Write the rows of all parts, or of those named."""
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for name in sys.argv[2:] or PARTS:
            for row in PARTS[name]():
                print(json.dumps(row, ensure_ascii=False), file=file, flush=True)


if __name__ == "__main__":
    main()

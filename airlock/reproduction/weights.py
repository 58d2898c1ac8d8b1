"""Xiang, Yang and Li 2019, optimised additive noise: its tables and figures.

Three mechanisms on the same network, lots, clip norm and iterations. "Optimised" is Algorithm 1 as printed, with the
projected solver, w from all private records in every tenth iteration (in each one where that is said), and the noise on
the sum: on the mean, as printed, nothing is learnt. "Equal" is noise of the same size in every direction, 1/√τ clip
norms. "Gaussian" is the moments accountant's noise at a true (ε, δ), the paper's comparison.

The paper gives neither learning rates nor the networks' widths. Every mechanism is run at several rates, and the best
on the test records is shown with its rate; that is how the paper must have found its own. The networks have the depths
of its Table II with the widths of TensorFlow's tutorials of the time: 32 and 64 maps of 5 × 5 on MNIST; 64 and 64, then
384 and 192 units on SVHN; on CIFAR-10 64, 64, 128, 128, 256 and 256 maps of 3 × 3. On SVHN and CIFAR-10 the
convolutions are trained on the private records without noise and then frozen, as the paper has it: no ε covers them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import calibrate, compute_epsilon, repeat
from airlock.data import Records
from airlock.mechanisms import Stream
from airlock.nets import create
from airlock.nets.registry import seed_torch
from airlock.papers.answers.formulas import gaussian_epsilon
from airlock.papers.weights.optimised_noise import OptimisedGradients, Solver, budget, one_iteration
from airlock.papers.weights.published import Published
from airlock.reproduction.paper import (
    NOT_RUN,
    Figures,
    Found,
    Item,
    ItemResult,
    Paper,
    Setting,
    Spread,
    Trial,
    Workplace,
    World,
    absent,
    accuracy,
    beside,
    compared,
    in_court,
    is_small,
    opened,
    released,
    show_court,
)
from airlock.training import (
    PlainGradients,
    Poisson,
    PrivateGradients,
    Recipe,
    Resident,
    Shuffled,
    fit,
)
from airlock.training.devices import to_input
from airlock.training.gradients import Gradients
from airlock.training.loop import Watch
from airlock.training.sampling import sampled

EPOCHS, LOT, HIDDEN, REFRESH = 30, 1000, 128, 10
SEEDS = (0, 1, 2)
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
MECHANISMS = ("optimised", "equal", "gaussian")
TENTHS = (1, 2, 5)  # of the iterations, after which the accuracy on other records is taken
SMALL_RECORDS, SMALL_EPOCHS, THINNER = 400, 1, 4  # of the quick version: less of everything, a quarter of each width


@dataclass(frozen=True)
class PrintedSetUp:
    """How the paper uses a data set (its Table II), and what it prints about it.

    Args:
        words: Its name.
        sizes: Records to train and to test on, in print.
        layers: Convolutional and dense layers.
        batch: Records in a batch.
        clip_norm: α.
        rates: Learning rates that are tried here.
        unperturbed: Accuracy without noise on other records.
        times: Seconds a batch, unperturbed, Gaussian and optimised (Table I).
        split: What makes the paper's number of private records.
    """

    words: str
    sizes: tuple[int, int]
    layers: tuple[int, int]
    batch: int
    clip_norm: float
    rates: tuple[float, ...]
    unperturbed: float
    times: tuple[float, float, float]
    split: dict[str, float]


_ALL = {"public": 0.0, "test": 0.0, "holdout": 0.0}
DATA = {
    "mnist": PrintedSetUp(
        "MNIST", (55_000, 5_000), (2, 2), 500, 4.0, RATES, 0.9919, (0.344, 0.623, 0.937), {**_ALL, "holdout": 1 / 12}
    ),
    "svhn": PrintedSetUp(
        "SVHN", (73_257, 26_032), (2, 3), 200, 0.2, (0.1, 0.3, 1.0, 3.0), 0.9135, (0.341, 0.713, 0.912), _ALL
    ),
    "cifar10": PrintedSetUp(
        "CIFAR-10", (60_000, 10_000), (6, 3), 500, 0.2, (0.1, 0.3, 1.0, 3.0), 0.8151, (0.83, 1.437, 1.968), _ALL
    ),
}
PRETRAINED = ("svhn", "cifar10")
# Accuracy on own records and on others at δ = 1e-5, as the text prints them. Of Gaussian noise on MNIST it prints how
# many points it is behind: 29 and 28 at 0.05, 4 and 4 at 0.3.
PRINTED: dict[tuple[str, float, str], tuple[float | None, float]] = {
    ("mnist", 0.05, "optimised"): (0.8424, 0.8519),
    ("mnist", 0.05, "gaussian"): (0.5524, 0.5719),
    ("mnist", 0.3, "optimised"): (0.8759, 0.8855),
    ("mnist", 0.3, "gaussian"): (0.8359, 0.8455),
    ("mnist", 1.0, "optimised"): (0.9409, 0.9469),
    ("mnist", 0.01, "optimised"): (0.817, 0.8287),
    ("mnist", 0.01, "gaussian"): (0.4395, 0.4375),
    ("svhn", 0.3, "optimised"): (None, 0.7235),
    ("svhn", 0.3, "gaussian"): (None, 0.6362),
    ("svhn", 0.7, "optimised"): (None, 0.7615),
    ("svhn", 0.7, "gaussian"): (None, 0.7469),
    ("cifar10", 0.3, "optimised"): (None, 0.7485),
    ("cifar10", 0.3, "gaussian"): (None, 0.7175),
    ("cifar10", 1.0, "optimised"): (None, 0.761),
    ("cifar10", 1.0, "gaussian"): (None, 0.7523),
}
# How far a cost falls or rises with one parameter of the perceptron (the captions of Figure 2).
SLOPES = {"θ1": (-0.048, -0.017), "b3, by θ1": (0.017, 0.049), "θ6": (0.013, 0.022), "b3, by θ6": (0.033, 0.056)}


# The world that trials share: records, and the network that is trained under noise.


class WeightsWorld(World):
    """One division of a data set, and what is trained under noise on it; pre-trained, where the paper does that."""

    def __init__(self, name: str, seed: int, small: bool, place: Workplace) -> None:
        super().__init__(name, seed, small, place)
        table = {"channel": "weights", "method": "gaussian", "data": name, "epsilon": 1.0, "delta": 1e-5, "seed": seed}
        if name in DATA:
            table["split"] = DATA[name].split
        _, self.facts, split = opened(table, place, SMALL_RECORDS if small else None)
        self.private, self.test = split.private, split.test
        self.pretraining: dict[str, float] = {}
        if name in PRETRAINED:
            self._pretrain()

    def _pretrain(self) -> None:
        """Train the whole network without noise, and keep what its convolutions give; the dense layers are dropped."""
        front, head = self.convolutions(), self.start()
        net = nn.Sequential(front, head)
        self._fit_plainly(net, SMALL_EPOCHS if self.small else 20)
        self.pretraining["others"] = accuracy(net, self.test)
        self.private, self.test = (self._features(front, part) for part in (self.private, self.test))
        self.pretraining["again"] = accuracy(self.start(again=True).to(self.place.run.device), self.test)

    def _fit_plainly(self, net: nn.Module, epochs: int) -> None:
        batch = DATA[self.name].batch if self.name in DATA else 64
        steps = max(1, epochs * len(self.private) // min(batch, len(self.private)))
        recipe = Recipe(steps=steps, learning_rate=0.02, momentum=0.9, weight_decay=1e-4, schedule="cosine")
        data, run = Resident(self.private, self.place.run.device), self.place.run
        fit(net, data, Shuffled(batch, self.seed), PlainGradients(), recipe, self.seed, run, label="without noise")

    def _features(self, front: nn.Module, records: Records) -> Records:
        device, found = self.place.run.device, []
        front = front.to(device).eval()
        with torch.no_grad():
            for start in range(0, len(records), 500):
                x = torch.from_numpy(np.ascontiguousarray(records.x[start : start + 500])).to(device)
                found.append(front(to_input(x)).cpu().numpy())
        return Records(np.concatenate(found).astype(np.float32), records.y)

    def convolutions(self) -> nn.Sequential:
        """The layers before the dense ones, freshly initialised."""
        seed_torch(self.seed)
        colours, thinner = self.facts.shape[0], THINNER if self.small else 1
        if self.name == "cifar10":
            widths = (colours, *(width // thinner for width in (64, 128, 256)))
            layers = [layer for into, out in pairwise(widths) for layer in _block(into, out)]
        else:
            first, second = (32 if self.name == "mnist" else 64) // thinner, 64 // thinner
            layers = [nn.Conv2d(colours, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
            layers += [nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten())

    def start(self, hidden: int = HIDDEN, again: bool = False) -> nn.Module:
        """What is trained under noise, freshly initialised: the dense layers, and on MNIST and digits all."""
        if self.name == "digits":
            return create("digits-net", self.facts.shape, len(self.facts.classes), self.seed)
        front = self.convolutions()
        seed_torch(self.seed + 1_000_003 * again)
        with torch.no_grad():
            width = front(torch.zeros(1, *self.facts.shape)).shape[1]
        wanted = (384, 192) if self.name in PRETRAINED else (hidden,)
        widths = (width, *(one // THINNER if self.small else one for one in wanted))
        layers: list[nn.Module] = []
        for into, out in pairwise(widths):
            layers += [nn.Linear(into, out), nn.ReLU()]
        dense = nn.Sequential(*layers, nn.Linear(widths[-1], len(self.facts.classes)))
        return dense if self.name in PRETRAINED else nn.Sequential(front, dense)

    def plainly_trained(self) -> Figures:
        """Accuracy without noise, on own records and on others."""
        if self.name in PRETRAINED:
            return dict(self.pretraining)
        net = self.start()
        self._fit_plainly(net, SMALL_EPOCHS if self.small else EPOCHS)
        return {"own": accuracy(net, _first(self.private)), "others": accuracy(net, self.test)}


def _block(into: int, out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(into, out, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def _world(trial: Trial, place: Workplace) -> WeightsWorld:
    key = (trial["data"], trial.seed, is_small(trial))
    return place.once(f"world {key[0]}", key, lambda: WeightsWorld(*key, place))


def _first(records: Records, most: int = 10_000) -> Records:
    return records.take(np.arange(min(most, len(records))))


# Experiments.


@dataclass(frozen=True)
class NoisyRun:
    """What one trial asks of a world: lots, iterations, clip norm and noise."""

    lot: float
    records: int
    steps: int
    clip_norm: float
    epsilon: float
    delta: float

    @classmethod
    def of(cls, trial: Trial, world: WeightsWorld) -> NoisyRun:
        """As the trial's settings say, with the paper's values where they say nothing."""
        asked, known, records = dict(trial.settings), DATA.get(world.name), len(world.private)
        lot = float(asked.get("lot", LOT))
        if world.small:
            lot *= SMALL_RECORDS / 10_000
        if known is None:  # digits: every record in every lot
            lot, steps = float(records), 10 if world.small else 40
        else:
            steps = round((SMALL_EPOCHS if world.small else EPOCHS) * records / lot)
        clip_norm = float(asked.get("clip_norm", known.clip_norm if known else 1.0))
        return cls(lot, records, steps, clip_norm, float(asked["epsilon"]), float(asked.get("delta", 1e-5)))

    @property
    def rate(self) -> float:
        """The probability q with which a record enters a lot."""
        return min(1.0, self.lot / self.records)

    def event(self, noise_multiplier: float) -> dpa.DpEvent:
        """Of the whole training, with equal noise of this size."""
        return repeat(sampled(self.rate, dpa.GaussianDpEvent(noise_multiplier)), self.steps)

    def noise_multiplier(self, mechanism: str) -> float:
        """The paper's 1/√τ; or what the moments accountant asks for."""
        if mechanism == "gaussian":
            return calibrate(self.event, self.epsilon, self.delta, accountant="rdp")
        return budget(self.epsilon, self.delta, self.rate, self.steps, None).noise_multiplier

    def gradients(
        self, mechanism: str, data: Resident, stream: Stream, refresh: int = REFRESH, solver: Solver = "projected"
    ) -> Gradients:
        """Clipped, and with the mechanism's noise."""
        z, own = self.noise_multiplier(mechanism), stream.child("gradients")
        if mechanism == "optimised":
            return OptimisedGradients(data, self.clip_norm, z, self.lot, own, solver, refresh, "sum")
        return PrivateGradients(self.clip_norm, z, self.lot, own, sampled=self.rate < 1)


def training(trial: Trial, place: Workplace) -> Figures:
    """Accuracy on own records and on others after training under noise, and on others along the way."""
    world, asked = _world(trial, place), dict(trial.settings)
    plan, net = NoisyRun.of(trial, world), world.start(int(asked.get("hidden", HIDDEN)))
    solver: Solver = "closed" if asked.get("solver") == "closed" else "projected"
    stream = Stream.from_seed(trial.seed).child(trial.key)
    data = place.once(
        "private", (world.name, world.seed, world.small), lambda: Resident(world.private, place.run.device)
    )
    gradients = plan.gradients(trial["mechanism"], data, stream, int(asked.get("refresh", REFRESH)), solver)
    figures: dict[str, float] = {}

    def watch(done: int, ended: object) -> None:
        tenth, rest = divmod(10 * done, plan.steps)
        if rest < 10 and tenth in TENTHS:
            figures[f"others after {tenth} tenths"] = accuracy(net, _first(world.test, 2000))
            net.train()

    momentum = 0.9 if world.name == "digits" else 0.0
    recipe = Recipe(steps=plan.steps, learning_rate=trial["learning_rate"], momentum=momentum)
    fit(net, data, Poisson(plan.rate, stream.child("lots")), gradients, recipe, trial.seed, place.run, watch=watch)
    figures |= {"own": accuracy(net, _first(world.private)), "others": accuracy(net, world.test)}
    figures["noise_multiplier"] = plan.noise_multiplier(trial["mechanism"])
    if isinstance(gradients, OptimisedGradients):
        figures["smallest_factor"] = min(gradients.smallest)
    return figures


def unperturbed(trial: Trial, place: Workplace) -> Figures:
    """Accuracy without noise; of the pre-trained ones, again after the dense layers were initialised anew."""
    return _world(trial, place).plainly_trained()


def seconds(trial: Trial, place: Workplace) -> Figures:
    """What an iteration takes, on a lot of one batch: the median, without the first two."""
    world = _world(trial, place)
    lot = min(DATA[world.name].batch, len(world.private) // 4)
    plan = replace(NoisyRun.of(trial, world), lot=float(lot), steps=5 if world.small else 22)
    net, stream = world.start(), Stream.from_seed(trial.seed).child(trial.key)
    data = Resident(world.private, place.run.device)
    plain = trial["mechanism"] == "none"
    gradients = PlainGradients() if plain else plan.gradients(trial["mechanism"], data, stream, refresh=1)
    at: list[float] = []
    recipe = Recipe(steps=plan.steps, learning_rate=1e-3, momentum=0.0)
    fit(net, data, Poisson(plan.rate, stream), gradients, recipe, trial.seed, place.run, watch=_clock(at, place))
    return {"seconds": float(np.median(np.diff(at)[1:]))}


def _clock(at: list[float], place: Workplace) -> Watch:
    def watch(done: int, ended: object) -> None:
        if place.run.device.type == "cuda":
            torch.cuda.synchronize(place.run.device)
        at.append(time.perf_counter())

    return watch


def claims(trial: Trial, place: Workplace) -> Figures:
    """What equal noise of the paper's size costs on MNIST, by PLD accounting; one iteration that claims ε = 1."""
    rate, steps = LOT / 55_000, 1650
    made = budget(trial["epsilon"], 1e-5, rate, steps, None)
    whole = repeat(sampled(rate, dpa.GaussianDpEvent(made.noise_multiplier)), steps)
    alone = dpa.GaussianDpEvent(one_iteration(trial["epsilon"], 1e-5, None).noise_multiplier)
    return {
        "an_iteration": made.epsilon,
        "noise_multiplier": made.noise_multiplier,
        "epsilon": compute_epsilon(whole, 1e-5).epsilon,
        "one_release": compute_epsilon(alone, 1e-5).epsilon,
    }


def perceptron(trial: Trial, place: Workplace) -> Figures:
    """The perceptron of Figure 1 learns AND; then two of its parameters are moved by up to 0.3 each (Figure 2)."""
    chance = torch.Generator().manual_seed(trial.seed)
    x = torch.rand(1000, 2, generator=chance)
    y = (x.round().sum(1) == 2).float()
    # θ1 to θ6, b1 to b3: the first hidden unit has θ1 and θ3, the second θ2 and θ4.
    theta = torch.nn.init.xavier_uniform_(torch.empty(3, 3), generator=chance).flatten()
    theta[6:] = 0.0
    for _ in range(150):
        for own in torch.randperm(1000, generator=chance).reshape(20, 50):
            theta = theta - 0.1 * _slopes(theta, x[own], y[own])[1]
    figures = {"right": float((_outputs(theta, x).gt(0.5) == y.bool()).float().mean())}
    for name, place_of in (("θ1", 0), ("θ6", 5)):
        costs, slopes = [], []
        for one in torch.linspace(0, 0.3, 7):
            for other in torch.linspace(0, 0.3, 7):
                moved = theta.clone()
                moved[place_of] += one
                moved[8] += other
                cost, slope = _slopes(moved, x, y)
                costs.append(float(cost))
                slopes.append((float(slope[place_of]), float(slope[8])))
        figures[f"{name}, not the least noise"] = float(np.argmin(costs) > 0)
        for own, label in enumerate((name, f"b3, by {name}")):
            values = [pair[own] for pair in slopes]
            figures |= {f"{label}, lowest": min(values), f"{label}, highest": max(values)}
    return figures


def _outputs(theta: Tensor, x: Tensor) -> Tensor:
    hidden = torch.sigmoid(torch.stack((x @ theta[[0, 2]] + theta[6], x @ theta[[1, 3]] + theta[7]), 1))
    return hidden @ theta[4:6] + theta[8]


def _slopes(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean squared error, and its derivatives."""
    own = theta.clone().requires_grad_()
    cost = (_outputs(own, x) - y).square().mean()
    return cost.detach(), torch.autograd.grad(cost, own)[0]


def head(trial: Trial, place: Workplace) -> Figures:
    """The sound counterpart, at an ε that is proven."""
    small = is_small(trial)
    table = {"channel": "weights", "method": "head", "data": trial["data"], "epsilon": trial["epsilon"], "delta": 1e-5}
    return released(trial, place, {**table, "split": {"holdout": 0.0}}, SMALL_RECORDS if small else None)


def court(trial: Trial, place: Workplace) -> Figures:
    """Whether the claim for one iteration is refuted, and after how many pairs of runs."""
    return in_court(trial, Published.case(trial["epsilon"], 1e-5))


# Items.


def _more(quick: bool) -> dict[str, Setting]:
    return {"small": True} if quick else {}


def _seeds(quick: bool) -> tuple[int, ...]:
    return SEEDS[:1] if quick else SEEDS


def _trainings(
    name: str,
    epsilons: Sequence[float],
    quick: bool,
    mechanisms: Sequence[str] = MECHANISMS,
    rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    **settings: Setting,
) -> Iterator[Trial]:
    rates = DATA[name].rates if rates is None else rates
    for seed in (0,) if quick else SEEDS if seeds is None else seeds:
        for epsilon in epsilons:
            for mechanism in mechanisms:
                for rate in _middle(rates) if quick else rates:
                    own: dict[str, Setting] = {"data": name, "epsilon": epsilon, "mechanism": mechanism}
                    yield Trial.of("training", seed, learning_rate=rate, **own, **settings, **_more(quick))


def _middle(rates: Sequence[float]) -> tuple[float, ...]:
    return (rates[len(rates) // 2],)


def best(
    found: Found, name: str, rates: Sequence[float], figure: str, **settings: Setting
) -> tuple[Spread, float] | None:
    """A figure at the rate with the best accuracy on others, and that rate."""
    own = {"data": name, **settings, **_more(found.quick)}
    tried = _middle(rates) if found.quick else rates
    there = [(rate, found.figure("training", "others", learning_rate=rate, **own)) for rate in tried]
    known = [(spread.mean, rate) for rate, spread in there if spread]
    if not known:
        return None
    rate = max(known)[1]
    spread = found.figure("training", figure, learning_rate=rate, **own)
    return (spread, rate) if spread else None


def _accuracies(name: str, epsilons: Sequence[float]) -> Callable[[bool], list[Trial]]:
    return lambda quick: list(_trainings(name, _few(epsilons, quick), quick))


def _few(values: Sequence[float], quick: bool) -> Sequence[float]:
    return values[:1] if quick else values


def _show_accuracies(found: Found, name: str, epsilons: Sequence[float], tolerance: float = 0.02) -> ItemResult:
    """Accuracy by ε and mechanism, each at its best rate: Figures 3, 4 (c) and 4 (d)."""
    rates, rows, pairs, there = DATA[name].rates, [], [], 0
    for epsilon in _few(epsilons, found.quick):
        for mechanism in MECHANISMS:
            printed = PRINTED.get((name, epsilon, mechanism), (None, None))
            cells = []
            for figure, paper in zip(("own", "others"), printed, strict=True):
                ours = best(found, name, rates, figure, epsilon=epsilon, mechanism=mechanism)
                if paper is not None:
                    pairs.append((f"{mechanism} at {epsilon:g}, {figure}", paper, ours[0] if ours else None))
                cells.append(beside(paper, ours[0] if ours else None))
            there += ours is not None
            way = [best(found, name, rates, f"others after {n} tenths", epsilon=epsilon, mechanism=mechanism)
                   for n in (1, 5)]  # fmt: skip
            cells += [NOT_RUN if one is None else f"{one[0].mean:.3f}" for one in way]
            rows.append((f"{epsilon:g}", mechanism, *cells, f"{ours[1]:g}" if ours else NOT_RUN))
    columns = ("ε", "noise", "own", "others", "others after a tenth", "after half", "best rate")
    if not there:
        return ItemResult("not run", "", columns, tuple(rows))
    status, words = compared(pairs, tolerance)
    return ItemResult(status, words, columns, tuple(rows), tuple(_gaps(found, name, epsilons)))


def _gaps(found: Found, name: str, epsilons: Sequence[float]) -> Iterator[str]:
    """How far equal noise of the same size is behind the optimised one: what the shape alone is worth."""
    for epsilon in _few(epsilons, found.quick):
        ours = [best(found, name, DATA[name].rates, "others", epsilon=epsilon, mechanism=m) for m in MECHANISMS[:2]]
        if ours[0] and ours[1]:
            gap = 100 * (ours[0][0].mean - ours[1][0].mean)
            yield f"At ε = {epsilon:g} the shape alone is worth {gap:.1f} points over equal noise of the same size."


def _show_rates(found: Found) -> ItemResult:
    rows = []
    for epsilon in _few(FIGURE_3, found.quick):
        for mechanism in MECHANISMS:
            own = {"data": "mnist", "epsilon": epsilon, "mechanism": mechanism, **_more(found.quick)}
            cells = [found.figure("training", "others", learning_rate=rate, **own) for rate in RATES]
            if any(cells):
                rows.append((f"{epsilon:g}", mechanism, *(NOT_RUN if c is None else c.text(3) for c in cells)))
    if not rows:
        return ItemResult("not run")
    edge = [row for row in rows if NOT_RUN not in row and max(row[2:]) in (row[2], row[-1])]
    words = "the best rate lies inside the grid in every row" if not edge else f"in {len(edge)} rows it is at the edge"
    words = words if all(NOT_RUN not in row for row in rows) else "some rates were not run"
    return ItemResult("beside it", words, ("ε", "noise", *(f"rate {rate:g}" for rate in RATES)), tuple(rows))


FIGURE_3 = (0.05, 0.3, 1.0)
GRID_EPSILONS, GRID_DELTAS = (0.01, 0.05, 0.3, 1.0, 1.2), (1e-5, 1e-4, 1e-3, 1e-2)
GRID_RATES = RATES[:3]


def _grid(quick: bool) -> list[Trial]:
    """Figures 4 (a) and (b): one seed, at the rates that suit strong noise."""
    found: list[Trial] = []
    for delta in _few(GRID_DELTAS, quick):
        other: dict[str, Any] = {} if delta == 1e-5 else {"delta": delta}
        rates = GRID_RATES if not quick else RATES
        found += _trainings("mnist", _few(GRID_EPSILONS, quick), quick, rates=rates, seeds=(0,), **other)
    return found


def _show_grid(found: Found) -> ItemResult:
    rows, pairs, there = [], [], 0
    deltas = _few(GRID_DELTAS, found.quick)
    for mechanism in MECHANISMS:
        for epsilon in _few(GRID_EPSILONS, found.quick):
            cells = []
            for delta in deltas:
                other = {} if delta == 1e-5 else {"delta": delta}
                rates = GRID_RATES if not found.quick else RATES
                ours = best(found, "mnist", rates, "others", epsilon=epsilon, mechanism=mechanism, **other)
                there += ours is not None
                printed = PRINTED["mnist", epsilon, mechanism][1] if _named(epsilon, delta, mechanism) else None
                if printed is not None:
                    pairs.append((f"{mechanism} at ({epsilon:g}, {delta:g})", printed, ours[0] if ours else None))
                cells.append(beside(printed, ours[0] if ours else None))
            rows.append((mechanism, f"{epsilon:g}", *cells))
    columns = ("noise", "ε", *(f"δ = {delta:g}" for delta in deltas))
    if not there:
        return ItemResult("not run", "", columns, tuple(rows))
    return ItemResult(*compared(pairs, 0.02), columns, tuple(rows))


def _named(epsilon: float, delta: float, mechanism: str) -> bool:
    return (epsilon, delta) == (0.01, 1e-5) and mechanism != "equal"


@dataclass(frozen=True)
class Sweep:
    """A part of Figure 5: one thing is varied, at one rate and one seed, and all else is as before.

    Args:
        data: The data set.
        setting: What is varied.
        words: Its name.
        values: Over which values.
        epsilons: At which ε; the paper does not say for MNIST.
        says: What the paper says of it, for the optimised mechanism.
    """

    data: str
    setting: str
    words: str
    values: tuple[float, ...]
    epsilons: tuple[float, ...]
    says: str


SWEEPS = {
    "figure-5a": Sweep(
        "mnist", "lot", "lot size", (250, 500, 1000, 2000, 4000), (0.3,), "highest at about 2000, then the same"
    ),
    "figure-5b": Sweep(
        "cifar10", "lot", "lot size", (500, 1000, 1500, 2000, 2500), (0.3, 1.0), "2 points from 500 to 2500"
    ),
    "figure-5c": Sweep("mnist", "hidden", "hidden units", (64, 128, 256, 512, 1024), (0.3,), "less than 2 points"),
    "figure-5d": Sweep("mnist", "clip_norm", "clip norm", (0.5, 1, 2, 4, 8), (0.3,), "falls with small values"),
}
SWEPT = ("optimised", "gaussian")
_USUAL = {"lot": LOT, "hidden": HIDDEN}


def _sweep_rates(name: str, quick: bool) -> tuple[float, ...]:
    rates = DATA[name].rates
    return rates if quick else rates[1:4]


def _sweep(sweep: Sweep) -> Callable[[bool], list[Trial]]:
    def trials(quick: bool) -> list[Trial]:
        found: list[Trial] = []
        for value in _few(sweep.values, quick):
            rates = _sweep_rates(sweep.data, quick)
            found += _trainings(
                sweep.data, _few(sweep.epsilons, quick), quick, SWEPT, rates, (0,), **_own(sweep, value)
            )
        return found

    return trials


def _own(sweep: Sweep, value: float) -> dict[str, Setting]:
    """As a setting; the usual value is left out, so that its runs are those of the other figures."""
    usual = _USUAL.get(sweep.setting, DATA[sweep.data].clip_norm)
    return {} if value == usual else {sweep.setting: value}


def _show_sweep(found: Found, sweep: Sweep) -> ItemResult:
    rows, spans, there, wanted = [], [], 0, 0
    values = _few(sweep.values, found.quick)
    for epsilon in _few(sweep.epsilons, found.quick):
        for mechanism in SWEPT:
            cells = []
            for value in values:
                rates = _sweep_rates(sweep.data, found.quick)
                own = {"epsilon": epsilon, "mechanism": mechanism, **_own(sweep, value)}
                ours = best(found, sweep.data, rates, "others", **own)
                wanted, there = wanted + 1, there + (ours is not None)
                cells.append(ours[0].mean if ours else None)
            known = [cell for cell in cells if cell is not None]
            if mechanism == "optimised" and len(known) == len(values):
                spans.append(
                    f"{100 * (max(known) - min(known)):.1f} points between highest and lowest at ε = {epsilon:g}"
                )
            rows.append((f"{epsilon:g}", mechanism, *(NOT_RUN if cell is None else f"{cell:.3f}" for cell in cells)))
    if not there:
        return ItemResult("not run")
    words = f"{there} of {wanted} points" + (f"; optimised: {', '.join(spans)}" if spans else "")
    columns = ("ε", "noise", *(f"{value:g}" for value in values))
    return ItemResult("in part", words, columns, tuple(rows))


def _times(quick: bool) -> list[Trial]:
    more = {"epsilon": 1.0, **_more(quick)}
    return [Trial.of("seconds", 0, data=name, mechanism=m, **more) for name in DATA for m in TIMED]


TIMED = ("none", "gaussian", "optimised")


def _show_times(found: Found) -> ItemResult:
    rows, there = [], 0
    for name, known in DATA.items():
        ours = [found.figure("seconds", "seconds", data=name, mechanism=m, epsilon=1.0, **_more(found.quick))
                for m in TIMED]  # fmt: skip
        there += sum(one is not None for one in ours)
        cells = [f"{paper:g} · {NOT_RUN if own is None else f'{own.mean:.2g}'}"
                 for paper, own in zip(known.times, ours, strict=True)]  # fmt: skip
        first = ours[0]
        cells += [
            f"{paper / known.times[0]:.2f} · {f'{own.mean / first.mean:.3g}' if own and first else NOT_RUN}"
            for paper, own in zip(known.times[1:], ours[1:], strict=True)
        ]
        rows.append((known.words, *cells))
    columns = (
        "data",
        "unperturbed, s",
        "Gaussian, s",
        "optimised, s",
        "Gaussian / unperturbed",
        "optimised / unperturbed",
    )
    if not there:
        return ItemResult("not run", "", columns, tuple(rows))
    return ItemResult(
        "differs", "another machine and other code; ratios are what may be compared", columns, tuple(rows)
    )


def _show_setup(found: Found) -> ItemResult:
    here = {"mnist": "55,000/10,000", "svhn": "20,000/5,000", "cifar10": "50,000/10,000"}
    rows = tuple(
        (known.words, f"{known.sizes[0]:,}/{known.sizes[1]:,} · {here[name]}", *(f"{n} · {n}" for n in known.layers),
         f"{known.batch} · {known.batch}", "1000 · 1000", f"{known.clip_norm:g} · {known.clip_norm:g}")
        for name, known in DATA.items()
    )  # fmt: skip
    columns = ("data", "training/testing", "convolutions", "dense layers", "batch", "lot", "clip norm")
    words = (
        "SVHN's records: 20,000 and 5,000 are here, of 73,257 and 26,032; CIFAR-10 has 50,000 to train on, not 60,000"
    )
    return ItemResult("differs", words, columns, rows)


def _plain(quick: bool) -> list[Trial]:
    return [Trial.of("unperturbed", seed, data=name, **_more(quick)) for name in DATA for seed in _seeds(quick)]


def _show_plain(found: Found) -> ItemResult:
    pairs, rows = [], []
    for name, known in DATA.items():
        own, others, again = (found.figure("unperturbed", figure, data=name, **_more(found.quick))
                              for figure in ("own", "others", "again"))  # fmt: skip
        pairs.append((known.words, known.unperturbed, others))
        before = beside(0.9979, own) if name == "mnist" else ""
        after = "" if name == "mnist" else f"below 0.10 · {NOT_RUN if again is None else again.text()}"
        rows.append((known.words, before, beside(known.unperturbed, others), after))
    columns = ("data", "own", "others", "others, dense layers initialised anew")
    return ItemResult(*compared(pairs, 0.02), columns, tuple(rows))


def _perceptrons(quick: bool) -> list[Trial]:
    return [Trial.of("perceptron", seed) for seed in range(2 if quick else 20)]


def _show_perceptron(found: Found) -> ItemResult:
    right = found.figure("perceptron", "right")
    if right is None:
        return ItemResult("not run")
    rows = [("accuracy", "", right.text())]
    for label, (low, high) in SLOPES.items():
        ours = [found.figure("perceptron", f"{label}, {end}") for end in ("lowest", "highest")]
        if ours[0] and ours[1]:
            words = f"{ours[0].mean:.3f} to {ours[1].mean:.3f}"
            rows.append((f"slope of the cost in {label}", f"{low:g} to {high:g}", words))
    count = len(right.values)
    told = [found.figure("perceptron", f"{name}, not the least noise") for name in ("θ1", "θ6")]
    rows += [
        (f"the least noise in {name} and b3 is not the least cost", said, f"{sum(one.values):.0f} of {count}")
        for name, said, one in zip(("θ1", "θ6"), ("yes", "no"), told, strict=True)
        if one
    ]
    words = "the paper has one network, whose start and loss it does not give; signs and sizes depend on the start"
    return ItemResult("in part", words, ("what", "paper", f"here, mean of {count} starts"), tuple(rows))


def _claims(quick: bool) -> list[Trial]:
    return [Trial.of("claims", 0, epsilon=epsilon) for epsilon in _few(CLAIMS, quick)]


CLAIMS = (1.0, 0.3, 0.05, 0.01)


def _show_claims(found: Found) -> ItemResult:
    rows = []
    for epsilon in CLAIMS:
        ours = [found.figure("claims", name, epsilon=epsilon)
                for name in ("an_iteration", "noise_multiplier", "epsilon", "one_release")]  # fmt: skip
        if all(ours):
            rows.append((f"{epsilon:g}", *(f"{one.mean:.4g}" for one in ours if one)))
    if not rows:
        return ItemResult("not run")
    columns = ("claimed ε", "ε of an iteration (Eq. 12)", "equal noise / clip norm", "true ε of equal noise",
               "true ε of one release that claims it")  # fmt: skip
    words = f"equal noise of the paper's size costs {', '.join(row[3] for row in rows)}"
    return ItemResult("differs", words, columns, tuple(rows))


def _digits(quick: bool) -> list[Trial]:
    own = {"data": "digits", "epsilon": 0.3, "delta": 1e-4, "learning_rate": 0.3, **_more(quick)}
    return [
        Trial.of("training", seed, **own, **how)
        for how in DIGITS.values()
        for seed in (range(10) if not quick else (0,))
    ]


DIGITS: dict[str, dict[str, Setting]] = {
    "optimised, projected": {"mechanism": "optimised", "refresh": 1},
    "optimised, closed form": {"mechanism": "optimised", "refresh": 1, "solver": "closed"},
    "equal": {"mechanism": "equal"},
    "gaussian": {"mechanism": "gaussian"},
}


def _show_digits(found: Found) -> ItemResult:
    """Every record is in each of 10 or 40 iterations, so the true ε is that of one Gaussian, were the shape public."""
    own = {"data": "digits", "epsilon": 0.3, "delta": 1e-4, "learning_rate": 0.3, **_more(found.quick)}
    rows: list[tuple[str, ...]] = []
    for words, how in DIGITS.items():
        others, noise, factor = (found.figure("training", name, **own, **how)
                                 for name in ("others", "noise_multiplier", "smallest_factor"))  # fmt: skip
        if others and noise:
            smallest = min(factor.values) if factor else 1.0
            mu = math.sqrt(10 if found.quick else 40) / max(noise.mean * smallest, 1e-9)
            true = f"{gaussian_epsilon(mu, 1e-4):.2f}" if mu < 40 else "above 700"
            rows.append((words, others.text(), f"{noise.mean:.3g}", f"{smallest:.2g}", true))
    columns = ("noise", "others", "noise / clip norm", "smallest noise of a coordinate / equal noise",
               "true ε, were the shape public")  # fmt: skip
    if not rows:
        return ItemResult("not run")
    return ItemResult("beside it", "; ".join(f"{row[0]} {row[1]}" for row in rows), columns, tuple(rows))


def _refreshes(quick: bool) -> list[Trial]:
    return list(_trainings("mnist", (0.3,), quick, ("optimised",), (0.1,), (0,), refresh=1))


def _show_refreshes(found: Found) -> ItemResult:
    own = {"data": "mnist", "epsilon": 0.3, "mechanism": "optimised", "learning_rate": 0.1, **_more(found.quick)}
    ours = found.figure("training", "others", refresh=1, **own)
    usual = found.figure("training", "others", **own)
    if ours is None:
        return ItemResult("not run")
    rows = (("in every iteration", ours.text()), ("in every tenth", NOT_RUN if usual is None else usual.text()))
    return ItemResult("beside it", "; ".join(" ".join(row) for row in rows), ("w", "others"), rows)


def _heads(quick: bool) -> list[Trial]:
    return [
        Trial.of("head", seed, data="mnist", epsilon=epsilon, **_more(quick))
        for seed in _seeds(quick)
        for epsilon in _few(FIGURE_3, quick)
    ]


def _show_heads(found: Found) -> ItemResult:
    rows, ours = [], []
    for epsilon in _few(FIGURE_3, found.quick):
        others, proven = (found.figure("head", name, data="mnist", epsilon=epsilon, **_more(found.quick))
                          for name in ("others", "epsilon"))  # fmt: skip
        if others and proven:
            paper = PRINTED["mnist", epsilon, "optimised"][1]
            ours.append(others)
            rows.append((f"{epsilon:g}", f"{proven.mean:.4f}", beside(paper, others)))
    if not rows:
        return ItemResult("not run")
    words = (
        f"{', '.join(f'{100 * one.mean:.2f}' for one in ours)}% at a proven ε of {', '.join(row[0] for row in rows)}"
    )
    return ItemResult("beside it", words, ("ε", "proven", "paper's claim · `head`"), tuple(rows))


def _courts(quick: bool) -> list[Trial]:
    return [Trial.of("court", seed, epsilon=1.0) for seed in _seeds(quick)]


def _show_court(found: Found) -> ItemResult:
    return show_court(found, {"one iteration on a lot": {"epsilon": 1.0}}, "one iteration")


def _figure(name: str, title: str, data: str, epsilons: Sequence[float], printed: str, estimate: str) -> Item:
    show = partial(_show_accuracies, name=data, epsilons=epsilons)
    return Item(name, title, printed, _accuracies(data, epsilons), show, estimate)


def _order(trial: Trial) -> tuple[bool, int, bool]:
    """What the paper prints comes first, and the grid over δ last."""
    asked = dict(trial.settings)
    printed = (asked.get("data"), asked.get("epsilon"), asked.get("mechanism")) in PRINTED
    return "delta" in asked and asked["data"] == "mnist", trial.seed, trial.experiment == "training" and not printed


PAPER = Paper(
    "weights",
    "Xiang, Yang and Li 2019, optimised additive noise",
    {
        "perceptron": perceptron,
        "seconds": seconds,
        "unperturbed": unperturbed,
        "training": training,
        "claims": claims,
        "head": head,
        "court": court,
    },
    (
        Item("figure-2", "the perceptron of Figure 1, two parameters moved", "slopes of four parameters", _perceptrons,
             _show_perceptron, "about a minute on a CPU"),
        Item("table-1", "seconds a batch", "9 figures", _times, _show_times, "about 3 minutes"),
        Item("table-2", "set-up", "18 figures", lambda quick: (), _show_setup),
        Item("unperturbed", "without noise; dense layers initialised anew", "99.19, 91.35 and 81.51%", _plain,
             _show_plain, "about 10 minutes"),
        _figure("figure-3", "MNIST at three privacy levels", "mnist", FIGURE_3, "85.19, 88.55 and 94.69%",
                "about 25 minutes"),
        Item("learning-rate", "Figure 3 by learning rate, which the paper does not give", "none",
             _accuracies("mnist", FIGURE_3), _show_rates, "the runs of figure-3"),
        Item("figure-4ab", "MNIST by (ε, δ)", "82.87 against 43.75% at (0.01, 1e-5)", _grid, _show_grid,
             "about 30 minutes"),
        _figure("figure-4c", "SVHN", "svhn", (0.3, 0.7), "72.35 and 76.15%", "about 10 minutes"),
        _figure("figure-4d", "CIFAR-10", "cifar10", (0.3, 1.0), "74.85 and 76.1%", "about 20 minutes"),
        absent("pate", "comparison with PATE and LNMax", "their figures are quoted from two other papers, not run"),
        *(Item(name, f"{DATA[sweep.data].words} by {sweep.words}", sweep.says, _sweep(sweep),
               partial(_show_sweep, sweep=sweep), "about 10 minutes") for name, sweep in SWEEPS.items()),
        Item("claims", "the true cost of equal noise", "claims ε = 1, 0.3, 0.05, 0.01", _claims, _show_claims,
             "about a minute on a CPU"),
        Item("court", "one iteration in court", "claims ε = 1", _courts, _show_court, "about a minute on a CPU"),
        Item("refresh", "w in every iteration", "none", _refreshes, _show_refreshes, "about 5 minutes"),
        Item("digits", "digits at a claimed ε of 0.3, δ = 1e-4", "none", _digits, _show_digits, "minutes on a CPU"),
        Item("head", "`head`, the sound counterpart, on MNIST", "85.19, 88.55 and 94.69%", _heads, _show_heads,
             "about 20 minutes on a CPU"),
    ),
    (*DATA, "digits"),
    order=_order,
)  # fmt: skip

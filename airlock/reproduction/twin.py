"""Mao et al. 2020, DP-PG and DP-PGP: its tables, figures and corollaries.

A collection is 50 models of one network on the same records. Two ways of training stand beside each other: "printed",
with the paper's rate of 0.001 and 60 epochs of plain SGD in batches of 128; and one that trains these networks well
here. The paper says neither how its models start nor how its densities are sampled. Here all models have one start
(CIFAR-Net's good models also have ten epochs in common), the bandwidth is Silverman's, the window as wide as the
bandwidth, and a parameter is drawn from 256 points between the smallest and the largest value, a bandwidth beyond.

Line 21 of Algorithm 2 is printed as c + (c − θ) + Lap, which reflects a parameter at its centroid. A parameter near its
own value is c − (c − θ + Lap): the sign of Equation 7's distance is changed, and that is what every figure is drawn
with. The printed sign is tried on digits.

DP-SGD has the same networks: clip norm 1, lots of 1,000 on average (Poisson), and the noise at which 60 epochs of MNIST
cost ε = 8 and 50 epochs of CIFAR-10 ε = 3 by the moments accountant, the figures that the paper names. What an earlier
stage cost, and how good it was, is the curve. Of three learning rates the best on the test records is shown.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from airlock.accounting import calibrate, compute_epsilon, repeat
from airlock.auditing.attacks import AnsweredRecords, Shadows, ShadowSettings, shadow_attack, subsets
from airlock.auditing.attacks.shadows import train_attack, train_shadows
from airlock.auditing.attacks.signals import ask
from airlock.mechanisms import Stream
from airlock.mechanisms.density import largest_score, published_sensitivity, sensitivity
from airlock.mechanisms.kmeans import PrivateKMeans, assign_nearest
from airlock.nets import create
from airlock.papers.twin.generate import spread
from airlock.papers.twin.published import Published
from airlock.reproduction.paper import (
    NOT_RUN,
    Figures,
    Found,
    Item,
    ItemResult,
    Paper,
    Setting,
    Spread,
    Status,
    Trial,
    Workplace,
    World,
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
    Ensemble,
    Poisson,
    PrivateGradients,
    Recipe,
    Resident,
    align,
    fit,
)
from airlock.training.ensembles.checkpoint_store import Collection, Slices
from airlock.training.ensembles.ensemble import makes
from airlock.training.sampling import sampled

MODELS = 50
EPSILONS = (0.05, 0.1, 0.5, 1.0, 2.0, 5.0)
BUDGETS = (0.1, 1.0, 5.0)  # of Figures 4 and 5, which show three and do not name them
SMALL_RECORDS, SMALL_MODELS = 300, 3


@dataclass(frozen=True)
class Training:
    """How the models of a collection are trained, and when twins are drawn.

    Args:
        words: In a few words.
        data: The records.
        net: The network.
        settings: Of the method.
        epochs: The stages that are looked at; the last is the end.
        seeds: Full runs.
        split: Shares of the training records.
        models: M.
    """

    words: str
    data: str
    net: str
    settings: dict[str, Any]
    epochs: tuple[int, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    split: tuple[tuple[str, float], ...] = ()
    models: int = MODELS


_MNIST = (("holdout", 1 / 12),)  # 55,000 to train on
_CIFAR = (("holdout", 0.1),)
_FEW = (("public", 0.6), ("holdout", 0.2), ("test", 0.0))  # about 10,000 to train on
_PRINTED = {"learning_rate": 0.001, "epochs": 60, "schedule": "constant", "constant": "keep"}
_LATE = {"momentum": 0.9, "schedule": "cosine", "constant": "keep"}
_DIGITS = {"epochs": 20, "batch_size": 64, "learning_rate": 0.05, "constant": "keep"}
_APART = {"start": "independent", "epochs": 8, "learning_rate": 0.05}
_STAGES = (1, 5, 10, 20, 30, 40, 50, 60)
TRAININGS = {
    "mnist-printed": Training("as printed", "mnist", "mnist-net", _PRINTED, _STAGES, (0,), _MNIST),
    "mnist": Training("rate 0.1", "mnist", "mnist-net",
                      {"learning_rate": 0.1, "epochs": 10, "schedule": "constant", "constant": "keep"},
                      (1, 2, 5, 10), split=_MNIST),
    "mnist-apart": Training("own starts", "mnist", "mnist-net", {**_LATE, **_APART}, (8,), split=_MNIST),
    "cifar10-printed": Training("as printed", "cifar10", "cifar-net", _PRINTED, _STAGES, (0,), _CIFAR),
    "cifar10": Training("ten epochs in common, then apart", "cifar10", "cifar-net",
                        {**_LATE, "common_epochs": 10, "epochs": 10, "learning_rate": 0.03}, (1, 5, 10), split=_CIFAR),
    "overfitted": Training("over-fitted, in common first", "cifar10", "cifar-net",
                           {**_LATE, "common_epochs": 20, "epochs": 20, "learning_rate": 0.02}, (20,), (0,), _FEW),
    "overfitted-apart": Training("over-fitted, apart from the start", "cifar10", "cifar-net",
                                 {**_LATE, "epochs": 40, "learning_rate": 0.05}, (40,), (0,), _FEW),
    "digits": Training("shared start", "digits", "digits-net", _DIGITS, (1, 5, 20), tuple(range(5)), models=20),
    "digits-apart": Training("own starts", "digits", "digits-net", {**_DIGITS, "start": "independent"}, (20,),
                             tuple(range(5)), models=20),
}  # fmt: skip
NETS = {"mnist-net": ((1, 28, 28), 1_199_882), "cifar-net": ((3, 32, 32), 1_250_858)}
NOT_OF_THE_METHOD = {"training", "data", "epoch", "epsilon", "small", "what"}


# The world that trials share: records and collections.


class TwinWorld(World):
    """One division of a data set, and the collection that is trained on it when it is first asked for."""

    def __init__(self, name: str, seed: int, small: bool, place: Workplace) -> None:
        super().__init__(name, seed, small, place)
        known = self.known = TRAININGS[name]
        settings = {"models": known.models, **known.settings}
        if small:
            settings |= {"models": SMALL_MODELS, "epochs": 1, "grid_points": 32}
            settings |= {"common_epochs": 1} if settings.get("common_epochs") else {}
        table = {"channel": "twin", "method": "published", "data": known.data, "net": known.net, "seed": seed}
        table |= {"epsilon": 1.0, "delta": 1e-5, "split": dict(known.split), "settings": settings}
        self.config, self.facts, self.split = opened(table, place, SMALL_RECORDS if small else None)
        self.epochs = (1,) if small else known.epochs
        self._folder = self._place_of_models()
        self._collection: Collection | None = None

    def _place_of_models(self) -> Path:
        """Where the models are: what an interrupted run left there is gone on from."""
        if self.place.folder is None:
            folder = Path(tempfile.mkdtemp(prefix="airlock-reproduce-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            return folder
        known = f"{self.config.model_dump_json()} {len(self.split.private)} {self.epochs} {self.place.run.device.type}"
        return self.place.folder / f"{self.name}-{self.seed}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"

    def channel(self, epsilon: float = 1.0, **settings: Setting) -> Published:
        """The method at an ε and other settings."""
        changed = {"epsilon": epsilon, "settings": {**self.config.settings, **settings}}
        made = Published(self.config.model_copy(update=changed), self.facts)
        if self.small:
            made.records = len(self.split.private)
        return made

    def slices(self, epoch: int, aligned: bool = False) -> Slices:
        """The models after so many epochs, with their units brought into one order if that is asked for."""
        channel = self.channel()
        steps = math.ceil(channel.records / channel.settings.batch_size)
        stages = {one: min(channel.recipe.steps, one * steps) for one in self.epochs}
        if self._collection is None:
            stops = tuple(stages.values())
            run = replace(self.place.run, checkpoint=self._folder / "unfinished", resume=True)
            self._collection = channel.collection(self.split, run, self._folder / "models", stops)
        found = self._collection.at(stages[epoch])
        return Slices.of(align(found.ensemble(), device=self.place.run.device).ensemble) if aligned else found

    def accuracies(self, net: nn.Module) -> dict[str, float]:
        """On own records, the first 10,000, and on others."""
        net = net.to(self.place.run.device).eval()
        own = self.split.private.take(np.arange(min(10_000, len(self.split.private))))
        return {"own": accuracy(net, own), "others": accuracy(net, self.split.test)}


def _world(trial: Trial, place: Workplace) -> TwinWorld:
    key = (trial["training"], trial.seed, is_small(trial))
    return place.once(f"collection {key}", key, lambda: TwinWorld(*key, place))


def _values(slices: Slices) -> Tensor:
    return torch.cat([block for _, block in slices.blocks()], 1)


# Experiments.


def models(trial: Trial, place: Workplace) -> Figures:
    """Accuracy of the trained models (mean and lowest), and of their average."""
    world = _world(trial, place)
    slices = world.slices(trial["epoch"], dict(trial.settings).get("align", False) is True)
    singles = [world.accuracies(slices.model(row)) for row in _values(slices)]
    average = world.accuracies(slices.model(slices.average()))
    return {
        "own": float(np.mean([one["own"] for one in singles])),
        "others": float(np.mean([one["others"] for one in singles])),
        "lowest": min(one["others"] for one in singles),
        "average": average["others"],
    }


def twin(trial: Trial, place: Workplace) -> Figures:
    """Accuracy of one twin, by the method's settings that the trial names."""
    world = _world(trial, place)
    own = {key: value for key, value in trial.settings if key not in NOT_OF_THE_METHOD}
    slices = world.slices(trial["epoch"], bool(own.pop("align", False)))
    stream = Stream.from_seed(trial.seed).child(trial.key)
    net, made = world.channel(trial["epsilon"], **own).twin(slices, stream, place.run.device)
    return {**world.accuracies(net), "constant": float(made.constant)}


def same(trial: Trial, place: Workplace) -> Figures:
    """Corollary 3: the share of a twin's parameters that DP-PGP with γ = 0 and DP-PG give alike, bit for bit."""
    world = _world(trial, place)
    slices = world.slices(trial["epoch"])
    both = [
        channel.twin(slices, Stream.from_seed(trial.seed).child("twin"), place.run.device)[1].values
        for channel in (world.channel(), world.channel(1.0, generator="dp-pgp", significant=0.0))
    ]
    return {"alike": float((both[0] == both[1]).double().mean())}


BINS = 12


def densities(trial: Trial, place: Workplace) -> Figures:
    """Three parameters spread over the network (Figure 3): where their values, their estimate and their draws lie."""
    world = _world(trial, place)
    channel, slices = world.channel(), world.slices(trial["epoch"])
    values = _values(slices)
    moving = torch.nonzero(values.std(0) > 0)[:, 0]
    figures: dict[str, float] = {}
    for number in range(3):
        place_of = int(moving[len(moving) * (number + 1) // 4])
        block = values[:, [place_of]]
        bandwidth, low, high = spread(block, channel.settings, torch.zeros(1))
        drawn = channel.mechanism.probabilities(block, low, high, bandwidth)[0].double()
        kernel = stats.gaussian_kde(block[:, 0].double().numpy(), float(bandwidth) / float(block.double().std()))
        edges = np.linspace(float(low), float(high), BINS + 1)
        shares = np.histogram(block[:, 0].numpy(), edges)[0] / len(block)
        points = np.linspace(0, BINS, len(drawn), endpoint=False).astype(int)
        figures |= {f"{number}: parameter": float(place_of), f"{number}: low": edges[0], f"{number}: high": edges[-1]}
        for b in range(BINS):
            figures[f"{number}: values in {b}"] = float(shares[b])
            figures[f"{number}: estimate in {b}"] = float(kernel.integrate_box_1d(edges[b], edges[b + 1]))
            figures[f"{number}: drawn in {b}"] = float(drawn.numpy()[points == b].sum())
    return figures


RATES = (0.1, 0.3, 1.0)
# ε after so many epochs of DP-SGD, as the paper names it; and the accuracy that it does not exceed.
DP_SGD = {"mnist": (8.0, 60), "cifar10": (3.0, 50)}


def dp_sgd(trial: Trial, place: Workplace) -> Figures:
    """DP-SGD's accuracy after a tenth of its epochs, two tenths and so on, and what it had cost by then."""
    world = _world(trial, place)
    epsilon, epochs = trial["epsilon"], trial["epochs"]
    lot, n = (40 if world.small else min(1000, len(world.split.private) // 10)), len(world.split.private)
    steps = max(10, round((2 if world.small else epochs) * n / lot))

    def event(noise_multiplier: float, count: int = steps) -> dpa.DpEvent:
        return repeat(sampled(lot / n, dpa.GaussianDpEvent(noise_multiplier)), count)

    z = calibrate(event, epsilon, 1e-5, accountant="rdp")
    net, stream = world.channel().net(), Stream.from_seed(trial.seed).child(trial.key)
    figures: dict[str, float] = {"noise_multiplier": z}

    def watch(done: int, ended: object) -> None:
        tenth, rest = divmod(10 * done, steps)
        if rest < 10 and tenth:
            figures[f"epsilon after {tenth}"] = compute_epsilon(event(z, done), 1e-5, accountant="rdp").epsilon
            figures.update({f"{name} after {tenth}": value for name, value in world.accuracies(net).items()})
            net.train()

    gradients = PrivateGradients(1.0, z, lot, stream.child("gradients"))
    recipe = Recipe(steps=steps, learning_rate=trial["learning_rate"], momentum=0.0)
    data = Resident(world.split.private, place.run.device)
    secret = stream.child("dropout")
    sampler = Poisson(lot / n, stream.child("lots"))
    fit(net, data, sampler, gradients, recipe, trial.seed, place.run, watch=watch, secret=secret)
    return figures


_HOW = ShadowSettings(repeats=1, most=20_000, epochs=30)
SINGLES = 5  # of the models, each attacked by itself
SHADOWS, SMALL_SHADOWS = 16, 2


def attack(trial: Trial, place: Workplace) -> Figures:
    """Membership inference class by class (Figure 12): (TPR + TNR)/2 of the attack's own decision."""
    world = _world(trial, place)
    nets = list(_attacked(trial, world, place))
    found = [{**world.accuracies(net), **_leakage(net, world, place)} for net in nets]
    figures = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    return {**figures, "highest": max(figures[f"class {c}"] for c in range(len(world.facts.classes)))}


def _attacked(trial: Trial, world: TwinWorld, place: Workplace) -> Iterator[nn.Module]:
    what, epoch = trial["what"], world.epochs[-1]
    stream = Stream.from_seed(trial.seed).child(trial.key)
    if what == "dp-sgd":
        yield _private_net(world, stream, place)
        return
    slices = world.slices(epoch)
    if what == "single":
        for row in _values(slices)[:SINGLES]:
            yield slices.model(row)
    elif what == "average":
        yield slices.model(slices.average())
    else:
        groups: dict[str, Setting] = {"generator": "dp-pgp", "cluster_epsilon": 1.0, "residual_epsilon": 4.0}
        channel = world.channel(5.0, **groups) if what == "dp-pgp" else world.channel(1.0)
        yield channel.twin(slices, stream, place.run.device)[0]


def _private_net(world: TwinWorld, stream: Stream, place: Workplace) -> nn.Module:
    """DP-SGD on the same records for 60 epochs, at ε = 8."""
    n = len(world.split.private)
    lot, epochs = n // 20, 2 if world.small else 60
    steps = epochs * n // lot

    def event(noise_multiplier: float) -> dpa.DpEvent:
        return repeat(sampled(lot / n, dpa.GaussianDpEvent(noise_multiplier)), steps)

    net, z = world.channel().net(), calibrate(event, 8.0, 1e-5, accountant="rdp")
    gradients, data = (
        PrivateGradients(1.0, z, lot, stream.child("gradients")),
        Resident(world.split.private, place.run.device),
    )
    recipe, sampler = Recipe(steps=steps, learning_rate=0.3, momentum=0.0), Poisson(lot / n, stream.child("lots"))
    fit(net, data, sampler, gradients, recipe, world.seed, place.run, secret=stream.child("dropout"))
    return net


def _leakage(net: nn.Module, world: TwinWorld, place: Workplace) -> dict[str, float]:
    shadows, nets = place.once("attack", (world.known.words, world.seed, world.small), lambda: _learned(world, place))
    count = min(len(world.split.private), len(world.split.holdout))
    sides = [part.take(np.arange(count)) for part in (world.split.private, world.split.holdout)]
    net = net.to(place.run.device).eval()
    members, others = (AnsweredRecords(side, ask(net, side, place.run.device)) for side in sides)
    found = shadow_attack(shadows, members, others, world.seed, place.run, _HOW, nets)
    right = {}
    for label in range(len(world.facts.classes)):
        inside, outside = found.members[sides[0].y == label] > 0, found.others[sides[1].y == label] > 0
        right[f"class {label}"] = float((inside.mean() + 1 - outside.mean()) / 2)
    return right


def _learned(world: TwinWorld, place: Workplace) -> tuple[Shadows, Ensemble]:
    """Shadow models on as many other records, and one attack network a class (Shokri et al. 2017)."""
    channel, pool, seed = world.channel(), world.split.public, world.seed
    count = SMALL_SHADOWS if world.small else SHADOWS
    inside = subsets(count, len(pool), min(len(world.split.private), len(pool) // 2), seed)
    make = makes(channel.net_name, channel.facts.shape, len(channel.facts.classes), seed + 1)
    size, epochs = channel.settings.batch_size, channel.settings.common_epochs + channel.settings.epochs
    recipe = channel.recipe.model_copy(update={"steps": round(epochs * -(-int(inside[0].sum()) // size))})
    shadows, _ = train_shadows(make, pool, inside, recipe, seed + 1, place.run, batch_size=size)
    return shadows, train_attack(shadows, seed, place.run, _HOW)


def kmeans(trial: Trial, place: Workplace) -> Figures:
    """The mean squared distance to the nearest private centroid, on points around centres drawn with seed 0."""
    n, k, d = trial["points"], trial["clusters"], trial["dimensions"]
    chance = np.random.default_rng(0)
    centres = chance.uniform(-0.8, 0.8, (k, d))
    points = np.clip(centres[chance.integers(0, k, n)] + chance.normal(0, 0.08, (n, d)), -1, 1)
    made = PrivateKMeans(k, trial["epsilon"], n, dimensions=d)
    centroids = made.fit(points, Stream.from_seed(trial.seed), seed=trial.seed)
    nearest = centroids[assign_nearest(points, centroids)]
    return {"distance": float(((points - nearest) ** 2).sum(1).mean())}


def sharded(trial: Trial, place: Workplace) -> Figures:
    """The sound counterparts, at an ε that is proven."""
    table = {"channel": "twin", "method": trial["method"], "data": trial["data"], "epsilon": trial["epsilon"]}
    table |= {"delta": 1e-5, "split": {"holdout": 0.0}}
    return released(trial, place, table)


def court(trial: Trial, place: Workplace) -> Figures:
    """The paper's own claim, one model more or less, with a public range and bandwidth."""
    return in_court(trial, Published.case(trial["epsilon"], 1e-5))


# Items.


def _more(quick: bool) -> dict[str, Setting]:
    return {"small": True} if quick else {}


def _of(
    experiment: str, name: str, quick: bool, seeds: Sequence[int] | None = None, **settings: Any
) -> Iterator[Trial]:
    known = TRAININGS[name]
    for seed in (0,) if quick else known.seeds if seeds is None else seeds:
        yield Trial.of(experiment, seed, training=name, data=known.data, **settings, **_more(quick))


def _stages(name: str, quick: bool) -> tuple[int, ...]:
    return (1,) if quick else TRAININGS[name].epochs


def _names(names: Sequence[str], quick: bool) -> Sequence[str]:
    return names[-1:] if quick else names


def _few(values: Sequence[float], quick: bool) -> Sequence[float]:
    return (2.0,) if quick else values


def _sorted(trials: Sequence[Trial]) -> list[Trial]:
    """By collection and seed, so that each collection is trained once."""
    return sorted(trials, key=lambda trial: (trial["training"], trial.seed))


def _figure(found: Found, experiment: str, figure: str, name: str, **settings: Setting) -> Spread | None:
    data = TRAININGS[name].data
    return found.figure(experiment, figure, training=name, data=data, **settings, **_more(found.quick))


def _behind(name: str, models: Spread, own: Spread | None) -> tuple[str, float, Spread | None]:
    """How far a twin is below what it was drawn from, to be compared with nothing; above it is as good."""
    return name, 0.0, None if own is None else Spread((max(0.0, models.mean - own.mean),))


def _noisy(data: str, quick: bool) -> list[Trial]:
    epsilon, epochs = DP_SGD[data]
    own: dict[str, Setting] = {"epsilon": epsilon, "epochs": epochs}
    return [one for rate in (RATES[1:2] if quick else RATES)
            for one in _of("dp-sgd", data, quick, (0,), learning_rate=rate, **own)]  # fmt: skip


def _best_noisy(found: Found, data: str) -> tuple[float, list[tuple[float, float, float]]] | None:
    """The best rate, and the curve: ε, own and others after each tenth."""
    epsilon, epochs = DP_SGD[data]
    curves = []
    for rate in RATES:
        own = {"epsilon": epsilon, "epochs": epochs, "learning_rate": rate}
        curve = []
        for tenth in range(1, 11):
            there = [
                _figure(found, "dp-sgd", f"{name} after {tenth}", data, **own) for name in ("epsilon", "own", "others")
            ]
            if there[0] and there[1] and there[2]:
                curve.append((there[0].mean, there[1].mean, there[2].mean))
        if curve:
            curves.append((max(point[2] for point in curve), rate, curve))
    if not curves:
        return None
    _, rate, curve = max(curves, key=lambda one: one[0])
    return rate, curve


def _by_stage(names: Sequence[str]) -> Callable[[bool], list[Trial]]:
    def trials(quick: bool) -> list[Trial]:
        found: list[Trial] = []
        for name in _names(names, quick):
            for epoch in _stages(name, quick):
                found += _of("models", name, quick, epoch=epoch)
                for epsilon in _few(BUDGETS, quick):
                    found += _of("twin", name, quick, epoch=epoch, epsilon=epsilon)
        return [*_sorted(found), *_noisy(TRAININGS[names[0]].data, quick)]

    return trials


def _show_by_stage(found: Found, names: Sequence[str]) -> ItemResult:
    """Figures 4 and 5: by epoch, on own records and on others; and DP-SGD by what it has cost."""
    budgets, rows, pairs, there = _few(BUDGETS, found.quick), [], [], 0
    for name in _names(names, found.quick):
        words = TRAININGS[name].words
        for epoch in _stages(name, found.quick):
            single = [_figure(found, "models", figure, name, epoch=epoch) for figure in ("own", "others")]
            stage = partial(_figure, found, "twin", name=name, epoch=epoch)
            twins = [[stage(figure=figure, epsilon=epsilon) for figure in ("own", "others")] for epsilon in budgets]
            if single[1]:
                pairs += [_behind(f"{words}, epoch {epoch}, ε = {epsilon:g}", single[1], pair[1])
                          for epsilon, pair in zip(budgets, twins, strict=True)]  # fmt: skip
                there += 1
            rows.append((words, f"{epoch}", *(_both(pair) for pair in (single, *twins))))
    noisy = _best_noisy(found, TRAININGS[names[0]].data)
    notes = []
    if noisy:
        rate, curve = noisy
        rows += [("DP-SGD", f"ε = {epsilon:.2g}", f"{own:.3f} · {others:.3f}", *("" for _ in budgets))
                 for epsilon, own, others in curve]  # fmt: skip
        best = max(point[2] for point in curve)
        notes = [
            f"DP-SGD: rate {rate:g}, the best of those that were run; its highest accuracy on others is {best:.3f}."
        ]
    if not there:
        return (
            ItemResult("not run")
            if not noisy
            else ItemResult("in part", "DP-SGD alone", _stage_columns(budgets), tuple(rows))
        )
    status, words = compared(pairs, 0.01)
    words = f"{words} (below the models, with which the paper calls twins commensurate)"
    if not noisy:
        status, words = ("in part" if status == "reproduced" else status), f"{words}; DP-SGD was not run"
    return ItemResult(status, words, _stage_columns(budgets), tuple(rows), tuple(notes))


def _stage_columns(budgets: Sequence[float]) -> tuple[str, ...]:
    return ("training", "epoch", "single model: own · others", *(f"twin, ε = {epsilon:g}" for epsilon in budgets))


def _both(pair: Sequence[Spread | None]) -> str:
    return " · ".join(NOT_RUN if one is None else one.text() for one in pair)


def _by_epsilon(names: Sequence[str]) -> Callable[[bool], list[Trial]]:
    def trials(quick: bool) -> list[Trial]:
        found: list[Trial] = []
        for name in _names(names, quick):
            last = _stages(name, quick)[-1]
            found += _of("models", name, quick, epoch=last)
            for epsilon in _few(EPSILONS, quick):
                found += _of("twin", name, quick, epoch=last, epsilon=epsilon)
        return [*_sorted(found), *_noisy(TRAININGS[names[0]].data, quick)]

    return trials


def _show_by_epsilon(found: Found, names: Sequence[str], least: float) -> ItemResult:
    """Figures 6 and 7; `least` is the ε from which the paper says that a twin is as good as its models."""
    epsilons, rows, pairs = _few(EPSILONS, found.quick), [], []
    for name in _names(names, found.quick):
        last, words = _stages(name, found.quick)[-1], TRAININGS[name].words
        single = _figure(found, "models", "others", name, epoch=last)
        twins = [_figure(found, "twin", "others", name, epoch=last, epsilon=epsilon) for epsilon in epsilons]
        if single:
            pairs += [_behind(f"{words}, ε = {epsilon:g}", single, one)
                      for epsilon, one in zip(epsilons, twins, strict=True) if epsilon >= least]  # fmt: skip
        rows.append((words, *(NOT_RUN if one is None else one.text() for one in (single, *twins))))
    noisy = _best_noisy(found, TRAININGS[names[0]].data)
    if noisy:
        cells = [max((others for cost, _, others in noisy[1] if cost <= epsilon), default=None) for epsilon in epsilons]
        rows.append(("DP-SGD, at most this ε", "", *("" if one is None else f"{one:.3f}" for one in cells)))
    if not pairs:
        return ItemResult("not run")
    status, words = compared(pairs, 0.01)
    words = f"{words} (below the models; twins from ε = {least:g} on)"
    columns = ("training", "single model", *(f"ε = {epsilon:g}" for epsilon in epsilons))
    return ItemResult(status, words, columns, tuple(rows))


GROUPS = {
    "figure-8": ("ε1", tuple((value, 1.0, 4.0) for value in (0.1, 0.5, 1.0, 2.0, 5.0)), 0.0),
    "figure-9": ("ε2", tuple((5.0, value, 4.0) for value in (0.1, 0.5, 1.0, 2.0, 4.0)), 2.0),
    "figure-10": ("ε3", tuple((5.0, 1.0, value) for value in (0.5, 1.0, 1.5, 2.0, 4.0)), 1.5),
    "figure-11": ("ε3", tuple((5.0, 1.0, value) for value in (1.0, 2.0, 3.0, 4.0, 7.0)), 3.5),
}
_PLACE = {"ε1": 0, "ε2": 1, "ε3": 2}


def _grouped(budget: tuple[float, float, float]) -> dict[str, Any]:
    first, second, third = budget
    own = {"draw_epsilon": first, "cluster_epsilon": second, "residual_epsilon": third}
    return {"epsilon": max(first, second + third), "generator": "dp-pgp", **own}


def _groups(name: str, names: Sequence[str]) -> Callable[[bool], list[Trial]]:
    def trials(quick: bool) -> list[Trial]:
        found: list[Trial] = []
        for one in _names(names, quick):
            last = _stages(one, quick)[-1]
            found += _of("models", one, quick, epoch=last)
            for budget in GROUPS[name][1][-1:] if quick else GROUPS[name][1]:
                found += _of("twin", one, quick, epoch=last, **_grouped(budget))
        return _sorted(found)

    return trials


def _show_groups(found: Found, name: str, names: Sequence[str]) -> ItemResult:
    """Figures 8 to 11: DP-PGP by one of its three budgets, against the average of the models, its target."""
    label, budgets, least = GROUPS[name]
    budgets = budgets[-1:] if found.quick else budgets
    rows, pairs = [], []
    for one in _names(names, found.quick):
        last, words = _stages(one, found.quick)[-1], TRAININGS[one].words
        average = _figure(found, "models", "average", one, epoch=last)
        twins = [_figure(found, "twin", "others", one, epoch=last, **_grouped(budget)) for budget in budgets]
        if average:
            at = [budget[_PLACE[label]] for budget in budgets]
            pairs += [_behind(f"{words}, {label} = {value:g}", average, cell)
                      for value, cell in zip(at, twins, strict=True) if value >= least]  # fmt: skip
        rows.append((words, *(NOT_RUN if cell is None else cell.text() for cell in (average, *twins))))
    if not pairs:
        return ItemResult("not run")
    status, words = compared(pairs, 0.02)
    said = f"from {label} = {least:g} on, " if least else ""
    columns = ("training", "average", *(f"{label} = {budget[_PLACE[label]]:g}" for budget in budgets))
    return ItemResult(status, f"{words} ({said}below the average of the models)", columns, tuple(rows))


WHAT = {
    "single": ("single model", 0.90, None),
    "average": ("average of the models", None, None),
    "dp-pg": ("DP-PG, ε = 1", 0.57, 0.55),
    "dp-pgp": ("DP-PGP (5, 1, 4)", 0.70, 0.50),
    "dp-sgd": ("DP-SGD, ε = 8", None, None),
}
OVERFITTED = ("overfitted-apart", "overfitted")


def _attacks(quick: bool) -> list[Trial]:
    return [one for name in _names(OVERFITTED, quick) for what in (("single", "dp-pg", "dp-sgd") if quick else WHAT)
            for one in _of("attack", name, quick, what=what)]  # fmt: skip


def _show_attacks(found: Found) -> ItemResult:
    """Figure 12. What the paper prints are the highest accuracy over classes, and about what the twin still knew."""
    rows, pairs, there = [], [], 0
    for name in _names(OVERFITTED, found.quick):
        for what, (words, highest, others) in WHAT.items():
            ours = {figure: _figure(found, "attack", figure, name, what=what)
                    for figure in ("own", "others", *(f"class {c}" for c in range(10)), "highest")}  # fmt: skip
            if name == "overfitted" and highest is not None:
                pairs.append((f"{words}, highest", highest, ours["highest"]))
            if ours["own"] is None:
                continue
            there += 1
            classes = [f"{100 * one.mean:.1f}" for key, one in ours.items() if key.startswith("class") and one]
            rows.append((TRAININGS[name].words, words, NOT_RUN if ours["own"] is None else ours["own"].text(),
                         beside(others, ours["others"], 3), *classes, beside(highest, ours["highest"], 3)))  # fmt: skip
    if not there:
        return ItemResult("not run")
    columns = ("training", "what leaves", "own", "others", *(f"{c}" for c in range(10)), "highest")
    return ItemResult(*compared(pairs, 0.05), columns, tuple(rows))


def _show_networks(found: Found) -> ItemResult:
    rows, pairs = [], []
    for name, (shape, printed) in NETS.items():
        count = sum(p.numel() for p in create(name, shape, 10, 0).parameters())
        rows.append((name, f"{printed:,}", f"{count:,}"))
        pairs.append((name, float(printed), Spread((float(count),))))
    status, words = compared(pairs, 0.0)
    return ItemResult(status, "to the last parameter" if status == "reproduced" else words,
                      ("network", "paper", "here"), tuple(rows))  # fmt: skip


def _printed(quick: bool) -> list[Trial]:
    names = _names(("cifar10-printed", "mnist-printed"), quick)
    return [one for name in names for one in _of("models", name, quick, epoch=_stages(name, quick)[-1])]


def _show_printed(found: Found) -> ItemResult:
    """Whether rate 0.001, batches of 128 and 60 epochs of SGD give what the paper says of MNIST-Net: above 99%."""
    rows, ours = [], None
    for name in _names(("cifar10-printed", "mnist-printed"), found.quick):
        last = _stages(name, found.quick)[-1]
        cells = [
            _figure(found, "models", figure, name, epoch=last) for figure in ("own", "others", "lowest", "average")
        ]
        rows.append((TRAININGS[name].net, *(NOT_RUN if one is None else one.text(4) for one in cells)))
        ours = cells[1] if name == "mnist-printed" else ours
    if ours is None:
        return ItemResult("not run")
    status: Status = "reproduced" if ours.mean > 0.99 else "differs"
    columns = ("network", "own", "others", "lowest of all", "average")
    return ItemResult(status, f"MNIST-Net has {100 * ours.mean:.1f}% on others", columns, tuple(rows))


def _densities(quick: bool) -> list[Trial]:
    name = "digits" if quick else "mnist"
    return list(_of("densities", name, quick, (0,), epoch=_stages(name, quick)[-1]))


def _show_densities(found: Found) -> ItemResult:
    name = "digits" if found.quick else "mnist"
    last, rows = _stages(name, found.quick)[-1], []
    for number in range(3):
        ends = [
            _figure(found, "densities", f"{number}: {end}", name, epoch=last) for end in ("parameter", "low", "high")
        ]
        if not (ends[0] and ends[1] and ends[2]):
            return ItemResult("not run")
        words = f"parameter {ends[0].mean:,.0f}, {ends[1].mean:.4f} to {ends[2].mean:.4f}"
        for what in ("values", "estimate", "drawn"):
            cells = [_figure(found, "densities", f"{number}: {what} in {b}", name, epoch=last) for b in range(BINS)]
            rows.append((words, what, *(f"{one.mean:.2f}" for one in cells if one)))
    columns = ("parameter and range", "share of", *(f"{b + 1}" for b in range(BINS)))
    return ItemResult("in part", "the paper's histograms have no numbers", columns, tuple(rows))


WINDOWS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


def _show_corollary_1(found: Found) -> ItemResult:
    """By how much one of M models moves a score, κ/M, over the paper's bound 1/(M(M − 1)), by window."""
    rows, held = [], []
    printed = published_sensitivity(MODELS)
    for window in WINDOWS:
        true = sensitivity(MODELS, window)
        held += [window] if true <= printed else []
        rows.append(
            (f"{window:g}", f"{largest_score(window):.4f}", f"{true:.2e}", f"{printed:.2e}", f"{true / printed:.2f}")
        )
    most = 2 * float(stats.norm.ppf((1 + 1 / (MODELS - 1)) / 2))
    words = f"it asks for a window below the bandwidth, and holds at M = {MODELS} for one below {most:.3f} bandwidths"
    columns = ("window / bandwidth", "κ", "Δu = κ/M", "printed bound", "true ε of one parameter at ε = 1")
    return ItemResult("differs", words, columns, tuple(rows))


def _show_corollary_2(found: Found) -> ItemResult:
    """How far a drawn value's score is below the best one, with probability 0.99, on 256 points."""
    rows = []
    for epsilon in EPSILONS:
        cells = [2 * delta / epsilon * (math.log(256) + math.log(100))
                 for delta in (published_sensitivity(MODELS), sensitivity(MODELS, 1.0))]  # fmt: skip
        rows.append((f"{epsilon:g}", *(f"{cell:.4f}" for cell in cells)))
    columns = ("ε", "with the printed Δu", "with Δu = κ/M, a window as wide as the bandwidth")
    return ItemResult("reproduced", "a theorem about the exponential mechanism; scores here are at most κ = 0.38",
                      columns, tuple(rows))  # fmt: skip


def _sames(quick: bool) -> list[Trial]:
    return list(_of("same", "digits", quick, (0,), epoch=_stages("digits", quick)[-1]))


def _show_same(found: Found) -> ItemResult:
    ours = _figure(found, "same", "alike", "digits", epoch=_stages("digits", found.quick)[-1])
    if ours is None:
        return ItemResult("not run")
    return ItemResult(
        "reproduced" if ours.mean == 1 else "differs", f"{100 * ours.mean:g}% of a twin's parameters are alike"
    )


def _show_claims(found: Found) -> ItemResult:
    """What the figures claim for a model, and what one of M models costs if range and bandwidth were public."""
    one = sensitivity(MODELS, 1.0) / published_sensitivity(MODELS)
    rows = []
    for name, (_, count) in NETS.items():
        rho = count * one**2 / 8
        whole = min(count * one, rho + 2 * math.sqrt(rho * math.log(1e5)))
        rows.append((name, "1", f"{one:.2f}", f"{whole:,.0f}", "none"))
    columns = (
        "network",
        "claimed: parameter and model",
        "true: one parameter",
        "true: one model of 50",
        "true: one record",
    )
    return ItemResult("differs", "slices are columns of the same models, which compose; every record is in every model",
                      columns, tuple(rows))  # fmt: skip


# On digits, where everything is cheap: five seeds.

DIGITS_EPSILONS = (0.05, 0.1, 0.5, 1.0, 5.0)
ASIDE: dict[str, dict[str, Any]] = {
    "DP-PG, window 0.05 bandwidths (Corollary 1 holds)": {"epsilon": 1.0, "window": 0.05},
    "DP-PG, Δu = κ/M, ε = 0.0001": {"epsilon": 0.0001, "sensitivity": "correct"},
    **{f"DP-PGP, ε = {epsilon:g}": {"epsilon": epsilon, "generator": "dp-pgp"} for epsilon in (1.5, 3.0, 5.0, 10.0)},
    "DP-PGP, ε = 10, line 21 as printed": {"epsilon": 10.0, "generator": "dp-pgp", "printed": True},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "shared": ("digits", {}),
    "own": ("digits-apart", {}),
    "own, aligned": ("digits-apart", {"align": True}),
}


def _digits(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name, own in list(FORMS.values())[: 1 if quick else 3]:
        for epoch in _stages(name, quick):
            found += _of("models", name, quick, epoch=epoch, **own)
            for epsilon in _few(DIGITS_EPSILONS, quick):
                found += _of("twin", name, quick, epoch=epoch, epsilon=epsilon, **own)
    for settings in list(ASIDE.values())[-1:] if quick else ASIDE.values():
        found += _of("twin", "digits", quick, epoch=_stages("digits", quick)[-1], **settings)
    return _sorted(found)


def _show_digits(found: Found) -> ItemResult:
    rows, epsilons = [], _few(DIGITS_EPSILONS, found.quick)
    for words, (name, own) in FORMS.items():
        for epoch in _stages(name, found.quick):
            cells = [_figure(found, "models", figure, name, epoch=epoch, **own) for figure in ("others", "average")]
            cells += [
                _figure(found, "twin", "others", name, epoch=epoch, epsilon=epsilon, **own) for epsilon in epsilons
            ]
            if any(cells):
                rows.append((words, f"{epoch}", *(NOT_RUN if one is None else one.text() for one in cells)))
    if not rows:
        return ItemResult("not run")
    columns = ("start", "epoch", "single model", "average", *(f"ε = {epsilon:g}" for epsilon in epsilons))
    return ItemResult("beside it", f"{len(rows)} rows", columns, tuple(rows))


def _show_aside(found: Found) -> ItemResult:
    rows = []
    for words, settings in ASIDE.items():
        ours = _figure(found, "twin", "others", "digits", epoch=_stages("digits", found.quick)[-1], **settings)
        if ours:
            rows.append((words, ours.text()))
    if not rows:
        return ItemResult("not run")
    return ItemResult("beside it", f"{len(rows)} rows", ("twin", "others"), tuple(rows))


def _apart(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    last = _stages("mnist-apart", quick)[-1]
    forms: tuple[dict[str, Any], ...] = ({"align": True}, {})
    for own in forms[: 1 if quick else 2]:
        found += _of("models", "mnist-apart", quick, epoch=last, **own)
        for epsilon in _few(EPSILONS, quick):
            found += _of("twin", "mnist-apart", quick, epoch=last, epsilon=epsilon, **own)
    return _sorted(found)


def _show_apart(found: Found) -> ItemResult:
    rows, epsilons, last = [], _few(EPSILONS, found.quick), _stages("mnist-apart", found.quick)[-1]
    forms: dict[str, dict[str, Setting]] = {"as they are": {}, "aligned": {"align": True}}
    for words, own in forms.items():
        cells = [_figure(found, "models", figure, "mnist-apart", epoch=last, **own) for figure in ("others", "average")]
        cells += [_figure(found, "twin", "others", "mnist-apart", epoch=last, epsilon=e, **own) for e in epsilons]
        if any(cells):
            rows.append((words, *(NOT_RUN if one is None else one.text() for one in cells)))
    if not rows:
        return ItemResult("not run")
    columns = ("models", "single model", "average", *(f"ε = {epsilon:g}" for epsilon in epsilons))
    return ItemResult("beside it", "the paper does not say how its models start", columns, tuple(rows))


BOXES = ((10_000, 4, 2), (2_000, 4, 2), (20_000, 8, 1), (5_000, 8, 4))
BOX_EPSILONS = (0.1, 0.5, 1.0, 4.0)


def _kmeans(quick: bool) -> list[Trial]:
    return [
        Trial.of("k-means", seed, points=n, clusters=k, dimensions=d, epsilon=epsilon)
        for n, k, d in (BOXES[2:3] if quick else BOXES)
        for epsilon in _few(BOX_EPSILONS, quick)
        for seed in range(2 if quick else 20)
    ]


def _show_kmeans(found: Found) -> ItemResult:
    rows = []
    for n, k, d in BOXES:
        cells = [found.figure("k-means", "distance", points=n, clusters=k, dimensions=d, epsilon=epsilon)
                 for epsilon in _few(BOX_EPSILONS, found.quick)]  # fmt: skip
        if any(cells):
            medians = [NOT_RUN if one is None else f"{float(np.median(one.values)):.4f}" for one in cells]
            rows.append((f"{n:,}", f"{k}", f"{d}", *medians))
    if not rows:
        return ItemResult("not run")
    columns = ("points", "k", "dimensions", *(f"ε = {epsilon:g}" for epsilon in _few(BOX_EPSILONS, found.quick)))
    return ItemResult("beside it", "medians of 20 draws", columns, tuple(rows))


SHARDED = (("sharded", 1.0), ("sharded", 8.0), ("kde-sharded", 1.0), ("kde-sharded", 8.0))


def _sharded(quick: bool) -> list[Trial]:
    """Quick on digits: the price of shards is a number of records, of which 300 have none to spare."""
    own: dict[str, Setting] = {"data": "digits", "small": True} if quick else {"data": "mnist"}
    cases = (("sharded", 8.0),) if quick else SHARDED
    return [Trial.of("sharded", seed, method=method, epsilon=epsilon, **own)
            for method, epsilon in cases for seed in ((0,) if quick else (0, 1, 2))]  # fmt: skip


def _show_sharded(found: Found) -> ItemResult:
    own: dict[str, Setting] = {"data": "digits", "small": True} if found.quick else {"data": "mnist"}
    rows = []
    for method, epsilon in SHARDED:
        others, proven = (found.figure("sharded", name, method=method, epsilon=epsilon, **own)
                          for name in ("others", "epsilon"))  # fmt: skip
        if others and proven:
            rows.append((f"`{method}`", f"{proven.mean:.4f}", others.text(4)))
    if not rows:
        return ItemResult("not run")
    return ItemResult("beside it", f"{len(rows)} of {len(SHARDED)} rows", ("method", "proven ε", "others"), tuple(rows))


def _courts(quick: bool) -> list[Trial]:
    return [Trial.of("court", seed, epsilon=1.0) for seed in ((0,) if quick else (0, 1, 2))]


def _show_court(found: Found) -> ItemResult:
    return show_court(found, {"one model more or less": {"epsilon": 1.0}}, "one model")


def _together(trial: Trial) -> object:
    """The collection that a trial looks at; DP-SGD and what is on its own look at none."""
    asked = dict(trial.settings)
    alone = trial.experiment == "dp-sgd" or "training" not in asked
    return None if alone else (asked["training"], trial.seed, is_small(trial))


def _order(trial: Trial) -> tuple[int, ...]:
    """DP-SGD first, whose curves are cheap; sixty epochs of fifty models last."""
    asked = dict(trial.settings)
    return trial.experiment != "dp-sgd", str(asked.get("training", "")).endswith("-printed"), trial.seed


_M, _C = ("mnist-printed", "mnist"), ("cifar10-printed", "cifar10")
_OF_A_MODEL = "the runs of figure-4, and seconds a draw"

PAPER = Paper(
    "twin",
    "Mao et al. 2020, DP-PG and DP-PGP",
    {
        "models": models,
        "twin": twin,
        "same": same,
        "densities": densities,
        "dp-sgd": dp_sgd,
        "attack": attack,
        "k-means": kmeans,
        "sharded": sharded,
        "court": court,
    },
    (
        Item("networks", "parameters of MNIST-Net and CIFAR-Net", "1,199,882 and 1,250,858", lambda quick: (),
             _show_networks),
        Item("training", "rate 0.001, batches of 128, 60 epochs of SGD", "above 99% on MNIST", _printed, _show_printed,
             "about an hour"),
        Item("figure-3", "histograms and estimates of three parameters", "histograms", _densities, _show_densities,
             "about 5 minutes"),
        Item("corollary-1", "the sensitivity of a score", "Δu < 1/(M(M − 1))", lambda quick: (), _show_corollary_1),
        Item("corollary-2", "how good a drawn parameter is", "a bound on the score", lambda quick: (),
             _show_corollary_2),
        Item("corollary-3", "DP-PGP with γ = 0 is DP-PG", "equivalent", _sames, _show_same, "about a minute on a CPU"),
        Item("claims", "the privacy of a model (Corollaries 1 and 4)", "max ε_j", lambda quick: (), _show_claims),
        Item("figure-4", "MNIST-Net by epoch; DP-SGD", "commensurate; DP-SGD at most 96%", _by_stage(_M),
             partial(_show_by_stage, names=_M), "about an hour"),
        Item("figure-5", "CIFAR-Net by epoch; DP-SGD", "commensurate", _by_stage(_C),
             partial(_show_by_stage, names=_C), "about two hours"),
        Item("figure-6", "MNIST-Net by ε; DP-SGD", "worse at ε ≤ 0.1", _by_epsilon(_M),
             partial(_show_by_epsilon, names=_M, least=0.5), _OF_A_MODEL),
        Item("figure-7", "CIFAR-Net by ε; DP-SGD", "the baseline at ε ≥ 2", _by_epsilon(_C),
             partial(_show_by_epsilon, names=_C, least=2.0), "the runs of figure-5, and seconds a draw"),
        *(Item(name, f"MNIST-Net, DP-PGP by {GROUPS[name][0]}", said, _groups(name, _M),
               partial(_show_groups, name=name, names=_M), _OF_A_MODEL)
          for name, said in (("figure-8", "no trend"), ("figure-9", "commensurate at ε ≥ 2"),
                             ("figure-10", "acceptable from 1.5 on"))),
        Item("figure-11", "CIFAR-Net, DP-PGP by ε3", "acceptable above 3", _groups("figure-11", _C),
             partial(_show_groups, name="figure-11", names=_C), "the runs of figure-5, and seconds a draw"),
        Item("figure-12", "membership inference by class", "90%, 57% and at most 70%", _attacks, _show_attacks,
             "about 30 minutes"),
        Item("own-starts", "MNIST-Nets that start apart", "none", _apart, _show_apart, "about 15 minutes"),
        Item("digits", "stages, starts and ε on digits", "none", _digits, _show_digits, "minutes on a CPU"),
        Item("digits-aside", "what the paper leaves open, on digits", "none", _digits, _show_aside,
             "the runs of digits"),
        Item("court", "one model in court", "claims ε = 1", _courts, _show_court, "about a minute on a CPU"),
        Item("k-means", "private k-means, which DP-PGP uses", "none", _kmeans, _show_kmeans, "about a minute on a CPU"),
        Item("sharded", "the sound counterparts on MNIST", "none", _sharded, _show_sharded, "about an hour on a CPU"),
    ),
    ("mnist", "cifar10", "digits"),
    together=_together,
    order=_order,
)  # fmt: skip

"""The networks that evaluate front ends: the paper's classifier and its reconstructor, many of them trained as one.

In: a prefix, points (which of its channels, which seed) and public records. Out: for every point the test accuracy of a
classifier (`nets.privynet`) on its maps, or the mean PSNR of a reconstructor (`nets.privynet`). Points of one prefix
are one ensemble: every network sees the same images and its own channels of the maps; if a point has fewer channels
than others, the rest are zeros.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from airlock.config import Frozen, Positive
from airlock.data import Records
from airlock.errors import DataError, Interrupted
from airlock.nets.prefix import Prefix
from airlock.nets.privynet import Icn, Irn
from airlock.training.augment import flip, shift
from airlock.training.devices import Resident
from airlock.training.ensembles.stacked import Looped, Vmapped, choose, stack, tensors
from airlock.training.gradients import MEAN, Named, Objective
from airlock.training.loop import Run, forked_generator, mix, precision, watch_interrupt
from airlock.training.sampling import Shuffled

Kind = Literal["utility", "privacy"]
_TEST_BATCH = 250
_RISE = 0.05  # fraction of the training over which Adam's rate rises
_LARGE = 1024  # positions of a map from which a single network fills a GPU
_FEW = 4000  # steps of single networks up to which compiling kernels for many does not pay off
_LEAST_ERROR = 1e-10  # 100 dB
_log = logging.getLogger(__name__)


class Learning(Frozen):
    """How the networks of one kind are trained.

    Args:
        records: Public records to train on.
        epochs: Passes over them.
        batch_size: Images per step.
        optimiser: Adam by default; `sgd` with 0.05 and 250 epochs is the paper's classifier.
        learning_rate: The peak rate; SGD drops to a tenth of it after two fifths and to a hundredth after four fifths
            of the training, as in the paper; Adam uses a cosine.
        width: Channels in the reconstructor's blocks.
        blocks: Blocks in each of its clusters.
        clusters: How many clusters it has.
    """

    records: Annotated[int, Field(ge=2)]
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Annotated[int, Field(ge=1)] = 128
    optimiser: Literal["sgd", "adam"] = "adam"
    learning_rate: Positive = 1e-3
    width: Annotated[int, Field(ge=1)] = 64
    blocks: Annotated[int, Field(ge=1)] = 8
    clusters: Annotated[int, Field(ge=1)] = 2


class Effort(Frozen):
    """How thoroughly to measure.

    Args:
        utility: Training of the classifiers.
        privacy: Training of the reconstructors; fewer than 1000 records with augmentation are enough.
        test_records: The number of test records.
        at_once: The most networks trained as one.
        seed: The seed of the choice and order of records and of augmentation.
    """

    utility: Learning = Learning(records=8000, epochs=12)
    privacy: Learning = Learning(records=960, epochs=30, batch_size=64)
    test_records: Annotated[int, Field(ge=1)] = 1000
    at_once: Annotated[int, Field(ge=1)] = 64
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


PAPER = Effort(
    utility=Learning(records=40_000, epochs=250, optimiser="sgd", learning_rate=0.05),
    privacy=Learning(records=960, epochs=100),
    test_records=10_000,
)
QUICK = Effort(
    utility=Learning(records=4000, epochs=8),
    privacy=Learning(records=480, epochs=24, batch_size=48),
    test_records=500,
)


@dataclass(frozen=True)
class Point:
    """One front end: how many layers, which of the output channels, and the seed of the networks that evaluate it."""

    layers: int
    channels: tuple[int, ...]
    seed: int = 0


class Sets:
    """The public records in one fixed shuffle: the last ones are the test set."""

    def __init__(self, public: Records, effort: Effort) -> None:
        order = np.random.default_rng([effort.seed, 17]).permutation(len(public))
        left = len(public) - effort.test_records
        needed = max(effort.utility.batch_size, effort.privacy.batch_size)
        if left < needed:
            raise DataError(
                f"at least {needed + effort.test_records:,} public records to characterise a front end on",
                f"{len(public):,}",
                do="Use a larger public set, or a smaller effort.",
            )
        self.public, self.train, self.test = public, order[:left], np.sort(order[left:])

    def training(self, count: int) -> Records:
        """The first `count` training records, or as many as there are."""
        own = np.sort(self.train[:count])
        return Records(self.public.x[own], self.public.y[own])

    @property
    def testing(self) -> Records:
        """The test records."""
        return Records(self.public.x[self.test], self.public.y[self.test])


@dataclass(frozen=True)
class _Pixels:
    """The mean squared distance of pixels: what a reconstructor minimises."""

    @property
    def mark(self) -> dict[str, object]:
        return {"objective": "pixels"}

    def __call__(self, logits: Tensor, y: Tensor, weights: Tensor, parameters: Named) -> Tensor:
        """The sum over networks; `y` are images (networks, records, colours, height, width)."""
        wanted = y if y.dim() == logits.dim() else y[..., None, None, None].to(logits)
        return ((logits - wanted).square().flatten(2).mean(2) * weights).sum()


class Judges:
    """Points of one m, trained as one and measured."""

    def __init__(
        self, kind: Kind, front: Prefix, points: list[Point], classes: int, sets: Sets, effort: Effort, run: Run
    ) -> None:
        self.kind, self.front, self.points, self.sets, self.run, self.effort = kind, front, points, sets, run, effort
        self.how = effort.utility if kind == "utility" else effort.privacy
        self.front.to(run.device)
        self.deepest = max(len(point.channels) for point in points)
        self.nets = [self._net(point, classes) for point in points]
        places = [[*p.channels, *[front.channels] * (self.deepest - len(p.channels))] for p in points]
        self.places = torch.tensor(places, device=run.device)
        self.data = Resident(sets.training(self.how.records), run.device)
        self.sampler = Shuffled(min(self.how.batch_size, len(self.data)), effort.seed, whole=True)
        self.middle, self.spread = self._scale()

    def _net(self, point: Point, classes: int) -> nn.Module:
        """A new network, from its own seed; its first convolution gets zeros for the channels that are missing."""
        depth, (_, *size) = len(point.channels), self.front.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(point.seed, 1 if self.kind == "utility" else 2))
            own, padded = (self._build((channels, *size), classes) for channels in (depth, self.deepest))
        first, wide = (next(m for m in net.modules() if isinstance(m, nn.Conv2d)) for net in (own, padded))
        with torch.no_grad():
            weight = torch.zeros_like(wide.weight)
            weight[:, :depth] = first.weight
            padded.load_state_dict(own.state_dict() | {_name(padded, wide): weight})
        return padded

    def _build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.kind == "utility":
            return Icn(shape, classes)
        how = self.how
        return Irn(shape, self.front.image_shape, clusters=how.clusters, blocks=how.blocks, width=how.width)

    def measure(self) -> list[float]:
        """Train, then test: accuracy or mean PSNR of every point."""
        held = stack(self.nets).to(self.run.device)
        with forked_generator(self.run.device), watch_interrupt() as interrupted:
            with precision("fp32", self.run):
                engine = self._engine()
            with precision("bf16" if self._alone else "tf32", self.run):
                self._train(held, self._tried(held, engine), interrupted)
        with precision("tf32", self.run):
            return self._test(held)

    def _train(self, held: nn.Module, engine: Looped | Vmapped, interrupted: Callable[[], bool]) -> None:
        optimiser, steps = self._optimiser(held), self._steps
        for step in range(steps):
            self._gradients(held, engine, step)
            for group in optimiser.param_groups:
                group["lr"] = self.how.learning_rate * self._rate(step / steps)
            optimiser.step()
            if interrupted():
                raise Interrupted(
                    "to finish characterising",
                    f"Ctrl-C with {len(self.points)} points half done",
                    "All others are kept.",
                    "Run the same command again to continue.",
                )

    @property
    def _steps(self) -> int:
        return max(1, self.how.epochs * (len(self.data) // self.sampler.batch_size))

    def _gradients(self, held: nn.Module, engine: Looped | Vmapped, step: int) -> None:
        x, y = self._batch(step)
        engine(held, x, y, [y.shape[1]] * len(self.points), [0] * len(self.points))

    def _rate(self, done: float) -> float:
        """The paper's schedule for SGD; a cosine after a short warm-up for Adam, which needs fewer epochs."""
        if self.how.optimiser == "sgd":
            return 1.0 if done < 0.4 else 0.1 if done < 0.8 else 0.01
        return min(1.0, done / _RISE + 0.01) * 0.5 * (1 + math.cos(math.pi * done))

    @property
    def _alone(self) -> bool:
        """Whether a GPU trains one network after another: each is large, or the total work is small."""
        large = self.front.shape[1] * self.front.shape[2] >= _LARGE
        return self.run.device.type == "cuda" and (large or len(self.points) * self._steps <= _FEW)

    def _engine(self) -> Looped | Vmapped:
        """All networks as one if that gives the same gradients, else one after another."""
        if self._alone or len(self.nets) == 1:
            return self._looped()
        trial = [_shaken(net) for net in (self.nets[0], self.nets[-1])]
        try:
            return choose(trial, (self.deepest, *self.front.shape[1:]), self.run.device, self._objective)
        except Exception as error:  # noqa: BLE001 - kernel compilers raise their own kinds of errors
            _log.warning("Networks are trained one after another: %s.", type(error).__name__)
            return self._looped()

    def _tried(self, held: nn.Module, engine: Looped | Vmapped) -> Looped | Vmapped:
        """The engine if it can do a whole step, which may need other kernels and more memory than a test."""
        if isinstance(engine, Looped):
            return engine
        try:
            self._gradients(held, engine, 0)
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("Networks are trained one after another: %s.", type(error).__name__)
            return self._looped()
        return engine

    def _looped(self) -> Looped:
        return Looped(self.nets[0], objective=self._objective)

    @property
    def _objective(self) -> Objective:
        return MEAN if self.kind == "utility" else _Pixels()

    def _optimiser(self, held: nn.Module) -> torch.optim.Optimizer:
        if self.how.optimiser == "adam":
            return torch.optim.Adam(held.parameters(), lr=self.how.learning_rate, foreach=True)
        return torch.optim.SGD(held.parameters(), lr=self.how.learning_rate, momentum=0.9, foreach=True)

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        images, labels = self.data.batch(self.sampler.draw(step, len(self.data)))
        chance = torch.Generator(device=images.device).manual_seed(mix(self.effort.seed, step) ^ 5)
        images = vary(images, chance)
        x = self._maps(images)
        count = len(self.points)
        if self.kind == "utility":
            return x, labels.expand(count, -1)
        return x, images.expand(count, *images.shape)

    def _maps(self, images: Tensor) -> Tensor:
        """(points, records, channels, height, width): each point's own channels, scaled, then zeros."""
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            maps = (self.front(images).float() - self.middle) / self.spread
            maps = torch.cat([maps, maps.new_zeros(len(maps), 1, *maps.shape[2:])], 1)
            picked = maps.permute(0, 2, 3, 1)[..., self.places]  # records, height, width, points, channels
            return picked.permute(3, 0, 1, 2, 4).contiguous().permute(0, 1, 4, 2, 3)  # channels last in memory

    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every channel over some public records; scaling adds and hides nothing."""
        with torch.no_grad():
            maps = self.front(self.data.batch(np.arange(min(500, len(self.data))))[0]).float()
        middle, spread = maps.mean((0, 2, 3), keepdim=True), maps.std((0, 2, 3), keepdim=True)
        return middle, torch.where(spread > 1e-6, spread, torch.ones_like(spread))

    def _test(self, held: nn.Module) -> list[float]:
        values, net = tensors(held), self.nets[0].to(self.run.device).eval()
        data = Resident(self.sets.testing, self.run.device)
        scores: list[list[Tensor]] = [[] for _ in self.points]
        for start in range(0, len(data), _TEST_BATCH):
            images, labels = data.batch(np.arange(start, min(len(data), start + _TEST_BATCH)))
            maps = self._maps(images)
            for place, own in enumerate(scores):
                with torch.no_grad():
                    out = functional_call(net, {name: value[place] for name, value in values.items()}, (maps[place],))
                hit = out.argmax(1) == labels if self.kind == "utility" else psnr(out.float().clamp(0, 1), images)
                own.append(hit.double())
        return [float(torch.cat(own).mean()) for own in scores]


def _shaken(net: nn.Module) -> nn.Module:
    """A copy without weights that are all zero, which would make every gradient behind them zero."""
    made, chance = copy.deepcopy(net), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if not parameter.any():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=chance))
    return made


def _name(net: nn.Module, conv: nn.Module) -> str:
    return next(f"{name}.weight" for name, module in net.named_modules() if module is conv)


def vary(images: Tensor, chance: torch.Generator) -> Tensor:
    """Mirrored and shifted at random, brighter or darker, with more or less contrast."""
    x = shift(flip(images, chance), chance)
    contrast, light = (torch.rand((2, len(x), 1, 1, 1), generator=chance, device=x.device) - 0.5).unbind()
    return ((x - 0.5) * (1 + 0.4 * contrast) + 0.5 + 0.2 * light).clamp(0, 1)


def error(first: Tensor, second: Tensor) -> Tensor:
    """The mean squared error of each pair of images.

    Raises:
        DataError: Their numbers or shapes differ.
    """
    if first.shape != second.shape or first.dim() < 2:
        raise DataError("two batches of images of one shape", f"{tuple(first.shape)} and {tuple(second.shape)}")
    return (first - second).square().flatten(1).mean(1)


def psnr(first: Tensor, second: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each pair, in dB: −10 log10 of the mean squared error, at most 100 dB."""
    return -10.0 * error(first, second).clamp_min(_LEAST_ERROR).log10()

"""The figures of docs/results/features.md: what prefixes leak and serve, what Fisher's criterion finds and gains.

python docs/results/features.py runs/features.toml --data-dir DATA [--quick] [--only STAGE,STAGE]

One line of JSON a result on stdout; progress with seconds on stderr. Results are kept cell by cell in the cache: a run
that was stopped goes on. `--quick` is a trial of the script itself: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from airlock.config import DataConfig, Frozen, parse
from airlock.data import Records, open_public
from airlock.mechanisms import Stream
from airlock.nets.prefix import Prefix, narrow, open_prefix
from airlock.nets.stages import ByChannel
from airlock.training import Run
from airlock.training.devices import choose_device
from airlock.training.front_ends.characterise import QUICK, Effort, Learning, Point, characterise, grid, singles
from airlock.training.front_ends.lda import usefulness
from airlock.training.front_ends.pretrain import FRONT, front_weights, write_weights
from airlock.training.front_ends.probe_networks import Judges, Sets
from airlock.training.front_ends.profiling import profile, profile_all
from airlock.training.front_ends.prune import draw, draw_inner, prune

STAGES = ("coarse", "lda", "draws", "inner", "profile", "surface", "pixels")
START = time.monotonic()


class Settings(Frozen):
    """What is measured."""

    front: str = "vgg16"
    pretrain_on: str = "cifar100"
    pretrain_epochs: Annotated[int, Field(ge=1)] = 40
    data: str = "cifar10"
    layers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10)
    depths: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    seeds: int = 3
    layer: int = 6
    depth: int = 8
    draws: int = 20
    lda_records: int = 6400
    more_records: int = 50_000  # for Fisher's criterion, beside the paper's
    more_leaky: int = 48  # channels that go for leaking, beside the paper's quarter
    more_useless: int = 80  # and for being of little use, beside the paper's half
    single_seeds: int = 1
    inner: tuple[tuple[int, ...], ...] = ((64, 64, 128), (32, 64, 128), (32, 32, 128), (32, 32, 64))
    coarse_layers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    coarse_depths: tuple[int, ...] = (4, 16, 64)
    coarse_seeds: int = 3
    pixels_seeds: int = 1
    effort: Effort = Effort()


TRIAL = {
    "pretrain_epochs": 1,
    "layers": (1, 6),
    "depths": (4, 64),
    "seeds": 2,
    "draws": 2,
    "lda_records": 256,
    "more_records": 512,
    "inner": ((64, 64, 128), (32, 32, 64)),
    "coarse_layers": (1, 6),
    "coarse_depths": (4,),
    "effort": Effort(
        utility=Learning(records=64, epochs=1, batch_size=32),
        privacy=Learning(records=64, epochs=1, batch_size=32, width=4, blocks=1),
        test_records=64,
    ),
}


def main() -> None:
    """All stages, or those asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(STAGES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="Of the front end, instead of training it.")
    parser.add_argument("--save", type=Path, help="Where to write the weights that were trained (.safetensors).")
    parser.add_argument("--cache", type=Path, help="Where results are kept.")
    parser.add_argument("--layers", help="Some of the config's layers, such as 1,6, for several processes.")
    asked = parser.parse_args()
    settings = parse(Settings, tomllib.loads(asked.config.read_text(encoding="utf-8")))
    settings = settings.model_copy(update=TRIAL) if asked.quick else settings
    if asked.layers:
        settings = settings.model_copy(update={"layers": tuple(map(int, asked.layers.split(",")))})
    Study(settings, asked).run_all(asked.only.split(","))


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - START:7.1f} s] {text}", file=sys.stderr, flush=True)


def row(**values: Any) -> None:
    """A result."""
    print(json.dumps(values), flush=True)


class Study:
    """One front end on one public set."""

    def __init__(self, settings: Settings, asked: argparse.Namespace) -> None:
        self.settings, self.cache, self.quick = settings, asked.cache, asked.quick
        self.run = Run(device=choose_device(asked.device), progress=self._progress)
        self.said = 0.0
        public = open_public(DataConfig(source=settings.data), asked.data_dir)
        self.public, self.classes = public.records, public.classes
        say(f"{public.name}: {len(public.records)} records; {self.run.device}; torch {torch.__version__}")
        self.weights = self._weights(asked)
        deepest = max(*settings.layers, settings.layer, *settings.coarse_layers)
        wanted = sorted({*settings.layers, settings.layer, *settings.coarse_layers})
        shape = self.public.x.shape[1:]
        self.fronts = {m: open_prefix(settings.front, m, shape, self.weights) for m in wanted if m <= deepest}
        row(stage="front", front=settings.front, records=len(public.records), device=str(self.run.device),
            widths={m: prefix.channels for m, prefix in self.fronts.items()})  # fmt: skip

    def _progress(self, label: str, done: int, total: int) -> None:
        if done == total or time.monotonic() - self.said > 5:
            self.said = time.monotonic()
            say(f"{label}: {done} of {total}")

    def _weights(self, asked: argparse.Namespace) -> dict[str, torch.Tensor] | Path:
        if asked.weights:
            return Path(asked.weights)
        start = time.monotonic()
        other = open_public(DataConfig(source=self.settings.pretrain_on), asked.data_dir, self.public.x.shape[1:])
        if self.quick:
            other = type(other)(
                other.name, Records(other.records.x[:512], other.records.y[:512]), other.classes, "quick"
            )
        how = FRONT.model_copy(update={"epochs": self.settings.pretrain_epochs})
        layers = max(*self.settings.layers, self.settings.layer) if self.quick else None
        layers = layers if self.settings.front.startswith("vgg") else None
        tensors = front_weights(self.settings.front, other, how, 0, self.run, layers)
        seconds = round(time.monotonic() - start, 1)
        row(stage="pretrain", on=other.name, records=len(other.records), epochs=how.epochs, seconds=seconds)
        if asked.save:
            write_weights(asked.save, tensors)
        return tensors

    def run_all(self, stages: Sequence[str]) -> None:
        """One after another; each prints as soon as it has something."""
        for stage in stages:
            start = time.monotonic()
            say(f"stage {stage}")
            getattr(self, f"stage_{stage}")()
            row(stage=stage, seconds=round(time.monotonic() - start, 1))

    def measure(self, points: Sequence[Point], **more: Any) -> Any:
        """Through the cache."""
        fronts = {m: self.fronts[m] for m in sorted({p.layers for p in points})}
        effort = more.pop("effort", self.settings.effort)
        return characterise(
            fronts, self.public, self.classes, points, self.run, effort, cache=self.cache, name="public", **more
        )

    def singles(self) -> tuple[dict[int, float], dict[int, float]]:
        """Accuracy and PSNR of every channel alone."""
        m, width = self.settings.layer, self.front.channels
        points = [p for seed in range(self.settings.single_seeds) for p in singles(m, width, seed)]
        found = self.measure(points)
        return found.single("utility", m), found.single("privacy", m)

    @property
    def front(self) -> Prefix:
        """The one whose channels are looked at one by one."""
        return self.fronts[self.settings.layer]

    def lda(self, records: int | None = None) -> dict[int, float]:
        """Fisher's J of every channel."""
        return usefulness(self.front, self.public, self.classes, self.run, records or self.settings.lda_records)

    def stage_lda(self) -> None:
        """How many of the worst channels Fisher's criterion finds."""
        start = time.monotonic()
        scores = self.lda()
        seconds = round(time.monotonic() - start, 2)
        utility, leakage = self.singles()
        width = len(scores)
        worst = sorted(utility, key=lambda c: utility[c])
        out = sorted(scores, key=lambda c: scores[c])
        for count in (width // 4, width // 2):
            shares = {
                gone: len(set(worst[:count]) & set(out[:gone])) / count
                for gone in (width // 4, width // 2, 3 * width // 4)
            }
            row(stage="lda", worst=count, of=width, pruned=shares, lda_seconds=seconds)
        both = np.corrcoef([utility[c] for c in sorted(utility)], [leakage[c] for c in sorted(utility)])[0, 1]
        fisher = np.corrcoef(_ranks([utility[c] for c in range(width)]), _ranks([scores[c] for c in range(width)]))[
            0, 1
        ]
        row(stage="single", m=self.settings.layer, utility=_spread(utility.values()), psnr=_spread(leakage.values()),
            correlation=round(float(both), 3), rank_correlation_lda=round(float(fisher), 3),
            channels=[[c, round(utility[c], 4), round(leakage[c], 3), scores[c]] for c in range(width)])  # fmt: skip

    def stage_draws(self) -> None:
        """Random channels against pruned ones."""
        utility, leakage = self.singles()
        scores, width = self.lda(), self.front.channels
        settings = {
            "random": tuple(range(width)),
            "characterised": prune(width, leakage, utility).left,
            "lda": prune(width, leakage, scores).left,
            "lda, more records": prune(width, leakage, self.lda(self.settings.more_records)).left,
            "lda, more leaky": prune(width, leakage, scores, self.settings.more_leaky).left,
            "lda, more of both": prune(
                width, leakage, scores, self.settings.more_leaky, self.settings.more_useless
            ).left,
        }
        found = {}
        for name, left in settings.items():
            depth = min(self.settings.depth, len(left))
            drawn = [draw(left, depth, Stream.from_seed(i).child(name)) for i in range(self.settings.draws)]
            found[name] = [Point(self.settings.layer, own, i) for i, own in enumerate(drawn)]
        every = self.measure([p for own in found.values() for p in own])
        by_point = {cell.point: cell for cell in every.cells}
        means = {}
        for name, own in found.items():
            cells = [by_point[p] for p in own]
            means[name] = (np.array([c.utility for c in cells]), np.array([c.psnr for c in cells]))
            spreads = {"accuracy": _spread(means[name][0]), "psnr": _spread(means[name][1])}
            points = [[c.utility, c.psnr] for c in cells]
            row(stage="draws", setting=name, left=len(settings[name]), draws=len(cells), **spreads, points=points)
        for name in [one for one in settings if one != "random"]:
            gain, loss = (means[name][i].mean() - means["random"][i].mean() for i in (0, 1))
            row(stage="gain", setting=name, accuracy_points=round(100 * float(gain), 2), psnr_db=round(float(loss), 2))

    def stage_surface(self) -> None:
        """Utility and PSNR over layers and channels: the deepest first, which take least time."""
        for m in sorted(self.settings.layers, reverse=True):
            start = time.monotonic()
            points = grid({m: self.fronts[m].channels}, self.settings.depths, self.settings.seeds)
            found = self.measure(points)
            utility, leakage = found.surface("utility"), found.surface("privacy")
            for place, values in utility.items():
                row(
                    stage="surface",
                    m=place[0],
                    channels=place[1],
                    accuracy=_spread(values),
                    psnr=_spread(leakage[place]),
                )
            say(f"m = {m}: {time.monotonic() - start:.1f} s")

    def stage_coarse(self) -> None:
        """How long a coarse grid takes."""
        start = time.monotonic()
        widths = {m: self.fronts[m].channels for m in self.settings.coarse_layers}
        effort = self.settings.effort if self.quick else QUICK
        points = grid(widths, self.settings.coarse_depths, self.settings.coarse_seeds, seed=1)
        found = self.measure(points, effort=effort)
        leakage = found.surface("privacy")
        for place, values in found.surface("utility").items():
            spreads = {"accuracy": _spread(values), "psnr": _spread(leakage[place])}
            row(stage="coarse", m=place[0], channels=place[1], **spreads)
        row(stage="coarse", points=len(points), seconds=round(time.monotonic() - start, 1))

    def stage_pixels(self) -> None:
        """The classifier on the pictures themselves: what a front end adds to it, or takes away."""
        shape, effort = self.public.x.shape[1:], self.settings.effort
        same = Prefix(nn.Identity(), {"pixels": ByChannel(nn.Identity())}, shape, "pixels")
        points = [Point(0, tuple(range(shape[0])), seed) for seed in range(self.settings.pixels_seeds)]
        found = Judges("utility", same, points, self.classes, Sets(self.public, effort), effort, self.run).measure()
        row(stage="pixels", m=0, channels=shape[0], accuracy=_spread(found))

    def stage_inner(self) -> None:
        """Fewer channels in the layers before the last as well."""
        m, depth = self.settings.layer, self.settings.depth
        widths = self.front.widths
        for kept in self.settings.inner:
            cells, cost = [], None
            for seed in range(self.settings.seeds):
                stream = Stream.from_seed(seed)
                own = draw(range(widths[-1]), depth, stream.child("channels"))
                small = narrow(self.front, own, draw_inner(widths[:-1], kept, stream.child("inner")))
                self.fronts[m], whole = small, self.fronts[m]
                cells += self.measure([Point(m, tuple(range(depth)), seed)]).cells
                self.fronts[m] = whole
                cost = cost or profile(small, m, onnx=False)
            assert cost is not None
            costs = {"torch_ms": cost.torch_ms, "bytes": cost.parameter_bytes, "multiply_adds": cost.multiply_adds}
            spreads = {"accuracy": _spread(c.utility for c in cells), "psnr": _spread(c.psnr for c in cells)}
            row(stage="inner", m=m, widths=[*kept, depth], **spreads, **costs)

    def stage_profile(self) -> None:
        """What prefixes cost on this machine."""
        fronts = {m: self.fronts[m] for m in self.settings.coarse_layers}
        for found in profile_all(fronts, self.settings.coarse_depths):
            row(stage="profile", **found.to_dict())


def _spread(values: Any) -> dict[str, float]:
    own = np.array(list(values), dtype=float)
    return {"mean": round(float(own.mean()), 4), "sd": round(float(own.std(ddof=1)) if len(own) > 1 else 0.0, 4),
            "least": round(float(own.min()), 4), "most": round(float(own.max()), 4)}  # fmt: skip


def _ranks(values: Sequence[float]) -> Any:
    return np.argsort(np.argsort(values))


if __name__ == "__main__":
    main()

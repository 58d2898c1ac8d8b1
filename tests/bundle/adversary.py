"""An adversary who knows everybody but one, and holds a whole bundle: was that person in the file?

He knows all other records, the person's own, the config and its public seed, and computes what he can: the figures of
the card with her and without; what else differs between releases that he makes himself, with her and without; how
probable its noisy counts are; how probable the weights are after one step of noisy training; and where all of that says
nothing, how well the model knows her. By differential privacy he is right at most (e^ε + δ)/(1 + e^ε) of the time,
whichever part of the split she falls into.

A `Maker` makes the bundle, so that any card can be tried: that of the pipeline, and faulty ones.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.datasets import load_digits
from torch import nn

from airlock import auditing, nets
from airlock.auditing import attack_quickly
from airlock.auditing.evaluation import Evaluation, evaluate, tables
from airlock.bundle.contents import Contents
from airlock.bundle.models import open_net
from airlock.bundle.schema import NetworkSummary
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split, divide
from airlock.data.split import Part
from airlock.mechanisms import Stream
from airlock.pipeline import make_release
from airlock.training.outcomes import Outcomes, count_correct, predict

Table = dict[str, Any]
Floats = NDArray[np.float64]
Maker = Callable[[ReleaseConfig, Path], Path]

PARTS: tuple[Part, ...] = ("private", "test", "holdout")
COUNT, CLASSES, SEED, DELTA = 700, 10, 3, 1e-5
FACTS = Facts("people", (1, 8, 8), tuple(map(str, range(CLASSES))), COUNT, None, "declared")
FRACTIONS = {"public": 0.1, "test": 0.25, "holdout": 0.2}
METHODS: dict[str, Table] = {
    "weights/gaussian": {
        "net": "linear",
        "settings": {
            "steps": 1,
            "lot_size": COUNT,
            "clip_norm": 1.0,
            "learning_rate": 1.0,
            "momentum": 0.0,
            "start": "own",
        },
    },
    "answers/head": {"settings": {"features": "pixels"}},
    "twin/sharded": {
        "settings": {"features": "pixels", "shards": 100, "dimensions": 8, "noise_limit": 1e3, "radius": 1.0},
    },
}


@cache
def digits() -> Records:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    return Records((x[order] * 15).astype(np.uint8).reshape(-1, 1, 8, 8), y[order].astype(np.int64))


@dataclass(frozen=True)
class World:
    """A file with one person and without her, and all that the adversary knows beforehand.

    Args:
        method: As in `METHODS`.
        part: Which she falls into.
        epsilon: That is asked for.
        folder: Where the two files lie.
    """

    method: str
    part: Part
    epsilon: float
    folder: Path

    @cached_property
    def others(self) -> Records:
        return digits().take(np.arange(COUNT))

    @cached_property
    def person(self) -> Records:
        """The first who falls into the part, of those who are not in the file."""
        for place in range(COUNT, len(digits())):
            one = digits().take(np.array([place]))
            if len(getattr(divide(FACTS, one, None, self.config(True).split, SEED), self.part)):
                return one
        raise AssertionError("nobody falls into that part")

    def records(self, there: bool) -> Records:
        if not there:
            return self.others
        # She stands in the middle: the order of a file is no secret, and the last place would be a special one.
        parts = (self.others.take(np.arange(COUNT // 2)), self.person, self.others.take(np.arange(COUNT // 2, COUNT)))
        return Records(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))

    def file(self, there: bool) -> Path:
        path = self.folder / f"{'with' if there else 'without'}.npz"
        if not path.exists():
            records = self.records(there)
            np.savez(path, x=records.x, y=records.y)
        return path

    def config(self, there: bool) -> ReleaseConfig:
        channel, method = self.method.split("/")
        source = self.folder / f"{'with' if there else 'without'}.npz"
        data = {"source": str(source), "classes": CLASSES, "records": COUNT, "name": "people"}
        table = {"channel": channel, "method": method, "epsilon": self.epsilon, "delta": DELTA, "device": "cpu"}
        return from_table({**table, "seed": SEED, "data": data, "split": FRACTIONS, **METHODS[self.method]})

    @cached_property
    def splits(self) -> dict[bool, Split]:
        fractions = self.config(True).split
        return {there: divide(FACTS, self.records(there), None, fractions, SEED) for there in (False, True)}

    @cached_property
    def gradients(self) -> tuple[Floats, Floats, Floats]:
        """Before training: the weights, the sum of everybody's clipped gradients but hers, and hers."""
        net = nets.create("linear", FACTS.shape, CLASSES, SEED)
        clip = float(METHODS[self.method]["settings"]["clip_norm"])
        rest = self.splits[False].private
        sums = [clipped(net, rest.take(np.array([place])), clip) for place in range(len(rest))]
        return flat(net), np.sum(sums, axis=0), clipped(net, self.person, clip)


def flat(net: nn.Module) -> Floats:
    return np.concatenate([p.detach().double().numpy().ravel() for _, p in sorted(net.named_parameters())])


def clipped(net: nn.Module, one: Records, clip: float) -> Floats:
    """One record's gradient of at most this norm."""
    net.zero_grad()
    F.cross_entropy(net(torch.from_numpy(one.x).float() / 255), torch.from_numpy(one.y)).backward()
    gradients = [p.grad.double().numpy().ravel() for _, p in sorted(net.named_parameters()) if p.grad is not None]
    found = np.concatenate(gradients)
    return np.asarray(found * min(1.0, clip / float(np.linalg.norm(found))))


# What he makes of a bundle: logarithms of how much more probable it is with her than without.


def from_exact_figures(world: World, card: Table, net: nn.Module) -> float:
    """Figures without noise are what they are with her, or what they are without."""
    utility = card.get("utility") or {}
    shown = [(name, utility[name]) for name in ("correct", "records") if "correct" in utility and name in utility]
    shown += [(one["name"], one) for one in (card.get("audit") or {}).get("attacks", ()) if "curve" in one]
    if not shown:
        return 0.0
    known = {there: dict(exact_figures(net, world.splits[there])) for there in (False, True)}
    fits = {there: sum(same(known[there].get(name), figure) for name, figure in shown) for there in (False, True)}
    return 0.0 if fits[True] == fits[False] else math.copysign(math.inf, fits[True] - fits[False])


def same(mine: Any, shown: Any) -> bool:
    return bool(json.loads(json.dumps(mine)) == shown)


def exact_figures(net: nn.Module, split: Split) -> Iterator[tuple[str, Any]]:
    yield "correct", count_correct(net, split.test)
    yield "records", len(split.test)
    config = from_table({"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": DELTA, "split": FRACTIONS})
    audit, _ = attack_quickly(net, split.facts.classes, DELTA, split, config.split, SEED)
    for attack in audit.to_dict()["attacks"]:
        yield attack["name"], attack


def from_noisy_counts(world: World, card: Table, net: nn.Module) -> float:
    """The noise that leads from the exact counts to what is seen is exp(−ε|x|), with her or without."""
    counts = (card.get("utility") or {}).get("counts")
    if counts is None:
        return 0.0
    made = Evaluation.model_validate(counts)
    seen = (made.right, made.by_class, made.bins)
    away = {}
    for there, split in world.splits.items():
        exact = tables(Outcomes.of_logits(predict(net, split.test), split.test.y), made.classes)
        away[there] = sum(
            noise.epsilon * float(np.abs(np.array(noisy) - table).sum())
            for noise, noisy, table in zip(made.noises, seen, exact, strict=False)
        )
    return away[False] - away[True]


def from_weights(world: World, card: Table, net: nn.Module) -> float:
    """After one step from a public start everybody is in a sum with Gaussian noise of a known size."""
    if world.method != "weights/gaussian" or world.part != "private":
        return 0.0
    details = card["details"]
    start, rest, hers = world.gradients
    seen = (
        (start - flat(net)) * float(details["expected_lot_size"]) / METHODS[world.method]["settings"]["learning_rate"]
    )
    noise = float(details["noise_multiplier"]) * float(details["clip_norm"])
    return float((seen - rest) @ hers - hers @ hers / 2) / noise**2


def from_loss(world: World, card: Table, net: nn.Module) -> float:
    """A trace, for where nothing else speaks: does the model know her better than those of whom it knows nothing?"""
    strangers, person = (
        F.cross_entropy(predict(net, records).double(), torch.from_numpy(records.y), reduction="none").numpy()
        for records in (world.splits[False].holdout, world.person)
    )
    return 1e-9 * float(np.tanh(np.median(strangers) - person[0]))


EVIDENCE = (from_exact_figures, from_noisy_counts, from_weights, from_loss)
# Read by evidence of its own, or different between any two releases.
READ = {"utility", "audit", "words", "release_id", "created", "hashes", "compression"}
Facets = dict[str, object]


def facets(bundle: Path) -> Facets:
    """Every other single thing that a bundle shows: names and sizes of files, the config, all that the card says."""
    found: Facets = {f"size of {path.name}": path.stat().st_size for path in bundle.iterdir() if path.suffix in SIZED}
    found["files"] = sorted(path.name for path in bundle.iterdir())
    found |= dict(leaves(tomllib.loads((bundle / "config.toml").read_text(encoding="utf-8")), "config"))
    card = json.loads((bundle / "card.json").read_text(encoding="utf-8"))
    return found | dict(leaves({key: value for key, value in card.items() if key not in READ}, "card"))


SIZED = {".safetensors", ".toml", ".onnx", ".txt"}


def leaves(value: Any, path: str) -> Iterator[tuple[str, object]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield path, value
        return
    for name, below in inner:
        yield from leaves(below, f"{path}.{name}")


@dataclass(frozen=True)
class References:
    """Releases that he makes himself, two with her and two without: what is alike in two and differs from the others.

    He holds a bundle against them. A facet that noise moves is hardly ever twice the same; one that a record decides
    about always is.
    """

    with_her: tuple[Facets, Facets]
    without: tuple[Facets, Facets]

    @classmethod
    def made(cls, world: World, maker: Maker) -> References:
        first, second, third, fourth = (
            facets(make(world, maker, there, f"own-{number}"))
            for number, there in enumerate((True, True, False, False))
        )
        return cls((first, second), (third, fourth))

    def belief(self, seen: Facets) -> float:
        names = {name for facets in (*self.with_her, *self.without) for name in facets}
        votes = 0
        for name in names:
            one, again = (facets.get(name) for facets in self.with_her)
            other, once_more = (facets.get(name) for facets in self.without)
            if one == again and other == once_more and one != other:
                votes += (seen.get(name) == one) - (seen.get(name) == other)
        return math.copysign(math.inf, votes) if votes else 0.0


def belief(world: World, bundle: Path, own: References) -> float:
    """How much more probable the whole bundle is with her than without, as far as he can compute it; a logarithm."""
    card = json.loads((bundle / "card.json").read_text(encoding="utf-8"))
    net = open_net(Contents(bundle), NetworkSummary.model_validate(card["network"]))
    beliefs = [own.belief(facets(bundle)), *(evidence(world, card, net) for evidence in EVIDENCE)]
    return next((one for one in beliefs if math.isinf(one)), sum(beliefs))


def make(world: World, maker: Maker, there: bool, name: str) -> Path:
    world.file(there)
    return maker(world.config(there), world.folder / name)


def guesses(world: World, maker: Maker, trials: int, seed: int = 0) -> int:
    """How often he is right: a fair coin says each time whether she is there."""
    coins, right = np.random.default_rng(seed).integers(0, 2, trials), 0
    own = References.made(world, maker) if trials else None
    for trial, coin in enumerate(coins):
        assert own is not None
        right += (belief(world, make(world, maker, bool(coin), f"bundle-{trial}"), own) > 0) == bool(coin)
    return right


def allowed(trials: int, epsilon: float, error: float = 1e-6) -> int:
    """He is right more often than this with at most that probability, if what is stated holds."""
    share = (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))
    return int(binom.isf(error, trials, share))


# Makers.


def by_pipeline(config: ReleaseConfig, folder: Path) -> Path:
    """The whole flow."""
    return make_release(config, folder, vault=folder.parent / "vault").bundle.folder


def without_attacks(config: ReleaseConfig, folder: Path) -> Path:
    """Nearly the whole flow, for cards that are written anew: what attacks find stays in the vault."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auditing, "run", lambda *_: (auditing.Audit((), ()), {}))
        return by_pipeline(config, folder)


def with_exact_figures(config: ReleaseConfig, folder: Path) -> Path:
    """A fault: the card says what the figures really are, as cards did up to format 5."""

    def rewrite(card: Table, net: nn.Module, split: Split) -> None:
        known = dict(exact_figures(net, split))
        card["utility"] = {name: known.pop(name) for name in ("correct", "records")}
        card["audit"] = {"attacks": list(known.values())}

    return rewritten(without_attacks(config, folder), config, rewrite)


def with_a_count(config: ReleaseConfig, folder: Path) -> Path:
    """A fault: somewhere among the details stands how many records a part has."""

    def rewrite(card: Table, net: nn.Module, split: Split) -> None:
        card["details"]["trained_on"] = len(split.private)

    return rewritten(without_attacks(config, folder), config, rewrite)


def with_paid_counts(config: ReleaseConfig, folder: Path, fault: float = 1.0) -> Path:
    """A card with noisy counts and nothing else of test records or attacks; a fault takes some of the noise away."""

    def rewrite(card: Table, net: nn.Module, split: Split) -> None:
        outcomes = Outcomes.of_logits(predict(net, split.test), split.test.y)
        made = evaluate(outcomes, CLASSES, fault * config.epsilon, Stream.from_system())
        card["utility"], card["audit"] = {"counts": made.model_dump(mode="json")}, {"attacks": []}

    return rewritten(without_attacks(config, folder), config, rewrite)


def rewritten(bundle: Path, config: ReleaseConfig, rewrite: Callable[[Table, nn.Module, Split], None]) -> Path:
    """The bundle with another card."""
    path = bundle / "card.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    with np.load(config.data.source) as file:
        records = Records(file["x"], file["y"])
    split = divide(FACTS, records, None, config.split, config.seed)
    rewrite(card, open_net(Contents(bundle), NetworkSummary.model_validate(card["network"])), split)
    path.write_text(json.dumps(card), encoding="utf-8")
    return bundle

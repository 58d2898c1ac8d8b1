"""Li et al. 2017, PrivyNet: its tables, figures and examples, and attacks that the paper does not make.

The paper's front end has ImageNet's weights, which are not to be had offline. Here it is a VGG16 that was trained on
the 22,000 pictures of CIFAR-100 that are here (40 epochs), and characterised on CIFAR-10. Classifiers and
reconstruction nets are the paper's, trained with Adam for fewer epochs than its 250 and 100 (`EFFORTS`); the paper's
own numbers are `training.front_ends.characterise.PAPER`.

A trial is one point: so many layers, so many channels. Its networks, one for each draw of channels, are trained
together, and the row has their mean and range. The attacker of the paper knows pictures with their features, and does
not know the front end; three attackers here know more, or find out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from airlock import data, methods
from airlock.auditing.attacks.identify import UncoverSettings, identify, uncover
from airlock.auditing.attacks.invert import InvertSettings
from airlock.auditing.attacks.reconstruct import ReconstructSettings
from airlock.auditing.features.attack import Attackers
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on, push
from airlock.auditing.features.reconstruction_metrics import best_prior_baseline, hits_at_most, psnr, ssim
from airlock.config import DataConfig, from_table
from airlock.data import Public, Records, open_public
from airlock.mechanisms import Randomness, Stream
from airlock.mechanisms.reconstruction import blind_guess
from airlock.nets.prefix import Prefix, narrow, open_prefix, trunk, usual_state
from airlock.nets.stages import ByChannel
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
    absent,
    compared,
    fewer,
)
from airlock.training.devices import to_input
from airlock.training.front_ends.characterise import QUICK, Effort, Learning, Point, grid, singles
from airlock.training.front_ends.choose import Limits, Option, choose
from airlock.training.front_ends.lda import RECORDS, usefulness
from airlock.training.front_ends.pretrain import FRONT, front_weights
from airlock.training.front_ends.probe_networks import Judges, Kind, Sets
from airlock.training.front_ends.profiling import profile
from airlock.training.front_ends.prune import draw, draw_inner, prune

NET, COLOURS = "vgg16", (3, 32, 32)
_PRIVACY = Learning(records=960, epochs=40, batch_size=64)
EFFORTS: dict[str, Effort] = {
    "coarse": QUICK,
    "long": Effort(utility=Learning(records=40_000, epochs=20), privacy=_PRIVACY, test_records=3000),
    "channels": Effort(utility=Learning(records=10_000, epochs=12), privacy=_PRIVACY, test_records=3000),
    # A ranking of channels by leakage needs an attacker who gets anywhere with one of them.
    "channels, strong": Effort(
        utility=Learning(records=10_000, epochs=12),
        privacy=Learning(records=10_000, epochs=20, batch_size=128),
        test_records=3000,
    ),
    "small": Effort(
        utility=Learning(records=64, epochs=1, batch_size=32),
        privacy=Learning(records=64, epochs=1, batch_size=32, width=4, blocks=1),
        test_records=64,
    ),
}
DRAWS, MANY_DRAWS = 3, 20
_SEVERAL = 5  # choices of records for Fisher's criterion
SMALL_RECORDS = 256


# Front ends and points.


def _front(trial: Trial, place: Workplace, m: int) -> Prefix:
    """The first m layers: "whole" is trained on all of CIFAR-100 that is here, "brief" on 2,000 pictures of it."""
    given = dict(trial.settings)
    kind = "small" if "small" in given else str(given.get("front", "whole"))

    def make() -> dict[str, Tensor]:
        public = open_public(DataConfig(source="cifar100"), place.data_dir)
        if kind == "whole":
            return front_weights(NET, public, FRONT, 0, place.run)
        count, epochs = (SMALL_RECORDS, 1) if kind == "small" else (2000, 3)
        few = public.records.take(np.arange(count))
        some = Public(f"{public.name}, {count}", few, public.classes, data.digest(few))
        return front_weights(NET, some, FRONT.model_copy(update={"epochs": epochs}), 0, place.run, 6)

    return open_prefix(NET, m, COLOURS, place.once("front", kind, make))


def _public(trial: Trial, place: Workplace, source: str) -> Public:
    """A named set, all of it; its first records in the quick version."""
    small = "small" in dict(trial.settings)

    def make() -> Public:
        found = open_public(DataConfig(source=source), place.data_dir)
        return replace(found, records=found.records.take(np.arange(SMALL_RECORDS))) if small else found

    return place.once("public", (source, small), make)


def _effort(trial: Trial) -> Effort:
    return EFFORTS["small" if "small" in dict(trial.settings) else trial["effort"]]


def _judged(
    trial: Trial, place: Workplace, front: Prefix, points: Sequence[Point], kinds: Sequence[Kind], effort: Effort
) -> dict[str, list[float]]:
    """Accuracy and PSNR of every point, in their order."""
    public = _public(trial, place, trial["data"])
    sets, found = Sets(public.records, effort), dict[str, list[float]]()
    for kind in kinds:
        name = "accuracy" if kind == "utility" else "psnr"
        for start in range(0, len(points), effort.at_once):
            own = list(points[start : start + effort.at_once])
            found.setdefault(name, []).extend(
                Judges(kind, front, own, public.classes, sets, effort, place.run).measure()
            )
    return found


def _spread(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean, range and standard deviation of each."""
    figures: dict[str, float] = {}
    for name, own in values.items():
        figures |= {name: float(np.mean(own)), f"{name}_low": min(own), f"{name}_high": max(own)}
        figures |= {f"{name}_sd": float(np.std(own, ddof=1))} if len(own) > 1 else {}
    return figures


# Experiments.


def surface(trial: Trial, place: Workplace) -> Figures:
    """The first m layers, D' of their channels: three draws."""
    front = _front(trial, place, trial["m"])
    points = grid({trial["m"]: front.channels}, [trial["channels"]], DRAWS, trial.seed)
    return _spread(_judged(trial, place, front, points, ("utility", "privacy"), _effort(trial)))


def pixels(trial: Trial, place: Workplace) -> Figures:
    """The classifier on the pictures themselves."""
    same = Prefix(nn.Identity(), {"pixels": ByChannel(nn.Identity())}, COLOURS, "pixels")
    return _spread(_judged(trial, place, same, [Point(0, (0, 1, 2), trial.seed)], ("utility",), _effort(trial)))


def blind(trial: Trial, place: Workplace) -> Figures:
    """PSNR of the best picture for all, made from the records of the paper's attacker; and bounds on any guess."""
    public = _public(trial, place, trial["data"])
    small = "small" in dict(trial.settings)
    count, tried = (128, 128) if small else (960, 12_000)
    x = to_input(torch.from_numpy(public.records.x[: max(count, tried) * 2])).float()
    y = torch.from_numpy(public.records.y[: len(x)])
    guess = best_prior_baseline(Pairs(x[:count], x[:count], y[:count]))
    figures = {"psnr": float(psnr(guess(y[count:]), x[count:]).mean())}
    if not small:
        levels = (18.0, 20.0, 22.0, 24.0, 28.0, 32.0)
        for name, labels in (("by class", y[:tried]), ("best of all", None)):
            found = blind_guess(x[:tried], levels, 0, public.classes, labels)
            figures |= {f"{name} {level:g}": value for level, value in zip(levels, found, strict=True)}
    return figures


def samples(trial: Trial, place: Workplace) -> Figures:
    """PSNR by how many pictures the reconstruction net has, in equally many steps."""
    front, effort = _front(trial, place, trial["m"]), _effort(trial)
    count = trial["records"]
    how = effort.privacy.model_copy(
        update={"records": count, "epochs": max(1, effort.privacy.epochs * effort.privacy.records // count),
                "batch_size": min(count, effort.privacy.batch_size)}
    )  # fmt: skip
    points = grid({trial["m"]: front.channels}, [trial["channels"]], DRAWS, trial.seed)
    return _spread(_judged(trial, place, front, points, ("privacy",), effort.model_copy(update={"privacy": how})))


def clusters(trial: Trial, place: Workplace) -> Figures:
    """PSNR by the number of clusters in the reconstruction net."""
    front, effort = _front(trial, place, trial["m"]), _effort(trial)
    how = effort.privacy.model_copy(update={"clusters": trial["clusters"]})
    points = grid({trial["m"]: front.channels}, [trial["channels"]], DRAWS, trial.seed)
    return _spread(_judged(trial, place, front, points, ("privacy",), effort.model_copy(update={"privacy": how})))


def single_channels(trial: Trial, place: Workplace) -> Figures:
    """Every channel alone, and how many of the least useful Fisher's criterion finds."""
    m = trial["m"]
    front = _front(trial, place, m)
    width = front.channels if "small" not in dict(trial.settings) else 6
    found = _singles(trial, place, front, width)
    utility, leakage = (np.array(found[name]) for name in ("accuracy", "psnr"))
    figures = _spread(found) | {"correlation": float(np.corrcoef(utility, leakage)[0, 1]), "width": float(width)}
    worst, leakiest = np.argsort(utility, kind="stable"), np.argsort(-leakage, kind="stable")
    quarter, half = width // 4, width // 2
    figures["both"] = float(len({*worst[:quarter].tolist()} & {*leakiest[:quarter].tolist()}))
    public, order = _public(trial, place, trial["data"]), np.random.default_rng(trial.seed)
    for batches in (10, 20, 50):
        shares: dict[str, list[float]] = {}
        for _ in range(_SEVERAL):
            own = public.records.take(order.permutation(len(public.records))[: 128 * batches])
            scores = usefulness(front, own, public.classes, place.run, 128 * batches)
            out = sorted(range(width), key=lambda channel: scores[channel])
            for count in (quarter, half):
                for gone in (quarter, half, 3 * width // 4):
                    name = f"{batches} batches, worst {_part(count, width)}, {_part(gone, width)} gone"
                    share = len({*worst[:count].tolist()} & {*out[:gone]}) / max(1, count)
                    shares.setdefault(name, []).append(share)
        figures |= _spread(shares)
    return figures


def _part(count: int, width: int) -> str:
    return {1: "quarter", 2: "half", 3: "three quarters"}[round(4 * count / width)]


def _singles(trial: Trial, place: Workplace, front: Prefix, width: int) -> dict[str, list[float]]:
    """Accuracy and PSNR of every channel alone."""
    key = (trial["data"], trial["effort"], trial["m"], width, "small" in dict(trial.settings))

    def make() -> dict[str, list[float]]:
        return _judged(trial, place, front, singles(trial["m"], width), ("utility", "privacy"), _effort(trial))

    return place.once(f"singles after {trial['m']}, {trial['effort']}", key, make)


# What is pruned: how many of 128 for leaking, how many for being of little use, and what usefulness is.
PRUNED: dict[str, tuple[int, int, str]] = {
    "random": (0, 0, ""),
    "characterised": (32, 64, "accuracy"),
    "lda": (32, 64, "lda"),
    "lda, 50,000 records": (32, 64, "lda, all"),
    "lda, 48 leaky out": (48, 64, "lda"),
    "lda, 48 and 80 out": (48, 80, "lda"),
}


def draws(trial: Trial, place: Workplace) -> Figures:
    """D' channels, drawn often from those that pruning leaves."""
    small = "small" in dict(trial.settings)
    front, setting = _front(trial, place, trial["m"]), str(trial["setting"])
    left = _left(trial, place, front, small)
    count = 2 if small else MANY_DRAWS
    drawn = [draw(left, trial["channels"], Stream.from_seed(i + trial.seed).child(setting)) for i in range(count)]
    points = [Point(trial["m"], own, i) for i, own in enumerate(drawn)]
    found = _judged(trial, place, front, points, ("utility", "privacy"), _effort(trial))
    return {"left": float(len(left)), **_spread(found)}


def _left(trial: Trial, place: Workplace, front: Prefix, small: bool) -> Sequence[int]:
    leaky, useless, by = PRUNED[str(trial["setting"])]
    width = front.channels
    if not by:
        return range(width)
    public = _public(trial, place, trial["data"])
    scores = usefulness(front, public.records, public.classes, place.run, 50_000 if by == "lda, all" else RECORDS)
    if small:
        return prune(width, None, scores, 0, useless).left
    alone = {name: dict(enumerate(own)) for name, own in _singles(trial, place, front, width).items()}
    return prune(width, alone["psnr"], alone["accuracy"] if by == "accuracy" else scores, leaky, useless).left


def inner(trial: Trial, place: Workplace) -> Figures:
    """Fewer channels in the layers before the last as well, and what the front end then costs here."""
    m, depth, seeds = trial["m"], trial["channels"], range(1 if "small" in dict(trial.settings) else DRAWS)
    front = _front(trial, place, m)
    found: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    for seed in seeds:
        small, _, _ = _cut(front, depth, _kept(trial), seed + trial.seed)
        point = [Point(m, tuple(range(depth)), seed)]
        for name, values in _judged(trial, place, small, point, ("utility", "privacy"), _effort(trial)).items():
            found.setdefault(name, []).extend(values)
        cost = profile(small.cpu(), m, onnx=False)
        costs.setdefault("torch_ms", []).append(cost.torch_ms)
        costs.setdefault("multiply_adds", []).append(float(cost.multiply_adds))
        costs.setdefault("bytes", []).append(float(cost.parameter_bytes))
    return _spread(found) | {name: float(np.median(values)) for name, values in costs.items()}


def _kept(trial: Trial) -> tuple[int, ...]:
    return tuple(map(int, str(trial["kept"]).split("-")))


def _cut(
    front: Prefix, depth: int, kept: Sequence[int], seed: int
) -> tuple[Prefix, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The front end with secret channels in every layer, those of the last one, and the others."""
    stream = Stream.from_seed(seed)
    own = draw(range(front.widths[-1]), depth, stream.child("channels"))
    others = draw_inner(front.widths[:-1], kept, stream.child("inner"))
    return narrow(front, own, others), own, others


def cost(trial: Trial, place: Workplace) -> Figures:
    """Time on one thread of this CPU and storage, of the first m layers with all channels and random weights."""
    found = profile(open_prefix(NET, trial["m"], COLOURS), trial["m"])
    known = found.to_dict()
    names = ("torch_ms", "onnx_ms", "parameter_bytes", "feature_bytes", "multiply_adds")
    return {name: float(value) for name in names if (value := known[name]) is not None}


# Attacks.


def attack(trial: Trial, place: Workplace) -> Figures:
    """Everybody who turns features back into pictures: PSNR and SSIM on pictures that no attacker saw."""
    front = _front(trial, place, trial["m"])
    order = np.random.default_rng(trial.seed + trial["m"]).permutation(front.channels).tolist()
    known, target = _people(trial, place)
    pipeline = FeaturePipeline(narrow(front, order[: trial["channels"]]).to(place.run.device))
    pairs, theirs = (
        push(pipeline, part, place.run.device) for part in (known, target.take(np.arange(_few(trial, 500))))
    )
    attackers = _learnt(trial, place, pipeline, pairs, (0.0, 1e-3, 1e-2))
    made = {name: x for (name, _), x in attackers.make(theirs.clean, theirs.y).items()}
    figures: dict[str, float] = {}
    for name, x in (made | {"blind": attackers.baseline(theirs.y)}).items():
        figures |= {name: float(psnr(x, theirs.x).mean()), f"{name}, ssim": float(ssim(x, theirs.x).mean())}
    return figures


def _few(trial: Trial, count: int) -> int:
    return 12 if "small" in dict(trial.settings) else count


def _people(trial: Trial, place: Workplace) -> tuple[Records, Records]:
    """Training records that the attacker knows, and test records."""

    def make() -> tuple[Records, Records]:
        table = {"channel": "weights", "data": trial["data"], "epsilon": 1.0, "delta": 1e-5, "seed": trial.seed}
        split = data.load(from_table(table), place.data_dir)
        chance = np.random.default_rng(trial.seed)
        known = split.private.take(chance.permutation(len(split.private))[:2000])
        return known, split.test.take(chance.permutation(len(split.test))[:1000])

    known, target = place.once("people", (trial["data"], trial.seed), make)
    return known.take(np.arange(60 if "small" in dict(trial.settings) else 2000)), target


def _learnt(
    trial: Trial, place: Workplace, pipeline: FeaturePipeline, known: Pairs, variation: tuple[float, ...]
) -> Attackers:
    small = "small" in dict(trial.settings)
    settings = InvertSettings(
        steps=4 if small else 150, variation=variation[:1] if small else variation, batch_size=500
    )
    how = ReconstructSettings(epochs=1 if small else 40)
    return Attackers.learn(pipeline, known, trial.seed, place.run, settings, how)


def identified(trial: Trial, place: Workplace) -> Figures:
    """Output channels kept secret: the net named out of a pool of 25, and its channels, by a few known records."""
    m, small = trial["m"], "small" in dict(trial.settings)
    whole = _front(trial, place, m).to(place.run.device)
    order = np.random.default_rng(trial.seed + m).permutation(whole.channels).tolist()[:64]
    few = push(FeaturePipeline(whole), _people(trial, place)[0].take(np.arange(8)), place.run.device)
    pool: dict[str, nn.Module] = {"true": whole}
    for number in range(1 if small else 4):
        state = _decoy(number)
        for layers in range(1, 7):
            pool[f"{number}, {layers}"] = open_prefix(NET, layers, COLOURS, state).to(place.run.device)
    figures: dict[str, float] = {"candidates": float(len(pool)), "channels": float(len(order))}
    for known in (1, 2, 4, 8):
        guess = identify(few.clean[:known, order], few.x[:known], pool)
        figures |= {
            f"right with {known}": float(guess.right("true", order)),
            f"live with {known}": float(sum(guess.live)),
        }
    return figures


def _decoy(number: int) -> dict[str, Tensor]:
    """A net of the same kind with other weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + number)
        return usual_state(trunk(NET, COLOURS))


def secret(trial: Trial, place: Workplace) -> Figures:
    """The paper's own defence, channels of every layer kept secret: which of them an attacker names."""
    m, depth, small = trial["m"], trial["channels"], "small" in dict(trial.settings)
    whole = _front(trial, place, m).to(place.run.device)
    cut, own, others = _cut(whole, depth, _kept(trial), trial.seed)
    few = push(FeaturePipeline(cut), _people(trial, place)[0].take(np.arange(trial["known"])), place.run.device)
    how = UncoverSettings(steps=8, starts=1) if small else UncoverSettings(steps=3000, starts=8)
    found = uncover(few.clean, few.x, whole, trial.seed, how)
    decoy = open_prefix(NET, m, COLOURS, _decoy(0)).to(place.run.device)
    other = uncover(few.clean, few.x, decoy, trial.seed, replace(how, starts=1))
    inside = sum(width - len({*a} ^ {*b}) for a, b, width in zip(found.inner, others, whole.widths, strict=False))
    plain = identify(few.clean, few.x, {"true": whole})
    return {
        "fit": found.fit,
        "fit of another net": other.fit,
        "inner right": inside / sum(whole.widths[:-1]),
        "outputs right": sum(a == b for a, b in zip(found.channels, own, strict=True)) / depth,
        "outputs right by least squares": plain.right("true", own) / depth,
    }


RATIOS, LEVELS = (0.5, 1.0, 2.0, 4.0), (14.0, 16.0, 18.0, 20.0, 22.0)


def noised(trial: Trial, place: Workplace) -> Figures:
    """Features clipped and noised at R/σ: the largest share rebuilt at p dB by anybody, beside the bound.

    The prior of the bound is these very pictures with their labels: an attacker who knows all of them and guesses which
    one it is is covered too. Φ(Φ⁻¹(κ) + R/σ) is concave in κ, so that the mean of κ over labels may stand in it.
    """
    m, count, ratio = 6, 8, trial["ratio"]
    whole = _front(trial, place, m)
    order = np.random.default_rng(trial.seed + m).permutation(whole.channels)[:count].tolist()
    front = narrow(whole, order).to(place.run.device)
    known, target = _people(trial, place)
    clip = float(push(FeaturePipeline(front), known, place.run.device).clean.flatten(1).norm(dim=1).median())
    pipeline = FeaturePipeline(front, clip, clip / ratio)
    some = target.take(np.arange(16 if "small" in dict(trial.settings) else len(target)))
    pairs, theirs = (push(pipeline, part, place.run.device) for part in (known, some))
    attackers = _learnt(trial, place, pipeline, pairs, (1e-2, 1e-1, 1.0))
    left = pipeline.noisy(theirs.clean, generator_on(place.run.device, trial.seed + 2))
    made = [*attackers.make(left, theirs.y).values(), attackers.baseline(theirs.y), _looked_up(left, theirs)]
    figures: dict[str, float] = {}
    for level in LEVELS:
        largest = max(float((psnr(x, theirs.x) >= level).double().mean()) for x in made)
        kappa = _blind_share(theirs, level)
        figures |= {f"share {level:g}": largest, f"bound {level:g}": float(norm.cdf(norm.ppf(min(kappa, 1.0)) + ratio))}
    return figures


def _looked_up(left: Tensor, theirs: Pairs) -> Tensor:
    """By an attacker who knows all pictures with their labels and names the likeliest: the prior of the bound."""
    far = torch.cdist(left.flatten(1), theirs.clean.flatten(1))
    return theirs.x[far.masked_fill(theirs.y[:, None] != theirs.y[None], torch.inf).argmin(1)]


def _blind_share(theirs: Pairs, level: float) -> float:
    """At most this share of the pictures is hit by any guess that knows the label."""
    groups = [theirs.x[theirs.y == label] for label in torch.unique(theirs.y).tolist()]
    return sum(hits_at_most(own, level) * len(own) for own in groups) / len(theirs)


def release(trial: Trial, place: Workplace) -> Figures:
    """A whole release, and the accuracy of a classifier that was trained on what left."""
    name, method, small = str(trial["data"]), str(trial["method"]), "small" in dict(trial.settings)
    settings: dict[str, Any]
    if method == "noised":
        settings = {"front": "residual", "pretrain_on": "cifar100", "project": 16}
    else:
        settings = {"front": NET, "layers": 6, "channels": 8, "pretrain_on": "cifar100", "epochs": 250}
    if small:  # nothing is trained in advance
        settings = {"front": "residual", "layers": 1, "project": 16, "public": "synthetic"} if method == "noised" else {
            "front": "residual", "layers": 3, "channels": 4, "epochs": 1}  # fmt: skip
    table = {"channel": "features", "method": method, "data": name, "epsilon": 8.0, "delta": 1e-6, "seed": trial.seed}
    config = from_table(table | {"settings": settings})
    split = data.load(config, place.data_dir)
    split = fewer(split, SMALL_RECORDS) if small else split
    channel = methods.build(config, data.describe(config, place.data_dir))
    if place.folder is not None:
        place.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="airlock-", dir=place.folder) as folder:
        run = replace(place.run, checkpoint=Path(folder))
        made = channel.release(split, Randomness.make(trial.seed, trial.seed), run)
    return {"accuracy": made.utility.accuracy, "epsilon": min(made.guarantee.epsilon, 1e9)}


# Items.


def _of(experiment: str, quick: bool, seed: int = 0, **settings: Setting) -> Trial:
    return Trial.of(
        experiment, seed, data=settings.pop("data", "cifar10"), **settings, **({"small": True} if quick else {})
    )


def _find(found: Found, figure: str, trial: Trial) -> Spread | None:
    return found.figure(trial.experiment, figure, **dict(trial.settings))


def _ranged(found: Found, figure: str, trial: Trial, digits: int = 1, factor: float = 1.0) -> str:
    """A mean over draws, with their range."""
    mean, low, high = (_find(found, name, trial) for name in (figure, f"{figure}_low", f"{figure}_high"))
    if mean is None:
        return NOT_RUN
    if low is None or high is None or low.values == high.values:
        return f"{factor * mean.mean:.{digits}f}"
    middle, least, most = (factor * value for value in (mean.mean, min(low.values), max(high.values)))
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def _both(found: Found, trial: Trial) -> str:
    """PSNR and accuracy of a point."""
    if _find(found, "psnr", trial) is None:
        return NOT_RUN
    return f"{_ranged(found, 'psnr', trial)} dB, {_ranged(found, 'accuracy', trial, 1, 100)}%"


def _counted(
    there: int,
    wanted: int,
    columns: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    words: str,
    holds: bool | None = None,
) -> ItemResult:
    """A table of curves, for which the paper prints no numbers; `holds` is whether what it reads from them is so."""
    if not there:
        return ItemResult("not run")
    told = f"{there} of {wanted} points" if there < wanted else "all points"
    status: Status = "in part" if there < wanted or holds is None else "reproduced" if holds else "differs"
    return ItemResult(status, f"{told}; {words}", tuple(columns), tuple(rows))


_LONG = ((1, 2, 3, 4, 5, 6, 10), (2, 4, 8, 16, 32, 64))
_COARSE = ((1, 2, 3, 4, 5, 6), (4, 16, 64))


def _grid_of(effort: str, quick: bool) -> tuple[Sequence[int], Sequence[int]]:
    return ((1, 6), (4,)) if quick else _COARSE if effort == "coarse" else _LONG


def _cell(effort: str, quick: bool, m: int, depth: int, source: str = "cifar10") -> Trial:
    seed = 1 if effort == "coarse" else 0
    return _of("surface", quick, seed, data=source, effort=effort, m=m, channels=depth)


def _figure_3(quick: bool, effort: str) -> list[Trial]:
    layers, depths = _grid_of(effort, quick)
    return [_cell(effort, quick, m, depth) for m in layers for depth in depths]


def _show_figure_3(found: Found, effort: str) -> ItemResult:
    layers, depths = _grid_of(effort, found.quick)
    rows, there, leaks, gains = [], 0, [], []
    scores: dict[tuple[int, int], float] = {}
    for m in layers:
        cells = [_cell(effort, found.quick, m, depth) for depth in depths]
        means = [_find(found, "psnr", cell) for cell in cells]
        there += sum(mean is not None for mean in means)
        known = [mean.mean for mean in means if mean is not None]
        gains += [b - a for a, b in pairwise(known)]
        leaks.append([mean.mean if mean else None for mean in means])
        for depth, cell in zip(depths, cells, strict=True):
            score = _find(found, "accuracy", cell)
            scores |= {(m, depth): 100 * score.mean} if score and m <= 6 else {}
        rows.append((f"m = {m}", *(_both(found, cell) for cell in cells)))
    falls = [a - b for one, two in pairwise(leaks) for a, b in zip(one, two, strict=True) if a and b]
    steps = falls + gains
    words = f"PSNR falls in {sum(step > 0 for step in steps)} of {len(steps)} steps to more layers or fewer channels"
    columns = ("", *(f"D' = {depth}" for depth in depths))
    many = [score for (_, depth), score in scores.items() if depth == depths[-1]]
    few = sorted((m, score) for (m, depth), score in scores.items() if depth == min(d for _, d in scores))
    if not scores:
        return ItemResult("not run")
    moved, lost = max(many) - min(many), few[0][1] - few[-1][1]
    words += (
        f"; down to m = 6 accuracy moves by {moved:.1f} points with most channels and falls by {lost:.1f} with fewest"
    )
    holds = None if found.quick else all(step > 0 for step in steps) and moved < lost
    return _counted(there, len(layers) * len(depths), columns, rows, words, holds)


_SINGLE = ((4, "channels"), (6, "channels"), (4, "channels, strong"), (6, "channels, strong"))


def _alone(quick: bool, m: int, effort: str) -> Trial:
    return _of("single-channels", quick, m=m, effort=effort)


def _figure_4(quick: bool) -> list[Trial]:
    return [_alone(quick, m, effort) for m, effort in (_SINGLE[:1] if quick else _SINGLE)] + [_of("blind", quick)]


def _show_figure_4(found: Found) -> ItemResult:
    rows, pairs, there = [], [], 0
    wanted = _SINGLE[:1] if found.quick else _SINGLE
    for m, effort in wanted:
        trial = _alone(found.quick, m, effort)
        names = ("accuracy", "accuracy_low", "accuracy_high", "psnr", "psnr_low", "psnr_high", "correlation", "both")
        values = [_find(found, name, trial) for name in names]
        if values[0] is None:
            continue
        own = [value.mean if value else float("nan") for value in values]
        there += 1
        if m == 4:
            pairs.append((f"best over worst accuracy, m = 4, {effort}", 4.0, Spread((own[2] / own[1],))))
            pairs.append((f"range of PSNR, m = 4, {effort}", 6.0, Spread((own[5] - own[4],))))
        attacker = "10,000 pictures" if "strong" in effort else "960 pictures"
        cells = (
            f"{100 * own[1]:.1f} to {100 * own[2]:.1f}, {100 * own[0]:.1f}",
            f"{own[4]:.1f} to {own[5]:.1f}, {own[3]:.2f}",
        )
        both = "" if np.isnan(own[7]) else f"{own[7]:.0f}"
        rows.append((f"m = {m}", attacker, *cells, f"{own[6]:.2f}", both))
    guess = _find(found, "psnr", _of("blind", found.quick))
    rows += [("*a blind guess*", "960 pictures", "", f"{guess.mean:.2f}", "", "")] if guess else []
    if not there:
        return ItemResult("not run")
    status, words = compared(pairs, 1.0) if pairs else ("in part", "m = 6 alone")
    status = "in part" if there < len(wanted) else status
    columns = ("", "the attacker has", "accuracy, %: range, mean", "PSNR, dB: range, mean", "correlation",
               "of the quarter that leaks most, so many are of the quarter that is least useful")  # fmt: skip
    return ItemResult(status, words, columns, tuple(rows))


def _spots(quick: bool) -> list[Trial]:
    places = ((6, 8),) if quick else ((2, 2), (4, 2), (6, 2), (2, 8), (4, 8), (6, 8), (4, 4), (4, 16), (6, 4), (6, 16))
    return [_of("draws", quick, m=m, channels=d, effort="channels", setting="random") for m, d in places]


def _show_figure_5(found: Found) -> ItemResult:
    trials, there, rows = _spots(found.quick), 0, []
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for trial in trials:
        mean, sd, low, high = (_find(found, f"psnr{end}", trial) for end in ("", "_sd", "_low", "_high"))
        if mean is None or low is None or high is None:
            continue
        there += 1
        spans[trial["m"], trial["channels"]] = mean.mean, (sd.mean if sd else 0.0)
        rows.append((f"m = {trial['m']}, D' = {trial['channels']}", _ranged(found, "accuracy", trial, 1, 100),
                     _ranged(found, "psnr", trial)))  # fmt: skip
    words, holds = f"{2 if found.quick else MANY_DRAWS} draws each", None
    if len(spans) > 1:
        between = float(np.std([mean for mean, _ in spans.values()], ddof=1))
        within = float(np.mean([sd for _, sd in spans.values()]))
        words += f"; PSNR deviates by {within:.1f} dB between draws and by {between:.1f} dB between points"
        holds = between > within
    return _counted(there, len(trials), ("", "accuracy, %", "PSNR, dB"), rows, words, holds)


_BATCHES = (10, 20, 50)


def _show_figure_11(found: Found) -> ItemResult:
    """Of the worst channels, how many Fisher's criterion prunes."""
    trial = _alone(found.quick, 4 if found.quick else 6, "channels")
    rows = []
    for count in ("quarter", "half"):
        for gone in ("quarter", "half", "three quarters"):
            names = [f"{batches} batches, worst {count}, {gone} gone" for batches in _BATCHES]
            cells = [_ranged(found, name, trial, 1, 100) for name in names]
            random = {"quarter": 25, "half": 50, "three quarters": 75}[gone]
            rows.append((f"the worst {count}, {gone} pruned", *cells, f"{random}"))
    ours = _find(found, "50 batches, worst quarter, half gone", trial)
    if ours is None:
        return ItemResult("not run")
    percent = Spread(tuple(100 * value for value in ours.values))
    status, words = compared([("of the worst 32 when 64 go, %", 69.7, percent)], 5.0)
    words = f"{percent.mean:.1f}% of the worst 32 when 64 go, {percent.mean - 69.7:+.1f}"
    columns = ("", *(f"{batches} × 128 records" for batches in _BATCHES), "at random")
    return ItemResult("in part" if found.quick else status, words, columns, tuple(rows))


def _figure_13(quick: bool) -> list[Trial]:
    names = ("random", "lda") if quick else PRUNED
    return [_of("draws", quick, m=6, channels=8, effort="channels", setting=name) for name in names]


def _show_figure_13(found: Found) -> ItemResult:
    rows, means = [], dict[str, tuple[float, float]]()
    for trial in _figure_13(found.quick):
        accuracy, leak, left = (_find(found, name, trial) for name in ("accuracy", "psnr", "left"))
        if accuracy is None or leak is None or left is None:
            continue
        means[str(trial["setting"])] = 100 * accuracy.mean, leak.mean
        gain = ""
        if "random" in means and trial["setting"] != "random":
            gain = f"{100 * accuracy.mean - means['random'][0]:+.2f} points, {leak.mean - means['random'][1]:+.2f} dB"
        rows.append((str(trial["setting"]), f"{left.mean:.0f}", _ranged(found, "accuracy", trial, 2, 100),
                     _ranged(found, "psnr", trial, 2), gain))  # fmt: skip
    if not rows:
        return ItemResult("not run")
    columns = ("setting", "channels left", "accuracy, %", "PSNR, dB", "against random")
    if found.quick or not {"random", "lda", "characterised"} <= {*means}:
        return ItemResult("in part", f"{len(rows)} settings", columns, tuple(rows))
    (at, psnr_at), (a, b), (c, d) = (means[name] for name in ("random", "lda", "characterised"))
    pairs = [("PSNR of any channels", 18.3, psnr_at), ("points gained", 1.1, a - at), ("dB lost", -1.25, b - psnr_at),
             ("points against characterised", -0.5, a - c), ("dB against characterised", -0.45, b - d)]  # fmt: skip
    status, words = compared([(name, paper, Spread((own,))) for name, paper, own in pairs], 0.5)
    return ItemResult(status, words, columns, tuple(rows))


_FIRST = ("64-64-128", "48-64-128", "32-64-128", "16-64-128")
_EACH = ("64-64-128", "32-64-128", "32-32-128", "32-32-64")


def _inner(quick: bool, kept: Sequence[str]) -> list[Trial]:
    own = (kept[0], kept[-1]) if quick else kept
    return [_of("inner", quick, m=6, channels=8, effort="channels", kept=one) for one in own]


def _show_inner(found: Found, kept: Sequence[str]) -> ItemResult:
    trials, rows, there, leaks, scores = _inner(found.quick, kept), [], 0, [], []
    first = _find(found, "multiply_adds", trials[0])
    for trial in trials:
        leak, score, took, work = (
            _find(found, name, trial) for name in ("psnr", "accuracy", "torch_ms", "multiply_adds")
        )
        if leak is None or score is None or took is None or work is None:
            continue
        there += 1
        leaks.append(leak.mean)
        scores.append(100 * score.mean)
        less = f"{work.mean / first.mean:.2f} ×" if first else ""
        widths = "{" + ", ".join([*str(trial["kept"]).split("-"), "8"]) + "}"
        cells = (_ranged(found, "accuracy", trial, 1, 100), _ranged(found, "psnr", trial))
        rows.append((widths, *cells, f"{took.mean:.2f}", less))
    columns = ("channels", "accuracy, %", "PSNR, dB", "ms for a record, one thread", "work")
    if there < len(trials) or found.quick:
        return _counted(there, len(trials) + found.quick, columns, rows, "three draws each")
    moved = max(map(abs, np.array(leaks) - leaks[0])), max(map(abs, np.array(scores) - scores[0]))
    words = f"PSNR moves by {moved[0]:.2f} dB and accuracy by {moved[1]:.1f} points at most"
    return ItemResult("reproduced" if moved[0] < 0.75 and moved[1] < 3 else "differs", words, columns, tuple(rows))


_SAMPLES = (100, 250, 500, 1000, 2000, 5000)


def _figure_7(quick: bool) -> list[Trial]:
    counts = (32, 64) if quick else _SAMPLES
    found = [_of("samples", quick, effort="long", m=4, channels=16, records=count) for count in counts]
    layers, depths = _grid_of("coarse", quick)
    return found + [
        _cell("coarse", quick, m, depth, "cifar100") for m in layers[: 1 if quick else None] for depth in depths
    ]


def _show_figure_7(found: Found) -> ItemResult:
    counts = (32, 64) if found.quick else _SAMPLES
    trials = [_of("samples", found.quick, effort="long", m=4, channels=16, records=count) for count in counts]
    rows: list[tuple[str, ...]] = [
        (f"(a) {trial['records']:,} pictures, m = 4, D' = 16", _ranged(found, "psnr", trial), "") for trial in trials
    ]
    there = sum(_find(found, "psnr", trial) is not None for trial in trials)
    layers, depths = _grid_of("coarse", found.quick)
    apart: list[float] = []
    for m in layers[: 1 if found.quick else None]:
        for depth in depths:
            pair = [_cell("coarse", found.quick, m, depth, source) for source in ("cifar10", "cifar100")]
            one, other = (_find(found, "psnr", cell) for cell in pair)
            there += other is not None
            apart += [abs(one.mean - other.mean)] if one and other else []
            rows.append((f"(b, c) m = {m}, D' = {depth}", *(_ranged(found, "psnr", cell) for cell in pair)))
    wanted = len(trials) + len(apart) if found.quick else len(trials) + len(layers) * len(depths)
    words = f"both data sets are {np.mean(apart):.1f} dB apart in the mean" if apart else "no pair of data sets yet"
    holds = bool(np.mean(apart) < 1) if apart and not found.quick else None
    return _counted(there, wanted, ("", "CIFAR-10, dB", "CIFAR-100, dB"), rows, words, holds)


_LAYERS = (1, 2, 3, 4, 5, 6)


def _figure_8(quick: bool) -> list[Trial]:
    return [Trial.of("cost", 0, m=m, **({"small": True} if quick else {})) for m in _LAYERS]


def _show_figure_8(found: Found) -> ItemResult:
    rows, there = [], 0
    for trial in _figure_8(found.quick):
        torch_ms, onnx_ms, size, work = (
            _find(found, name, trial) for name in ("torch_ms", "onnx_ms", "parameter_bytes", "multiply_adds")
        )
        if torch_ms is None or size is None or work is None:
            continue
        there += 1
        cells = (f"{torch_ms.mean:.2f}", f"{onnx_ms.mean:.2f}" if onnx_ms else "", f"{size.mean / 1000:,.1f}")
        rows.append((f"m = {trial['m']}", *cells, f"{work.mean / 1e6:.1f}"))
    columns = ("", "torch, ms", "ONNX Runtime, ms", "kB of weights", "million multiply-adds")
    if not there:
        return ItemResult("not run")
    return ItemResult("in part", "one thread of a CPU; the paper's are a mobile and a server CPU", columns, tuple(rows))


EXAMPLES = ((28.0, (1, 4)), (17.0, (6, 4)))


def _show_example(found: Found) -> ItemResult:
    """What is chosen among the points of Figure 3 for the two limits that the paper names."""
    rows, right, count = [], 0, 0
    for effort in ("long", "coarse"):
        layers, depths = _grid_of(effort, found.quick)
        options = []
        for m in (m for m in layers if m <= 6):
            for depth in depths:
                trial = _cell(effort, found.quick, m, depth)
                leak, score = _find(found, "psnr", trial), _find(found, "accuracy", trial)
                options += [Option(m, depth, leak.mean, score.mean)] if leak and score else []
        for limit, (m, depth) in EXAMPLES:
            if not any(option.psnr <= limit for option in options):
                continue
            ours = choose(options, Limits(psnr=limit)).option
            theirs = choose([replace(option, utility=None) for option in options], Limits(psnr=limit)).option
            count, right = count + 1, right + (theirs.layers == m)
            cells = [f"m = {o.layers}, D' = {o.channels}: {o.psnr:.1f} dB, {100 * (o.utility or 0):.1f}%"
                     for o in (replace(theirs, utility=_score(options, theirs)), ours)]  # fmt: skip
            rows.append((f"{limit:g} dB", effort, f"m = {m}, D' = {depth}", *cells))
    if not rows:
        return ItemResult("not run")
    columns = ("allowed", "rows of", "the paper", "by the paper's rule", "by accuracy, as `airlock plan` chooses")
    words = f"by its rule the paper's layer in {right} of {count}; by measured accuracy deep front ends serve better"
    return ItemResult("in part" if found.quick else "differs", words, columns, tuple(rows))


def _score(options: Iterable[Option], wanted: Option) -> float | None:
    return next(o.utility for o in options if (o.layers, o.channels) == (wanted.layers, wanted.channels))


def _figure_19(quick: bool) -> list[Trial]:
    counts, layers = ((1, 2), (6,)) if quick else ((1, 2, 3, 4), (1, 4, 6))
    return [_of("clusters", quick, effort="long", m=m, channels=16, clusters=n) for m in layers for n in counts]


def _show_figure_19(found: Found) -> ItemResult:
    trials = _figure_19(found.quick)
    there = sum(_find(found, "psnr", trial) is not None for trial in trials)
    counts = sorted({trial["clusters"] for trial in trials})
    rows, gains = [], []
    for m in sorted({trial["m"] for trial in trials}):
        own = [trial for trial in trials if trial["m"] == m]
        means = [_find(found, "psnr", trial) for trial in own]
        if not found.quick and means[1] and means[-1]:
            gains.append(means[-1].mean - means[1].mean)
        rows.append((f"m = {m}, D' = 16", *(_ranged(found, "psnr", trial) for trial in own)))
    words = f"from 2 to 4 clusters {np.mean(gains):+.1f} dB in the mean" if gains else "PSNR in dB"
    holds = bool(np.mean(gains) < 0.5) if gains else None
    return _counted(there, len(trials), ("", *(f"{count} clusters" for count in counts)), rows, words, holds)


_ATTACKED = tuple((m, depth) for m in (1, 3, 6) for depth in (4, 8, 64))


def _attacks(quick: bool) -> list[Trial]:
    return [_of("attack", quick, m=m, channels=d) for m, d in (((6, 4),) if quick else _ATTACKED)]


def _show_attacks(found: Found) -> ItemResult:
    rows = []
    for trial in _attacks(found.quick):
        cells = []
        for name in ("reconstruction net", "best linear guess", "inversion", "blind"):
            own, same = _find(found, name, trial), _find(found, f"{name}, ssim", trial)
            cells.append(NOT_RUN if own is None or same is None else f"{own.mean:.1f} ({same.mean:.2f})")
        if cells[0] != NOT_RUN:
            rows.append((f"m = {trial['m']}, D' = {trial['channels']}", *cells))
    columns = (
        "PSNR in dB (SSIM)",
        "the paper's attacker",
        "best linear guess",
        "inversion, front end known",
        "blind guess",
    )
    return ItemResult("beside it", f"{len(rows)} points", columns, tuple(rows)) if rows else ItemResult("not run")


_SECRETS = (("brief", 256), ("brief", 64), ("whole", 256))


def _anonymity(quick: bool) -> list[Trial]:
    found = [_of("identified", quick, m=m) for m in ((1,) if quick else (1, 3, 6))]
    for front, known in (("brief", 16),) if quick else _SECRETS:
        for seed in (0,) if quick else (0, 1, 2):
            found.append(_of("secret", quick, seed, m=6, channels=8, kept="32-32-64", known=known, front=front))
    return found


def _show_anonymity(found: Found) -> ItemResult:
    rows: list[tuple[str, ...]] = []
    for m in (1,) if found.quick else (1, 3, 6):
        trial = _of("identified", found.quick, m=m)
        for known in (1, 8):
            right, live, pool = (
                _find(found, name, trial) for name in (f"right with {known}", f"live with {known}", "candidates")
            )
            if right and live and pool:
                rows.append((f"outputs, m = {m}", f"1 of {pool.mean:.0f}", str(known), "",
                             f"{right.mean:.0f} of {live.mean:.0f}", "", ""))  # fmt: skip
    told: list[float] = []
    for front, known in (("brief", 16),) if found.quick else _SECRETS:
        trial = _of("secret", found.quick, 0, m=6, channels=8, kept="32-32-64", known=known, front=front)
        names = ("inner right", "outputs right", "outputs right by least squares", "fit", "fit of another net")
        values = [_find(found, name, trial) for name in names]
        if values[0] is None or values[3] is None:
            continue
        told += values[0].values
        texts = [own.text(3) if own else "" for own in values[3:]]
        shares = [", ".join(f"{100 * value:.0f}%" for value in own.values) if own else "" for own in values[:3]]
        words = f"all layers, m = 6, front {front}"
        rows.append((words, "whole and another", str(known), *shares, " / ".join(texts)))
    if not rows:
        return ItemResult("not run")
    result = "secret output channels are named from one picture"
    if told:
        full = sum(value == 1.0 for value in told)
        result += f"; secret channels in every layer are all named in {full} of {len(told)} trials"
    columns = ("secret", "pool", "known pictures", "inner channels right", "outputs right", "outputs by least squares",
               "fit: true net / another")  # fmt: skip
    return ItemResult("beside it", result, columns, tuple(rows))


def _noised(quick: bool) -> list[Trial]:
    return [_of("noised", quick, ratio=ratio) for ratio in (RATIOS[2:3] if quick else RATIOS)]


def _show_noised(found: Found) -> ItemResult:
    rows, over, count = [], 0, 0
    for trial in _noised(found.quick):
        cells = []
        for level in LEVELS:
            share, bound = _find(found, f"share {level:g}", trial), _find(found, f"bound {level:g}", trial)
            if share and bound:
                over, count = over + (share.mean > bound.mean), count + 1
                cells.append(f"{100 * share.mean:.1f} ≤ {100 * bound.mean:.1f}")
        if cells:
            rows.append((f"R/σ = {trial['ratio']:g}", *cells))
    columns = ("share of pictures rebuilt, %", *(f"{level:g} dB" for level in LEVELS))
    words = f"{over} of {count} shares exceed the bound"
    return ItemResult("beside it", words, columns, tuple(rows)) if rows else ItemResult("not run")


def _show_blind(found: Found) -> ItemResult:
    trial, rows = _of("blind", found.quick), []
    levels = (18, 20, 22, 24, 28, 32)
    for name, words in (("by class", "class by class"), ("best of all", "classes times the best of all")):
        values = [_find(found, f"{name} {level}", trial) for level in levels]
        if all(values):
            rows.append((words, *(f"{100 * value.mean:.1f}" for value in values if value)))
    columns = ("at most, %", *(f"{level} dB" for level in levels))
    return ItemResult("beside it", "bounds on any blind guess", columns, tuple(rows)) if rows else ItemResult("not run")


def _releases(quick: bool) -> list[Trial]:
    return [_of("release", quick, seed, method=method) for method in ("published", "noised") for seed in (0,)]


def _show_releases(found: Found) -> ItemResult:
    rows = []
    for trial in _releases(found.quick):
        accuracy, epsilon = _find(found, "accuracy", trial), _find(found, "epsilon", trial)
        if accuracy and epsilon:
            proven = "none" if epsilon.mean >= 1e9 else f"{epsilon.mean:.2f}"
            rows.append((str(trial["method"]), proven, f"{100 * accuracy.mean:.2f}"))
    columns = ("method", "proven ε", "accuracy, %")
    return ItemResult("beside it", f"{len(rows)} of 2", columns, tuple(rows)) if rows else ItemResult("not run")


def _pixels(quick: bool) -> list[Trial]:
    return [_of("pixels", quick, effort="long")]


def _show_pixels(found: Found) -> ItemResult:
    trial = _pixels(found.quick)[0]
    if _find(found, "accuracy", trial) is None:
        return ItemResult("not run")
    return ItemResult("beside it", f"{_ranged(found, 'accuracy', trial, 1, 100)}% on the pictures themselves")


_None: Callable[[bool], Sequence[Trial]] = lambda quick: ()  # noqa: E731
PICTURES = "pictures without figures; every audit of features draws such a sheet (docs/attacks.md)"


def _together(trial: Trial) -> object:
    """The front end, which is trained here; some need none."""
    return None if trial.experiment in ("pixels", "blind", "cost", "noised", "releases") else "front"


PAPER = Paper(
    "features",
    "Li et al. 2017, PrivyNet: a flexible framework for privacy-preserving deep neural network training",
    {
        "surface": surface,
        "pixels": pixels,
        "blind": blind,
        "samples": samples,
        "clusters": clusters,
        "single-channels": single_channels,
        "draws": draws,
        "inner": inner,
        "cost": cost,
        "attack": attack,
        "identified": identified,
        "secret": secret,
        "noised": noised,
        "release": release,
    },
    (
        Item("figure-3", "PSNR and accuracy by layers and channels, longer training", "curves",
             partial(_figure_3, effort="long"), partial(_show_figure_3, effort="long")),
        Item("figure-3-coarse", "the same, short training", "curves", partial(_figure_3, effort="coarse"),
             partial(_show_figure_3, effort="coarse")),
        Item("figure-4", "single channels, and Figure 10", "about 4 × in accuracy and 6 dB at m = 4", _figure_4,
             _show_figure_4),
        Item("figure-5", "draws against layers and depth, and Figure 9", "layers and depth matter more", _spots,
             _show_figure_5),
        Item("figure-7", "samples for the attacker; another data set", "fewer than 1,000 are enough; alike", _figure_7,
             _show_figure_7),
        Item("figure-8", "time and storage, and Figure 20", "curves", _figure_8, _show_figure_8),
        Item("example", "28 dB and 17 dB", "(m, D') = (1, 4) and (6, 4)", _None, _show_example),
        Item("figure-11", "pruning by Fisher's criterion, and Figure 12", "69.7%, at random 50.3%",
             lambda quick: [_alone(quick, 4 if quick else 6, "channels")], _show_figure_11),
        Item("figure-13", "draws after pruning", "18.3 dB; +1.1 points, −1.25 dB", _figure_13, _show_figure_13),
        Item("figure-14", "fewer channels in the first layer", "PSNR and accuracy hardly move",
             partial(_inner, kept=_FIRST), partial(_show_inner, kept=_FIRST)),
        Item("figure-15", "fewer channels in every layer", "PSNR and accuracy hardly move",
             partial(_inner, kept=_EACH), partial(_show_inner, kept=_EACH)),
        Item("figure-19", "clusters of the reconstruction net", "2 are enough", _figure_19, _show_figure_19),
        absent("figures-21-to-24", "reconstructed pictures", PICTURES),
        Item("pixels", "the classifier without a front end", "none", _pixels, _show_pixels),
        Item("attacks", "attackers that the paper does not have", "none", _attacks, _show_attacks),
        Item("anonymity", "the secret front end, named", "very hard to guess", _anonymity, _show_anonymity),
        Item("noised", "sound: the bound against every attacker", "none", _noised, _show_noised),
        Item("blind", "sound: what a blind guess reaches at most", "none", lambda quick: [_of("blind", quick)],
             _show_blind),
        Item("releases", "whole releases on CIFAR-10", "none", _releases, _show_releases),
    ),
    ("cifar10", "cifar100"),
    together=_together,
)  # fmt: skip

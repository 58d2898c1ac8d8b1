"""What attackers make of released features: the figures of docs/results/features-attacks.md.

python docs/results/features_attacks.py --data-dir data --out features-attacks [--weights vgg16.safetensors] [--quick]

CIFAR-10, the first m layers of VGG-16 with D' of their channels. The attacker knows some training records; figures are
of test records, which no attacker saw. Three tables, each row one line of JSON: `rebuilt` (features as they are),
`named` (the front end from a pool), `noised` (clipped and noised, beside the bound against every attacker).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from airlock import data
from airlock.auditing.attacks.identify import identify
from airlock.auditing.attacks.invert import InvertSettings
from airlock.auditing.attacks.reconstruct import ReconstructSettings
from airlock.auditing.features.attack import Attackers, png
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on, push
from airlock.auditing.features.reconstruction_metrics import hits_at_most, named, psnr, rebuilt
from airlock.config import Frozen, from_table
from airlock.data import Records
from airlock.nets.prefix import narrow, open_prefix, trunk, usual_state
from airlock.training import Run
from airlock.training.devices import choose_device

SHAPE = (3, 32, 32)


class Size(Frozen):
    """How much is done."""

    known: int = 2000
    attacked: int = 500
    noised: int = 1000
    layers: tuple[int, ...] = (1, 3, 6)
    channels: tuple[int, ...] = (4, 8, 64)
    epochs: int = 40
    steps: int = 150
    variation: tuple[float, ...] = (0.0, 1e-3, 1e-2)
    noisy_variation: tuple[float, ...] = (1e-2, 1e-1, 1.0)
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)  # R / σ
    thresholds: tuple[float, ...] = (14.0, 16.0, 18.0, 20.0, 22.0)
    decoys: int = 4
    shown: int = 10


QUICK = Size(
    known=60, attacked=12, noised=16, layers=(1, 6), channels=(4,), epochs=1, steps=4, variation=(0.01,),
    noisy_variation=(0.1,), ratios=(2.0,), thresholds=(14.0, 20.0), decoys=1, shown=4,
)  # fmt: skip


def main() -> None:
    """One line of JSON a row, into OUT.jsonl and onto the screen; contact sheets of test pictures beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("features-attacks"))
    parser.add_argument("--weights", type=Path, help="a state dict of VGG-16; without it the front end is random")
    parser.add_argument("--quick", action="store_true", help="a minute on a CPU, figures without meaning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    size, run = QUICK if asked.quick else Size(), Run(device=choose_device(asked.device))
    known, target = records(size, asked.data_dir, asked.seed)
    asked.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with (asked.out / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in rows(size, known, target, asked.weights, asked.seed, run, asked.out):
            line = json.dumps(row | {"seconds": round(time.perf_counter() - started, 1)})
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()


def records(size: Size, data_dir: Path | None, seed: int) -> tuple[Records, Records]:
    """Training records that the attacker knows, and test records."""
    config = from_table({"channel": "weights", "data": "cifar10", "epsilon": 1.0, "delta": 1e-5, "seed": seed})
    split = data.load(config, data_dir)
    chance = np.random.default_rng(seed)
    known = split.private.take(chance.permutation(len(split.private))[: size.known])
    most = max(size.attacked, size.noised)
    return known, split.test.take(chance.permutation(len(split.test))[:most])


def rows(
    size: Size, known: Records, target: Records, weights: Path | None, seed: int, run: Run, out: Path
) -> Iterator[dict[str, object]]:
    """All three tables."""
    yield {"table": "about", "size": size.model_dump(), "weights": weights.name if weights else None, "seed": seed}
    for m in size.layers:
        whole = open_prefix("vgg16", m, SHAPE, weights)
        order = np.random.default_rng(seed + m).permutation(whole.shape[0]).tolist()
        for count in size.channels:
            pipeline = FeaturePipeline(narrow(whole, order[:count]).to(run.device))
            yield from plain(pipeline, known, target.take(np.arange(size.attacked)), m, count, size, seed, run, out)
        yield identified(whole, order[: max(size.channels)], m, known, size, seed, run)
    yield from noised(known, target.take(np.arange(size.noised)), weights, size, seed, run)


def learnt(pipeline: FeaturePipeline, known: Pairs, size: Size, seed: int, run: Run) -> Attackers:
    """Everybody."""
    weights = size.noisy_variation if pipeline.sigma else size.variation
    settings = InvertSettings(steps=size.steps, variation=weights, batch_size=500)
    return Attackers.learn(pipeline, known, seed, run, settings, ReconstructSettings(epochs=size.epochs))


def plain(
    pipeline: FeaturePipeline,
    known: Records,
    target: Records,
    m: int,
    count: int,
    size: Size,
    seed: int,
    run: Run,
    out: Path,
) -> Iterator[dict[str, object]]:
    """Every attacker on features as they are."""
    pairs, theirs = (push(pipeline, part, run.device) for part in (known, target))
    attackers = learnt(pipeline, pairs, size, seed, run)
    made = attackers.make(theirs.clean, theirs.y)
    for (name, view), found in made.items():
        result = rebuilt(name, view, theirs.x, theirs.y, found, attackers.baseline, len(pairs), 20.0)
        yield {"table": "rebuilt", "m": m, "channels": count} | short(dataclasses.asdict(result))
    strip = torch.stack([theirs.x, attackers.baseline(theirs.y), *made.values()])[:, : size.shown]
    (out / f"sheet-m{m}-d{count}.png").write_bytes(png(strip.cpu()))


def identified(
    whole: nn.Module, channels: list[int], m: int, known: Records, size: Size, seed: int, run: Run
) -> dict[str, object]:
    """From a pool of this net and others of its kind, all cut after every layer."""
    few = push(FeaturePipeline(whole), known.take(np.arange(8)), run.device)
    pool = {f"vgg16, {m}": whole.to(run.device)}
    for decoy in range(size.decoys):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 + decoy)
            state = usual_state(trunk("vgg16", SHAPE))
        for layers in range(1, 7):
            pool[f"decoy {decoy}, {layers}"] = open_prefix("vgg16", layers, SHAPE, state).to(run.device)
    released = few.clean[:, channels]
    guesses = [(k, identify(released[:k], few.x[:k], pool)) for k in (1, 2, 4, 8)]
    with torch.no_grad():
        sizes = [int(net(few.x[:1]).shape[1]) for net in pool.values()]
    result = named(guesses, f"vgg16, {m}", channels, sizes)
    return {"table": "named", "m": m, "channels": len(channels)} | short(dataclasses.asdict(result))


def noised(
    known: Records, target: Records, weights: Path | None, size: Size, seed: int, run: Run
) -> Iterator[dict[str, object]]:
    """Clipped to the known records' median norm, noised at several R/σ; shares beside the bound.

    The prior of the bound is these very pictures with their labels: an attacker who knows all of them and guesses which
    one it is is covered too. Φ(Φ⁻¹(κ) + R/σ) is concave in κ, so that the mean of κ over labels may stand in it.
    """
    m, count = max(size.layers), size.channels[min(1, len(size.channels) - 1)]
    whole = open_prefix("vgg16", m, SHAPE, weights)
    front = narrow(whole, np.random.default_rng(seed + m).permutation(whole.shape[0])[:count].tolist()).to(run.device)
    clip = float(push(FeaturePipeline(front), known, run.device).clean.flatten(1).norm(dim=1).median())
    for ratio in size.ratios:
        pipeline = FeaturePipeline(front, clip, clip / ratio)
        pairs, theirs = (push(pipeline, part, run.device) for part in (known, target))
        attackers = learnt(pipeline, pairs, size, seed, run)
        left = pipeline.noisy(theirs.clean, generator_on(run.device, seed + 2))
        made = attackers.make(left, theirs.y)
        made["looking it up", "front"] = looked_up(pipeline, left, theirs)
        made[attackers.baseline.name, "features"] = attackers.baseline(theirs.y)
        for threshold in size.thresholds:
            shares = {name: float((psnr(x, theirs.x) >= threshold).double().mean()) for (name, _), x in made.items()}
            blind = blind_share(theirs, threshold)
            yield (
                {"table": "noised", "m": m, "channels": count, "ratio": ratio, "threshold": threshold}
                | short(
                    {
                        "shares": shares,
                        "largest": max(shares.values()),
                        "kappa_at_most": blind,
                        "bound": bound(blind, ratio),
                    }
                )
                | {"images": len(theirs)}
            )
        means = {name: float(psnr(x, theirs.x).mean()) for (name, _), x in made.items()}
        yield {"table": "noised mean", "m": m, "channels": count, "ratio": ratio} | short(means)


def looked_up(pipeline: FeaturePipeline, left: Tensor, theirs: Pairs) -> Tensor:
    """An attacker who knows all pictures with their labels and names the likeliest: the prior of the bound."""
    far = torch.cdist(left.flatten(1), theirs.clean.flatten(1))
    far = far.masked_fill(theirs.y[:, None] != theirs.y[None], torch.inf)
    return theirs.x[far.argmin(1)]


def blind_share(theirs: Pairs, threshold: float) -> float:
    """At most this share of the pictures is hit by any guess that knows the label."""
    hits = 0.0
    for label in torch.unique(theirs.y).tolist():
        own = theirs.x[theirs.y == label]
        hits += hits_at_most(own, threshold) * len(own)
    return hits / len(theirs)


def bound(kappa: float, ratio: float) -> float:
    """Φ(Φ⁻¹(κ) + R/σ)."""
    return float(norm.cdf(norm.ppf(min(kappa, 1.0)) + ratio))


def short(value: object) -> dict[str, object]:
    """Four decimals."""

    def plain_value(one: object) -> object:
        if isinstance(one, dict):
            return {key: plain_value(inner) for key, inner in one.items()}
        if isinstance(one, list | tuple):
            return [plain_value(inner) for inner in one]
        return round(one, 4) if isinstance(one, float) else one

    found = plain_value(value)
    assert isinstance(found, dict)
    return found


if __name__ == "__main__":
    main()

"""Attack features that leave: rebuild records, find members, read off attributes, name the front end.

In: the pipeline, what left, the split it came from. Out: an `Audit` with `Findings`, and for the vault the scores of
single records and a contact sheet of private ones.

Which records are used for what. The attacker knows test records with their features and learns from them alone.
Reconstruction and attribute inference are measured on the holdout, sent through the same pipeline with the audit's own
noise: these figures describe records like the private ones, without using any private record. Membership needs members:
it uses private records against the holdout, as every membership attack does. Pictures on the card are public or drawn
(`sheet`).

Where the unit is a person, people are looked up, by the mean score of their records that take part; pictures are
rebuilt and attributes read off for one record of each person of the holdout, so that what intervals count is
independent.

The attackers (`Attackers`): all methods that turn features back into pictures, trained once on the known records. Three
quarters of these are for training; every fourth selects how smooth pictures should be and how far each attacker is
trusted over the blind guess. So no attacker does much worse than that guess, just as no real one would.

The contact sheet (`sheet`): originals above, and below what each attacker made of their features. A sheet shows whole
records, so it matters whose they are. The sheet for the card leaves: it shows public records, or synthetic ones where
there are none, and never a private, test or holdout record. The sheet of private records goes to the vault, as arrays.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from airlock.auditing.attacks.attribute import attribute_of, infer, majority
from airlock.auditing.attacks.identify import identify
from airlock.auditing.attacks.invert import InvertSettings, Tuned, invert, tune
from airlock.auditing.attacks.lookup import Blocks, lookup
from airlock.auditing.attacks.reconstruct import Attacker, Linear, ReconstructSettings, dense, learn_linear, learn_net
from airlock.auditing.features import reconstruction_metrics
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on, push
from airlock.auditing.features.reconstruction_metrics import PriorBaseline, best_prior_baseline, trust
from airlock.auditing.members import FEWEST, AttackSet, draw, left_out, public_count
from airlock.auditing.metrics import measure_all
from airlock.auditing.result import (
    AttributeResult,
    Audit,
    ContactSheet,
    Findings,
    IdentificationResult,
    ReconstructionResult,
    View,
)
from airlock.config import Frozen, SplitConfig
from airlock.data import Records, Split, limited
from airlock.errors import DataError
from airlock.methods.contract import Secrets
from airlock.nets import synthetic
from airlock.nets.privynet import Irn
from airlock.training import Run

# All methods that turn features back into pictures.


@dataclass(frozen=True)
class Attackers:
    """Learnt from known records; `make` uses them on others.

    Args:
        pipeline: What features went through.
        baseline: The best guess without features.
        linear: The best linear guess.
        tuned: What inversion was tuned to.
        settings: How thoroughly inversion searches.
        net: The trained net; None where none was trained.
        net_trust: How far its pictures are trusted.
        seed: Of random starts.
        run: Device and progress.
    """

    pipeline: FeaturePipeline
    baseline: PriorBaseline
    linear: Linear
    tuned: Tuned
    settings: InvertSettings
    net: Attacker | None
    net_trust: float
    seed: int
    run: Run

    @classmethod
    def learn(
        cls, pipeline: FeaturePipeline, known: Pairs, seed: int, run: Run, settings: InvertSettings,
        net_settings: ReconstructSettings | None,
    ) -> Self:  # fmt: skip
        """Train all attackers; no net is trained without `net_settings`."""
        learn, choose = known.halves()
        baseline, early = best_prior_baseline(known), best_prior_baseline(learn)
        noisy = pipeline.noisy(choose.clean, generator_on(choose.clean.device, seed))
        guess, net, far = early(choose.y), None, 1.0
        starts = [learn_linear(pipeline, learn, early, seed)(noisy, choose.y), guess]
        tuned = tune(pipeline, choose, starts, guess, noisy, seed, settings)
        if net_settings is not None:
            make = Irn if known.clean.dim() == 4 else dense
            net = learn_net(pipeline, learn, seed, run, net_settings, make)
            far = trust(guess, net(noisy), choose.x)
        return cls(
            pipeline, baseline, learn_linear(pipeline, known, baseline, seed), tuned, settings, net, far, seed, run
        )

    def make(self, features: Tensor, y: Tensor) -> dict[tuple[str, View], Tensor]:
        """All attackers' reconstructions from these features, by name and by what the attacker has."""
        guess = self.baseline(y)
        linear = self.linear(features, y)
        found: dict[tuple[str, View], Tensor] = {("best linear guess", "features"): linear}
        if self.net is not None:
            found["reconstruction net", "features"] = guess + self.net_trust * (self.net(features) - guess)
        starts = [linear, guess]
        inverted = invert(self.pipeline, features, starts, guess, self.tuned, self.seed, self.run, self.settings)
        return found | {("inversion", "front"): inverted}


# The contact sheet.

_GAP, _PAPER = 2, 255
PUBLIC = "Pictures from the public part of the data, none of which is protected or was released."
BESIDE = "Pictures from the public set {name}, none of which is protected or was released."
DRAWN = "Drawn pictures that show nobody: no public pictures of this shape were at hand."


def pictures_to_show(split: Split, count: int, seed: int) -> tuple[Records, str]:
    """Records that anyone may see, and a sentence saying whose they are."""
    beside = split.beside
    if len(split.public) >= count:
        return split.public.take(np.random.default_rng(seed).permutation(len(split.public))[:count]), PUBLIC
    if beside is not None and len(beside.records) >= count and beside.records.x.shape[1:] == split.private.x.shape[1:]:
        chosen = np.random.default_rng(seed).permutation(len(beside.records))[:count]
        drawn = beside.records.take(chosen)
        return Records(drawn.x, np.zeros(count, np.int64)), BESIDE.format(name=beside.name)
    x = (synthetic.draw(count, split.facts.shape, seed) * 255).round().byte().numpy()
    return Records(x, np.zeros(count, np.int64)), DRAWN


def sheet(originals: Tensor, rebuilt: Mapping[str, Tensor], whose: str) -> ContactSheet:
    """A row of originals and one for each attacker.

    Raises:
        DataError: The pictures have neither one nor three colours.
    """
    rows = {"original": originals} | dict(rebuilt)
    picture = png(torch.stack([row.cpu() for row in rows.values()]))
    return ContactSheet(base64.b64encode(picture).decode(), tuple(rows), whose)


def png(rows: Tensor) -> bytes:
    """(rows, columns, colours, height, width) from 0 to 1 as a PNG without any metadata."""
    colours = rows.shape[2]
    if colours not in (1, 3):
        raise DataError("pictures of one or three colours", f"{colours}")
    pixels = as_bytes(rows)
    down, across, height, width = rows.shape[0], rows.shape[1], rows.shape[3], rows.shape[4]
    paper = np.full((down * (height + _GAP) - _GAP, across * (width + _GAP) - _GAP, colours), _PAPER, np.uint8)
    for row in range(down):
        for column in range(across):
            top, left = row * (height + _GAP), column * (width + _GAP)
            paper[top : top + height, left : left + width] = pixels[row, column].transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(paper if colours == 3 else paper[:, :, 0]).save(file, "PNG", optimize=True)
    return file.getvalue()


def as_bytes(x: Tensor) -> NDArray[np.uint8]:
    """Pixels from 0 to 1 as bytes."""
    array: NDArray[np.uint8] = (x.clamp(0, 1) * 255).round().byte().cpu().numpy()
    return array


# The attacks together.


KNOWN_IMAGES = (1, 2, 4, 8)  # numbers of known records with which identification of the front end is tried
TOO_FEW = (
    "All attacks: the holdout or the test part is too small for them, or smaller than the stated number of records."
)
NO_NET = "Reconstruction by a trained net and a longer inversion, which find more: `airlock audit` makes them."
NO_POOL = "Whether a few known records name the front end: no pool of public nets was given."
NO_PICTURES = "Reconstruction of records that are no pictures."
NOT_TESTED = (
    "Attackers with strong knowledge of such records, as generative models have; they can fill in what is missing.",
    "Attackers who know many features of one person, or link them with other data.",
)


class FeatureAttackSettings(Frozen):
    """How hard to attack.

    Args:
        known: Records that the attacker knows, at most.
        images: Records that are attacked, at most; also the number of members.
        threshold: From this PSNR on a picture counts as rebuilt.
        attribute: `brightness`, `colour`, or `column N` of a table; by default `brightness` for pictures, `column 0`
            for tables.
        attribute_steps: Training steps of the net that infers it.
        net: Whether a reconstruction net is trained, which takes minutes.
        reconstruct: How.
        invert: How hard the front end is inverted.
        shown: Pictures on the contact sheets.
    """

    known: Annotated[int, Field(ge=8)] = 2000
    images: Annotated[int, Field(ge=FEWEST)] = 1000
    threshold: float = 20.0
    attribute: str | None = None
    attribute_steps: Annotated[int, Field(ge=1)] = 400
    net: bool = True
    reconstruct: ReconstructSettings = ReconstructSettings(epochs=30)
    invert: InvertSettings = InvertSettings()
    shown: Annotated[int, Field(ge=1, le=32)] = 8


QUICK = FeatureAttackSettings(
    known=500,
    images=60,
    net=False,
    attribute_steps=100,
    invert=InvertSettings(steps=30, restarts=0, variation=(0.0, 1e-2), learning_rate=0.1),
)


@dataclass(frozen=True)
class CandidatePool:
    """Public nets that the front end may have been cut from.

    Args:
        candidates: By name, modules from records to all maps of a layer.
        name: Which of them it was.
        channels: Which of its channels left.
    """

    candidates: Mapping[str, nn.Module]
    name: str
    channels: Sequence[int]


def attack(
    pipeline: FeaturePipeline,
    released: Blocks,
    split: Split,
    fractions: SplitConfig,
    delta: float,
    seed: int,
    settings: FeatureAttackSettings | None = None,
    run: Run | None = None,
    pool: CandidatePool | None = None,
    *,
    labelled: bool = True,
) -> tuple[Audit, Secrets]:
    """Attack features with everything that fits.

    Args:
        pipeline: What every record went through, noise included.
        released: Blocks of features and labels as they left, read once.
        split: The records that they came from.
        fractions: Of the split.
        delta: At which an ε is stated.
        seed: Of the attacks; noise, where needed, is drawn from it and is never that of the release.
        settings: How hard to attack; `QUICK` takes seconds.
        run: Device and progress.
        pool: Candidates for identifying the front end.
        labelled: Whether true labels leave with the features; attackers, and blind guesses, use them only then.

    Returns:
        The audit, and what belongs in the vault: the scores of single records, and pictures of private ones.
    """
    chosen, run = settings or FeatureAttackSettings(), run or Run()
    attack_set = draw(split, fractions, seed, chosen.images)
    count = public_count(split.facts, "test", fractions, chosen.known)
    if attack_set is None or count < 8 or count > len(split.test):
        return Audit((), (TOO_FEW, *NOT_TESTED), Findings()), {}
    test = split.test.take(np.random.default_rng(seed).permutation(len(split.test))[:count])
    parts = (test, attack_set.others, attack_set.members)
    known, others, members = (push(pipeline, part if labelled else _unlabelled(part), run.device) for part in parts)
    one_each = torch.from_numpy(limited(attack_set.others, 1, seed)).to(run.device)
    scene = _Scene(pipeline, known, others.take(one_each), seed, run, chosen)
    blocks = released if labelled else ((features, np.zeros_like(y)) for features, y in released)
    scores = attack_set.pooled(lookup(pipeline, blocks, members, others, known))
    classes = split.facts.classes if labelled else ()
    # Replacing somebody changes no more rows than adding her (`methods.rows`): the stated ε is claimed for pairs too.
    results = measure_all([scores], delta, classes=classes, game=attack_set.game, relation="replace-one")
    secrets = {"attack-scores": {"features-members": scores.members, "features-others": scores.others}}
    pictures = attack_set.others.x.ndim == 4
    rebuilt, shown = _rebuilt(scene, split, attack_set) if pictures else ((), None)
    findings = Findings(
        reconstructions=rebuilt,
        identification=_named(scene, pool) if pool else None,
        attributes=(_told(scene),),
        found_by_lookup=not pipeline.sigma and results[0].value > 0.99,
    )
    untested = (*(() if chosen.net or not pictures else (NO_NET,)), *(() if pictures else (NO_PICTURES,)))
    untested += (*(() if pool else (NO_POOL,)), *left_out(split), *NOT_TESTED)
    audit = Audit(results, untested, findings, sheet=shown[0] if shown else None)
    return audit, secrets | ({"contact-sheet": shown[1]} if shown else {})


def _unlabelled(records: Records) -> Records:
    return Records(records.x, np.zeros_like(records.y))


@dataclass(frozen=True)
class _Scene:
    """What all attackers share: the records they know, and the features they attack."""

    pipeline: FeaturePipeline
    known: Pairs
    target: Pairs
    seed: int
    run: Run
    settings: FeatureAttackSettings

    def left(self, pairs: Pairs, salt: int) -> Tensor:
        """Features as they leave, with the audit's own noise."""
        return self.pipeline.noisy(pairs.clean, generator_on(self.run.device, 1_000 * self.seed + salt))


def _rebuilt(
    scene: _Scene, split: Split, attack_set: AttackSet
) -> tuple[tuple[ReconstructionResult, ...], tuple[ContactSheet, dict[str, NDArray[np.uint8]]]]:
    """Figures on the holdout, a sheet that may leave, and a sheet of private records that may not."""
    chosen, target = scene.settings, scene.target
    net = chosen.reconstruct if chosen.net else None
    attackers = Attackers.learn(scene.pipeline, scene.known, scene.seed, scene.run, chosen.invert, net)
    made = attackers.make(scene.left(target, 1), target.y)
    results = tuple(
        reconstruction_metrics.rebuilt(
            name, view, target.x, target.y, found, attackers.baseline, len(scene.known), chosen.threshold
        )
        for (name, view), found in made.items()
    )
    few = chosen.shown
    records, whose = pictures_to_show(split, few, scene.seed)
    x, pictures = _show(scene, attackers, records)
    private, theirs = _show(scene, attackers, attack_set.members.take(np.arange(min(few, len(attack_set.members)))))
    kept = {"original": as_bytes(private)} | {name.replace(" ", "-"): as_bytes(one) for name, one in theirs.items()}
    return results, (sheet(x, pictures, whose), kept)


def _show(scene: _Scene, attackers: Attackers, records: Records) -> tuple[Tensor, dict[str, Tensor]]:
    pairs = push(scene.pipeline, records, scene.run.device)
    made = attackers.make(scene.left(pairs, 2), pairs.y)
    return pairs.x, {name: found for (name, _), found in made.items()}


def _told(scene: _Scene) -> AttributeResult:
    wanted = scene.settings.attribute or ("brightness" if scene.known.x.dim() == 4 else "column 0")
    attribute = attribute_of(wanted, scene.known.x)
    steps = scene.settings.attribute_steps
    guess = infer(scene.pipeline, scene.known, attribute, scene.seed, scene.run, steps)
    baseline, target = majority(scene.known, attribute), scene.target
    answers = guess(scene.left(target, 1), target.y)
    return reconstruction_metrics.told(
        attribute.name, attribute(target.x), answers, baseline(target.y), len(scene.known)
    )


def _named(scene: _Scene, pool: CandidatePool) -> IdentificationResult:
    """Uses the first few of the attacker's own records; no private record is needed."""
    features, clipped = scene.left(scene.known, 4), scene.pipeline.clip is not None
    counts = [count for count in KNOWN_IMAGES if count <= len(scene.known)]
    candidates = {name: module.to(scene.run.device) for name, module in pool.candidates.items()}
    guesses = [
        (count, identify(features[:count], scene.known.x[:count], candidates, by_record=clipped)) for count in counts
    ]
    with torch.no_grad():
        sizes = [int(module(scene.known.x[:1]).shape[1]) for module in candidates.values()]
    return reconstruction_metrics.named(guesses, pool.name, pool.channels, sizes)

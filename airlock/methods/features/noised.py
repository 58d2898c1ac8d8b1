"""`features`/`noised`: a few clipped numbers per record, with noise added once; proven for each record, or each person.

The sound counterpart of PrivyNet. A front end is chosen, trained and projected on public records; each private record's
numbers are clipped to norm R, N(0, σ²) noise is added to each, and they leave with the label as one of a public number
of rows.

Proof. Front end, projection and R do not depend on a private record. Adding or removing one record changes at most one
of the rows, from one record or an empty row to another (proof in `rows`; an empty row has zeros and a uniform label). A
row depends on its own record alone and has norm at most R before the noise (`mechanisms.LocalGaussian` enforces it).
Noise is added once: a finished shard is never recomputed, and an unfinished one has not left and is discarded
(`training.front_ends.extract`). The two versions of that row are at most 2R apart: `GaussianDpEvent(σ/2R)` under
add-remove. With randomised response, the label of that row costs an additional `RandomisedResponse.event`, also for an
empty row: a uniform label is a mixture of labels, so each answer to it is as likely as to a label on average. Only then
is the label covered. Labels in the clear are not: anyone can see how many rows each class has. In that case only the
numbers are covered, between two data sets whose rows have the same labels.

People. Where the data say whose a record is, at most K records of a person take part (`records_per_person`), and
adding or removing her with all records changes at most K of the rows (`rows`). Each is clipped to R, so both versions
of these rows together are at most 2R√K apart: σ is larger by √K, and the event is `GaussianDpEvent(σ/2R√K)`. Noisy
labels are K answers, each with a K-th of `label_epsilon`. The number of rows is that of the declared people times the
declared records of each, at most K; how many of them are hers shows nowhere. The noise is that of K rows for everybody,
also for those who have fewer: with K = 1 it is the least, and so is what is left of it in a mean over all rows.

`mechanisms.reconstruction` derives a second guarantee from the same noise: how well anyone can reconstruct a picture.

Noise on individual records is large: at ε = 1 its standard deviation on every number is about seven times R. What can
still be learnt are means over many records.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import count as numbers
from typing import Annotated, Any, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import Claim, calibrate, compose, repeat
from airlock.accounting.terms import Status
from airlock.config import DataConfig, Frozen, Positive, from_table
from airlock.data import Facts, Public, Records, Split, at_most
from airlock.errors import ConfigError
from airlock.mechanisms import LocalGaussian, RandomisedResponse, Randomness, Stream, reconstruction
from airlock.mechanisms.reconstruction import Recovery
from airlock.methods.artefact import FeatureSet
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.contract import NOTHING_ELSE_LEAVES, ONE_RECORD, Executed, Plan, check_executed
from airlock.methods.features.extracting import Extracting
from airlock.methods.features.front import (
    FeatureFrontEnd,
    FeatureSettings,
    Source,
    default_layers,
    keep,
    public_set,
    secret_choices,
)
from airlock.methods.rows import draw_rows
from airlock.training import Run
from airlock.training.devices import to_input
from airlock.training.front_ends.extract import NOBODY, Ordered
from airlock.training.front_ends.features import fit_projection
from airlock.training.front_ends.public import SPLIT, SYNTHETIC, FrontSettings, check_public, planned_sentence, sentence

PUBLISHED_ALONE = (
    "psnr", "milliseconds", "bytes", "pool", "inner", "characterised", "leakiest", "least_useful",
)  # fmt: skip
CLIPPED_AT = 0.1  # R is this quantile of the public records' norms
LABELS_CLEAR = (
    "NOT COVERED: labels. They leave as they are, and with them how many rows each class has; the guarantee is about "
    "the numbers beside them."
)
ROWS = (
    "Exactly {rows:,} rows leave, a declared number: rows of nobody fill up what is missing, and what is too much is "
    "left out, so that their number tells nothing of the records."
)
ASSUMPTIONS = (
    ONE_RECORD,
    "Settings and class names were chosen without looking at the private records.",
    "The front end, its projection and the clip norm are public: none of them was chosen on the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
OF_A_PERSON = (
    "At most {most:,} of these rows are one person's: where somebody has more records, which of them take part follows "
    "from that person's records alone."
)
INDEPENDENT = {
    "record": (
        "The bound on reconstruction holds for pictures drawn like {prior}, each independently of the others, with 95% "
        "confidence about how well a blind guess does that knows the labels."
    ),
    "person": (
        "The bound on reconstruction holds for a picture of a person, drawn like one of each person in {prior}; people "
        "are independent of each other, and one person's pictures need not be. It has 95% confidence about how well a "
        "blind guess does that knows the labels of all rows of that person."
    ),
}


class WantedBound(Frozen):
    """A wanted bound on reconstruction.

    Args:
        psnr: The PSNR, in dB, from which a reconstruction counts as good.
        probability: The largest probability with which any attacker may reconstruct a picture that well.
        blind: The largest probability that a guess without the release is that good; checked on the public pictures.
    """

    psnr: Positive
    probability: Annotated[float, Field(gt=0, lt=1)]
    blind: Annotated[float, Field(gt=0, lt=1)] = 0.01


class NoisedSettings(FeatureSettings):
    """Settings of features with noise.

    Args:
        public: What the projection, the clip norm and the blind guess are learnt on, if not on `pretrain_on`: a public
            set, "split" for the public part of the split, or "synthetic" for random shapes.
        project: How many numbers per record leave: its maps are averaged and projected onto this many directions.
        clip: The clip norm R; if left out, a quantile of the norms of public records.
        reconstruction: A desired bound; the noise is the larger of what the bound and ε require.
        label_epsilon: The part of ε spent on randomised response for the labels, all of a person's together; if left
            out, labels leave unchanged.
    """

    public: Source | None = None
    project: Annotated[int, Field(ge=1, le=4096)] = 16
    clip: Positive | None = None
    reconstruction: WantedBound | None = None
    label_epsilon: Positive | None = None


class Noised(Extracting):
    """Clipped numbers with Gaussian noise; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "noised"
    title: ClassVar[str] = "features with noise"
    rank: ClassVar[int] = 110
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    leaves: ClassVar[str] = (
        "A fixed number of rows, one for each private record as far as they go: a few numbers with random noise on "
        "each, and a label. The network behind them stays inside."
    )
    settings_type = NoisedSettings
    settings: NoisedSettings

    @property
    def source(self) -> DataConfig:
        """The public set that everything is learnt on: as set, else the split's public part, else synthetic."""
        own = self.settings.pretrain_on or self.settings.public
        return own or DataConfig(source=SPLIT if self.config.split.public else SYNTHETIC)

    def opened(self) -> FeatureFrontEnd:
        """All layers and channels unless fewer are set."""
        settings = self.settings
        self._check(settings)
        front = FeatureFrontEnd(settings, self.facts, default_layers(settings, None), settings.channels)
        made = front.sized(settings.front)
        if settings.project > (settings.channels or made.channels):
            raise ConfigError(
                f"settings.project of at most {settings.channels or made.channels}, the maps of the front end",
                f"{settings.project}",
            )
        return front

    def _check(self, settings: NoisedSettings) -> None:
        if settings.public is not None and settings.pretrain_on is not None:
            raise ConfigError(
                "settings.public or settings.pretrain_on", "both", "One public set serves for everything."
            )
        check_public(FrontSettings(public=self.source), "pixels", self.facts, self.config.split.public)
        unused = [key for key in PUBLISHED_ALONE if key in settings.model_fields_set]
        if unused or settings.prune != "random":
            raise ConfigError(
                "settings of features/noised",
                f"settings.{unused[0] if unused else 'prune'}",
                "Its promise rests on noise, not on which front end it is.",
                "Leave it out, or take features/published.",
            )
        wanted = settings.reconstruction
        if wanted is not None and wanted.blind >= wanted.probability:
            raise ConfigError(
                "a settings.reconstruction.probability above its blind",
                f"{wanted.probability:g}",
                "No amount of noise makes an attacker worse than a guess without the release.",
            )
        if (settings.label_epsilon or 0.0) * self.config.tuning_runs >= self.config.epsilon:
            raise ConfigError(
                "a settings.label_epsilon below ε", f"{settings.label_epsilon:g}", "Nothing would be left for the rest."
            )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One additional record, opposite on the ball to the record whose row it takes."""
        return _case(cls, epsilon, delta, CASE_FACTS, PAIR)

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """One additional person with many records, all opposite to the records whose rows they take."""
        return _case(cls, epsilon, delta, CASE_FACTS_OF_PEOPLE, PAIR_OF_PEOPLE)

    @cached_property
    def response(self) -> RandomisedResponse | None:
        """What is done to each label."""
        share = self.settings.label_epsilon
        return None if share is None else RandomisedResponse(len(self.facts.classes), share / self.together)

    def events(self, noise_multiplier: float) -> dpa.DpEvent:
        """The events of the whole release."""
        return self._with_labels(dpa.GaussianDpEvent(noise_multiplier))

    def _with_labels(self, numbers: dpa.DpEvent) -> dpa.DpEvent:
        """What numbers and labels cost in all runs."""
        own = [numbers] + ([repeat(self.response.event, self.together)] if self.response else [])
        return repeat(compose(own), self.config.tuning_runs)

    @cached_property
    def noise_multiplier(self) -> float:
        """σ/2R√K: the larger of what ε and the desired bound on reconstruction require."""
        config, wanted = self.config, self.settings.reconstruction
        found = calibrate(self.events, config.epsilon, config.delta, "add-remove", config.accountant)
        if wanted is None:
            return found
        return max(found, reconstruction.multiplier_for(wanted.blind, wanted.probability, config.tuning_runs))

    @property
    def rows(self) -> int:
        """The number m of rows that leave: the public number of private records, at most K of each person."""
        units = self.facts.expected("private", self.config.split)
        return round(self.facts.rows(units) or units)

    @property
    def together(self) -> int:
        """K, the number of rows that one record or one person may change."""
        return self.facts.most or 1

    def _assumptions(self, *more: str) -> tuple[str, ...]:
        first = () if self.response else (LABELS_CLEAR,)
        whose = (OF_A_PERSON.format(most=self.together),) if self.facts.unit == "person" else ()
        return (*first, *ASSUMPTIONS, ROWS.format(rows=self.rows), *whose, *more)

    def plan(self) -> Plan:
        """Calibrate the noise; touches no record."""
        settings, multiplier = self.settings, self.noise_multiplier
        made = self.front_end.sized(settings.front)
        details: dict[str, str | int | float] = {
            "front": settings.front,
            "layers": made.names[-1],
            "channels": settings.channels or made.channels,
            "rows": self.rows,
            "numbers": settings.project,
            "noise_multiplier": multiplier,
            "noise_over_clip_norm": LocalGaussian(1.0, multiplier, self.together).sigma,
            "labels": "randomised" if self.response else "in the clear",
        }
        if self.facts.unit == "person":
            details["records_per_person"] = self.together
        if settings.clip is not None:
            details["clip_norm"] = settings.clip
        if settings.reconstruction is not None:
            wanted = settings.reconstruction
            details["reconstruction_bound"] = reconstruction.bound(wanted.blind, multiplier, self.config.tuning_runs)
        words = planned_sentence(FrontSettings(public=self.source))
        promise = self.promise(self.events(multiplier), self._assumptions(*words))
        return Plan(self.channel, self.method, self.leaves, promise, details)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Learn the projection on public records, process the private ones, train a classifier on what leaves."""
        seed = self.config.seed
        public = public_set(self.source, split, seed)
        assert public is not None
        choices = secret_choices(run.checkpoint, randomness, run.resume)
        choice = self.front_end.drawn(Stream.from_seed(seed).child("public channels"))
        rows = self._recovery(public)
        front, mechanism = self.passage(self.front_end.ready(choice, public, seed, run), public, run)
        order = draw_rows(split.private, self.rows, choices, self.facts.most, seed)
        stream, protect = randomness.privacy.child("features"), self.protect(mechanism)
        folder, manifest = self.written(front, split.private, order, run, protect, mechanism.sigma, stream)
        utility = self.usefulness(front, mechanism, folder, manifest, split.test, run)
        said = (INDEPENDENT[self.facts.unit].format(prior=public.name),) if rows else ()
        features = FeatureSet(
            folder, manifest, "randomised" if self.response else "clear", public.name if rows else "", rows,
            front=front.cpu(), clip=mechanism.clip_norm,
        )  # fmt: skip
        return Executed(
            artefact=self.owned(features, run),
            events=self._with_labels(mechanism.event),
            utility=utility,
            details={**plan.details, "clip_norm": mechanism.clip_norm},
            assumptions=self._assumptions(*sentence(public), *said),
            secrets=keep(front, choice, order, self.settings),
        )

    def passage(self, maps: nn.Module, public: Public, run: Run) -> tuple[nn.Module, LocalGaussian]:
        """The front end with projection, and the mechanism: R is a quantile of public norms unless it is set."""
        front, norms = fit_projection(maps, public, self.settings.project, run)
        radius = self.settings.clip or float(np.quantile(norms.numpy(), CLIPPED_AT))
        return front, LocalGaussian(radius, self.noise_multiplier, self.together)

    def protect(self, mechanism: LocalGaussian) -> Any:
        """What is written for a block; an empty row has zeros before the noise, and a random label."""
        response, classes = self.response, len(self.facts.classes)

        def protected(
            features: Tensor, labels: NDArray[np.int64], stream: Stream
        ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
            nobody = labels == NOBODY
            clean = features.flatten(1).masked_fill(torch.from_numpy(nobody)[:, None], 0.0)
            anything = (stream.child("nobody").uniform(len(labels)) * classes).astype(np.int64)
            own = np.where(nobody, anything, labels)
            noisy = mechanism.add(clean, stream.child("numbers"))
            return noisy, response.answer(own, stream.child("labels")) if response else own

        return protected

    def _recovery(self, public: Public) -> tuple[Recovery, ...]:
        """The bound against every attacker, if public pictures show how well a blind guess does.

        Raises:
            ConfigError: They do not support the stated bound on blind guesses.
        """
        wanted, classes, runs = self.settings.reconstruction, len(self.facts.classes), self.config.tuning_runs
        pictures = len(self.facts.shape) == 3 and self.source.source != SYNTHETIC
        known = at_most(public.records, 1, self.config.seed)  # of each person: independent draws
        if not pictures or len(known) < reconstruction.FEWEST:
            if wanted is not None:
                raise ConfigError(
                    "public pictures with settings.reconstruction",
                    "none",
                    "How well a blind guess does has to be known from pictures like the private ones.",
                    "Set settings.public or settings.pretrain_on.",
                )
            return ()
        levels = sorted({*reconstruction.LEVELS, *([wanted.psnr] if wanted else [])})
        pixels = to_input(torch.from_numpy(known.x))
        # Labels of another data set do not apply here, nor do those of a public part with missing classes.
        alike = self.source.source == SPLIT and not self.config.split.public_without
        labels = torch.from_numpy(known.y) if alike else None
        found = reconstruction.blind_guess(pixels, levels, self.config.seed, classes, labels, self.together)
        rows = reconstruction.recovery(found, levels, self.noise_multiplier, runs)
        if wanted is not None:
            own = next(row for row in rows if row.psnr == wanted.psnr)
            if own.blind > wanted.blind:
                raise ConfigError(
                    f"a blind guess that reaches {wanted.psnr:g} dB at most {wanted.blind:g} of the time",
                    f"{own.blind:.3g}, all that the public pictures and {classes} labels exclude",
                    "The wanted bound would not hold.",
                    "Raise settings.reconstruction.blind or its psnr.",
                )
        return rows


# The case for the court.

SIDE, NUMBERS, CLIP = 8, 4, 1e-3
STATISTICS = (
    "the rows on the difference of both sides' clipped features", "their square length", "the number of rows",
)  # fmt: skip
ACCOUNTED = "the Gaussian mechanism on rows of which so many change, each by at most twice the clip norm"
CASE_FACTS = Facts("court", (1, SIDE, SIDE), ("0", "1"), 1, 1, "made up for the court")
PAIR = "one row for a record, or for another one more, whose features lie on the other side of the ball"
MOST, CASE_PEOPLE, VISITS = 16, 16, 300  # K, how many people are declared, and the records of the one who differs
CASE_FACTS_OF_PEOPLE = replace(CASE_FACTS, records=MOST * CASE_PEOPLE, people=CASE_PEOPLE, records_per_person=MOST)
PAIR_OF_PEOPLE = (
    f"{MOST * CASE_PEOPLE} rows for people with a record each, or {MOST} of them for one person more, with {VISITS} "
    "records whose features lie on the other side of the ball"
)


def _case(method: type[Noised], epsilon: float, delta: float, facts: Facts, pair: str) -> Case:
    """Somebody additional, whose records take the rows of others opposite to them on the ball.

    As many rows leave as are declared. Without the additional record, or person, they belong to others who are always
    present and whose records are all alike; with it, one of them, or K of them, belong to it. The secret key of the
    rows is fixed to one that prefers the additional records, and with it the order: the guarantee holds for every key
    and every order, and half of all keys do so. Choice of rows, front end, projection, clipping and noise are the real
    ones. The two sides' numbers point in opposite directions and are clipped to the ball, so every release is a draw
    from one of two normal distributions at a distance of at least nine tenths of 2R√K; the best score is the projection
    onto their difference. All labels are the same, as labels are not covered. The number of rows is a separate score.
    The claim is the ε of the executed event.
    """
    settings = {"project": NUMBERS, "clip": CLIP, "layers": 1}
    table = {"channel": "features", "method": method.method, "data": "court", "epsilon": epsilon, "delta": delta}
    more = {"split": {"test": 0.0, "holdout": 0.0}, "settings": settings, "device": "cpu"}
    channel = method(from_table({**table, **more}), facts)
    plan, chance = channel.plan(), np.random.default_rng(0)
    public = Public("court", Records(chance.integers(0, 256, (200, *facts.shape), np.uint8), np.arange(200) % 2), 2, "")
    maps = channel.front_end.ready(channel.front_end.drawn(Stream.from_seed(0)), public, 0, Run())
    front, mechanism = channel.passage(maps, public, Run())
    check_executed(plan, channel._with_labels(mechanism.event))
    sides = dict(zip((True, False), _neighbours(front, public.records, channel), strict=True))
    protect, key = channel.protect(mechanism), _first(sides[True], channel)

    def features(with_record: bool) -> tuple[Tensor, NDArray[np.int64]]:
        records = sides[with_record]
        rows = Ordered(records, _drawn(records, channel, key)).block(slice(None))
        with torch.no_grad():
            return front(torch.from_numpy(rows.x).float() / 255), rows.y

    ends = [mechanism.clip(features(known)[0]).double().numpy() for known in (True, False)]
    count = min(map(len, ends))
    apart = ends[0][:count] - ends[1][:count]
    distance = float(np.linalg.norm(apart))

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found, labels = features(with_record)
        scores = np.empty((count, len(STATISTICS)))
        for i in range(count):
            rows = protect(found, labels, stream.child(i))[0]
            scores[i] = (rows[: len(apart)] * apart).sum() / distance, (rows**2).sum(), len(rows)
        return scores

    claim = Claim(plan.guarantee.epsilon, plan.guarantee.delta, ACCOUNTED)
    events, reach = plan.guarantee.events, distance / mechanism.noise.sensitivity
    return Case(claim, pair, STATISTICS, run, curve_of(events, claim.epsilon), less_noise(events, claim.delta, reach))


def _neighbours(front: nn.Module, records: Records, channel: Noised) -> tuple[Records, Records]:
    """With and without the additional record, or person, which comes first; one other has each row, all with one label.

    Both kinds of records are those whose numbers have the largest angle between them.
    """
    with torch.no_grad():
        found = front(torch.from_numpy(records.x).float() / 255)
    unit = found / found.norm(dim=1, keepdim=True)
    ends = divmod(int((unit @ unit.T).argmin()), len(unit))
    people = channel.facts.unit == "person"
    own, others = VISITS if people else 1, channel.rows
    person = np.append(np.full(own, others), np.arange(others)) if people else None
    both = Records(records.x[np.repeat(ends, (own, others))], np.zeros(own + others, np.int64), person)
    return both, both.take(np.arange(own, len(both)))


def _drawn(records: Records, channel: Noised, key: int) -> NDArray[np.int64]:
    return draw_rows(records, channel.rows, Stream.from_seed(key), channel.facts.most, channel.config.seed)


def _first(both: Records, channel: Noised) -> int:
    """The seed of a key under which an additional record takes a row, and with it all that are like it."""
    own = np.arange(len(both) - channel.rows)
    return next(seed for seed in numbers() if np.isin(_drawn(both, channel, seed), own).any())

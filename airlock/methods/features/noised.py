"""`features`/`noised`: a few numbers of every record, clipped, with noise once; proven for each record by itself.

The sound counterpart of PrivyNet. A front end is chosen, trained and projected on public records; each private record's
numbers are clipped to norm R and get N(0, σ²) each, and so they leave, with the label, as one of a public number of
rows.

Proof. Front end, projection and R do not depend on a private record. Adding or removing one record changes at most one
of the rows, from one record or nobody to another (`rows` has the proof; nobody's numbers are zeros and its label is
uniform). A row depends on its own record alone and has norm at most R before the noise (`mechanisms.LocalGaussian`
enforces it). Noise is added once: a shard that is finished is never made again, and one that is not has never left and
is thrown away (`training.front_ends.extract`). The two versions of that row are at most 2R apart:
`GaussianDpEvent(σ/2R)` under add-remove. With randomised response the label of that row costs
`RandomisedResponse.event` more, also where it is nobody's: a uniform label is a mixture of labels, and an answer to it
as likely as to those on average. The label is covered only then. Labels in the clear are not: everybody sees how many
rows each class has. What is covered then are the numbers beside them, between two data sets whose rows have the same
labels.

`bound` has a second promise from the same noise: how well anyone can give back a picture.

Noise on so many numbers of one record is large: at ε = 1 about seven times as long as R on every number. What can still
be learnt are means over many records.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.accounting import calibrate, compose, repeat
from airlock.accounting.guarantee import Status
from airlock.config import DataConfig
from airlock.data import Public, Split
from airlock.errors import ConfigError
from airlock.mechanisms import LocalGaussian, RandomisedResponse, Randomness, Stream
from airlock.methods.case import Case
from airlock.methods.contract import NOTHING_ELSE_LEAVES, ArtefactKind, Executed, Plan
from airlock.methods.feature_set import Features, Recovery
from airlock.methods.features import bound, case
from airlock.methods.features.extracting import Extracting
from airlock.methods.features.front import FeatureFrontEnd, default_layers, kept_front, public_set, secret_choices
from airlock.methods.features.rows import draw_rows
from airlock.methods.features.settings import NoisedSettings
from airlock.training import Run
from airlock.training.devices import to_input
from airlock.training.front_ends.extract import NOBODY
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
    "One person contributes one record; whoever contributes several is protected less.",
    "Settings and class names were chosen without looking at the private records.",
    "The front end, its projection and the clip norm are public: none of them was chosen on the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
INDEPENDENT = (
    "The bound on reconstruction holds for pictures drawn like {prior}, each independently of the others, with 95% "
    "confidence about how well a blind guess does that knows the labels."
)


class Noised(Extracting):
    """Clipped numbers with Gaussian noise; status proven, unit record, relation add-remove."""

    method: ClassVar[str] = "noised"
    title: ClassVar[str] = "features with noise"
    rank: ClassVar[int] = 110
    artefact: ClassVar[ArtefactKind] = "features"
    status: ClassVar[Status] = "proven"
    leaves: ClassVar[str] = (
        "A fixed number of rows, one for each private record as far as they go: a few numbers with random noise on "
        "each, and a label. The network behind them stays inside."
    )
    settings_type = NoisedSettings
    settings: NoisedSettings

    @property
    def source(self) -> DataConfig:
        """The public set that everything is learnt on: as set, else the public part where there is one."""
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
                "No noise makes a guess worse than one without the release.",
            )
        if (settings.label_epsilon or 0.0) * self.config.tuning_runs >= self.config.epsilon:
            raise ConfigError(
                "a settings.label_epsilon below ε", f"{settings.label_epsilon:g}", "Nothing would be left for the rest."
            )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One record more, on the other side of the ball from the one it takes the row of."""
        return case.of_rows(cls, epsilon, delta)

    @cached_property
    def response(self) -> RandomisedResponse | None:
        """What is done to labels."""
        share = self.settings.label_epsilon
        return None if share is None else RandomisedResponse(len(self.facts.classes), share)

    def events(self, noise_multiplier: float) -> dpa.DpEvent:
        """Of the whole release."""
        own = [dpa.GaussianDpEvent(noise_multiplier)] + ([self.response.event] if self.response else [])
        return repeat(compose(own), self.config.tuning_runs)

    @cached_property
    def noise_multiplier(self) -> float:
        """σ/2R: the larger of what ε and what the wanted bound on reconstruction need."""
        config, wanted = self.config, self.settings.reconstruction
        found = calibrate(self.events, config.epsilon, config.delta, "add-remove", config.accountant)
        if wanted is None:
            return found
        return max(found, bound.multiplier_for(wanted.blind, wanted.probability, config.tuning_runs))

    @property
    def rows(self) -> int:
        """m, how many rows leave: the public number of private records."""
        return self.facts.expected("private", self.config.split)

    def _assumptions(self, *more: str) -> tuple[str, ...]:
        first = () if self.response else (LABELS_CLEAR,)
        return (*first, *ASSUMPTIONS, ROWS.format(rows=self.rows), *more)

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
            "noise_over_clip_norm": 2 * multiplier,
            "labels": "randomised" if self.response else "in the clear",
        }
        if settings.clip is not None:
            details["clip_norm"] = settings.clip
        if settings.reconstruction is not None:
            wanted = settings.reconstruction
            details["reconstruction_bound"] = bound.bound(wanted.blind, multiplier, self.config.tuning_runs)
        words = planned_sentence(FrontSettings(public=self.source))
        promise = self.promise(self.events(multiplier), self._assumptions(*words))
        return Plan(self.channel, self.method, self.leaves, promise, details)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Learn the projection on public records, send private ones through, train a classifier on what leaves."""
        seed = self.config.seed
        public = public_set(self.source, split, seed)
        assert public is not None
        choices = secret_choices(run.checkpoint, randomness, run.resume)
        choice = self.front_end.drawn(Stream.from_seed(seed).child("public channels"))
        rows = self._recovery(public)
        front, mechanism = self.passage(self.front_end.ready(choice, public, seed, run), public, run)
        order = draw_rows(split.private, self.rows, choices)
        stream, protect = randomness.privacy.child("features"), self.protect(mechanism)
        folder, manifest = self.written(front, split.private, order, run, protect, mechanism.sigma, stream)
        done = [mechanism.event] + ([self.response.event] if self.response else [])
        executed = repeat(compose(done), self.config.tuning_runs)
        utility = self.usefulness(front, mechanism, folder, manifest, split.test, run)
        said = (INDEPENDENT.format(prior=public.name),) if rows else ()
        features = Features(
            folder, manifest, "randomised" if self.response else "clear", public.name if rows else "", rows,
            front=front.cpu(), clip=mechanism.clip_norm,
        )  # fmt: skip
        return Executed(
            artefact=self.owned(features, run),
            events=executed,
            utility=utility,
            details={**plan.details, "clip_norm": mechanism.clip_norm},
            assumptions=self._assumptions(*sentence(public), *said),
            secrets=kept_front(front, choice, order, self.settings),
        )

    def passage(self, maps: nn.Module, public: Public, run: Run) -> tuple[nn.Module, LocalGaussian]:
        """From records to numbers, and what is done to these: R is a quantile of public norms unless it is set."""
        front, norms = fit_projection(maps, public, self.settings.project, run)
        radius = self.settings.clip or float(np.quantile(norms.numpy(), CLIPPED_AT))
        return front, LocalGaussian(radius, self.noise_multiplier)

    def protect(self, mechanism: LocalGaussian) -> Any:
        """What is written of a block; nobody's numbers are zeros before the noise, and its label is any."""
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
        """The bound against every attacker, where public pictures tell how well a blind guess does.

        Raises:
            ConfigError: They do not bear out the blind guess that was stated.
        """
        wanted, classes, runs = self.settings.reconstruction, len(self.facts.classes), self.config.tuning_runs
        pictures = len(self.facts.shape) == 3 and self.source.source != SYNTHETIC
        if not pictures or len(public.records) < bound.FEWEST:
            if wanted is not None:
                raise ConfigError(
                    "public pictures with settings.reconstruction",
                    "none",
                    "How well a blind guess does has to be known from pictures like the private ones.",
                    "Set settings.public or settings.pretrain_on.",
                )
            return ()
        levels = sorted({*bound.LEVELS, *([wanted.psnr] if wanted else [])})
        pixels = to_input(torch.from_numpy(public.records.x))
        # Labels of another set say nothing about these, nor those of a public part in which classes are missing.
        alike = self.source.source == SPLIT and not self.config.split.public_without
        labels = torch.from_numpy(public.records.y) if alike else None
        found = bound.blind_guess(pixels, levels, self.config.seed, classes, labels)
        rows = bound.recovery(found, levels, self.noise_multiplier, runs)
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

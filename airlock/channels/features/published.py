"""`features`/`published`: PrivyNet (Li et al. 2017) as written. Nothing is promised; attacks say what is known.

The first m layers of a public network with D' of their output channels, which are drawn in secret, turn every private
record into maps, which leave with its label. The paper's argument is that a reconstruction network trained on features
and pictures gives back blurred pictures, and that nobody knows the front end. The first is a lower bound on what
leaks: another attacker may do better. The second fails: with a few known pictures a front end that was cut from a
public network is found by least squares (docs/features.md). So the status is empirical, and no ε is claimed.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import dp_accounting as dpa

from airlock.accounting import Guarantee, repeat
from airlock.accounting.guarantee import Status
from airlock.channels.case import Case
from airlock.channels.contract import Plan, Release, check_executed
from airlock.channels.feature_set import Features
from airlock.channels.features.extracting import COUNTED, Extracting
from airlock.channels.features.front import (
    FrontEnd,
    default_layers,
    kept_front,
    permutation,
    public_set,
    secret_choices,
)
from airlock.channels.features.settings import DEFAULT_CHANNELS, DEFAULT_LAYERS, FRONT_KEYS
from airlock.data import Split
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Randomness
from airlock.training import Run

ASSUMPTIONS = (
    "NOT COVERED: everything. Features are computed from records without noise; whoever finds the front end can invert "
    "them, and one that was cut from a public network can be found.",
    "Labels leave as they are.",
    COUNTED,
    "Test and holdout records are not covered: accuracy and attack results are published without noise.",
)


class Published(Extracting):
    """Maps of every record; status empirical, no unit."""

    method: ClassVar[str] = "published"
    status: ClassVar[Status] = "empirical"
    leaves: ClassVar[str] = (
        "Some feature maps of every private record, without noise, and its label. The network behind them stays inside."
    )
    unproven: ClassVar[str] = "Nothing limits what someone who finds or guesses the front end can tell from its maps."
    sound_method: ClassVar[str] = "noised"

    def opened(self) -> FrontEnd:
        """The first m layers with D' channels."""
        settings = self.settings
        self._refuse_unwired()
        channels = settings.channels or DEFAULT_CHANNELS
        front = FrontEnd(settings, self.facts, default_layers(settings, DEFAULT_LAYERS), channels)
        for name in front.names:
            front.sized(name)
        return front

    def _refuse_unwired(self) -> None:
        settings = self.settings
        limits = {"psnr": settings.psnr, "milliseconds": settings.milliseconds, "bytes": settings.bytes}
        named = [f"settings.{key}" for key, value in limits.items() if value is not None]
        if settings.prune != "random":
            named.append(f'settings.prune = "{settings.prune}"')
        if named:
            raise ConfigError(
                "settings.layers and settings.channels, with channels drawn at random",
                named[0],
                "Choosing by characterisation is not part of this version.",
                "Set layers and channels yourself.",
            )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """There is none: nothing is claimed."""
        raise Refused(
            "a claim to try",
            "features/published, which claims no ε",
            "What is not promised cannot be refuted.",
            "Its card says what attacks found; `airlock court features/noised` tries the sound method.",
        )

    def plan(self) -> Plan:
        """What leaves and that nothing is promised; touches no record."""
        front = self.front_end
        made = front.sized(self.settings.front)
        shape = (front.channels or made.channels, *made.shape[1:])
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self._guarantee(),
            {
                "front": ", ".join(front.names),
                "layers": made.names[-1],
                "channels": f"{front.channels} of {made.channels}",
                "features": " × ".join(map(str, shape)),
            },
        )

    def _guarantee(self) -> Guarantee:
        return Guarantee(
            unit="none",
            relation="replace-one",
            events=repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs),
            delta=self.config.delta,
            status=self.status,
            assumptions=ASSUMPTIONS,
        )

    def release(self, split: Split, randomness: Randomness, run: Run) -> Release:
        """Draw the channels, send every record through, train a classifier on what leaves."""
        plan = self.plan()
        choices = secret_choices(run.checkpoint, randomness, run.resume)
        choice = self.front_end.drawn(choices)
        front = self.front_end.ready(choice, public_set(self.source, split, self.config.seed), self.config.seed, run)
        order = permutation(len(split.private), choices.child("order"))
        folder, manifest = self.written(front, split.private, order, run)
        utility = self.usefulness(front, None, folder, manifest, split.test, run)
        promise = self._guarantee()
        check_executed(plan, promise.events)
        features = Features(folder, manifest, "clear", withheld=FRONT_KEYS, front=front.cpu())
        public = {key: value for key, value in plan.details.items() if key == "features"}
        return Release(
            plan=dataclasses.replace(plan, details=public),
            artefact=self.owned(features, run),
            guarantee=promise,
            utility=utility,
            secure_noise=randomness.privacy.secure,
            noise_made_on=randomness.privacy.drawn_on,
            secrets=kept_front(front, choice, order, self.settings),
        )

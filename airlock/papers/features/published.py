"""`features`/`published`: PrivyNet (Li et al. 2017) as published. It guarantees nothing; only attacks show what leaks.

The first m layers of a public network, with D' secretly drawn output channels, turn every private record into feature
maps, which leave with its label. The paper argues that a reconstruction network trained on features and pictures
returns only blurred pictures, and that no one knows the front end. The first is a lower bound on what leaks: another
attacker may do better. The second fails where whole layers of a public network are taken: a few known pictures name it
and its channels by least squares (docs/features.md). Where channels inside are left out too (`inner`), least squares
find nothing, a search may (`auditing.attacks.identify.uncover`), and nothing limits what a better one finds. So the
status is empirical, and no ε is claimed.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import ClassVar

import dp_accounting as dpa
import numpy as np

from airlock.accounting import Guarantee, repeat
from airlock.accounting.terms import Status
from airlock.data import Public, Split
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Randomness
from airlock.methods.artefact import FeatureSet
from airlock.methods.case import Case
from airlock.methods.contract import NOTHING_ELSE_LEAVES, Executed, Plan
from airlock.methods.features.extracting import Extracting
from airlock.methods.features.front import FeatureFrontEnd, default_layers, keep, public_set, secret_choices
from airlock.methods.rows import permutation
from airlock.training import Run
from airlock.training.front_ends.characterised import Characterised
from airlock.training.front_ends.choose import Chosen, Limits, choose
from airlock.training.front_ends.lda import RECORDS, usefulness
from airlock.training.front_ends.prune import prune

# Settings that describe the front end of a release: like it, they stay in the vault.
FRONT_KEYS = (
    "front", "layers", "channels", "weights", "pretrain_on", "pretrain_epochs", "prune", "inner", "pool", "psnr",
    "milliseconds", "bytes", "characterised", "leakiest", "least_useful",
)  # fmt: skip
DEFAULT_LAYERS, DEFAULT_CHANNELS = 6, 8  # the paper's preferred operating point
COUNTED = "How many private records there are is not hidden: there are as many rows."
ASSUMPTIONS = (
    "NOT COVERED: everything. Features are computed from records without noise; whoever finds the front end can invert "
    "them, and one that was cut from a public network can be found.",
    "Labels leave as they are.",
    COUNTED,
    NOTHING_ELSE_LEAVES,
)


BY_PRIVATE = "Which channels leave was chosen by a statistic of the private records that no noise protects (Fisher's)."


class Published(Extracting):
    """Maps of every record; status empirical, no unit."""

    method: ClassVar[str] = "published"
    title: ClassVar[str] = "features, as published"
    status: ClassVar[Status] = "empirical"
    leaves: ClassVar[str] = (
        "Some feature maps of every private record, without noise, and its label. The network behind them stays inside."
    )
    unproven: ClassVar[str] = "Nothing limits what someone who finds or guesses the front end can tell from its maps."
    sound_method: ClassVar[str] = "noised"
    withheld: ClassVar[tuple[str, ...]] = FRONT_KEYS

    def opened(self) -> FeatureFrontEnd:
        """The first m layers with D' channels, as set or as selected by the limits."""
        layers, channels = self._point()
        front = FeatureFrontEnd(self.settings, self.facts, layers, channels)
        for name in front.names:
            front.sized(name)
        self._check_prune(front)
        return front

    @cached_property
    def characterised(self) -> Characterised | None:
        """Measurements of the front end on public records."""
        file, settings = self.settings.characterised, self.settings
        if file is None:
            return None
        found = Characterised.read(Path(file).expanduser())
        if found.found.front != settings.front:
            raise ConfigError(f"a characterisation of {settings.front}", f"one of {found.found.front}")
        return found

    @cached_property
    def chosen(self) -> Chosen | None:
        """The option selected by the limits, if any are set.

        Raises:
            ConfigError: There is nothing to choose from, or no option satisfies them.
        """
        settings = self.settings
        limits = Limits(settings.psnr, settings.milliseconds, settings.bytes)
        if not limits.given():
            return None
        if self.characterised is None:
            raise ConfigError(
                "settings.characterised with limits",
                "none",
                "What a front end leaks and costs has to be measured first.",
                "Run `airlock features characterise` and name its file, or set layers and channels yourself.",
            )
        wanted = [o for o in self.characterised.options if settings.layers in (None, o.layers)]
        return choose([o for o in wanted if settings.channels in (None, o.channels)], limits)

    def _point(self) -> tuple[int | str, int]:
        settings, taken = self.settings, self.chosen.option if self.chosen else None
        if taken is not None:
            return taken.layers, taken.channels
        return default_layers(settings, DEFAULT_LAYERS), settings.channels or DEFAULT_CHANNELS

    def _check_prune(self, front: FeatureFrontEnd) -> None:
        """Refuse in advance what could fail later: private records decide which channels Fisher's criterion prunes."""
        settings = self.settings
        if settings.prune == "random":
            return
        if settings.pool:
            raise ConfigError(
                'settings.prune = "random" with a pool', f"'{settings.prune}'", "Scores are of one front end."
            )
        prefix, wanted, known = front.sized(settings.front), front.channels or 0, self.characterised
        width = prefix.channels
        left = width - round(settings.least_useful * width)
        if settings.prune == "characterised":
            left = len(self._left(None))
        elif known and known.found.single("privacy", len(prefix.names)):
            left -= round(settings.leakiest * width)  # possibly none of them is among the least useful
        if wanted > left:
            raise ConfigError(
                f"at most the {left} channels that pruning leaves of {width}",
                f"settings.channels = {wanted}",
                do="Lower settings.channels, leakiest or least_useful, or take a layer with more.",
            )

    def _left(self, useful: dict[int, float] | None) -> tuple[int, ...]:
        """Channels that may leave: neither the leakiest, where measured, nor the least useful."""
        prefix = FeatureFrontEnd(self.settings, self.facts, *self._point()).sized(self.settings.front)
        m, known = len(prefix.names), self.characterised
        leaks = known.found.single("privacy", m) if known else {}
        useful = known.found.single("utility", m) if known and useful is None else useful
        if not useful or (self.settings.prune == "characterised" and not leaks):
            raise ConfigError(
                f"single channels after {m} layers in settings.characterised",
                "none",
                do=f"Run `airlock features characterise` with --single {m}.",
            )
        leakiest, least = (
            round(share * prefix.channels) for share in (self.settings.leakiest, self.settings.least_useful)
        )
        return prune(prefix.channels, leaks or None, useful, leakiest, least).left

    def _allowed(self, split: Split, public: Public | None, run: Run) -> tuple[int, ...] | None:
        """The channels to draw from; Fisher's criterion uses private records, as in the paper."""
        if self.settings.prune != "lda":
            return self._left(None) if self.settings.prune == "characterised" else None
        whole = self.front_end.whole(self.settings.front, public, self.config.seed, run)
        some = split.private.take(np.random.default_rng(self.config.seed).permutation(len(split.private))[:RECORDS])
        if len(np.unique(some.y)) < 2:  # nothing tells channels apart
            return self._left(dict.fromkeys(range(whole.channels), 0.0))
        return self._left(usefulness(whole, some, len(split.facts.classes), run))

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """Refused: nothing is claimed."""
        raise Refused(
            "a claim to try",
            "features/published, which claims no ε",
            "Without a claim there is nothing to refute.",
            "Its card says what attacks found; `airlock court features/noised` tries the sound method.",
        )

    def plan(self) -> Plan:
        """What leaves, without any guarantee; touches no record."""
        front = self.front_end
        made = front.sized(self.settings.front)
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self._guarantee(),
            {
                "front": ", ".join(front.names),
                "layers": made.names[-1],
                "channels": f"{front.channels} of {made.channels}",
                "features": self._size,
                **({"chosen": self.chosen.why} if self.chosen else {}),
            },
        )

    @cached_property
    def _size(self) -> str:
        """The shape of one record's features: all that the card says about the front end."""
        made = self.front_end.sized(self.settings.front)
        return " × ".join(map(str, (self.front_end.channels or made.channels, *made.shape[1:])))

    def _guarantee(self) -> Guarantee:
        events = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)
        assumptions = (*ASSUMPTIONS, *((BY_PRIVATE,) if self.settings.prune == "lda" else ()))
        return self.promise(events, assumptions, unit="none", relation="replace-one")

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Draw the channels, compute every record's features, train a classifier on what leaves."""
        choices = secret_choices(run.checkpoint, randomness, run.resume)
        public = public_set(self.source, split, self.config.seed)
        choice = self.front_end.drawn(choices, self._allowed(split, public, run))
        front = self.front_end.ready(choice, public, self.config.seed, run)
        order = permutation(len(split.private), choices.child("order"))
        folder, manifest = self.written(front, split.private, order, run)
        utility = self.usefulness(front, None, folder, manifest, split.test, run)
        executed = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)  # features left as they are
        features = FeatureSet(folder, manifest, "clear", withheld=self.withheld, front=front.cpu())
        kept = keep(front, choice, order, self.settings)
        return Executed(self.owned(features, run), executed, utility, {"features": self._size}, secrets=kept)

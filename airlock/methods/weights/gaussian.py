"""`weights`/`gaussian`: DP-SGD, and all weights leave. Proof and plan are those of `methods.dp_sgd`.

The defaults depend on public facts alone (`recipe`). Those of the named image sets were tuned on those very sets, which
are public benchmarks; on private data, choosing a setting by its result costs budget (`tuning_runs`).

`TrainedWeights` and `settings_for` serve every method of this channel that trains a whole network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import dp_accounting as dpa
import torch
from pydantic import Field
from torch import nn

from airlock.config import MINILM, TRANSFORMERS, ReleaseConfig, parse
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, NetError
from airlock.mechanisms import Randomness
from airlock.methods import dp_sgd_case
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import Details
from airlock.methods.dp_sgd import BROUGHT, ONE_STEP, DpSgd, DpSgdFigures, NoisyTrainingSettings
from airlock.methods.fine_tuning import FRESH_RATE, FineTuningSettings, fine_tuning, tune_of
from airlock.methods.floor import Floor, right
from airlock.methods.weights import recipe
from airlock.methods.weights.head_first import SHARE, HeadFirst, last_layer, noise_for
from airlock.nets import default_name, hugging_face, names
from airlock.nets.prefix import read_weights
from airlock.nets.registry import tuned
from airlock.nets.wide_resnet import LAYOUTS
from airlock.training import Run
from airlock.training.front_ends.public import SYNTHETIC
from airlock.training.gradients import Gradients
from airlock.training.losses import loss_for
from airlock.training.noise_aware_lr import bearable
from airlock.training.public_start import digest_of, fill, from_shapes, train_openly

S = TypeVar("S", bound=NoisyTrainingSettings)
Defaults = Mapping[str, Mapping[str, Any]]

_BY_NAME: dict[str, dict[str, Any]] = {
    "digits": {"steps": 40, "lot_size": 1797, "learning_rate": 0.3, "clip_norm": 1.0},
    "mnist": {"steps": 300, "lot_size": 2048, "learning_rate": 8.0, "clip_norm": 0.1, "ema": 0.95},
}


FROM_SHAPES = "The network's initial weights were made from synthetic images, which are drawn from a seed."
_HEAD = 2  # tensors that pre-trained weights need not fit: those of the head, which has an output for each class
_MAY_COST = 0.02  # the share of the public records that noise alone may cost a network that starts from them
_FEWEST_NUMBERS = 3  # of a text that can be predicted: no token, and two tokens


class GaussianSettings(FineTuningSettings):
    """The settings of DP-SGD for a network whose weights leave.

    Args:
        head_share: The share of the budget that first trains the last layer alone (`head_first`), where that is fresh
            on a network of transformers that brings weights; 0 trains everything at once.
        start: Where training starts from: the network that the public part of the split gives by itself ("public",
            which is also a floor, `methods.floor`), or random weights and those that a network brings ("own"). "auto"
            is "public" where there is a public part with classes and the network brings no weights.
        pretrain: What a built-in network of images knows before that: nothing if left out, "synthetic" for images of
            random shapes (`training.public_start`), or a file of weights by `airlock pretrain`.
    """

    head_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    start: Literal["auto", "public", "own"] = "auto"
    pretrain: str | None = None


def settings_for(config: ReleaseConfig, facts: Facts, model: type[S], by_name: Defaults = _BY_NAME) -> S:
    """The user's settings over the defaults for this data.

    Args:
        config: What was asked for.
        facts: What is public about the data.
        model: The method's settings.
        by_name: The method's defaults by data set.
    """
    defaults, records = by_name.get(facts.name), facts.expected("private", config.split)
    net = default_name(facts.shape, facts.vocabulary) if config.net == "auto" else config.net
    if hugging_face.is_named(net):
        found = fine_tuning(records, config.epsilon, net, config.settings.get("tune"))
        defaults = {key: value for key, value in found.items() if key in model.model_fields}
    elif defaults is None or net in LAYOUTS:
        found = recipe.defaults(net, records, config.epsilon, facts, config.settings)
        defaults = {key: value for key, value in found.items() if key in model.model_fields}
    if facts.target is not None and not hugging_face.is_named(net):
        # squared errors curve more than cross-entropies; chosen on made-up tables
        defaults = {**defaults, "learning_rate": 0.1}
    asked = {**defaults, **config.settings}
    if "learning_rate" in asked:
        return parse(model, asked, where="settings")
    settings = parse(model, {**asked, "learning_rate": 1.0}, where="settings")
    adam = settings.optimiser != "sgd"
    rate = FRESH_RATE if adam else recipe.learning_rate(net, config, records, settings)
    return settings.model_copy(update={"learning_rate": rate})


class TrainedWeights(dp_sgd_case.TriedTraining):
    """A network that is trained under noise leaves with all its weights."""

    channel: ClassVar[str] = "weights"
    distributed: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "A trained model with all its weights. Each step of its training saw the private records only through "
        "bounded contributions with random noise on top."
    )

    @classmethod
    def step_in_court(cls, epsilon: float, delta: float, facts: Facts) -> Case:
        """One step on a lot that every record enters with probability 1/2."""
        return dp_sgd_case.step_case(cls(dp_sgd_case.step_config(cls.method, epsilon, delta), facts))

    @classmethod
    def training_in_court(cls, epsilon: float, delta: float, count: int, facts: Facts) -> Canaries:
        """A whole release."""
        config = dp_sgd_case.canary_config(cls.method, epsilon, delta, count)
        return dp_sgd_case.training_canaries(cls(config, facts))


class Gaussian(DpSgd, TrainedWeights):
    """DP-SGD; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "a network by plain DP-SGD"
    rank: ClassVar[int] = 30
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression", "language"})
    texts: ClassVar[bool] = True
    reads_files: ClassVar[bool] = True
    fine_tunes: ClassVar[bool] = True
    # From random weights, and without a comparison, which of so few records would nearly always keep the result back.
    small: ClassVar[Mapping[str, object] | None] = {**ONE_STEP, "start": "own", "pretrain": None}
    settings: GaussianSettings
    _compared: Details = MappingProxyType({})  # what the comparison with public records alone found

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        if facts.task == "language":
            _check_language(config, facts)
        super().__init__(config, facts)
        self.tune = tune_of(self.net_name, self.settings.tune)
        self._check_start()
        if self.settings.pretrain == SYNTHETIC and self.net_name not in names():
            raise ConfigError(
                'a built-in network for settings.pretrain = "synthetic"', f"'{self.net_name}'",
                do="Name one, such as wrn-16-4, or give a file of weights.",
            )  # fmt: skip

    def parse_settings(self) -> GaussianSettings:
        """The user's settings over the defaults for this data."""
        return settings_for(self.config, self.facts, GaussianSettings)

    def _check_start(self) -> None:
        if self.settings.start == "public" and Floor.where_public(self.config, self.facts, self.records) is None:
            raise ConfigError(
                'a public part of the split, with classes, for settings.start = "public"',
                "none",
                "There would be nothing to start from.",
                "Set split.public, such as 0.2, or leave start out.",
            )

    @cached_property
    def floor(self) -> Floor | None:
        """The comparison with public records alone; None where training does not start from these."""
        asked, named = self.settings.start, hugging_face.is_named(self.net_name)
        if asked == "own" or (asked == "auto" and (self.brought or named)):
            return None
        return Floor.where_public(self.config, self.facts, self.records)

    def beside(self, noise_multiplier: float) -> dpa.DpEvent | None:
        """The comparison, or the last layer alone; where training starts from public records, that is not fresh."""
        first = self.head_first(noise_multiplier)
        if self.floor is not None:
            return self.floor.event
        return None if first is None else first.event

    def around(
        self,
        net: nn.Module,
        split: Split,
        figures: DpSgdFigures,
        randomness: Randomness,
        run: Run,
        recipe: NoisyTrainingSettings,
    ) -> tuple[NoisyTrainingSettings, Callable[[], dpa.DpEvent | None]]:
        """From the public network where there is one; afterwards `net` is whichever of both the comparison prefers.

        A last layer that is fresh is trained alone.
        """
        if self.settings.pretrain is not None:
            self._compared = self._pretrained(net, self.settings.pretrain, run)
        if self.floor is None:
            first, spent = self.head_first(figures.noise_multiplier), None
            if first is not None:
                spent = first.train(net, split.private, randomness.privacy.child("head first"), randomness.seed, run)
            return recipe, lambda: spent
        recipe, floor = self._started(net, split.public, figures, run, recipe), self.floor
        start, before = copy.deepcopy(net.state_dict()), right(net, split.private)

        def compare() -> dpa.DpEvent:
            gain, found = floor.unknown, torch.zeros((), dtype=torch.float64)
            if run.group.lead:
                stream = randomness.privacy.child("floor")
                gain = floor.measure(before, right(net, split.private), split.private, stream)
                found.fill_(gain.count)
            run.group.spread([found])
            gain = replace(gain, count=float(found))
            if not gain.there:
                net.load_state_dict(start)
            self._compared = {**self._compared, **floor.told(gain, split)}
            return gain.event

        return recipe, compare

    def _pretrained(self, net: nn.Module, source: str, run: Run) -> Details:
        """Put pre-trained weights into `net`; what the card says about them.

        Raises:
            NetError: They belong to another network.
        """
        if source == SYNTHETIC:
            weights = from_shapes(self.net_name, self.facts.shape, self.config.seed, run)
        else:
            weights = read_weights(Path(source).expanduser())
        if len(fill(net, weights)) > min(_HEAD, len(net.state_dict()) - 1):
            raise NetError(
                f"weights of {self.public_net_name} for records of this shape, for settings.pretrain",
                "those of another network",
                do=f"Make them: airlock pretrain synthetic --net {self.public_net_name} --shape ... --out FILE.",
            )
        run.group.spread(net.state_dict().values())
        return {"pretrained_sha256": digest_of(weights)}

    def _started(
        self, net: nn.Module, public: Records, figures: DpSgdFigures, run: Run, recipe: NoisyTrainingSettings
    ) -> NoisyTrainingSettings:
        """Train `net` on the public records; returns the recipe with a rate whose noise alone would not undo that."""
        train_openly(net, public, self.config.seed, run, self.settings.augment)
        run.group.spread(net.state_dict().values())  # public tensors, which another machine may compute differently
        if not len(public):
            return recipe
        noise, seed = figures.noise_on_mean_gradient, self.config.seed
        factor = torch.tensor(bearable(net, public, noise, recipe, _MAY_COST, seed), dtype=torch.float64)
        run.group.spread([factor])  # all processes take steps of one length
        return recipe.model_copy(update={"learning_rate": float(factor) * recipe.learning_rate})

    def measured(self, gradients: Gradients) -> Details:
        """By how much the private records help; it is paid for."""
        return {**super().measured(gradients), **self._compared}

    def assumptions(self) -> tuple[str, ...]:
        """Where training starts from public records, that these are not protected."""
        made = {None: (), SYNTHETIC: (FROM_SHAPES,)}.get(self.settings.pretrain, (BROUGHT,))
        return (*super().assumptions(), *made, *(() if self.floor is None else self.floor.assumptions))

    def fresh(self, seed: int) -> nn.Module:
        """With adapters, and with what is not trained frozen."""
        return tuned(super().fresh(seed), self.tune, self.settings.lora_rank, seed)

    @cached_property
    def head_share(self) -> float:
        """The share of the budget for the last layer alone; asked for, or by what the network is."""
        asked, possible = self.settings.head_share, False
        above = hugging_face.is_named(self.net_name) and self.tune != "last" and self.floor is None
        if above and self.facts.task == "classification":
            possible = self.brought and last_layer(self.untrained(), self.facts.outputs) is not None
        if asked and not possible:
            raise ConfigError(
                f"a fresh last layer for classes above what is trained, for settings.head_share = {asked:g}",
                f"'{self.public_net_name}' with tune = \"{self.tune}\"",
                "It is trained alone before the layers below it are, which bring weights.",
                "Leave head_share out.",
            )
        return (SHARE if asked is None else asked) if possible else 0.0

    def head_first(self, noise_multiplier: float) -> HeadFirst | None:
        """How the last layer is trained alone, if steps after it have this noise."""
        if not self.head_share:
            return None
        noise = noise_for(self.head_share, noise_multiplier, self.sampling_probability, self.settings.steps)
        return HeadFirst(noise, self.records, self.facts, self.class_weights, loss_for(self.facts))

    def extras(self) -> Details:
        """What is trained, where that is less than everything, and what is trained first."""
        how = f"lora, rank {self.settings.lora_rank}" if self.tune == "lora" else self.tune
        first = self.head_first(self.noise_multiplier())
        told: Details = {} if first is None else {"head_first_noise_multiplier": first.noise_multiplier}
        floor = {} if self.floor is None else {"starts_from": "the public records", **self.floor.details}
        return {**super().extras(), **({"tune": how} if self.tune != "full" else {}), **told, **floor}


def _check_language(config: ReleaseConfig, facts: Facts) -> None:
    """Refuse what is no language model, before anything else is said about it."""
    if not hugging_face.is_named(config.net) or config.net == TRANSFORMERS + MINILM:
        raise ConfigError(
            f'a net "{TRANSFORMERS}FOLDER" for task = "language"',
            f"'{config.net}'",
            "The next token is predicted by a causal language model, and none comes with the package.",
            "Name a folder that AutoModelForCausalLM opens, such as a GPT-2 or a Llama.",
        )
    if (facts.vocabulary or 0) < _FEWEST_NUMBERS:
        raise ConfigError(
            "a tokenizer of at least two tokens",
            "one token",
            "Of one token the next is always known.",
            "Take another tokenizer.",
        )

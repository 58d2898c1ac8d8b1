"""`twin`/`published`: DP-PG (Mao, Zhu, Hong, Zhu, Zhang and Zhong 2020, Algorithm 1), as published; a claim.

Train M models of one network on all private records; take each parameter's M values as a slice; draw one value from
every slice with probability ∝ exp(ε u/2Δu), where u is the estimated density in a window (`generate`); test the model;
draw again if its accuracy is not above a threshold. `generator = "dp-pgp"` publishes the most significant parameters
by clusters instead (`groups`).

Why nothing is promised. (1) The paper protects one *model* of the collection. Every model saw every record, so nothing
is even claimed for a record: the recorded event is a non-private one, ε is infinite and the unit "none". (2) Its
Corollary 1 takes Δu < 1/(M(M−1)). One model moves u by up to κ/M, κ = 2Φ(w/2b) − 1, so ε of one parameter is
κ(M − 1) times what is stated. (3) It takes the largest ε of all parameters for that of the model, by parallel
composition. The slices are columns of the same M rows: one model is in all of them, and N parameters compose to
ρ = N ε²/8 (`model_level_epsilon`). (4) That would hold for a public range and bandwidth; here they come from the
slices unless settings say otherwise. (5) Drawing again until the accuracy suffices is not accounted for; the figure
above counts every draw that may happen.

Which records judge matters. The paper tests on its test set, and so does `judged_on = "test"`: the choice then depends
on the test records, which no guarantee covers, and the reported accuracy is that of the chosen twin on the very records
that chose it. `judged_on = "public"` takes public records instead. Private records never judge.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import Claim, Guarantee, compute_epsilon, repeat
from airlock.accounting.terms import Status
from airlock.config import Fraction, Positive, ReleaseConfig, from_table, parse
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.mechanisms.density import DensityMechanism, published_sensitivity, sensitivity
from airlock.methods.case import Canaries, Case, Coins, Scores, canary_records, canary_split, toward_own_label
from airlock.methods.contract import NOTHING_ELSE_LEAVES, Channel, Details, Executed, NetworkArtefact, Plan
from airlock.nets import check, create, default_name
from airlock.papers.twin.generate import DensitySettings, Generated, draw, generate, spread
from airlock.papers.twin.groups import GroupSettings, check_sizes, publish_layers
from airlock.training import Recipe, Resident, Run, count_correct, outcomes_of
from airlock.training.ensembles.align import align
from airlock.training.ensembles.checkpoint_store import Collection, Slices, collect
from airlock.training.ensembles.ensemble import common_start, makes
from airlock.training.loop import Progress, Schedule

THEOREM = (
    "Corollary 1 of Mao et al. 2020, for one model of the collection, which does not hold: one parameter costs ε = "
    "{one:.4g}, all of them together {all:.4g} even if range and bandwidth were public; and for one record, which is "
    "in every model, nothing is claimed"
)
THEOREM_GROUPS = (
    "Corollary 4 of Mao et al. 2020, max(ε1, ε2 + ε3) for one model of the collection, which does not hold: which "
    "parameters are clustered is published without noise, so that no ε bounds it; one parameter that is drawn costs "
    "ε = {one:.4g}; and for one record, which is in every model, nothing is claimed"
)
NEEDED = (
    "NOT TRUE of this method: one record is in few of the models. Every model was trained on every record.",
    "NOT TRUE of the paper: one model moves a score by at most 1/(M(M − 1)). It moves it by up to κ/M.",
    "NOT TRUE of the paper: one model is in only one slice. It is in all of them.",
)
NOT_PUBLIC = (
    "NOT TRUE of this method: the range and the bandwidth of a slice are public. They follow from the models in it."
)
NOT_SELECTED = (
    "NOT TRUE of dp-pgp: which parameters are significant is public. It follows from the average of the models."
)
NOT_ALIGNED = "NOT TRUE of aligned models: the order of their units is public. It follows from all of them."
ASSUMPTIONS = (
    "Network, settings and class names were chosen without looking at the private records.",
    "The random choices of the twin's parameters stay secret and are not used again.",
    NOTHING_ELSE_LEAVES,
)
JUDGED_ON_TEST = "The twin was chosen by its accuracy on the test records, so that its accuracy there is flattering."
_NO_MODEL_LEVEL = {"model_level_epsilon": "none: what is significant is published without noise"}


# Settings, and what suits data sets that are known by name.

_BY_NAME: dict[str, dict[str, object]] = {
    "digits": {"models": 20, "epochs": 20, "batch_size": 64, "learning_rate": 0.05},
    "mnist": {"epochs": 10, "learning_rate": 0.1, "schedule": "cosine", "constant": "keep"},
}


class TwinSettings(DensitySettings):
    """The paper's training and sampling.

    Args:
        models: M.
        epochs: How often every model goes through the records, counted by their public number.
        batch_size: Of training.
        learning_rate: Of training.
        momentum: Of training.
        weight_decay: Of training.
        schedule: How the learning rate moves; the paper's is constant.
        precision: Of training, on a GPU.
        start: Whether all models start from the same weights. Independent starts permute the units, and slices then mix
            units that have nothing to do with each other.
        common_epochs: How many epochs of one training come first, from which all models continue; not in the paper. It
            keeps models that learn fast in one basin.
        sensitivity: Δu: "published", 1/(M(M−1)), or "correct", κ/M.
        threshold: δ_d, which the twin's accuracy has to exceed; at 0 the first twin is taken.
        tries: How many twins to draw at most.
        judged_on: Which records the accuracy is taken on.
        align: Bring the units of all models into one order before slicing (`training.ensembles.align`): with it, models
            that start apart can be used. Not in the paper.
        generator: "dp-pg"; or "dp-pgp", which publishes the most significant parameters of each layer of the average
            model by private clusters and noisy residuals, and draws the rest.
        significant: γ of dp-pgp, the share of a layer's parameters that are significant.
        clusters: k of dp-pgp, in a layer.
        draw_epsilon: ε1 of dp-pgp, of the parameters that are drawn; ε when left out.
        cluster_epsilon: ε2 of dp-pgp; a fifth of ε when left out.
        residual_epsilon: ε3 of dp-pgp; four fifths of ε when left out.
        printed: Line 21 of algorithm 2 of dp-pgp as printed, which reflects a parameter at its centroid.
        bound: Of dp-pgp, a public bound of a parameter's magnitude; as published, the largest selected one.
        residual_sensitivity: Δo of dp-pgp: the diameter of the "cluster" as published, or of the "range".
    """

    models: Annotated[int, Field(ge=2, le=10_000)] = 50
    epochs: Positive = 60
    batch_size: Annotated[int, Field(ge=1)] = 128
    learning_rate: Positive = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Schedule = "constant"
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    start: Literal["shared", "independent"] = "shared"
    common_epochs: Annotated[float, Field(ge=0)] = 0.0
    sensitivity: Literal["published", "correct"] = "published"
    threshold: Fraction = 0.0
    tries: Annotated[int, Field(ge=1, le=10_000)] = 10
    judged_on: Literal["test", "public"] = "test"
    align: bool = False
    generator: Literal["dp-pg", "dp-pgp"] = "dp-pg"
    significant: Annotated[float, Field(ge=0, le=1)] = 0.2
    clusters: Annotated[int, Field(ge=1)] = 8
    draw_epsilon: Positive | None = None
    cluster_epsilon: Positive | None = None
    residual_epsilon: Positive | None = None
    printed: bool = False
    bound: Positive | None = None
    residual_sensitivity: Literal["cluster", "range"] = "cluster"


def _check_together(settings: TwinSettings, config: ReleaseConfig) -> None:
    """Refuse settings that contradict each other, and keys that would be ignored: they hide a mistake.

    Raises:
        ConfigError: One of them.
    """
    _check_start(settings)
    _check_epsilons(settings, config.epsilon / config.tuning_runs)
    if settings.smoothing != 1 and not isinstance(settings.bandwidth, str):
        raise ConfigError(
            "settings.smoothing with a rule as bandwidth", "with a number", do="Multiply the number yourself."
        )
    if settings.threshold > 0 and settings.judged_on == "public" and not config.split.public:
        raise ConfigError(
            'public records for settings.judged_on = "public"',
            "none",
            do="Set split.public, or judge on the test records.",
        )


def _check_start(settings: TwinSettings) -> None:
    if settings.align and settings.range == "public":
        raise ConfigError(
            'settings.range = "data" for aligned models',
            '"public"',
            "A range around the start means nothing once units have changed places.",
            "Leave settings.range out, or set settings.align = false.",
        )
    if settings.common_epochs and (settings.range == "public" or settings.start == "independent"):
        raise ConfigError(
            'settings.start = "shared" and settings.range = "data" with settings.common_epochs',
            "another value",
            "The common start is trained on the private records: it is every model's start, and it is not public.",
        )


def _check_epsilons(settings: TwinSettings, epsilon: float) -> None:
    own = settings.draw_epsilon
    if own is not None and settings.generator == "dp-pg":
        raise ConfigError("settings.draw_epsilon with dp-pgp", "with dp-pg", do="Its ε is `epsilon`.")
    if own is not None and own > epsilon * (1 + 1e-9):
        raise ConfigError(
            "settings.draw_epsilon up to epsilon",
            f"{own:g} > {epsilon:g}",
            "The paper's claim for a model is the largest of ε1 and ε2 + ε3.",
            "Raise epsilon, or lower settings.draw_epsilon.",
        )


# The method.


class Published(Channel):
    """DP-PG as published: status claimed, unit none."""

    channel: ClassVar[str] = "twin"
    method: ClassVar[str] = "published"
    title: ClassVar[str] = "parameters drawn where models of all records lie, as published"
    status: ClassVar[Status] = "claimed"
    leaves: ClassVar[str] = (
        "A model that was not trained: each of its weights was drawn at random near the values that this weight has in "
        "many models, and every one of these was trained on all private records without protection."
    )
    unproven: ClassVar[str] = (
        "The paper's proof fails: it protects one of the trained models, not a record; its sensitivity is too small; "
        "and it counts one parameter instead of all of them."
    )
    sound_method: ClassVar[str] = "sharded"

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = parse(TwinSettings, {**_BY_NAME.get(facts.name, {}), **config.settings}, where="settings")
        self.records = facts.expected("private", config.split)
        self.net_name = default_name(facts.shape) if config.net == "auto" else config.net
        _check_together(self.settings, config)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One model of the collection more or less, with a public range and bandwidth: the paper's own claim."""
        return case_of_model(cls(case_config(epsilon, delta), CASE_FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release: records, about which the paper claims nothing and its reader may hope for ε."""
        return _canaries_of_records(cls(_canary_config(epsilon, delta), canary_facts(count)))

    @property
    def groups(self) -> GroupSettings | None:
        """Of dp-pgp; ε2 and ε3 together are at most the claimed ε, which is their layer's."""
        s, epsilon = self.settings, self.config.epsilon / self.config.tuning_runs
        if s.generator == "dp-pg":
            return None
        clusters, residuals = s.cluster_epsilon or epsilon / 5, s.residual_epsilon or epsilon * 4 / 5
        if clusters + residuals > epsilon * (1 + 1e-9):
            raise ConfigError(
                "settings.cluster_epsilon + settings.residual_epsilon up to epsilon",
                f"{clusters:g} + {residuals:g} > {epsilon:g}",
                "The paper's claim for a model is the largest of ε1 and ε2 + ε3.",
                "Raise epsilon, or lower one of them.",
            )
        return GroupSettings(
            share=s.significant,
            clusters=s.clusters,
            cluster_epsilon=clusters,
            residual_epsilon=residuals,
            printed=s.printed,
            bound=s.bound,
            sensitivity=s.residual_sensitivity,
        )

    @property
    def judged(self) -> bool:
        """Whether a twin may be rejected."""
        return self.settings.threshold > 0

    @property
    def tries(self) -> int:
        """How many twins are drawn at most."""
        return self.settings.tries if self.judged else 1

    @property
    def mechanism(self) -> DensityMechanism:
        """One parameter's draw, with the paper's ε and Δu; runs that are repeated share ε."""
        s = self.settings
        published = s.sensitivity == "published"
        delta_u = published_sensitivity(s.models) if published else sensitivity(s.models, s.window)
        epsilon = s.draw_epsilon or self.config.epsilon / self.config.tuning_runs
        return DensityMechanism(epsilon, delta_u, s.window, s.grid_points)

    @property
    def recipe(self) -> Recipe:
        """How one model is trained on its own; its steps follow from the public number of records."""
        s = self.settings
        return Recipe(
            steps=self._steps(s.epochs),
            learning_rate=s.learning_rate,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
            schedule=s.schedule,
            precision=s.precision,
        )

    def _steps(self, epochs: float) -> int:
        return max(1, round(epochs * math.ceil(self.records / self.settings.batch_size)))

    def plan(self) -> Plan:
        """What is claimed and what it would really cost; touches no record."""
        net = self.net()
        if groups := self.groups:
            check_sizes(net, groups)
        parameters = sum(p.numel() for p in net.parameters())
        s = self.settings
        details: dict[str, str | int | float] = {
            "net": self.net_name,
            "parameters": parameters,
            "models": s.models,
            "start": s.start,
            "common_epochs": s.common_epochs,
            "steps": self.recipe.steps,
            "batch_size": s.batch_size,
            "learning_rate": s.learning_rate,
            "schedule": s.schedule,
            "bandwidth": s.bandwidth,
            "smoothing": s.smoothing,
            "window": s.window,
            "grid_points": s.grid_points,
            "range": s.range,
            "most_tries": self.tries,
            "aligned": "yes" if s.align else "no",
            "generator": s.generator,
            **self._group_details(),
            **self.costs(parameters),
        }
        events = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)
        return Plan(self.channel, self.method, self.leaves, self._guarantee(events, parameters), details)

    def _group_details(self) -> Details:
        groups = self.groups
        if groups is None:
            return {}
        return {
            "significant_share": groups.share,
            "clusters": groups.clusters,
            "claimed_cluster_epsilon": groups.cluster_epsilon,
            "claimed_residual_epsilon": groups.residual_epsilon,
        }

    def costs(self, parameters: int) -> Details:
        """The paper's figures and the right ones, for one model of the collection."""
        made, models = self.mechanism, self.settings.models
        rho, whole = self._model_level(parameters)
        return {
            "claimed_epsilon_per_parameter": made.epsilon,
            "claimed_score_sensitivity": made.sensitivity,
            "score_sensitivity": sensitivity(models, self.settings.window),
            "epsilon_per_parameter": self.parameter_epsilon,
            **({"model_level_rho": rho, "model_level_epsilon": whole} if self.groups is None else _NO_MODEL_LEVEL),
            "record_level": "none: every model was trained on every record",
        }

    @property
    def parameter_epsilon(self) -> float:
        """ε of one parameter's draw for one model more or less, with the right sensitivity."""
        return self.mechanism.true_epsilon(self.settings.models) + self.mechanism.slack

    def _model_level(self, parameters: int) -> tuple[float, float]:
        """ρ and ε of all draws for one model more or less, if range and bandwidth were public."""
        one = self.parameter_epsilon
        draws = parameters * self.tries * self.config.tuning_runs
        rho = draws * one**2 / 8
        bound = compute_epsilon(dpa.ZCDpEvent(rho), self.config.delta).epsilon
        if math.isinf(bound):
            bound = rho + 2 * math.sqrt(rho * math.log(1 / self.config.delta))
        return rho, min(draws * one, bound)

    def net(self) -> nn.Module:
        """A freshly initialised network; the seed is public and the check touches no record."""
        check(self._fresh(), self.net_name, self.facts.shape, len(self.facts.classes))
        return self._fresh()

    def _fresh(self) -> nn.Module:
        return create(self.net_name, self.facts.shape, len(self.facts.classes), self.config.seed)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train the collection, draw twins until one is good enough, and leave only that one."""
        judges = self._judges(split)
        with _folder(run) as folder:
            slices = self.aligned(self.collection(split, run, folder).at(), run.device)
            net, made, tries = self._accepted(slices, judges, randomness.privacy.child("twin"), run)
        executed = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)
        utility = outcomes_of(net, split.test)  # before it leaves a GPU
        left = NetworkArtefact.leaving(net, self.net_name, self.facts)
        return Executed(left, executed, utility, inside={"tries": tries, "constant_slices": made.constant})

    def collection(self, split: Split, run: Run, folder: Path, stages: Sequence[int] = ()) -> Collection:
        """The trained models, after the last step and after those in `stages`; they stay where the records are."""
        s, seed = self.settings, self.config.seed
        make = makes(self.net_name, self.facts.shape, len(self.facts.classes), seed, shared=s.start == "shared")
        data = Resident(split.private if len(split.private) else _nobody(self.facts), run.device)
        if s.common_epochs:
            first = self.recipe.model_copy(update={"steps": self._steps(s.common_epochs), "schedule": "constant"})
            place = folder.with_name(f"{folder.name}-start")
            make = common_start(make, data, first, seed, run, place, batch_size=s.batch_size)
        return collect(make, s.models, data, self.recipe, seed, run, folder, stages, batch_size=s.batch_size)

    def aligned(self, slices: Slices, device: torch.device) -> Slices:
        """The models with their units in one order, if that is asked for; all of them are in memory then."""
        if not self.settings.align:
            return slices
        return Slices.of(align(slices.ensemble(), device=device).ensemble)

    def twin(self, slices: Slices, stream: Stream, device: torch.device) -> tuple[nn.Module, Generated]:
        """Draw a twin, on the device; the stream is secret."""
        made = generate(slices, self.settings, self.mechanism, self.centre(), stream, device)
        if groups := self.groups:
            publish_layers(made.values, slices, groups, stream.child("groups"))
        return slices.model(made.values).to(device), made

    def _judges(self, split: Split) -> Records:
        return split.test if self.settings.judged_on == "test" else split.public

    def _accepted(self, slices: Slices, judges: Records, stream: Stream, run: Run) -> tuple[nn.Module, Generated, int]:
        """The first twin whose accuracy is above the threshold (any, where no records judge); how many were drawn."""
        for tried in range(1, self.tries + 1):
            net, made = self.twin(slices, stream.child(tried), run.device)
            _report(run.progress, tried, self.tries)
            judged = self.judged and len(judges) > 0
            if not judged or count_correct(net, judges) > self.settings.threshold * len(judges):
                return net, made, tried
        raise Refused(
            f"a twin with an accuracy above {self.settings.threshold:g}",
            f"none in {self.tries}",
            "Nothing was released.",
            "Lower settings.threshold, train better models, or raise epsilon; more tries cost more.",
        )

    def centre(self) -> Tensor | None:
        """The weights that all models start from, which are public; None where each model has its own start."""
        if self.settings.start == "independent":
            return None
        return torch.cat([p.detach().flatten() for p in self._fresh().parameters()])

    def _guarantee(self, events: dpa.DpEvent, parameters: int) -> Guarantee:
        """Nothing is promised; the paper's claim is recorded."""
        s = self.settings
        words = THEOREM if s.generator == "dp-pg" else THEOREM_GROUPS
        theorem = words.format(one=self.parameter_epsilon, all=self._model_level(parameters)[1])
        public = s.range == "public" and not isinstance(s.bandwidth, str)
        chosen = (JUDGED_ON_TEST,) if self.judged and s.judged_on == "test" else ()
        assumptions = (
            *NEEDED,
            *(() if public else (NOT_PUBLIC,)),
            *((NOT_SELECTED,) if s.generator == "dp-pgp" else ()),
            *((NOT_ALIGNED,) if s.align else ()),
            *ASSUMPTIONS,
            *chosen,
        )
        claim = Claim(self.config.epsilon, self.config.delta, theorem)
        return self.promise(events, assumptions, unit="none", claim=claim)


def _nobody(facts: Facts) -> Records:
    """A blank record, to train on where there is none."""
    return Records(np.zeros((1, *facts.shape), np.float32), np.zeros(1, np.int64))


def _report(progress: Progress | None, done: int, most: int) -> None:
    if progress:
        progress("drawing twins", done, most)


@contextlib.contextmanager
def _folder(run: Run) -> Iterator[Path]:
    """Where the collection lies until the twin is drawn; kept for a resume where the run keeps checkpoints."""
    if run.checkpoint is None:
        with tempfile.TemporaryDirectory(prefix="airlock-collection-") as name:
            yield Path(name) / "collection"
        return
    folder = run.checkpoint / "collection"
    yield folder
    shutil.rmtree(folder)
    shutil.rmtree(folder.with_name(f"{folder.name}-start"), ignore_errors=True)
    if not any(run.checkpoint.iterdir()):
        run.checkpoint.rmdir()


# The case for the court.
#
# The claim is about one model of the collection, so that is what differs: M models, far from each other in every one of
# some hundred parameters, with and without the last of them. (Were all others close together, their scores would hide
# it.) Range and bandwidth are public here: taken from the slices, as published, they alone would tell the two apart.
# What is scored are the drawn parameters: the sum of their log-likelihood ratios, which is the best score there is, and
# how many of them lie where only the last model is.
#
# The canaries are about records, for which the paper claims nothing: every canary is in every model, and the twin has
# its weights. Each has its own input to a linear network, so that its weights stay at 0 if it is left out.

CASE_MODELS, _INPUTS, _CLASSES = 20, 100, 2
_PARAMETERS = (_INPUTS + 1) * _CLASSES  # of `linear_net`
_APART, _BANDWIDTH = 0.3, 0.05
_LAST = _APART * (CASE_MODELS - 1) / 2
_SIZE = 4.0
CASE_FACTS = Facts("court", (_INPUTS,), tuple(map(str, range(_CLASSES))), 1000, 1, "made up for the court")
PAIR = (
    f"{CASE_MODELS} models of {_PARAMETERS} parameters, with and without one that is far from all others in each of "
    "them; range and bandwidth public"
)
STATISTICS = ("the log-likelihood ratio of all parameters", "how many parameters lie near the one model's")
_CANARIES = "one release on {count:,} canaries, each with its own weight and in every model of the collection, or out"
_CANARY_SCORE = "the canary's own weights in the twin, towards its label"


def case_config(epsilon: float, delta: float) -> ReleaseConfig:
    """The paper's sampling, with a public range and bandwidth."""
    settings = {"models": CASE_MODELS, "bandwidth": _BANDWIDTH, "range": "public", "radius": 3.0}
    return _config(epsilon, delta, settings)


def _canary_config(epsilon: float, delta: float) -> ReleaseConfig:
    """A small collection, with everything as published; canaries that are out leave their slices constant."""
    settings = {"models": 10, "epochs": 2.0, "batch_size": 32, "learning_rate": 1.0, "constant": "keep"}
    return _config(epsilon, delta, settings)


def _config(epsilon: float, delta: float, settings: Mapping[str, object]) -> ReleaseConfig:
    table = {
        "channel": "twin",
        "method": "published",
        "data": "court",
        "net": f"{__name__}:linear_net",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": dict(settings),
    }
    return from_table(table)


def linear_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer, all zeros."""
    net = nn.Linear(shape[0], classes)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def canary_facts(count: int) -> Facts:
    """One input per canary."""
    return Facts("court", (count,), tuple(map(str, range(_CLASSES))), count, 1, "made up for the court")


def neighbours() -> tuple[Tensor, Tensor]:
    """With and without the last model: (models, parameters)."""
    places = _APART * (torch.arange(CASE_MODELS, dtype=torch.float64) - (CASE_MODELS - 1) / 2)
    both = places[:, None].repeat(1, _PARAMETERS)
    return both, both[:-1]


def case_of_model(channel: Published) -> Case:
    """The paper's claim, tried with one model more or less; its ε and Δu are those of M models on both sides."""
    settings, mechanism = channel.settings, channel.mechanism
    sides = dict(zip((True, False), neighbours(), strict=True))
    centre = torch.zeros(_PARAMETERS, dtype=torch.float64)
    bandwidth, low, high = spread(sides[True], settings, centre)
    one, other = (mechanism.probabilities(sides[known], low, high, bandwidth)[0] for known in (True, False))
    ratio = one.log() - other.log()  # the same for every parameter

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        scores = np.empty((count, len(STATISTICS)))
        for i in range(count):
            values, _ = draw(sides[with_record], settings, mechanism, centre, stream.child(i))
            place = ((values - low) / (high - low) * mechanism.points - 0.5).round().long()
            scores[i] = float(ratio[place].sum()), int(((values - _LAST).abs() < settings.window * bandwidth).sum())
        return scores

    claim = channel.plan().guarantee.claim
    assert claim is not None
    return Case(claim, PAIR, STATISTICS, run)


def _canaries_of_records(channel: Published) -> Canaries:
    """The same ε, read as one about records."""
    count = channel.facts.shape[0]
    every = canary_records(_SIZE * np.eye(count, dtype=np.float32))

    def run(coins: Coins, stream: Stream) -> Scores:
        split = canary_split(channel.facts, every, coins)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        weight: Tensor = next(net.parameters()).detach().double()
        return toward_own_label((weight[0] - weight[1]).numpy())

    claim = channel.plan().guarantee.claim
    assert claim is not None
    return Canaries(claim, count, _CANARIES.format(count=count), _CANARY_SCORE, run)

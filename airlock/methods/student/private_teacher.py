"""`student`/`private-teacher`: a teacher trained on private records under DP-SGD; a student may ask it anything.

An auxiliary teacher learns from public records alone. The teacher starts from its weights and is trained on the private
records by DP-SGD (`methods.dp_sgd`). The student then takes hints from it, and learns in rounds from public labels and
from its answers about public images and variations of them, for as long as it likes.

Proof. The start, the network and all settings follow from public records and figures. DP-SGD trains the teacher from
there, with its events under add-remove; the student is computed from the teacher, public records and public seeds:
post-processing. Nothing else sees a private record.

If classes have no public record (`split.public_without`), the student never sees one of theirs, and neither does the
auxiliary teacher, which therefore learns never to name them. Their rows of its last layer are set to the mean of the
others, so that private training does not have to undo that. The student then learns from the teacher's answers instead
of labels.

The teacher is kept in the vault's checkpoint until the release is made, with a digest of the records and of everything
else it was made from: a resumed run takes it from there, or is refused. The keys of the noise are never kept.

`settings.private` is DP-SGD's own table, with the names that it has in `weights`/`gaussian`. Its defaults suit a
teacher that has already learnt from public records: small steps. They follow from public facts alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

import dp_accounting as dpa
import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Place, Randomness
from airlock.methods import dp_sgd_case
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import TEACHER, Details, Executed, NetworkArtefact, Plan
from airlock.methods.dp_sgd import ASSUMPTIONS, BROUGHT, ONE_STEP, DpSgd, DpSgdFigures, is_brought
from airlock.methods.fine_tuning import FineTuningSettings, fine_tuning, tune_of
from airlock.methods.student.learning import (
    HINTS,
    StudentTraining,
    check_split,
    for_the_task,
    hint_layers,
    with_free_rounds,
)
from airlock.methods.student.teachers import (
    TeacherSettings,
    for_vault,
    lacking,
    make_pair,
    measured,
    net_names,
    objective_of,
    settings_for,
    taught,
)
from airlock.nets import hugging_face, public_name
from airlock.nets.hugging_face import merged
from airlock.nets.registry import tuned
from airlock.training import Resident, Run, checkpoint, outcomes_of
from airlock.training.devices import to_input
from airlock.training.distillation.distil import (
    Asked,
    Cached,
    DistillationObjective,
    LabelLoss,
    MatchLoss,
    SoftLoss,
    SquaredLoss,
    TeacherAnswers,
)
from airlock.training.distillation.selection import Name as SelectName
from airlock.training.distillation.variations import Balanced
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.gradients import Gradients
from airlock.training.noise_aware_lr import bearable
from airlock.training.outcomes import Outcomes
from airlock.training.per_sample import outputs
from airlock.training.stages import Stages

PUBLIC = "The public records may be known to everyone: they are used without protection."
_AUXILIARY, _TEACHER = "auxiliary", "teacher"
_STATE, _DRAWN = "gradients/", "drawn"
_LABEL = "training the teacher under noise"
# The share of public records that noise alone may cost the public teacher; more if private ones bring whole classes.
_MAY_COST, _MAY_COST_FOR_CLASSES = 0.02, 0.1
_BY_NAME: dict[str, dict[str, Any]] = {
    "digits": {"steps": 40, "lot_size": 1797, "learning_rate": 0.05, "clip_norm": 1.0},
    "mnist": {"steps": 300, "lot_size": 4096, "learning_rate": 1.0, "clip_norm": 0.1, "ema": 0.95},
    "cifar10": {"steps": 200, "lot_size": 4096, "learning_rate": 0.5, "clip_norm": 0.1, "ema": 0.95},
}

# Where records are texts: no layers of two networks correspond by themselves, and a small encoder bears short steps.
_OF_TEXTS: dict[str, object] = {"hint_epochs": 0, "learning_rate": 5e-4, "schedule": "linear"}
# A public teacher that brings what it knows: few epochs, and steps of the usual size for adapters and for whole ones.
_OF_TRANSFORMERS: dict[str, object] = {"teacher_epochs": 3, "teacher_batch": 32, "teacher_learning_rate": 5e-4}

_ROUNDS_FOR_CLASSES = 20
_OF_CLASSES = ("select", "temperature", "match")  # settings
_RATE_OF_NUMBERS = 0.1


class PrivateTeacherSettings(TeacherSettings):
    """A teacher under DP-SGD, and a student whose queries cost nothing.

    Args:
        private: How the teacher is trained on the private records: the settings of `weights`/`gaussian`.
        private_layers: How many of the teacher's last layers are trained on private records; all when left out. The
            others stay as the public records left them, and get no noise.
        rehearse: Halve the learning rate until noise alone would cost the public teacher at most 2% of the public
            records (10% if classes have none; of R² where a number is predicted, 0.02); when left out, done if
            private.learning_rate is left out too.
        labels: What the student learns from in addition to queries: "public" labels, or the "teacher"'s answers
            instead; "auto" takes the teacher's if classes have no public record, because labels would teach the student
            never to name them.
        match: The distance from the teacher's answers: that of "logits", or of "softened" outputs as in the paper;
            "auto" takes logits if classes have no public record.
        varied: Also ask about variations of public images (`training.distillation.variations`); when left out, done if
            classes have no public record.
        rounds: As in the paper, or more if public records are few, so that the student makes 2,000 steps; at least 20
            if classes have no public record, since the student learns those from the teacher alone.
        select: As in the paper; any choice is free here.
        select_rate: All public records.
    """

    private: FineTuningSettings
    private_layers: Annotated[int, Field(ge=1)] | None = None
    rehearse: bool | None = None
    labels: Literal["auto", "public", "teacher"] = "auto"
    match: Literal["auto", "logits", "softened"] = "auto"
    varied: bool | None = None
    select: SelectName = "random"
    select_rate: Annotated[float, Field(gt=0, le=1)] = 1.0


def private_settings_for(config: ReleaseConfig, facts: Facts) -> PrivateTeacherSettings:
    """The user's settings over the defaults for this data.

    Raises:
        ConfigError: Settings that contradict each other or ask for what is not there.
    """
    given = config.settings.get("private", {})
    if not isinstance(given, dict):
        raise ConfigError("a table [settings.private] with the settings of private training", "another value")
    records = facts.expected("private", config.split)
    defaults, own = _BY_NAME.get(facts.name) or _general(records), dict[str, object]()
    if facts.target is not None:  # as in `weights`/`gaussian`
        defaults = {**defaults, "learning_rate": _RATE_OF_NUMBERS}
    if facts.vocabulary is not None:
        own |= _OF_TEXTS
    teacher, _ = net_names(str(config.settings.get("teacher", "auto")), config.net, facts)
    if hugging_face.is_named(teacher):
        defaults = fine_tuning(records, config.epsilon, teacher, given.get("tune"))
        own |= _OF_TRANSFORMERS
    own["rehearse"] = "learning_rate" not in given
    if facts.without(config.split):
        own["rounds"] = _ROUNDS_FOR_CLASSES
    table = {**own, **config.settings, "private": {**defaults, **given}}
    settings = settings_for(config.model_copy(update={"settings": table}), facts, PrivateTeacherSettings)
    settings = for_the_task(settings, config, facts, _OF_CLASSES)
    settings = with_free_rounds(settings, config, facts, queries_for(settings, config, facts))
    if settings.varied and len(facts.shape) != 3:
        raise ConfigError("images for settings.varied = true", f"records of shape {facts.shape}")
    return settings


def queries_for(settings: PrivateTeacherSettings, config: ReleaseConfig, facts: Facts) -> int:
    """Query samples in an epoch, as a public figure."""
    return settings.queries or max(1, round(settings.select_rate * facts.expected("public", config.split)))


def _general(records: int) -> dict[str, Any]:
    """Large lots and a few hundred small steps."""
    lot = max(min(records, 256), records // 10)
    return {"steps": 300, "lot_size": lot, "learning_rate": 1.0, "clip_norm": 0.1, "ema": 0.95}


class PrivateTeacher(DpSgd, dp_sgd_case.TriedTraining):
    """The student of a teacher under DP-SGD; status proven, unit record or person, relation add-remove."""

    channel: ClassVar[str] = "student"
    method: ClassVar[str] = "private-teacher"
    title: ClassVar[str] = "a small network taught by a teacher under DP-SGD"
    rank: ClassVar[int] = 50
    compact: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression"})
    texts: ClassVar[bool] = True
    fine_tunes: ClassVar[bool] = True
    settings: FineTuningSettings
    small: ClassVar[Mapping[str, object] | None] = {"private": ONE_STEP}
    leaves: ClassVar[str] = (
        "A compact model that learnt from public records and from a teacher's answers. Each step of the teacher's "
        "training saw the private records only through bounded contributions with random noise on top."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.teacher_name, self.net_name = net_names(self.learning.teacher, config.net, facts)
        self.tune = tune_of(self.teacher_name, self.settings.tune)
        if self.learning.private_layers is not None and hugging_face.is_named(self.teacher_name):
            raise ConfigError(
                "settings.private.tune for a teacher of transformers",
                f"settings.private_layers = {self.learning.private_layers}",
                "Of such a network the last layers are not those that are best trained.",
                'Take tune = "last", "bias" or "lora".',
            )
        self.layers = hint_layers(self.learning, self.teacher_name, self.net_name)
        self.unseen = facts.without(config.split)

    @classmethod
    def step_in_court(cls, epsilon: float, delta: float, facts: Facts) -> Case:
        """One step of the teacher on every record; `weights`/`gaussian` tries lots, which are drawn in the same way."""
        private = {**dp_sgd_case.STEP_SETTINGS, "lot_size": dp_sgd_case.PUBLIC_RECORDS}
        return dp_sgd_case.step_case(cls(_court_config("tiny_net", private, epsilon, delta), facts))

    @classmethod
    def training_in_court(cls, epsilon: float, delta: float, count: int, facts: Facts) -> Canaries:
        """The teacher's whole private training; a student, which is computed from it, tells no more."""
        made = cls(_court_config("canary_net", dp_sgd_case.canary_settings(count, lot=0.25), epsilon, delta), facts)
        return dp_sgd_case.training_canaries(made, made.trained)

    @cached_property
    def learning(self) -> PrivateTeacherSettings:
        """All settings; `settings` are those of the private training."""
        return private_settings_for(self.config, self.facts)

    def parse_settings(self) -> FineTuningSettings:
        """Those under settings.private."""
        return self.learning.private

    @property
    def queries(self) -> int:
        """Query samples in an epoch, as a public figure."""
        return queries_for(self.learning, self.config, self.facts)

    @property
    def by_teacher(self) -> bool:
        """Whether the teacher's answers replace the public labels."""
        return self.learning.labels == "teacher" or (self.learning.labels == "auto" and bool(self.unseen))

    @property
    def by_logits(self) -> bool:
        """Whether logits are matched rather than softened outputs."""
        return self.learning.match == "logits" or (self.learning.match == "auto" and bool(self.unseen))

    @property
    def _matched(self) -> str:
        """For the card."""
        if self.facts.task == "regression":
            return "numbers"
        return "logits" if self.by_logits else "softened"

    @property
    def varied(self) -> bool:
        """Whether the teacher is asked about variations too."""
        asked = self.learning.varied
        return asked if asked is not None else bool(self.unseen) and len(self.facts.shape) == 3

    @property
    def may_cost(self) -> float:
        """The share of public records that noise alone may cost the public teacher."""
        return _MAY_COST_FOR_CLASSES if self.unseen else _MAY_COST

    def net(self) -> nn.Module:
        """The teacher, freshly initialised; only the layers that are trained on private records are trainable."""
        net = self._pair()[0]
        wanted = self.learning.private_layers
        if wanted is None:
            return net
        layers = [layer for layer in net.modules() if any(True for _ in layer.parameters(recurse=False))]
        if wanted > len(layers):
            raise ConfigError(
                f"at most {len(layers)} settings.private_layers, as many as '{self.teacher_name}' has", f"{wanted}"
            )
        net.requires_grad_(False)
        for layer in layers[-wanted:]:
            layer.requires_grad_(True)
        return net

    def plan(self) -> Plan[DpSgdFigures]:
        """DP-SGD's, with details about teacher and student; touches no record."""
        plan, s = super().plan(), self.learning
        big, small = (sum(p.numel() for p in net.parameters()) for net in self._untuned())
        hint, guide = self.layers or ("none", "none")
        more: dict[str, str | int | float] = {
            "net": self.public_net_name,
            "parameters": small,
            "bytes": 4 * small,
            "teacher": public_name(self.teacher_name),
            "teacher_parameters": big,
            "compression": round(big / small, 2),
            "hint": hint,
            "guide": guide,
            "hint_epochs": s.hint_epochs,
            "rounds": s.rounds,
            "self_epochs": s.self_epochs,
            "distil_epochs": s.distil_epochs,
            "labels": "the teacher's answers" if self.by_teacher else "public",
            "match": self._matched,
            "queries": "public images and variations of them" if self.varied else "public records",
            **lacking(self.facts, self.config),
        }
        return replace(plan, details={**plan.details, **more})

    def execute(self, plan: Plan[DpSgdFigures], split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train the teacher under noise, let it teach the student, and release only the student."""
        check_split(split, self.facts, self.learning.queries)
        settings = {"settings": self.learning.model_dump(mode="json"), "seed": randomness.seed}
        stages = Stages(run, {**settings, **self.weighing})
        auxiliary = self._auxiliary(split.public, randomness.seed, stages)
        recipe = self._rehearsed(auxiliary, split.public, plan.figures)
        teacher, gradients, executed = self._privately(auxiliary, recipe, split, plan.figures, randomness, run)
        net = self._student(teacher, split.public, randomness.seed, stages)
        stages.forget(_AUXILIARY, _TEACHER, HINTS)
        utility = outcomes_of(net, split.test, self.facts.task)
        more = {"private_learning_rate": recipe.learning_rate, **self.measured(gradients)}
        of_teachers = {
            **measured("public_teacher", auxiliary, split.test, self.facts),
            **measured("teacher", teacher, split.test, self.facts),
        }
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.public_net_name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **more},
            secrets={TEACHER: for_vault(merged(teacher))},
            inside={**of_teachers, **self._of_unseen(utility)},
        )

    def assumptions(self) -> tuple[str, ...]:
        """Those of DP-SGD, and that public records are not covered."""
        brought = any(map(is_brought, (self.teacher_name, self.net_name)))
        return (*ASSUMPTIONS, PUBLIC, *([BROUGHT] if brought else []))

    def extras(self) -> Details:
        """The teacher's files and what of it is trained, where it is a network of transformers."""
        if not hugging_face.is_named(self.teacher_name):
            return super().extras()
        how = f"lora, rank {self.settings.lora_rank}" if self.tune == "lora" else self.tune
        return {**super().extras(), "teacher_sha256": hugging_face.digest(self.teacher_name), "tune": how}

    def trained(self, split: Split, randomness: Randomness) -> nn.Module:
        """The teacher after private training from its initial weights, for the court."""
        net = self.net()
        self.train(net, split, self.planned.figures, randomness, Run())
        return net

    def _pair(self) -> tuple[nn.Module, nn.Module]:
        """Teacher and student, freshly initialised; the seed is public."""
        teacher, student = self._untuned()
        return tuned(teacher, self.tune, self.settings.lora_rank, self.config.seed), student

    def _untuned(self) -> tuple[nn.Module, nn.Module]:
        """The same without adapters."""
        return make_pair((self.teacher_name, self.net_name), self.layers, self.facts, self.config.seed)

    def _auxiliary(self, public: Records, seed: int, stages: Stages) -> nn.Module:
        """The public teacher, without an opinion about classes that it never saw."""
        learnt = objective_of(self.facts, self.class_weights)
        net = taught(_AUXILIARY, self._pair()[0], public, self.learning, seed, stages, learnt)
        _forget_classes(net, self.unseen, len(self.facts.classes))
        return net

    def _rehearsed(self, start: nn.Module, public: Records, figures: DpSgdFigures) -> FineTuningSettings:
        """The settings, with a learning rate that the noise allows if asked for; public records alone decide."""
        if not self.learning.rehearse:
            return self.settings
        net = self.started(start, next(start.parameters()).device)
        noise, seed = figures.noise_on_mean_gradient, self.config.seed
        factor = bearable(net, public, noise, self.settings, self.may_cost, seed, self.facts.task)
        return self.settings.model_copy(update={"learning_rate": factor * self.settings.learning_rate})

    def started(self, start: nn.Module, device: torch.device) -> nn.Module:
        """The teacher as private training starts with it."""
        net = self.net().to(device)
        net.load_state_dict(start.state_dict())
        return net

    def _privately(
        self,
        start: nn.Module,
        recipe: FineTuningSettings,
        split: Split,
        figures: DpSgdFigures,
        randomness: Randomness,
        run: Run,
    ) -> tuple[nn.Module, Gradients, dpa.DpEvent]:
        """The teacher, trained on the private records; or the one that an interrupted run of the same records kept."""
        net = self.started(start, run.device)
        if run.checkpoint is None:
            return net, *self.train(net, split, figures, randomness, run, _LABEL, recipe)
        file = run.checkpoint / f"{_TEACHER}.safetensors"
        mark = self._mark(net, split, figures, randomness)
        if run.resume and file.exists():
            return net, *self._resumed(net, read(file, mark), split, figures, randomness, run)
        own = replace(run, checkpoint=run.checkpoint / _TEACHER)
        gradients, executed = self.train(net, split, figures, randomness, own, _LABEL, recipe)
        drawn = torch.tensor([place in randomness.privacy.drawn_on for place in get_args(Place)])
        state = {f"{_STATE}{name}": value for name, value in gradients.state().items()}
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        checkpoint.write(file, {**weights, **state, _DRAWN: drawn}, {"mark": mark})
        return net, gradients, executed

    def _resumed(
        self,
        net: nn.Module,
        kept: Mapping[str, Tensor],
        split: Split,
        figures: DpSgdFigures,
        randomness: Randomness,
        run: Run,
    ) -> tuple[Gradients, dpa.DpEvent]:
        """Load what was kept into the network; nothing is drawn."""
        data = self.resident(split.private, run.device)
        gradients, sampler = self.parts(net, split, data, figures, randomness, run)
        gradients.load_state({k.removeprefix(_STATE): v for k, v in kept.items() if k.startswith(_STATE)})
        net.load_state_dict({name: kept[name] for name in net.state_dict()})
        places = [place for place, drawn in zip(get_args(Place), kept[_DRAWN].tolist(), strict=True) if drawn]
        randomness.privacy.note_drawn(*places)
        return gradients, self.whole(self.executed_step(sampler, gradients), figures.steps)

    def _mark(self, net: nn.Module, split: Split, figures: DpSgdFigures, randomness: Randomness) -> str:
        """A digest of all that the teacher is made from."""
        own = split.private
        whose = [] if own.person is None else [own.person]
        parts = [torch.from_numpy(np.ascontiguousarray(part)) for part in (own.x, own.y, *whose)]
        noise, seed, secure = figures.noise_multiplier, randomness.seed, randomness.privacy.secure
        known = [self.learning.model_dump(mode="json"), noise, seed, secure, *self.weighing.values()]
        whole = digest([*parts, *net.state_dict().values()]) + json.dumps(known, sort_keys=True).encode()
        return hashlib.sha256(whole).hexdigest()

    def _student(self, teacher: nn.Module, public: Records, seed: int, stages: Stages) -> nn.Module:
        """Hints and rounds; everything here is post-processing."""
        s, net = self.learning, self._pair()[1].to(stages.run.device)
        training = StudentTraining(s, public, self.queries, seed, stages, self.facts.task)
        if self.layers:
            training.learn_hints(net, teacher, self.layers, Asked(teacher, self.layers[0]))
        answers = self._loss(self._answers(teacher, public, stages.run))
        varied = Balanced(teacher) if self.varied else None
        training.learn_in_rounds(net, answers, alone=answers if self.by_teacher else None, vary=varied)
        return net

    def alone(self, public: Records, run: Run) -> nn.Module:
        """The same student by itself, for comparison: public labels for as many epochs, and nothing private."""
        net = self._pair()[1].to(run.device)
        training = StudentTraining(self.learning, public, self.queries, self.config.seed, Stages(run, {}))
        training.learn_in_rounds(net, LabelLoss(Cached(public.y)))
        return net

    def _answers(self, teacher: nn.Module, public: Records, run: Run) -> TeacherAnswers:
        """The teacher's answers: to texts, which never change, all at once."""
        if self.facts.vocabulary is None:
            return Asked(teacher)
        return Cached(outputs(teacher.eval(), to_input(Resident(public, run.device).x)))

    def _loss(self, asked: TeacherAnswers) -> DistillationObjective:
        """Against the teacher's answers: numbers as they are, of classes softened or as logits."""
        if self.facts.task == "regression":
            return SquaredLoss(asked)
        return MatchLoss(asked) if self.by_logits else SoftLoss(asked, self.learning.temperature)

    def _of_unseen(self, found: Outcomes) -> Details:
        """The accuracy on classes with and without public records, if there are both."""
        theirs = np.isin(found.labels, self.unseen)
        if not theirs.any() or theirs.all():
            return {}
        right = found.predicted == found.labels
        return {
            "accuracy_on_classes_without_public_records": float(right[theirs].mean()),
            "accuracy_on_the_other_classes": float(right[~theirs].mean()),
        }


def _forget_classes(net: nn.Module, unseen: tuple[int, ...], classes: int) -> None:
    """Set the rows of unseen classes to the mean of the others, if the last dense layer has a row per class."""
    last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1:]
    if not unseen or not last or last[0].out_features != classes:
        return
    seen = [label for label in range(classes) if label not in unseen]
    with torch.no_grad():
        for own in last[0].parameters():
            own[list(unseen)] = own[seen].mean(0)


def _court_config(teacher: str, private: Mapping[str, object], epsilon: float, delta: float) -> ReleaseConfig:
    """A teacher from `dp_sgd_case`; half of the stated records are private, and the student does not matter."""
    return dp_sgd_case.step_config(
        PrivateTeacher.method,
        epsilon,
        delta,
        channel=PrivateTeacher.channel,
        net="linear",
        split={"public": 0.5, "test": 0.0, "holdout": 0.0},
        settings={"teacher": f"{dp_sgd_case.__name__}:{teacher}", "hint_epochs": 0, "private": dict(private)},
    )

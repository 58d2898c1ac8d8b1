"""`student`/`private-teacher`: a teacher that goes on with private records under DP-SGD; a student may ask it anything.

An auxiliary teacher learns from public records alone. The teacher starts from its weights and is trained on the private
records by DP-SGD (`methods.dp_sgd`). The student then takes hints from it, and learns in rounds from public labels and
from its answers about public images, as often as it likes, and about variations of them.

Proof. The start, the network and all settings follow from public records and figures. What DP-SGD makes of them is the
teacher, with the events of DP-SGD under add-remove; the student is computed from the teacher, public records and public
seeds: post-processing. Nothing else sees a private record.

Where classes have no public record (`split.public_without`), the student never sees one of them, and neither does the
auxiliary teacher, which learnt never to name them: their rows of its last layer are set to the mean of the others, lest
noise has to undo that. The student takes the teacher's answers in place of labels.

The teacher is kept in the vault's checkpoint until the release is made, with a mark of the records and of all else it
was made from: a resumed run takes it from there, or is refused. Keys of the noise are never kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, get_args

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor, nn

from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Place, Randomness
from airlock.methods import step_canaries, step_case
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import TEACHER, Details, Executed, NetworkArtefact, Plan
from airlock.methods.dp_sgd import DpSgd
from airlock.methods.noisy_settings import ONE_STEP, GaussianTraining
from airlock.methods.noisy_training import ASSUMPTIONS
from airlock.methods.student.learning import HINTS, School, check_split
from airlock.methods.student.private_settings import PrivateTeacherSettings, private_settings_for, queries_for
from airlock.methods.student.settings import hint_layers, lacking, net_names
from airlock.methods.student.teachers import for_vault, make_pair, taught
from airlock.training import Resident, Run, checkpoint, outcomes_of
from airlock.training.distillation.distil import Asked, DistillationObjective, MatchLoss, SoftLoss
from airlock.training.distillation.variations import Balanced
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.gradients import Gradients
from airlock.training.noise_aware_lr import bearable
from airlock.training.outcomes import Outcomes
from airlock.training.stages import Stages

PUBLIC = "The public records may be known to everyone: they are used without protection."
_AUXILIARY, _TEACHER = "auxiliary", "teacher"
_STATE, _DRAWN = "gradients/", "drawn"
_LABEL = "training the teacher under noise"
# Of public records, that noise alone may cost the public teacher; more where private ones have to bring whole classes.
_MAY_COST, _MAY_COST_FOR_CLASSES = 0.02, 0.1


class PrivateTeacher(DpSgd):
    """A student of a teacher under DP-SGD; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "student"
    method: ClassVar[str] = "private-teacher"
    title: ClassVar[str] = "a small network taught by a teacher under DP-SGD"
    rank: ClassVar[int] = 50
    compact: ClassVar[bool] = True
    small: ClassVar[Mapping[str, object] | None] = {"private": ONE_STEP}
    leaves: ClassVar[str] = (
        "A compact model that learnt from public records and from a teacher's answers. Each step of the teacher's "
        "training saw the private records only through bounded contributions with random noise on top."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.teacher_name, self.net_name = net_names(self.learning.teacher, config.net, facts)
        self.layers = hint_layers(self.learning, self.teacher_name, self.net_name)
        self.unseen = facts.without(config.split)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One step of the teacher on every record; lots are tried by `weights`/`gaussian`, which draws them alike."""
        private = {**step_case.SETTINGS, "lot_size": step_case.PUBLIC_RECORDS}
        config = _for_court(step_case.__name__ + ":tiny_net", private, epsilon, delta)
        return step_case.of_step(cls(config, step_case.FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The teacher's whole private training; what a student makes of it tells no more."""
        private = step_canaries.settings_for(count, lot=0.25)
        config = _for_court(step_canaries.__name__ + ":canary_net", private, epsilon, delta)
        made = cls(config, step_canaries.facts(count))
        return step_canaries.of_training(made, made.trained)

    @cached_property
    def learning(self) -> PrivateTeacherSettings:
        """All settings; `settings` are those of the private training."""
        return private_settings_for(self.config, self.facts)

    def parse_settings(self) -> GaussianTraining:
        """Those under settings.private."""
        return self.learning.private

    @property
    def queries(self) -> int:
        """Query samples of an epoch, as a public figure."""
        return queries_for(self.learning, self.config, self.facts)

    @property
    def by_teacher(self) -> bool:
        """Whether the teacher's answers stand in for the public labels."""
        return self.learning.labels == "teacher" or (self.learning.labels == "auto" and bool(self.unseen))

    @property
    def by_logits(self) -> bool:
        """Whether logits are matched, not softened outputs."""
        return self.learning.match == "logits" or (self.learning.match == "auto" and bool(self.unseen))

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
        """The teacher as it is made; only the layers that private records may move are trainable."""
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

    def plan(self) -> Plan:
        """DP-SGD's, with what teacher and student are; touches no record."""
        plan, s = super().plan(), self.learning
        big, small = (sum(p.numel() for p in net.parameters()) for net in self._pair())
        hint, guide = self.layers or ("none", "none")
        more: dict[str, str | int | float] = {
            "net": self.net_name,
            "parameters": small,
            "bytes": 4 * small,
            "teacher": self.teacher_name,
            "teacher_parameters": big,
            "compression": round(big / small, 2),
            "hint": hint,
            "guide": guide,
            "hint_epochs": s.hint_epochs,
            "rounds": s.rounds,
            "self_epochs": s.self_epochs,
            "distil_epochs": s.distil_epochs,
            "labels": "the teacher's answers" if self.by_teacher else "public",
            "match": "logits" if self.by_logits else "softened",
            "queries": "public images and variations of them" if self.varied else "public records",
            **lacking(self.facts, self.config),
        }
        return replace(plan, details={**plan.details, **more})

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train the teacher under noise, teach the student by it, and leave only the student."""
        check_split(split, len(self.facts.classes), self.learning.queries)
        stages = Stages(run, {"settings": self.learning.model_dump(mode="json"), "seed": randomness.seed})
        auxiliary = self._auxiliary(split.public, randomness.seed, stages)
        recipe = self._rehearsed(auxiliary, split.public, plan)
        teacher, gradients, executed = self._privately(auxiliary, recipe, split, plan, randomness, run)
        net = self._student(teacher, split.public, randomness.seed, stages)
        stages.forget(_AUXILIARY, _TEACHER, HINTS)
        teachers = {"public_teacher_accuracy": auxiliary, "teacher_accuracy": teacher}
        known = {name: outcomes_of(own, split.test).accuracy for name, own in teachers.items()}
        utility = outcomes_of(net, split.test)
        more = {"private_learning_rate": recipe.learning_rate, **self.measured(gradients)}
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **more},
            secrets={TEACHER: for_vault(teacher)},
            inside={**known, **self._of_unseen(utility)},
        )

    def assumptions(self) -> tuple[str, ...]:
        """Those of DP-SGD, and that public records are not covered."""
        return (*ASSUMPTIONS, PUBLIC)

    def trained(self, split: Split, randomness: Randomness) -> nn.Module:
        """The teacher after private training from its first weights, for the court."""
        net = self.net()
        self.train(net, split, self.plan(), randomness, Run())
        return net

    def _pair(self) -> tuple[nn.Module, nn.Module]:
        """Teacher and student, freshly initialised; the seed is public."""
        return make_pair((self.teacher_name, self.net_name), self.layers, self.facts, self.config.seed)

    def _auxiliary(self, public: Records, seed: int, stages: Stages) -> nn.Module:
        """The public teacher, without an opinion on classes that it never saw."""
        net = taught(_AUXILIARY, self._pair()[0], public, self.learning, seed, stages)
        _forget_classes(net, self.unseen, len(self.facts.classes))
        return net

    def _rehearsed(self, start: nn.Module, public: Records, plan: Plan) -> GaussianTraining:
        """Steps as large as the settings say, or as the noise to come allows; public records alone decide."""
        if not self.learning.rehearse:
            return self.settings
        net = self.started(start, next(start.parameters()).device)
        noise = float(plan.details["noise_on_mean_gradient"])
        factor = bearable(net, public, noise, self.settings, self.may_cost, self.config.seed)
        return self.settings.model_copy(update={"learning_rate": factor * self.settings.learning_rate})

    def started(self, start: nn.Module, device: torch.device) -> nn.Module:
        """The teacher as private training finds it."""
        net = self.net().to(device)
        net.load_state_dict(start.state_dict())
        return net

    def _privately(
        self,
        start: nn.Module,
        recipe: GaussianTraining,
        split: Split,
        plan: Plan,
        randomness: Randomness,
        run: Run,
    ) -> tuple[nn.Module, Gradients, dpa.DpEvent]:
        """The teacher, trained on the private records; or the one that an interrupted run of the same records kept."""
        net = self.started(start, run.device)
        if run.checkpoint is None:
            return net, *self.train(net, split, plan, randomness, run, _LABEL, recipe)
        file = run.checkpoint / f"{_TEACHER}.safetensors"
        mark = self._mark(net, split, plan, randomness)
        if run.resume and file.exists():
            return net, *self._taken_up(net, read(file, mark), split, plan, randomness, run)
        own = replace(run, checkpoint=run.checkpoint / _TEACHER)
        gradients, executed = self.train(net, split, plan, randomness, own, _LABEL, recipe)
        drawn = torch.tensor([place in randomness.privacy.drawn_on for place in get_args(Place)])
        state = {f"{_STATE}{name}": value for name, value in gradients.state().items()}
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        checkpoint.write(file, {**weights, **state, _DRAWN: drawn}, {"mark": mark})
        return net, gradients, executed

    def _taken_up(
        self, net: nn.Module, kept: Mapping[str, Tensor], split: Split, plan: Plan, randomness: Randomness, run: Run
    ) -> tuple[Gradients, dpa.DpEvent]:
        """Put what was kept into the network; nothing is drawn."""
        gradients, sampler = self.parts(net, split, Resident(split.private, run.device), plan, randomness, run)
        gradients.load_state({k.removeprefix(_STATE): v for k, v in kept.items() if k.startswith(_STATE)})
        net.load_state_dict({name: kept[name] for name in net.state_dict()})
        places = [place for place, drawn in zip(get_args(Place), kept[_DRAWN].tolist(), strict=True) if drawn]
        randomness.privacy.note_drawn(*places)
        return gradients, self.whole(self.executed_step(sampler, gradients), self.settings.steps)

    def _mark(self, net: nn.Module, split: Split, plan: Plan, randomness: Randomness) -> str:
        """Of all that the teacher is made from."""
        parts = [torch.from_numpy(np.ascontiguousarray(part)) for part in (split.private.x, split.private.y)]
        noise = plan.details["noise_multiplier"]
        known = [self.learning.model_dump(mode="json"), noise, randomness.seed, randomness.privacy.secure]
        whole = digest([*parts, *net.state_dict().values()]) + json.dumps(known, sort_keys=True).encode()
        return hashlib.sha256(whole).hexdigest()

    def _student(self, teacher: nn.Module, public: Records, seed: int, stages: Stages) -> nn.Module:
        """Hints and rounds; everything here is post-processing."""
        s, net = self.learning, self._pair()[1].to(stages.run.device)
        school = School(s, public, self.queries, seed, stages)
        if self.layers:
            school.take_hints(net, teacher, self.layers, Asked(teacher, self.layers[0]))
        asked = Asked(teacher)
        answers: DistillationObjective = MatchLoss(asked) if self.by_logits else SoftLoss(asked, s.temperature)
        varied = Balanced(teacher) if self.varied else None
        school.take_rounds(net, answers, alone=answers if self.by_teacher else None, vary=varied)
        return net

    def _of_unseen(self, found: Outcomes) -> Details:
        """The accuracy on classes with and without public records, where there are both."""
        theirs = np.isin(found.labels, self.unseen)
        if not theirs.any() or theirs.all():
            return {}
        right = found.predicted == found.labels
        return {
            "accuracy_on_classes_without_public_records": float(right[theirs].mean()),
            "accuracy_on_the_other_classes": float(right[~theirs].mean()),
        }


def _forget_classes(net: nn.Module, unseen: tuple[int, ...], classes: int) -> None:
    """Set the rows of classes that were never seen to the mean of the others, in a last dense layer of so many rows."""
    last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1:]
    if not unseen or not last or last[0].out_features != classes:
        return
    seen = [label for label in range(classes) if label not in unseen]
    with torch.no_grad():
        for own in last[0].parameters():
            own[list(unseen)] = own[seen].mean(0)


def _for_court(teacher: str, private: Mapping[str, object], epsilon: float, delta: float) -> ReleaseConfig:
    """Half of the stated records are private; what the student is does not matter."""
    return step_case.config_for(
        PrivateTeacher.method,
        epsilon,
        delta,
        channel=PrivateTeacher.channel,
        net="linear",
        split={"public": 0.5, "test": 0.0, "holdout": 0.0},
        settings={"teacher": teacher, "hint_epochs": 0, "private": dict(private)},
    )

"""`student`/`published`: RONA (Wang, Bao, Sun, Zhu, Cao and Yu 2019, Algorithms 1 to 3), as published; a claim.

A teacher is trained on private and public records, an auxiliary teacher on the public ones alone. A compact student
sees public records and the teacher's answers about them: first hints, then R rounds of learning from public labels and
of distillation on query samples that it chooses. Every batch's loss against the teacher goes through `sanitise`.

Why nothing is promised. (1) Noise that is added to a loss does not change its gradient, so that none reaches the
student: it is the same for any σ, to the bit. What leaves is a deterministic function of a teacher that was trained
without privacy; the recorded event is a non-private one, ε is infinite and the unit "none". (2) Clipping a loss to B
makes its gradient 0 above B and leaves it as it is below: it bounds nothing. (3) Theorem 2 has two constants that the
paper does not give, and its proof is omitted. With c2 = 1/2, σ = c2 √(T ln(1/δ)) / ε gives the ε stated for CIFAR-10
(T = 3200, σ = 10, δ = 1e-5: 9.597), so this is what is recorded as the claim. T answers that were numbers with noise at
σ would cost far more: 39 by PLD, 43 by the moments bound (`gaussian_queries_epsilon`). Choosing query samples among
public records by the student amplifies nothing and costs nothing.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from torch import nn

from airlock.accounting import Claim, Guarantee, compute_epsilon, repeat
from airlock.accounting.epsilon import LARGEST
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    TEACHER,
    Channel,
    Details,
    Executed,
    NetworkArtefact,
    Plan,
)
from airlock.methods.student.learning import HINTS, School, check_split
from airlock.methods.student.settings import PublishedSettings, hint_layers, lacking, net_names, settings_for
from airlock.methods.student.teachers import for_vault, make_pair, taught
from airlock.papers.student import case
from airlock.papers.student.sanitise import Sanitise
from airlock.training import Run, outcomes_of
from airlock.training.distillation.distil import Asked, DistillationObjective, HintLoss, SoftLoss
from airlock.training.stages import Stages

CONSTANT = 0.5  # c2 of Theorem 2, which the paper does not give
THEOREM = (
    "Theorem 2 of Wang et al. 2019 for {queries:,} queries at σ = {noise:.4g}, with c2 = 1/2, which gives the ε stated "
    "there for CIFAR-10; it does not hold: noise added to a loss does not change the gradient, so that none reaches "
    "the student; and so many numbers with such noise would cost {cost}"
)
NEEDED = (
    "NOT TRUE of this method: noise protects what the student learns from the teacher. It is added to the loss, whose "
    "gradient it does not change.",
    "NOT TRUE of this method: clipping bounds what one answer does. Below the bound the gradient is the teacher's own.",
    "NOT TRUE of the paper: so many noisy answers cost the stated ε. Were they noisy, they would cost a multiple.",
)
ASSUMPTIONS = (
    "The public records may be known to everyone: they are used without protection.",
    "Networks, settings and class names were chosen without looking at the private records.",
    NOTHING_ELSE_LEAVES,
)
Changes = dict[str, Sanitise]
Teachers = tuple[nn.Module, nn.Module]
_KEPT = ("teacher", "auxiliary", HINTS)


class Published(Channel):
    """RONA as published: status claimed, unit none."""

    channel: ClassVar[str] = "student"
    method: ClassVar[str] = "published"
    title: ClassVar[str] = "a small network taught with a noisy loss, as published"
    status: ClassVar[Status] = "claimed"
    leaves: ClassVar[str] = (
        "A compact model that learnt from public records and from a teacher's answers about them. The teacher was "
        "trained on all private records without protection, and no noise reached the model that leaves."
    )
    unproven: ClassVar[str] = (
        "The paper's proof is omitted and cannot hold: noise is added to a loss, whose gradient it does not change, so "
        "that the student is the same with any noise."
    )
    sound_method: ClassVar[str] = "ensemble"

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = settings_for(config, facts, PublishedSettings)
        self.teacher_name, self.net_name = net_names(self.settings.teacher, config.net, facts)
        self.layers = hint_layers(self.settings, self.teacher_name, self.net_name)
        self._check_claim()

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One private record more or less, and the whole pipeline on networks of one layer."""
        return case.of_release(cls(case.config_for(epsilon, delta), case.FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release: every canary has an input of its own."""
        return case.of_canaries(cls(case.config_for(epsilon, delta), case.facts(count)))

    @property
    def public_records(self) -> int:
        """As a public figure."""
        return self.facts.expected("public", self.config.split)

    @property
    def queries(self) -> int:
        """N_q, as a public figure."""
        return self.settings.queries or max(1, round(self.settings.select_rate * self.public_records))

    @property
    def asked(self) -> int:
        """T = (T_h + R T_d) |x_q| / S, with whole batches: how often the teacher is asked in all runs."""
        s = self.settings
        batches = -(-self.queries // s.query_batch)
        return (s.hint_epochs + s.rounds * s.distil_epochs) * batches * self.config.tuning_runs

    @property
    def noise_scale(self) -> float:
        """σ: as set, or by Theorem 2 with c2 = 1/2 at the config's ε."""
        return self.settings.noise_scale or self._theorem(self.config.epsilon)

    @property
    def claimed_epsilon(self) -> float:
        """What the paper would print."""
        return self.config.epsilon if self.settings.noise_scale is None else self._theorem(self.noise_scale)

    def _theorem(self, other: float) -> float:
        """ε from σ or σ from ε: the two stand in it alike."""
        return CONSTANT * math.sqrt(self.asked * math.log(1 / self.config.delta)) / other

    def _check_claim(self) -> None:
        if self.claimed_epsilon > self.config.epsilon * (1 + 1e-9):
            raise ConfigError(
                f"an ε of at least {self.claimed_epsilon:.4g}, which the paper would print for settings.noise_scale = "
                f"{self.noise_scale:g} and {self.asked:,} queries",
                f"{self.config.epsilon:g}",
                "The claim on the card would be smaller than the paper's.",
                "Raise epsilon or noise_scale, or leave noise_scale out.",
            )

    @cached_property
    def gaussian_queries_epsilon(self) -> float:
        """What so many numbers with noise at σ would cost, if they were what leaves."""
        event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(self.noise_scale), self.asked)
        return compute_epsilon(event, self.config.delta, accountant=self.config.accountant).epsilon

    def plan(self) -> Plan:
        """The claim and the sizes; touches no record."""
        teacher, student = self.nets(self.config.seed)
        big, small = (sum(p.numel() for p in net.parameters()) for net in (teacher, student))
        s = self.settings
        hint, guide = self.layers or ("none", "none")
        details: dict[str, str | int | float] = {
            "net": self.net_name,
            "parameters": small,
            "bytes": 4 * small,
            "teacher": self.teacher_name,
            "teacher_parameters": big,
            "teacher_bytes": 4 * big,
            "compression": round(big / small, 2),
            "hint": hint,
            "guide": guide,
            "hint_epochs": s.hint_epochs,
            "rounds": s.rounds,
            "self_epochs": s.self_epochs,
            "distil_epochs": s.distil_epochs,
            "select": s.select,
            "query_samples": self.queries,
            "query_batch": s.query_batch,
            "queries": self.asked,
            "temperature": s.temperature,
            "noise_scale": self.noise_scale,
            "bound": s.bound or "adaptive",
            "gaussian_queries_epsilon": _stated(self.gaussian_queries_epsilon),
            "record_level": "none: no noise reaches the student",
            **lacking(self.facts, self.config),
        }
        events = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)
        return Plan(self.channel, self.method, self.leaves, self._guarantee(events), details)

    def nets(self, seed: int) -> tuple[nn.Module, nn.Module]:
        """Teacher and student, freshly initialised and checked, also whether hints fit; touches no record."""
        return make_pair((self.teacher_name, self.net_name), self.layers, self.facts, seed)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train both teachers and the student, and leave only the student."""
        check_split(split, len(self.facts.classes), self.settings.queries)
        stages = Stages(run, {"settings": self.settings.model_dump(mode="json"), "seed": randomness.seed})
        teacher, auxiliary = self.teachers(split, randomness.seed, stages)
        net, changes = self.student(split, (teacher, auxiliary), randomness, stages)
        stages.forget(*_KEPT)
        executed = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)
        utility = outcomes_of(net, split.test)
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=utility,
            secrets={TEACHER: for_vault(teacher)},
            inside=_measured(teacher, auxiliary, changes, split.test),
        )

    def teachers(self, split: Split, seed: int, stages: Stages) -> Teachers:
        """The teacher of all records and that of the public ones; neither leaves."""
        teacher = self._taught("teacher", _joined(split.private, split.public), seed, stages)
        return teacher, self._taught("auxiliary", split.public, seed, stages)

    def student(
        self, split: Split, teachers: Teachers, randomness: Randomness, stages: Stages
    ) -> tuple[nn.Module, Changes]:
        """A student of these teachers, and what became of its losses."""
        net = self.nets(randomness.seed)[1].to(stages.run.device)
        school = School(self.settings, split.public, self.queries, randomness.seed, stages)
        return net, self._learn(net, *teachers, school, randomness.privacy)

    def _taught(self, name: str, records: Records, seed: int, stages: Stages) -> nn.Module:
        """A teacher, trained on these records without privacy; both teachers start alike."""
        return taught(name, self.nets(seed)[0], records, self.settings, seed, stages)

    def _learn(
        self, net: nn.Module, teacher: nn.Module, auxiliary: nn.Module, school: School, noise: Stream
    ) -> Changes:
        """Hints, then rounds; the student is trained in place."""
        device, changes = school.stages.run.device, {}
        if self.layers:
            own = HintLoss(Asked(auxiliary, self.layers[0]))
            changes["hints"] = self._sanitise(own, noise.child("hints"), device)
            school.take_hints(net, teacher, self.layers, Asked(teacher, self.layers[0]), changes["hints"])
        soft = SoftLoss(Asked(auxiliary), self.settings.temperature)
        changes["rounds"] = self._sanitise(soft, noise.child("rounds"), device)
        school.take_rounds(net, SoftLoss(Asked(teacher), self.settings.temperature), changes["rounds"])
        return changes

    def _sanitise(self, auxiliary: DistillationObjective, stream: Stream, device: torch.device) -> Sanitise:
        return Sanitise(self.noise_scale, auxiliary, stream, device, self.settings.bound)

    def _guarantee(self, events: dpa.DpEvent) -> Guarantee:
        """Nothing is promised; the paper's claim is recorded."""
        cost = _stated(self.gaussian_queries_epsilon)
        words = f"ε = {cost:.3g}" if isinstance(cost, float) else f"an ε {cost}"
        theorem = THEOREM.format(queries=self.asked, noise=self.noise_scale, cost=words)
        claim = Claim(self.claimed_epsilon, self.config.delta, theorem)
        return self.promise(events, (*NEEDED, *ASSUMPTIONS), unit="none", claim=claim)


def _joined(private: Records, public: Records) -> Records:
    return Records(np.concatenate([private.x, public.x]), np.concatenate([private.y, public.y]))


def _measured(teacher: nn.Module, auxiliary: nn.Module, changes: Changes, test: Records) -> Details:
    """Figures that are known after training; they follow from private and test records."""
    clipped = {f"clipped_share_{name}": change.share_clipped for name, change in changes.items()}
    return {
        "teacher_accuracy": outcomes_of(teacher, test).accuracy,
        "public_teacher_accuracy": outcomes_of(auxiliary, test).accuracy,
        **{name: share for name, share in clipped.items() if share is not None},
    }


def _stated(epsilon: float) -> str | float:
    return f"above {LARGEST:,.0f}" if math.isinf(epsilon) else epsilon

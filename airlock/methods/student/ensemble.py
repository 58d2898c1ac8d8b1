"""`student`/`ensemble`: teachers on disjoint shards answer public queries once, with noise; a student learns from that.

The sound counterpart of RONA, by sample and aggregate (Nissim, Raskhodnikova and Smith 2007; Papernot et al. 2017 for
teachers). An auxiliary teacher learns from public records alone. K teachers start from its weights, each goes on with
its own shard of the private records and some public ones, and none of them leaves. Q queries are chosen among the
public records by what the auxiliary teacher makes of them, before anything private is asked. What the teachers say
about them is released once, with noise, and kept. The student then takes hints from the auxiliary teacher, and learns
in rounds from public labels and from answers, as often as it likes: the noisy ones, and the auxiliary teacher's for
public records that were not asked about.

Proof. A record lies in one shard, so adding or removing it changes one of K teachers; all other teachers stay the same
to the bit (`teachers.ask_shards`). The answers are released by `answering.Answering`, with bound, K, Q and queries that
follow from public figures and records, and are the only thing the student gets from private records: `event` under
add-remove, and post-processing from there on. Whoever counts replaced records: two teachers may change, and z is half.

Answers are drawn after all teachers are trained, and kept in the vault's checkpoint until the release is made, with a
mark of the records and of all else they were made from. A run that is resumed takes them from there, or is refused if
any of it is different. Keys of the noise are never kept: where answers are missing, they are drawn with fresh noise.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import BudgetSchedule, calibrate, repeat
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split, shard
from airlock.errors import AirlockWarning, ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Case
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
)
from airlock.methods.student import ensemble_case
from airlock.methods.student.answering import Answering, Noisy, to_logits
from airlock.methods.student.ensemble_settings import UNBOUNDED, EnsembleSettings, default_queries, default_teachers
from airlock.methods.student.learning import HINTS, School, check_split
from airlock.methods.student.settings import hint_layers, lacking, net_names, settings_for, with_free_rounds
from airlock.methods.student.teachers import Index, ask_shards, make_pair, taught
from airlock.training import Recipe, Run, checkpoint, outcomes_of
from airlock.training.distillation.distil import Asked, Cached, SoftLoss, at_places
from airlock.training.distillation.rounds import outputs
from airlock.training.distillation.selection import select
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.loop import mix
from airlock.training.stages import Stages

ASSUMPTIONS = (
    "One person contributes one record; whoever contributes several that differ is protected less.",
    "The number of records stated on this card is public and was not derived from the private records.",
    "The public records may be known to everyone: they are used without protection.",
    "Networks, settings and class names were chosen without looking at the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
RULE = "the median over teachers that learn from public records in the same way"
_AUXILIARY, _REHEARSAL, _ANSWERS = "auxiliary", "rehearsal", "answers"
_REHEARSED = 16  # teachers
_SMALLEST = 1e-6  # of a bound
_WARNED = 1.0


@dataclass(frozen=True)
class Questions:
    """What is known before private records are read: all of it is public.

    Args:
        auxiliary: The public teacher.
        places: Of the queries among the public records.
        inputs: The queries.
        logits: The public teacher's, for all public records; on the CPU.
        bound: B.
    """

    auxiliary: nn.Module
    places: Index
    inputs: Tensor
    logits: Tensor
    bound: float

    @property
    def public(self) -> Tensor:
        """The public teacher's logits for the queries."""
        return self.logits[torch.from_numpy(self.places)]


class Ensemble(Channel):
    """Noisy answers of disjoint teachers, once; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "student"
    method: ClassVar[str] = "ensemble"
    title: ClassVar[str] = "a small network taught by disjoint teachers"
    rank: ClassVar[int] = 60
    compact: ClassVar[bool] = True
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {
        "teachers": 4, "queries": 4, "select": "random", "hint_epochs": 0, "teacher_epochs": 2, "shard_epochs": 2,
    }  # fmt: skip
    leaves: ClassVar[str] = (
        "A compact model that learnt from public records, and from what many teachers, each with a part of the private "
        "records of its own, say about some of them on average, with random noise on every answer."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        public = facts.expected("public", config.split)  # all of which the student learns answers for
        self.settings = with_free_rounds(settings_for(config, facts, EnsembleSettings), config, facts, public)
        self.teacher_name, self.net_name = net_names(self.settings.teacher, config.net, facts)
        self.layers = hint_layers(self.settings, self.teacher_name, self.net_name)
        self.records = facts.expected("private", config.split)
        if (self.settings.teachers or 2) > self.records:
            raise ConfigError(
                f"at most as many teachers as private records ({self.records:,})",
                f"{self.settings.teachers or 2:,}",
                "Most teachers would have no records and say nothing.",
                "Lower settings.teachers, or leave it out.",
            )
        self._check_used()

    def _check_used(self) -> None:
        """A setting that would be ignored hides a mistake."""
        kind, given = self.settings.answers, self.settings.model_fields_set
        if kind in UNBOUNDED and "bound" in given:
            raise ConfigError(f'no settings.bound beside answers = "{kind}"', "one", "Such answers need no bound.")
        if kind != "confident-votes" and "threshold" in given:
            raise ConfigError('answers = "confident-votes" beside settings.threshold', f'"{kind}"')

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The released answers, when one record turns one teacher round."""
        return ensemble_case.of_answers(cls(ensemble_case.config_for(epsilon, delta), ensemble_case.FACTS))

    @property
    def queries(self) -> int:
        """Q, as a public figure."""
        public = self.facts.expected("public", self.config.split)
        return self.settings.queries or default_queries(self.settings.select_rate, public)

    @cached_property
    def answering(self) -> Answering:
        """With the least noise that keeps all runs within (ε, δ)."""
        kind, config = self.settings.answers, self.config
        noise = calibrate(
            lambda z: repeat(Answering(kind, 2, self.queries, z).event, config.tuning_runs),
            config.epsilon,
            config.delta,
            accountant=config.accountant,
        )
        of_one = noise * math.sqrt(self.queries) if kind == "matrix" else noise
        teachers = self.settings.teachers or default_teachers(self.records, of_one)
        return Answering(kind, teachers, self.queries, noise, self.settings.threshold)

    @property
    def each(self) -> int:
        """To how many records every shard is brought."""
        return max(1, round(self.records / self.answering.teachers))

    def plan(self) -> Plan:
        """The noise on an answer, and how it compares with what may be said; touches no record."""
        plan = self.unwarned()
        share = self.answering.relative_noise
        if share > _WARNED:
            warnings.warn(
                f"the noise on a class will be {share:.2g} times the most that all teachers together may say about it, "
                "so the student may learn little from them; fewer queries, more records or a larger ε would help.",
                AirlockWarning,
                stacklevel=2,
            )
        return plan

    def unwarned(self) -> Plan:
        """The same without a warning."""
        s, own, runs = self.settings, self.answering, self.config.tuning_runs
        teacher, student = make_pair((self.teacher_name, self.net_name), self.layers, self.facts, self.config.seed)
        big, small = (sum(p.numel() for p in net.parameters()) for net in (teacher, student))
        hint, guide = self.layers or ("none", "none")
        details: dict[str, str | int | float] = {
            "net": self.net_name,
            "parameters": small,
            "bytes": 4 * small,
            "teacher": self.teacher_name,
            "teacher_parameters": big,
            "compression": round(big / small, 2),
            "answers": s.answers,
            "teachers": own.teachers,
            "records_per_teacher": self.records / own.teachers,
            "queries": own.queries,
            "select": s.select,
            "noise_multiplier": own.noise_multiplier,
            **self._bounds(s.bound),
            "hint": hint,
            "guide": guide,
            "hint_epochs": s.hint_epochs,
            "rounds": s.rounds,
            "self_epochs": s.self_epochs,
            "distil_epochs": s.distil_epochs,
            "temperature": s.temperature,
            **lacking(self.facts, self.config),
        }
        schedule = None
        if s.answers != "matrix":
            schedule = BudgetSchedule(own.step, own.queries, runs=runs, unit="queries")
        promise = self.promise(repeat(own.event, runs), ASSUMPTIONS)
        return Plan(self.channel, self.method, self.leaves, promise, details, schedule)

    def _bounds(self, bound: float | None) -> Details:
        """The bound and the noise, as far as they are known."""
        own = self.answering
        if own.kind == "probabilities":
            return {"noise_per_probability": own.relative_noise}
        if own.kind in UNBOUNDED:
            looked = {"threshold": own.threshold * own.teachers} if own.kind == "confident-votes" else {}
            return {"noise_per_count": own.noise(1.0), "noise_over_teachers": own.relative_noise, **looked}
        known: Details = {"bound": RULE} if bound is None else {"bound": bound, "noise_per_logit": own.noise(bound)}
        return {**known, "noise_over_bound": own.relative_noise}

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Ask the teachers once, teach the student by what they said, and leave only the student."""
        check_split(split, len(self.facts.classes), self.queries)
        seed = randomness.seed
        stages = Stages(run, {"settings": self.settings.model_dump(mode="json"), "seed": seed})
        questions = self.questions(split.public, seed, stages)
        noisy, event = self._answers(split, questions, randomness.privacy.child(_ANSWERS), seed, run)
        executed = repeat(event, self.config.tuning_runs)
        net = self._student(questions, noisy, split.public, seed, stages)
        stages.forget(_AUXILIARY, _REHEARSAL, _ANSWERS, HINTS)
        utility, public = outcomes_of(net, split.test), outcomes_of(questions.auxiliary, split.test)
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **self._bounds(questions.bound)},
            inside={"public_teacher_accuracy": public.accuracy},
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """The noisy answers: whatever a student learns is computed from them and from public records."""
        seed = self.config.seed
        questions = self.questions(split.public, seed, Stages(run, {}))
        moved = self.moved(split, questions, seed, run)

        def once(randomness: Randomness) -> Disclosed:
            noisy, event = self.publish(moved, questions, randomness.privacy.child(_ANSWERS))
            return Disclosed({"answers": noisy, "given": ~np.isnan(noisy)}, repeat(event, self.config.tuning_runs))

        return once

    def questions(self, public: Records, seed: int, stages: Stages) -> Questions:
        """The public teacher, the queries that it chooses, and the bound."""
        auxiliary = taught(_AUXILIARY, self._teacher(seed), public, self.settings, seed, stages)
        inputs = at_places(public.x, stages.run.device)
        logits = outputs(auxiliary, inputs).cpu()
        places = select(self.settings.select, logits, self.queries, mix(seed, 9))
        own = inputs.x[torch.from_numpy(places).to(inputs.x.device)].cpu()
        return Questions(auxiliary, places, own, logits, self._bound(public, own, seed, stages))

    def _bound(self, public: Records, queries: Tensor, seed: int, stages: Stages) -> float:
        """B as set; or a rehearsal in public: a teacher of half the public records, and shards of the other half."""
        if self.settings.bound is not None or self.settings.answers in UNBOUNDED:
            return self.settings.bound or 1.0
        mixed = np.random.default_rng(mix(seed, 10)).permutation(len(public))
        middle = max(1, len(public) // 2)
        first, rest = public.take(mixed[:middle]), public.take(mixed[middle:] if len(public) > 1 else mixed)
        start = taught(_REHEARSAL, self._teacher(seed), first, self.settings, seed, stages)
        chance = np.random.default_rng(mix(seed, 11))
        shards = [chance.integers(0, len(rest), self.each) for _ in range(_REHEARSED)]
        run = Run(device=stages.run.device, progress=stages.run.progress)
        moved = self._asked(start, rest, shards, first, queries, mix(seed, 12), run, "rehearsing in public")
        norms = moved.flatten(1).norm(dim=1) if self.settings.answers == "matrix" else moved.norm(dim=2)
        return max(float(norms.median()), _SMALLEST)

    def moved(self, split: Split, questions: Questions, seed: int, run: Run) -> Tensor:
        """How far every teacher moves the public logits of the queries: private, until `publish`."""
        shards, start = shard(split.private, self.answering.teachers, seed), questions.auxiliary
        own = replace(run, checkpoint=run.checkpoint and run.checkpoint / "teachers")
        return self._asked(
            start, split.private, shards, split.public, questions.inputs, mix(seed, 13), own, "training the teachers"
        )

    def publish(self, moved: Tensor, questions: Questions, stream: Stream) -> tuple[Noisy, dpa.DpEvent]:
        """The noisy answers, and what they cost."""
        own = self.answering
        return own.release(moved, questions.public, questions.bound, stream), own.event

    def _answers(
        self, split: Split, questions: Questions, stream: Stream, seed: int, run: Run
    ) -> tuple[Noisy, dpa.DpEvent]:
        """Drawn once, after all teachers are trained; or those that an interrupted run of the same records kept."""
        if run.checkpoint is None:
            return self.publish(self.moved(split, questions, seed, run), questions, stream)
        file = run.checkpoint / f"{_ANSWERS}.safetensors"
        mark = self._mark(split, questions, seed, stream.secure)
        if not (run.resume and file.exists()):
            noisy, _ = self.publish(self.moved(split, questions, seed, run), questions, stream)
            checkpoint.write(file, {_ANSWERS: torch.from_numpy(noisy)}, {"mark": mark})
        stream.note_drawn("cpu")
        return read(file, mark)[_ANSWERS].numpy(), self.answering.event

    def _mark(self, split: Split, questions: Questions, seed: int, secure: bool) -> str:
        """Of all that answers are made from."""
        parts = (split.private.x, split.private.y, split.public.x, split.public.y, questions.places)
        own = [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
        known = [repr(self.answering), self.settings.model_dump(mode="json"), questions.bound, seed, secure]
        weights = questions.auxiliary.state_dict().values()
        return hashlib.sha256(digest([*own, *weights]) + json.dumps(known, sort_keys=True).encode()).hexdigest()

    def _asked(
        self,
        start: nn.Module,
        records: Records,
        shards: list[Index],
        beside: Records,
        queries: Tensor,
        seed: int,
        run: Run,
        label: str,
    ) -> Tensor:
        s, size = self.settings, self.each * (1 + self.settings.shard_public)
        batch = min(s.teacher_batch, size)
        steps = s.shard_epochs * -(-size // batch)
        recipe = Recipe(steps=steps, learning_rate=s.shard_learning_rate, precision=s.precision)
        return ask_shards(
            start, records, shards, self.each, beside, s.shard_public, queries, recipe, batch, seed, run, label
        )

    def _teacher(self, seed: int) -> nn.Module:
        return make_pair((self.teacher_name, self.net_name), self.layers, self.facts, seed)[0]

    def _student(self, questions: Questions, noisy: Noisy, public: Records, seed: int, stages: Stages) -> nn.Module:
        """Hints from the public teacher, then rounds with the noisy answers, and its own where none was asked for."""
        s, places = self.settings, questions.places
        net = make_pair((self.teacher_name, self.net_name), self.layers, self.facts, seed)[1].to(stages.run.device)
        school = School(s, public, len(places), seed, stages)
        if self.layers:
            school.take_hints(net, questions.auxiliary, self.layers, Asked(questions.auxiliary, self.layers[0]))
        answers = questions.logits.clone()
        answers[torch.from_numpy(places)] = to_logits(
            noisy, questions.public, self.answering, questions.bound, s.temperature, s.shrink
        )
        school.take_rounds(net, SoftLoss(Cached(answers), s.temperature), asked=np.arange(len(public)))
        return net

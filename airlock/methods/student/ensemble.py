"""`student`/`ensemble`: teachers on disjoint shards answer public queries once, with noise; a student learns from that.

The sound counterpart of RONA, by sample and aggregate (Nissim, Raskhodnikova and Smith 2007; Papernot et al. 2017 for
teachers). An auxiliary teacher learns from public records alone. K teachers start from its weights, and each of them is
trained further on its own shard of the private records and on some public ones; none of them leaves. Q queries are
chosen among the public records by the auxiliary teacher's outputs, before anything private is queried. The teachers'
answers are released once, with noise, and kept. The student then takes hints from the auxiliary teacher, and learns in
rounds from public labels and from answers, for as long as it likes: from the noisy ones, and from the auxiliary
teacher's for public records that are not queries.

Proof. A record lies in one shard, so adding or removing it changes one of K teachers; all other teachers stay the same
to the bit (`teachers.ask_shards`). The answers are released by `answering.Answering`, with bound, K, Q and queries that
follow from public figures and records, and are the only thing the student gets from private records: `event` under
add-remove, and post-processing from there on. If records are replaced instead, two teachers may change, and z is half.
Where the records say whose they are, shards are by person: a person with all her records has one teacher.

Where a number is predicted, a teacher's answer is its single output, and a residual is how far it moves that: what is
clipped, averaged and released is the same with one class, and so is the proof. Votes are about classes alone.

Answers are drawn after all teachers are trained, and kept in the vault's checkpoint until the release is made, with a
digest of the records and of everything else they were made from. A resumed run takes them from there, or is refused if
any of that is different. The keys of the noise are never kept: if answers are missing, they are drawn with fresh noise.

Defaults were tried on digits alone, where few differences are significant (docs/results/student.md). With n records, K
teachers and noise multiplier z of one answer, noise falls as z/K, and what a teacher cannot know grows as K/n: the two
balance at K ~ √(z n). Where the defaults suit other data badly, accuracy suffers and the promise does not.

In court, one record reverses the answers of the teacher of its shard. There are two shards, each with a record of label
1, which moves the logits of every query towards that label. The record that differs is larger, has label 0, and lies in
the first shard, where it outweighs the other. All records and queries are multiples of one another, so with two classes
all moves lie on one line, and the bound is so small that all are clipped: from one end of the ball to the other, in
every answer. Records are scaled until they fall into the shard where they are wanted. Public records have either label,
so that the public teacher has no preference. The score is the best there is: the log-likelihood ratio of the answers
with and without the record. Every kind of answers has its case. For votes and probabilities the teachers take long
steps, so that each is almost certain of its class. With confident votes, how many answers are given at all is scored
too: with the record the teachers disagree, and no class has the two votes that are required. Where a number is
predicted, label 1 is the upper end of the range and label 0 the lower one, and the same happens to its one output.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import norm
from torch import Tensor, nn

from airlock.accounting import BudgetSchedule, calibrate, repeat
from airlock.accounting.terms import Claim, Status
from airlock.config import STEPS, Positive, ReleaseConfig, TargetRange, from_table
from airlock.data import Facts, Records, Split, shard
from airlock.data.split import Task
from airlock.errors import AirlockWarning, ConfigError
from airlock.mechanisms import Randomness, Stream, bounded
from airlock.methods.case import (
    ACCOUNTED,
    Canaries,
    Case,
    Coins,
    Scores,
    canary_split,
    facts_of_canaries,
    less_noise,
    people_in_words,
)
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    ONE_RECORD,
    SIZE,
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    check_executed,
)
from airlock.methods.student.answering import UNBOUNDED, Answering, Kind, Noisy, to_logits
from airlock.methods.student.learning import (
    HINTS,
    StudentTraining,
    check_split,
    for_the_task,
    hint_layers,
    with_free_rounds,
)
from airlock.methods.student.teachers import (
    Index,
    TeacherSettings,
    ask_shards,
    lacking,
    make_pair,
    measured,
    net_names,
    objective_of,
    settings_for,
    taught,
)
from airlock.training import Recipe, Run, checkpoint, outcomes_of
from airlock.training.distillation.distil import (
    Asked,
    Cached,
    DistillationObjective,
    SoftLoss,
    SquaredLoss,
    at_places,
)
from airlock.training.distillation.rounds import outputs
from airlock.training.distillation.selection import select
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.loop import mix
from airlock.training.stages import Stages

ASSUMPTIONS = (
    ONE_RECORD,
    SIZE,
    "The public records may be known to everyone: they are used without protection.",
    "Networks, settings and class names were chosen without looking at the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
RULE = "the median over teachers that learn from public records in the same way"
_AUXILIARY, _REHEARSAL, _ANSWERS = "auxiliary", "rehearsal", "answers"
_OF_CLASSES = ("select", "temperature", "threshold")  # settings
_REHEARSED = 16  # teachers in the rehearsal that finds the bound
_SMALLEST = 1e-6  # bound
_WARNED = 1.0  # relative noise from which on a plan warns
_TEACHERS = 1.0  # times √(z n)
_QUERIES = 1000  # at most, unless the settings say more
COURT_TEACHERS, COURT_QUERIES, COURT_BOUND = 2, 4, 1e-3
COURT_FACTS = Facts("court", (1,), ("0", "1"), 16, 1, "made up for the court")
COURT_RANGE = TargetRange(min=0, max=1)
COURT_FACTS_OF_NUMBERS = replace(COURT_FACTS, classes=(), target=COURT_RANGE)
PAIR = (
    f"{COURT_TEACHERS} shards with a record of label 1 each, with and without a larger one of label 0 that reverses "
    f"one teacher in all {COURT_QUERIES} answers, all clipped"
)
STATISTICS = ("how much more likely the answers are with the record",)
_TRIES = 200


class EnsembleSettings(TeacherSettings):
    """How teachers on disjoint shards are made, and how their answers are released.

    Args:
        answers: "residuals", a clipped and noisy mean for every query; "matrix", one for all queries together;
            "probabilities", a noisy mean of probabilities; "votes", noisy counts of which the largest gives a label;
            "confident-votes", the same where enough teachers agree.
        threshold: For "confident-votes": the share of the teachers that has to agree, up to noise.
        teachers: K; when left out, by the number of records and the noise.
        bound: B, the largest norm of how far one teacher moves the public logits of a query (of all queries together
            for "matrix"); when left out, the median over teachers that learn from public records in the same way.
        shard_public: How many public records a shard's teacher sees for each of its own, so that it forgets less.
        shard_epochs: Of a shard's teacher, after it has started from the public one.
        shard_learning_rate: With SGD and momentum 0.9.
        shrink: Scale noisy answers down by what noise alone explains of their size; it costs nothing.
    """

    answers: Kind = "residuals"
    teachers: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    bound: Positive | None = None
    shard_public: Annotated[int, Field(ge=0, le=1000)] = 3
    shard_epochs: Annotated[int, Field(ge=1, le=100_000)] = 10
    shard_learning_rate: Positive = 0.003
    shrink: bool = True


def default_teachers(records: int, noise_multiplier: float) -> int:
    """√(z n), between 2 and the number of records."""
    return max(2, min(records, round(_TEACHERS * math.sqrt(noise_multiplier * records))))


def default_queries(select_rate: float, public: int) -> int:
    """This share of the public records, but at most 1,000: every answer costs."""
    return max(1, min(_QUERIES, round(select_rate * public)))


@dataclass(frozen=True)
class Questions:
    """What is known before private records are read; all of it is public.

    Args:
        auxiliary: The public teacher.
        places: The positions of the queries among the public records.
        inputs: The queries.
        logits: The public teacher's logits for all public records; on the CPU.
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


class Ensemble(Channel[Answering]):
    """Noisy answers of disjoint teachers, released once; status proven, unit record or person, relation add-remove."""

    channel: ClassVar[str] = "student"
    method: ClassVar[str] = "ensemble"
    title: ClassVar[str] = "a small network taught by disjoint teachers"
    rank: ClassVar[int] = 60
    compact: ClassVar[bool] = True
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    weighs_classes: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression"})
    small: ClassVar[Mapping[str, object] | None] = {
        "teachers": 4, "queries": 4, "select": "random", "hint_epochs": 0, "teacher_epochs": 2, "shard_epochs": 2,
    }  # fmt: skip
    leaves: ClassVar[str] = (
        "A compact model that learnt from public records, and from what many teachers, each trained on its own part of "
        "the private records, say about some of them on average, with random noise on every answer."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        public = facts.expected("public", config.split)  # the student learns answers for all of them
        settings = for_the_task(settings_for(config, facts, EnsembleSettings), config, facts, _OF_CLASSES)
        self.settings = with_free_rounds(settings, config, facts, public)
        self.learnt = objective_of(facts, self.class_weights)
        self.teacher_name, self.net_name = net_names(self.settings.teacher, config.net, facts)
        self.layers = hint_layers(self.settings, self.teacher_name, self.net_name)
        self.records = facts.expected("private", config.split)
        if (self.settings.teachers or 2) > self.records:
            raise ConfigError(
                f"at most as many teachers as private {facts.counted} ({self.records:,})",
                f"{self.settings.teachers or 2:,}",
                "Most teachers would have no records and nothing to say.",
                "Lower settings.teachers, or leave it out.",
            )
        self._check_used()

    def _check_used(self) -> None:
        """Refuse settings that would be ignored: they hide a mistake."""
        kind, given = self.settings.answers, self.settings.model_fields_set
        if self.facts.task == "regression" and kind in UNBOUNDED:
            raise ConfigError(
                'settings.answers = "residuals" or "matrix" where a number is predicted',
                f'"{kind}"',
                "Teachers vote about classes, and here there are none.",
            )
        if kind in UNBOUNDED and "bound" in given:
            raise ConfigError(
                f'no settings.bound together with answers = "{kind}"', "one", "Such answers need no bound."
            )
        if kind != "confident-votes" and "threshold" in given:
            raise ConfigError('answers = "confident-votes" together with settings.threshold', f'"{kind}"')

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The released answers, when one record reverses one teacher."""
        return answers_case(cls(court_config(epsilon, delta), COURT_FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The released answers of many teachers, to canaries that each have a class of their own."""
        return _canaries_of_answers(cls, epsilon, delta, count, people=False)

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with people who have several records each."""
        return _canaries_of_answers(cls, epsilon, delta, count, people=True)

    @property
    def queries(self) -> int:
        """Q, as a public figure."""
        public = self.facts.expected("public", self.config.split)
        return self.settings.queries or default_queries(self.settings.select_rate, public)

    @cached_property
    def answering(self) -> Answering:
        """How answers are released, with the least noise that keeps all runs within (ε, δ); the figures of the plan."""
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
        """The number of records that every shard is brought to."""
        return max(1, round(self.facts.expected_records("private", self.config.split) / self.answering.teachers))

    def plan(self) -> Plan[Answering]:
        """Calibrate the noise, and warn if it drowns the answers; touches no record."""
        plan = self.plan_without_warning()
        share = self.answering.relative_noise
        if share > _WARNED:
            warnings.warn(
                f"the noise on a class will be {share:.2g} times the most that all teachers together may say about it, "
                "so the student may learn little from them; fewer queries, more records or a larger ε would help.",
                AirlockWarning,
                stacklevel=2,
            )
        return plan

    def plan_without_warning(self) -> Plan[Answering]:
        """The same without the warning, for the court, which has only two teachers and so always a lot of noise."""
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
            f"{self.facts.counted}_per_teacher": self.records / own.teachers,
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
            **self.weighing,
            **lacking(self.facts, self.config),
        }
        schedule = None
        if s.answers != "matrix":
            schedule = BudgetSchedule(own.step, own.queries, runs=runs, unit="queries")
        promise = self.promise(repeat(own.event, runs), ASSUMPTIONS)
        return Plan(self.channel, self.method, self.leaves, promise, details, schedule, own)

    def _bounds(self, bound: float | None) -> Details:
        """The bound and the noise, as far as they are known."""
        own = self.answering
        if own.kind == "probabilities":
            return {"noise_per_probability": own.relative_noise}
        if own.kind in UNBOUNDED:
            threshold = {"threshold": own.threshold * own.teachers} if own.kind == "confident-votes" else {}
            return {"noise_per_count": own.noise(1.0), "noise_over_teachers": own.relative_noise, **threshold}
        known: Details = {"bound": RULE} if bound is None else {"bound": bound, "noise_per_logit": own.noise(bound)}
        return {**known, "noise_over_bound": own.relative_noise}

    def execute(self, plan: Plan[Answering], split: Split, randomness: Randomness, run: Run) -> Executed:
        """Query the teachers once, teach the student with their answers, and release only the student."""
        check_split(split, self.facts, self.queries)
        seed = randomness.seed
        stages = Stages(run, {"settings": self.settings.model_dump(mode="json"), "seed": seed, **self.weighing})
        questions = self.questions(split.public, seed, stages)
        noisy, event = self._answers(split, questions, randomness.privacy.child(_ANSWERS), seed, run)
        executed = repeat(event, self.config.tuning_runs)
        net = self._student(questions, noisy, split.public, seed, stages)
        stages.forget(_AUXILIARY, _REHEARSAL, _ANSWERS, HINTS)
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=outcomes_of(net, split.test, self.facts.task),
            details={**plan.details, **self._bounds(questions.bound)},
            inside=measured("public_teacher", questions.auxiliary, split.test, self.facts),
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """The noisy answers: all that a student learns is computed from them and from public records."""
        seed = self.config.seed
        questions = self.questions(split.public, seed, Stages(run, {}))
        moved = self.moved(split, questions, seed, run)

        def once(randomness: Randomness) -> Disclosed:
            noisy, event = self.publish(moved, questions, randomness.privacy.child(_ANSWERS))
            return Disclosed({"answers": noisy, "given": ~np.isnan(noisy)}, repeat(event, self.config.tuning_runs))

        return once

    def questions(self, public: Records, seed: int, stages: Stages) -> Questions:
        """The public teacher, the queries that it chooses, and the bound."""
        auxiliary = taught(_AUXILIARY, self._teacher(seed), public, self.settings, seed, stages, self.learnt)
        inputs = at_places(public.x, stages.run.device)
        logits = outputs(auxiliary, inputs).cpu()
        places = select(self.settings.select, logits, self.queries, mix(seed, 9))
        own = inputs.x[torch.from_numpy(places).to(inputs.x.device)].cpu()
        return Questions(auxiliary, places, own, logits, self._bound(public, own, seed, stages))

    def _bound(self, public: Records, queries: Tensor, seed: int, stages: Stages) -> float:
        """B as set, or by a rehearsal in public: a teacher of half the public records, and shards of the other half."""
        if self.settings.bound is not None or self.settings.answers in UNBOUNDED:
            return self.settings.bound or 1.0
        mixed = np.random.default_rng(mix(seed, 10)).permutation(len(public))
        middle = max(1, len(public) // 2)
        first, rest = public.take(mixed[:middle]), public.take(mixed[middle:] if len(public) > 1 else mixed)
        start = taught(_REHEARSAL, self._teacher(seed), first, self.settings, seed, stages, self.learnt)
        rng = np.random.default_rng(mix(seed, 11))
        shards = [rng.integers(0, len(rest), self.each) for _ in range(_REHEARSED)]
        run = Run(device=stages.run.device, progress=stages.run.progress)
        moved = self._asked(start, rest, shards, first, queries, mix(seed, 12), run, "rehearsing in public")
        norms = moved.flatten(1).norm(dim=1) if self.settings.answers == "matrix" else moved.norm(dim=2)
        return max(float(norms.median()), _SMALLEST)

    def moved(self, split: Split, questions: Questions, seed: int, run: Run) -> Tensor:
        """How far every teacher moves the public logits of the queries: private until `publish`."""
        shards, start = shard(split.private, self.answering.teachers, seed), questions.auxiliary
        own = replace(run, checkpoint=run.checkpoint and run.checkpoint / "teachers")
        return self._asked(
            start, split.private, shards, split.public, questions.inputs, mix(seed, 13), own, "training the teachers"
        )

    def publish(self, moved: Tensor, questions: Questions, stream: Stream) -> tuple[Noisy, dpa.DpEvent]:
        """The noisy answers, and their cost."""
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
        """A digest of all that answers are made from."""
        whose = [] if split.private.person is None else [split.private.person]
        parts = (split.private.x, split.private.y, *whose, split.public.x, split.public.y, questions.places)
        own = [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]
        known = [repr(self.answering), self.settings.model_dump(mode="json"), questions.bound, seed, secure]
        known += self.weighing.values()
        weights = questions.auxiliary.state_dict().values()
        return hashlib.sha256(digest([*own, *weights]) + json.dumps(known, sort_keys=True).encode()).hexdigest()

    def _asked(
        self,
        start: nn.Module,
        records: Records,
        shards: list[Index],
        public: Records,
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
            start, records, shards, self.each, public, s.shard_public, queries, recipe, batch, seed, run, label,
            self.learnt,
        )  # fmt: skip

    def _teacher(self, seed: int) -> nn.Module:
        return make_pair((self.teacher_name, self.net_name), self.layers, self.facts, seed)[0]

    def _student(self, questions: Questions, noisy: Noisy, public: Records, seed: int, stages: Stages) -> nn.Module:
        """Hints from the public teacher, then rounds with the noisy answers, and with its own for all other records."""
        s, places = self.settings, questions.places
        net = make_pair((self.teacher_name, self.net_name), self.layers, self.facts, seed)[1].to(stages.run.device)
        training = StudentTraining(s, public, len(places), seed, stages, self.facts.task)
        if self.layers:
            training.learn_hints(net, questions.auxiliary, self.layers, Asked(questions.auxiliary, self.layers[0]))
        answers = questions.logits.clone()
        answers[torch.from_numpy(places)] = to_logits(
            noisy, questions.public, self.answering, questions.bound, s.temperature, s.shrink
        )
        training.learn_in_rounds(net, self._loss(answers), asked=np.arange(len(public)))
        return net

    def _loss(self, answers: Tensor) -> DistillationObjective:
        """Against softened answers; against numbers as they are, of which each lies in the declared range."""
        if self.facts.task == "regression":
            return SquaredLoss(Cached(answers.clamp(-0.5, 0.5)))
        return SoftLoss(Cached(answers), self.settings.temperature)


def court_config(
    epsilon: float, delta: float, kind: Kind = "residuals", task: Task = "classification"
) -> ReleaseConfig:
    """Networks of one layer; a teacher takes one step."""
    own: dict[str, object] = {"shard_learning_rate": 100.0} if kind in UNBOUNDED else {"bound": COURT_BOUND}
    if kind == "matrix":
        own = {"bound": COURT_BOUND * COURT_QUERIES**0.5}
    if kind == "confident-votes":
        own["threshold"] = 0.75
    settings = {
        "teachers": COURT_TEACHERS,
        "queries": COURT_QUERIES,
        "answers": kind,
        "select": "random",
        "teacher": "linear",
        "hint_epochs": 0,
        "teacher_epochs": 200,
        "teacher_learning_rate": 0.05,
        "shard_public": 0,
        "shard_epochs": 1,
        "shard_learning_rate": 0.1,
        **own,
    }
    table: dict[str, object] = {"channel": "student", "method": "ensemble", "data": "court", "net": "linear"}
    if task == "regression":
        table |= {"task": task, "data": {"source": "court", "target": COURT_RANGE.model_dump()}}
    table |= {"device": "cpu"}
    split = {"public": 0.5, "test": 0.0, "holdout": 0.0}
    return from_table({**table, "epsilon": epsilon, "delta": delta, "split": split, "settings": settings})


@cache
def neighbours(seed: int, top: int = 1) -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last and lies in the first shard.

    Args:
        seed: Of the shards.
        top: What stands for label 1.
    """
    small, large = (_scaled(low, label, seed) for low, label in ((1.0, top), (4.0, 0)))
    x = np.stack([small[0], small[1], large[0]])
    both = Records(x, np.array([top, top, 0]))
    return both, both.take(np.arange(2))


def _scaled(low: float, label: int, seed: int) -> list[NDArray[np.float32]]:
    """One input for each shard, between `low` and twice that."""
    x = np.linspace(low, 2 * low, _TRIES, dtype=np.float32)[:, None]
    own = shard(Records(x, np.full(_TRIES, label, np.int64)), COURT_TEACHERS, seed)
    return [x[place[0]] for place in own]


def _top(facts: Facts) -> int:
    """What stands for label 1: the upper end of the range where a number is predicted."""
    return 1 if facts.target is None else STEPS


def court_public(facts: Facts = COURT_FACTS) -> Records:
    """Every input with either label."""
    x = np.repeat(np.linspace(1, 2, COURT_QUERIES, dtype=np.float32), 2)[:, None]
    return Records(x, _top(facts) * (np.arange(len(x)) % 2))


def court_questions(channel: Ensemble) -> Questions:
    """What is public."""
    return channel.questions(
        court_public(channel.facts), channel.config.seed, Stages(Run(device=torch.device("cpu")), {})
    )


def court_moves(channel: Ensemble, questions: Questions, with_record: bool) -> Tensor:
    """How far the teachers move the answers."""
    facts = channel.facts
    private, own = neighbours(channel.config.seed, _top(facts))[0 if with_record else 1], court_public(facts)
    nobody = own.take(np.arange(0))
    split = Split(facts, private, own, nobody, nobody)
    return channel.moved(split, questions, channel.config.seed, Run(device=torch.device("cpu")))


def answers_case(channel: Ensemble) -> Case:
    """The noisy answers of the real method."""
    plan, questions = channel.plan_without_warning(), court_questions(channel)
    means = {known: _exact(channel, court_moves(channel, questions, known), questions) for known in (True, False)}
    move, middle = means[True] - means[False], (means[True] + means[False]) / 2
    spread = channel.answering.noise(questions.bound)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found = court_moves(channel, questions, with_record)
        scores = np.empty((count, 1))
        for i in range(count):
            noisy, executed = channel.publish(found, questions, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            given = ~np.isnan(noisy)
            scores[i] = np.where(given, (noisy - middle) * move, 0.0).sum() / spread**2 + _given(channel, given)
        return scores

    return Case.of_proven(plan.guarantee, PAIR, STATISTICS, run)


def case_of_numbers(epsilon: float, delta: float) -> Case:
    """The case where a number is predicted."""
    return answers_case(Ensemble(court_config(epsilon, delta, task="regression"), COURT_FACTS_OF_NUMBERS))


def _exact(channel: Ensemble, moves: Tensor, questions: Questions) -> Scores:
    """What the answers would be without noise: (queries, classes)."""
    own, logits = channel.answering, questions.public + moves
    if own.kind == "probabilities":
        return np.asarray(torch.softmax(logits.double(), 2).mean(0).numpy())
    if own.kind in UNBOUNDED:
        return np.asarray(torch.nn.functional.one_hot(logits.argmax(2), logits.shape[2]).sum(0).double().numpy())
    flat = moves.flatten(1) if own.kind == "matrix" else moves.flatten(0, 1)
    return np.asarray(bounded(flat, questions.bound).view(moves.shape).mean(0).numpy())


def _given(channel: Ensemble, given: NDArray[np.bool_]) -> float:
    """The log-likelihood ratio, with and without the record, of which answers are given and which are not."""
    if channel.answering.kind != "confident-votes":
        return 0.0
    noise, limit = channel.answering.noise_multiplier, channel.settings.threshold * COURT_TEACHERS
    odds = [norm.logcdf((most - limit) / noise) - norm.logsf((most - limit) / noise) for most in (1.0, COURT_TEACHERS)]
    return float((odds[0] - odds[1]) * given.all(1).sum())


# The canaries: one release of answers, to canaries that are each in or out.
#
# All have the same input and each a class of its own, and there are so many shards that a canary mostly has one to
# itself. Its teacher then moves every answer towards that class, to the edge of the ball: half of what the noise is
# made for, which is all that adding a record to an empty shard can do. The public teacher knows all classes alike. The
# student is computed from the answers, so they are what is scored.

_SHARDS_PER_CANARY = 8
_STATED_PER_CANARY = 100  # records, or people; half of them public
_CANARY_QUERIES = 2
_CANARIES = (
    "the answers of one release on {count:,} canaries{who} each with a class of its own, mostly alone in their shards, "
    "each in or out"
)
_CANARY_SCORE = "all answers' mean move towards the canary's class"


def _canaries_of_answers(method: type[Ensemble], epsilon: float, delta: float, count: int, people: bool) -> Canaries:
    facts = replace(facts_of_canaries(1, _STATED_PER_CANARY * count, people), classes=tuple(map(str, range(count))))
    config = court_config(epsilon, delta)
    settings = {
        **config.settings,
        "teachers": _SHARDS_PER_CANARY * count,
        "queries": _CANARY_QUERIES,
        "teacher_epochs": 1,
    }
    channel = method(config.model_copy(update={"settings": settings}), facts)
    whose = np.repeat(np.arange(count), facts.most or 1)
    sizes = np.tile(np.linspace(1, 2, facts.most or 1, dtype=np.float32), count)[:, None]
    every = Records(sizes, whose, whose if people else None)
    public = Records(np.ones((count, 1), np.float32), np.arange(count), np.arange(count) if people else None)
    questions = channel.questions(public, config.seed, Stages(Run(device=torch.device("cpu")), {}))
    plan = channel.plan_without_warning()

    def run(coins: Coins, stream: Stream) -> Scores:
        split = replace(canary_split(facts, every, coins), public=public)
        moved = channel.moved(split, questions, config.seed, Run(device=torch.device("cpu")))
        noisy, executed = channel.publish(moved, questions, stream)
        check_executed(plan, executed)
        return np.asarray(noisy.sum(0))

    promised = plan.guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    family = less_noise(promised.events, promised.delta, 0.5)  # from the centre of the ball to its edge
    what = _CANARIES.format(count=count, who=people_in_words(facts))
    return Canaries(claim, count, what, _CANARY_SCORE, run, family)

"""How a student learns, whatever its teacher's answers cost: hints, then rounds (Wang et al. 2019, Algorithm 1).

Both take answers in any form: noisy ones that were cached (`Cached`), or a teacher that is queried (`Asked`). What the
student becomes is as private as they are. Everything else, the choice of query samples included, follows from public
records, the public seed, and the student itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from torch import nn

from airlock.config import Frozen, Positive, ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.data.split import Task
from airlock.errors import ConfigError, DataError
from airlock.nets.compact import FAMILY
from airlock.nets.hints import guided
from airlock.training import Recipe, fit
from airlock.training.augment import Name as AugmentName
from airlock.training.augment import named
from airlock.training.distillation.distil import (
    Cached,
    Change,
    DistillationObjective,
    LabelLoss,
    SquaredLoss,
    Stage,
    TeacherAnswers,
    at_places,
    learn_hints,
)
from airlock.training.distillation.rounds import RandomQueries, Rounds, Timetable, outputs
from airlock.training.distillation.selection import Name as SelectName
from airlock.training.distillation.selection import select
from airlock.training.distillation.variations import Vary
from airlock.training.loop import Schedule, mix
from airlock.training.losses import from_the_middle
from airlock.training.sampling import Index
from airlock.training.stages import Stages

HINTS = "hints"  # the name of that stage among `Stages`
HINT_LAYER = "pool1"  # of the paper's family: the teacher's first pool
LEAST_STEPS = 2000  # of a student in all rounds, for methods whose rounds cost nothing
Epochs = Annotated[int, Field(ge=0, le=100_000)]
Count = Annotated[int, Field(ge=1)]


class LearningSettings(Frozen):
    """How a student learns from any kind of answers; the defaults are those of the paper's CIFAR-10 experiment.

    Args:
        hint: The teacher's layer that gives the hints; when left out, the paper's, in the paper's networks.
        guide: The student's layer that learns from them; likewise.
        hint_epochs: T_h; 0 leaves hints out.
        rounds: R.
        self_epochs: T_s, on all public records in a round.
        distil_epochs: T_d, on query samples in a round.
        select: How query samples are chosen before each epoch of distillation.
        select_rate: The share of the public records that are query samples.
        queries: N_q, their number; takes precedence over `select_rate`.
        query_batch: S.
        self_batch: S'.
        learning_rate: Of the student, with Adam.
        temperature: τ.
        schedule: How the student's learning rate moves through the rounds.
        student_augment: Random changes to each public record that the student learns from; it keeps its label or
            answer.
        precision: Of all training, on a GPU.
    """

    hint: str | None = None
    guide: str | None = None
    hint_epochs: Epochs = 40
    rounds: Count = 5
    self_epochs: Epochs = 8
    distil_epochs: Annotated[int, Field(ge=1, le=100_000)] = 8
    select: SelectName = "k-centre"
    select_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    queries: Count | None = None
    query_batch: Count = 512
    self_batch: Count = 128
    learning_rate: Positive = 0.001
    temperature: Positive = 3.0
    schedule: Schedule = "constant"
    student_augment: AugmentName = "none"
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"


S = TypeVar("S", bound=LearningSettings)


def with_free_rounds(settings: S, config: ReleaseConfig, facts: Facts, queries: int) -> S:
    """Settings with enough rounds for `LEAST_STEPS` steps, unless the user says how many.

    For methods whose answers are free, or paid for before the student learns: rounds then cost nothing, and with few
    public records epochs are short, so that a student learns little from each.

    Args:
        settings: As parsed.
        config: The release.
        facts: What is public about the records.
        queries: Query samples in an epoch, as a public figure.
    """
    if "rounds" in config.settings:
        return settings
    s, public = settings, facts.expected("public", config.split)
    one = Timetable(1, s.self_epochs, s.distil_epochs, public, queries, s.self_batch, s.query_batch).steps
    return settings.model_copy(update={"rounds": max(s.rounds, -(-LEAST_STEPS // one))})


def check_public(settings: LearningSettings, public: int) -> None:
    """Refuse to go on without public records, or with fewer than there are query samples.

    Args:
        settings: How a student learns.
        public: The public number of public records.

    Raises:
        ConfigError: There are too few.
    """
    if not public:
        raise ConfigError(
            "public records for a student to learn from",
            "none",
            "A student never sees a private one.",
            "Set split.public, 0.8 in the paper.",
        )
    if settings.queries is not None and settings.queries > public:
        raise ConfigError(
            f"at most {public} settings.queries, the public number of public records",
            f"{settings.queries}",
            "Query samples are chosen among them, without repetition.",
            "Lower it, or raise split.public.",
        )


def for_the_task(settings: S, config: ReleaseConfig, facts: Facts, of_classes: Sequence[str]) -> S:
    """The settings for what is learnt: where that is a number, those that are about classes are refused.

    Args:
        settings: As parsed.
        config: The release.
        facts: What is public about the records.
        of_classes: The names of settings that are about classes alone; a selection may be random.

    Raises:
        ConfigError: The config names one of them.
    """
    if facts.task == "classification":
        return settings
    given = [name for name in of_classes if config.settings.get(name, "random") != "random"]
    if given:
        raise ConfigError(
            f"no settings.{given[0]} where a number is predicted",
            f"{config.settings[given[0]]!r}",
            "It is about how likely classes are, and there are none.",
            "Leave it out.",
        )
    return settings.model_copy(update={"select": "random"})


def hint_layers(settings: LearningSettings, teacher: str, student: str) -> tuple[str, str] | None:
    """The names of the hint layer and the guided layer; None if there are no hints.

    Raises:
        ConfigError: One is not named, and the networks are not the paper's.
    """
    if not settings.hint_epochs:
        return None
    hint = settings.hint or (HINT_LAYER if teacher in FAMILY else None)
    guide = settings.guide or (FAMILY[student][0].guide if student in FAMILY else None)
    if hint is None or guide is None:
        raise ConfigError(
            "settings.hint and settings.guide for networks of your own",
            "one of them is left out",
            "Airlock cannot guess which layers correspond.",
            "Name a layer of the teacher and one of the student, or set hint_epochs = 0.",
        )
    return hint, guide


@dataclass(frozen=True)
class StudentTraining:
    """The training of one student.

    Args:
        settings: How it learns.
        public: The public records.
        queries: N_q; all public records if there are fewer.
        seed: Public.
        stages: The trainings of this run.
        task: What it learns: which class a record has, or a number.
    """

    settings: LearningSettings
    public: Records
    queries: int
    seed: int
    stages: Stages
    task: Task = "classification"

    def learn_hints(
        self,
        net: nn.Module,
        teacher: nn.Module,
        layers: tuple[str, str],
        answers: TeacherAnswers,
        change: Change | None = None,
    ) -> None:
        """Train the student up to its guided layer to match hints, on query samples that are chosen at random.

        Args:
            net: The student, trained in place.
            teacher: Any network of the teacher's shape: it only determines the size of the hints.
            layers: The teacher's hint layer and the student's guided layer, by name.
            answers: The hints.
            change: Applied to the loss of every batch.
        """
        s, count = self.settings, min(self.queries, len(self.public))
        inputs = at_places(self.public.x, self.stages.run.device)
        pupil = guided(net, layers[1], teacher, layers[0], self.public.x.shape[1:], mix(self.seed, 3))
        sampler = RandomQueries(count, s.query_batch, mix(self.seed, 4))
        recipe, augment = self._recipe(s.hint_epochs * -(-count // s.query_batch)), named(s.student_augment)

        self.stages.train(
            HINTS,
            pupil,
            [inputs.x],
            lambda run: learn_hints(
                pupil, inputs, answers, Stage(sampler, recipe, mix(self.seed, 5), run, augment, change)
            ),
            answers.mark,
        )

    def learn_in_rounds(
        self,
        net: nn.Module,
        answers: DistillationObjective,
        change: Change | None = None,
        asked: Index | None = None,
        alone: DistillationObjective | None = None,
        vary: Vary | None = None,
    ) -> None:
        """Train the whole student, in rounds of learning from public labels and from answers about query samples.

        Args:
            net: The student, trained in place.
            answers: The loss against the answers, which exist for every public record.
            change: Applied to the loss of every batch of the second kind.
            asked: The positions of the query samples of every epoch, if the student does not choose them itself.
            alone: The loss of the epochs on all public records, if it is not that of their labels.
            vary: Changes inputs that have no label; answers must then be computed on demand.
        """
        s, run = self.settings, self.stages.run
        count = min(self.queries, len(self.public)) if asked is None else len(asked)
        inputs = at_places(self.public.x, run.device)
        table = Timetable(s.rounds, s.self_epochs, s.distil_epochs, len(inputs), count, s.self_batch, s.query_batch)

        def choose(own: nn.Module, epoch: int) -> Index:
            if asked is not None:
                return asked
            return select(s.select, outputs(own, inputs), count, mix(mix(self.seed, 6), epoch))

        rounds = Rounds(
            net,
            table,
            choose,
            alone or self._of_labels(),
            answers,
            mix(self.seed, 7),
            change,
            vary,
        )
        own = replace(run, checkpoint=run.checkpoint and run.checkpoint / "rounds")
        fit(net, inputs, rounds, rounds, self._recipe(table.steps, s.schedule), mix(self.seed, 8), own,
            named(s.student_augment), "teaching the student")  # fmt: skip

    def _of_labels(self) -> DistillationObjective:
        """The loss against the public labels, or the public targets."""
        if self.task == "classification":
            return LabelLoss(Cached(self.public.y))
        return SquaredLoss(Cached(from_the_middle(torch.from_numpy(self.public.y)).float()))

    def _recipe(self, steps: int, schedule: Schedule = "constant") -> Recipe:
        s = self.settings
        return Recipe(
            steps=steps,
            optimiser="adam",
            learning_rate=s.learning_rate,
            schedule=schedule,
            precision=s.precision,
            channels_last=True,
        )


def check_split(split: Split, facts: Facts, queries: int | None) -> None:
    """Refuse public records that a student cannot learn from, before anything is trained.

    Public records may lack some of the classes: the student then learns those from the teacher alone.

    Args:
        split: The records.
        facts: What is public about them.
        queries: How many query samples the settings ask for, if they say.

    Raises:
        DataError: About the public records; it says nothing about the private ones.
    """
    public, classes = split.public, len(facts.classes)
    if not len(public):
        raise DataError("at least one public record after the split", "none", do="Raise split.public.")
    if public.x.shape[1:] != split.private.x.shape[1:] or public.x.dtype != split.private.x.dtype:
        raise DataError(
            "public records of the shape and type of the private ones",
            f"public records of shape {public.x.shape[1:]} and type {public.x.dtype}",
            "One teacher learns from both.",
        )
    if facts.target is None and (public.y.min() < 0 or public.y.max() >= classes):
        raise DataError(
            f"public labels of the {classes} classes of the private records (0 to {classes - 1})",
            f"labels from {public.y.min()} to {public.y.max()}",
            "The same output would mean different classes to teacher and student.",
            "Give the public records the labels of the same classes.",
        )
    if queries is not None and queries > len(public):
        raise DataError(
            f"at least {queries} public records, as settings.queries says",
            f"{len(public)}",
            "Query samples are chosen among them, without repetition.",
            "Lower settings.queries, or raise split.public.",
        )

"""How a student learns, whatever its teacher's answers cost: hints, then rounds (Wang et al. 2019, Algorithm 1).

Both take answers as they come: noisy ones that were cached (`Cached`), or a teacher that is asked (`Asked`). What the
student becomes is as private as they are. Everything else, the choice of query samples included, follows from public
records, the public seed, and the student itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from airlock.data import Records, Split
from airlock.errors import DataError
from airlock.methods.student.settings import LearningSettings
from airlock.nets.hints import guided
from airlock.training import Recipe, fit
from airlock.training.augment import named
from airlock.training.distillation.distil import (
    Cached,
    Change,
    DistillationObjective,
    LabelLoss,
    Stage,
    TeacherAnswers,
    at_places,
    learn_hints,
)
from airlock.training.distillation.rounds import RandomQueries, Rounds, Timetable, outputs
from airlock.training.distillation.selection import select
from airlock.training.distillation.variations import Vary
from airlock.training.loop import Schedule, mix
from airlock.training.sampling import Index
from airlock.training.stages import Stages

HINTS = "hints"  # the name of that stage among `Stages`


@dataclass(frozen=True)
class School:
    """Where one student learns.

    Args:
        settings: How.
        public: The public records.
        queries: N_q; all public records where there are fewer.
        seed: Public.
        stages: The trainings of this run.
    """

    settings: LearningSettings
    public: Records
    queries: int
    seed: int
    stages: Stages

    def take_hints(
        self,
        net: nn.Module,
        teacher: nn.Module,
        layers: tuple[str, str],
        answers: TeacherAnswers,
        change: Change | None = None,
    ) -> None:
        """Train the student up to its guided layer towards hints, on query samples that are chosen at random.

        Args:
            net: The student, trained in place.
            teacher: Any network of the teacher's shape: it gives the size of the hints, and nothing else.
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

    def take_rounds(
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
            answers: The loss against the answers, which are there for every public record.
            change: Applied to the loss of every batch of the second kind.
            asked: The places of the query samples of every epoch, where the student does not choose them itself.
            alone: The loss of the epochs on all public records, where it is not that of their labels.
            vary: Changes inputs that no label goes with; answers must be computed when they are needed.
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
            alone or LabelLoss(Cached(self.public.y)),
            answers,
            mix(self.seed, 7),
            change,
            vary,
        )
        own = replace(run, checkpoint=run.checkpoint and run.checkpoint / "rounds")
        fit(net, inputs, rounds, rounds, self._recipe(table.steps, s.schedule), mix(self.seed, 8), own,
            named(s.student_augment), "teaching the student")  # fmt: skip

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


def check_split(split: Split, classes: int, queries: int | None) -> None:
    """Refuse public records that a student cannot learn from, before anything is trained.

    Public records may lack some of the classes: those are then learnt from the teacher alone.

    Args:
        split: The records.
        classes: How many there are.
        queries: How many query samples are asked for, if it is a number.

    Raises:
        DataError: Of the public records; it says nothing of the private ones.
    """
    public = split.public
    if not len(public):
        raise DataError("at least one public record after the split", "none", do="Raise split.public.")
    if public.x.shape[1:] != split.private.x.shape[1:] or public.x.dtype != split.private.x.dtype:
        raise DataError(
            "public records of the shape and type of the private ones",
            f"public records of shape {public.x.shape[1:]} and type {public.x.dtype}",
            "One teacher learns from both.",
        )
    if public.y.min() < 0 or public.y.max() >= classes:
        raise DataError(
            f"public labels of the {classes} classes of the private records (0 to {classes - 1})",
            f"labels from {public.y.min()} to {public.y.max()}",
            "Teacher and student would mean different classes by the same output.",
            "Give the public records the labels of the same classes.",
        )
    if queries is not None and queries > len(public):
        raise DataError(
            f"at least {queries} public records, as settings.queries says",
            f"{len(public)}",
            "Query samples are chosen among them, without repetition.",
            "Lower settings.queries, or raise split.public.",
        )

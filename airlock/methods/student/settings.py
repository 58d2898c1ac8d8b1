"""The settings of `student`: how a student learns, what is `published`'s own, and what suits data sets by name."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field

from airlock.config import Frozen, Positive, ReleaseConfig, parse
from airlock.data import Facts
from airlock.errors import ConfigError
from airlock.nets.compact import FAMILY
from airlock.training.augment import Name as AugmentName
from airlock.training.distillation.rounds import Timetable
from airlock.training.distillation.selection import Name as SelectName
from airlock.training.loop import Schedule

Epochs = Annotated[int, Field(ge=0, le=100_000)]
Count = Annotated[int, Field(ge=1)]
HINT = "pool1"  # of the paper's family: the teacher's first pool
STEPS = 2000  # of a student's rounds, at least, where they cost nothing
_SMALL: dict[str, object] = {"hint_epochs": 10, "rounds": 3, "self_epochs": 4, "distil_epochs": 4}
_BY_NAME: dict[str, dict[str, object]] = {
    "digits": {**_SMALL, "query_batch": 64, "self_batch": 32, "learning_rate": 0.003, "teacher_epochs": 30,
               "teacher_batch": 32},
    "mnist": {**_SMALL, "teacher_epochs": 30},
}  # fmt: skip
# Teacher and student by data set, and by shape where the data set is another.
_PAIRS = {
    "digits": ("rona-digits-teacher", "rona-digits-student"),
    "mnist": ("rona-mnist-teacher", "rona-mnist-s2"),
    "svhn": ("rona-svhn-teacher", "rona-svhn-s2"),
    "cifar10": ("rona-cifar-teacher", "rona-cifar-s2"),
}


class LearningSettings(Frozen):
    """How a student learns, by whatever answers; defaults are those of the paper's CIFAR-10 experiment.

    Args:
        hint: The teacher's layer that gives the hints; left out, the paper's in the paper's networks.
        guide: The student's layer that learns from them; likewise.
        hint_epochs: T_h; 0 leaves hints out.
        rounds: R.
        self_epochs: T_s, on all public records in a round.
        distil_epochs: T_d, on query samples in a round.
        select: How query samples are chosen before each epoch of distillation.
        select_rate: The share of the public records that are query samples.
        queries: N_q, their number; goes before `select_rate`.
        query_batch: S.
        self_batch: S'.
        learning_rate: Of the student, with Adam.
        temperature: τ.
        schedule: How the student's learning rate moves through the rounds.
        student_augment: Random changes to each public record that the student learns from, its label or answer being
            that of the record.
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


class TeacherSettings(LearningSettings):
    """The same with teachers, of whose training the paper says nothing.

    Args:
        teacher: The teacher's network: built-in, `package.module:function`, or "auto".
        teacher_epochs: Of a teacher that learns from all its records.
        teacher_batch: Records in a step of a teacher's.
        teacher_learning_rate: With Adam.
        teacher_schedule: How it moves.
        teacher_augment: Random changes to each record of the teachers.
    """

    teacher: str = "auto"
    teacher_epochs: Annotated[int, Field(ge=1, le=100_000)] = 100
    teacher_batch: Count = 128
    teacher_learning_rate: Positive = 0.001
    teacher_schedule: Schedule = "cosine"
    teacher_augment: AugmentName = "none"


class PublishedSettings(TeacherSettings):
    """The same with the paper's noise.

    Args:
        noise_scale: σ; left out, what Theorem 2 as read here asks for at the config's ε.
        bound: B; left out, the running mean of the loss against the auxiliary teacher.
    """

    noise_scale: Positive | None = None
    bound: Positive | None = None


OfTeachers = TypeVar("OfTeachers", bound=TeacherSettings)


def settings_for(config: ReleaseConfig, facts: Facts, kind: type[OfTeachers]) -> OfTeachers:
    """The user's settings over the defaults for this data.

    Raises:
        ConfigError: Settings that contradict each other or ask for what is not there.
    """
    settings = parse(kind, {**_BY_NAME.get(facts.name, {}), **config.settings}, where="settings")
    check_public(settings, facts.expected("public", config.split))
    for key in ("teacher_augment", "student_augment"):
        if getattr(settings, key) != "none" and len(facts.shape) != 3:
            raise ConfigError(f'images for settings.{key} other than "none"', f"records of shape {facts.shape}")
    return settings


def with_free_rounds(settings: OfTeachers, config: ReleaseConfig, facts: Facts, queries: int) -> OfTeachers:
    """As many rounds as make `STEPS` steps, where the user has not said how many.

    For methods whose answers are paid for, or free, before the student learns: rounds then cost nothing, and few public
    records make short epochs, after which a student knows little.

    Args:
        settings: As parsed.
        config: The release.
        facts: What is public about the records.
        queries: Query samples of an epoch, as a public figure.
    """
    if "rounds" in config.settings:
        return settings
    s, public = settings, facts.expected("public", config.split)
    one = Timetable(1, s.self_epochs, s.distil_epochs, public, queries, s.self_batch, s.query_batch).steps
    return settings.model_copy(update={"rounds": max(s.rounds, -(-STEPS // one))})


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
            "It never sees a private one.",
            "Set split.public, 0.8 in the paper.",
        )
    if settings.queries is not None and settings.queries > public:
        raise ConfigError(
            f"at most {public} settings.queries, the public number of public records",
            f"{settings.queries}",
            "Query samples are chosen among them, without repetition.",
            "Lower it, or raise split.public.",
        )


def net_names(teacher: str, student: str, facts: Facts) -> tuple[str, str]:
    """Teacher and student, by the data set or the shape of its records where they are not named.

    Raises:
        ConfigError: They are not named, and the paper has none for such records.
    """
    known = _PAIRS.get(facts.name) or _by_shape(facts.shape)
    if known is None and "auto" in (teacher, student):
        raise ConfigError(
            "`net` and settings.teacher for records that are no images of at least 4 pixels a side",
            "one of them is left out",
            "The paper's networks take images.",
            'Name both, for instance net = "linear" and teacher = "mlp", or your own.',
        )
    own = known or ("", "")
    return own[0] if teacher == "auto" else teacher, own[1] if student == "auto" else student


def _by_shape(shape: tuple[int, ...]) -> tuple[str, str] | None:
    if len(shape) != 3 or min(shape[1:]) < 4:
        return None
    if max(shape[1:]) <= 16:
        return _PAIRS["digits"]
    return _PAIRS["mnist"] if shape[0] == 1 else _PAIRS["cifar10"]


def lacking(facts: Facts, config: ReleaseConfig) -> dict[str, str]:
    """Which classes have no public record, for a plan."""
    names = ", ".join(facts.classes[label] for label in facts.without(config.split))
    return {"classes_without_public_records": names} if names else {}


def hint_layers(settings: LearningSettings, teacher: str, student: str) -> tuple[str, str] | None:
    """The names of the hint and the guided layer; None where there are no hints.

    Raises:
        ConfigError: One is not named, and the networks are not the paper's.
    """
    if not settings.hint_epochs:
        return None
    hint = settings.hint or (HINT if teacher in FAMILY else None)
    guide = settings.guide or (FAMILY[student][0].guide if student in FAMILY else None)
    if hint is None or guide is None:
        raise ConfigError(
            "settings.hint and settings.guide for networks of your own",
            "one of them is left out",
            "Which layers correspond cannot be guessed.",
            "Name a layer of the teacher and one of the student, or set hint_epochs = 0.",
        )
    return hint, guide

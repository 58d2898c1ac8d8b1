"""Teachers: one on given records, or K of them on disjoint shards. None of them is private, and none of them leaves.

The teachers of shards start from one public network, and see their own shards and public records, so that they do not
forget what those had taught them. Every shard is brought to the same public number of records, by repeating its own or
leaving out those with the largest digests: teachers are then trained side by side in tensors whose shapes reveal
nothing about the records, and one teacher's numbers stay the same to the last bit, whatever another shard holds. All
randomness here comes from public seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.config import Positive, ReleaseConfig, parse
from airlock.data import Facts, Records
from airlock.data.split import even
from airlock.errors import ConfigError
from airlock.methods.dp_sgd import checked, require_for_texts
from airlock.methods.student.answering import centred
from airlock.methods.student.learning import Count, LearningSettings, check_public
from airlock.nets import create, default_name
from airlock.nets.bert import COMPACT, with_tokens
from airlock.nets.domain import declare
from airlock.nets.hints import guided
from airlock.training import (
    ClassWeights,
    PlainGradients,
    Recipe,
    Resident,
    Run,
    Shuffled,
    fit,
    outcomes_of,
    train_together,
)
from airlock.training.augment import Name as AugmentName
from airlock.training.augment import named
from airlock.training.distillation.distil import at_places
from airlock.training.distillation.rounds import outputs
from airlock.training.gradients import MEAN, MeanLoss, ObjectiveGradients
from airlock.training.loop import Schedule, mix
from airlock.training.losses import loss_for
from airlock.training.stages import Stages

Index = NDArray[np.int64]

_SMALL: dict[str, object] = {"hint_epochs": 10, "rounds": 3, "self_epochs": 4, "distil_epochs": 4}
_BY_NAME: dict[str, dict[str, object]] = {
    "digits": {**_SMALL, "query_batch": 64, "self_batch": 32, "learning_rate": 0.003, "teacher_epochs": 30,
               "teacher_batch": 32},
    "mnist": {**_SMALL, "teacher_epochs": 30},
}  # fmt: skip
# Teacher and student by data set, and by shape for any other.
_PAIRS = {
    "digits": ("rona-digits-teacher", "rona-digits-student"),
    "mnist": ("rona-mnist-teacher", "rona-mnist-s2"),
    "svhn": ("rona-svhn-teacher", "rona-svhn-s2"),
    "cifar10": ("rona-cifar-teacher", "rona-cifar-s2"),
}


class TeacherSettings(LearningSettings):
    """The same with teachers; the paper does not say how it trained them.

    Args:
        teacher: The teacher's network: built-in, `package.module:function`, or "auto".
        teacher_epochs: Of a teacher that learns from all its records.
        teacher_batch: Records in one of a teacher's steps.
        teacher_learning_rate: With Adam.
        teacher_schedule: How it moves.
        teacher_augment: Random changes to each record that a teacher learns from.
    """

    teacher: str = "auto"
    teacher_epochs: Annotated[int, Field(ge=1, le=100_000)] = 100
    teacher_batch: Count = 128
    teacher_learning_rate: Positive = 0.001
    teacher_schedule: Schedule = "cosine"
    teacher_augment: AugmentName = "none"


S = TypeVar("S", bound=TeacherSettings)


def settings_for(config: ReleaseConfig, facts: Facts, kind: type[S]) -> S:
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


def net_names(teacher: str, student: str, facts: Facts) -> tuple[str, str]:
    """Teacher and student; those that are not named follow from the data set or the shape of its records.

    Raises:
        ConfigError: One is not named, and the paper has none for such records.
    """
    require_for_texts(teacher, facts, "settings.teacher")
    require_for_texts(student, facts)
    known = _PAIRS.get(facts.name) or _by_shape(facts.shape)
    if facts.vocabulary is not None:
        known = default_name(facts.shape, facts.vocabulary), COMPACT
    if known is None and "auto" in (teacher, student):
        raise ConfigError(
            "`net` and settings.teacher for records that are not images of at least 4 pixels a side",
            "one of them is left out",
            "The paper's networks take images.",
            'Name both, for instance net = "linear" and teacher = "mlp", or your own.',
        )
    own = known or ("", "")
    chosen = own[0] if teacher == "auto" else teacher, own[1] if student == "auto" else student
    return with_tokens(chosen[0], facts.vocabulary), with_tokens(chosen[1], facts.vocabulary)


def _by_shape(shape: tuple[int, ...]) -> tuple[str, str] | None:
    if len(shape) != 3 or min(shape[1:]) < 4:
        return None
    if max(shape[1:]) <= 16:
        return _PAIRS["digits"]
    return _PAIRS["mnist"] if shape[0] == 1 else _PAIRS["cifar10"]


def lacking(facts: Facts, config: ReleaseConfig) -> dict[str, str]:
    """Which classes have no public record, for the details of a plan."""
    names = ", ".join(facts.classes[label] for label in facts.without(config.split))
    return {"classes_without_public_records": names} if names else {}


def make_pair(
    names: tuple[str, str], layers: tuple[str, str] | None, facts: Facts, seed: int
) -> tuple[nn.Module, nn.Module]:
    """Teacher and student, freshly initialised; checks both, and that hints fit.

    Args:
        names: Of both networks.
        layers: The hint layer and the guided layer, if there are hints.
        facts: Of the data.
        seed: Public.
    """
    shape, classes = facts.shape, facts.outputs
    for name in names:
        checked(declare(create(name, shape, classes, seed), facts.vocabulary), name, facts)
    teacher, student = (declare(create(name, shape, classes, seed), facts.vocabulary) for name in names)
    if layers:
        guided(student, layers[1], teacher, layers[0], shape, seed)
    return teacher, student


def taught(
    name: str,
    net: nn.Module,
    records: Records,
    settings: TeacherSettings,
    seed: int,
    stages: Stages,
    objective: MeanLoss = MEAN,
) -> nn.Module:
    """This network, trained on these records as one stage of the run."""
    s, data = settings, Resident(records, stages.run.device)
    gradients = PlainGradients() if objective == MEAN else ObjectiveGradients(objective)
    recipe = Recipe(
        steps=s.teacher_epochs * -(-len(records) // s.teacher_batch),
        optimiser="adam",
        learning_rate=s.teacher_learning_rate,
        schedule=s.teacher_schedule,
        precision=s.precision,
        channels_last=True,
    )

    def train(run: Run) -> None:
        fit(net, data, Shuffled(s.teacher_batch, mix(seed, 1)), gradients, recipe, mix(seed, 2), run,
            named(s.teacher_augment), f"training the {name}")  # fmt: skip

    stages.train(name, net, [data.x, data.y], train)
    return net.eval()


def objective_of(facts: Facts, class_weights: ClassWeights | None) -> MeanLoss:
    """What a teacher without privacy minimises: the mean loss of what is learnt, each class with its weight."""
    return MeanLoss(0.0, class_weights, loss_for(facts))


def measured(name: str, net: nn.Module, records: Records, facts: Facts) -> dict[str, float]:
    """How good a teacher is, for the dossier: its accuracy, or its error as a share of the range."""
    found = outcomes_of(net, records, facts.task)
    if facts.task == "classification":
        return {f"{name}_accuracy": found.accuracy}
    return {f"{name}_error_over_the_range": found.error_over_the_range}


def for_vault(net: nn.Module) -> dict[str, NDArray[Any]]:
    """A teacher's tensors by name: it stays, and may be attacked along with the student."""
    return {name: value.detach().cpu().numpy() for name, value in net.state_dict().items()}


def ask_shards(
    start: nn.Module,
    records: Records,
    shards: Sequence[Index],
    each: int,
    public: Records,
    public_per_record: int,
    queries: Tensor,
    recipe: Recipe,
    batch: int,
    seed: int,
    run: Run,
    label: str,
    objective: MeanLoss = MEAN,
) -> Tensor:
    """How far every shard's teacher moved the logits it started with: (shards, queries, classes), on the CPU.

    Logits that differ by a constant are the same to a softmax, so every difference is `centred`. A shard without
    records differs by 0. Row k depends on the records of shard k and on public figures, and on nothing else.

    Args:
        start: The public network that all teachers begin as; it stays as it is.
        records: The private ones.
        shards: Positions of each shard's records.
        each: The number of records that every shard is brought to; public.
        public: Public records.
        public_per_record: How many of them a teacher sees for each record of its shard, chosen at random.
        queries: Public inputs.
        recipe: How a teacher is trained.
        batch: Records in a step.
        seed: Public.
        run: Device, progress, checkpoints.
        label: For the progress bar.
        objective: What a teacher minimises.
    """
    blank = np.zeros((1, *records.x.shape[1:]), records.x.dtype)
    whole = Records(np.concatenate([records.x, blank, public.x]), np.concatenate([records.y, [0], public.y]))
    rng, nobody = np.random.default_rng(mix(seed, 1)), np.array([len(records)])
    drawn = rng.integers(0, len(public), (len(shards), public_per_record * each)) + len(records) + 1
    members = [
        np.append(even(own if len(own) else nobody, each), more) for own, more in zip(shards, drawn, strict=True)
    ]
    first = copy.deepcopy(start).cpu()
    made = train_together(
        lambda _: copy.deepcopy(first), len(shards), Resident(whole, run.device), members, recipe, seed, run,
        label=label, batch_size=batch, objective=objective,
    )  # fmt: skip
    asked = at_places(queries.cpu().numpy(), run.device)
    moved = made.logits(asked) - outputs(start, asked).cpu()
    moved[torch.tensor([not len(own) for own in shards])] = 0.0
    return centred(moved)

"""Distillation: a student learns from answers about public inputs, from hints, and from public labels.

In: public inputs, with a target for each. Targets are *answers*, looked up by a record's index (`Cached`) or computed
by a teacher on demand (`Asked`): a caller that has paid for noisy answers passes an array of them, and every epoch
after that is free. Out: the student, trained in place by the one loop and resumable like any other training.

    learn_hints    ½‖r(g(x)) − z‖² per record: the student up to its guided layer, with its adapter (nets.hints.Guided)
    SquaredLoss    the same of outputs that are numbers, not classes
    distil         the cross-entropy of softened outputs, softmax(z/τ) of the answers and of the student
    MatchLoss      the squared distance of logits instead, which also separates classes that are never ranked first
    learn_labels   cross-entropy with public labels

There is no privacy mechanism here: the student is as private as its targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.data.limits import Array
from airlock.errors import TrainingError
from airlock.mechanisms import Stream
from airlock.nets.hints import Guided, output_at
from airlock.training.devices import Resident
from airlock.training.distillation.variations import Vary
from airlock.training.distributed import digest
from airlock.training.loop import Augment, Recipe, Run, fit, mix
from airlock.training.sampling import Sampler


class TeacherAnswers(Protocol):
    """Targets for inputs."""

    @property
    def mark(self) -> str:
        """What a checkpoint must match: a digest of the source of the answers."""
        ...

    def __call__(self, x: Tensor, place: Tensor) -> Tensor:
        """The targets of these inputs, which are at these indices of the public records."""
        ...


class Cached:
    """Answers that were given once: row i belongs to input i."""

    def __init__(self, rows: Tensor | NDArray[np.generic]) -> None:
        self.rows = rows if isinstance(rows, Tensor) else torch.from_numpy(np.ascontiguousarray(rows))

    @property
    def mark(self) -> str:
        """A digest of all rows."""
        return digest([self.rows]).hex()

    def __call__(self, x: Tensor, place: Tensor) -> Tensor:
        """The rows at these indices, on the inputs' device."""
        if self.rows.device != x.device and self.rows.numel() < 1 << 28:
            self.rows = self.rows.to(x.device)
        return self.rows.index_select(0, place.to(self.rows.device)).to(x.device)


class Asked:
    """A teacher's answers on demand: its logits, or the output of one of its layers."""

    def __init__(self, net: nn.Module, layer: str | None = None) -> None:
        self.net, self.layer = net.eval(), layer

    @property
    def mark(self) -> str:
        """A digest of the teacher's weights, and the layer that is used."""
        return digest(list(self.net.state_dict().values())).hex() + f"/{self.layer}"

    @torch.no_grad()
    def __call__(self, x: Tensor, place: Tensor) -> Tensor:
        """The answers to these inputs, without a gradient."""
        found: Tensor = self.net(x) if self.layer is None else output_at(self.net, self.layer, x, "teacher")
        return found.float()


class DistillationObjective(Protocol):
    """A loss of a student's outputs on a batch: of each of its records, and the mean over them."""

    @property
    def mark(self) -> dict[str, object]:
        """What a checkpoint must match."""
        ...

    def each(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """The losses of outputs for these inputs, which are at these indices."""
        ...

    def __call__(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """Their mean."""
        ...


class SquaredLoss:
    """½‖output − answer‖², the mean over records: of hints (Eq. 3), and of numbers."""

    def __init__(self, answers: TeacherAnswers) -> None:
        self.answers = answers

    @property
    def mark(self) -> dict[str, object]:
        """Its kind and its answers."""
        return {"loss": "squared", "answers": self.answers.mark}

    def each(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """Of each record."""
        return 0.5 * (outputs - self.answers(x, place).float()).square().flatten(1).sum(1)

    def __call__(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """The mean over the batch."""
        return self.each(outputs, x, place).mean()


class SoftLoss:
    """The cross-entropy of softmax(output/τ) with softmax(answer/τ), the mean over records (Eq. 4)."""

    def __init__(self, answers: TeacherAnswers, temperature: float) -> None:
        self.answers, self.temperature = answers, temperature

    @property
    def mark(self) -> dict[str, object]:
        """Its kind, its temperature and its answers."""
        return {"loss": "soft", "temperature": self.temperature, "answers": self.answers.mark}

    def each(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """Of each record."""
        wanted = torch.softmax(self.answers(x, place).float() / self.temperature, 1)
        return -(wanted * torch.log_softmax(outputs / self.temperature, 1)).sum(1)

    def __call__(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """The mean over the batch."""
        return self.each(outputs, x, place).mean()


class MatchLoss:
    """½(output − answer)², the mean over classes and records; both centred over the classes."""

    def __init__(self, answers: TeacherAnswers) -> None:
        self.answers = answers

    @property
    def mark(self) -> dict[str, object]:
        """Its kind and its answers."""
        return {"loss": "match", "answers": self.answers.mark}

    def each(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """Of each record."""
        apart = outputs - self.answers(x, place).float()
        return 0.5 * (apart - apart.mean(1, keepdim=True)).square().mean(1)

    def __call__(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """The mean over the batch."""
        return self.each(outputs, x, place).mean()


class LabelLoss:
    """Cross-entropy with labels, the mean over records (Eq. 5)."""

    def __init__(self, labels: TeacherAnswers) -> None:
        self.labels = labels

    @property
    def mark(self) -> dict[str, object]:
        """Its kind and the labels."""
        return {"loss": "labels", "answers": self.labels.mark}

    def each(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """Of each record."""
        return F.cross_entropy(outputs, self.labels(x, place), reduction="none")

    def __call__(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """The mean over the batch."""
        return F.cross_entropy(outputs, self.labels(x, place))


class Change(Protocol):
    """A change to a batch's loss before its gradient is taken; it may have a state and draw noise."""

    stream: Stream
    by_record: bool  # whether it takes the losses of single records rather than their mean

    def state(self) -> dict[str, Tensor]:
        """The state that the next step depends on."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from this state."""
        ...

    def __call__(self, loss: Tensor, outputs: Tensor, x: Tensor, place: Tensor, step: int) -> Tensor:
        """The changed loss, a number; `outputs` have no gradient. A constant loss leaves the student unchanged."""
        ...


class LossGradients:
    """The gradient of an objective, for the loop; the records' labels are their indices.

    Args:
        objective: The loss.
        change: Applied to the loss of every batch.
        vary: Changes the inputs of a batch; the answers are for the changed inputs.
        seed: The seed of these changes; public.
    """

    def __init__(
        self, objective: DistillationObjective, change: Change | None = None, vary: Vary | None = None, seed: int = 0
    ) -> None:
        self.objective, self.change, self.vary, self.seed = objective, change, vary, seed
        self.stream = change.stream if change else None

    @property
    def mark(self) -> dict[str, object]:
        """The mark of the objective, and whether it is changed."""
        varied = {"varied": self.seed} if self.vary else {}
        return {"gradients": "distil", **self.objective.mark, "changed": self.change is not None, **varied}

    def state(self) -> dict[str, Tensor]:
        """The state of the change."""
        return self.change.state() if self.change else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Pass the state on to the change."""
        if self.change:
            self.change.load_state(state)

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Backward through the loss; a layer that it does not depend on gets no gradient and does not change.

        Neither does the whole student if the changed loss does not depend on it: otherwise an optimiser with momentum
        would keep moving with no loss to hold it back.
        """
        net.zero_grad(set_to_none=True)
        if self.vary:
            x = self.vary(x, torch.Generator(device=x.device).manual_seed(mix(self.seed, step)))
        outputs = net(x).float()
        each = self.change is not None and self.change.by_record
        loss = self.objective.each(outputs, x, y) if each else self.objective(outputs, x, y)
        if self.change:
            loss = self.change(loss, outputs.detach(), x, y, step)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]


Targets = TeacherAnswers | Tensor | NDArray[np.generic]


@dataclass(frozen=True)
class Stage:
    """How one stage is carried out.

    Args:
        sampler: Which inputs enter a step.
        recipe: How to optimise.
        seed: Public.
        run: Device, progress, checkpoints.
        augment: Changes to the inputs; answers computed on demand see the changed inputs.
        change: Applied to the loss of every batch.
    """

    sampler: Sampler
    recipe: Recipe
    seed: int
    run: Run
    augment: Augment | None = None
    change: Change | None = None


def at_places(x: Array, device: torch.device) -> Resident:
    """Public inputs on the device, each with its index as its label."""
    return Resident(Records(x, np.arange(len(x), dtype=np.int64)), device)


def learn_hints(net: Guided, inputs: Resident, hints: Targets, stage: Stage) -> int:
    """Train a student up to its guided layer, with its adapter, towards hints; returns the number of steps."""
    return learn(net, inputs, SquaredLoss(answers(hints, inputs)), stage, "learning from hints")


def learn_labels(net: nn.Module, inputs: Resident, labels: Targets, stage: Stage) -> int:
    """Train a student on public labels; returns the number of steps."""
    return learn(net, inputs, LabelLoss(answers(labels, inputs)), stage, "learning by itself")


def learn(net: nn.Module, inputs: Resident, objective: DistillationObjective, stage: Stage, label: str) -> int:
    """Train a student on any objective; returns the number of steps."""
    gradients = LossGradients(objective, stage.change)
    return fit(net, inputs, stage.sampler, gradients, stage.recipe, stage.seed, stage.run, stage.augment, label)


def answers(targets: Targets, inputs: Resident) -> TeacherAnswers:
    """Arrays as answers; one row per input.

    Raises:
        TrainingError: The number of rows is wrong.
    """
    if not isinstance(targets, Tensor | np.ndarray):
        return targets
    if len(targets) != len(inputs):
        raise TrainingError(
            f"one target for each of {len(inputs)} public inputs",
            f"{len(targets)}",
            "The student would learn the answers of other inputs.",
            "Pass the targets in the order of the inputs.",
        )
    return Cached(targets)

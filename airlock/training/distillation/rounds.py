"""Rounds of self learning and distillation (Wang et al. 2019, Algorithm 1, lines 8 to 20), as one training.

Each of R rounds: T_s epochs over all public inputs with their labels, then T_d epochs over query samples with softened
answers. Before every epoch of the second kind the query samples are chosen again, based on the current student. One
optimiser is used throughout, and so are progress and checkpoints, which include the choice of an unfinished epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from airlock.training.devices import Resident, to_input
from airlock.training.distillation.distil import Change, DistillationObjective, LabelLoss, LossGradients
from airlock.training.distillation.variations import Vary
from airlock.training.loop import mix
from airlock.training.sampling import Index, order

Choose = Callable[[nn.Module, int], Index]
_BATCH = 1000


@dataclass(frozen=True)
class Timetable:
    """The schedule of the rounds.

    Args:
        rounds: R.
        self_epochs: T_s.
        distil_epochs: T_d.
        inputs: The number of public inputs.
        queries: The number of query samples per epoch.
        self_batch: S'.
        query_batch: S.
    """

    rounds: int
    self_epochs: int
    distil_epochs: int
    inputs: int
    queries: int
    self_batch: int
    query_batch: int

    @property
    def self_batches(self) -> int:
        """Batches per epoch of self learning; the last may be smaller."""
        return -(-self.inputs // self.self_batch)

    @property
    def query_batches(self) -> int:
        """Batches per epoch of queries; the last may be smaller."""
        return -(-self.queries // self.query_batch)

    @property
    def steps(self) -> int:
        """The number of steps in all rounds."""
        return self.rounds * (self.self_epochs * self.self_batches + self.distil_epochs * self.query_batches)

    def at(self, step: int) -> tuple[bool, int, int]:
        """Whether a step queries the teacher, its epoch among all of its kind, and its batch in that epoch."""
        alone = self.self_epochs * self.self_batches
        turn, inside = divmod(step, alone + self.distil_epochs * self.query_batches)
        if inside < alone:
            epoch, batch = divmod(inside, self.self_batches)
            return False, turn * self.self_epochs + epoch, batch
        epoch, batch = divmod(inside - alone, self.query_batches)
        return True, turn * self.distil_epochs + epoch, batch


class Rounds:
    """Sampler and gradients of all rounds, for the loop.

    Args:
        net: The student, which is evaluated before query samples are chosen.
        table: The schedule.
        choose: Returns the query samples of an epoch, from the student and the number of the epoch; public.
        labels: The loss of self learning.
        answers: The loss of learning from the teacher.
        seed: The seed of the order of the inputs; public.
        change: Applied to the second loss.
        vary: Changes the inputs of steps of the second kind; of both kinds if the first loss does not use labels.
    """

    def __init__(
        self,
        net: nn.Module,
        table: Timetable,
        choose: Choose,
        labels: DistillationObjective,
        answers: DistillationObjective,
        seed: int,
        change: Change | None = None,
        vary: Vary | None = None,
    ) -> None:
        self.net, self.table, self.choose, self.seed = net, table, choose, seed
        own = None if isinstance(labels, LabelLoss) else vary
        self.alone = LossGradients(labels, vary=own, seed=mix(seed, 3))
        self.taught = LossGradients(answers, change, vary, mix(seed, 3))
        self.stream = self.taught.stream
        self.chosen = np.zeros(0, np.int64)

    def draw(self, step: int, records: int) -> Index:
        """The inputs of this step; query samples are chosen at the beginning of their epoch."""
        asks, epoch, batch = self.table.at(step)
        if not asks:
            size = self.table.self_batch
            return order(mix(self.seed, 1), epoch, records)[batch * size : (batch + 1) * size]
        if batch == 0:
            self.chosen = self.choose(self.net, epoch)
        size = self.table.query_batch
        places = order(mix(self.seed, 2), epoch, len(self.chosen))[batch * size : (batch + 1) * size]
        return self.chosen[places]

    @property
    def mark(self) -> dict[str, object]:
        """The marks of both losses and the timetable."""
        return {"rounds": repr(self.table), "alone": self.alone.mark, "taught": self.taught.mark}

    def state(self) -> dict[str, Tensor]:
        """The query samples of the epoch, and the state of the change."""
        own = {f"change/{name}": value for name, value in self.taught.state().items()}
        return {"chosen": torch.from_numpy(self.chosen), **own}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue in the middle of an epoch."""
        self.chosen = state["chosen"].cpu().numpy()
        self.taught.load_state({k.removeprefix("change/"): v for k, v in state.items() if k.startswith("change/")})

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """The gradient for labels or for answers, according to the timetable."""
        (self.taught if self.table.at(step)[0] else self.alone)(net, x, y, step)


@dataclass(frozen=True)
class RandomQueries:
    """A sampler: new inputs in every epoch, chosen at random without replacement (line 2 of Algorithm 1).

    Args:
        queries: Inputs per epoch.
        batch_size: Inputs per step.
        seed: Public.
    """

    queries: int
    batch_size: int
    seed: int

    def draw(self, step: int, records: int) -> Index:
        """The inputs of this step."""
        epoch, batch = divmod(step, -(-self.queries // self.batch_size))
        return order(self.seed, epoch, records)[: self.queries][batch * self.batch_size :][: self.batch_size]


def outputs(net: nn.Module, inputs: Resident) -> Tensor:
    """The student's logits for all inputs, on their device; the network is put back into training mode."""
    training = net.training
    net.eval()
    with torch.no_grad():
        found = [net(to_input(inputs.x[i : i + _BATCH])).float() for i in range(0, len(inputs), _BATCH)]
    net.train(training)
    return torch.cat(found)

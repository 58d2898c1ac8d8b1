"""`student`/`neighbours`: private records vote once for the labels of public inputs near them; a student learns these.

Public inputs need no labels; what labels they have are never looked at. They are joined to a graph in the space of a
public front end (`training.neighbours`). Each private record votes once, for its own label, in the cell of the public
input that is nearest to it. The table of all votes, public inputs by classes, is released with noise. Everything after
that is free: noisy votes travel along the graph (label propagation: Zhu, Ghahramani and Lafferty 2003), each public
input takes the class with most of them, and a student learns these labels, under random changes that must not change
its answer.

Proof. One record more or less, or one person with all her records, moves the table by at most 1 in L2
(`training.neighbours.tally`). It gets N(0, z²) on every entry: `GaussianDpEvent(z)`, once. The graph, the front end and
all settings follow from public inputs and figures, and the student is computed from the noisy table and from these:
post-processing.

Why it needs so little noise. In private kNN (Zhu et al. 2020) and PATE (Papernot et al. 2018) each question is paid for
by all records, though few of them are near it. Here a record votes in one cell, whatever the number of public inputs:
they are answered in parallel, and ε does not grow with how many there are.

How far votes travel, by one rule: of the chances `LADDER` that a walk goes on after each step, the smallest at which
the votes that reach a point are at least 12 times their noise, if all were for one class; by the public numbers of
records and public inputs, and by the graph. Looked up on MNIST (seed 0, 12,000 public inputs, z from 1 to 12), by how
many of the public inputs get their true label.

The table is drawn once and kept in the vault's checkpoint until the release is made, with a digest of the records and
of everything else it was made from. A resumed run takes it from there, or is refused if any of that is different.

In court, one record votes or does not: the score is the released entry that it votes in.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from airlock.accounting import calibrate, repeat
from airlock.accounting.terms import Status
from airlock.config import Frozen, Positive, ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods.case import Case, Scores, on_circle
from airlock.methods.contract import (
    ASSUMED,
    NOTHING_ELSE_LEAVES,
    Channel,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    check_executed,
)
from airlock.methods.student.teachers import net_names
from airlock.nets import check, create
from airlock.training import Recipe, Run, Shuffled, checkpoint, outcomes_of
from airlock.training.augment import Name as AugmentName
from airlock.training.augment import named
from airlock.training.distillation.distil import Cached, SoftLoss, Stage, at_places, learn
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.front_ends.front import embed, front_end
from airlock.training.front_ends.public import FrontSettings, check_public
from airlock.training.loop import Schedule, mix
from airlock.training.neighbours import UNIT, PublicGraph, at_least_one, tally
from airlock.training.stages import Stages

ASSUMPTIONS = (
    *ASSUMED,
    "The public inputs may be known to everyone: they are used without protection, and their labels not at all.",
    "The front end is public: it was neither trained nor chosen on the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
SENSITIVITY = 1.0  # how far one record moves the table
LADDER = (0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
_OVER_NOISE = 12
_SURE = 4.5  # logit of a label: with ten classes nine tenths certain
_TABLE, _STUDENT = "votes", "student"

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class NeighboursSettings(Frozen):
    """How votes travel and how a student learns.

    Args:
        features: The public front end in whose space records are near public inputs: scattering, pixels, steps,
            efficientnet-lite0, `package.module:function`, or auto, by the kind of the records.
        goes_on: The chance that a walk along the graph goes on after each step; by the rule above if left out.
        epochs: Of the student, on all public inputs.
        batch_size: Public inputs in one step.
        learning_rate: With Adam.
        schedule: How it moves.
        augment: Random changes to each public input that the student learns from; "auto" moves images of at
            least 16 pixels a side a little, and changes nothing else.
        precision: Of training, on a GPU.
    """

    features: str = "auto"
    goes_on: Annotated[float, Field(ge=0, lt=1)] | None = None
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 40
    batch_size: Annotated[int, Field(ge=1)] = 64
    learning_rate: Positive = 0.002
    schedule: Schedule = "cosine"
    augment: AugmentName | Literal["auto"] = "auto"
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"


@dataclass(frozen=True)
class Cells:
    """What is known before private records are read; all of it is public.

    Args:
        graph: Of the public inputs.
        of_public: The cell of each public input.
    """

    graph: PublicGraph
    of_public: Whole


class NeighboursStudent(Channel):
    """Noisy votes for public inputs, released once; status proven, unit record or person, relation add-remove."""

    channel: ClassVar[str] = "student"
    method: ClassVar[str] = "neighbours"
    title: ClassVar[str] = "a small network taught by near records' votes"
    rank: ClassVar[int] = 55
    compact: ClassVar[bool] = True
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    small: ClassVar[Mapping[str, object] | None] = {"epochs": 1}
    settings_model: ClassVar[type[Frozen] | None] = NeighboursSettings
    settings: NeighboursSettings
    leaves: ClassVar[str] = (
        "A compact model that learnt from public inputs. Their labels are votes of the private records that are most "
        "similar to them, counted with random noise."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.public_inputs = facts.expected("public", config.split)
        if not self.public_inputs:
            raise ConfigError(
                "public inputs, with or without labels",
                "none",
                "A student never sees a private one.",
                "Set split.public.",
            )
        self.net_name = student_net(config.net, facts)
        check_public(FrontSettings(), self.settings.features, facts, config.split.public)
        self.front = front_end(self.settings.features, facts, config.seed, FrontSettings())
        self.records = facts.expected("private", config.split)  # people, where these are the unit

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The released votes, with and without one."""
        return case_of_votes(cls(_case_config(epsilon, delta), CASE_FACTS))

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same with and without one person of many records."""
        return case_of_votes(cls(_case_config(epsilon, delta), CASE_FACTS_OF_PEOPLE), VISITS)

    @cached_property
    def noise(self) -> GaussianNoise:
        """The least that keeps all runs within (ε, δ)."""
        config = self.config
        found = calibrate(
            lambda z: repeat(GaussianNoise(SENSITIVITY, z).event, config.tuning_runs),
            config.epsilon,
            config.delta,
            accountant=config.accountant,
        )
        return GaussianNoise(SENSITIVITY, found)

    def plan(self) -> Plan:
        """Calibrate the noise on the votes to (ε, δ); touches no record."""
        net = self._net()
        check(net, self.net_name, self.facts.shape, self.facts.outputs)
        small = sum(p.numel() for p in net.parameters())
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(repeat(self.noise.event, self.config.tuning_runs), ASSUMPTIONS),
            {
                "net": self.net_name,
                "parameters": small,
                "bytes": 4 * small,
                "features": self.front.features,
                "public_inputs": self.public_inputs,
                f"{self.facts.counted}_per_public_input": round(self.records / self.public_inputs, 2),
                "noise_multiplier": self.noise.noise_multiplier,
                "noise_on_a_count": SENSITIVITY * self.noise.noise_multiplier,
                "epochs": self.settings.epochs,
            },
        )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Count the votes once, with noise; let them travel, teach the student, and release only that."""
        public = at_least_one(split.public)
        stages = Stages(run, {"settings": self.settings.model_dump(mode="json"), "seed": self.config.seed})
        cells = self.cells(public, run)
        noisy, event = self._votes(split.private, cells, randomness.privacy.child(_TABLE), run)
        labels = self.labels(noisy, cells)
        net = self._taught(public, labels, randomness.seed, stages)
        stages.forget(_TABLE, _STUDENT)
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=repeat(event, self.config.tuning_runs),
            utility=outcomes_of(net, split.test, self.facts.task),
            inside={"public_labels_met": float((labels == public.y).mean())},
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """The noisy votes: all that a student learns is computed from them and from public inputs."""
        cells = self.cells(at_least_one(split.public), run)
        votes = self.votes(split.private, cells, run)

        def once(randomness: Randomness) -> Disclosed:
            noisy, event = self.publish(votes, randomness.privacy.child(_TABLE))
            return Disclosed({_TABLE: noisy}, repeat(event, self.config.tuning_runs))

        return once

    def cells(self, public: Records, run: Run) -> Cells:
        """The graph of the public inputs; their labels play no part."""
        features = embed(self.front.ready(None, run), public, run)
        graph = PublicGraph.of(features, self.config.seed)
        return Cells(graph, graph.cells(features))

    def votes(self, private: Records, cells: Cells, run: Run) -> Whole:
        """The votes in each cell, in parts of `UNIT`: private until `publish`."""
        own = cells.graph.cells(embed(self.front.ready(None, run), private, run))
        return tally(own, private.y, private.weights, len(cells.graph.points), len(self.facts.classes))

    def publish(self, votes: Whole, stream: Stream) -> tuple[Floats, dpa.DpEvent]:
        """The votes with noise, and their cost."""
        return self.noise.add(votes / UNIT, stream), self.noise.event

    def labels(self, noisy: Floats, cells: Cells) -> Whole:
        """The class of each public input, by the noisy votes that come to its cell."""
        chance = self.settings.goes_on
        if chance is None:
            chance = self.chance(cells.graph)
        return np.asarray(cells.graph.smoothed(noisy, chance).argmax(1)[cells.of_public], np.int64)

    def chance(self, graph: PublicGraph) -> float:
        """How far votes travel, by public figures."""
        each = self.records / len(graph.points) / self.noise.noise_multiplier
        return next((one for one in LADDER if math.sqrt(graph.reach(one)) * each >= _OVER_NOISE), LADDER[-1])

    def _votes(self, private: Records, cells: Cells, stream: Stream, run: Run) -> tuple[Floats, dpa.DpEvent]:
        """Drawn once; or those that an interrupted run of the same records kept."""
        if run.checkpoint is None:
            return self.publish(self.votes(private, cells, run), stream)
        file, mark = run.checkpoint / f"{_TABLE}.safetensors", self._mark(private, cells, stream.secure)
        if not (run.resume and file.exists()):
            noisy, _ = self.publish(self.votes(private, cells, run), stream)
            checkpoint.write(file, {_TABLE: torch.from_numpy(noisy)}, {"mark": mark})
        stream.note_drawn("cpu")
        return read(file, mark)[_TABLE].numpy(), self.noise.event

    def _mark(self, private: Records, cells: Cells, secure: bool) -> str:
        """A digest of all that votes are made from."""
        whose = [] if private.person is None else [private.person]
        own = [torch.from_numpy(np.ascontiguousarray(part)) for part in (private.x, private.y, *whose)]
        known = json.dumps([self.front.name, self.noise.noise_multiplier, self.config.seed, secure]).encode()
        return hashlib.sha256(digest([*own, cells.graph.points]) + known).hexdigest()

    def _net(self) -> nn.Module:
        return create(self.net_name, self.facts.shape, self.facts.outputs, self.config.seed)

    def _taught(self, public: Records, labels: Whole, seed: int, stages: Stages) -> nn.Module:
        """The student, on these labels of the public inputs."""
        s, net = self.settings, self._net()
        inputs = at_places(public.x, stages.run.device)
        wanted = torch.nn.functional.one_hot(torch.from_numpy(labels), len(self.facts.classes)) * _SURE
        answers = Cached(wanted.float())
        recipe = Recipe(
            steps=s.epochs * -(-len(public) // s.batch_size),
            optimiser="adam",
            learning_rate=s.learning_rate,
            schedule=s.schedule,
            precision=s.precision,
            channels_last=True,
        )

        def teach(run: Run) -> None:
            sampler = Shuffled(s.batch_size, mix(seed, 1))
            stage = Stage(sampler, recipe, mix(seed, 2), run, named(self.augment))
            learn(net, inputs, SoftLoss(answers, 1.0), stage, "teaching the student")

        stages.train(_STUDENT, net, [inputs.x], teach, answers.mark)
        return net.eval()

    @property
    def augment(self) -> AugmentName:
        """Which random changes the student learns under."""
        chosen, shape = self.settings.augment, self.facts.shape
        if chosen != "auto":
            return chosen
        return "shift" if len(shape) == 3 and min(shape[1:]) >= 16 else "none"


def student_net(name: str, facts: Facts) -> str:
    """The student's network: as named, or the paper's for such images, and a small one for other records."""
    if name != "auto":
        return name
    images = len(facts.shape) == 3 and min(facts.shape[1:]) >= 4
    return net_names("auto", "auto", facts)[1] if images else "mlp"


# The case for the court: the released votes, with and without one.
#
# Records lie at the public inputs. The one that differs votes for class 1 in the first cell, where nobody else does, so
# that its entry of the table is 1 or 0 and all others are the same: no two tables are further apart. With people, who
# differs has many records there.

CASE_FACTS = Facts("court", (2,), ("0", "1"), 40, 1, "made up for the court")
CASE_FACTS_OF_PEOPLE = Facts("court", (2,), ("0", "1"), 40, 1, "made up for the court", people=40)
VISITS = 20
_PUBLIC = 8
STATISTICS = ("the released count of the record's class in its cell",)
PAIR = f"votes in {_PUBLIC} cells, with and without one of a class that nobody else votes for"


def _case_config(epsilon: float, delta: float) -> ReleaseConfig:
    table = {"channel": "student", "method": NeighboursStudent.method, "data": "court", "device": "cpu"}
    split = {"public": 0.5, "test": 0.0, "holdout": 0.0}
    own: dict[str, object] = {"features": "pixels"}
    return from_table({**table, "epsilon": epsilon, "delta": delta, "split": split, "net": "linear", "settings": own})


def case_sides(visits: int | None = None) -> tuple[Records, Records]:
    """With and without the record, or the person with so many; what differs comes last."""
    more = visits or 1
    x = np.concatenate([case_public().x, np.repeat(case_public().x[:1], more, 0)])
    y = np.append(np.zeros(_PUBLIC), np.ones(more)).astype(np.int64)
    person = None if visits is None else np.append(np.arange(_PUBLIC), np.full(more, _PUBLIC))
    both = Records(x, y, person)
    return both, both.take(np.arange(_PUBLIC))


def case_public() -> Records:
    """Inputs all around the circle; their labels are never looked at."""
    return Records(on_circle(2 * np.pi * np.arange(_PUBLIC) / _PUBLIC), np.zeros(_PUBLIC, np.int64))


def case_of_votes(channel: NeighboursStudent, visits: int | None = None) -> Case:
    """The real cells, the real votes, the real noise."""
    here = Run(device=torch.device("cpu"))
    cells, sides, plan = channel.cells(case_public(), here), case_sides(visits), channel.plan()
    place = int(cells.of_public[0])

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        votes = channel.votes(sides[0 if with_record else 1], cells, here)
        scores = np.empty((count, 1))
        for i in range(count):
            noisy, executed = channel.publish(votes, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            scores[i] = noisy[place, 1]
        return scores

    return Case.of_proven(plan.guarantee, PAIR, STATISTICS, run)

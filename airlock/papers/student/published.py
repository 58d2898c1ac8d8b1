"""`student`/`published`: RONA (Wang, Bao, Sun, Zhu, Cao and Yu 2019, Algorithms 1 to 3), as published; a claim.

A teacher is trained on private and public records, an auxiliary teacher on the public ones alone. A compact student
sees public records and the teacher's answers about them: first hints, then R rounds of learning from public labels and
of distillation on query samples that it chooses. Every batch's loss against the teacher goes through `Sanitise`.

Why nothing is promised. (1) Noise that is added to a loss does not change its gradient, so none reaches the student: it
is the same for any σ, to the bit. What leaves is a deterministic function of a teacher that was trained without
privacy; the recorded event is a non-private one, ε is infinite and the unit is "none". (2) Clipping a loss to B makes
its gradient 0 above B and leaves it as it is below: it bounds nothing. (3) Theorem 2 has two constants that the paper
does not give, and its proof is omitted. With c2 = 1/2, σ = c2 √(T ln(1/δ)) / ε gives the ε stated for CIFAR-10
(T = 3200, σ = 10, δ = 1e-5: 9.597), so this is recorded as the claim. T answers that were numbers with noise at σ would
cost far more: 39 by PLD, 43 by the moments bound (`gaussian_queries_epsilon`). Choosing query samples among public
records by the student amplifies nothing and costs nothing.

Algorithm 2 can be read in two ways. By its words the batch's loss is one number (`losses = "batch"`, the default, and
what is said under (2)). Its ‖·‖₂ and its **I** also allow the vector of the losses of the batch's records
(`losses = "records"`): the vector is scaled to norm B, every record's loss gets noise, and B follows the norms of the
auxiliary losses. (1) holds for either, and so does the refutation. (2) becomes: above B the gradient is that of the
mean over the norm, which falls as one record's loss grows beyond the others, so that the student is no longer taught to
agree with its teacher. Two vectors of norm B without negative losses are up to √2 B apart, not B as the paper has it.

In court, the whole pipeline runs on networks of one layer, on private records of zeros, with and without one large
record. Public inputs come with either label, so that they say nothing by themselves: what a student learns about them
comes from the teacher. B is preset, and so high that no loss is clipped, which only makes the noise larger. What is
scored is the student that leaves: how far it leans along the record. Runs differ by their public seeds, which are drawn
again for each. The canaries have an input of their own each, which is public with either label, and private with one of
them or not by a coin flip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.accounting import Claim, Guarantee, compute_epsilon, repeat
from airlock.accounting.epsilon import LARGEST
from airlock.accounting.terms import Status
from airlock.config import Positive, ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Canaries, Case, Coins, Scores, canary_records, toward_own_label
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    TEACHER,
    Channel,
    Details,
    Executed,
    NetworkArtefact,
    Plan,
)
from airlock.methods.student.learning import HINTS, StudentTraining, check_split, hint_layers
from airlock.methods.student.teachers import (
    TeacherSettings,
    for_vault,
    lacking,
    make_pair,
    net_names,
    settings_for,
    taught,
)
from airlock.training import Run, outcomes_of
from airlock.training.distillation.distil import Asked, DistillationObjective, SoftLoss, SquaredLoss
from airlock.training.stages import Stages

CONSTANT = 0.5  # c2 of Theorem 2, which the paper does not give
THEOREM = (
    "Theorem 2 of Wang et al. 2019 for {queries:,} queries at σ = {noise:.4g}, with c2 = 1/2, which gives the ε stated "
    "there for CIFAR-10; it does not hold: noise added to a loss does not change the gradient, so that none reaches "
    "the student; and that many numbers with such noise would cost {cost}"
)
NEEDED = (
    "NOT TRUE of this method: noise protects what the student learns from the teacher. It is added to the loss, whose "
    "gradient it does not change.",
    "NOT TRUE of this method: clipping bounds what one answer does. Below the bound the gradient is the teacher's own.",
    "NOT TRUE of the paper: that many noisy answers cost the stated ε. If they were noisy, they would cost a multiple.",
)
ASSUMPTIONS = (
    "The public records may be known to everyone: they are used without protection.",
    "Networks, settings and class names were chosen without looking at the private records.",
    NOTHING_ELSE_LEAVES,
)
Teachers = tuple[nn.Module, nn.Module]
Losses = Literal["batch", "records"]
_KEPT = ("teacher", "auxiliary", HINTS)
# The court.
_INPUTS, _CLASSES, _OTHERS = 4, 2, 3
_SIZE, _PUBLIC_SIZE, _BOUND = 8.0, 2.0, 10.0  # of a private input, of a public one; B
PAIR = f"{_OTHERS} private records of zeros, with and without one large record, and {_INPUTS} public inputs"
STATISTICS = ("how far the student leans towards the record's label along its input", "the squared size of its weights")
WHAT = "one release with {count:,} canaries, each of them public with either label, and private with one or not"
STATISTIC = "the student's weights at the canary's own input, towards its label"


class PublishedSettings(TeacherSettings):
    """How teachers and student learn, with the paper's noise.

    Args:
        noise_scale: σ; when left out, what Theorem 2 as read here requires at the config's ε.
        bound: B; when left out, the running mean of the loss against the auxiliary teacher.
        losses: What Algorithm 2 calls a batch's loss: one number, or the vector of its records' losses.
    """

    noise_scale: Positive | None = None
    bound: Positive | None = None
    losses: Losses = "batch"


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
    def case(cls, epsilon: float, delta: float, **settings: float | str) -> Case:
        """One private record more or less, and the whole pipeline on networks of one layer.

        Args:
            epsilon: Of the claim.
            delta: Of the claim.
            settings: Other than the court's own, such as `losses`.
        """
        return _case(cls(court_config(epsilon, delta, **settings), court_facts(_INPUTS)))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release in which every canary has an input of its own."""
        return _canaries(cls(court_config(epsilon, delta), court_facts(count)))

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
        """T = (T_h + R T_d) |x_q| / S, with whole batches: how often the teacher is queried in all runs."""
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
        """ε from σ or σ from ε: the theorem is symmetric in them."""
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
        """What that many answers with noise at σ would cost, if they were what leaves."""
        apart = 1.0 if self.settings.losses == "batch" else math.sqrt(2)  # over B: numbers from 0 to B, or vectors
        event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(self.noise_scale / apart), self.asked)
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
            **({"losses": s.losses} if s.losses != "batch" else {}),
            "gaussian_queries_epsilon": _stated(self.gaussian_queries_epsilon),
            "record_level": "none: no noise reaches the student",
            **lacking(self.facts, self.config),
        }
        events = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)
        return Plan(self.channel, self.method, self.leaves, self._guarantee(events), details)

    def nets(self, seed: int) -> tuple[nn.Module, nn.Module]:
        """Teacher and student, freshly initialised and checked, also that hints fit; touches no record."""
        return make_pair((self.teacher_name, self.net_name), self.layers, self.facts, seed)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train both teachers and the student, and release only the student."""
        check_split(split, self.facts, self.settings.queries)
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
    ) -> tuple[nn.Module, dict[str, Sanitise]]:
        """A student of these teachers, and how its losses were sanitised."""
        net = self.nets(randomness.seed)[1].to(stages.run.device)
        training = StudentTraining(self.settings, split.public, self.queries, randomness.seed, stages)
        return net, self._learn(net, *teachers, training, randomness.privacy)

    def _taught(self, name: str, records: Records, seed: int, stages: Stages) -> nn.Module:
        """A teacher, trained on these records without privacy; both teachers have the same initial weights."""
        return taught(name, self.nets(seed)[0], records, self.settings, seed, stages)

    def _learn(
        self, net: nn.Module, teacher: nn.Module, auxiliary: nn.Module, training: StudentTraining, noise: Stream
    ) -> dict[str, Sanitise]:
        """Hints, then rounds; the student is trained in place."""
        device, changes = training.stages.run.device, {}
        if self.layers:
            own = SquaredLoss(Asked(auxiliary, self.layers[0]))
            changes["hints"] = self._sanitise(own, noise.child("hints"), device)
            training.learn_hints(net, teacher, self.layers, Asked(teacher, self.layers[0]), changes["hints"])
        soft = SoftLoss(Asked(auxiliary), self.settings.temperature)
        changes["rounds"] = self._sanitise(soft, noise.child("rounds"), device)
        training.learn_in_rounds(net, SoftLoss(Asked(teacher), self.settings.temperature), changes["rounds"])
        return changes

    def _sanitise(self, auxiliary: DistillationObjective, stream: Stream, device: torch.device) -> Sanitise:
        s = self.settings
        return Sanitise(self.noise_scale, auxiliary, stream, device, s.bound, s.losses == "records")

    def _guarantee(self, events: dpa.DpEvent) -> Guarantee:
        """Nothing is promised; the paper's claim is recorded."""
        cost = _stated(self.gaussian_queries_epsilon)
        words = f"ε = {cost:.3g}" if isinstance(cost, float) else f"an ε {cost}"
        theorem = THEOREM.format(queries=self.asked, noise=self.noise_scale, cost=words)
        claim = Claim(self.claimed_epsilon, self.config.delta, theorem)
        return self.promise(events, (*NEEDED, *ASSUMPTIONS), unit="none", claim=claim)


def _joined(private: Records, public: Records) -> Records:
    return Records(np.concatenate([private.x, public.x]), np.concatenate([private.y, public.y]))


def _measured(teacher: nn.Module, auxiliary: nn.Module, changes: Mapping[str, Sanitise], test: Records) -> Details:
    """Figures that are known after training; they follow from private and test records."""
    clipped = {f"clipped_share_{name}": change.share_clipped for name, change in changes.items()}
    return {
        "teacher_accuracy": outcomes_of(teacher, test).accuracy,
        "public_teacher_accuracy": outcomes_of(auxiliary, test).accuracy,
        **{name: share for name, share in clipped.items() if share is not None},
    }


def _stated(epsilon: float) -> str | float:
    return f"above {LARGEST:,.0f}" if math.isinf(epsilon) else epsilon


class Sanitise:
    """privacy-sanitize (Algorithm 2), as published: clips a batch's loss to B and adds N(0, σ²B²). It protects nothing.

    A batch's loss L ≥ 0 becomes L / max(1, L/B) + N(0, σ²B²), where B is the mean so far of the same loss against an
    auxiliary teacher that saw public records alone. The student only takes its gradient. The noise does not depend on
    the student's weights: its gradient is 0, whatever σ. L / max(1, L/B) is min(L, B): below the bound the gradient is
    the teacher's own, above it is 0. So no noise reaches a weight, and clipping decides which batches count. Without a
    gradient the student stays where it is, as in plain gradient descent; the paper names no optimiser, and Adam's
    momentum would carry the student away while all its losses are above B, where nothing holds it back.

    Only a loss that leaves as a number would be protected: one number is `GaussianDpEvent(σ)`.

    By the second reading L is the vector of the records' losses. It becomes L / max(1, ‖L‖₂/B) + N(0, σ²B² I), with B
    the mean so far of ‖L‖₂ against the auxiliary teacher; the gradient is that of its mean, through the norm as well.

    Args:
        noise_scale: σ.
        auxiliary: The same loss against the auxiliary teacher; its mean so far is B.
        stream: Secret.
        device: Where the losses are.
        bound: B, if it is preset.
        by_record: The second reading.
    """

    def __init__(
        self,
        noise_scale: float,
        auxiliary: DistillationObjective,
        stream: Stream,
        device: torch.device,
        bound: float | None = None,
        by_record: bool = False,
    ) -> None:
        self.noise_scale, self.auxiliary, self.stream, self.bound = noise_scale, auxiliary, stream, bound
        self.by_record = by_record
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.batches, self.clipped = torch.zeros_like(self.total), torch.zeros_like(self.total)

    def state(self) -> dict[str, Tensor]:
        """The sum of the auxiliary losses, the number of batches, and how many were clipped."""
        return {"total": self.total, "batches": self.batches, "clipped": self.clipped}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from there."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def __call__(self, loss: Tensor, outputs: Tensor, x: Tensor, place: Tensor, step: int) -> Tensor:
        """The sanitised loss of one batch: of one number, or the mean of a vector's."""
        with torch.no_grad():
            self.batches += 1
            self.total += self._auxiliary_size(outputs, x, place) if self.bound is None else self.bound
            bound = (self.total / self.batches).to(loss.dtype)
            above = loss.norm() > bound  # of one number that is not negative: the number
            self.clipped += above
            drawn = torch.from_numpy(self.stream.child(step).normal(loss.numel())).to(loss)
            noise = (drawn * self.noise_scale * bound).view_as(loss)
        if self.by_record:
            return ((loss * (bound / loss.norm()) if above else loss) + noise).mean()
        return (bound if above else loss) + noise

    def _auxiliary_size(self, outputs: Tensor, x: Tensor, place: Tensor) -> Tensor:
        """The loss against the auxiliary teacher, or the norm of its vector."""
        return self.auxiliary.each(outputs, x, place).norm() if self.by_record else self.auxiliary(outputs, x, place)

    @property
    def share_clipped(self) -> float | None:
        """Of all batches so far; it follows from the teacher. None if this run, resumed later, saw none."""
        return float(self.clipped / self.batches) if self.batches > 0 else None


def court_facts(inputs: int) -> Facts:
    """Every input is public twice, once with each label; there are as many private records."""
    return Facts("court", (inputs,), tuple(map(str, range(_CLASSES))), 4 * inputs, 1, "made up for the court")


def court_config(epsilon: float, delta: float, **changes: float | str) -> ReleaseConfig:
    """One layer each; hints from the teacher's outputs; σ by the paper's theorem."""
    settings: dict[str, float | str] = {
        "teacher": "linear",
        "hint": "1",
        "guide": "1",
        "hint_epochs": 1,
        "rounds": 1,
        "self_epochs": 1,
        "distil_epochs": 12,
        "bound": _BOUND,
        "select_rate": 1.0,
        "query_batch": 4096,
        "self_batch": 4096,
        "learning_rate": 0.1,
        "temperature": 1.0,
        "teacher_epochs": 5,
        "teacher_batch": 4096,
        "teacher_learning_rate": 0.1,
        **changes,
    }
    table = {
        "channel": "student",
        "method": "published",
        "data": "court",
        "net": "linear",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"public": 0.5, "test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": settings,
    }
    return from_table(table)


def neighbours(own: Facts, seed: int) -> tuple[Split, Split]:
    """With and without the record; the public records are the same."""
    noise = np.random.default_rng(seed).normal(size=(_INPUTS, _INPUTS))
    public = _either_label((_PUBLIC_SIZE * np.eye(_INPUTS) + 0.2 * noise).astype(np.float32))
    record = np.zeros((1, _INPUTS), np.float32)
    record[0, 0] = _SIZE
    x = np.concatenate([np.zeros((_OTHERS, _INPUTS), np.float32), record])
    both = Records(x, np.zeros(len(x), np.int64))
    return _split(own, both, public), _split(own, both.take(np.arange(_OTHERS)), public)


def _either_label(x: NDArray[np.float32]) -> Records:
    return Records(np.concatenate([x] * _CLASSES), np.repeat(np.arange(_CLASSES), len(x)))


def _split(own: Facts, private: Records, public: Records) -> Split:
    nobody = public.take(np.arange(0))
    return Split(own, private, public, public.take(np.arange(1)), nobody)


def _case(channel: Published) -> Case:
    """The claim, tried on the student that leaves."""

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        scores = np.empty((count, len(STATISTICS)))
        for i in range(count):
            own = stream.child(i)
            seed = int.from_bytes(own.child("seed").take_key()[:6], "little")
            split = neighbours(channel.facts, seed)[0 if with_record else 1]
            weight = _weights(channel.release(split, Randomness(seed, own), Run()).network.net)
            scores[i] = weight[0, 0] - weight[1, 0], np.square(weight).sum()
        return scores

    return Case(_claim(channel), PAIR, STATISTICS, run)


def _canaries(channel: Published) -> Canaries:
    """The same claim, with many records more or less."""
    count = channel.facts.shape[0]
    every = canary_records(_SIZE * np.eye(count, dtype=np.float32))
    public = _either_label(_PUBLIC_SIZE * np.eye(count, dtype=np.float32))

    def run(coins: Coins, stream: Stream) -> Scores:
        split = _split(channel.facts, every.take(np.flatnonzero(coins)), public)
        weight = _weights(channel.release(split, Randomness(0, stream), Run()).network.net)
        return toward_own_label(weight[0] - weight[1])

    return Canaries(_claim(channel), count, WHAT.format(count=count), STATISTIC, run)


def _claim(channel: Published) -> Claim:
    claim = channel.planned.guarantee.claim
    assert claim is not None
    return claim


def _weights(net: nn.Module) -> Scores:
    return np.asarray(next(net.parameters()).detach().double().numpy())

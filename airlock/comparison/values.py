"""What a comparison is made of: frozen values, each with what it may say and what it may not.

A cell is one run, a row a method at one ε over its seeds. A claim never stands in the column of a proven ε.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from airlock.accounting.guarantee import Status
from airlock.auditing.result import Aim, View
from airlock.config import Count, Delta, Epsilon, Frozen, Proportion, Shape, Signed

# Rows to compare with; no method of a channel is called so.
BASELINE = "baseline"  # a model without privacy
PUBLIC = "public"  # a model of the public records alone
WORDS = {BASELINE: "no privacy", PUBLIC: "public alone"}
CONFIDENCE = 0.95

Kind = Literal["proven", "claimed", "empirical", "none"]
Standing = Literal["proven", "claimed", "refuted", "empirical", "none"]
Receives = Literal["white-box", "black-box"]
RunsOn = Literal["phone", "cloud", "any"]
Seconds = Annotated[float, Field(ge=0)]


class Need(Frozen):
    """What the release is for; null where it does not matter or was not said.

    Args:
        receives: Whether the receiver gets the thing itself (white-box) or may only ask it (black-box).
        runs_on: Where it must run.
        queries: How many questions will be asked of it, at least.
        public: Whether there are public records of the same kind.
        epsilon: At which ε to choose; when left out, the middle one of those compared.
    """

    receives: Receives | None = None
    runs_on: RunsOn = "any"
    queries: Annotated[int, Field(ge=1)] | None = None
    public: bool | None = None
    epsilon: Annotated[float, Field(gt=0)] | None = None


class ComparedData(Frozen):
    """What is public about the data.

    Args:
        name: What it is called.
        records: The public number of records; need not be exact.
        classes: The class names.
        shape: Of one record.
        named: Whether it is one of the public sets that `airlock datasets` lists.
    """

    name: str
    records: Count
    classes: tuple[str, ...]
    shape: Shape
    named: bool = False


class AttackSummary(Frozen):
    """One attack on one cell; the card's figures, in short.

    Args:
        name: Of the attack.
        view: What the attacker has.
        aim: What the attacker is after.
        score: What `auc` is: "AUC", or another score where the aim is not membership.
        auc: The score, an estimate.
        low: Lower end of its interval.
        high: Upper end.
        chance: What guessing scores.
        advantage: True less false positives at one threshold, chosen on other records; null where there is none.
        advantage_low: Lower end of its interval.
        advantage_high: Upper end.
        epsilon_lower_bound: The largest ε that the attack refutes; 0 if none.
    """

    name: str
    view: View
    aim: Aim
    score: str
    auc: float
    low: float
    high: float
    chance: float
    advantage: Signed | None = None
    advantage_low: Signed | None = None
    advantage_high: Signed | None = None
    epsilon_lower_bound: Epsilon


class Cell(Frozen):
    """One run of one method: its promise, its use, what attacks found, what it cost.

    Args:
        method: As CHANNEL/METHOD, or `BASELINE`, or `PUBLIC`.
        channel: What leaves; "none" for these two.
        title: For people.
        status: Of the promise; "none" for the baseline, which promises nothing and never leaves. A model of public
            records alone says nothing about a private one: that is proven, with ε = 0.
        epsilon_asked: The ε that was asked for; null where the method takes none.
        epsilon: The ε that is proven for one record, from the events that were executed; null where none is. Never a
            claim.
        claim_epsilon: What the method's paper would print; null where it claims nothing.
        seed: Of initialisation and split.
        accuracy: On the test records; null where the run failed.
        low: Lower end of its interval (Clopper and Pearson, 95%).
        high: Upper end.
        correct: Test records classified correctly.
        records: Test records.
        attacks: What was run on it.
        not_tested: What was not, one sentence each.
        epsilon_measured: The largest ε that an attack refutes; null where no attack was run.
        seconds: From start to finish, attacks included.
        bytes: What leaves, without card and pages; null for the baseline.
        parameters: Of the network that leaves; null where none does.
        leaves: What leaves, in one sentence.
        protects: Whom the promise is for, in one sentence.
        queries: How many questions the promise covers; null where any number.
        error: Why there is no result; null where there is one.
    """

    method: str
    channel: str
    title: str
    status: Kind
    epsilon_asked: Epsilon | None
    epsilon: Epsilon | None = None
    claim_epsilon: Epsilon | None = None
    seed: Count
    accuracy: Proportion | None = None
    low: Proportion | None = None
    high: Proportion | None = None
    correct: Count | None = None
    records: Count | None = None
    attacks: tuple[AttackSummary, ...] = ()
    not_tested: tuple[str, ...] = ()
    epsilon_measured: Epsilon | None = None
    seconds: Seconds
    bytes: Count | None = None
    parameters: Count | None = None
    leaves: str = ""
    protects: str = ""
    queries: Count | None = None
    error: str | None = None


class Row(Frozen):
    """One method at one ε, over its seeds.

    Args:
        method: As in `Cell`, like the fields that are not explained here.
        channel: As in `Cell`.
        title: As in `Cell`.
        status: As in `Cell`.
        epsilon_asked: As in `Cell`.
        epsilon: The largest proven ε of the seeds; null where one of them has none.
        claim_epsilon: The largest claim.
        seeds: How many runs.
        accuracy: Their mean.
        low: Mean of the lower ends. A mean varies at most as much as its parts do on average, so that [low, high]
            holds for the mean accuracy of these runs; it says nothing about other seeds.
        high: Mean of the upper ends.
        lowest: The worst seed.
        highest: The best seed.
        auc: The largest membership AUC of any attack, mean over the seeds; null where no attack was run.
        epsilon_measured: The largest of the seeds.
        seconds: Mean.
        bytes: Largest.
        parameters: Largest.
        queries: Smallest.
    """

    method: str
    channel: str
    title: str
    status: Kind
    epsilon_asked: Epsilon | None
    epsilon: Epsilon | None
    claim_epsilon: Epsilon | None
    seeds: Annotated[int, Field(ge=1)]
    accuracy: Proportion
    low: Proportion
    high: Proportion
    lowest: Proportion
    highest: Proportion
    auc: float | None
    epsilon_measured: Epsilon | None
    seconds: Seconds
    bytes: Count | None
    parameters: Count | None
    queries: Count | None


class Skipped(Frozen):
    """A method that does not fit, or does not at some ε, and why; found before any record was read."""

    method: str
    reason: str
    epsilons: tuple[Epsilon, ...] = ()  # empty: at every ε


class Dropped(Frozen):
    """A cell that was in the matrix and was not run."""

    method: str
    epsilon_asked: Epsilon | None
    seed: Count | None  # null for a trial before the court
    reason: str


class MethodVerdict(Frozen):
    """What the court found about a method's claim, on made-up records.

    Args:
        method: As CHANNEL/METHOD.
        status: Of the method's promise.
        claim_epsilon: The ε that was tried.
        claim_delta: Its δ.
        refuted: Whether the claim is false, with 95% confidence.
        lower_bound: ε is above this, with the same confidence; 0 if nothing was shown.
        would_show: From which real ε on the runs would be expected to refute it; null if from none.
        pairs: How many pairs of runs were made.
        seconds: How long they took.
        sentence: The verdict in words.
        error: Why there is no verdict; null where there is one.
    """

    method: str
    status: Status
    claim_epsilon: Epsilon
    claim_delta: Delta
    refuted: bool
    lower_bound: Epsilon
    would_show: Epsilon | None = None
    pairs: Count
    seconds: Seconds
    sentence: str
    error: str | None = None


class Ranked(Frozen):
    """One method in the order of the chooser.

    Args:
        method: As CHANNEL/METHOD.
        channel: What leaves.
        title: For people.
        status: Of its promise.
        recommended: Whether it may be chosen: it is proven, can be built, and meets the need.
        reason: Why it stands here, in a sentence or two.
        epsilon: What the plan proves at the ε asked for, or the run did; null where nothing.
        accuracy: As measured, mean over seeds; null before any run.
        low: Lower end of its interval.
        high: Upper end.
        queries: How many questions the promise covers; null where any number.
        figures: The planner's public figures: noise, steps, sizes.
    """

    method: str
    channel: str
    title: str
    status: Status
    recommended: bool
    reason: str
    epsilon: Epsilon | None = None
    accuracy: Proportion | None = None
    low: Proportion | None = None
    high: Proportion | None = None
    queries: Count | None = None
    figures: dict[str, str | int | float] = Field(default_factory=dict)


class Advice(Frozen):
    """Which method the chooser takes for a need, and why.

    Args:
        method: The first choice; null where none may be recommended.
        epsilon: The ε it is chosen at.
        sentence: The choice in one sentence, or that there is none.
        ranking: All methods, best first; unproven ones last.
        measured: Whether measured accuracy decided, or the planners' figures alone.
    """

    method: str | None
    epsilon: Epsilon | None
    sentence: str
    ranking: tuple[Ranked, ...]
    measured: bool


def words_for(method: str, epsilons: Iterable[float] = ()) -> str:
    """A method and the ε that it is about, in words; none is all of them."""
    where = ", ".join(f"{value:g}" for value in epsilons)
    return WORDS.get(method, method) + (f" at ε = {where}" if where else "")


def worst_attack(cell: Cell) -> AttackSummary | None:
    """The attack on membership that does best; None where none was run."""
    return max((one for one in cell.attacks if one.aim == "membership"), key=lambda one: one.auc, default=None)


def rows_of(cells: Iterable[Cell]) -> tuple[Row, ...]:
    """Cells over their seeds, in their order; failed ones are left out."""
    groups: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in cells:
        if cell.accuracy is not None:
            groups.setdefault((cell.method, cell.epsilon_asked), []).append(cell)
    return tuple(_row(group) for group in groups.values())


def _row(cells: list[Cell]) -> Row:
    first, known = cells[0], [cell.epsilon for cell in cells]
    accuracies = _there(cell.accuracy for cell in cells)
    return Row(
        method=first.method,
        channel=first.channel,
        title=first.title,
        status=first.status,
        epsilon_asked=first.epsilon_asked,
        epsilon=None if None in known else max(_there(known)),
        claim_epsilon=max(_there(cell.claim_epsilon for cell in cells), default=None),
        seeds=len(cells),
        accuracy=fmean(accuracies),
        low=fmean(_there(cell.low for cell in cells)),
        high=fmean(_there(cell.high for cell in cells)),
        lowest=min(accuracies),
        highest=max(accuracies),
        auc=_mean([worst.auc for cell in cells if (worst := worst_attack(cell))]),
        epsilon_measured=max(_there(cell.epsilon_measured for cell in cells), default=None),
        seconds=fmean(cell.seconds for cell in cells),
        bytes=max((cell.bytes for cell in cells if cell.bytes is not None), default=None),
        parameters=max((cell.parameters for cell in cells if cell.parameters is not None), default=None),
        queries=min((cell.queries for cell in cells if cell.queries is not None), default=None),
    )


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None

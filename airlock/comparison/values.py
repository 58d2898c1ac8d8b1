"""The values that make up a comparison, all of them frozen.

A cell is one run; a row is a method at one ε, aggregated over its seeds. A claimed ε never appears in the field for a
proven one.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from airlock.accounting.terms import Status
from airlock.auditing.result import Aim, View
from airlock.auditing.usefulness import REJECTED, State
from airlock.config import Count, Delta, Epsilon, Frozen, Proportion, Shape, Signed

# Reference rows; no method has these names.
BASELINE = "baseline"  # a model without privacy
PUBLIC = "public"  # a model trained on the public records alone
WORDS = {BASELINE: "no privacy", PUBLIC: "public alone"}
CONFIDENCE = 0.95

Kind = Literal["proven", "claimed", "empirical", "none"]
Standing = Literal["proven", "claimed", "refuted", "empirical", "none"]
Receives = Literal["white-box", "black-box"]
RunsOn = Literal["phone", "cloud", "any"]
Seconds = Annotated[float, Field(ge=0)]


class Need(Frozen):
    """What the release is for; null where it does not matter or was not stated.

    Args:
        receives: Whether the recipient gets the model itself (white-box) or may only query it (black-box).
        runs_on: Where it must run.
        queries: The minimum number of questions it must answer.
        public: Whether there are public records of the same kind.
        epsilon: The ε at which to choose; if omitted, the median of those compared.
    """

    receives: Receives | None = None
    runs_on: RunsOn = "any"
    queries: Annotated[int, Field(ge=1)] | None = None
    public: bool | None = None
    epsilon: Annotated[float, Field(gt=0)] | None = None


class ComparedData(Frozen):
    """What is public about the data.

    Args:
        name: The name of the data set.
        records: The public number of records; need not be exact.
        classes: The class names.
        shape: The shape of one record.
        named: Whether it is one of the public data sets that `airlock datasets` lists.
        people: The public number of people whose records these are; null if the protected unit is a record.
    """

    name: str
    records: Count
    classes: tuple[str, ...]
    shape: Shape
    named: bool = False
    people: Count | None = None

    @property
    def unit(self) -> str:
        """Whose presence is protected."""
        return "record" if self.people is None else "person"


class AttackSummary(Frozen):
    """One attack on one cell: a summary of the audit's figures.

    Args:
        name: The name of the attack.
        view: What the attacker has.
        aim: What the attacker wants to find out.
        score: What `auc` is: "AUC", or another score if the aim is not membership.
        auc: The estimated score.
        low: Lower end of its interval.
        high: Upper end.
        chance: The score of a random guess.
        advantage: TPR minus FPR at one threshold, which was chosen on other records; null if there is none.
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
    """One run of one method: its guarantee, its utility, what attacks found, and what it cost.

    Args:
        method: As CHANNEL/METHOD, or `BASELINE`, or `PUBLIC`.
        channel: What leaves; "none" for these two.
        title: A readable title.
        status: The status of the guarantee; "none" for the baseline, which promises nothing and never leaves. A model
            trained on public records alone reveals nothing about private ones: that is proven, with ε = 0.
        epsilon_asked: The requested ε; null if the method takes none.
        epsilon: The ε proven for one record or person, from the executed events; null if none is proven. Never a claim.
        claim_epsilon: The ε that the method's paper would state; null if it claims none.
        seed: The seed of initialisation and split.
        accuracy: Accuracy on the test records; null if the run failed.
        low: Lower end of its interval (Clopper and Pearson, 95%).
        high: Upper end.
        correct: The number of test records classified correctly.
        records: The number of test records.
        majority: The share of the largest class among them: the accuracy of always naming it.
        balanced_accuracy: The mean recall of the classes.
        scores_auc: With two classes, the AUC of the model's scores; null where it gives none.
        use: Whether it is better than a blind guess (`auditing.usefulness`); null in results of earlier versions.
        attacks: The attacks that were run on it.
        not_tested: What was not tested, one sentence each.
        epsilon_measured: The largest ε that an attack refutes; null if no attack was run.
        seconds: Total time, attacks included.
        bytes: The size of what leaves, without card and pages; null for the baseline.
        parameters: The number of parameters of the network that leaves; null if none leaves.
        answer_milliseconds: The processor time of one answer by the network that leaves, on one thread where it was
            run; null if none leaves, and in results of earlier versions.
        leaves: What leaves, in one sentence.
        protects: Whom the guarantee protects, in one sentence.
        queries: How many questions the guarantee covers; null if unlimited.
        error: Why there is no result; null if there is one.
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
    majority: Proportion | None = None
    balanced_accuracy: Proportion | None = None
    scores_auc: Proportion | None = None
    use: State | None = None
    attacks: tuple[AttackSummary, ...] = ()
    not_tested: tuple[str, ...] = ()
    epsilon_measured: Epsilon | None = None
    seconds: Seconds
    bytes: Count | None = None
    parameters: Count | None = None
    answer_milliseconds: Seconds | None = None
    leaves: str = ""
    protects: str = ""
    queries: Count | None = None
    error: str | None = None


class Row(Frozen):
    """One method at one ε, aggregated over its seeds.

    Args:
        method: As in `Cell`.
        channel: As in `Cell`.
        title: As in `Cell`.
        status: As in `Cell`.
        epsilon_asked: As in `Cell`.
        epsilon: The largest proven ε over the seeds; null if one of them has none.
        claim_epsilon: The largest claim over the seeds.
        seeds: The number of runs.
        accuracy: Their mean accuracy.
        low: Mean of the lower ends. A mean varies at most as much as its terms do on average, so [low, high] is valid
            for the mean accuracy of these runs; it says nothing about other seeds.
        high: Mean of the upper ends.
        lowest: The accuracy of the worst seed.
        highest: The accuracy of the best seed.
        majority: The mean over the seeds.
        balanced_accuracy: The mean over the seeds.
        scores_auc: The mean over the seeds.
        no_better: Whether no seed is better than a blind guess.
        auc: The largest membership AUC of any attack, averaged over the seeds; null if no attack was run.
        epsilon_measured: The largest over the seeds.
        seconds: The mean over the seeds.
        bytes: The largest over the seeds.
        parameters: The largest over the seeds.
        answer_milliseconds: The mean over the seeds.
        queries: The smallest over the seeds.
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
    majority: Proportion | None = None
    balanced_accuracy: Proportion | None = None
    scores_auc: Proportion | None = None
    no_better: bool = False
    auc: float | None
    epsilon_measured: Epsilon | None
    seconds: Seconds
    bytes: Count | None
    parameters: Count | None
    answer_milliseconds: Seconds | None = None
    queries: Count | None


class Skipped(Frozen):
    """A method that does not apply, or not at some ε, and why; determined before any record is read."""

    method: str
    reason: str
    epsilons: tuple[Epsilon, ...] = ()  # empty means every ε


class Dropped(Frozen):
    """A cell that was in the matrix and was not run."""

    method: str
    epsilon_asked: Epsilon | None
    seed: Count | None  # null for a trial in the court
    reason: str


class MethodVerdict(Frozen):
    """What the court found about a method's claim, on synthetic records.

    Args:
        method: As CHANNEL/METHOD.
        status: The status of the method's guarantee.
        claim_epsilon: The claimed ε that was tested.
        claim_delta: Its δ.
        refuted: Whether the claim is false, with 95% confidence.
        lower_bound: ε is above this, with the same confidence; 0 if nothing was shown.
        would_show: The smallest true ε at which the runs would be expected to refute the claim; null if none.
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
    """One method in the chooser's ranking.

    Args:
        method: As CHANNEL/METHOD.
        channel: What leaves.
        title: A readable title.
        status: The status of its guarantee.
        recommended: Whether it may be chosen: it is proven, can be built, and meets the need.
        reason: Why it is ranked here, in a sentence or two.
        epsilon: The ε proven by the plan, or by the run, for the requested ε; null if none.
        accuracy: Measured accuracy, averaged over seeds; null before any run.
        low: Lower end of its interval.
        high: Upper end.
        queries: How many questions the guarantee covers; null if unlimited.
        figures: The public figures of the plan: noise, steps, sizes.
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
    """Which method the chooser recommends for a need, and why.

    Args:
        method: The first choice; null if no method can be recommended.
        epsilon: The ε at which it is chosen.
        sentence: The choice in one sentence, or that there is none.
        ranking: All methods, best first; unproven ones last.
        measured: Whether measured accuracy decided, rather than planned figures alone.
    """

    method: str | None
    epsilon: Epsilon | None
    sentence: str
    ranking: tuple[Ranked, ...]
    measured: bool


def words_for(method: str, epsilons: Iterable[float] = ()) -> str:
    """A method and the values of ε concerned, in words; no values means all of them."""
    where = ", ".join(f"{value:g}" for value in epsilons)
    return WORDS.get(method, method) + (f" at ε = {where}" if where else "")


def worst_attack(cell: Cell) -> AttackSummary | None:
    """The most successful membership attack; None if none was run."""
    return max((one for one in cell.attacks if one.aim == "membership"), key=lambda one: one.auc, default=None)


def rows_of(cells: Iterable[Cell]) -> tuple[Row, ...]:
    """Cells aggregated over their seeds, in their order; failed cells are left out."""
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
        majority=_mean(_there(cell.majority for cell in cells)),
        balanced_accuracy=_mean(_there(cell.balanced_accuracy for cell in cells)),
        scores_auc=_mean(_there(cell.scores_auc for cell in cells)),
        no_better=all(cell.use in REJECTED for cell in cells),
        auc=_mean([worst.auc for cell in cells if (worst := worst_attack(cell))]),
        epsilon_measured=max(_there(cell.epsilon_measured for cell in cells), default=None),
        seconds=fmean(cell.seconds for cell in cells),
        bytes=max((cell.bytes for cell in cells if cell.bytes is not None), default=None),
        parameters=max((cell.parameters for cell in cells if cell.parameters is not None), default=None),
        answer_milliseconds=_mean(_there(cell.answer_milliseconds for cell in cells)),
        queries=min((cell.queries for cell in cells if cell.queries is not None), default=None),
    )


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None

"""What a comparison found: frozen values, and all that the page is made from.

Nothing in them is covered by an ε: accuracies and attack figures of many runs were computed from private records. Every
`Comparison` says so in `notes`, and whoever shows one shows them.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from airlock.accounting.guarantee import Status
from airlock.audit.result import Aim, View
from airlock.config import Frozen
from airlock.release.fields import Count, Delta, Epsilon, Shape, Share, Signed
from airlock.release.files import output_error

BASELINE = "baseline"  # the row of a model without privacy; no method of a channel is called so
OPEN_NAME, OPEN_TITLE = "no privacy", "without privacy (never leaves)"
CONFIDENCE = 0.95

COMPUTED_FROM_RECORDS = (
    "These results were computed from private records, by many runs that no ε covers: they are for the holder of the "
    "records and must stay inside, unless the records are public."
)
CHOICE_DEPENDS = (
    "Choosing a method by these results is a choice that depends on the records. The ε of the release that is made "
    "next does not count it, and tuning_runs does not either: that pays for repeated runs of one method."
)
NOTES = (COMPUTED_FROM_RECORDS, CHOICE_DEPENDS)

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


class Subject(Frozen):
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


class Attacked(Frozen):
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
        method: As CHANNEL/METHOD, or `BASELINE`.
        channel: What leaves; "none" for the baseline.
        title: For people.
        status: Of the promise; "none" for the baseline, which promises nothing and never leaves.
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
    accuracy: Share | None = None
    low: Share | None = None
    high: Share | None = None
    correct: Count | None = None
    records: Count | None = None
    attacks: tuple[Attacked, ...] = ()
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
    accuracy: Share
    low: Share
    high: Share
    lowest: Share
    highest: Share
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


class Verdict(Frozen):
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
    accuracy: Share | None = None
    low: Share | None = None
    high: Share | None = None
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


class Comparison(Frozen):
    """All of it.

    Args:
        data: What is public about the records.
        epsilons: Those that were asked for.
        delta: The δ of every promise.
        seeds: Those that were asked for.
        cells: Every finished run, in the order of the matrix.
        skipped: Methods that do not fit.
        dropped: Cells that were not run.
        court: Verdicts on the claims.
        need: What the release is for.
        advice: What the chooser says.
        version: Of Airlock.
        started: When, in UTC.
        seconds: How long all cells took, added up; less by the clock where several ran at once.
        complete: Whether every cell of the matrix was run.
        notes: What must be said wherever these results are shown.
    """

    data: Subject
    epsilons: tuple[Epsilon, ...]
    delta: Delta
    seeds: tuple[Count, ...]
    cells: tuple[Cell, ...]
    skipped: tuple[Skipped, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    court: tuple[Verdict, ...] = ()
    need: Need = Need()
    advice: Advice
    version: str
    started: datetime.datetime
    seconds: Seconds
    complete: bool = True
    notes: tuple[str, ...] = NOTES

    def __repr__(self) -> str:
        runs = f"{len(self.cells)} runs{'' if self.complete else ', not all that were planned'}"
        return f"{self.data.name}, {runs}: {self.advice.sentence} {self.notes[0]}"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from airlock.release.page import in_notebook
        from airlock.report.page import render  # which is made from this

        return in_notebook(repr(self), render(self))

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity; what is not there is null."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """One line a cell, failed ones too; a claim has a column of its own."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([*_COLUMNS, "standing", "attack", "attack_auc", "attack_low", "attack_high"])
        for cell in self.cells:
            worst = worst_attack(cell)
            found = ("", "", "", "") if worst is None else (worst.name, worst.auc, worst.low, worst.high)
            values = [getattr(cell, name) for name in _COLUMNS]
            lines.writerow(["" if value is None else value for value in (*values, self.standing(cell), *found)])
        return text.getvalue()

    def rows(self) -> tuple[Row, ...]:
        """Every method at every ε over its seeds, in the order of the cells; failed cells are left out."""
        return rows_of(self.cells)

    def left_out(self) -> list[tuple[str, str]]:
        """Cells that were dropped, a method's together, and why."""
        runs: dict[tuple[str, str, bool], dict[float | None, list[int | None]]] = {}
        for one in self.dropped:
            which = one.method, one.reason, one.seed is None
            runs.setdefault(which, {}).setdefault(one.epsilon_asked, []).append(one.seed)
        found = []
        for (method, reason, _), by_epsilon in runs.items():
            by_seeds: dict[tuple[int | None, ...], list[float]] = {}
            for epsilon, seeds in by_epsilon.items():
                by_seeds.setdefault(tuple(seeds), []).extend(() if epsilon is None else (epsilon,))
            for own, epsilons in by_seeds.items():
                found.append((f"{words_for(method, epsilons)}, {_seeds(own)}", reason))
        return found

    def verdict(self, method: str) -> Verdict | None:
        """What the court found about a method; None where it was not tried."""
        return next((one for one in self.court if one.method == method and one.error is None), None)

    def standing(self, one: Cell | Row) -> Standing:
        """The status, or "refuted" where the court or an attack has shown the promise or the claim to be false."""
        stated = one.epsilon if one.epsilon is not None else one.claim_epsilon
        by_attack = stated is not None and one.epsilon_measured is not None and one.epsilon_measured > stated
        found = self.verdict(one.method)
        return "refuted" if by_attack or (found is not None and found.refuted) else one.status


_COLUMNS = (
    "method", "channel", "status", "epsilon_asked", "epsilon", "claim_epsilon", "seed", "accuracy", "low", "high",
    "correct", "records", "epsilon_measured", "seconds", "bytes", "parameters", "queries", "error",
)  # fmt: skip


def words_for(method: str, epsilons: Iterable[float] = ()) -> str:
    """A method and the ε that it is about, in words; none is all of them."""
    where = ", ".join(f"{value:g}" for value in epsilons)
    return (OPEN_NAME if method == BASELINE else method) + (f" at ε = {where}" if where else "")


def _seeds(seeds: tuple[int | None, ...]) -> str:
    if seeds == (None,):
        return "trial before the court"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def worst_attack(cell: Cell) -> Attacked | None:
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


def write(folder: Path, found: Comparison) -> tuple[Path, Path]:
    """results.json and results.csv, for their owner alone, each whole or not at all."""
    places = folder / "results.json", folder / "results.csv"
    replace_file(places[0], found.to_json())
    replace_file(places[1], found.to_csv())
    return places


def replace_file(path: Path, content: str) -> None:
    """Write a file aside, sync it and rename it: whoever reads it finds the old one or the new one, whole.

    Raises:
        OutputError: It cannot be written; what was there stays.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error

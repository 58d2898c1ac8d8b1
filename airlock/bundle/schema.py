"""The tables that make up a card: one small frozen model for each question a reviewer asks.

They hold figures only; the sentences about them are written in `rendering/text.py`, and `card.py` assembles the whole.
Values of other packages (the claim, the interface, paid attacks) are put on a card unchanged; a table with less
information than the value it was made from is called a summary. Every number is finite: where there is no bound, the
field is null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from airlock.accounting.terms import Claim, Relation, Status, Unit
from airlock.auditing.evaluation import Evaluation, Figures
from airlock.auditing.paid_auc import PaidAttack
from airlock.auditing.perplexity import LanguageFigures, LossCounts
from airlock.auditing.regression_errors import ErrorCounts, ErrorFigures
from airlock.config import Count, Delta, Epsilon, Frozen, Proportion, ReadOff, Shape, TargetRange
from airlock.data.feature_files import Form, Precision
from airlock.mechanisms import Place
from airlock.mechanisms.reconstruction import Recovery
from airlock.methods.artefact import LabelsLeave

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Time = Annotated[float, Field(gt=0)]
Places = Annotated[tuple[Place, ...], Field(max_length=2, json_schema_extra={"uniqueItems": True})]


class NetworkSummary(Frozen):
    """What a card says about the network that leaves.

    Args:
        name: A built-in name, or the `package.module:function` that created it.
        input_shape: The shape of one record; a batch has a leading axis in addition.
        classes: The class names, in the order of the outputs; none where a number or the next token is predicted.
        target: The range of that number; null where there is none.
    """

    name: str
    input_shape: Shape
    classes: tuple[str, ...]
    target: TargetRange | None = None

    @property
    def outputs(self) -> int:
        """How many outputs it has; 0 for a language model, which has one for each token."""
        return len(self.classes) if self.target is None else 1


class FeatureSummary(Frozen):
    """What a card says about the features that leave; `features.json` names the files.

    Args:
        shape: The shape of one record's features.
        classes: The class names, in the order of the labels.
        records: The number of records.
        files: The number of files that hold them.
        bytes: The total size of these files.
        form: The file format.
        precision: The numeric precision.
        noise: The standard deviation of the noise on every number; null where there is none.
        labels: Whether labels leave unchanged.
        prior: Which pictures `recovery` is about; empty where no bound is stated.
        recovery: The bound on reconstruction, which holds against every attacker.
    """

    model_config = ConfigDict(revalidate_instances="always")  # bounds are computed elsewhere, so validate them here

    shape: Shape
    classes: tuple[str, ...]
    records: Count
    files: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=1)]
    form: Form
    precision: Precision
    noise: Annotated[float, Field(gt=0)] | None
    labels: LabelsLeave
    prior: str
    recovery: Annotated[tuple[Recovery, ...], Field(max_length=16)]


class DataSummary(Frozen):
    """What is public about the data, and nothing else.

    Args:
        name: The name of the data set.
        origin: Where the data and their sizes come from, in one sentence.
        shape: The shape of one record.
        classes: The class names; none where a number or the next token is predicted.
        records: The public number of records from which the training records were taken; need not be exact.
        test_records: The size of the official test set, if there is one.
        public_share: The share of the records (of the people, where these are the protected unit) that the holder
            declared public; the guarantee does not cover them.
        people: The public number of people; null where the protected unit is a record. Need not be exact.
        grouped: Whether the data say whose a record is although the protected unit is a record: a person with several
            records is protected less.
        read_off: Which of these, or of the columns, the holder read off the records, so that the guarantee does not
            cover them.
        target: The declared range of the number that is predicted; null where none is.
        vocabulary: Of texts: how many different numbers their tokens become; null for other data.
        tokenizer: Of texts: SHA-256 of the public tokenizer.json; null for other data.
    """

    name: str
    origin: str
    shape: Shape
    classes: tuple[str, ...]
    records: Count
    test_records: Count | None
    public_share: Proportion
    people: Count | None = None
    grouped: bool = False
    read_off: tuple[ReadOff, ...] = ()
    target: TargetRange | None = None
    vocabulary: Annotated[int, Field(ge=2)] | None = None
    tokenizer: Hash | None = None

    @property
    def language(self) -> bool:
        """Whether records are texts without labels, of which the next token is predicted."""
        return self.vocabulary is not None and not self.classes and self.target is None

    @property
    def units(self) -> int:
        """How many of the protected unit there are: people, or records."""
        return self.records if self.people is None else self.people


class PartCost(Frozen):
    """What one part of the records pays: its events, and their ε at the card's δ; null where there is no bound."""

    epsilon: Epsilon | None
    accountant: Literal["PLD", "RDP"]
    events: dict[str, Any]


class PartCosts(Frozen):
    """The cost to each part. A keyed hash puts each record in one part, so parts compose in parallel.

    Where the protected unit is a person, a keyed hash of the identifier puts each person in one part.

    Args:
        private: The records that were trained on; its events are those of the guarantee.
        test: The records on which utility was measured.
        holdout: The records that were held out for attacks.
    """

    private: PartCost
    test: PartCost
    holdout: PartCost


class StatedGuarantee(Frozen):
    """A guarantee as a card states it: plain values that anyone could have written; ε is null where there is no bound.

    The fields are those of `airlock.accounting.Guarantee.to_dict()`. There ε is computed; here it is read, and `verify`
    recomputes it.

    `epsilon` and `events` are those of the private part; no other part pays more (`parts`).
    """

    status: Status
    unit: Unit
    relation: Relation
    epsilon: Epsilon | None
    delta: Delta
    accountant: Literal["PLD", "RDP"]
    accountant_version: str
    sampling: str
    claim: Claim | None
    assumptions: tuple[str, ...]
    events: dict[str, Any]
    parts: PartCosts


class RequestedBudget(Frozen):
    """The requested ε and δ; the guarantee says what was achieved."""

    epsilon: Epsilon
    delta: Delta


class Utility(Frozen):
    """How useful the release is: noisy counts of test records, which are paid for, and the figures derived from them.

    Args:
        counts: The noisy tables, and what they cost a test record, or a test person: one record of each is counted.
        figures: Accuracy and related figures, with intervals that account for the noise.
    """

    counts: Evaluation
    figures: Figures


class ErrorUtility(Frozen):
    """How useful a regression is: noisy counts of test records, which are paid for, and the figures that follow.

    Args:
        counts: The noisy tables, and what they cost a test record, or a test person: one record of each is counted.
        figures: How far predictions are off, in the unit of the target, with intervals that account for the noise.
    """

    counts: ErrorCounts
    figures: ErrorFigures


class LanguageUtility(Frozen):
    """How useful a language model is: noisy counts of test texts, which are paid for, and the perplexity that follows.

    Args:
        counts: The noisy tables, and what they cost a test record, or a test person: one text of each is counted.
        figures: Perplexity after and before training, with intervals that account for the noise.
    """

    counts: LossCounts
    figures: LanguageFigures


AnyUtility = Utility | ErrorUtility | LanguageUtility


class PaidAttacks(Frozen):
    """What a card says about attacks: figures that an explicit share of ε pays for; all others are in the dossier.

    Args:
        share: The share of the requested ε that is set aside for them.
        attacks: The attack figures it pays for; empty if the share is 0.
    """

    share: Annotated[float, Field(ge=0, lt=1)]
    attacks: Annotated[tuple[PaidAttack, ...], Field(max_length=8)]


class OtherRelease(Frozen):
    """Another release from the same data, with the events of its private part and those of its test part."""

    release_id: ReleaseId
    name: str
    channel: str
    method: str
    status: Status
    unit: Unit
    secure_noise: bool
    epsilon: Epsilon | None
    delta: Delta
    accountant: Literal["PLD", "RDP"]
    events: dict[str, Any]
    test_events: dict[str, Any]


class Composition(Frozen):
    """All declared releases from the same data, and what they cost together with this one.

    Args:
        releases: The other releases.
        epsilon: The total ε, including this release, at `delta`; null where one of them has no bound for this unit.
        delta: This card's δ.
        accountant: Which accountant bounded the total; null where there is no bound.
    """

    releases: tuple[OtherRelease, ...]
    epsilon: Epsilon | None
    delta: Delta
    accountant: Literal["PLD", "RDP"] | None


class LifetimeBudget(Frozen):
    """What a card says of the register that the release was charged to; nothing about other releases.

    Args:
        epsilon: Of everything that ever leaves under the register.
        delta: Of everything that ever leaves under the register.
        order: The Rényi order of its filter.
        cost: What this release was charged, in millionths of Rényi divergence of that order.
        spent: What was charged in all when it was, this release included.
    """

    epsilon: Annotated[float, Field(gt=0, le=1000)]
    delta: Delta
    order: Annotated[int, Field(ge=2, le=1024)]
    cost: Annotated[int, Field(ge=1)]
    spent: Annotated[int, Field(ge=1)]


class SearchSummary(Frozen):
    """A search that was paid for: what was searched and which candidate won, but not how many runs there were.

    Args:
        mean: The expected number of runs; how many there were is secret.
        shape: Of their distribution, the truncated negative binomial.
        run_epsilon: What every candidate was planned with; the guarantee's ε is that of the whole search.
        score_epsilon: What one run's score costs a test record.
        candidates: The values of each candidate by dotted key, without paths.
        won: The place of the one that leaves, from 0.
    """

    mean: Annotated[float, Field(gt=1, le=1000)]
    shape: Annotated[float, Field(ge=0, le=10)]
    run_epsilon: Annotated[float, Field(gt=0)]
    score_epsilon: Annotated[float, Field(gt=0)]
    candidates: Annotated[tuple[dict[str, Any], ...], Field(min_length=1, max_length=64)]
    won: Count

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if self.won >= len(self.candidates):
            raise ValueError("the candidate that won must be one of those listed")
        return self


class Tuning(Frozen):
    """What was paid for before this result was picked; the recorded events include all of it.

    Args:
        runs: How many runs were declared.
        search: The search that was made instead; null where there was none.
        chosen: Whether the config left the method to the rule that chooses it from public facts, which costs nothing.
    """

    runs: Annotated[int, Field(ge=1)]
    search: SearchSummary | None = None
    chosen: bool = False


class Cost(Frozen):
    """What an architecture costs; the teacher's is measured with random weights.

    Args:
        name: The name of the network.
        parameters: The number of parameters.
        multiply_adds: Multiply-adds of its convolutions and dense layers, for one record.
        safetensors_bytes: The size of the safetensors file.
        onnx_bytes: The size of the ONNX file; null if it cannot be exported.
        milliseconds: The time for `images` inputs, one at a time, where the card was made; null if it cannot be
            exported.
    """

    name: str
    parameters: Count
    multiply_adds: Count
    safetensors_bytes: Count
    onnx_bytes: Count | None
    milliseconds: Time | None


class OnnxForm(Frozen):
    """One ONNX file of the network that leaves.

    Args:
        file: Its name.
        bytes: Its size.
        milliseconds: As in `Cost`, measured in the same run.
        agrees: The number of public records on which it predicts the same class as model.onnx.
        records: The number of public records that were compared.
    """

    file: Literal["model.onnx", "model.int8.onnx", "model.fp16.onnx"]
    bytes: Count
    milliseconds: Time
    agrees: Count
    records: Count


class OnTest(Frozen):
    """The results of one ONNX file on the test records, counted without noise; for the dossier."""

    file: Literal["model.onnx", "model.int8.onnx", "model.fp16.onnx"]
    correct: Count
    agrees: Count
    records: Count


class Compression(Frozen):
    """How much smaller and faster the student is than its teacher, which does not leave.

    Args:
        teacher: What the teacher's architecture costs.
        student: What the network that leaves costs.
        images: The number of inputs in one timing round.
        rounds: The number of timing rounds; the median is reported.
        forms: The ONNX files.
        not_made: What could not be made or measured, one sentence each.
    """

    teacher: Cost
    student: Cost
    images: Count
    rounds: Count
    forms: Annotated[tuple[OnnxForm, ...], Field(max_length=3)]
    not_made: tuple[str, ...]

    @property
    def faster(self) -> float | None:
        """How many times faster the student is; None where the teacher could not be timed."""
        ours, theirs = self.student.milliseconds, self.teacher.milliseconds
        return theirs / ours if ours and theirs else None


class Hashes(Frozen):
    """SHA-256 of the files that are not derived from the card; null for files that are not in the bundle."""

    model_safetensors: Hash | None = None
    model_onnx: Hash | None = None
    model_int8_onnx: Hash | None = None
    model_fp16_onnx: Hash | None = None
    model_table_onnx: Hash | None = None
    tokenizer_json: Hash | None = None
    features_json: Hash | None = None
    config_toml: Hash


class Decision(Frozen):
    """The reviewer's decision; empty until it is made."""

    decision: Literal["approve", "approve with conditions", "reject"] | None = None
    name: str = ""
    date: str = ""
    remarks: str = ""


class Words(Frozen):
    """The sentences of the card, all derived from its figures."""

    promise: tuple[str, ...]
    noise: str
    utility: str
    audit: str
    others: str
    tuning: str


class OlderTable(BaseModel):
    """The fields that are read from a card of an earlier format; all others are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class OlderGuarantee(OlderTable):
    """The guarantee of an older card, with the events that its ε was computed from."""

    status: Status
    unit: str
    relation: Relation
    epsilon: float | None
    delta: float
    accountant: str
    accountant_version: str
    events: dict[str, Any]

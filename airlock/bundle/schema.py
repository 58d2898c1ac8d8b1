"""What a card is made of: one small frozen table for each thing a reviewer asks about.

Figures stand here and nothing else; the sentences about them are written in `rendering/text.py`, and the whole is put
together in `card.py`. Values of other rooms (the claim, the interface, paid attacks) stand on a card as they are; a
table that says less than the value it was made from is called a summary. Every number is finite: where there is no
bound, the field is null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from airlock.accounting.epsilon import Relation
from airlock.accounting.guarantee import Claim, Status, Unit
from airlock.auditing.evaluation import Evaluation, Figures
from airlock.auditing.paid_attacks import PaidAttack
from airlock.config import Count, Delta, Epsilon, Frozen, Proportion, Shape
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
        name: A built-in name, or the `package.module:function` that made it.
        input_shape: Of one record; a batch has one more axis in front.
        classes: The class names, in the order of the outputs.
    """

    name: str
    input_shape: Shape
    classes: tuple[str, ...]


class FeatureSummary(Frozen):
    """What a card says about the features that leave; `features.json` names the files.

    Args:
        shape: Of one record's features.
        classes: The class names, in the order of the labels.
        records: How many records.
        files: How many files they lie in.
        bytes: What these take.
        form: Of the files.
        precision: Of the numbers.
        noise: The standard deviation of the noise on every number; null where there is none.
        labels: Whether labels leave as they are.
        prior: Whose pictures `recovery` speaks of; empty where nothing is said.
        recovery: The bound on reconstruction against every attacker.
    """

    model_config = ConfigDict(revalidate_instances="always")  # a bound that was made elsewhere is checked here

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
    """What is public about the data, and only that.

    Args:
        name: What it is called.
        origin: Where it and its sizes come from, in one sentence.
        shape: Of one record.
        classes: The class names.
        records: The public number of records from which the training records were taken; need not be exact.
        test_records: The size of the official test set, if there is one.
        public_share: The share of the records that the holder declared public; no promise is about them.
    """

    name: str
    origin: str
    shape: Shape
    classes: tuple[str, ...]
    records: Count
    test_records: Count | None
    public_share: Proportion


class PartCost(Frozen):
    """What one part of the records pays: its events, and their ε at the card's δ; null where there is no bound."""

    epsilon: Epsilon | None
    accountant: Literal["PLD", "RDP"]
    events: dict[str, Any]


class PartCosts(Frozen):
    """Who pays for what. Every record is in one part, by a keyed hash of its own content, so costs do not add up.

    Args:
        private: The records that were trained on; its events are those of the guarantee.
        test: Those on which the release was measured.
        holdout: Those that were kept for attacks.
    """

    private: PartCost
    test: PartCost
    holdout: PartCost


class StatedGuarantee(Frozen):
    """A guarantee as a card states it: plain values that anybody may have written; ε is null where there is no bound.

    `airlock.accounting.Guarantee.to_dict()`, field by field. There ε is computed; here it is read, and `verify`
    computes it again.

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
    """The ε and δ that were asked for; the guarantee says what was reached."""

    epsilon: Epsilon
    delta: Delta


class Utility(Frozen):
    """How useful the release is: counts of test records with noise, which are paid for, and what follows from them.

    Args:
        counts: The tables, and what they cost a test record.
        figures: Accuracy and the like, with intervals that contain the noise.
    """

    counts: Evaluation
    figures: Figures


class PaidAttacks(Frozen):
    """What a card says about attacks: figures that an explicit share of ε pays for; all others are in the dossier.

    Args:
        share: Of the ε that was asked for.
        attacks: What it pays for; empty where the share is 0.
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
        releases: The others.
        epsilon: The ε of all of them and this one at `delta`; null where one of them has no bound for this unit.
        delta: This card's δ.
        accountant: Which accountant bounded the total; null where there is no bound.
    """

    releases: tuple[OtherRelease, ...]
    epsilon: Epsilon | None
    delta: Delta
    accountant: Literal["PLD", "RDP"] | None


class Tuning(Frozen):
    """How many runs were declared and paid for; the recorded events contain all of them."""

    runs: Annotated[int, Field(ge=1)]


class Cost(Frozen):
    """What an architecture takes; the teacher's is measured with random weights.

    Args:
        name: Of the network.
        parameters: How many.
        multiply_adds: Of its convolutions and dense layers, for one record.
        safetensors_bytes: The size of its weights as a file.
        onnx_bytes: The size of the whole as a file; null where it cannot be exported.
        milliseconds: For `images` inputs one by one, where the card was made; null where it cannot be exported.
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
        milliseconds: As in `Cost`, from the same run.
        agrees: Public records of which it says the same as model.onnx.
        records: Public records that both were asked about.
    """

    file: Literal["model.onnx", "model.int8.onnx", "model.fp16.onnx"]
    bytes: Count
    milliseconds: Time
    agrees: Count
    records: Count


class OnTest(Frozen):
    """How one ONNX file does on the test records, counted without noise; for the dossier."""

    file: Literal["model.onnx", "model.int8.onnx", "model.fp16.onnx"]
    correct: Count
    agrees: Count
    records: Count


class Compression(Frozen):
    """How much smaller and faster the student is than its teacher, which does not leave.

    Args:
        teacher: What its architecture takes.
        student: The same of the network that leaves.
        images: Inputs in one round of the measurement of time.
        rounds: Of which the median stands here.
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
    """SHA-256 of the files whose content the card does not repeat; null for those that are not there."""

    model_safetensors: Hash | None = None
    model_onnx: Hash | None = None
    model_int8_onnx: Hash | None = None
    model_fp16_onnx: Hash | None = None
    features_json: Hash | None = None
    config_toml: Hash


class Decision(Frozen):
    """What the reviewer decided; empty until somebody has."""

    decision: Literal["approve", "approve with conditions", "reject"] | None = None
    name: str = ""
    date: str = ""
    remarks: str = ""


class Words(Frozen):
    """The sentences of the card: they follow from its figures and are written nowhere else."""

    promise: tuple[str, ...]
    noise: str
    utility: str
    audit: str
    others: str
    tuning: str


class OlderTable(BaseModel):
    """What is read of a card of an earlier format; the rest of it is left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class OlderGuarantee(OlderTable):
    """What was promised, with the events that its ε was computed from."""

    status: Status
    unit: str
    relation: Relation
    epsilon: float | None
    delta: float
    accountant: str
    accountant_version: str
    events: dict[str, Any]

"""What a card is made of: one small frozen table for each thing a reviewer asks about.

Figures stand here and nothing else; the sentences about them are written in `words.py` and the whole is put together in
`card.py`. Every number is finite: where there is no bound, the field is null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from airlock.accounting.epsilon import Relation
from airlock.accounting.guarantee import Status, Unit
from airlock.auditing.evaluation import Evaluation, Figures
from airlock.auditing.required_attacks import Attacked
from airlock.auditing.result import Aim, View
from airlock.bundle.feature_schema import OnFeatures
from airlock.config import Frozen
from airlock.data.feature_files import Form as FileForm
from airlock.data.feature_files import Precision
from airlock.mechanisms import Place
from airlock.methods.artefact import LabelsLeave
from airlock.methods.interface import Gives

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Signed = Annotated[float, Field(ge=-1, le=1)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Epsilon = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(gt=0)]
Places = Annotated[tuple[Place, ...], Field(max_length=2, json_schema_extra={"uniqueItems": True})]
Shape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=8)]


class Network(Frozen):
    """The network that leaves.

    Args:
        name: A built-in name, or the `package.module:function` that made it.
        input_shape: Of one record; a batch has one more axis in front.
        classes: The class names, in the order of the outputs.
    """

    name: str
    input_shape: Shape
    classes: tuple[str, ...]


class Asking(Frozen):
    """What may be asked, where answers leave and no network; `interface.json` holds the same.

    Args:
        gives: What an answer is.
        input_shape: Of one query.
        classes: The class names, in the order of the outputs.
        units: The whole budget; null where answers cost nothing.
        unit: What one unit pays for.
        figures: Public figures of whoever answers.
    """

    gives: Gives
    input_shape: Shape
    classes: tuple[str, ...]
    units: Annotated[int, Field(ge=1)] | None
    unit: str
    figures: dict[str, str | int | float]


class Recovered(Frozen):
    """How often anyone can give back a picture this well (dB), with the release and without, at most."""

    psnr: Annotated[float, Field(gt=0)]
    blind: Share
    bound: Share


class Rows(Frozen):
    """What leaves, where features do and no network; `features.json` names the files.

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

    shape: Shape
    classes: tuple[str, ...]
    records: Count
    files: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=1)]
    form: FileForm
    precision: Precision
    noise: Annotated[float, Field(gt=0)] | None
    labels: LabelsLeave
    prior: str
    recovery: Annotated[tuple[Recovered, ...], Field(max_length=16)]


Stays = Asking | Rows | None  # what leaves where no network does


class Data(Frozen):
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
    public_share: Share


class Claim(Frozen):
    """What a paper would print."""

    epsilon: Epsilon
    delta: Delta
    theorem: str


class Part(Frozen):
    """What one part of the records pays: its events, and their ε at the card's δ; null where there is no bound."""

    epsilon: Epsilon | None
    accountant: Literal["PLD", "RDP"]
    events: dict[str, Any]


class Parts(Frozen):
    """Who pays for what. Every record is in one part, by a keyed hash of its own content, so costs do not add up.

    Args:
        private: The records that were trained on; its events are those of the guarantee.
        test: Those on which the release was measured.
        holdout: Those that were kept for attacks.
    """

    private: Part
    test: Part
    holdout: Part


class Promise(Frozen):
    """The guarantee: `airlock.accounting.Guarantee.to_dict()`, field by field; ε is null where there is no bound.

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
    parts: Parts


class Target(Frozen):
    """The ε and δ that were asked for; the guarantee says what was reached."""

    epsilon: Epsilon
    delta: Delta


class Usefulness(Frozen):
    """How useful the release is: counts of test records with noise, which are paid for, and what follows from them.

    Args:
        counts: The tables, and what they cost a test record.
        figures: Accuracy and the like, with intervals that contain the noise.
    """

    counts: Evaluation
    figures: Figures


class Rate(Frozen):
    """Members found at a small false positive rate, or why there is no figure."""

    false_positive_rate: Share
    value: Share | None
    low: Share | None
    high: Share | None
    false_positive_rate_high: Share | None
    refused: str | None


class Gain(Frozen):
    """One threshold, chosen by half of the records and counted on the others; `largest` is of all thresholds."""

    value: Signed
    low: Signed
    high: Signed
    balanced_accuracy: Share
    true_positive_rate: Share
    false_positive_rate: Share
    largest: Signed


class OfClass(Frozen):
    """The AUC among the records of one class; null where it has too few."""

    name: str
    value: Share | None
    low: Share | None
    high: Share | None


class OverSeeds(Frozen):
    """Whether the attack finds the same records when it is made again with other seeds."""

    seeds: Annotated[int, Field(ge=2)]
    rank_correlation: Signed | None
    stays_on_top: Share | None


class Attack(Frozen):
    """One attack: `airlock.auditing.result.AttackResult.to_dict()`, field by field."""

    name: str
    question: str
    score: str
    value: float
    low: float
    high: float
    chance: float
    confidence: Share
    members: Count
    non_members: Count
    smallest_effect: float
    epsilon_lower_bound: Epsilon
    view: View
    aim: Aim
    could_refute: Epsilon
    advantage: Gain | None
    rates: Annotated[tuple[Rate, ...], Field(max_length=16)]
    curve: Annotated[tuple[tuple[Share, Share], ...], Field(max_length=64)]
    per_class: tuple[OfClass, ...]
    stability: OverSeeds | None

    @property
    def beats_chance(self) -> bool:
        """Whether its whole interval lies above chance."""
        return self.low > self.chance


class PaidAttack(Frozen):
    """One attack whose figure has noise and is paid for.

    Args:
        name: Short name.
        question: What the attacker tries to find out.
        score: The name of the score.
        view: What the attacker has.
        value: The score, with noise.
        low: Lower end of its interval, in which chance and noise are both contained.
        high: Upper end.
        chance: What pure guessing scores.
        members: How many records of the private part took part; a public figure.
        non_members: How many of the holdout; a public figure.
        epsilon: What the figure cost each of them.
    """

    name: str
    question: str
    score: str
    view: View
    value: Share
    low: Share
    high: Share
    chance: Share
    members: Annotated[int, Field(ge=1)]
    non_members: Annotated[int, Field(ge=1)]
    epsilon: Annotated[float, Field(gt=0)]


class PaidAttacks(Frozen):
    """What a card says about attacks: figures that an explicit share of ε pays for; all others are in the dossier.

    Args:
        share: Of the ε that was asked for.
        attacks: What it pays for; empty where the share is 0.
    """

    share: Annotated[float, Field(ge=0, lt=1)]
    attacks: Annotated[tuple[PaidAttack, ...], Field(max_length=8)]


class Attacks(Frozen):
    """The attacks that were run, and in plain words what was not tested; for the dossier.

    Args:
        attacks: On membership.
        not_tested: What was left out.
        features: What attacks on features found; null where no features leave.
    """

    attacks: tuple[Attack, ...]
    not_tested: tuple[str, ...]
    features: OnFeatures | None = None

    @property
    def made(self) -> tuple[Attacked, ...]:
        """All of them, whatever they are after."""
        return (*self.attacks, *(self.features.reconstructions if self.features else ()))


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


class Total(Frozen):
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


class Form(Frozen):
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
    forms: Annotated[tuple[Form, ...], Field(max_length=3)]
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


class OlderPromise(OlderTable):
    """What was promised, with the events that its ε was computed from."""

    status: Status
    unit: str
    relation: Relation
    epsilon: float | None
    delta: float
    accountant: str
    accountant_version: str
    events: dict[str, Any]

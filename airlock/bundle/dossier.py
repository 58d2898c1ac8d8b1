"""The dossier: what the internal reviewer reads and signs. It stays in the vault.

In: a card, its release, and the audit. Out: a frozen `Dossier`: exact accuracy, all attacks with all their figures,
the court's findings, and the remarks made to the holder about the records. All of it depends on individual records, and
no ε covers any of it. It is strict JSON with a published schema (`dossier.schema.json`), is kept in the vault under the
release's id, and its page says in large letters that it stays. Whatever may leave is on the card.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from airlock._version import VERSION
from airlock.auditing import evaluation, perplexity, regression_errors
from airlock.auditing.evaluation import Figures
from airlock.auditing.perplexity import LanguageFigures
from airlock.auditing.regression_errors import ErrorFigures
from airlock.auditing.result import Audit, ContactSheet
from airlock.bundle.card import Card
from airlock.bundle.files import parse_json
from airlock.bundle.rendering import text
from airlock.bundle.rendering.strength import Strength
from airlock.bundle.rendering.text import CardVerdict
from airlock.bundle.schema import Decision, OnTest, ReleaseId, StatedGuarantee
from airlock.bundle.vault import Vault
from airlock.config import About, Count, Delta, Epsilon, Frozen, TargetRange
from airlock.errors import FormatError

if TYPE_CHECKING:
    from airlock.accounting import Guarantee
    from airlock.auditing.audit_game import Verdict
    from airlock.methods import Release
    from airlock.training.outcomes import Outcomes

DOSSIER_VERSION = 1
SCHEMA_ID = "urn:airlock:dossier:1"
STAYS = "This dossier stays inside. Its figures follow from single records and no ε covers them."

Scalar = str | int | float
_Row = Annotated[tuple[Count, ...], Field(min_length=1)]


class ExactUtility(Frozen):
    """How the test records were classified, counted without noise.

    Args:
        correct: How many were classified correctly.
        records: How many there were.
        figures: Accuracy, recall of each class, AUC, calibration, each with its interval.
        confusion: One row per true class: how often each class was predicted; the last column counts rows without a
            prediction.
    """

    correct: Count
    records: Count
    figures: Figures
    confusion: tuple[_Row, ...]


class ExactErrors(Frozen):
    """How far predictions of test records are off, where a number is predicted; without noise.

    Args:
        target: The declared range.
        figures: Errors in its unit, each with its interval.
    """

    target: TargetRange
    figures: ErrorFigures


class CourtFinding(Frozen):
    """What the court found about a claim, on synthetic records.

    Args:
        what: What was tried, in one sentence.
        claim_epsilon: The claimed ε that was tested; null where none is stated.
        claim_delta: Its δ.
        refuted: Whether the claim is false, with 95% confidence.
        lower_bound: ε is above this, with the same confidence; 0 if nothing was shown.
        would_show: The smallest true ε at which this many runs would be expected to refute the claim; null if none.
        pairs: How many pairs of runs were made.
        seconds: How long they took.
        sentence: The verdict in words.
        error: Why there is no verdict; null where there is one.
    """

    what: str
    claim_epsilon: Epsilon | None
    claim_delta: Delta
    refuted: bool
    lower_bound: Epsilon
    would_show: Epsilon | None = None
    pairs: Count
    seconds: Annotated[float, Field(ge=0)]
    sentence: str
    error: str | None = None


class Dossier(Frozen):
    """All exact figures about one release, for the internal reviewer.

    Args:
        dossier_version: The version of this format.
        release_id: Identifies the release, in the vault and on its card.
        airlock_version: The version that wrote the dossier.
        created: The date, in UTC.
        name: The name of the data.
        channel: Which of the five kinds of release this is.
        method: The method within the channel.
        says: The card's headline, which leaves.
        guarantee: The guarantee on the card.
        secure_noise: Whether the privacy noise was seeded by the operating system.
        utility: How the test records were classified; null where there are no classes.
        errors: How far predictions of test records are off, where a number is predicted; otherwise null.
        language: The perplexity of a language model on the test texts, without noise; otherwise null.
        audit: All attacks, with all their figures.
        smaller: Results of a student's files on test records; empty where no student leaves.
        sheet: Pictures next to attackers' reconstructions from their features; null where there are none.
        teacher: What quick attacks found on a student's teacher, which stays; null where no teacher was kept.
        remarks: What the holder was told about the records.
        inside: Figures of the method that are not paid for.
        followed: What led to this release, such as a comparison; empty where nothing was stated.
        court: What the court found about this configuration.
        uncovered: What the guarantee leaves out, or covers less than it sounds.
        about: Whose data and what for, as on the card.
        decision: To be filled in by the reviewer.
    """

    dossier_version: Literal[1]
    release_id: ReleaseId
    airlock_version: str
    created: datetime.date
    name: str
    channel: str
    method: str
    says: str
    guarantee: StatedGuarantee
    secure_noise: bool
    utility: ExactUtility | None
    errors: ExactErrors | None = None
    language: LanguageFigures | None = None
    audit: Audit
    smaller: Annotated[tuple[OnTest, ...], Field(max_length=3)] = ()
    sheet: ContactSheet | None = None
    teacher: Audit | None = None
    remarks: tuple[str, ...] = ()
    inside: dict[str, Scalar] = Field(default_factory=dict)
    followed: str = ""
    court: tuple[CourtFinding, ...] = ()
    uncovered: tuple[str, ...] = ()
    about: About = About()
    decision: Decision = Decision()

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def verdict(self) -> CardVerdict:
        """The card's verdict, or "doubt" where an attack or the court refutes a proven ε."""
        own = text.verdict(self.guarantee, self.secure_noise, self.audit)
        return "doubt" if own == "proven" and self.refuted_in_court else own

    @property
    def strength(self) -> Strength | None:
        """How strong the guarantee is; None where it is not proven, or in doubt."""
        return text.strength_of(self.guarantee, self.secure_noise) if self.verdict == "proven" else None

    @property
    def mark(self) -> text.Mark:
        """Colour and shape of the page."""
        return text.mark(self.verdict, self.strength, self.uncovered)

    @property
    def headline(self) -> str:
        """The verdict in one sentence, given everything known inside."""
        if self.verdict != "doubt":
            return self.says
        if self.refuted_in_court and text.measured(self.audit) <= (self.guarantee.epsilon or 0.0):
            return text.court_doubt(self.guarantee, max(trial.lower_bound for trial in self.court if trial.refuted))
        return text.doubt(self.guarantee, self.audit)

    @property
    def refuted_in_court(self) -> bool:
        """Whether the court refuted the claim for this configuration."""
        return any(trial.refuted for trial in self.court)

    @property
    def on_features(self) -> tuple[str, ...]:
        """The sentences about attacks on features."""
        return text.write_on_features(self.audit.features)

    @property
    def on_canaries(self) -> tuple[str, ...]:
        """The sentence about canary sentences, if their exposure was measured."""
        return text.write_on_canaries(self.audit.exposure)

    @property
    def on_columns(self) -> tuple[str, ...]:
        """What the model tells about columns of a table, if that was tried."""
        return text.write_on_columns(self.audit)

    @property
    def on_worst_case(self) -> tuple[str, ...]:
        """How tight the promise is, if that was tried."""
        return text.write_on_worst_case(self.audit.worst_case)


def make(
    card: Card,
    release: Release,
    audit: Audit,
    *,
    smaller: Sequence[OnTest] = (),
    remarks: Sequence[str] = (),
    followed: str = "",
) -> Dossier:
    """The dossier of a release.

    Args:
        card: Its card, which leaves.
        release: The release, with its outcomes on test records.
        audit: What the attacks found.
        smaller: Results of a student's files on test records.
        remarks: What the holder was told about the records.
        followed: What led to the release, such as a comparison.
    """
    made = of_card(card, release.utility, remarks=remarks, followed=followed)
    return with_audit(made, audit).model_copy(update={"inside": dict(release.inside), "smaller": tuple(smaller)})


def of_card(card: Card, outcomes: Outcomes, *, remarks: Sequence[str] = (), followed: str = "") -> Dossier:
    """The dossier of a release that has not been attacked yet."""
    target, language = card.data.target, card.data.language
    return Dossier(
        dossier_version=DOSSIER_VERSION,
        release_id=card.release_id,
        airlock_version=VERSION,
        created=_today(),
        name=card.data.name,
        channel=card.channel,
        method=card.method,
        says=card.headline,
        guarantee=card.guarantee,
        secure_noise=card.secure_noise,
        utility=exact(outcomes, len(card.data.classes)) if target is None and not language else None,
        errors=None
        if target is None
        else ExactErrors(target=target, figures=regression_errors.exact(outcomes, target)),
        language=perplexity.exact(outcomes, card.data.vocabulary or 0) if language else None,
        audit=Audit((), ()),
        remarks=tuple(remarks),
        followed=followed,
        uncovered=card.uncovered,
        about=card.about,
    )


def with_audit(dossier: Dossier, audit: Audit, teacher: Audit | None = None) -> Dossier:
    """The dossier after another audit; a decision about the old dossier is not carried over."""
    return _changed(
        dossier,
        audit=audit.to_dict(),
        sheet=audit.sheet,
        teacher=None if teacher is None else teacher.to_dict(),
    )


def court_finding(name: str, verdict: Verdict) -> CourtFinding:
    """The court's verdict on the claim of the named method."""
    claim = verdict.case.claim
    return CourtFinding(
        what=verdict.case.pair,
        claim_epsilon=claim.epsilon,
        claim_delta=claim.delta,
        refuted=verdict.refuted,
        lower_bound=verdict.epsilon_lower_bound,
        would_show=verdict.would_show,
        pairs=verdict.pairs,
        seconds=round(verdict.seconds, 1),
        sentence=verdict.sentence(name),
    )


def no_court_finding(name: str, promised: Guarantee, sentence: str, error: str) -> CourtFinding:
    """A finding without a verdict, and why there is none."""
    stated = promised.epsilon if math.isfinite(promised.epsilon) else promised.claim and promised.claim.epsilon
    return CourtFinding(
        what=f"{name}, this configuration",
        claim_epsilon=stated,
        claim_delta=promised.delta,
        refuted=False,
        lower_bound=0.0,
        pairs=0,
        seconds=0.0,
        sentence=sentence,
        error=error,
    )


def with_court(dossier: Dossier, trials: Iterable[CourtFinding]) -> Dossier:
    """The dossier with further court findings; a decision about the old dossier is not carried over."""
    return _changed(dossier, court=(*dossier.court, *trials))


def _changed(dossier: Dossier, **changes: object) -> Dossier:
    new = {"airlock_version": VERSION, "created": _today(), "decision": Decision()}
    return Dossier.model_validate({**dict(dossier), **new, **changes})


def find(vault: Vault, release_id: str) -> Dossier | None:
    """The newest dossier of a release; None if this vault has none.

    Raises:
        FormatError: It has one that cannot be read.
    """
    content = vault.load_dossier(release_id)
    if content is None:
        return None
    try:
        return Dossier.model_validate(parse_json(content))
    except ValueError as error:  # includes pydantic's ValidationError
        raise FormatError(
            f"the dossier of release {release_id[:8]} in the vault",
            "something else",
            "It may have been changed, or written by another version.",
            "`airlock audit` writes a new one.",
        ) from error


def read(vault: Vault, release_id: str) -> Dossier:
    """The newest dossier of a release.

    Raises:
        FormatError: This vault has none, or one that cannot be read.
    """
    found = find(vault, release_id)
    if found is None:
        raise FormatError(
            f"the dossier of release {release_id[:8]}",
            f"none in {vault.root}",
            "A dossier stays in the vault of its release.",
            "Give that vault with --vault or AIRLOCK_VAULT.",
        )
    return found


def exact(outcomes: Outcomes, classes: int) -> ExactUtility:
    """Counts without noise."""
    correct, records = outcomes.correct, outcomes.records
    named = (outcomes.predicted >= 0) & (outcomes.predicted < classes)
    known = (outcomes.labels >= 0) & (outcomes.labels < classes)
    table = np.zeros((classes, classes + 1), np.int64)  # the last column: no class was predicted
    np.add.at(table, (outcomes.labels[known], np.where(named, outcomes.predicted, classes)[known]), 1)
    return ExactUtility(
        correct=correct,
        records=records,
        figures=evaluation.exact(outcomes, classes),
        confusion=tuple(tuple(int(count) for count in row) for row in table),
    )


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def schema() -> dict[str, Any]:
    """The JSON schema of a dossier, as published in `dossier.schema.json`."""
    body = Dossier.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID} | body

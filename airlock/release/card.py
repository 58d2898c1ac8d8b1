"""The card: what a reviewer reads and signs.

In: the config, the public facts about the data, the release and its audit. Out: a frozen `Card`, which is strict JSON,
has a published schema (`card.schema.json`), and is all that the page and the model card are made from. It holds public
figures only: no records, no count of private records, no path, no host name, no user name.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from pydantic import model_validator

from airlock._version import VERSION
from airlock.accounting import compose, from_json, spend
from airlock.audit.bounds import proportion_interval
from airlock.audit.result import Audit
from airlock.channels.contract import Artefact, Release
from airlock.channels.feature_set import Features
from airlock.channels.interface import Interface
from airlock.config import Frozen, ReleaseConfig
from airlock.data import Facts
from airlock.errors import ConfigError
from airlock.release import words
from airlock.release.feature_fields import ContactSheet
from airlock.release.fields import (
    Asking,
    Attacks,
    Compression,
    Data,
    Decision,
    Hashes,
    Network,
    OtherRelease,
    Places,
    Promise,
    Recovered,
    ReleaseId,
    Rows,
    Target,
    Total,
    Tuning,
    Usefulness,
    Words,
)
from airlock.release.words import Verdict

# 2 says where noise was computed, 3 what an attacker has and finds, 4 what may be asked, 5 how small a student is, and
# features
SCHEMA_VERSION = 5
SCHEMA_ID = "urn:airlock:card:5"
OLDEST = 3  # of a network that leaves, format 3 says the same as formats 4 and 5
_FIRST = {"interface": 4, "features": 5}  # the first format that has this field
CONFIDENCE = 0.95

Scalar = str | int | float


class Card(Frozen):
    """Everything a reviewer needs, figures first, then the sentences that follow from them.

    Args:
        schema_version: Of this format.
        headline: The truth in one sentence.
        release_id: Random; names the release in the vault and on other cards.
        airlock_version: Which version wrote the card.
        created: The day, in UTC.
        leaves: What leaves, in one sentence.
        channel: Which of the five things leaves.
        method: By which method.
        network: The network that leaves; null where answers or features do.
        interface: What may be asked, where answers leave; null elsewhere.
        features: What leaves, where features do; null elsewhere.
        data: What is public about the data.
        target: The ε and δ that were asked for.
        guarantee: What is promised, with the events it was computed from.
        secure_noise: Whether the privacy noise came from the operating system.
        noise_made_on: Where the noise was computed, as observed; both where it was both, empty if there was none.
        details: Public figures of the plan.
        utility: How useful the release is.
        compression: How much smaller and faster a student is; null where none leaves.
        audit: What attacks found and what was not tested.
        total: Other releases from the same data, and what all cost together.
        tuning: How many runs were paid for.
        words: The sentences.
        hashes: Of the files beside the card; null until the bundle is written.
        decision: For the reviewer.
        sheet: Public pictures beside what attackers made of their features; null where there are none.
    """

    schema_version: Literal[3, 4, 5]
    headline: str
    release_id: ReleaseId
    airlock_version: str
    created: datetime.date
    leaves: str
    channel: str
    method: str
    network: Network | None
    interface: Asking | None = None
    features: Rows | None = None
    data: Data
    target: Target
    guarantee: Promise
    secure_noise: bool
    noise_made_on: Places
    details: dict[str, Scalar]
    utility: Usefulness
    compression: Compression | None = None
    audit: Attacks
    total: Total
    tuning: Tuning
    words: Words
    hashes: Hashes | None
    decision: Decision
    sheet: ContactSheet | None = None

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity; a missing bound is null."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @model_validator(mode="after")
    def _one_thing_leaves(self) -> Self:
        there = [name for name in ("network", "interface", "features") if getattr(self, name) is not None]
        if len(there) != 1 or _FIRST.get(there[0], OLDEST) > self.schema_version:
            raise ValueError("a card is of a network, of an interface or of features")
        return self

    @property
    def asked(self) -> Network | Asking | Rows:
        """What names the classes: the network, the interface, or the features."""
        found = self.network or self.interface or self.features
        assert found is not None
        return found

    @property
    def stays(self) -> Asking | Rows | None:
        """What leaves where no network does."""
        return self.interface or self.features

    @property
    def verdict(self) -> Verdict:
        """What kind of truth the headline tells."""
        return words.verdict(self.guarantee, self.secure_noise, self.audit)


def make(
    config: ReleaseConfig,
    facts: Facts,
    release: Release,
    audit: Audit,
    *,
    compression: Compression | None = None,
    others: Sequence[Card] = (),
    created: datetime.date | None = None,
) -> Card:
    """The card of a release; `bundle.write` adds the hashes.

    Args:
        config: What was asked for.
        facts: What is public about the data.
        release: What leaves.
        audit: What the attacks found.
        compression: How much smaller and faster a student is.
        others: Cards of other releases from the same data; theirs are followed too.
        created: The day; today in UTC when left out.

    Raises:
        ConfigError: Another release states its promise under another relation.
    """
    promise = Promise.model_validate(release.guarantee.to_dict())
    data, attacks, tuning = _data(facts), Attacks.model_validate(audit.to_dict()), Tuning(runs=config.tuning_runs)
    utility, total = usefulness(release.utility.correct, release.utility.records), _total(promise, others)
    network, asking, rows = _leaving(release.artefact)
    stays = asking or rows
    return Card(
        schema_version=SCHEMA_VERSION,
        headline=words.headline(promise, release.secure_noise, attacks, stays),
        release_id=secrets.token_hex(16),
        airlock_version=VERSION,
        created=created or datetime.datetime.now(datetime.UTC).date(),
        leaves=release.plan.leaves,
        channel=release.plan.channel,
        method=release.plan.method,
        network=network,
        interface=asking,
        features=rows,
        data=data,
        target=Target(epsilon=config.epsilon, delta=config.delta),
        guarantee=promise,
        secure_noise=release.secure_noise,
        noise_made_on=release.noise_made_on,
        details=dict(release.plan.details),
        utility=utility,
        compression=compression,
        audit=attacks,
        total=total,
        tuning=tuning,
        words=words.write(
            promise, release.secure_noise, release.noise_made_on, data, utility, attacks, total, tuning, stays
        ),
        hashes=None,
        decision=Decision(),
        sheet=_sheet(audit),
    )


def with_audit(card: Card, audit: Audit) -> Card:
    """The card of the same release after another audit; a decision about the old card does not hold for the new one."""
    attacks = Attacks.model_validate(audit.to_dict())
    own = card.guarantee, card.secure_noise
    sentences = words.write(
        *own, card.noise_made_on, card.data, card.utility, attacks, card.total, card.tuning, card.stays
    )
    return card.model_copy(
        update={
            "schema_version": SCHEMA_VERSION,
            "headline": words.headline(*own, attacks, card.stays),
            "airlock_version": VERSION,
            "audit": attacks,
            "words": sentences,
            "decision": Decision(),
            "sheet": _sheet(audit),
        }
    )


def _sheet(audit: Audit) -> ContactSheet | None:
    made = audit.features.sheet if audit.features else None
    if made is None:
        return None
    return ContactSheet(png=base64.b64encode(made.png).decode(), rows=made.rows, whose=made.whose)


def _data(facts: Facts) -> Data:
    return Data(
        name=facts.name,
        origin=facts.origin,
        shape=facts.shape,
        classes=facts.classes,
        records=facts.records,
        test_records=facts.test_records,
    )


def _leaving(artefact: Artefact | Interface | Features) -> tuple[Network | None, Asking | None, Rows | None]:
    if isinstance(artefact, Interface):
        return None, Asking.model_validate(dataclasses.asdict(artefact)), None
    if isinstance(artefact, Features):
        return None, None, rows(artefact)
    return Network(name=artefact.net_name, input_shape=artefact.input_shape, classes=artefact.classes), None, None


def rows(features: Features) -> Rows:
    """What a card says about a set of features."""
    made = features.manifest
    return Rows(
        shape=made.shape,
        classes=made.classes,
        records=made.records,
        files=len(made.shards),
        bytes=made.bytes,
        form=made.form,
        precision=made.precision,
        noise=made.noise,
        labels=features.labels,
        prior=features.prior,
        recovery=tuple(Recovered(**dataclasses.asdict(row)) for row in features.recovery),
    )


def usefulness(correct: int, records: int) -> Usefulness:
    """Accuracy with its interval."""
    low, high = proportion_interval(correct, records, CONFIDENCE) if records else (0.0, 1.0)
    return Usefulness(
        correct=correct,
        records=records,
        accuracy=correct / max(1, records),
        low=low,
        high=high,
        confidence=CONFIDENCE,
    )


def _total(promise: Promise, others: Sequence[Card]) -> Total:
    releases = tuple(_follow(others))
    for card in others:
        if card.guarantee.relation != promise.relation:
            raise ConfigError(
                f"other releases with the relation '{promise.relation}'",
                f"'{card.guarantee.relation}' in release {card.release_id}",
                "Promises under different relations protect different things, so they have no common total.",
                "Make both releases under the same relation, or state the two promises side by side.",
            )
    epsilon, accountant = total_epsilon(promise, releases) if releases else (promise.epsilon, promise.accountant)
    return Total(releases=releases, epsilon=epsilon, delta=promise.delta, accountant=accountant)


def total_epsilon(
    promise: Promise, releases: Sequence[OtherRelease]
) -> tuple[float | None, Literal["PLD", "RDP"] | None]:
    """The ε of this release and the others together, and its accountant; None where one has no bound for this unit."""
    bounded = all(other.unit == promise.unit and other.epsilon is not None for other in releases)
    if promise.unit == "none" or promise.epsilon is None or not bounded:
        return None, None
    events = compose([from_json(promise.events), *(from_json(other.events) for other in releases)])
    spent = spend(events, promise.delta, promise.relation)
    return spent.epsilon, spent.accountant


def _follow(others: Iterable[Card]) -> Iterable[OtherRelease]:
    """The other releases and those that they name, each once."""
    seen: set[str] = set()
    for card in others:
        for other in (_other(card), *card.total.releases):
            if other.release_id not in seen:
                seen.add(other.release_id)
                yield other


def _other(card: Card) -> OtherRelease:
    return OtherRelease(
        release_id=card.release_id,
        name=card.data.name,
        channel=card.channel,
        method=card.method,
        status=card.guarantee.status,
        unit=card.guarantee.unit,
        secure_noise=card.secure_noise,
        epsilon=card.guarantee.epsilon,
        delta=card.guarantee.delta,
        accountant=card.guarantee.accountant,
        events=card.guarantee.events,
    )


def schema() -> dict[str, Any]:
    """The JSON schema of card.json, as published in `card.schema.json`."""
    body = Card.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID} | body


def schema_text() -> str:
    """The published file: `schema()` as it is written."""
    return json.dumps(schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"

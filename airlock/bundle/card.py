"""The card: what a reviewer reads and signs.

In: the config, the public facts about the data, and the release. Out: a frozen `Card`, which is strict JSON, has a
published schema (`card.schema.json`), and is all that the page and the model card are made from. It holds figures that
are public or paid for: no exact count of records, no attack that nobody paid for, no path, no host name, no user name.
Everything else is in the dossier, which stays.

Guarantee: the whole bundle, card included, has the stated (ε, δ) for every record of the file, whichever part it fell
into, public ones excepted. Proof. A record is in one part, by a keyed hash of its own content (`data.split.divide`). If
it is private, what leaves of it is what the method released under (ε, δ), and the counts on the card are a random
function of that and of other records. If it is a test record, nothing but the counts depends on it, and those are ε'-DP
with ε' ≤ ε (`auditing.evaluation`). If it is in the holdout, nothing but paid attack figures depends on it, which the
private part pays for too (`auditing.paid_attacks`). All other fields follow from the config, from public facts and from
what is named here; `docs/bundle.md` lists them. ∎
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import dp_accounting as dpa
from pydantic import ConfigDict, model_validator

from airlock._version import VERSION
from airlock.accounting import Guarantee, compose, compute_epsilon, from_json, raised_by, to_json
from airlock.auditing import evaluation, paid_attacks
from airlock.auditing.paid_attacks import PaidAttack
from airlock.bundle.packing import packing_of
from airlock.bundle.rendering import text
from airlock.bundle.rendering.text import CardVerdict
from airlock.bundle.schema import (
    Composition,
    Compression,
    DataSummary,
    Decision,
    FeatureSummary,
    Hashes,
    NetworkSummary,
    OtherRelease,
    PaidAttacks,
    Places,
    ReleaseId,
    RequestedBudget,
    StatedGuarantee,
    Tuning,
    Utility,
    Words,
)
from airlock.config import Frozen, ReleaseConfig
from airlock.data import Facts
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods.contract import KINDS, ArtefactKind, Plan, Release
from airlock.methods.interface import Interface

# 2 says where noise was computed, 3 what an attacker has and finds, 4 what may be asked, 5 how small a student is, and
# features; 6 holds nothing that is not paid for
SCHEMA_VERSION = 6
SCHEMA_ID = "urn:airlock:card:6"
OLDEST = 6  # figures on older cards were not paid for
_MANY = 3  # other releases, up to which every way in which a person can fall into parts is accounted for by itself

Scalar = str | int | float
NO_WORDS = Words(promise=(), noise="", utility="", audit="", others="", tuning="")  # until the figures are there


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
        utility: How useful the release is; null where that was measured inside only.
        compression: How much smaller and faster a student is; null where none leaves.
        audit: Attack figures that are paid for; all others are in the dossier.
        total: Other releases from the same data, and what all cost together.
        tuning: How many runs were paid for.
        words: The sentences.
        hashes: Of the files beside the card; null until the bundle is written.
        decision: For the reviewer.
    """

    model_config = ConfigDict(revalidate_instances="always")  # an interface that was made elsewhere is checked here

    schema_version: Literal[6]
    headline: str
    release_id: ReleaseId
    airlock_version: str
    created: datetime.date
    leaves: str
    channel: str
    method: str
    network: NetworkSummary | None
    interface: Interface | None = None
    features: FeatureSummary | None = None
    data: DataSummary
    target: RequestedBudget
    guarantee: StatedGuarantee
    secure_noise: bool
    noise_made_on: Places
    details: dict[str, Scalar]
    utility: Utility | None
    compression: Compression | None = None
    audit: PaidAttacks
    total: Composition
    tuning: Tuning
    words: Words
    hashes: Hashes | None
    decision: Decision

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity; a missing bound is null."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @model_validator(mode="after")
    def _one_thing_leaves(self) -> Self:
        there = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(there) != 1:
            raise ValueError("a card is of a network, of an interface or of features")
        return self

    @property
    def artefact(self) -> ArtefactKind:
        """Which kind of thing leaves."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def leaving(self) -> NetworkSummary | Interface | FeatureSummary:
        """Its table: the network, the interface, or the features."""
        found: NetworkSummary | Interface | FeatureSummary = getattr(self, self.artefact)
        return found

    @property
    def verdict(self) -> CardVerdict:
        """What kind of truth the headline tells."""
        return text.verdict(self.guarantee, self.secure_noise)


def make(
    config: ReleaseConfig,
    facts: Facts,
    release: Release,
    stream: Stream,
    *,
    attacks: Sequence[PaidAttack] = (),
    compression: Compression | None = None,
    others: Sequence[Card] = (),
    created: datetime.date | None = None,
) -> Card:
    """The card of a release; `bundle.write` adds the hashes.

    Args:
        config: What was asked for.
        facts: What is public about the data.
        release: What leaves, and what became of the test records.
        stream: Privacy randomness for what the card says about test records; read here and nowhere else.
        attacks: Figures of attacks that `config.attack_share` pays for; the release's guarantee contains them.
        compression: How much smaller and faster a student is.
        others: Cards of other releases from the same data; theirs are followed too.
        created: The day; today in UTC when left out.

    Raises:
        ConfigError: Another release states its promise under another relation, or test records have too little ε.
    """
    utility = _utility(config, release, len(facts.classes), stream)
    found = PaidAttacks(share=config.attack_share, attacks=tuple(attacks))
    promise = _promise(config, release, utility, found)
    data, tuning = _data(facts, config), Tuning(runs=config.tuning_runs)
    packing = packing_of(release.artefact.kind)
    made = Card(
        schema_version=SCHEMA_VERSION,
        headline="",
        release_id=secrets.token_hex(16),
        airlock_version=VERSION,
        created=created or datetime.datetime.now(datetime.UTC).date(),
        leaves=release.plan.leaves,
        channel=release.plan.channel,
        method=release.plan.method,
        **_leaving(packing.summarise(release.artefact), release.artefact.kind),
        data=data,
        target=RequestedBudget(epsilon=config.epsilon, delta=config.delta),
        guarantee=promise,
        secure_noise=release.secure_noise,
        noise_made_on=release.noise_made_on,
        details=dict(release.plan.details),
        utility=utility,
        compression=compression,
        audit=found,
        total=_total(promise, others),
        tuning=tuning,
        words=NO_WORDS,
        hashes=None,
        decision=Decision(),
    )
    return made.model_copy(update={"headline": headline(made), "words": sentences(made)})


def headline(card: Card) -> str:
    """The first line, which follows from the other fields."""
    return text.headline(card.guarantee, card.secure_noise, card.data, _particulars(card))


def sentences(card: Card) -> Words:
    """All other sentences, which follow from the other fields too."""
    return text.write(
        card.guarantee, card.secure_noise, card.noise_made_on, card.data, card.utility, card.audit, card.total,
        card.tuning, _particulars(card),
    )  # fmt: skip


def _particulars(card: Card) -> text.Particulars:
    return packing_of(card.artefact).particulars(card.guarantee, card.leaving)


def stated_epsilon(config: ReleaseConfig, promise: Guarantee) -> float:
    """What a test record may be charged: the ε that is proven for a private one, else the one that was asked for."""
    proven = promise.status == "proven" and promise.unit == "record" and math.isfinite(promise.epsilon)
    return promise.epsilon if proven else config.epsilon


def check_budget(config: ReleaseConfig, plan: Plan) -> None:
    """Refuse, before a record is read, a release whose card would not be covered by what it states.

    Raises:
        ConfigError: The stated ε is too small for so many runs; or a promise is about records that are replaced, who
            could fall from one part into another and would have to be paid for in both.
    """
    if plan.guarantee.status == "proven" and plan.guarantee.relation != "add-remove":
        raise ConfigError(
            "a proven promise about a record that is added or removed",
            f"'{plan.guarantee.relation}'",
            "One that is replaced can fall from one part into another, and both would have to be paid for.",
            "State the promise under add-remove.",
        )
    evaluation.budget(stated_epsilon(config, plan.guarantee), config.delta, True, config.tuning_runs)


def _utility(config: ReleaseConfig, release: Release, classes: int, stream: Stream) -> Utility | None:
    """The noisy counts; None where answers leave: those were measured by asking beyond the budget."""
    if not packing_of(release.artefact.kind).states_utility:
        return None
    found, stated = release.utility, stated_epsilon(config, release.guarantee)
    epsilon = evaluation.budget(stated, config.delta, found.scores is not None, config.tuning_runs)
    counts = evaluation.evaluate(found, classes, epsilon, stream)
    return Utility(counts=counts, figures=evaluation.figures(counts))


def _promise(config: ReleaseConfig, release: Release, utility: Utility | None, attacks: PaidAttacks) -> StatedGuarantee:
    """The guarantee with what each part pays."""
    plain = release.guarantee.to_dict()
    private = {key: plain[key] for key in ("epsilon", "accountant", "events")}
    test = paid_by_test(utility, config.tuning_runs)
    parts = {
        "private": private,
        "test": _part(test, plain),
        "holdout": _part(paid_by_holdout(attacks, config.tuning_runs), plain),
    }
    return StatedGuarantee.model_validate(plain | {"parts": parts})


def paid_by_test(utility: Utility | None, runs: int) -> dpa.DpEvent:
    """The events of the test part: counts on the card of each declared run."""
    if utility is None:
        return compose([])
    return evaluation.event(utility.counts.epsilon, utility.counts.bins is not None, runs)


def paid_by_holdout(attacks: PaidAttacks, runs: int) -> dpa.DpEvent:
    """The events of the holdout, which the private part has beside the method's: paid attacks of each declared run."""
    if not attacks.attacks:
        return compose([])
    return paid_attacks.events(attacks.attacks[0].epsilon, runs, len(attacks.attacks))


def _part(events: dpa.DpEvent, plain: Mapping[str, Any]) -> dict[str, Any]:
    spent = compute_epsilon(events, plain["delta"], plain["relation"])
    return {"epsilon": spent.epsilon, "accountant": spent.accountant, "events": to_json(events)}


def _data(facts: Facts, config: ReleaseConfig) -> DataSummary:
    return DataSummary(
        name=facts.name,
        origin=facts.origin,
        shape=facts.shape,
        classes=facts.classes,
        records=facts.records,
        test_records=facts.test_records,
        public_share=config.split.public,
    )


def _leaving(summary: Any, leaves: ArtefactKind) -> dict[str, Any]:
    """The one table of what leaves, and nothing in place of the others."""
    return {kind: summary if kind == leaves else None for kind in KINDS}


def _total(promise: StatedGuarantee, others: Sequence[Card]) -> Composition:
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
    return Composition(releases=releases, epsilon=epsilon, delta=promise.delta, accountant=accountant)


def total_epsilon(
    promise: StatedGuarantee, releases: Sequence[OtherRelease]
) -> tuple[float | None, Literal["PLD", "RDP"] | None]:
    """The ε of this release and the others together, and its accountant; None where one has no bound for this unit.

    A person may be private in one release and a test record in another. So the total is the largest over all ways to
    fall into parts; where there are many releases, both parts of each are composed, which is no less. It is
    dp-accounting's; where another package's accountant raised this release's ε, the total is no smaller than that.
    """
    bounded = all(other.unit == promise.unit and other.epsilon is not None for other in releases)
    if promise.unit == "none" or promise.epsilon is None or not bounded:
        return None, None
    own = (promise.events, promise.parts.test.events)
    paid = [own, *((other.events, other.test_events) for other in releases)]
    ways = itertools.product(*paid) if len(releases) <= _MANY else [tuple(itertools.chain(*paid))]
    spent = [compute_epsilon(compose([from_json(one) for one in way]), promise.delta, promise.relation) for way in ways]
    largest = max(spent, key=lambda one: one.epsilon)
    if raised_by(promise.accountant_version)[1] and largest.epsilon < promise.epsilon:
        return promise.epsilon, promise.accountant
    return (largest.epsilon, largest.accountant) if math.isfinite(largest.epsilon) else (None, None)


def _follow(others: Iterable[Card]) -> Iterable[OtherRelease]:
    """The other releases and those that they name, each once."""
    seen: set[str] = set()
    for card in others:
        for other in (_other(card), *card.total.releases):
            if other.release_id not in seen:
                seen.add(other.release_id)
                yield other


def _other(card: Card) -> OtherRelease:
    """What a card says of another release; its ε is dp-accounting's, also where another accountant raised it."""
    promise = card.guarantee
    epsilon = promise.epsilon
    if raised_by(promise.accountant_version)[1] and epsilon is not None:
        accountant = "pld" if promise.accountant == "PLD" else "rdp"
        epsilon = compute_epsilon(from_json(promise.events), promise.delta, promise.relation, accountant).epsilon
    return OtherRelease(
        release_id=card.release_id,
        name=card.data.name,
        channel=card.channel,
        method=card.method,
        status=card.guarantee.status,
        unit=card.guarantee.unit,
        secure_noise=card.secure_noise,
        epsilon=epsilon,
        delta=card.guarantee.delta,
        accountant=card.guarantee.accountant,
        events=card.guarantee.events,
        test_events=card.guarantee.parts.test.events,
    )


def schema() -> dict[str, Any]:
    """The JSON schema of card.json, as published in `card.schema.json`."""
    body = Card.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID} | body

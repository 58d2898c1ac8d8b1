"""The card: what a reviewer reads and signs.

In: the config, the public facts about the data, and the release. Out: a frozen `Card`: strict JSON with a published
schema (`card.schema.json`), and the only input of the page and the model card. Its figures are either public or paid
for: no exact count of records, no unpaid attack figure, no path, no host name, no user name. Everything else is in the
dossier, which stays.

Guarantee: the whole bundle, card included, satisfies the stated (ε, δ) for every record of the file, whichever part it
is assigned to, except public records. Proof. A keyed hash assigns each record to exactly one part
(`data.split.divide`). If it is private, it affects only what the method released under (ε, δ), and the counts on the
card are a randomised function of that release and of other records. If it is a test record, only the counts depend on
it, and those are ε'-DP with ε' ≤ ε (`auditing.evaluation`); after a search so does the choice of the winner, and both
together have at most the stated (ε, δ) (`methods.search`). If it is in the holdout, only the paid attack figures
depend on it, and the private part pays for these too (`auditing.paid_attacks`). All other fields follow from the
config, from public facts and from the values named here; `docs/bundle.md` lists them. ∎

The same for every person of the file, where the unit is a person: a keyed hash of the identifier assigns each person,
with all records, to one part. The method's guarantee is for a person; a test person is counted by one record, so that
the counts are ε'-DP for people; and a member or non-member of a paid attack is a person.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, model_validator

from airlock import accounting, methods
from airlock._version import VERSION
from airlock.accounting.terms import PROTECTED
from airlock.auditing import evaluation, paid_auc, perplexity, regression_errors
from airlock.auditing.paid_auc import PaidAttack
from airlock.bundle.contents import without_paths
from airlock.bundle.packing import packing_of
from airlock.bundle.receiving.input_schema import InputSchema, input_schema, text_column
from airlock.bundle.rendering import text
from airlock.bundle.rendering.strength import Strength
from airlock.bundle.rendering.text import CardVerdict
from airlock.bundle.schema import (
    AnyUtility,
    Composition,
    Compression,
    DataSummary,
    Decision,
    ErrorUtility,
    FeatureSummary,
    Hashes,
    LanguageUtility,
    LifetimeBudget,
    NetworkSummary,
    OtherRelease,
    PaidAttacks,
    Places,
    ReleaseId,
    RequestedBudget,
    SearchSummary,
    StatedGuarantee,
    Tuning,
    Utility,
    Words,
)
from airlock.config import About, Frozen, ReleaseConfig
from airlock.data import Facts
from airlock.errors import ConfigError
from airlock.methods.artefact import KINDS, ArtefactKind
from airlock.methods.interface import Interface

if TYPE_CHECKING:
    import dp_accounting as dpa

    from airlock.accounting import Guarantee
    from airlock.mechanisms import Stream
    from airlock.methods import Plan, Release

# Format 2 added where noise was computed, 3 the attacker's access and findings, 4 interfaces, 5 student sizes and
# features; since 6, every figure is public or paid for, and since 7, model files have one form and bundles are signed
SCHEMA_VERSION = 7
SCHEMA_ID = "urn:airlock:card:7"
OLDEST = 7  # model files of older bundles may hold something else as well
PAID = 6  # figures on cards before this format were not paid for
_MANY = 3  # up to this many other releases, every assignment of a person to parts is accounted for separately

Scalar = str | int | float
NO_WORDS = Words(promise=(), noise="", utility="", audit="", others="", tuning="")  # until the figures are known


def older_note(version: int) -> str:
    """What must be known about a bundle of an earlier format before anything else."""
    if version < PAID:
        return f"Made before format {PAID}: the card's figures were not paid for; the plan was not derived again."
    return f"Made before format {OLDEST}: its files may hold more than they should; the plan was not derived again."


class Card(Frozen):
    """Everything a reviewer needs, figures first, then the sentences that follow from them.

    Args:
        schema_version: The version of this format.
        headline: The verdict in one sentence.
        release_id: Random; identifies the release in the vault and on other cards.
        airlock_version: The version that wrote the card.
        created: The date, in UTC.
        leaves: What leaves, in one sentence.
        channel: Which of the five kinds of release this is.
        method: The method within the channel.
        network: The network that leaves; null where answers or features leave.
        interface: What may be asked, where answers leave; otherwise null.
        features: The features, where those leave; otherwise null.
        data: What is public about the data.
        inputs: What a row is that the network or the interface is asked with, as declared; null where features leave,
            and on cards from before there was a schema.json.
        target: The requested ε and δ.
        guarantee: The guarantee, with the events it was computed from.
        secure_noise: Whether the privacy noise was seeded by the operating system.
        noise_made_on: Where the noise was computed, as observed: one place or both; empty if there was none.
        details: Public figures of the plan.
        utility: How useful the release is; null where utility was only measured inside, or there are no classes.
        errors: How far predictions are off, where a number is predicted; otherwise null.
        language: The perplexity of a language model; otherwise null.
        compression: How much smaller and faster the student is; null where no student leaves.
        audit: Attack figures that are paid for; all others are in the dossier.
        total: Other releases from the same data, and what they cost together with this one; with a register, what
            everything so far costs at the register's δ.
        lifetime: The lifetime budget of the data set, which the release was charged to; null without a register.
        tuning: How many runs, or which search, were paid for.
        words: The sentences.
        about: Whose data and what for, as the holder declared it; empty texts where nothing was.
        hashes: Hashes of the other files in the bundle; null until it is written.
        decision: To be filled in by the reviewer.
    """

    model_config = ConfigDict(revalidate_instances="always")  # interfaces are built elsewhere, so validate them here

    schema_version: Literal[7]
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
    inputs: InputSchema | None = None
    target: RequestedBudget
    guarantee: StatedGuarantee
    secure_noise: bool
    noise_made_on: Places
    details: dict[str, Scalar]
    utility: Utility | None
    errors: ErrorUtility | None = None
    language: LanguageUtility | None = None
    compression: Compression | None = None
    audit: PaidAttacks
    total: Composition
    lifetime: LifetimeBudget | None = None
    tuning: Tuning
    words: Words
    about: About = About()
    hashes: Hashes | None
    decision: Decision

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity; a missing bound is null."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @model_validator(mode="after")
    def _one_thing_leaves(self) -> Self:
        there = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(there) != 1:
            raise ValueError("a card must describe exactly one of a network, an interface or features")
        return self

    @model_validator(mode="after")
    def _figures_of_its_classes(self) -> Self:
        if self.utility is not None and len(self.utility.figures.recalls) != len(self.data.classes):
            raise ValueError("a card must have one recall for each of its classes")
        if (self.utility is not None and self.data.target) or (self.errors is not None and not self.data.target):
            raise ValueError("a card has errors where a number is predicted, and accuracy where records have classes")
        if self.language is not None and not self.data.language:
            raise ValueError("a card has a perplexity where records are texts without labels")
        return self

    @property
    def measured(self) -> AnyUtility | None:
        """What is stated about how useful the release is; None where that stays inside."""
        return self.utility or self.errors or self.language

    @property
    def artefact(self) -> ArtefactKind:
        """Which kind of thing leaves."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def leaving(self) -> NetworkSummary | Interface | FeatureSummary:
        """The card's table about it: the network, the interface, or the features."""
        found: NetworkSummary | Interface | FeatureSummary = getattr(self, self.artefact)
        return found

    @property
    def verdict(self) -> CardVerdict:
        """The verdict behind the headline."""
        return text.verdict(self.guarantee, self.secure_noise)

    @property
    def strength(self) -> Strength | None:
        """How strong the guarantee is, which is another question; None where nothing is proven."""
        return text.strength_of(self.guarantee, self.secure_noise)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What the guarantee leaves out, or covers less than it sounds."""
        return text.uncovered(self.data, self.features)

    @property
    def mark(self) -> text.Mark:
        """Colour and shape of the page: what is proved, how strongly, and what is left out."""
        return text.mark(self.verdict, self.strength, self.uncovered)


def make(
    config: ReleaseConfig,
    facts: Facts,
    release: Release,
    stream: Stream,
    *,
    attacks: Sequence[PaidAttack] = (),
    compression: Compression | None = None,
    others: Sequence[Card] = (),
    register: LifetimeBudget | None = None,
    created: datetime.date | None = None,
) -> Card:
    """The card of a release; `bundle.write` adds the hashes.

    Args:
        config: The requested config.
        facts: What is public about the data.
        release: What leaves, and the outcomes on test records.
        stream: Privacy randomness for the card's statements about test records; used nowhere else.
        attacks: Attack figures that `config.attack_share` pays for; the release's guarantee includes them.
        compression: How much smaller and faster a student is.
        others: Cards of other releases from the same data; releases that those cards list are included too.
        register: What the release was charged to; then there are no others.
        created: The date; today in UTC if omitted.

    Raises:
        ConfigError: Another release uses a different neighbouring relation, or ε is too small for the test counts.
    """
    tuning = tuning_of(config, release.plan)
    order = None if register is None else register.order
    useful = _utility(config, release, facts, tuning, stream, order)
    found = PaidAttacks(share=config.attack_share, attacks=tuple(attacks))
    promise = _promise(release, useful, found, tuning)
    data = _data(facts, config)
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
        inputs=_inputs(facts, config) if packing.takes_rows else None,
        target=RequestedBudget(epsilon=config.epsilon, delta=config.delta),
        guarantee=promise,
        secure_noise=release.secure_noise,
        noise_made_on=release.noise_made_on,
        details=dict(release.plan.details),
        utility=useful if isinstance(useful, Utility) else None,
        errors=useful if isinstance(useful, ErrorUtility) else None,
        language=useful if isinstance(useful, LanguageUtility) else None,
        compression=compression,
        audit=found,
        total=_total(promise, others) if register is None else lifetime_total(register),
        lifetime=register,
        tuning=tuning,
        words=NO_WORDS,
        about=config.about,
        hashes=None,
        decision=Decision(),
    )
    return made.model_copy(update={"headline": headline(made), "words": sentences(made)})


def headline(card: Card) -> str:
    """The first line, derived from the other fields."""
    return text.headline(card.guarantee, card.secure_noise, card.data, _particulars(card))


def sentences(card: Card) -> Words:
    """All other sentences, also derived from the other fields."""
    return text.write(
        card.guarantee, card.secure_noise, card.noise_made_on, card.data, card.measured, card.audit,
        card.total, card.tuning, _particulars(card), card.lifetime,
    )  # fmt: skip


def _particulars(card: Card) -> text.Particulars:
    return packing_of(card.artefact).particulars(card.guarantee, card.leaving)


def stated_epsilon(config: ReleaseConfig, promise: Guarantee) -> float:
    """The ε that a test record may be charged: the ε proven for private records, otherwise the requested one."""
    proven = promise.status == "proven" and promise.unit in PROTECTED and math.isfinite(promise.epsilon)
    return promise.epsilon if proven else config.epsilon


def check_budget(config: ReleaseConfig, plan: Plan) -> None:
    """Refuse, before a record is read, a release whose card would not be covered by the guarantee it states.

    Raises:
        ConfigError: The stated ε is too small for the declared number of runs; or the guarantee is for replaced
            records: a replacement may be assigned to another part, and both parts would have to pay.
    """
    if plan.guarantee.status == "proven" and plan.guarantee.relation != "add-remove":
        raise ConfigError(
            "a proven guarantee about a record that is added or removed",
            f"'{plan.guarantee.relation}'",
            "A record and its replacement can be assigned to different parts, and both parts would have to pay.",
            "State the guarantee under add-remove.",
        )
    stated, tuning = stated_epsilon(config, plan.guarantee), tuning_of(config, plan)
    evaluation.budget(stated, config.delta, True, tuning.runs, paid_by_scores(tuning))


def evaluation_epsilon(
    config: ReleaseConfig, promise: Guarantee, tuning: Tuning, with_scores: bool, order: int | None
) -> float:
    """The ε of what the card says about test records.

    With a register, whose filter has this Rényi order, the divergence of the test part is no larger than the private
    part's, if that is possible: a release costs the largest of its parts, and the figures of a card shall not make it
    cost more.
    """
    stated, scores = stated_epsilon(config, promise), paid_by_scores(tuning)
    each = evaluation.budget(stated, config.delta, with_scores, tuning.runs, scores)
    if order is None:
        return each
    most = accounting.divergence(promise.events, order)
    return evaluation.lowered(
        each, lambda one: accounting.divergence(evaluation.event(one, with_scores, tuning.runs, scores), order) <= most
    )


def tuning_of(config: ReleaseConfig, plan: Plan) -> Tuning:
    """What was paid for before one result was picked."""
    figures = plan.figures
    if not isinstance(figures, methods.SearchFigures):
        return Tuning(runs=config.tuning_runs, chosen=methods.is_free(config))
    named = {key: getattr(figures, key) for key in SearchSummary.model_fields}
    table = without_paths({**named, "candidates": [dict(one) for one in figures.candidates]})
    return Tuning(runs=1, search=SearchSummary.model_validate(table))


def _utility(
    config: ReleaseConfig, release: Release, facts: Facts, tuning: Tuning, stream: Stream, order: int | None = None
) -> AnyUtility | None:
    """The noisy counts; none where answers leave: their utility was measured with queries beyond the budget."""
    if not packing_of(release.artefact.kind).states_utility:
        return None
    found = release.utility
    epsilon = evaluation_epsilon(config, release.guarantee, tuning, found.scores is not None, order)
    if facts.target is not None:
        off = regression_errors.evaluate(found, epsilon, stream)
        return ErrorUtility(counts=off, figures=regression_errors.figures(off, facts.target))
    if facts.task == "language":
        vocabulary = facts.vocabulary or 0
        losses = perplexity.evaluate(found, epsilon, stream)
        return LanguageUtility(counts=losses, figures=perplexity.figures(losses, vocabulary))
    counts = evaluation.evaluate(found, len(facts.classes), epsilon, stream)
    return Utility(counts=counts, figures=evaluation.figures(counts))


def _promise(release: Release, utility: AnyUtility | None, attacks: PaidAttacks, tuning: Tuning) -> StatedGuarantee:
    """The guarantee, with the cost to each part."""
    plain = release.guarantee.to_dict()
    private = {key: plain[key] for key in ("epsilon", "accountant", "events")}
    test = paid_by_test(utility, tuning)
    parts = {
        "private": private,
        "test": _part(test, plain),
        "holdout": _part(paid_by_holdout(attacks, tuning.runs), plain),
    }
    return StatedGuarantee.model_validate(plain | {"parts": parts})


def paid_by_test(utility: AnyUtility | None, tuning: Tuning) -> dpa.DpEvent:
    """The events of the test part: the scores of a search, and the counts of every declared run."""
    scores = paid_by_scores(tuning)
    if utility is None:
        return accounting.compose([] if scores is None else [scores])
    binned = isinstance(utility, Utility) and utility.counts.bins is not None
    return evaluation.event(utility.counts.epsilon, binned, tuning.runs, scores)


def paid_by_scores(tuning: Tuning) -> dpa.DpEvent | None:
    """What the scores of a search cost a test record; None where there was no search."""
    own = tuning.search
    if own is None:
        return None
    return accounting.repeat_and_select(accounting.pure(own.score_epsilon), own.mean, own.shape)


def paid_by_holdout(attacks: PaidAttacks, runs: int) -> dpa.DpEvent:
    """The events of the holdout: the paid attacks of every declared run. The private part has them in addition."""
    if not attacks.attacks:
        return accounting.compose([])
    return paid_auc.events(attacks.attacks[0].epsilon, runs, len(attacks.attacks))


def _part(events: dpa.DpEvent, plain: Mapping[str, Any]) -> dict[str, Any]:
    spent = accounting.compute_epsilon(events, plain["delta"], plain["relation"])
    return {"epsilon": spent.epsilon, "accountant": spent.accountant, "events": accounting.to_json(events)}


def _data(facts: Facts, config: ReleaseConfig) -> DataSummary:
    return DataSummary(
        name=facts.name,
        origin=facts.origin,
        shape=facts.shape,
        classes=facts.classes,
        records=facts.records,
        test_records=facts.test_records,
        public_share=config.split.public,
        people=facts.people,
        grouped=facts.grouped,
        read_off=facts.read_off,
        target=facts.target,
        vocabulary=facts.vocabulary,
        tokenizer=facts.tokenizer,
    )


def _inputs(facts: Facts, config: ReleaseConfig) -> InputSchema:
    text = text_column(config.data, facts.shape[0], facts.vocabulary, facts.tokenizer)
    return input_schema(facts.columns, facts.shape, facts.classes, config.data.label, facts.target, text)


def _leaving(summary: Any, leaves: ArtefactKind) -> dict[str, Any]:
    """The table of the kind that leaves; None for the other kinds."""
    return {kind: summary if kind == leaves else None for kind in KINDS}


def _total(promise: StatedGuarantee, others: Sequence[Card]) -> Composition:
    releases = tuple(_follow(others))
    for card in others:
        if card.guarantee.relation != promise.relation:
            raise ConfigError(
                f"other releases with the relation '{promise.relation}'",
                f"'{card.guarantee.relation}' in release {card.release_id}",
                "Guarantees under different relations protect different things, so they have no common total.",
                "Make both releases under the same relation, or state the two guarantees separately.",
            )
    epsilon, accountant = total_epsilon(promise, releases) if releases else (promise.epsilon, promise.accountant)
    return Composition(releases=releases, epsilon=epsilon, delta=promise.delta, accountant=accountant)


def lifetime_total(register: LifetimeBudget) -> Composition:
    """What everything under a register costs so far: its filter's bound."""
    budget = accounting.PrivacyFilter(register.epsilon, register.delta, register.order)
    return Composition(releases=(), epsilon=budget.so_far(register.spent), delta=register.delta, accountant="RDP")


def total_epsilon(
    promise: StatedGuarantee, releases: Sequence[OtherRelease]
) -> tuple[float | None, Literal["PLD", "RDP"] | None]:
    """The ε of this release and the others together, and its accountant; None where one has no bound for this unit.

    A person may be a private record in one release and a test record in another, so the total is the maximum over all
    assignments to parts; with many releases, both parts of each are composed instead, which gives an upper bound. It is
    computed by dp-accounting; where a plugin's accountant raised this release's ε, the total is at least that ε.
    """
    bounded = all(other.unit == promise.unit and other.epsilon is not None for other in releases)
    if promise.unit == "none" or promise.epsilon is None or not bounded:
        return None, None
    own = (promise.events, promise.parts.test.events)
    paid = [own, *((other.events, other.test_events) for other in releases)]
    ways = itertools.product(*paid) if len(releases) <= _MANY else [tuple(itertools.chain(*paid))]
    events = [accounting.compose([accounting.from_json(one) for one in way]) for way in ways]
    spent = [accounting.compute_epsilon(event, promise.delta, promise.relation) for event in events]
    largest = max(spent, key=lambda one: one.epsilon)
    if accounting.raised_by(promise.accountant_version)[1] and largest.epsilon < promise.epsilon:
        return promise.epsilon, promise.accountant
    return (largest.epsilon, largest.accountant) if math.isfinite(largest.epsilon) else (None, None)


def _follow(others: Iterable[Card]) -> Iterable[OtherRelease]:
    """The other releases and those listed on their cards, each once."""
    seen: set[str] = set()
    for card in others:
        for other in (_other(card), *card.total.releases):
            if other.release_id not in seen:
                seen.add(other.release_id)
                yield other


def _other(card: Card) -> OtherRelease:
    """The entry for another release; its ε is dp-accounting's, even where a plugin's accountant raised it."""
    promise = card.guarantee
    epsilon = promise.epsilon
    if accounting.raised_by(promise.accountant_version)[1] and epsilon is not None:
        accountant = "pld" if promise.accountant == "PLD" else "rdp"
        events = accounting.from_json(promise.events)
        epsilon = accounting.compute_epsilon(events, promise.delta, promise.relation, accountant).epsilon
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

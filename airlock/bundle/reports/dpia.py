"""An annex for a data protection impact assessment: what EDPB Opinion 28/2024 asks about a model.

The opinion (17 December 2024) calls a model anonymous only if, with all means reasonably likely to be used, both the
likelihood of direct (also probabilistic) extraction of personal data from it and that of obtaining them from queries,
intentionally or not, are insignificant for any data subject (paragraph 43). It lists what an authority looks at
(section 3.2.2): the design of the model (sources, preparation and minimisation, methods, outputs), its analysis, its
testing against attacks (paragraph 55) and the documentation (paragraph 58). The annex answers each point by what was
proven or measured, says "not measured" where nothing was, and leaves to the controller what a card cannot know. It
draws no conclusion: whether a likelihood is insignificant is for the controller and the authority to say.

docs/policy.md says which of this was compared with what.
"""

from __future__ import annotations

from airlock.bundle.card import Card
from airlock.bundle.dossier import Dossier
from airlock.bundle.rendering.formatting import best_guess, one_in, percent_up, times
from airlock.bundle.reports.quoting import (
    IN_DOSSIER,
    TO_FILL_IN,
    Answer,
    AnswerState,
    Chapter,
    Quote,
    Report,
    Sources,
    counted,
    membership,
)

FOLLOWS = "EDPB Opinion 28/2024, adopted on 17 December 2024"
NOTE = (
    "This annex states what was proven and what was measured. It does not say that the model is anonymous: whether a "
    "likelihood is insignificant is for the controller to assess and for the authority to review."
)
A_NUMBER = "What leaves predicts a number, and gives no records."
A_TEXT = (
    "What leaves is a language model: it writes texts. How much of a record can be in them is limited by the promise "
    "alone; the exposure of made-up sentences, where it was measured, is with the attacks."
)
HELD = ("white-box", "front", "features")  # what attackers have who hold what leaves
ASKED = ("black-box", "labels", "interface")  # who ask it
ANY_EVENT = (
    "The promise limits this too, whatever the attack: what someone finds out by it they would have found out, apart "
    "from a probability of {rest}, at most {odds} times less likely had the {unit} not been used."
)
ONLY_THOSE = "Tests are evidence about the attacks that were tried, and about no others (paragraph 55)."
REPEATED = {
    "network": "What leaves is a classifier: it gives scores of classes, and no records.",
    "interface": "What leaves are answers: scores or names of classes, and no records.",
    "features": "What leaves are numbers computed from each record: see reconstruction below.",
}


def _repeated(card: Card) -> str:
    """What leaves, and that no record is in it as it is."""
    if card.data.language:
        return A_TEXT
    return REPEATED[card.artefact] if card.data.target is None else A_NUMBER


def make(card: Card, dossier: Dossier | None = None) -> Report:
    """The annex; with the dossier it has the figures of all attacks, and stays inside."""
    sources = Sources(card, dossier)
    return sources.report(
        "dpia",
        "Annex to the data protection impact assessment",
        FOLLOWS,
        NOTE,
        (
            Chapter("What leaves", (_what(sources), _data(sources), *_declared(sources))),
            Chapter(
                "Likelihood of direct extraction (paragraph 43, first condition)",
                (_bound(sources), _measured(sources, "held", HELD), _rebuilt(sources)),
            ),
            Chapter(
                "Likelihood of obtaining personal data through queries (paragraph 43, second condition)",
                (_queries(sources), _measured(sources, "asked", ASKED)),
            ),
            Chapter("Means reasonably likely to be used (paragraphs 41 to 46)", _means(sources)),
            Chapter("Design of the model (section 3.2.2)", _design(sources)),
            Chapter("Testing and resistance to attacks (paragraph 55)", _tests(sources)),
            Chapter("Analysis and documentation (section 3.2.2, paragraph 58)", _documents(sources)),
        ),
    )


def _what(sources: Sources) -> Answer:
    card = sources.card
    quotes = sources.quotes("card:", "leaves", "channel", "method", "created", "release_id")
    return Answer("what-leaves", "What is released?", "stated", (card.leaves,), quotes)


def _data(sources: Sources) -> Answer:
    size, sizes = counted(sources)
    quotes = (*sources.quotes("card:data.", "name", "origin", "public_share"), *sizes)
    return Answer("data", "Which data was it developed with?", "stated", (sources.card.data.origin, size), quotes)


def _declared(sources: Sources) -> tuple[Answer, ...]:
    """What the config declares about the data; what it does not is for the controller to fill in."""
    asked = {
        "controller": "Who is the controller?",
        "whose": "Whose data are they?",
        "fields": "Which fields of a record were used?",
        "purpose": "For which purpose is it released?",
        "retention": "How long may it be kept?",
    }
    return tuple(_as_declared(sources, key, key, asks) for key, asks in asked.items())


def _as_declared(sources: Sources, name: str, key: str, asks: str) -> Answer:
    said = getattr(sources.card.about, key)
    if not said:
        return Answer(name, asks, "to be filled in", (TO_FILL_IN,))
    return Answer(name, asks, "stated", (said,), (sources.quote(f"card:about.{key}"),))


def _promise(sources: Sources) -> tuple[Quote, ...]:
    return sources.quotes("card:guarantee.", "status", "unit", "relation", "epsilon", "delta", "accountant")


def _bound(sources: Sources) -> Answer:
    """What is proven about whether a record was used."""
    card, promise = sources.card, sources.card.guarantee
    used = "records were used" if promise.unit == "person" else "record was used"
    asks = f"How likely is it to find out from what leaves whether a person's {used}? What is proven?"
    quotes = (*_promise(sources), sources.quote("card:words.promise"))
    if not sources.proven or promise.epsilon is None:
        return Answer("extraction", asks, "not proven", (sources.headline,), quotes[:-1])
    guess = best_guess(promise.epsilon, promise.delta)
    how = "(e^ε + δ) / (1 + e^ε): the largest share of right guesses from even odds"
    derived = sources.derive("card:guarantee.epsilon", "best guess", guess, how)
    first = f"Whoever guesses it from even odds is right at most {percent_up(guess)} of the time."
    return Answer("extraction", asks, "proven", (first, *card.words.promise), (*quotes, derived))


def _measured(sources: Sources, key: str, views: tuple[str, ...]) -> Answer:
    who = "hold what leaves" if views == HELD else "can only ask it"
    state, says, quotes = membership(sources, views)
    return Answer(f"membership-{key}", f"What did attacks by people who {who} measure?", state, says, quotes)


def _any_event(sources: Sources) -> tuple[str, ...]:
    """That a proven ε under add-remove bounds every attack."""
    promise = sources.card.guarantee
    if not sources.proven or promise.epsilon is None or promise.relation != "add-remove":
        return ()
    return (ANY_EVENT.format(rest=one_in(promise.delta), odds=times(promise.epsilon), unit=promise.unit),)


def _rebuilt(sources: Sources) -> Answer:
    """Whether records can be rebuilt: the bound on the card, and what attackers achieved."""
    asks = "How likely is it that a person's record is rebuilt from what leaves?"
    state, says, quotes = _reconstructions(sources, ("features", "front"))
    bounds, rows = _recovery(sources)
    if bounds:
        state = state if state == "measured" else "proven"
    return Answer("reconstruction", asks, state, (*says, *bounds, *_any_event(sources)), (*quotes, *rows))


def _recovery(sources: Sources) -> tuple[tuple[str, ...], tuple[Quote, ...]]:
    """The proven bound on reconstruction from features, unless it is vacuous."""
    features = sources.card.features
    if features is None or not sources.proven:
        return (), ()
    says: list[str] = []
    quotes: list[Quote] = []
    for index, row in enumerate(features.recovery):
        if row.bound < 1:
            most = f"{row.psnr:g} dB or better at most {percent_up(row.bound)} of the time"
            says.append(f"Proven against every attacker, for pictures like those of {features.prior}: {most}.")
            quotes += sources.quotes(f"card:features.recovery.{index}.", "psnr", "blind", "bound")
    return tuple(says), tuple(quotes)


def _reconstructions(
    sources: Sources, views: tuple[str, ...]
) -> tuple[AnswerState, tuple[str, ...], tuple[Quote, ...]]:
    if sources.dossier is None:
        return "not stated", (IN_DOSSIER,), ()
    found = sources.dossier.audit.features
    says: list[str] = []
    quotes: list[Quote] = []
    for index, one in enumerate(found.reconstructions if found else ()):
        if one.view in views:
            where = f"dossier:audit.features.reconstructions.{index}."
            quotes += sources.quotes(where, "name", "view", "psnr", "blind_psnr", "share", "share_low", "share_high")
            says.append(
                f"The attack '{one.name}' ({one.view}) rebuilds {one.share:.1%} of the pictures at {one.threshold:g} "
                f"dB ({one.share_low:.1%} to {one.share_high:.1%}); {one.blind_share:.1%} without what leaves."
            )
    if says:
        return "measured", tuple(says), tuple(quotes)
    return "not measured", ("Not measured: no such attack is in the dossier.",), ()


def _queries(sources: Sources) -> Answer:
    card, asked = sources.card, sources.card.interface
    asks = "What limits what can be learnt by asking it?"
    if asked is not None:
        count = "without limit" if asked.units is None else f"until {asked.units:,} units are spent ({asked.unit} each)"
        says = (f"Only answers leave, {count}.", *card.words.promise)
        quotes = (*sources.quotes("card:interface.", "gives", "units", "unit"), sources.quote("card:words.promise"))
    else:
        says = (
            "Whoever holds what leaves can ask it as often as they like; what is promised holds whatever is done with "
            "it later, so it covers every question and every answer."
            if sources.proven
            else "Whoever holds what leaves can ask it as often as they like, and nothing that is proven limits it.",
        )
        quotes = ()
    state: AnswerState = "proven" if sources.proven else "not proven"
    return Answer("queries", asks, state, says, (*quotes, *_promise(sources)))


def _means(sources: Sources) -> tuple[Answer, ...]:
    card = sources.card
    against = (
        "None: what is proven holds against everyone, whatever else they know, including every other record, and "
        "whatever they spend, short of breaking the cipher that makes the noise (ChaCha20)."
        if sources.proven
        else "What is not proven holds only against the attacks that were tried."
    )
    return (
        Answer(
            "further-information",
            "Which additional information, cost, time and technology was assumed?",
            "proven" if sources.proven else "not proven",
            (against,),
            sources.quotes("card:guarantee.", "status"),
        ),
        Answer(
            "assumptions",
            "What does it rest on?",
            "stated",
            card.guarantee.assumptions or ("No assumption is stated.",),
            (sources.quote("card:guarantee.assumptions"),),
        ),
        Answer(
            "other-releases",
            "What else was released from the same data?",
            "stated",
            (card.words.others,),
            (sources.quote("card:words.others"), *sources.quotes("card:total.", "epsilon", "delta")),
        ),
        _as_declared(sources, "context", "recipient", "To whom is it released, and under which terms?"),
    )


def _design(sources: Sources) -> tuple[Answer, ...]:
    card = sources.card
    return (
        Answer("sources", "How were the sources of the data selected?", "to be filled in", (TO_FILL_IN,)),
        Answer("minimisation", "How were the data prepared and minimised?", "to be filled in", (TO_FILL_IN,)),
        Answer(
            "method",
            "Which methods limit identification?",
            "stated",
            (f"{card.channel}/{card.method}.", card.words.noise, card.words.tuning),
            (
                *sources.quotes("card:", "channel", "method", "secure_noise", "noise_made_on", "details"),
                *sources.quotes("card:words.", "noise", "tuning"),
            ),
        ),
        Answer(
            "outputs",
            "Which measures are there about its outputs?",
            "stated",
            (_repeated(card),),
            (sources.quote(f"card:{card.artefact}"),),
        ),
    )


def _tests(sources: Sources) -> tuple[Answer, ...]:
    state, says, quotes = membership(sources, (*HELD, *ASKED))
    inverted = _reconstructions(sources, ("front",))
    rebuilt = _reconstructions(sources, ("features",))
    asks = "Was it tested against {}?"
    return (
        Answer("test-membership", asks.format("membership inference"), state, says, quotes),
        _attributes(sources),
        Answer(
            "test-exfiltration",
            asks.format("exfiltration"),
            "not measured",
            ("Not measured: it is about who can take what is stored, which is for whoever stores it.",),
        ),
        Answer(
            "test-regurgitation",
            asks.format("regurgitation of training data"),
            "not measured",
            (f"Not measured. {_repeated(sources.card)}",),
            (sources.quote(f"card:{sources.card.artefact}"),),
        ),
        Answer("test-inversion", asks.format("model inversion"), *inverted),
        Answer("test-reconstruction", asks.format("reconstruction"), *rebuilt),
        _untested(sources),
    )


def _attributes(sources: Sources) -> Answer:
    asks, found = "Was it tested against attribute inference?", sources.dossier and sources.dossier.audit.features
    if sources.dossier is None:
        return Answer("test-attributes", asks, "not stated", (IN_DOSSIER,))
    says: list[str] = []
    quotes: list[Quote] = []
    for index, one in enumerate(found.attributes if found else ()):
        where = f"dossier:audit.features.attributes.{index}."
        quotes += sources.quotes(where, "attribute", "value", "low", "high", "blind")
        says.append(f"Whether {one.attribute}: right {one.value:.1%} of the time, {one.blind:.1%} without what leaves.")
    if not says:
        return Answer("test-attributes", asks, "not measured", ("Not measured: no such attack is in the dossier.",))
    return Answer("test-attributes", asks, "measured", tuple(says), tuple(quotes))


def _untested(sources: Sources) -> Answer:
    asks = "Which attacks were not tried?"
    if sources.dossier is None:
        return Answer("untested", asks, "not stated", (IN_DOSSIER, ONLY_THOSE))
    says = (*(sources.dossier.audit.not_tested or ("None is named in the dossier.",)), ONLY_THOSE)
    return Answer("untested", asks, "stated", says, (sources.quote("dossier:audit.not_tested"),))


def _documents(sources: Sources) -> tuple[Answer, ...]:
    checks = (
        "`airlock verify` recomputes ε from the recorded events, plans the release again from its config, and says who "
        "signed it; `airlock gate` lists reasons against it.",
    )
    quotes = (*sources.quotes("card:", "airlock_version"), *sources.quotes("card:guarantee.", "accountant_version"))
    return (
        Answer("analysis", "How can an auditor check it?", "stated", checks, quotes),
        Answer("dpo", "What did the data protection officer advise?", "to be filled in", (TO_FILL_IN,)),
        Answer("measures", "Which organisational measures are in place?", "to be filled in", (TO_FILL_IN,)),
    )

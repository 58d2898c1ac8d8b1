"""A sheet of the differential privacy pyramid of NIST SP 800-226, component by component, with a card's figures.

The publication (*Guidelines for Evaluating Differential Privacy Guarantees*, March 2025) evaluates a guarantee from the
top of the pyramid, ε and the unit of privacy, down to the exposure of the data that were collected. The components have
the names of its figure 1, which are also the sections of a policy (`policy.tables`). What a card does not know is left
to be filled in.
"""

from __future__ import annotations

from airlock.auditing.regression_errors import in_unit
from airlock.bundle.card import Card
from airlock.bundle.dossier import Dossier
from airlock.bundle.rendering.formatting import size
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

FOLLOWS = "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees, March 2025"
NOTE = "Each component can protect only as far as those below it do. An audit supplements a proof and replaces none."
VIEWS = ("white-box", "black-box", "labels", "interface", "features", "front")
UNITS = {
    "record": "One record (NIST: event-level). Where a person has several, ε counts once for each.",
    "person": "All records of one person (NIST: user-level).",
    "model": "One trained model among others: nothing is promised about a record.",
    "none": "Nothing.",
}
RELATIONS = {"add-remove": "added or removed (NIST: unbounded)", "replace-one": "replaced (NIST: bounded)"}


def make(card: Card, dossier: Dossier | None = None) -> Report:
    """The sheet; with the dossier it has the exact figures and those of all attacks, and stays inside."""
    sources = Sources(card, dossier)
    return sources.report(
        "nist",
        "Differential privacy sheet",
        FOLLOWS,
        NOTE,
        (
            Chapter("Privacy parameters (top)", (_epsilon(sources), _delta(sources), _budget(sources))),
            Chapter("Unit of privacy (top)", (_unit(sources),)),
            Chapter("Algorithms and correctness (middle)", (_algorithm(sources), _audit(sources))),
            Chapter("Utility (middle)", (_utility(sources),)),
            Chapter("Bias (middle)", (_bias(sources),)),
            Chapter("Trust models (bottom)", (_trust(sources),)),
            Chapter("Side channels (bottom)", (_noise(sources), _timing())),
            Chapter("Access control (bottom)", _access(sources)),
            Chapter("Data collection exposure (bottom)", _collected(sources)),
        ),
    )


def _epsilon(sources: Sources) -> Answer:
    promise = sources.card.guarantee
    quotes = sources.quotes(
        "card:guarantee.", "status", "epsilon", "delta", "accountant", "accountant_version", "claim"
    )
    asks = "Which ε is guaranteed, under which definition?"
    if not sources.proven or promise.epsilon is None:
        return Answer("epsilon", asks, "not proven", (sources.headline,), quotes)
    says = (
        f"Approximate differential privacy: {size(promise.epsilon, promise.delta)}, computed by {promise.accountant}."
    )
    return Answer("epsilon", asks, "proven", (says,), quotes)


def _delta(sources: Sources) -> Answer:
    delta, data = sources.card.guarantee.delta, sources.card.data
    of_people = data.people is not None
    key, one = ("people", "one person's records") if of_people else ("records", "one whole record")
    product = sources.derive("card:guarantee.delta", f"delta times {key}", delta * data.units, f"times card:data.{key}")
    says = f"δ times the number of {key} is {delta * data.units:.3g}; at 1, publishing {one} would meet it."
    quotes = (sources.quote("card:guarantee.delta"), sources.quote(f"card:data.{key}"), product)
    return Answer("delta", f"Is δ small beside the number of {key}?", "stated", (says,), quotes)


def _budget(sources: Sources) -> Answer:
    words = sources.card.words
    quotes = (
        *sources.quotes("card:total.", "epsilon", "delta", "accountant"),
        *sources.quotes("card:words.", "others", "tuning"),
        sources.quote("card:tuning.runs", "declared runs"),
    )
    asks = "What is the whole privacy loss, other releases and tuning included?"
    return Answer("budget", asks, "stated", (words.others, words.tuning), quotes)


def _unit(sources: Sources) -> Answer:
    promise = sources.card.guarantee
    says = (UNITS[promise.unit], f"Neighbouring data differ in one, {RELATIONS[promise.relation]}.")
    asks = "What is one person's data, and when are data neighbouring?"
    return Answer("unit", asks, "stated", says, sources.quotes("card:guarantee.", "unit", "relation"))


def _algorithm(sources: Sources) -> Answer:
    card = sources.card
    says = (f"{card.channel}/{card.method}. {card.leaves}", f"How records were sampled: {card.guarantee.sampling}.")
    quotes = (
        *sources.quotes("card:", "channel", "method", "leaves", "details", "airlock_version"),
        *sources.quotes("card:guarantee.", "sampling", "events"),
    )
    return Answer("algorithm", "Which algorithm was run, by which library?", "stated", says, quotes)


def _audit(sources: Sources) -> Answer:
    state, says, quotes = membership(sources, VIEWS)
    return Answer("audit", "What did an audit measure?", state, says, quotes)


def _utility(sources: Sources) -> Answer:
    asks = "How useful is it?"
    where = _figures(sources)
    words = sources.quote("card:words.utility")
    if sources.card.data.target is not None:
        return _errors(sources, asks, words)
    if sources.card.data.language:
        return _perplexity(sources, asks, words)
    if where is None:
        return Answer("utility", asks, "not stated", (sources.card.words.utility,), (words,))
    quotes = _interval(sources, f"{where}.accuracy", "accuracy")
    low, high = (quote.value for quote in quotes[1:])
    says = f"The accuracy on test records lies between {low:.1%} and {high:.1%}."
    return Answer("utility", asks, "measured", (says, sources.card.words.utility), (*quotes, words))


NO_GROUPS = "Not measured: texts without labels have no classes, and nothing says which group a record belongs to."
NO_CLASSES = "Not measured: it predicts a number, and nothing says which group a record belongs to."


def _errors(sources: Sources, asks: str, words: Quote) -> Answer:
    """How far predictions of a number are off."""
    target = sources.card.data.target
    assert target is not None
    exact = sources.dossier is not None and sources.dossier.errors is not None
    where = f"{'dossier' if exact else 'card'}:errors.figures.root_mean_square"
    quotes = _interval(sources, where, "root mean square error")
    ends = " and ".join(in_unit(quote.value, target) for quote in quotes[1:])
    says = f"The root mean square error on test records lies between {ends}."
    return Answer("utility", asks, "measured", (says, sources.card.words.utility), (*quotes, words))


def _perplexity(sources: Sources, asks: str, words: Quote) -> Answer:
    """How well a language model predicts the next token."""
    exact = sources.dossier is not None and sources.dossier.language is not None
    quotes = _interval(
        sources, "dossier:language.perplexity" if exact else "card:language.figures.perplexity", "perplexity"
    )
    low, high = (quote.value for quote in quotes[1:])
    says = f"The perplexity on test records lies between {low:,.4g} and {high:,.4g}."
    return Answer("utility", asks, "measured", (says, sources.card.words.utility), (*quotes, words))


def _figures(sources: Sources) -> str | None:
    """Where the figures about classes are: with the dossier the exact ones, otherwise the card's, if it has any."""
    if sources.card.data.target is not None or sources.card.data.language:
        return None
    if sources.dossier is not None:
        return "dossier:utility.figures"
    return None if sources.card.utility is None else "card:utility.figures"


def _interval(sources: Sources, where: str, name: str) -> tuple[Quote, ...]:
    ends = (("value", name), ("low", f"{name}, lower end"), ("high", f"{name}, upper end"))
    return tuple(sources.quote(f"{where}.{key}", said) for key, said in ends)


def _bias(sources: Sources) -> Answer:
    asks, where = "Does the noise weigh more on some groups?", _figures(sources)
    if where is None:
        data = sources.card.data
        why = NO_GROUPS if data.language else IN_DOSSIER if data.target is None else NO_CLASSES
        return Answer("bias", asks, "not stated", (why,))
    names = sources.card.data.classes
    quotes = [
        one for i, name in enumerate(names) for one in _interval(sources, f"{where}.recalls.{i}", f"recall of {name}")
    ]
    worst = min(range(len(names)), key=lambda i: quotes[3 * i].value)
    low, high = (quotes[3 * worst + end].value for end in (1, 2))
    says = (
        f"The class that is recognised least is '{names[worst]}': a recall between {low:.1%} and {high:.1%}.",
        "Groups other than the classes were not measured.",
    )
    return Answer("bias", asks, "measured", says, tuple(quotes))


def _trust(sources: Sources) -> Answer:
    lines = sources.card.guarantee.assumptions
    says = ("Central: whoever made the release holds the records, and nobody else has to be trusted.", *lines)
    quotes = (sources.quote("card:guarantee.assumptions"),)
    return Answer("trust", "Who has to be trusted, and with what?", "stated", says, quotes)


def _noise(sources: Sources) -> Answer:
    state: AnswerState = "stated"
    quotes = (*sources.quotes("card:", "secure_noise", "noise_made_on"), sources.quote("card:words.noise"))
    return Answer("noise", "Where does the noise come from?", state, (sources.card.words.noise,), quotes)


def _timing() -> Answer:
    says = ("A card does not say it: for answers over a network, the timing is for whoever runs the service.",)
    return Answer("timing", "Can timing or other channels reveal records?", "not measured", says)


def _access(sources: Sources) -> tuple[Answer, ...]:
    asked = sources.card.interface
    first = Answer("access", "Who can reach the records, the vault and the dossier?", "to be filled in", (TO_FILL_IN,))
    if asked is None:
        return (first,)
    says = "without limit" if asked.units is None else f"until {asked.units:,} units are spent ({asked.unit} each)"
    quotes = sources.quotes("card:interface.", "gives", "units", "unit")
    return (first, Answer("questions", "Who can ask, and how much?", "stated", (f"Answers are given {says}.",), quotes))


def _collected(sources: Sources) -> tuple[Answer, ...]:
    data = sources.card.data
    size, sizes = counted(sources)
    units = "people" if data.people is not None else "records"
    says = (data.origin, size, f"{data.public_share:.1%} of the {units} were declared public: nothing covers those.")
    quotes = (*sources.quotes("card:data.", "name", "origin", "public_share"), *sizes)
    return (
        Answer("data", "Which data were collected?", "stated", says, quotes),
        Answer("storage", "How are the collected data kept, and for how long?", "to be filled in", (TO_FILL_IN,)),
    )

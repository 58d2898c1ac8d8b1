"""The sentences of a card: they are derived from its figures, so verification finds an edited sentence by rewriting it.

The meaning of ε is explained through a guess. Under (ε, δ), someone who starts from even odds and must say whether a
record was used is right with probability at most (e^ε + δ) / (1 + e^ε) (Kairouz, Oh and Viswanath 2015, theorem 2.1).
Whether a guarantee is proved (`verdict`) and how strong it is (`strength.strength`) are said apart: a proof at a large
ε is a proof of very little.

Attacks on features have their own sentences (`write_on_features`): what can be reconstructed, whether the front end was
identified, and what else features reveal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from airlock import accounting
from airlock.accounting.terms import PROTECTED
from airlock.auditing.evaluation import CONFIDENCE
from airlock.auditing.paid_auc import PaidAttack
from airlock.auditing.perplexity import compare_with_guessing
from airlock.auditing.regression_errors import compare_with_constant, in_unit
from airlock.auditing.result import (
    AttackResult,
    AttributeResult,
    Audit,
    ExposureResult,
    Findings,
    IdentificationResult,
    ReconstructionResult,
    WorstCaseResult,
)
from airlock.auditing.usefulness import compare_with_blind
from airlock.bundle.rendering.formatting import best_guess, cost_up, epsilon_up, one_in, percent_up, size, times
from airlock.bundle.rendering.strength import Strength, strength
from airlock.bundle.schema import (
    AnyUtility,
    Composition,
    DataSummary,
    ErrorUtility,
    FeatureSummary,
    LanguageUtility,
    LifetimeBudget,
    PaidAttacks,
    StatedGuarantee,
    Tuning,
    Words,
)
from airlock.mechanisms import Place
from airlock.methods.contract import in_words
from airlock.methods.interface import ONE_ANSWER, Interface

CardVerdict = Literal["proven", "unproven", "doubt", "insecure"]
Mark = Literal["proven", "limited", "weak", "unproven", "doubt", "insecure"]

# What sentences say of the protected unit. "They" and "it" are whoever the sentence is about.
UNITS: dict[str, dict[str, str]] = {
    "record": {
        "used": "any one record was used",
        "given": "a given record was used",
        "any": "any one record",
        "one": "one record",
        "it was": "it was used",
        "left out": "Had it been left out of the training data (or put in)",
        "replaced": "Had another record stood in its place",
        "different": "Had it been different",
        "two": "someone who holds two records, knows that one of them was used",
        "every": "every record, whether the model learnt from it or was only measured on it",
        "others": "every other record",
        "covers": "It covers one record. Where one person has several records, ε counts once for each of them.",
        "whole": "a whole record",
        "counted": "records",
        "tested": "test records were asked about",
        "kind": "records of this kind",
        "test one": "a test record",
        "too": "test records too",
        "all but": "all of a record but its label",
        "from": "a picture from its numbers",
    },
    "person": {
        "used": "any one person's records were used",
        "given": "a given person's records were used",
        "any": "any one person",
        "one": "one person",
        "it was": "their records were used",
        "left out": "Had all their records been left out of the data (or put in)",
        "replaced": "Had the records of another person stood in place of theirs",
        "different": "Had all their records been different",
        "two": "someone who holds the records of two people, knows that those of one of them were used",
        "every": "every person, whether the model learnt from their records or was only measured on one of them",
        "others": "all records of everybody else",
        "covers": "It covers all records of a person together, however many there are.",
        "whole": "all records of somebody",
        "counted": "people",
        "tested": "test people were asked about, by one record each",
        "kind": "such records, one of each person,",
        "test one": "a test person",
        "too": "test people too",
        "all but": "all of a person's records but their labels",
        "from": "a picture of somebody from the numbers of all their pictures",
    },
}
ONLY_RECORDS = " It is about ONE RECORD: people in these data have several, and a person as a whole is protected less."
ONLY_RECORDS_COVERED = (
    "It covers one record. People in these data have several records, and ε counts once for each of them."
)

INSECURE = (
    "TEST ONLY, the guarantee does NOT hold against anyone who knows the seed: "
    "the privacy noise was made from a fixed seed and can be computed and taken away."
)
SAYS = {
    "strong": "anyone who studies this release learns little about whether {used}",
    "moderate": "this release limits what anyone can learn about whether {used}",
    "weak": "this release limits only a little what anyone can learn about whether {used}",
    "very-weak": "the guarantee alone hardly limits what anyone can learn about whether {used}",
}
PROVEN_HEADLINE = (
    "Proven, {joined}: {says}; whoever guesses that is right half the time without it and at most {guess} of the time "
    "with it ({size})."
)
DOUBT_HEADLINE = (
    "IN DOUBT: an attack measured ε of at least {bound}, more than the stated {size}; "
    "the implementation or an assumption is wrong, so do not release this before it is explained."
)
COURT_HEADLINE = (
    "IN DOUBT: on made-up records the court measured ε of at least {bound} for this very configuration, and {size} is "
    "stated; the implementation or an assumption is wrong, so do not release this before it is explained."
)
CLAIMED_HEADLINE = (
    "NOT proven: the method's paper claims {size}, but its proof is missing or does not hold; "
    "judge this release as if it promised nothing."
)
CLAIMED_NO_FIGURE = (
    "NOT proven: the method claims a guarantee, but its proof is missing or does not hold; "
    "judge this release as if it promised nothing."
)
EMPIRICAL_HEADLINE = (
    "NOT proven: no mathematical guarantee stands behind this release; "
    "all that is known is what attacks found inside, and other attacks may find more."
)
NO_UNIT_HEADLINE = "NOT proven: nothing limits what this release may tell about any one record."
MODEL_HEADLINE = (
    "NOT proven for records: the promise ({size}) hides one trained model among others "
    "and says nothing about any one record in the data."
)

NO_MODEL = " No model leaves: what leaves are answers to questions, {count}, {cost}"
IN_ALL = "for {size} in all."
NO_BOUND = "with no bound on what all of them tell."

ROWS = " No model leaves: what leaves are {shape} numbers for each of {records} records, {noise}, and {labels}."
WITH_NOISE, WITHOUT_NOISE = "each number with noise", "WITHOUT any noise"
LABELS = {
    "clear": "their labels as they are, which nothing protects",
    "randomised": "their labels, some of them changed at random",
}
CLEAR_LABELS = "The labels leave as they are: nothing protects them."
READ_OFF = (
    "Not covered: {what}, read off the records before the release. No ε pays for that: they must be public anyway."
)
SEVERAL_RECORDS = "People in these data have several records, and one record is protected: a person is protected less."
LABELS_SCOPE = "It is about {all but}: labels leave as they are."
RECOVERY = "Against everyone who tries to give back {from}, for pictures like those of {prior}: {rows}."
RECOVERY_ROW = "{psnr:g} dB or better at most {bound} of the time ({blind} without this release)"

ODDS = {
    "add-remove": (
        "Take {any}. {left out}, this same release could have come out anyway: at most {odds} times "
        "more or less likely, apart from a probability of {rest} (δ)."
    ),
    "replace-one": (
        "Take {any}. {replaced}, this same release could have come out anyway: at most {odds} times "
        "more or less likely, apart from a probability of {rest} (δ)."
    ),
}
GUESS = {
    "add-remove": (
        "As a guess: someone who thinks it as likely as not that {given}, and studies this release in every "
        "possible way, is right about it at most {guess} of the time. A coin is right 50% of the time."
    ),
    "replace-one": (
        "As a guess: {two}, and studies this release in every possible way, names the right one at "
        "most {guess} of the time. A coin is right 50% of the time."
    ),
}
PROMISE_SCOPE = (
    "It holds for {every}: the bundle, this card included, is all that it is about.",
    "This holds against everyone, also against someone who knows {others}, and whatever is done with the release "
    "later.",
    "{covers}",
    "It does not hide what is true of people in general: that can be learnt from the release, also about people who "
    "were not in the data.",
)
WEAK_SCOPE = (
    "Take {any}. {different}, this same release could still have come out, but perhaps {odds} times more or less "
    "likely. That is so much that a guess about {one} may be right almost every time.",
    "That is weak or no protection by itself. Whether this may leave has to rest on other grounds: what the dossier "
    "says about attacks, and who receives it.",
)
LARGE_DELTA = (
    "δ is not small for about {records} {counted}: a method that publishes {whole} at random could meet it. "
    "It should be well below 1 / {records}."
)
INSECURE_SCOPE = (
    "Nothing is promised against anyone who knows or guesses the seed of the noise.",
    "With secret noise the same release would promise {size}.",
)
NO_PROMISE = "Nothing is promised to the people in the data."
CLAIM_TEXT = "The paper states {size}, by {theorem}. This is recorded as a claim, not as a fact."
COMPUTED = (
    "From the recorded events {size} would follow if the mechanism did what its paper assumes; "
    "that is not shown, so the figure is no promise."
)
MODEL_TEXT = "The promise of {size} is about one trained model: it limits what can be learnt about that model."

SECURE_NOISE = "The privacy noise is secret: its key was drawn by the operating system. It was computed {where}."
INSECURE_NOISE = (
    "The privacy noise was made from a fixed seed (--insecure-seed), which is meant for testing. Whoever knows or "
    "guesses the seed can compute the noise and take it away: the guarantee does not hold against them. It was "
    "computed {where}."
)
NO_NOISE = "No privacy noise was drawn."
WHERE: dict[frozenset[Place], str] = {
    frozenset({"cpu"}): "on the CPU",
    frozenset({"gpu"}): "on the GPU",
    frozenset({"cpu", "gpu"}): "partly on the CPU and partly on the GPU",
}
UTILITY = (
    "{use} About {records} {tested}. With {confidence} confidence the accuracy on {kind} lies between {low} and "
    "{high}. The counts behind this have noise, which the interval contains; they cost {test one} "
    "ε = {epsilon}{covered}. Exact figures are in the dossier, which stays with whoever made this release."
)
ERRORS = (
    "{use} About {records} {tested}. An error of more than half of the declared range ({low} to {high}) counts as half "
    "of it. The counts behind this have noise, which the intervals contain; they cost {test one} "
    "ε = {epsilon}{covered}. Exact figures are in the dossier, which stays with whoever made this release."
)
GUESSED = "A text on which it does worse than guessing counts as guessed."
LANGUAGE = (
    f"{{use}} About {{records}} {{tested}}; each counts once, however long it is. {GUESSED} "
    "The counts behind this have noise, which the intervals contain; they cost {test one} "
    "ε = {epsilon}{covered}. Exact figures are in the dossier, which stays with whoever made this release."
)
COVERED = ", so that the guarantee is about {too}"
MEASURED_INSIDE = (
    "How useful the answers are was measured by asking beyond the budget, which nothing pays for. So the figure is not "
    "here but in the dossier, which stays with whoever made this release."
)
LEARNT = (
    " The classifier learnt from the released numbers and labels alone. Those of test records have no noise, as for "
    "someone who sends the classifier back to where the records are."
)
AUDIT = (
    "These figures have noise, for which {share} of the ε that was asked for was set aside: they are covered by the "
    "guarantee. All other attacks are in the dossier, which stays with whoever made this release. An attack that finds "
    "nothing proves nothing: a better one may find more."
)
NO_AUDIT = (
    "What attacks found is in the dossier, which stays with whoever made this release: it follows from single records, "
    "and no part of ε was set aside for attack figures here. What is proven holds against every attack."
)
NO_OTHERS = (
    "No other release from the same data was declared. If there is one, the promises add up and the total is larger "
    "than what stands here: declare it with --composes-with."
)
OTHERS = "Together with {count} from the same data, the total is {size}."
REGISTERED = (
    "This release is counted in the register of its data set. Whatever else has left or will leave under it, for "
    "whoever was ever among the records everything together has {size}. Of these {whole}, this release took {cost}; "
    "with it, {spent} are spent."
)
OTHERS_NO_TOTAL = (
    "Together with {count} from the same data there is no total: at least one of them promises nothing for the same "
    "unit ({unit})."
)
OTHERS_UNPROVEN = " Not all of these releases are proven with secret noise, so the total is not proven either."
ONE_RUN = (
    "One run was declared: no choice among repeated runs. If settings were chosen by looking at earlier runs on these "
    "records, those runs are not paid for here."
)
CHOSEN = (
    "The method was not named: it was chosen by a fixed rule from what is public about the data, so the choice costs "
    "no privacy."
)
MANY_RUNS = (
    "{runs} runs were declared before one result was picked, and all of them are paid for: the recorded events, and so "
    "ε, contain every run. So do those of the test part, if the pick was made by what the runs' cards say."
)
SEARCHED = (
    "A search was paid for: {candidates} were declared, about {mean:g} runs of them drawn at random were expected, and "
    "what leaves is the run that noisy counts of test records say is the best ({won}). ε covers this choice, for "
    "private and for test records. How many runs there were is secret, and so are their scores. Each was planned with "
    "ε = {run}; to state that for the winner would be false."
)
PUBLIC_PART = " It is not about the {share} of the {counted} that the holder declared public."


def verdict(promise: StatedGuarantee, secure_noise: bool, audit: Audit | None = None) -> CardVerdict:
    """The one word that decides badge and headline; "doubt" is possible only if the audit is given."""
    if not secure_noise:
        return "insecure"
    if promise.status != "proven" or promise.unit not in PROTECTED or promise.epsilon is None:
        return "unproven"
    if audit is not None and measured(audit) > promise.epsilon:
        return "doubt"
    return "proven"


def strength_of(promise: StatedGuarantee, secure_noise: bool) -> Strength | None:
    """How strong the guarantee is; None where nothing is proven, which no ε makes up for."""
    if verdict(promise, secure_noise) != "proven" or promise.epsilon is None:
        return None
    return strength(promise.epsilon, promise.delta)


def uncovered(data: DataSummary, features: FeatureSummary | None) -> tuple[str, ...]:
    """What leaves beside the guarantee, or is covered less than it sounds; such a release is never marked as good."""
    lines = [CLEAR_LABELS] if features is not None and features.labels == "clear" else []
    lines += [READ_OFF.format(what=in_words(data.read_off))] if data.read_off else []
    return (*lines, *([SEVERAL_RECORDS] if data.grouped else []))


def mark(kind: CardVerdict, found: Strength | None, limits: Sequence[str]) -> Mark:
    """Colour and shape of a page: "proven" needs a proof, a strong guarantee, and nothing that it leaves out."""
    if kind != "proven" or found is None:
        return kind
    if found.tone == "bad":
        return "weak"
    return "limited" if found.tone == "warn" or limits else "proven"


@dataclass(frozen=True)
class Particulars:
    """Sentences that are specific to the kind of artefact that leaves.

    Args:
        headline: Follows the first sentence of the headline.
        scope: Precedes all other sentences about a proven guarantee.
        bounds: Follows them.
        utility: Follows the sentence about utility.
    """

    headline: str = ""
    scope: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    utility: str = ""


def about_features(promise: StatedGuarantee, features: FeatureSummary) -> Particulars:
    """That features leave, how they and their labels are protected, and the bound on reconstruction."""
    noise = WITH_NOISE if features.noise is not None else WITHOUT_NOISE
    shape = " × ".join(f"{side:,}" for side in features.shape)
    return Particulars(
        ROWS.format(shape=shape, records=f"{features.records:,}", noise=noise, labels=LABELS[features.labels]),
        (LABELS_SCOPE.format(**_unit(promise)),) if features.labels == "clear" else (),
        _recovery(promise, features),
        LEARNT,
    )


def about_answers(promise: StatedGuarantee, interface: Interface) -> Particulars:
    """That answers leave, how many, and what they cost in total."""
    units = f"{interface.units or 0:,}"
    if interface.units is None:
        count = "any number of them"
    elif interface.unit == ONE_ANSWER:
        count = f"{units} of them at most" if interface.units > 1 else "one"
    else:
        plural = "s are" if interface.units > 1 else " is"
        count = f"until {units} unit{plural} spent (one unit pays for {interface.unit})"
    proven = promise.status == "proven" and promise.epsilon is not None
    cost = IN_ALL.format(size=size(promise.epsilon or 0.0, promise.delta)) if proven else NO_BOUND
    return Particulars(NO_MODEL.format(count=count, cost=cost))


def headline(promise: StatedGuarantee, secure_noise: bool, data: DataSummary, own: Particulars) -> str:
    """The verdict in one sentence, which comes first in everything that is printed.

    If no model leaves, or some records were declared public, another sentence follows.
    """
    about = verdict(promise, secure_noise) == "proven" and data.public_share > 0
    own_words = _unit(promise)
    public = PUBLIC_PART.format(share=f"{100 * data.public_share:.3g}%", **own_words) if about else ""
    only = ONLY_RECORDS if data.grouped and verdict(promise, secure_noise) == "proven" else ""
    said = f" {READ_OFF.format(what=in_words(data.read_off))}" if data.read_off else ""
    return _promised(promise, secure_noise) + said + only + public + own.headline


def _unit(promise: StatedGuarantee) -> dict[str, str]:
    """The words for what is protected."""
    return UNITS.get(promise.unit, UNITS["record"])


def _promised(promise: StatedGuarantee, secure_noise: bool) -> str:
    kind = verdict(promise, secure_noise)
    if kind == "insecure":
        return INSECURE if promise.status == "proven" else f"{INSECURE} Even with secret noise it would be NOT proven."
    if kind == "unproven":
        return _unproven_headline(promise)
    epsilon = promise.epsilon if promise.epsilon is not None else math.inf
    found = strength(epsilon, promise.delta)
    return PROVEN_HEADLINE.format(
        joined=found.joined,
        says=SAYS[found.level].format(**_unit(promise)),
        guess=percent_up(best_guess(epsilon, promise.delta)),
        size=size(epsilon, promise.delta),
    )


def doubt(promise: StatedGuarantee, audit: Audit) -> str:
    """That an attack refutes the stated ε."""
    stated = size(promise.epsilon if promise.epsilon is not None else math.inf, promise.delta)
    return DOUBT_HEADLINE.format(bound=f"{measured(audit):.2f}", size=stated)


def court_doubt(promise: StatedGuarantee, bound: float) -> str:
    """That the court refutes it."""
    stated = size(promise.epsilon if promise.epsilon is not None else math.inf, promise.delta)
    return COURT_HEADLINE.format(bound=f"{bound:.2f}", size=stated)


def _unproven_headline(promise: StatedGuarantee) -> str:
    if promise.status == "claimed" and promise.claim:
        return CLAIMED_HEADLINE.format(size=size(promise.claim.epsilon, promise.claim.delta))
    if promise.status == "claimed":
        return CLAIMED_NO_FIGURE
    if promise.status == "empirical":
        return EMPIRICAL_HEADLINE
    if promise.unit == "model" and promise.epsilon is not None:
        return MODEL_HEADLINE.format(size=size(promise.epsilon, promise.delta))
    return NO_UNIT_HEADLINE


def _noise(secure: bool, made_on: Sequence[Place]) -> str:
    if not made_on:
        return NO_NOISE
    return (SECURE_NOISE if secure else INSECURE_NOISE).format(where=WHERE[frozenset(made_on)])


def write(
    promise: StatedGuarantee,
    secure_noise: bool,
    noise_made_on: Sequence[Place],
    data: DataSummary,
    utility: AnyUtility | None,
    audit: PaidAttacks,
    total: Composition,
    tuning: Tuning,
    own: Particulars,
    register: LifetimeBudget | None = None,
) -> Words:
    """Every sentence below the headline."""
    return Words(
        promise=_promise(promise, data, verdict(promise, secure_noise), own),
        noise=_noise(secure_noise, noise_made_on),
        utility=_useful(utility, promise, data) + own.utility,
        audit=AUDIT.format(share=f"{100 * audit.share:.3g}%") if audit.attacks else NO_AUDIT,
        others=_others(promise, secure_noise, total) if register is None else _counted(register),
        tuning=_tuned(tuning),
    )


def _tuned(tuning: Tuning) -> str:
    """Which runs are paid for."""
    own = tuning.search
    if own is None:
        runs = ONE_RUN if tuning.runs == 1 else MANY_RUNS.format(runs=f"{tuning.runs:,}")
        return f"{CHOSEN} {runs}" if tuning.chosen else runs
    count = f"{len(own.candidates)} candidate{'s' if len(own.candidates) > 1 else ''}"
    run = epsilon_up(own.run_epsilon)
    return SEARCHED.format(candidates=count, mean=own.mean, won=candidate(own.candidates[own.won]), run=run)


def candidate(values: Mapping[str, object]) -> str:
    """One candidate of a search, in words."""
    return ", ".join(f"{key.removeprefix('settings.')} = {value}" for key, value in values.items())


def _useful(utility: AnyUtility | None, promise: StatedGuarantee, data: DataSummary) -> str:
    """What the noisy counts show, and that they are paid for."""
    if utility is None:
        return MEASURED_INSIDE
    words = _unit(promise)
    covered = COVERED.format(**words) if promise.status == "proven" and promise.unit in PROTECTED else ""
    if isinstance(utility, ErrorUtility):
        assert data.target is not None
        return ERRORS.format(
            use=compare_with_constant(utility.figures, data.target).sentence,
            records=f"{utility.figures.records:,}",
            low=f"{data.target.min:.6g}",
            high=in_unit(data.target.max, data.target),
            epsilon=epsilon_up(utility.counts.epsilon),
            covered=covered,
            **words,
        )
    if isinstance(utility, LanguageUtility):
        return LANGUAGE.format(
            use=compare_with_guessing(utility.figures).sentence,
            records=f"{utility.figures.records:,}",
            epsilon=epsilon_up(utility.counts.epsilon),
            covered=covered,
            **words,
        )
    found = utility.figures
    return UTILITY.format(
        use=compare_with_blind(found).sentence,
        records=f"{found.records:,}",
        low=f"{found.accuracy.low:.1%}",
        high=f"{found.accuracy.high:.1%}",
        confidence=f"{CONFIDENCE:.0%}",
        epsilon=epsilon_up(utility.counts.epsilon),
        covered=covered,
        **words,
    )


def _promise(promise: StatedGuarantee, data: DataSummary, kind: CardVerdict, own: Particulars) -> tuple[str, ...]:
    if promise.status != "proven" or promise.unit not in PROTECTED or promise.epsilon is None:
        return (NO_PROMISE, *_unproven_promise(promise))
    if kind == "insecure":
        return tuple(line.format(size=size(promise.epsilon, promise.delta)) for line in INSECURE_SCOPE)
    words = _unit(promise) | ({"covers": ONLY_RECORDS_COVERED} if data.grouped else {})
    if strength(promise.epsilon, promise.delta).level == "very-weak":
        lines = [line.format(odds=times(promise.epsilon), **words) for line in WEAK_SCOPE]
    else:
        lines = _odds(promise, promise.epsilon)
    lines = [*own.scope, *lines, *(line.format(**words) for line in PROMISE_SCOPE), *own.bounds]
    if promise.delta * data.units >= 1:
        lines.append(LARGE_DELTA.format(records=f"{data.units:,}", **words))
    return tuple(lines)


def _recovery(promise: StatedGuarantee, rows: FeatureSummary) -> tuple[str, ...]:
    """The bound on reconstruction, unless it is vacuous."""
    found = [
        RECOVERY_ROW.format(psnr=one.psnr, bound=percent_up(one.bound), blind=percent_up(one.blind))
        for one in rows.recovery
        if one.bound < 1
    ]
    return (RECOVERY.format(prior=rows.prior, rows="; ".join(found), **_unit(promise)),) if found else ()


def _odds(promise: StatedGuarantee, epsilon: float) -> list[str]:
    figures = {
        "odds": times(epsilon),
        "rest": one_in(promise.delta),
        "guess": percent_up(best_guess(epsilon, promise.delta)),
        **_unit(promise),
    }
    return [ODDS[promise.relation].format(**figures), GUESS[promise.relation].format(**figures)]


def _unproven_promise(promise: StatedGuarantee) -> tuple[str, ...]:
    lines = []
    if promise.claim:
        stated = size(promise.claim.epsilon, promise.claim.delta)
        lines.append(CLAIM_TEXT.format(size=stated, theorem=promise.claim.theorem))
    if promise.epsilon is not None:
        text = MODEL_TEXT if promise.status == "proven" else COMPUTED
        lines.append(text.format(size=size(promise.epsilon, promise.delta)))
    return tuple(lines)


def _others(promise: StatedGuarantee, secure_noise: bool, total: Composition) -> str:
    if not total.releases:
        return NO_OTHERS
    count = f"{len(total.releases)} other declared release{'s' if len(total.releases) > 1 else ''}"
    if total.epsilon is None:
        return OTHERS_NO_TOTAL.format(count=count, unit=promise.unit)
    sound = secure_noise and promise.status == "proven"
    sound = sound and all(other.status == "proven" and other.secure_noise for other in total.releases)
    return OTHERS.format(count=count, size=size(total.epsilon, total.delta)) + ("" if sound else OTHERS_UNPROVEN)


def _counted(register: LifetimeBudget) -> str:
    budget = accounting.PrivacyFilter(register.epsilon, register.delta, register.order)
    return REGISTERED.format(
        size=size(register.epsilon, register.delta),
        cost=cost_up(budget.share(register.cost)),
        spent=cost_up(budget.share(register.spent)),
        whole=f"{register.epsilon:g}",
    )


PAIR = "of two {counted}, one used and one not, how often the attack names the used one (AUC)"
PICKS = "of two {counted}, one used and one not, it names the used one {value} of the time ({interval}; AUC)"


@dataclass(frozen=True)
class Scored:
    """An attack's score as a reader takes it: its figures as text, what they mean, and both in a sentence."""

    value: str
    interval: str
    chance: str
    smallest: str
    start: str
    end: str
    means: str
    sentence: str


def scored(attack: AttackResult | PaidAttack, counted: str) -> Scored:
    """An AUC is how often a pair is told apart, in percent; any other score keeps its name.

    Args:
        attack: Its figures.
        counted: What has a score each, "records" or "people".
    """
    pairs = attack.score == "AUC"

    def said(value: float) -> str:
        return f"{100 * value:.1f}%" if pairs else f"{value:.3f}"

    value, interval, chance = said(attack.value), f"{said(attack.low)} to {said(attack.high)}", said(attack.chance)
    return Scored(
        value,
        interval,
        chance,
        smallest=said(attack.smallest_effect) if isinstance(attack, AttackResult) else "",
        start="0%" if pairs else "0",
        end="100%" if pairs else "1",
        means=f"{PAIR.format(counted=counted) if pairs else attack.score}; {chance} by chance",
        sentence=PICKS.format(counted=counted, value=value, interval=interval)
        if pairs
        else f"{attack.score} {value}, {interval}",
    )


def measured(audit: Audit) -> float:
    """The largest lower bound on ε from any attack on this release; 0 if there is none."""
    return max((attack.epsilon_lower_bound for attack in audit.attacks), default=0.0)


# About attacks on features.

WHO = {
    "features": "An attacker who does not know the front end, but {known} records with their features,",
    "front": "An attacker who knows the front end and {known} other records",
}
REBUILT = (
    "{who} rebuilds pictures at {psnr} dB ({low} to {high}; {name}); guessing without the features gives {blind} dB. "
    "More dB is closer to the original."
)
NOTHING = (
    "{who} rebuilds pictures at {psnr} dB ({low} to {high}; {name}), no better than the {blind} dB of guessing without "
    "the features, as far as {images} pictures can tell (from {smallest} dB on)."
)
SHARE = (
    "Of {images} pictures {share} come back at {threshold} dB or more ({low} to {high} with {confidence} confidence); "
    "guessing without the features: {blind}."
)
NAMED = (
    "With {known} and {whose} features, someone who tries {candidates} public nets and layers names the "
    "right one, and {right} of the {live} channels that can be told apart: keeping the front end secret is no "
    "protection."
)
NOT_NAMED = (
    "With {known} and {whose} features, someone who tries {candidates} public nets and layers names "
    "{right} of the {live} channels that can be told apart."
)
TOLD = (
    "Whether {attribute}: right {value} of the time with the features ({low} to {high}), {blind} from the label alone."
)
FOUND = (
    "Whoever has a record and the front end computes its features and finds them among the released ones: nothing "
    "hides that a record was used."
)
SCOPE = (
    "Pictures and attributes were measured on holdout records sent through the same front end and noise, not on those "
    "whose features left. A better attacker may find more."
)


def write_on_features(found: Findings | None) -> tuple[str, ...]:
    """Every sentence, starting with the strongest attacker of each kind; none if no features were attacked."""
    if found is None:
        return ()
    best = [_best(found, view) for view in ("front", "features")]
    lines = [_rebuilt(one, found.tries) for one in best if one is not None]
    lines += [_share(found.best)] if found.best else []
    lines += [_named(found.identification)] if found.identification else []
    lines += [_told(one) for one in found.attributes]
    lines += [FOUND] if found.found_by_lookup else []
    return (*lines, SCOPE) if lines else ()


CANARIES = (
    "{canaries} made-up sentences were added {often} to the records of one more training by the same method; what "
    "leaves never saw them. Among {fillings} fillings of {secret} tokens a sentence's own has an exposure of {value} "
    "bits on average ({low} to {high}; {chance} if it had not been there, at most {most}): {verdict}. {first} of them "
    "came first. Told the beginning and asked for the likeliest tokens, the model says {extracted} of the fillings "
    "whole, and {tokens} of their tokens; of as many sentences that it never saw, {others_extracted} and "
    "{others_tokens}."
)
EXPOSED = "the model prefers what it was trained on"
NOT_EXPOSED = "no more than chance, as far as this many can tell"


def write_on_canaries(found: ExposureResult | None) -> tuple[str, ...]:
    """What was found about canary sentences; nothing if none were tried."""
    if found is None:
        return ()
    numbers = {key: f"{getattr(found, key):.2f}" for key in ("value", "low", "high", "chance", "most")}
    often = "once each" if found.copies == 1 else f"{found.copies:,} times each"
    counts = {key: f"{getattr(found, key):,}" for key in ("canaries", "fillings", "secret", "first")}
    counts |= {key: f"{getattr(found, key):,}" for key in ("extracted", "others_extracted")}
    numbers |= {key: f"{getattr(found, key):.1%}" for key in ("tokens", "others_tokens")}
    verdict = EXPOSED if found.beats_chance else NOT_EXPOSED
    return (CANARIES.format(often=often, verdict=verdict, **numbers, **counts),)


WORST_CASE = (
    "The worst case, in {runs} runs of this training with a crafted record and as many without it, at a proven ε of "
    "{epsilon}. {lines} None of this bounds what the release itself reveals: these are trainings of their own, on test "
    "records."
)
OF_ATTACKER = "Someone who {attacker}: {shown}."
ABOVE = "ε is above {bound}{of_noise}"
NOTHING_SHOWN = "so few runs show nothing"
OF_NOISE = ", and above {bound} if the noise is of the planned kind, of whatever size"
REFUTES = " That is more than what is proven: something is wrong."


def write_on_worst_case(found: tuple[WorstCaseResult, ...]) -> tuple[str, ...]:
    """How tight the promise is: each attacker's bound beside the proven ε; nothing if none was tried."""
    if not found:
        return ()
    lines = []
    for one in found:
        known = one.epsilon_lower_bound_of_noise
        more = "" if known is None else OF_NOISE.format(bound=f"{known:.2f}")
        above = ABOVE.format(bound=f"{one.epsilon_lower_bound:.2f}", of_noise=more)
        shown = above if one.epsilon_lower_bound or known else NOTHING_SHOWN
        line = OF_ATTACKER.format(attacker=one.attacker, shown=shown)
        lines.append(line + (REFUTES if one.epsilon_lower_bound > one.epsilon else ""))
    runs = " or ".join(f"{count:,}" for count in sorted({one.runs for one in found}))
    return (WORST_CASE.format(runs=runs, epsilon=f"{found[0].epsilon:.2f}", lines=" ".join(lines)),)


OF_COLUMN = (
    "What stands in '{attribute}': whoever has the rest of a row, its label and the model is right {value} of the time "
    "about {records} whose row was in the data ({low} to {high}), and {others} about others; without the model, by "
    "imputation from {known} other rows, {blind}. {verdict}"
)
TELLS_MORE = "The model tells more than other rows do ({gain_low} to {gain_high} more)."
TELLS_NOTHING = "The model tells no more than other rows do, as far as this many can tell ({gain_low} to {gain_high})."
OF_MEMBERS = " It tells more about those in the data than about others ({apart_low} to {apart_high} more)."
OF_SHARE = (
    "How often '{attribute}' has its most frequent value: someone who is told that it is {share} or {other} of the "
    "training records is right for {value} of {models} models like this one ({low} to {high}; guessing is right half "
    "of the time). No guarantee about single people limits what is learnt about all of them."
)


def write_on_columns(audit: Audit) -> tuple[str, ...]:
    """What was found about columns of a table; nothing if none was asked for."""
    lines = []
    for one in audit.attributes:
        names = ("value", "low", "high", "others", "blind", "gain_low", "gain_high", "apart_low", "apart_high")
        figures = {name: f"{getattr(one, name):.1%}" for name in names}
        verdict = (TELLS_MORE if one.gain_low > 0 else TELLS_NOTHING) + (OF_MEMBERS if one.apart_low > 0 else "")
        counts = {"records": f"{one.records:,}", "known": f"{one.known:,}", "attribute": one.attribute}
        lines.append(OF_COLUMN.format(verdict=verdict.format(**figures), **figures, **counts))
    for share in audit.properties:
        figures = {name: f"{getattr(share, name):.0%}" for name in ("share", "other", "value", "low", "high")}
        lines.append(OF_SHARE.format(attribute=share.attribute, models=f"{share.models:,}", **figures))
    return tuple(lines)


def _best(found: Findings, view: str) -> ReconstructionResult | None:
    return max((one for one in found.reconstructions if one.view == view), key=lambda one: one.psnr, default=None)


def _rebuilt(one: ReconstructionResult, tries: int) -> str:
    return (REBUILT if one.beats_blind(tries) else NOTHING).format(
        who=WHO[one.view].format(known=f"{one.known:,}"),
        name=one.name,
        psnr=f"{one.psnr:.1f}",
        low=f"{one.low:.1f}",
        high=f"{one.high:.1f}",
        blind=f"{one.blind_psnr:.1f}",
        images=f"{one.images:,}",
        smallest=f"{one.smallest_effect:.1f}",
    )


def _share(one: ReconstructionResult) -> str:
    return SHARE.format(
        images=f"{one.images:,}",
        share=f"{one.share:.1%}",
        threshold=f"{one.threshold:g}",
        low=f"{one.share_low:.1%}",
        high=f"{one.share_high:.1%}",
        confidence=f"{one.confidence:.0%}",
        blind=f"{one.blind_share:.1%}",
    )


def _named(one: IdentificationResult) -> str:
    """The sentence for the fewest known records that identify the net and all its channels, or else for the most."""
    whole = [i for i, ok in enumerate(one.net_right) if ok and one.live[i] and one.right[i] == one.live[i]]
    place = whole[0] if whole else len(one.known) - 1
    return (NAMED if one.net_right[place] and one.right[place] else NOT_NAMED).format(
        known="1 known record" if one.known[place] == 1 else f"{one.known[place]} known records",
        whose="its" if one.known[place] == 1 else "their",
        candidates=one.candidates,
        right=one.right[place],
        live=one.live[place],
    )


def _told(one: AttributeResult) -> str:
    figures = {key: f"{getattr(one, key):.1%}" for key in ("value", "low", "high", "blind")}
    return TOLD.format(attribute=one.attribute, **figures)

"""The rules of a policy: one for each key that is a limit, found in `RULES` under the key's own name.

In: what is known about a release (`Evidence`), and a `Policy`. Out: a `Finding` for every rule that is violated, or
that could not be checked because the dossier is not at hand. A rule that could not be checked is never reported as
kept, and evidence that a rule asks for and that is missing from the card or from the signatures violates it.

The card is what the bundle says of itself: rules mean something only for a bundle that verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airlock.accounting import PrivacyFilter
from airlock.auditing.evaluation import Figures
from airlock.auditing.paid_auc import PaidAttack
from airlock.auditing.perplexity import LanguageUse, compare_with_guessing
from airlock.auditing.regression_errors import ErrorUse, compare_with_constant
from airlock.auditing.required_attacks import missing
from airlock.auditing.result import AttackResult, Audit
from airlock.auditing.usefulness import REJECTED, Usefulness, compare_with_blind
from airlock.bundle.card import Card
from airlock.bundle.dossier import Dossier
from airlock.bundle.policy.tables import Policy, RequiredAttacks
from airlock.bundle.rendering.formatting import best_guess, epsilon_up, percent_up, short
from airlock.bundle.rendering.page import ABOUT
from airlock.bundle.rendering.strength import LARGEST_EPSILON, Level, step, strength
from airlock.bundle.rendering.text import UNITS
from airlock.bundle.signing.signatures import Endorsement, Signatures

UNSEEN = "What attacks found is in the holder's dossier, which is not in this vault: it was not seen."
BY_MEMBERSHIP = "Membership inference: "  # how the reason begins why no such attack could be made
NO_UNIT = "Nothing is promised for any one record."


@dataclass(frozen=True)
class Evidence:
    """What is known about a release.

    Args:
        card: Its card, from a bundle that was verified.
        dossier: Its dossier; None if it is not at hand.
        signatures: Who signed and approved it; None if nobody looked, which no rule about keys accepts.
        approval_is_current: Whether the approval was made on this dossier; None if that is not known.
    """

    card: Card
    dossier: Dossier | None = None
    signatures: Signatures | None = None
    approval_is_current: bool | None = None


@dataclass(frozen=True)
class Finding:
    """One rule that is not known to be kept.

    Args:
        found: What was found.
        allowed: What the policy allows.
        why: In one sentence.
        rule: The dotted key of the policy.
        checked: Whether the rule could be checked: then it is violated.
    """

    found: str
    allowed: str
    why: str
    rule: str = ""
    checked: bool = True

    @property
    def sentence(self) -> str:
        """Why, with the rule, what was found and what is allowed."""
        return f"{self.why} [{self.rule}: found {self.found}, allowed {self.allowed}]"


Found = Iterator[Finding]
Rule = Callable[[Evidence, Any], Found]
RULES: dict[str, Rule] = {}


def _rule(key: str) -> Callable[[Rule], Rule]:
    """Register the rule of a key; it gets the evidence and the key's value, and is not asked where that is None."""

    def add(rule: Rule) -> Rule:
        RULES[key] = rule
        return rule

    return add


def judge(evidence: Evidence, policy: Policy, rules: Mapping[str, Rule] | None = None) -> tuple[Finding, ...]:
    """Every rule that is violated or could not be checked, in the order of the policy.

    Args:
        evidence: What is known about the release.
        policy: The limits.
        rules: Only these; all by default.
    """
    findings: list[Finding] = []
    for key, rule in (RULES if rules is None else rules).items():
        section, _, name = key.partition(".")
        limit = getattr(getattr(policy, section), name)
        if limit is not None:
            findings += [replace(one, rule=key) for one in rule(evidence, limit)]
    return tuple(findings)


def stated(card: Card) -> float | None:
    """The ε that the card states at its δ: proven, or claimed by a paper; None if it states none."""
    promise = card.guarantee
    if promise.status == "claimed" and promise.claim:
        return promise.claim.epsilon if promise.claim.delta <= promise.delta else None
    return promise.epsilon


def _listed(values: Sequence[object]) -> str:
    return " or ".join(map(str, values)) or "none"


# ε and the other privacy parameters.


@_rule("privacy_parameters.status")
def _status(given: Evidence, accepted: Sequence[str]) -> Found:
    card, status = given.card, given.card.guarantee.status
    if status not in accepted:
        lacking = "not proven: nothing is promised" if status != "proven" else "which is not accepted"
        why = f"The privacy of {card.channel}/{card.method} is {status}, {lacking}."
        yield Finding(status, _listed(accepted), why)


def _promises(card: Card) -> bool:
    """Whether ε and unit are a promise at all; where nothing is promised, the rule about the status decides alone."""
    return card.guarantee.status in ("proven", "claimed")


@_rule("privacy_parameters.epsilon")
def _epsilon(given: Evidence, most: float) -> Found:
    found = stated(given.card)
    if not _promises(given.card):
        return
    if found is None:
        yield Finding("no bound", f"at most {most:g}", NO_UNIT)
    elif found > most:
        weak = ": by itself that is weak or no protection." if found > LARGEST_EPSILON else "."
        yield Finding(epsilon_up(found), f"at most {most:g}", f"ε is {epsilon_up(found)}, above {most:g}{weak}")


@_rule("privacy_parameters.strength")
def _strength(given: Evidence, weakest: Level) -> Found:
    promise, allowed = given.card.guarantee, f"{weakest.replace('-', ' ')} or stronger"
    if not _promises(given.card):
        return
    epsilon = stated(given.card)
    if epsilon is None:
        yield Finding("no bound", allowed, NO_UNIT)
        return
    found = strength(epsilon, promise.delta)
    if step(found.level) > step(weakest):
        guess = percent_up(best_guess(epsilon, promise.delta))
        why = f"The protection is {found.word}: a guess about one {promise.unit} may be right {guess} of the time."
        yield Finding(found.word, allowed, why)


@_rule("privacy_parameters.delta")
def _delta(given: Evidence, most: float) -> Found:
    found = given.card.guarantee.delta
    if found > most:
        yield Finding(short(found), f"at most {short(most)}", f"δ is {short(found)}, above {short(most)}.")


@_rule("privacy_parameters.delta_times_records")
def _relative_delta(given: Evidence, limit: float) -> Found:
    delta, data = given.card.guarantee.delta, given.card.data
    if delta * data.units >= limit:
        counted = UNITS["record" if data.people is None else "person"]["counted"]
        whole = ": publishing one whole would meet it." if delta * data.units >= 1 else "."
        why = f"δ is {short(delta)}, not below {limit:g} / {data.units:,} {counted}{whole}"
        yield Finding(short(delta * data.units), f"below {limit:g}", why)


@_rule("privacy_parameters.total_epsilon")
def _total(given: Evidence, most: float) -> Found:
    found, others = given.card.total.epsilon, len(given.card.total.releases)
    if found is None or found > most:
        says = "no bound" if found is None else epsilon_up(found)
        why = f"Together with other declared releases from the same data ({others}), the total ε is {says}."
        yield Finding(says, f"at most {most:g}", why)


@_rule("privacy_parameters.registered")
def _registered(given: Evidence, required: bool) -> Found:
    if required and given.card.lifetime is None:
        why = "The card does not say that the data set's register was charged for this release."
        yield Finding("no register", "a release that its register was charged for", why)


@_rule("privacy_parameters.register_share")
def _register_share(given: Evidence, most: float) -> Found:
    used = given.card.lifetime
    share = None if used is None else used.spent / PrivacyFilter(used.epsilon, used.delta, used.order).units
    if share is None or share > most:
        says = "no register" if share is None else f"{share:.1%}"
        yield Finding(says, f"at most {most:.1%}", "Too much of the data set's budget is spent, or none is stated.")


# The unit of privacy.


@_rule("unit_of_privacy.units")
def _units(given: Evidence, accepted: Sequence[str]) -> Found:
    unit = given.card.guarantee.unit
    if _promises(given.card) and unit not in accepted:
        why = NO_UNIT if unit in ("model", "none") else f"The promise is for one {unit}."
        yield Finding(unit, _listed(accepted), why)


@_rule("unit_of_privacy.relations")
def _relations(given: Evidence, accepted: Sequence[str]) -> Found:
    relation = given.card.guarantee.relation
    if relation not in accepted:
        yield Finding(relation, _listed(accepted), f"The promise is about data that differ by '{relation}'.")


# Algorithms and correctness.


@_rule("algorithms_and_correctness.channels")
def _channels(given: Evidence, accepted: Sequence[str]) -> Found:
    if given.card.channel not in accepted:
        yield Finding(given.card.channel, _listed(accepted), f"What leaves are {given.card.channel}.")


@_rule("algorithms_and_correctness.methods")
def _methods(given: Evidence, accepted: Sequence[str]) -> Found:
    name = f"{given.card.channel}/{given.card.method}"
    if name not in accepted:
        yield Finding(name, _listed(accepted), f"It was made by {name}.")


@_rule("algorithms_and_correctness.dossier")
def _dossier(given: Evidence, required: bool) -> Found:
    if required and given.dossier is None:
        yield Finding("none", "a dossier at hand", UNSEEN)


def _of_audit(rule: Callable[[Evidence, Audit, Any], Found]) -> Rule:
    """A rule about what attacks found, which cannot be checked without the dossier."""

    def check(given: Evidence, limit: Any) -> Found:
        if given.dossier is None:
            allowed = (
                _listed(getattr(limit, given.card.artefact)) if isinstance(limit, RequiredAttacks) else f"{limit:g}"
            )
            yield Finding("no dossier", allowed, UNSEEN, checked=False)
        else:
            yield from rule(given, given.dossier.audit, limit)

    return check


@_rule("algorithms_and_correctness.measured_epsilon")
@_of_audit
def _measured(given: Evidence, audit: Audit, most: float) -> Found:
    for attack in audit.attacks:
        if attack.epsilon_lower_bound > most:
            found = f"{attack.epsilon_lower_bound:.2f}"
            why = f"The attack '{attack.name}' shows that ε is at least {found}."
            yield Finding(found, f"at most {most:g}", why)


@_rule("algorithms_and_correctness.auc")
def _auc(given: Evidence, most: float) -> Found:
    inside = given.dossier.audit.attacks if given.dossier else ()
    attacks: tuple[AttackResult | PaidAttack, ...] = (*given.card.audit.attacks, *inside)
    for attack in attacks:
        found = max(attack.high, 1 - attack.low)
        if attack.score == "AUC" and found > most:
            why = (
                f"The AUC of the attack '{attack.name}' (how often it tells a used record from another) lies between "
                f"{attack.low:.3f} and {attack.high:.3f}."
            )
            yield Finding(f"up to {found:.3f}", f"at most {most:g}", why)
    if given.dossier is None:
        yield Finding("no dossier", f"at most {most:g}", UNSEEN, checked=False)


@_rule("algorithms_and_correctness.advantage")
@_of_audit
def _advantage(given: Evidence, audit: Audit, most: float) -> Found:
    for attack in audit.attacks:
        if attack.advantage is None:
            yield Finding("none", f"at most {most:g}", f"The attack '{attack.name}' has no advantage measured.")
            continue
        low, high = attack.advantage.low, attack.advantage.high
        found = max(high, -low)
        if found > most:
            why = f"The advantage of the attack '{attack.name}' lies between {low:.3f} and {high:.3f}."
            yield Finding(f"up to {found:.3f}", f"at most {most:g}", why)


@_rule("algorithms_and_correctness.reconstructed")
@_of_audit
def _reconstructed(given: Evidence, audit: Audit, most: float) -> Found:
    for one in audit.features.reconstructions if audit.features else ():
        if one.share_high > most:
            why = f"The attack '{one.name}' rebuilds {one.share_low:.1%} to {one.share_high:.1%} of the pictures."
            yield Finding(f"up to {one.share_high:.1%}", f"at most {most:.1%}", why)


@_rule("algorithms_and_correctness.non_members")
@_of_audit
def _non_members(given: Evidence, audit: Audit, fewest: int) -> Found:
    for attack in audit.attacks:
        if attack.non_members < fewest:
            why = f"The attack '{attack.name}' was measured with {attack.non_members:,} non-members."
            yield Finding(f"{attack.non_members:,}", f"at least {fewest:,}", why)


def _what_to_do(audit: Audit) -> str:
    """Run the attacks; or, where there are too few records for them, what the audit said about that."""
    told = next((line for line in audit.not_tested if line.startswith(BY_MEMBERSHIP)), None)
    return "`airlock audit` does it." if audit.made or told is None else f"It cannot be done: {told}"


@_rule("algorithms_and_correctness.required_attacks")
@_of_audit
def _required(given: Evidence, audit: Audit, by_kind: RequiredAttacks) -> Found:
    kind = given.card.artefact
    for words in missing(kind, audit.made, getattr(by_kind, kind)):
        why = f"What leaves was not attacked by {words}. {_what_to_do(audit)}"
        yield Finding("none", words, why)


# Utility and bias.

NO_USE = (
    "What is of no use spends the budget for nothing. Try another method or a larger ε; where the noise on the counts "
    "may hide a use, a larger split.test makes them clearer."
)


def useful_figures(given: Evidence) -> Figures | None:
    """The figures on the card, or those of the dossier where the card has none."""
    if given.card.utility is not None:
        return given.card.utility.figures
    return given.dossier.utility.figures if given.dossier and given.dossier.utility else None


NUMBER = "It predicts a number: nothing is right or wrong."
TOKENS = "It predicts the next token of texts that have no classes."


def error_use(given: Evidence, least: float) -> ErrorUse | None:
    """A regression beside the best constant guess, as `usefulness`; None where nothing tells, or there are classes."""
    target, inside = given.card.data.target, given.dossier.errors if given.dossier else None
    stated = given.card.errors.figures if given.card.errors is not None else inside.figures if inside else None
    if target is None or stated is None:
        return None
    found = compare_with_constant(stated, target, least)
    if found.state in ("unclear", "unknown") and inside is not None:
        exact = compare_with_constant(inside.figures, target, least)
        if exact.rejected:
            return replace(exact, sentence=f"By the exact errors, which stay inside: {exact.sentence}")
    return found


def language_use(given: Evidence, least: float) -> LanguageUse | None:
    """A language model beside guessing every token, as `usefulness`; None where nothing tells."""
    inside = given.dossier.language if given.dossier else None
    stated = given.card.language.figures if given.card.language is not None else inside
    if stated is None:
        return None
    found = compare_with_guessing(stated, least)
    if found.state in ("unclear", "unknown") and inside is not None:
        exact = compare_with_guessing(inside, least)
        if exact.rejected:
            return replace(exact, sentence=f"By the exact losses, which stay inside: {exact.sentence}")
    return found


def no_classes(given: Evidence) -> str | None:
    """Why no share of the test records is right; None where there are classes."""
    if given.card.data.language:
        return TOKENS
    return None if given.card.data.target is None else NUMBER


def usefulness(given: Evidence, least: float) -> Usefulness | ErrorUse | LanguageUse | None:
    """The release beside a blind guess; None where nothing tells.

    Where the noise on the card leaves it open, the exact counts of the dossier may close the gate. Like what attacks
    found they are for the reviewer inside, and nothing pays for them.
    """
    if given.card.data.target is not None:
        return error_use(given, least)
    if given.card.data.language:
        return language_use(given, least)
    figures = useful_figures(given)
    if figures is None:
        return None
    found = compare_with_blind(figures, least)
    if found.state in ("unclear", "unknown") and given.dossier is not None and given.dossier.utility is not None:
        exact = compare_with_blind(given.dossier.utility.figures, least)
        if exact.state in REJECTED:
            return replace(exact, sentence=f"By the exact counts, which stay inside: {exact.sentence}")
    return found


@_rule("utility.gain")
def _gain(given: Evidence, least: float) -> Found:
    found, asked = usefulness(given, least), f"at least {least:.1%} of the way to no error"
    if found is None:
        why = "How useful it is stands in the holder's dossier, which was not seen."
        yield Finding("no dossier", asked, why, checked=False)
    elif found.state in REJECTED:
        yield Finding(f"{found.gain:.1%}", asked, f"{found.sentence} {NO_USE}")


@_rule("utility.accuracy")
def _accuracy(given: Evidence, fewest: float) -> Found:
    figures, why = useful_figures(given), no_classes(given)
    if why is not None:
        yield Finding("no accuracy", f"at least {fewest:.1%}", why, checked=False)
    elif figures is None:
        why = "How useful it is stands in the holder's dossier, which was not seen."
        yield Finding("no dossier", f"at least {fewest:.1%}", why, checked=False)
    elif figures.accuracy.low < fewest:
        why = f"The accuracy lies between {figures.accuracy.low:.1%} and {figures.accuracy.high:.1%}."
        yield Finding(f"down to {figures.accuracy.low:.1%}", f"at least {fewest:.1%}", why)


@_rule("bias.recall")
def _recall(given: Evidence, fewest: float) -> Found:
    figures, why = useful_figures(given), no_classes(given)
    if why is not None:
        yield Finding("no classes", f"at least {fewest:.1%}", why, checked=False)
        return
    if figures is None:
        why = "How useful it is for each class stands in the holder's dossier, which was not seen."
        yield Finding("no dossier", f"at least {fewest:.1%}", why, checked=False)
        return
    for name, one in zip(given.card.data.classes, figures.recalls, strict=True):
        if one.low < fewest:
            why = f"The recall of the class '{name}' lies between {one.low:.1%} and {one.high:.1%}."
            yield Finding(f"down to {one.low:.1%}", f"at least {fewest:.1%}", why)


# Trust models and side channels.


@_rule("trust_models.unacceptable_assumptions")
def _assumptions(given: Evidence, texts: Sequence[str]) -> Found:
    for line in given.card.guarantee.assumptions:
        for text in texts:
            if text.casefold() in line.casefold():
                yield Finding(f"'{text}'", "no such assumption", f"The guarantee assumes: {line}")


@_rule("side_channels.system_noise")
def _system_noise(given: Evidence, required: bool) -> Found:
    if required and not given.card.secure_noise:
        why = "The noise was made from a fixed seed and can be taken away by anyone who knows it: for tests only."
        yield Finding("a fixed seed", "a key from the operating system", why)


@_rule("side_channels.noise_made_on")
def _noise_made_on(given: Evidence, accepted: Sequence[str]) -> Found:
    for place in given.card.noise_made_on:
        if place not in accepted:
            yield Finding(place, _listed(accepted), f"Noise was computed on the {place.upper()}.")


# Access control.


def _signed_by(found: Endorsement | None) -> str:
    if found is None:
        return "nothing that was looked at"
    return f"{found.by} ({found.fingerprint})" if found.state == "known" else "no known key"


@_rule("access_control.signed")
def _signed(given: Evidence, required: bool) -> Found:
    found = given.signatures.release if given.signatures else None
    if required and (found is None or found.state != "known"):
        why = found.says if found else "Nobody looked at the signature."
        yield Finding(_signed_by(found), "any known key", why)


@_rule("access_control.signers")
def _signers(given: Evidence, accepted: Sequence[str]) -> Found:
    found = given.signatures.release if given.signatures else None
    if accepted and not _by_one_of(found, accepted):
        why = "It is not signed with a key of the policy. `airlock keys trust` makes a key known."
        yield Finding(_signed_by(found), _listed(accepted), why)


def _by_one_of(found: Endorsement | None, accepted: Sequence[str]) -> bool:
    return found is not None and found.state == "known" and found.fingerprint in accepted


def _approval_of(given: Evidence) -> Endorsement | None:
    return given.signatures.approval if given.signatures else None


@_rule("access_control.approval")
def _approval(given: Evidence, required: str) -> Found:
    found = _approval_of(given)
    decided = found.approval.decision if found and found.state == "known" and found.approval else "none"
    good = {"none": ("none", "conditions", "approve", "reject"), "conditions": ("conditions", "approve")}
    if decided not in good.get(required, ("approve",)):
        why = found.says if found else "Nobody looked at the approval."
        allowed = "approve" if required == "approve" else "approve or conditions"
        yield Finding(f"{decided} by {_signed_by(found)}", f"{allowed} by a known key", why)


def _approves(found: Endorsement | None) -> bool:
    """Whether there is a known reviewer's decision in favour."""
    decided = found.approval if found and found.state == "known" else None
    return decided is not None and decided.decision in ("approve", "conditions")


@_rule("access_control.approvers")
def _approvers(given: Evidence, accepted: Sequence[str]) -> Found:
    found = _approval_of(given)
    if accepted and not (_approves(found) and _by_one_of(found, accepted)):
        why = "It is not approved with a key of the policy. `airlock keys trust` makes a key known."
        yield Finding(_signed_by(found), _listed(accepted), why)


@_rule("access_control.newest_dossier")
def _newest_dossier(given: Evidence, required: bool) -> Found:
    if required and not (_approves(_approval_of(given)) and given.approval_is_current is True):
        why = "There is no approval that is known to be about the newest dossier."
        yield Finding("none", "an approval of the newest dossier", why)


@_rule("access_control.second_key")
def _second_key(given: Evidence, required: bool) -> Found:
    found = given.signatures
    two = found is not None and found.release.state == "known" and _approves(found.approval)
    if required and not (two and found is not None and found.approval.fingerprint != found.release.fingerprint):
        why = "It is not signed with one known key and approved with another: nobody else has looked at it."
        yield Finding("one key or none", "two keys", why)


# Data collection exposure.


@_rule("data_collection_exposure.public_share")
def _public_share(given: Evidence, most: float) -> Found:
    share = given.card.data.public_share
    if share > most:
        why = f"{share:.1%} of the records were declared public, and nothing covers them."
        yield Finding(f"{share:.1%}", f"at most {most:.1%}", why)


@_rule("data_collection_exposure.records")
def _records(given: Evidence, fewest: int) -> Found:
    if given.card.data.records < fewest:
        why = f"About {given.card.data.records:,} records are behind it."
        yield Finding(f"{given.card.data.records:,}", f"at least {fewest:,}", why)


@_rule("data_collection_exposure.declared")
def _declared(given: Evidence, required: Sequence[str]) -> Found:
    for key in required:
        if key in given.card.about.missing:
            yield Finding("nothing", f"about.{key}", f"The card does not say: {ABOUT[key].lower()}.")

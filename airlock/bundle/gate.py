"""May it leave? Reasons to reject, for caution, and to release, as an output checker weighs them.

In: a card, the defects that verification found in its bundle, a policy and, if the vault is available, the dossier,
which alone holds what attacks found. Out: a `Weighing`. Each reason is one plain sentence with its figure. A reason to
reject closes the gate. No list decides for the reviewer: an open gate means that there is no reason to reject, not that
the release is safe, and reasons for caution may remain.

Every limit is the policy's (`policy.tables`). Under any policy, the gate is closed by a defect, by a card that nothing
vouches for, by a reviewer's rejection, and by an attack or a court that refutes the stated ε.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airlock.auditing.result import AttackResult, Audit, Findings
from airlock.auditing.usefulness import missed_classes
from airlock.bundle.card import Card
from airlock.bundle.contents import Defects, Skip, Test
from airlock.bundle.dossier import Dossier
from airlock.bundle.policy import RULES, Evidence, Finding, Policy, judge
from airlock.bundle.policy.rules import UNSEEN, stated, useful_figures, usefulness
from airlock.bundle.register import Counting
from airlock.bundle.rendering.formatting import best_guess, cost_up, epsilon_up, left_down, percent_up, size
from airlock.bundle.rendering.page import ABOUT
from airlock.bundle.rendering.strength import strength
from airlock.bundle.rendering.text import CLEAR_LABELS, UNITS, measured, scored
from airlock.bundle.signing.signatures import Signatures

UNVOUCHED = (
    "Nothing vouches for what this card promises: it was not planned again, no known key signed it, and this vault has "
    "no record of it."
)
OLDER = "It is of an earlier format, which nothing here can weigh. {note} Make the release again."
_NAMED = 5  # classes that a sentence names
REQUIRED = "algorithms_and_correctness.required_attacks"


@dataclass(frozen=True)
class Weighing:
    """Three lists of sentences.

    Args:
        reject: Reasons to reject.
        caution: Reasons for caution.
        release: Reasons to release.
        findings: The rules of the policy that are violated, whose sentences are among the first, and those that could
            not be checked.
    """

    reject: tuple[str, ...]
    caution: tuple[str, ...]
    release: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def open(self) -> bool:
        """Whether there is no reason to reject."""
        return not self.reject

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        lists = {name: list(getattr(self, name)) for name in ("reject", "caution", "release")}
        return {"open": self.open, **lists, "rules": [vars(one) for one in self.findings]}


def weigh(
    card: Card | None,
    defects: Sequence[str],
    dossier: Dossier | None = None,
    signatures: Signatures | None = None,
    approval_is_current: bool | None = None,
    unplanned: str | None = None,
    recorded: bool = False,
    policy: Policy | None = None,
    counting: Counting | None = None,
    older: str | None = None,
) -> Weighing:
    """Weigh a release.

    Args:
        card: The bundle's card; None if there is none that can be read.
        defects: The defects that `verify` found, one sentence each.
        dossier: The release's dossier, if the vault is available.
        signatures: Who signed and who approved it, as `verify` found out.
        approval_is_current: Whether the approval was made on this dossier; None if that is not known.
        unplanned: Why `verify` could not plan the release again, if it could not.
        recorded: Whether this vault has a record of the release, and the bundle agrees with it.
        policy: What the house lets out; the default policy if omitted.
        counting: What the register of the data says of the release, where one is known here.
        older: What `verify` notes of a bundle of an earlier format, whose card is not read: it has to be made again.
    """
    policy = policy or Policy()
    broken = tuple(f"The bundle does not verify: {defect}" for defect in defects)
    if card is None:
        unread = "There is no card that can be read." if older is None else OLDER.format(note=older)
        return Weighing((*broken, unread), (), ())
    signed = _endorsed(signatures, approval_is_current) if signatures else Weighing((), (), ())
    vouched = recorded or (signatures is not None and signatures.release.accepted)
    alone = (UNVOUCHED,) if unplanned is not None and not vouched else ()
    findings = judge(Evidence(card, dossier, signatures, approval_is_current), policy)
    violated = tuple(one.sentence for one in findings if one.checked)
    booked, unbooked = _booked(card, counting)
    return Weighing(
        (*broken, *alone, *signed.reject, *violated, *_refuted(card, dossier)),
        (
            *((f"Not planned again: {unplanned}",) if unplanned else ()),
            *signed.caution,
            *_unchecked(findings),
            *unbooked,
            *_careful(card, dossier, policy),
        ),
        (
            *(() if broken else ("The bundle verifies: its files, its card and its ε agree.",)),
            *signed.release,
            *booked,
            *_for(card, dossier),
            *_good_use(Evidence(card, dossier), policy),
        ),
        findings,
    )


NOT_HERE = "The card says that its data set's register counts it; none is known here, so that this was not checked."
TOO_MUCH = "If it came from these data, everything together may cost more than the register's ε: airlock register add."


def _booked(card: Card, found: Counting | None) -> tuple[Sequence[str], Sequence[str]]:
    """What a register says of the release, for it and for caution; a receiver knows of none, and that is no reason."""
    if found is None:
        return (), [NOT_HERE] if card.lifetime is not None else ()
    name = f"The register of '{found.data}', {found.place},"
    if found.unread:
        return (), [f"{name} could not be read ({found.unread}): whether it counts this release was not checked."]
    if found.units is None:
        said = ", although the card says so" if card.lifetime is not None else ""
        return (), [f"{name} does not count this release{said}. {TOO_MUCH}"]
    left = f"{left_down(found.left)} of {found.epsilon:g}"
    counts = f"{name} counts it: it cost {cost_up(found.cost)}, and {left} is left."
    if card.lifetime is not None and card.lifetime.cost != found.units:
        return (), [f"{counts} The card states another cost."]
    return [counts], ()


def _unchecked(findings: Sequence[Finding]) -> Iterator[str]:
    """Why rules could not be checked, with their names: one sentence for each reason."""
    unseen = [one for one in findings if not one.checked]
    for why in dict.fromkeys(one.why for one in unseen):
        yield f"{why} Not checked: {', '.join(one.rule for one in unseen if one.why == why)}."


def _endorsed(found: Signatures, is_current: bool | None) -> Weighing:
    """What the holder's and the reviewer's signatures say; a broken one is among the defects already."""
    signed, approval = found.release, found.approval
    conditional = approval.approval is not None and approval.approval.decision == "conditions"
    caution = [signed.says] if signed.state in ("none", "unknown") else []
    if approval.state == "unknown" or (approval.accepted and conditional):
        caution.append(approval.says)
    if approval.accepted and is_current is False:
        caution.append("The dossier was made anew after the reviewer's decision, which does not cover it.")
    if approval.accepted and approval.fingerprint == signed.fingerprint:
        caution.append("The key that signed the release also approved it: nobody else has looked at it.")
    release = [signed.says] if signed.accepted else []
    release += [approval.says] if approval.accepted and not found.rejected and not conditional else []
    reject = [approval.says] if found.rejected else []
    return Weighing(tuple(reject), tuple(one for one in caution if one not in reject), tuple(release))


def tests(card: Card | None, dossier: Callable[[Card], Dossier | None], policy: Policy) -> list[Test]:
    """The two checks of `airlock verify --gate`; `dossier` looks up a card's dossier in the vault."""

    def unattacked(card: Card, dossier: Dossier) -> Defects:
        found = judge(Evidence(card, dossier), policy, {REQUIRED: RULES[REQUIRED]})
        return [one.why for one in found]

    def weighed(test: Callable[[Card, Dossier], Defects]) -> Callable[[], Defects]:
        def check() -> Defects:
            if card is None:
                return _skip("There is no usable card.json to weigh.")
            found = dossier(card)
            return _skip(UNSEEN) if found is None else test(card, found)

        return check

    return [
        ("measured", "No attack and no trial refutes the stated ε.", weighed(_contradicted)),
        ("attacks", "Every attack that fits what leaves was made.", weighed(unattacked)),
    ]


def _skip(why: str) -> Defects:
    raise Skip(why)


def _contradicted(card: Card, dossier: Dossier) -> Defects:
    said, found = stated(card), measured(dossier.audit)
    if said is None:
        return _skip("The card states no ε that could be refuted.")
    defects = [f"The court refutes what was claimed: {one.sentence}" for one in dossier.court if one.refuted]
    if found > said:
        defects.append(f"An attack shows that ε is at least {found:.2f}, and the card states {epsilon_up(said)}.")
    return defects


def _refuted(card: Card, dossier: Dossier | None) -> Defects:
    """What refutes the stated ε, if one is stated and the dossier is there."""
    return [] if dossier is None or stated(card) is None else _contradicted(card, dossier)


def _careful(card: Card, dossier: Dossier | None, policy: Policy) -> Iterator[str]:
    promise, limits = card.guarantee, policy.privacy_parameters
    epsilon = promise.epsilon if promise.status == "proven" else None
    if epsilon is not None and limits.epsilon_caution < epsilon <= limits.epsilon:
        guess = percent_up(best_guess(epsilon, promise.delta))
        one = UNITS.get(promise.unit, UNITS["record"])["one"]
        word = strength(epsilon, promise.delta).word
        yield (
            f"ε is {epsilon_up(epsilon)}: the protection is {word}, a guess about {one} may be right up to {guess} of "
            "the time."
        )
    if card.features is not None and card.features.labels == "clear":
        yield CLEAR_LABELS
    if card.data.grouped:
        yield (
            "The guarantee is for one record, and people in these data have several: a person as a whole is protected "
            'less. Ask whether the release can be made for people (unit = "person").'
        )
    yield from _doubtful_use(Evidence(card, dossier), policy)
    if missing := card.about.missing:
        said = ", ".join(ABOUT[key].lower() for key in missing)
        yield f"Not declared on the card: {said}. [about] in the config says it."
    if dossier is not None:
        yield from _attacked(card, dossier, policy)
    yield from _history(card, policy.trust_models.assumptions_in_full)


def _doubtful_use(given: Evidence, policy: Policy) -> Iterator[str]:
    """What is not clearly better than a blind guess, and classes that are hardly ever named."""
    found, figures = usefulness(given, policy.utility.gain), useful_figures(given)
    if found is not None and found.state in ("finds", "unclear", "unknown"):
        yield found.sentence
    if found is None or figures is None:
        return
    if missed := missed_classes(figures, given.card.data.classes):
        more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
        names = ", ".join(f"'{name}'" for name in missed[:_NAMED])
        yield f"It hardly ever names records of {names}{more} correctly: see the recall of each class."


def _attacked(card: Card, dossier: Dossier, policy: Policy) -> Iterator[str]:
    """What attacks found that calls for caution, and what they could not have detected."""
    audit = dossier.audit
    yield from _found(audit, _counted(card))
    if audit.features:
        yield from _told_by_features(audit.features)
    yield from _power(audit.attacks, stated(card), policy.algorithms_and_correctness.non_members_caution)
    if audit.not_tested:
        yield f"Kinds of attack that were not tried, named in the dossier: {len(audit.not_tested)}."
    if dossier.remarks:
        yield f"Remarks about the records, in the dossier: {len(dossier.remarks)}."


def _found(audit: Audit, counted: str) -> Iterator[str]:
    """What attacks achieve, where chance is ruled out for all of their tries together."""
    of = f"; {audit.tries} tries were made, and this holds for all of them together" if audit.tries > 1 else ""
    for attack in audit.beating:
        yield f"The attack '{attack.name}' does better than chance: {scored(attack, counted).sentence}{of}."
    for attack, rate in audit.rare_finds:
        yield (
            f"The attack '{attack.name}' finds {rate.value:.2%} of the members (at least {rate.low:.2%}) while it "
            f"accuses {100 * rate.false_positive_rate:g}% of the others{of}."
        )


def _told_by_features(found: Findings) -> Iterator[str]:
    """What features reveal, where an interval rules out chance."""
    for one in found.reconstructions:
        if one.beats_blind(found.tries):
            yield (
                f"The attack '{one.name}' rebuilds pictures at {one.psnr:.1f} dB; {one.blind_psnr:.1f} dB take no "
                f"features. {one.share:.1%} of them reach {one.threshold:g} dB."
            )
    named = found.identification
    if named and named.net_right[-1] and named.low > named.chance:
        yield (
            f"{named.known[-1]} known records name the front end, and {named.right[-1]} of {named.live[-1]} channels: "
            "its secrecy is no protection."
        )
    for told in found.attributes:
        if told.beats_blind(found.tries):
            yield f"Features tell whether {told.attribute}: right {told.value:.1%}, {told.blind:.1%} without them."


def _power(attacks: Sequence[AttackResult], said: float | None, enough: int) -> Iterator[str]:
    """What the attacks could not have detected."""
    if not attacks:
        return
    fewest = min(attack.non_members for attack in attacks)
    if fewest < enough:
        yield f"{fewest:,} non-members took part: fewer than {enough:,} say nothing about rare finds."
    could = max(attack.could_refute for attack in attacks)
    if said is not None and could <= said:
        yield f"So few records could not have refuted ε = {epsilon_up(said)}: they show {could:.2f} at most."


def _history(card: Card, in_full: Sequence[str]) -> Iterator[str]:
    """What the reviewer has to take on trust: earlier runs, other releases, assumptions."""
    promise, total = card.guarantee, card.total
    if total.releases:
        bound = "there is no total ε" if total.epsilon is None else f"the total is {size(total.epsilon, total.delta)}"
        yield f"Together with other declared releases from the same data ({len(total.releases)}) {bound}."
    if card.tuning.search is not None:
        yield "A search was paid for: ask whether what was searched was chosen without looking at these records."
    elif card.tuning.runs == 1:
        yield "One run was declared: ask whether settings were chosen by looking at runs on the same records."
    quoted = [line for line in promise.assumptions if any(text.casefold() in line.casefold() for text in in_full)]
    if others := len(promise.assumptions) - len(quoted):
        yield f"Assumptions on the card that a person has to check: {others}."
    yield from (f"Check that this is true: {line}" for line in quoted)


def _good_use(given: Evidence, policy: Policy) -> Iterator[str]:
    found = usefulness(given, policy.utility.gain)
    if found is not None and found.state == "better":
        yield found.sentence


def _counted(card: Card) -> str:
    """What attacks score: people, where these are protected."""
    return UNITS["record" if card.data.people is None else "person"]["counted"]


def _for(card: Card, dossier: Dossier | None) -> Iterator[str]:
    promise, said = card.guarantee, stated(card)
    if card.strength is not None and promise.epsilon is not None:
        stands = size(promise.epsilon, promise.delta)
        guess = percent_up(best_guess(promise.epsilon, promise.delta))
        one = UNITS[promise.unit]["one"]
        good = card.strength.tone == "good"
        strong = f"; it is strong: a guess about {one} is right at most {guess} of the time" if good else ""
        yield f"Proven: {stands}{strong}."
    if card.secure_noise and card.noise_made_on:
        yield "The noise is secret: its key came from the operating system."
    attacks = dossier.audit.attacks if dossier else ()
    better = dossier.audit.beating if dossier else ()
    for attack in attacks:
        if attack not in better:
            found = scored(attack, _counted(card))
            yield (
                f"The attack '{attack.name}' does no better than chance: {found.sentence}; from {found.smallest} on it "
                "would have shown."
            )
    could = max((attack.could_refute for attack in attacks), default=0.0)
    if dossier and said is not None and measured(dossier.audit) <= said < could:
        yield f"The attacks could have refuted ε = {epsilon_up(said)} and did not."
    if card.tuning.runs > 1:
        yield f"{card.tuning.runs:,} runs were declared, and ε pays for all of them."
    if card.tuning.search is not None:
        yield f"ε pays for the choice among {len(card.tuning.search.candidates)} candidates, whatever the runs."

"""May it leave? Reasons to reject, for caution, and to release, as people who check outputs weigh them.

In: a card, and what verification found wrong with its bundle. Out: a `Weighing`. Each reason is one plain sentence with
its figure. A reason to reject closes the gate. No list decides for the reviewer: a gate that stands open says that
nothing here speaks against the release, not that it is safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airlock.audit.fitting import missing
from airlock.audit.metrics import FEWEST_NON_MEMBERS
from airlock.release.card import Card
from airlock.release.contents import Defects, Skip, Test
from airlock.release.feature_fields import OnFeatures
from airlock.release.fields import Attack
from airlock.release.figures import best_guess, epsilon_up, percent_up, short, size
from airlock.release.words import MODERATE, STRONG, measured

PUBLIC = "public"  # assumptions with this word are spelt out: what is called public may hold private records


@dataclass(frozen=True)
class Weighing:
    """Three lists of sentences."""

    reject: tuple[str, ...]
    caution: tuple[str, ...]
    release: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether there is no reason to reject."""
        return not self.reject

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"open": self.open, **{name: list(lines) for name, lines in vars(self).items()}}


def weigh(card: Card | None, defects: Sequence[str]) -> Weighing:
    """Weigh a release.

    Args:
        card: Of the bundle; None if it has none that can be read.
        defects: What `verify` found wrong, one sentence each.
    """
    broken = tuple(f"The bundle does not verify: {defect}" for defect in defects)
    if card is None:
        return Weighing((*broken, "There is no card that can be read."), (), ())
    return Weighing(
        (*broken, *_against(card)),
        tuple(_careful(card)),
        (*(() if broken else ("The bundle verifies: its files, its card and its ε agree.",)), *_for(card)),
    )


def tests(card: Card | None) -> list[Test]:
    """The two checks of `airlock verify --gate`."""

    def on_card(test: Any) -> Any:
        return lambda: test(card) if card is not None else _skip("There is no usable card.json to weigh.")

    return [
        ("measured", "No attack refutes the stated ε.", on_card(_contradicted)),
        ("attacks", "Every attack that fits what leaves was made.", on_card(_unattacked)),
    ]


def _skip(why: str) -> Defects:
    raise Skip(why)


def stated(card: Card) -> float | None:
    """The ε that the card states at its δ: proven, or claimed by a paper; None if it states none."""
    promise = card.guarantee
    if promise.status == "claimed" and promise.claim:
        return promise.claim.epsilon if promise.claim.delta <= promise.delta else None
    return promise.epsilon


def _contradicted(card: Card) -> Defects:
    said, found = stated(card), measured(card.audit)
    if said is None:
        return _skip("The card states no ε that could be refuted.")
    if found <= said:
        return []
    return [f"An attack shows that ε is at least {found:.2f}, and the card states {epsilon_up(said)}."]


def _unattacked(card: Card) -> Defects:
    lacking = missing(card.channel, card.audit.made, card.method)
    if lacking is None:
        return [f"It is not known which attacks fit the channel '{card.channel}', so none can be called enough."]
    return [f"What leaves was not attacked by {words}. `airlock audit` does it." for words in lacking]


def _against(card: Card) -> Iterator[str]:
    promise, records = card.guarantee, card.data.records
    if promise.status != "proven":
        yield f"The privacy of {card.channel}/{card.method} is {promise.status}, not proven: nothing is promised."
    elif promise.unit != "record" or promise.epsilon is None:
        yield "Nothing is promised for any one record."
    elif promise.epsilon > MODERATE:
        yield f"ε is {epsilon_up(promise.epsilon)}, above {MODERATE:g}: by itself that is weak or no protection."
    if not card.secure_noise:
        yield "The noise was made from a fixed seed and can be taken away by anyone who knows it: for tests only."
    if promise.delta * records >= 1:
        yield f"δ is {short(promise.delta)}, not below 1 / {records:,} records: publishing one whole would meet it."
    if stated(card) is not None:
        yield from _contradicted(card)
    yield from _unattacked(card)


def _careful(card: Card) -> Iterator[str]:
    promise = card.guarantee
    if promise.status == "proven" and promise.epsilon is not None and STRONG < promise.epsilon <= MODERATE:
        guess = percent_up(best_guess(promise.epsilon, promise.delta))
        yield f"ε is {epsilon_up(promise.epsilon)}: a guess about one record may be right up to {guess} of the time."
    for attack in card.audit.attacks:
        yield from _found(attack)
    if card.audit.features:
        yield from _told_by_features(card.audit.features)
    yield from _power(card)
    if card.audit.not_tested:
        yield f"Kinds of attack that were not tried, named on the card: {len(card.audit.not_tested)}."
    yield from _history(card)
    yield "Accuracy and attack figures were computed from the records without noise; ε does not cover them."


def _found(attack: Attack) -> Iterator[str]:
    """What an attack can do, where its interval says that it is not luck."""
    if attack.beats_chance:
        interval = f"{attack.score} {attack.value:.3f}, {attack.low:.3f} to {attack.high:.3f}"
        yield f"The attack '{attack.name}' does better than chance: {interval}."
    for rate in attack.rates:
        beyond = rate.false_positive_rate_high
        if rate.low is not None and beyond is not None and rate.low > beyond:
            yield (
                f"The attack '{attack.name}' finds {rate.value:.2%} of the members (at least {rate.low:.2%}) while it "
                f"accuses {rate.false_positive_rate:.1%} of the others."
            )


def _told_by_features(found: OnFeatures) -> Iterator[str]:
    """What features give away, where an interval says that it is not luck."""
    for one in found.reconstructions:
        if one.beats_blind:
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
        if told.beats_blind:
            yield f"Features tell whether {told.attribute}: right {told.value:.1%}, {told.blind:.1%} without them."


def _power(card: Card) -> Iterator[str]:
    """What the attacks could not have seen."""
    attacks, said = card.audit.attacks, stated(card)
    if not attacks:
        return
    fewest = min(attack.non_members for attack in attacks)
    if fewest < FEWEST_NON_MEMBERS:
        yield f"{fewest:,} non-members took part: fewer than {FEWEST_NON_MEMBERS:,} say nothing about rare finds."
    could = max(attack.could_refute for attack in attacks)
    if said is not None and could <= said:
        yield f"So few records could not have refuted ε = {epsilon_up(said)}: they show {could:.2f} at most."


def _history(card: Card) -> Iterator[str]:
    """What the card has to be believed about: earlier runs, other releases, assumptions."""
    promise, total = card.guarantee, card.total
    if total.releases:
        bound = "there is no total ε" if total.epsilon is None else f"the total is {size(total.epsilon, total.delta)}"
        yield f"Together with other declared releases from the same data ({len(total.releases)}) {bound}."
    if card.tuning.runs == 1:
        yield "One run was declared: ask whether settings were chosen by looking at runs on the same records."
    others = sum(PUBLIC not in line.lower() for line in promise.assumptions)
    if others:
        yield f"Assumptions on the card that a person has to check: {others}."
    yield from (f"Check that this is true: {line}" for line in promise.assumptions if PUBLIC in line.lower())


def _for(card: Card) -> Iterator[str]:
    promise, said = card.guarantee, stated(card)
    if card.verdict == "proven" and promise.epsilon is not None:
        guess = percent_up(best_guess(promise.epsilon, promise.delta))
        stands = size(promise.epsilon, promise.delta)
        yield f"Proven: {stands}; a guess about one record is right at most {guess} of the time."
    if card.secure_noise and card.noise_made_on:
        yield "The noise is secret: its key came from the operating system."
    for attack in card.audit.attacks:
        if attack.low <= attack.chance:
            yield (
                f"The attack '{attack.name}' does no better than chance: {attack.score} {attack.value:.3f}, "
                f"{attack.low:.3f} to {attack.high:.3f}; from {attack.smallest_effect:.3f} on it would have shown."
            )
    if said is not None and measured(card.audit) <= said < max((a.could_refute for a in card.audit.attacks), default=0):
        yield f"The attacks could have refuted ε = {epsilon_up(said)} and did not."
    if card.tuning.runs > 1:
        yield f"{card.tuning.runs:,} runs were declared, and ε pays for all of them."

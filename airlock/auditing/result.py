"""What attacks say and what they found: scores of single records, figures about an attack, and a whole audit.

Scores come before anything is made of them. Every attack on membership gives one value `Scores`, and `metrics.measure`
turns any of them into an `AttackResult`: an attack never chooses a threshold on the records that it is measured with.
Scores belong in the vault; only what `measure` makes of them may appear on a card.

Every figure of a result is one of two kinds. An *estimate* describes the records that were at hand, as other tools
print it. A *certified* figure holds for records of this kind with the stated confidence: whatever was chosen for it, a
threshold say, was chosen on other records than those that it counts. `docs/bundle.md` says which is which.

Findings are what attacks on features found. They are no membership scores, so they are values of their own next to
`AttackResult`. Every figure stands beside what someone who never saw the features would reach. They are estimates with
intervals for records like those that took part, and those are records that no promise covers (the holdout), sent
through the same pipeline: nothing here was computed from what left.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from airlock.auditing.bounds import Floats
from airlock.config import Count, Epsilon, Proportion, Signed

View = Literal["white-box", "black-box", "labels", "interface", "features", "front"]
Aim = Literal["membership", "inversion"]
Some = Annotated[int, Field(ge=1)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=4 << 20)]
_Counts = Annotated[tuple[Count, ...], Field(min_length=1, max_length=16)]
_T = TypeVar("_T")

# Before anything is made of them.

Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Scores:
    """One attack's scores of records that are known to be in or out; the higher, the more it takes one for a member.

    Args:
        name: Short name, as in "LiRA, online".
        question: What the attacker tries to find out, in one sentence for a reader who is no engineer.
        view: What the attacker has: "white-box", "black-box", "labels", or "interface" for a noisy one with a budget.
        members: Scores of records of the training set.
        others: Scores of records that were not in it.
        member_classes: The labels of the first.
        other_classes: The labels of the second.
        member_repeats: The same attack made again with other seeds: (seeds, members). None if it knows no chance.
        other_repeats: (seeds, others).
    """

    name: str
    question: str
    view: View
    members: Floats
    others: Floats
    member_classes: Ints
    other_classes: Ints
    member_repeats: Floats | None = None
    other_repeats: Floats | None = None


# What attacks on features found.


@dataclass(frozen=True)
class ReconstructionResult:
    """One attacker who turns features back into pictures. PSNR in dB; more is closer, SSIM 1 is the same picture.

    Args:
        name: Short name, as in "reconstruction net".
        question: What the attacker tries, in one sentence for a reader who is no engineer.
        view: What the attacker has: "features" and pairs, or the "front" end too.
        images: How many pictures were rebuilt; a public figure.
        known: How many pairs of record and features the attacker knew; a public figure.
        psnr: Mean over pictures.
        low: Lower end of its bootstrap interval.
        high: Upper end.
        middle: The median picture's.
        best_tenth: What the best tenth of the pictures reach at least.
        ssim: Mean over pictures.
        blind: The name of the best guess without features.
        blind_psnr: Its mean PSNR on the same pictures.
        blind_ssim: Its mean SSIM.
        gain: The mean of the difference, picture by picture.
        gain_low: Lower end of its bootstrap interval.
        gain_high: Upper end.
        smallest_effect: The smallest gain that so many pictures can tell from none.
        threshold: From this PSNR on a picture counts as rebuilt.
        share: How many are.
        share_low: Lower end of Clopper and Pearson's interval.
        share_high: Upper end.
        blind_share: How many the blind guess hits.
        confidence: Of every interval.
    """

    name: str
    question: str
    view: View
    images: Some
    known: Count
    psnr: float
    low: float
    high: float
    middle: float
    best_tenth: float
    ssim: float
    blind: str
    blind_psnr: float
    blind_ssim: float
    gain: float
    gain_low: float
    gain_high: float
    smallest_effect: float
    threshold: float
    share: Proportion
    share_low: Proportion
    share_high: Proportion
    blind_share: Proportion
    confidence: Proportion

    @property
    def aim(self) -> Aim:
        """What the attacker is after."""
        return "inversion"

    @property
    def beats_blind(self) -> bool:
        """Whether the features gave it anything."""
        return self.gain_low > 0


@dataclass(frozen=True)
class IdentificationResult:
    """Whoever holds a few records and their features names the front end from a pool of public nets.

    Args:
        candidates: How many nets and layers were in the pool.
        known: Numbers of known records that were tried, rising.
        net_right: Whether the net and layer named with so many were the right ones.
        right: Channels that were named rightly with so many.
        live: Channels that could be: those that are not constant on the known records.
        low: Lower end of Clopper and Pearson's interval of the share with the most known records.
        high: Upper end.
        chance: The share that blind guessing names rightly.
        confidence: Of the interval.
    """

    candidates: Count
    known: _Counts
    net_right: Annotated[tuple[bool, ...], Field(min_length=1, max_length=16)]
    right: _Counts
    live: _Counts
    low: Proportion
    high: Proportion
    chance: Proportion
    confidence: Proportion


@dataclass(frozen=True)
class AttributeResult:
    """One attacker who reads something off the features that is not the label.

    Args:
        attribute: What it is, as in "the picture is brighter than most".
        records: How many were guessed about; a public figure.
        known: How many the attacker learnt from.
        value: The share of right guesses.
        low: Lower end of Clopper and Pearson's interval.
        high: Upper end.
        blind: The share of right guesses from the label alone.
        smallest_effect: The smallest share that so many records can tell from the blind one.
        confidence: Of the interval.
    """

    attribute: str
    records: Some
    known: Count
    value: Proportion
    low: Proportion
    high: Proportion
    blind: Proportion
    smallest_effect: Proportion
    confidence: Proportion

    @property
    def beats_blind(self) -> bool:
        """Whether the features gave it anything."""
        return self.low > self.blind


@dataclass(frozen=True)
class ContactSheet:
    """Pictures beside what attackers made of their features, for the dossier.

    Args:
        png: The picture, in base64; one row for each entry of `rows`.
        rows: "original", and the attackers.
        whose: Whose records these are, in one sentence; never private, test or holdout records.
    """

    png: Base64
    rows: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]
    whose: str


@dataclass(frozen=True)
class Findings:
    """What attacks on features found; `found_by_lookup` is None where it was not tried."""

    reconstructions: tuple[ReconstructionResult, ...] = ()
    identification: IdentificationResult | None = None
    attributes: tuple[AttributeResult, ...] = ()
    found_by_lookup: bool | None = None

    @property
    def best(self) -> ReconstructionResult | None:
        """The attacker who came furthest."""
        return max(self.reconstructions, key=lambda one: one.psnr, default=None)


# What attacks on membership found, and the whole audit.

_DIGITS = 4
_DOWN = {"low", "gain_low", "share_low", "epsilon_lower_bound", "could_refute"}
_UP = {"high", "gain_high", "share_high", "false_positive_rate_high"}


@dataclass(frozen=True)
class RateAt:
    """How many members are found when so many non-members may be taken for one.

    Args:
        false_positive_rate: The share of non-members that may be taken for members.
        value: The share of members found, by the empirical ROC curve; an estimate. None if refused.
        low: Lower end of its Clopper–Pearson interval. Certified: the non-members alone chose the threshold.
        high: Upper end.
        false_positive_rate_high: The threshold's real false positive rate is at most this. Certified.
        refused: Why there is no figure; None if there is one.
    """

    false_positive_rate: Proportion
    value: Proportion | None
    low: Proportion | None
    high: Proportion | None
    false_positive_rate_high: Proportion | None
    refused: str | None


@dataclass(frozen=True)
class Advantage:
    """One threshold: the even-numbered records chose it, the odd-numbered ones are counted.

    Args:
        value: The rate of true positives less that of false positives; an estimate, without bias.
        low: Lower end of its interval, from Clopper–Pearson intervals of both rates. Certified.
        high: Upper end.
        balanced_accuracy: How often the threshold is right where half of the records are members: (1 + value) / 2.
        true_positive_rate: The first of the two rates.
        false_positive_rate: The second.
        largest: The largest advantage of any threshold on all records, as other tools print it; an estimate, too high.
    """

    value: Signed
    low: Signed
    high: Signed
    balanced_accuracy: Proportion
    true_positive_rate: Proportion
    false_positive_rate: Proportion
    largest: Signed


@dataclass(frozen=True)
class ClassScore:
    """The AUC among the records of one class; None where the class has too few of them. An estimate.

    The same public number of records of every class is used, so neither the figure nor its interval tells how many
    there are.
    """

    name: str
    value: Proportion | None
    low: Proportion | None
    high: Proportion | None


@dataclass(frozen=True)
class Stability:
    """Whether the attack finds the same records when it is made again with other seeds; estimates.

    Args:
        seeds: How often it was made.
        rank_correlation: Spearman's, of members' scores, mean over all pairs of seeds; None if a score is constant.
        stays_on_top: The share of the top 1% of members that is there for most seeds; None below 1,000 members.
    """

    seeds: Annotated[int, Field(ge=2)]
    rank_correlation: Signed | None
    stays_on_top: Proportion | None


@dataclass(frozen=True)
class AttackResult:
    """One attack on what leaves.

    Args:
        name: Short name, as in "loss threshold".
        question: What the attacker tries to find out, in one sentence for a reader who is no engineer.
        score: The name of the score, as in "AUC".
        value: The score; an estimate.
        low: Lower end of its confidence interval (DeLong's for an AUC, which is right for many records).
        high: Upper end.
        chance: What pure guessing scores.
        confidence: Of every interval and bound.
        members: How many records of the training set were used; a public figure.
        non_members: How many records of the holdout were used; a public figure.
        smallest_effect: The smallest score that this many records could have told from guessing.
        epsilon_lower_bound: The largest ε that the attack refutes, 0 if none. Certified together with the bounds of all
            other attacks that were measured with it, over the coins of the split (`one_run_audit`). Of an interface it
            is an estimate: every record has a client of its own, and no promise is about all of them together.
        view: What the attacker has.
        aim: What the attacker is after.
        could_refute: The largest ε that this many records could have refuted at all.
        advantage: What one threshold gains.
        rates: Members found at small false positive rates.
        curve: The ROC curve at a fixed grid of false positive rates: pairs of false and true positive rate. Estimates.
        per_class: The AUC in each class; empty if the classes are not known.
        stability: Over seeds; None if the attack was made once.
    """

    name: str
    question: str
    score: str
    value: float
    low: float
    high: float
    chance: float
    confidence: Proportion
    members: Count
    non_members: Count
    smallest_effect: float
    epsilon_lower_bound: Epsilon
    view: View
    aim: Aim
    could_refute: Epsilon
    advantage: Advantage | None
    rates: Annotated[tuple[RateAt, ...], Field(max_length=16)]
    curve: Annotated[tuple[tuple[Proportion, Proportion], ...], Field(max_length=64)]
    per_class: tuple[ClassScore, ...]
    stability: Stability | None

    @property
    def beats_chance(self) -> bool:
        """Whether its whole interval lies above chance."""
        return self.low > self.chance

    def rounded(self) -> AttackResult:
        """The same with fewer digits: more would say more about single records than about the attack.

        The ends of intervals are rounded outwards and certified bounds towards the safe side. Classes have few records
        and get two digits.
        """
        return dataclasses.replace(_rounded(self), per_class=tuple(_rounded(one, 2) for one in self.per_class))


@dataclass(frozen=True)
class Audit:
    """The attacks that were run, and in plain words those that were not.

    Args:
        attacks: On membership.
        not_tested: What was left out.
        features: What attacks on features found; None where no features leave.
        sheet: Pictures beside what attackers made of their features; not among the figures.
    """

    attacks: tuple[AttackResult, ...]
    not_tested: tuple[str, ...]
    features: Findings | None = None
    sheet: Annotated[ContactSheet | None, Field(exclude=True)] = None

    @property
    def made(self) -> tuple[AttackResult | ReconstructionResult, ...]:
        """All of them, whatever they are after."""
        return (*self.attacks, *(self.features.reconstructions if self.features else ()))

    def rounded(self) -> Audit:
        """The figures alone, rounded as those of `AttackResult`."""
        attacks = tuple(attack.rounded() for attack in self.attacks)
        return Audit(attacks, self.not_tested, _rounded(self.features))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, rounded; the contact sheet is not among them."""
        table = dataclasses.asdict(self.rounded())
        del table["sheet"]
        return table


def _rounded(value: _T, digits: int = _DIGITS, key: str = "") -> _T:
    """A value of this module with all its figures rounded, each by the name of its field."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _rounded(getattr(value, name), digits, name) for name in names})
    if isinstance(value, tuple):
        return tuple(_rounded(inner, digits) for inner in value)  # type: ignore[return-value]
    return _rounded_figure(value, digits, key) if isinstance(value, float) else value  # type: ignore[return-value]


def _rounded_figure(value: float, digits: int, key: str) -> float:
    scale = 10.0**digits
    if key in _DOWN:
        return math.floor(value * scale + 1e-6) / scale
    return math.ceil(value * scale - 1e-6) / scale if key in _UP else round(value, digits)

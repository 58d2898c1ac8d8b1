"""Results of attacks: scores of single records, figures about an attack, and a whole audit.

Scores are the raw output of attacks. Every membership attack returns `Scores`, and `metrics.measure` turns them into an
`AttackResult`: an attack never chooses a threshold on the records that it is measured with. Scores belong in the vault;
only the figures that `measure` derives from them may leave it.

Every figure of a result is one of two kinds. An *estimate* describes the records at hand, as other tools report it. A
*certified* figure holds for records of this kind with the stated confidence: anything that was chosen for it, such as a
threshold, was chosen on records other than those it counts. `docs/bundle.md` says which figure is which.

Findings are the results of attacks on features. They are not membership scores, so they have their own types alongside
`AttackResult`. Every figure comes with the baseline of someone who never saw the features. They are estimates with
intervals, measured on records that no guarantee covers (the holdout), sent through the same pipeline: nothing here was
computed from what left.

Several attacks are several tries: of twenty that find nothing, one is above chance at the usual 95%. Each interval
holds by itself. Whether an attack *does better than chance* is asked of all attacks and thresholds of an audit at once,
each with an equal share of the error (Bonferroni), so that an audit of a release that tells nothing names none of them,
with the stated confidence: `Audit.beating` and `Audit.rare_finds`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from airlock.auditing.bounds import Floats, proportion_interval
from airlock.config import Count, Epsilon, Proportion, Signed

View = Literal["white-box", "black-box", "labels", "interface", "features", "front"]
Aim = Literal["membership", "inversion"]
Some = Annotated[int, Field(ge=1)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=4 << 20)]
_Counts = Annotated[tuple[Count, ...], Field(min_length=1, max_length=16)]
_T = TypeVar("_T")

# Raw scores.

QUESTION = "Can someone who holds the model and a person's record tell whether it was in the training set?"
Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Scores:
    """One attack's scores of records of known membership; higher means more likely a member.

    Args:
        name: Short name, as in "LiRA, online".
        question: What the attacker tries to find out, in one sentence for a reader who is no engineer.
        view: What the attacker has: "white-box", "black-box", "labels", or "interface" for a noisy one with a budget.
        members: Scores of records of the training set.
        others: Scores of records that were not in it.
        member_classes: The labels of the first.
        other_classes: The labels of the second.
        member_repeats: The same attack repeated with other seeds: (seeds, members). None if it is deterministic.
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
    """One attacker who turns features back into pictures. PSNR in dB, higher is closer; SSIM 1 means identical.

    Args:
        name: Short name, as in "reconstruction net".
        question: What the attacker tries, in one sentence for a reader who is no engineer.
        view: What the attacker has: "features" and pairs, or the "front" end too.
        images: How many pictures were reconstructed; a public figure.
        known: How many pairs of record and features the attacker knew; a public figure.
        psnr: Mean over pictures.
        low: Lower end of its bootstrap interval.
        high: Upper end.
        middle: The median picture's.
        best_tenth: What the best tenth of the pictures reach: the 90th percentile.
        ssim: Mean over pictures.
        blind: The name of the best guess without features.
        blind_psnr: Its mean PSNR on the same pictures.
        blind_ssim: Its mean SSIM.
        gain: The mean of the difference, picture by picture.
        gain_low: Lower end of its bootstrap interval.
        gain_high: Upper end.
        smallest_effect: The smallest gain that this many pictures can distinguish from none.
        threshold: A picture with at least this PSNR counts as reconstructed.
        share: The share of pictures that count as reconstructed.
        share_low: Lower end of Clopper and Pearson's interval.
        share_high: Upper end.
        blind_share: The same share for the blind guess.
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

    def beats_blind(self, tries: int = 1) -> bool:
        """Whether the features gave it anything, as one of so many tries."""
        return self.gain - (self.gain - self.gain_low) * _wider(self.confidence, tries) > 0


@dataclass(frozen=True)
class IdentificationResult:
    """Identification of the front end in a pool of public nets by someone who knows a few records and their features.

    Args:
        candidates: How many nets and layers were in the pool.
        known: Numbers of known records that were tried, ascending.
        net_right: For each of these, whether the right net and layer were named.
        right: For each, the number of channels named correctly.
        live: For each, the number of channels that could be named: those not constant on the known records.
        low: Lower end of Clopper and Pearson's interval of the share with the most known records.
        high: Upper end.
        chance: The share that random guessing names correctly.
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
    """One attacker who infers something from the features that is not the label.

    Args:
        attribute: What it is, as in "the picture is brighter than most".
        records: How many were guessed about; a public figure.
        known: How many the attacker learnt from.
        value: The share of right guesses.
        low: Lower end of Clopper and Pearson's interval.
        high: Upper end.
        blind: The share of right guesses from the label alone.
        smallest_effect: The smallest share that this many records can distinguish from the blind one.
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

    def beats_blind(self, tries: int = 1) -> bool:
        """Whether the features gave it anything, as one of so many tries."""
        return self.value - (self.value - self.low) * _wider(self.confidence, tries) > self.blind


@dataclass(frozen=True)
class ContactSheet:
    """Pictures with the attackers' reconstructions from their features, for the dossier.

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
    """What attacks on features found; `found_by_lookup` is None if it was not tried."""

    reconstructions: tuple[ReconstructionResult, ...] = ()
    identification: IdentificationResult | None = None
    attributes: tuple[AttributeResult, ...] = ()
    found_by_lookup: bool | None = None

    @property
    def best(self) -> ReconstructionResult | None:
        """The attacker with the highest PSNR."""
        return max(self.reconstructions, key=lambda one: one.psnr, default=None)

    @property
    def tries(self) -> int:
        """How many comparisons with someone who never saw the features there are."""
        return max(1, len(self.reconstructions) + len(self.attributes))


def _wider(confidence: float, tries: int) -> float:
    """How much further a normal interval reaches if so many of them have to hold together."""
    from scipy.stats import norm

    tail = (1.0 - confidence) / 2.0
    return float(norm.ppf(1.0 - tail / tries) / norm.ppf(1.0 - tail))


# What attacks on membership found, and the whole audit.

_DIGITS = 4
_DOWN = {
    "low",
    "gain_low",
    "share_low",
    "apart_low",
    "epsilon_lower_bound",
    "epsilon_lower_bound_of_noise",
    "could_refute",
}
_UP = {"high", "gain_high", "share_high", "apart_high", "false_positive_rate_high"}


@dataclass(frozen=True)
class RateAt:
    """The true positive rate at a fixed false positive rate.

    Args:
        false_positive_rate: The share of non-members that may be misclassified as members.
        value: The share of members found, by the empirical ROC curve; an estimate. None if refused.
        low: Lower end of its Clopper–Pearson interval. Certified: the non-members alone chose the threshold.
        high: Upper end.
        false_positive_rate_high: The threshold's true false positive rate is at most this. Certified.
        refused: Why there is no figure; None if there is one.
    """

    false_positive_rate: Proportion
    value: Proportion | None
    low: Proportion | None
    high: Proportion | None
    false_positive_rate_high: Proportion | None
    refused: str | None

    def beats_chance(self, members: int, non_members: int, confidence: float, tries: int = 1) -> bool:
        """Whether it finds members at a higher rate than it accuses others, as one of so many tries.

        The counts behind the rate are those of `metrics.rate_at`; a rounded rate is taken for the smaller count. Half
        of this try's error goes to either bound.
        """
        from scipy.stats import beta

        if self.value is None:
            return False
        error = (1.0 - confidence) / tries
        hits, allowed = int(self.value * members + 1e-9), int(self.false_positive_rate * non_members + 1e-9)
        low = proportion_interval(hits, members, 1.0 - error)[0]
        return low > float(beta.ppf(1.0 - error / 2.0, allowed + 1, non_members - allowed))


@dataclass(frozen=True)
class Advantage:
    """The advantage of one threshold, chosen on the even-numbered records and measured on the odd-numbered ones.

    Args:
        value: True positive rate minus false positive rate; an unbiased estimate.
        low: Lower end of its interval, from Clopper–Pearson intervals of both rates. Certified.
        high: Upper end.
        balanced_accuracy: The accuracy of the threshold when half of the records are members: (1 + value) / 2.
        true_positive_rate: The first of the two rates.
        false_positive_rate: The second.
        largest: The largest advantage of any threshold on all records, as other tools report it; an estimate, biased
            upwards.
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

    The same public number of records is used for every class, so neither the figure nor its interval reveals how many
    there are.
    """

    name: str
    value: Proportion | None
    low: Proportion | None
    high: Proportion | None


@dataclass(frozen=True)
class Stability:
    """Whether the attack finds the same records when repeated with other seeds; estimates.

    Args:
        seeds: How often it was run.
        rank_correlation: Spearman's, of members' scores, mean over all pairs of seeds; None if a score is constant.
        stays_on_top: The share of the top 1% of members that is in the top for most seeds; None below 1,000 members.
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
        low: Lower end of its confidence interval (DeLong's for an AUC, which is asymptotically valid).
        high: Upper end.
        chance: What pure guessing scores.
        confidence: Of every interval and bound.
        members: How many records of the training set were used; a public figure.
        non_members: How many records of the holdout were used; a public figure.
        smallest_effect: The smallest score that this many records could have distinguished from guessing, as one of all
            the tries of the audit.
        epsilon_lower_bound: The largest ε that the attack refutes, 0 if none. Certified jointly with the bounds of all
            other attacks that were measured with it, over the coins of the split (`one_run_audit`). For an interface it
            is an estimate: each record is attacked by a separate client, and no guarantee covers all clients together.
        view: What the attacker has.
        aim: What the attacker is after.
        could_refute: The largest ε that this many records could have refuted at all.
        advantage: That of one threshold.
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

    def beats_chance(self, tries: int = 1) -> bool:
        """Whether its whole interval lies above chance, as one of so many tries."""
        return self.value - (self.value - self.low) * _wider(self.confidence, tries) > self.chance

    def rounded(self) -> AttackResult:
        """The same with fewer digits: more would reveal more about single records than about the attack.

        The ends of intervals are rounded outwards and certified bounds towards the safe side. Per-class figures rest on
        few records and get two digits.
        """
        return dataclasses.replace(_rounded(self), per_class=tuple(_rounded(one, 2) for one in self.per_class))


@dataclass(frozen=True)
class ExposureResult:
    """How far a language model, trained with made-up sentences among its records, prefers them to others like them.

    Args:
        canaries: How many sentences.
        copies: How often each was among the training records.
        fillings: How many other fillings each was ranked among.
        secret: The tokens of a filling.
        value: The mean exposure, in bits.
        low: Lower end of its interval.
        high: Upper end.
        largest: The largest exposure of one sentence.
        chance: The mean exposure of sentences that were not among the records.
        most: The exposure of a sentence that comes first: what this many fillings can show at most.
        first: How many sentences came first.
        confidence: Of the interval.
        extracted: How many fillings the model says whole when it is told their beginnings.
        tokens: The share of their tokens that it says.
        others_extracted: How many of as many sentences that it never saw.
        others_tokens: The share of these sentences' tokens.
    """

    canaries: Annotated[int, Field(ge=2)]
    copies: Annotated[int, Field(ge=1)]
    fillings: Annotated[int, Field(ge=1)]
    secret: Annotated[int, Field(ge=1)]
    value: Annotated[float, Field(ge=0)]
    low: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(ge=0)]
    largest: Annotated[float, Field(ge=0)]
    chance: Annotated[float, Field(ge=0)]
    most: Annotated[float, Field(ge=0)]
    first: Count
    confidence: Proportion
    extracted: Count = 0
    tokens: Proportion = 0.0
    others_extracted: Count = 0
    others_tokens: Proportion = 0.0

    @property
    def beats_chance(self) -> bool:
        """Whether its whole interval lies above that of sentences that were not there."""
        return self.low > self.chance


@dataclass(frozen=True)
class WorstCaseResult:
    """What an attacker shows who chooses the record, all others and where training begins.

    Args:
        name: Of the attacker, as in "final answers".
        attacker: What it is assumed to do.
        runs: How many with the record, and as many without it.
        epsilon: The proven ε of what was run.
        epsilon_lower_bound: The largest ε that the runs refute, whatever the mechanism; 0 if none.
        epsilon_lower_bound_of_noise: The same if it is the planned mechanism with noise of unknown size; None where the
            kind of its noise is not known.
        confidence: Of all these bounds together.
    """

    name: str
    attacker: str
    runs: Count
    epsilon: Epsilon
    epsilon_lower_bound: Epsilon
    epsilon_lower_bound_of_noise: Epsilon | None
    confidence: Proportion


@dataclass(frozen=True)
class ModelAttributeResult:
    """How often a column of somebody's row is guessed right from the rest of it, with a model and without.

    Args:
        attribute: The column.
        values: How many values it may have.
        records: How many members were guessed about; a public figure.
        known: How many other records the attacker learnt from.
        value: The share of right guesses about members, with the model.
        low: Lower end of Clopper and Pearson's interval.
        high: Upper end.
        blind: The share of right guesses about the same members without the model: by imputation.
        gain_low: Lower end of an interval for the difference of these two.
        gain_high: Upper end.
        others: The share of right guesses with the model about records that were not in the data.
        apart_low: Lower end of an interval for the difference between members and these.
        apart_high: Upper end.
        confidence: Of each interval.
    """

    attribute: str
    values: Annotated[int, Field(ge=2)]
    records: Some
    known: Count
    value: Proportion
    low: Proportion
    high: Proportion
    blind: Proportion
    gain_low: Signed
    gain_high: Signed
    others: Proportion
    apart_low: Signed
    apart_high: Signed
    confidence: Proportion


@dataclass(frozen=True)
class PropertyResult:
    """How often someone who is told two shares of a value among all training records names the true one.

    Args:
        attribute: The column whose most frequent value it is.
        share: Of the training records, in one half of the models.
        other: In the other half.
        records: How many records a model learnt from.
        models: How many models were judged.
        value: The share of right answers; guessing is right half of the time.
        low: Lower end of Clopper and Pearson's interval.
        high: Upper end.
        confidence: Of the interval.
    """

    attribute: str
    share: Proportion
    other: Proportion
    records: Count
    models: Some
    value: Proportion
    low: Proportion
    high: Proportion
    confidence: Proportion


@dataclass(frozen=True)
class Audit:
    """The attacks that were run, and in plain words those that were not.

    Args:
        attacks: On membership.
        not_tested: What was left out.
        features: What attacks on features found; None where no features leave.
        sheet: Pictures with the attackers' reconstructions; not among the figures.
        exposure: Of canary sentences; None unless it was asked for.
        worst_case: What attackers show who choose the record and all else; empty unless it was asked for.
        attributes: Columns of a table that were guessed with the model; empty unless they were asked for.
        properties: Shares of their values among all records, likewise.
    """

    attacks: tuple[AttackResult, ...]
    not_tested: tuple[str, ...]
    features: Findings | None = None
    sheet: Annotated[ContactSheet | None, Field(exclude=True)] = None
    exposure: ExposureResult | None = None
    worst_case: Annotated[tuple[WorstCaseResult, ...], Field(max_length=8)] = ()
    attributes: Annotated[tuple[ModelAttributeResult, ...], Field(max_length=64)] = ()
    properties: Annotated[tuple[PropertyResult, ...], Field(max_length=64)] = ()

    @property
    def worst_case_refutes(self) -> bool:
        """Whether such an attacker shows more than what is proven, whatever the mechanism; a trial of its own."""
        return any(one.epsilon_lower_bound > one.epsilon for one in self.worst_case)

    @property
    def made(self) -> tuple[AttackResult | ReconstructionResult, ...]:
        """All attacks, on membership and on features."""
        return (*self.attacks, *(self.features.reconstructions if self.features else ()))

    @property
    def tries(self) -> int:
        """How many comparisons with chance there are: of the score of every attack, and of its rates."""
        return max(1, sum(1 + sum(rate.value is not None for rate in attack.rates) for attack in self.attacks))

    @property
    def beating(self) -> tuple[AttackResult, ...]:
        """The attacks whose score is above chance; with the stated confidence none, if the release tells nothing."""
        return tuple(attack for attack in self.attacks if attack.beats_chance(self.tries))

    @property
    def rare_finds(self) -> tuple[tuple[AttackResult, RateAt], ...]:
        """The attacks that find members at a higher rate than they accuse others, at a small rate; likewise."""
        return tuple(
            (attack, rate)
            for attack in self.attacks
            for rate in attack.rates
            if rate.beats_chance(attack.members, attack.non_members, attack.confidence, self.tries)
        )

    def rounded(self) -> Audit:
        """Only the figures, rounded like those of `AttackResult`."""
        return dataclasses.replace(
            self,
            attacks=tuple(attack.rounded() for attack in self.attacks),
            features=_rounded(self.features),
            sheet=None,
            exposure=_rounded(self.exposure),
            worst_case=_rounded(self.worst_case),
            attributes=_rounded(self.attributes),
            properties=_rounded(self.properties),
        )

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

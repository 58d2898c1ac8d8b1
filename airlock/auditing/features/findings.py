"""What attacks on features found: how much of a record comes back, whose front end it was, what else features tell.

These are no membership scores, so they are values of their own beside `AttackResult`. Every figure stands beside what
someone who never saw the features would reach. They are estimates with intervals for records like those that took part,
and those are records that no promise covers (the holdout), sent through the same passage: nothing here was computed
from what left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airlock.auditing.result import Aim, View


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
    images: int
    known: int
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
    share: float
    share_low: float
    share_high: float
    blind_share: float
    confidence: float

    @property
    def aim(self) -> Aim:
        """What the attacker is after."""
        return "inversion"


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

    candidates: int
    known: tuple[int, ...]
    net_right: tuple[bool, ...]
    right: tuple[int, ...]
    live: tuple[int, ...]
    low: float
    high: float
    chance: float
    confidence: float


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
    records: int
    known: int
    value: float
    low: float
    high: float
    blind: float
    smallest_effect: float
    confidence: float


@dataclass(frozen=True)
class Sheet:
    """Pictures beside what attackers made of their features, for the card: it leaves.

    Args:
        png: The picture, one row an entry of `rows`.
        rows: "original", and the attackers.
        whose: Whose records these are, in one sentence; never private, test or holdout records.
    """

    png: bytes
    rows: tuple[str, ...]
    whose: str


@dataclass(frozen=True)
class Findings:
    """All of them; the sheet goes onto the card and not into audit.json."""

    reconstructions: tuple[ReconstructionResult, ...] = ()
    identification: IdentificationResult | None = None
    attributes: tuple[AttributeResult, ...] = ()
    found_by_lookup: bool | None = None
    sheet: Sheet | None = None

"""What a card says about attacks on features: the values of `airlock.auditing.result`, field by field."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airlock.auditing.result import Aim, View
from airlock.config import Frozen

_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]
_Few = Annotated[tuple[_Count, ...], Field(min_length=1, max_length=16)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=4 << 20)]


class Rebuilt(Frozen):
    """One attacker who turns features back into pictures; PSNR in dB, beside the best guess without features."""

    name: str
    question: str
    view: View
    images: Annotated[int, Field(ge=1)]
    known: _Count
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
    share: _Share
    share_low: _Share
    share_high: _Share
    blind_share: _Share
    confidence: _Share

    @property
    def aim(self) -> Aim:
        """What the attacker is after."""
        return "inversion"

    @property
    def beats_blind(self) -> bool:
        """Whether the features gave it anything."""
        return self.gain_low > 0


class Named(Frozen):
    """Naming the front end from a pool of public nets; one entry for each number of known records."""

    candidates: _Count
    known: _Few
    net_right: Annotated[tuple[bool, ...], Field(min_length=1, max_length=16)]
    right: _Few
    live: _Few
    low: _Share
    high: _Share
    chance: _Share
    confidence: _Share


class Told(Frozen):
    """Something read off the features that is not the label, beside the guess from the label alone."""

    attribute: str
    records: Annotated[int, Field(ge=1)]
    known: _Count
    value: _Share
    low: _Share
    high: _Share
    blind: _Share
    smallest_effect: _Share
    confidence: _Share

    @property
    def beats_blind(self) -> bool:
        """Whether the features gave it anything."""
        return self.low > self.blind


class OnFeatures(Frozen):
    """What attacks on features found; `found_by_lookup` is null where it was not tried."""

    reconstructions: tuple[Rebuilt, ...] = ()
    identification: Named | None = None
    attributes: tuple[Told, ...] = ()
    found_by_lookup: bool | None = None

    @property
    def best(self) -> Rebuilt | None:
        """The attacker who came furthest."""
        return max(self.reconstructions, key=lambda one: one.psnr, default=None)


class ContactSheet(Frozen):
    """Public or drawn pictures beside what attackers made of their features; `sheet.png` holds the same.

    Args:
        png: The picture, in base64; one row an entry of `rows`.
        rows: "original", and the attackers.
        whose: Whose records are shown; never private, test or holdout records.
    """

    png: Base64
    rows: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]
    whose: str

"""Whether a release is better than a blind guess, as far as its figures can tell.

In: `Figures`, noisy ones of a card or exact ones of a dossier. Out: a `Usefulness`, and sentences. Everything follows
from the figures alone, so it costs nothing, and whoever holds a card can recompute it.

A blind guess names a class without looking at the record: any class (right once in as many times as there are classes),
or always the largest one. The better of the two is what accuracy has to beat (`Figures.blind`). Where one class is
rare, a model that finds it may well be right less often than the guess that never names it. So the mean recall of the
classes and the AUC count too, each against its own chance, but only where their whole intervals lie above it: with few
records of a class, noise alone moves their estimates far. These are two more tries, so their intervals are widened to
hold together with that of accuracy (Bonferroni; both are normal approximations).

To be above is not enough: with many test records 10.5% is clearly above 10%. What counts is the gain, how far a figure
comes on the way from its blind guess to no error at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from airlock.auditing.evaluation import CONFIDENCE, UNINFORMATIVE, Figure, Figures

State = Literal["better", "finds", "unclear", "unknown", "hardly", "useless"]
REJECTED: tuple[State, ...] = ("hardly", "useless")
LEAST_GAIN = 0.05  # of the way from the blind guess to no error at all
_TRIES = 3  # accuracy, mean recall, AUC
_MISSED = 0.5  # of chance: a class whose recall lies below this is hardly ever named

WORDS: dict[State, str] = {
    "better": "It does better than blind guessing: {told}.",
    "finds": "In accuracy it gains little or nothing over blind guessing: {told}. It does tell the classes apart, "
    "though: {found}.",
    "unclear": "It may do no better than blind guessing: {told}.",
    "unknown": "Whether it does better than blind guessing cannot be told: {told}.",
    "hardly": "It does hardly better than blind guessing: {told}.",
    "useless": "It does no better than blind guessing: {told}.",
}
TOLD = "right {value} of the time ({low} to {high}), where {guess} is right {blind}"
LARGEST, ANY = "always naming the largest class", "naming any class"


@dataclass(frozen=True)
class Usefulness:
    """A release beside the blind guess.

    Args:
        state: "better" if its accuracy is clearly above and gains enough; "finds" if only mean recall or AUC does;
            otherwise "unknown" if the interval of accuracy tells nothing, "unclear" if accuracy gains enough by its
            estimate alone, "hardly" if it is clearly above and gains too little, and "useless" if neither.
        gain: How far accuracy comes from the blind guess to no error at all; an estimate, negative below the guess.
        sentence: The same in words.
    """

    state: State
    gain: float
    sentence: str


def compare_with_blind(found: Figures, least_gain: float = LEAST_GAIN) -> Usefulness:
    """Compare a release with the blind guess.

    Args:
        found: Its figures.
        least_gain: Of the way from the blind guess to no error: with less, and nothing clearly above, it is useless.
    """
    blind, own = found.blind, found.accuracy
    gain, above = _gain(own.value, blind.value), own.low > blind.high
    others = _clearly_found(found, least_gain)
    if above and gain >= least_gain:
        state: State = "better"
    elif others:
        state = "finds"
    elif own.high - own.low >= UNINFORMATIVE:
        state = "unknown"
    elif gain >= least_gain:
        state = "unclear"
    else:
        state = "hardly" if above else "useless"
    return Usefulness(state, gain, WORDS[state].format(told=_told(found), found=" and ".join(others)))


def missed_classes(found: Figures, classes: Sequence[str]) -> tuple[str, ...]:
    """The classes that are hardly ever named: even the upper end of their recall is below half of chance."""
    most = _MISSED / len(found.recalls)
    return tuple(name for name, one in zip(classes, found.recalls, strict=True) if one.high < most)


def _gain(value: float, chance: float) -> float:
    return (value - chance) / max(1e-9, 1.0 - chance)


def _clearly_found(found: Figures, least_gain: float) -> list[str]:
    """What lies above chance and gains enough, in words."""

    def clear(one: Figure, chance: float) -> bool:
        return _widened(one) > chance and _gain(one.value, chance) >= least_gain

    words, chance = [], 1.0 / len(found.recalls)
    mean = found.balanced_accuracy
    if clear(mean, chance):
        words.append(f"the mean recall of the classes is {mean.value:.1%}, and {chance:.1%} by chance")
    if found.auc is not None and clear(found.auc, 0.5):
        words.append(
            f"its scores put a record of the second class above one of the first {found.auc.value:.1%} of the time, "
            "and 50% by chance"
        )
    return words


def _widened(one: Figure) -> float:
    """The lower end, such that all tries hold together."""
    error, quantile = 1.0 - CONFIDENCE, NormalDist().inv_cdf
    return one.value - (one.value - one.low) * quantile(1 - error / (2 * _TRIES)) / quantile(1 - error / 2)


def _told(found: Figures) -> str:
    own, blind = found.accuracy, found.blind
    return TOLD.format(
        value=f"{own.value:.1%}",
        low=f"{own.low:.1%}",
        high=f"{own.high:.1%}",
        guess=LARGEST if blind.value > 1.0 / len(found.recalls) else ANY,
        blind=f"{blind.value:.1%} ({blind.low:.1%} to {blind.high:.1%})",
    )

"""How useful a language model is: two noisy tables about the test part, paid for with ε, and the perplexity they give.

In: the outcomes of all test texts, which stay inside: the mean cross-entropy of a text's next tokens under the network
that leaves, and under the network as training found it. Out: a `LossCounts`, which leaves, and the `LanguageFigures`
that follow from it and the size of the public tokenizer alone.

Perplexity is exp(mean loss). The mean is over texts, each of which counts once however long it is: a mean over all
tokens would give a long text the weight of many, and no bound for what one record moves. A text's loss counts as at
most ln V, V being the number of tokens of the public tokenizer: what guessing every token with the same probability
would cost. Each text divides `UNIT` between the two knots, of `KNOTS` from 0 to ln V, that its loss lies between, so
that Σ count · knot is UNIT times the sum of the losses.

Guarantee: `evaluate` is ε-DP for every record of the test part, under add-remove.

Proof. What a text adds to a table depends on the release and that text alone (`training.outcomes`; the network as
training found it is public), is never negative, and adds up to `UNIT`, whatever its tokens, its length and its loss
are; the rest is that of `two_tables`. Nothing else that leaves depends on test records. ∎

Where the unit is a person, the test part holds one text of each test person (`data.split.divide`), and the same is ε-DP
for people.

Intervals are by the delta method, with the variance of the sampling and that of the noise: normal approximations. That
of the sampling is overestimated by at most a quarter of the squared distance of two knots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from airlock.auditing.evaluation import NoisyCount, far_from
from airlock.auditing.two_tables import FEWEST, UNIT, TwoTables, noisy, state_of, z
from airlock.auditing.usefulness import LEAST_GAIN, REJECTED, State
from airlock.config import STEPS, Frozen
from airlock.data.text import largest_loss

if TYPE_CHECKING:
    from airlock.mechanisms import Stream
    from airlock.training.outcomes import Outcomes

KNOTS = np.linspace(0.0, 1.0, 9)  # of the largest loss that counts

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
Row = Annotated[tuple[NoisyCount, ...], Field(min_length=len(KNOTS), max_length=len(KNOTS))]
AtLeastOne = Annotated[float, Field(ge=1)]
Tokens = Annotated[float, Field(ge=2)]


class LossCounts(TwoTables):
    """What leaves about the test texts of a language model: noisy counts, which may be negative.

    Args:
        epsilon: What both tables cost a test record.
        losses: Of the network that leaves: 64 per text, divided between two of the 9 values j/8 of ln V.
        before: The same of the network as training found it.
    """

    losses: Row
    before: Row


class Perplexity(Frozen):
    """exp of a mean loss, with its 95% interval; from 1, every token is certain, to V, every token is guessed."""

    value: AtLeastOne
    low: AtLeastOne
    high: AtLeastOne


class LanguageFigures(Frozen):
    """What the counts say about texts like these.

    Args:
        records: Approximately how many there were.
        perplexity: Of the network that leaves.
        before: Of the network as training found it.
        guessing: Of guessing every token with the same probability: V.
    """

    records: Annotated[int, Field(ge=0)]
    perplexity: Perplexity
    before: Perplexity
    guessing: Tokens


def evaluate(outcomes: Outcomes, epsilon: float, stream: Stream) -> LossCounts:
    """The noisy tables; the guarantee is stated at the top of the module.

    Args:
        outcomes: Of the test texts (`Outcomes.of_losses`); secret.
        epsilon: To spend on the test part.
        stream: Secret; read once.
    """
    losses, before = noisy(tables(outcomes), epsilon, stream)
    return LossCounts(epsilon=epsilon, losses=losses, before=before)


def tables(outcomes: Outcomes) -> tuple[Whole, Whole]:
    """The exact counts: each text adds UNIT to each table."""
    return _table(outcomes.predicted), _table(outcomes.labels)


def _table(steps: Whole) -> Whole:
    """Each loss between its two knots, such that it is kept."""
    last = len(KNOTS) - 1
    place = np.clip(steps, 0, STEPS) / STEPS * last
    lower = np.minimum(np.floor(place), last - 1).astype(np.int64)
    upper = np.rint(UNIT * (place - lower)).astype(np.int64)
    found = np.zeros(len(KNOTS), np.int64)
    np.add.at(found, lower, UNIT - upper)
    np.add.at(found, lower + 1, upper)
    return found


def figures(counts: LossCounts, vocabulary: int) -> LanguageFigures:
    """All figures of the noisy counts; a pure function of what left and of the size of the tokenizer."""
    losses, before = (
        _of_counts(np.array(table, np.float64) / UNIT, noise.variance / UNIT**2)
        for table, noise in zip((counts.losses, counts.before), counts.noises, strict=True)
    )
    return _figures(losses, before, vocabulary)


def exact(outcomes: Outcomes, vocabulary: int) -> LanguageFigures:
    """The same figures without noise, for the dossier: of the losses as they are, also above ln V."""
    losses, before = (_of_values(steps / STEPS) for steps in (outcomes.predicted, outcomes.labels))
    return _figures(losses, before, vocabulary)


def far(counts: LossCounts, outcomes: Outcomes) -> float:
    """An upper bound on the probability that the stated noise lies this far from the exact counts, or this close."""
    return far_from((counts.losses, counts.before), tables(outcomes), counts.noises)


@dataclass(frozen=True)
class _Mean:
    """A mean loss in units of ln V, how far off it may be, of how many texts, and whether they are enough."""

    value: float
    deviation: float
    records: float
    told: bool


def _of_counts(counts: Floats, noise: float) -> _Mean:
    """From a table with noise of this variance on each cell; by the delta method, as `regression_errors`."""
    total = float(counts.sum())
    if total <= FEWEST * math.sqrt(len(KNOTS) * noise):
        return _Mean(1.0, 0.0, max(0.0, total), told=False)
    weights = counts / total
    value = float(weights @ KNOTS)
    moves = (KNOTS - value) ** 2
    spread = max(float(np.clip(weights, 0.0, None) @ moves), 1.0 / total)
    return _Mean(value, math.sqrt(spread / total + noise * float(moves.sum()) / total**2), total, told=True)


def _of_values(values: Floats) -> _Mean:
    count = len(values)
    if count < 2:
        return _Mean(1.0, 0.0, float(count), told=False)
    return _Mean(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count), float(count), told=True)


def _figures(losses: _Mean, before: _Mean, vocabulary: int) -> LanguageFigures:
    most = largest_loss(vocabulary)
    return LanguageFigures(
        records=max(0, round(losses.records)),
        perplexity=_perplexity(losses, most),
        before=_perplexity(before, most),
        guessing=float(vocabulary - 1),
    )


def _perplexity(one: _Mean, most: float) -> Perplexity:
    reach = z() * one.deviation
    ends = (one.value, one.value - reach, one.value + reach) if one.told else (1.0, 0.0, 1.0)
    value, low, high = (math.exp(min(_LARGEST, max(0.0, end * most))) for end in ends)
    return Perplexity(value=value, low=low, high=high)


_LARGEST = 100.0  # an exponent: of the exact losses one may be beyond any number

# Beside guessing.

WORDS: dict[State, str] = {
    "better": "It does better than guessing every token: {told}.",
    "unclear": "It may do no better than guessing every token: {told}.",
    "unknown": "Whether it does better than guessing every token cannot be told: {told}.",
    "hardly": "It does hardly better than guessing every token: {told}.",
    "useless": "It does no better than guessing every token: {told}.",
}
TOLD = (
    "its perplexity is {value} ({low} to {high}), where guessing has {guessing}, and the network before it was "
    "trained here {before} ({least} to {most})"
)


@dataclass(frozen=True)
class LanguageUse:
    """A language model beside guessing every token with the same probability.

    Args:
        state: "better" if it is clearly below the guess and gains enough; otherwise "unknown" if its interval tells
            nothing, "unclear" if it gains enough by its estimate alone, "hardly" if it is clearly below and gains too
            little, and "useless" if neither.
        gain: The share of the guess's ln V that it saves.
        sentence: The same in words.
    """

    state: State
    gain: float
    sentence: str

    @property
    def rejected(self) -> bool:
        """Whether this is a reason to reject."""
        return self.state in REJECTED


def compare_with_guessing(found: LanguageFigures, least_gain: float = LEAST_GAIN) -> LanguageUse:
    """Compare a language model with guessing.

    Args:
        found: Its figures.
        least_gain: The smallest share of ln V that counts as a use.
    """
    own, most = found.perplexity, math.log(found.guessing)
    gain, least, best = (1.0 - math.log(end) / most for end in (own.value, own.high, own.low))
    state = state_of(gain, least, best, least_gain)
    numbers = {"value": own.value, "low": own.low, "high": own.high, "guessing": found.guessing,
               "before": found.before.value, "least": found.before.low, "most": found.before.high}  # fmt: skip
    return LanguageUse(
        state, gain, WORDS[state].format(told=TOLD.format(**{k: f"{v:,.4g}" for k, v in numbers.items()}))
    )


ROWS = (
    ("perplexity", "perplexity: 1 where every token is certain"),
    ("before", "perplexity of the network before it was trained here"),
)


def rows(found: LanguageFigures) -> list[tuple[str, str, str]]:
    """Every figure: its name, its estimate and its interval."""
    said = [(name, getattr(found, key)) for key, name in ROWS]
    known = [(name, f"{one.value:,.4g}", f"{one.low:,.4g} to {one.high:,.4g}") for name, one in said]
    guess = f"{found.guessing:,.4g}"
    return [*known, ("perplexity of guessing every token", guess, f"{guess}, by the size of the tokenizer")]

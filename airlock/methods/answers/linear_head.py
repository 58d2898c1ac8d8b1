"""Public features with private linear heads: what `head`, `per-query` and `votes` share, and `neighbours` in part.

A frozen public front end maps every record on its own to a feature vector φ of norm at most 1, with a constant in it
for the bias. A multinomial logistic head, or a Huber regression, is solved on private records; for `head` and
`per-query` to within a certified distance of its minimiser (`training.convex`), which bounds how far one record more or
less can move it. Where the unit is a person, her records have weights that add up to one, and the same bound is on how
far one person can move it.

Features of records are computed in float64. Within a batch, another record can change the order in which sums are taken
and so their last bits; these are 10^-15 here, which is negligible next to the certified distance. Features of queries
depend on no record, and are computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.config import Frozen, Positive, ReleaseConfig, from_table
from airlock.data import Facts, Records
from airlock.errors import ConfigError
from airlock.methods.contract import ASSUMED, NOTHING_ELSE_LEAVES, Channel, refuse_net
from airlock.nets import build_front
from airlock.nets.frontend import CONSTANT, Framed
from airlock.nets.tables import steps_linear
from airlock.training import Run
from airlock.training.convex import MOST_ROWS, ConvexHead, HuberHead, LogisticHead, solve
from airlock.training.front_ends.front import by_facts, check_texts, embed, layout_of, with_weights

ASSUMPTIONS = (
    *ASSUMED,
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
    "The front end is public: it was neither trained nor chosen on the private records.",
)
_TIMES = 10  # times the declared number of records, for which heads can still be certified
_BATCH = 250  # queries at a time
_LOGIT_NOISE, _TARGET_NOISE = 0.2, 0.02  # on an output: a logit, or a share of the target's range
_THRESHOLD = 0.1  # of Huber's loss, in the same shares


# Settings.


class FrontEndSettings(Frozen):
    """Which public front end.

    Args:
        features: scattering, pixels, steps (a table's numbers compared with evenly spaced cut points), minilm (an
            encoder of texts), or auto (steps for tables, minilm for texts, scattering for images of at least 8 pixels a
            side, else pixels).
    """

    features: Literal["auto", "scattering", "pixels", "steps", "minilm"] = "auto"


class HeadSettings(FrontEndSettings):
    """How a certified head is solved; everything left out follows from public facts.

    Args:
        logit_noise: The standard deviation of the noise on an output; sets the regularisation. When left out, 0.2 on a
            logit, and 0.02 of the declared range where a number is predicted.
        regularisation: λ itself, instead.
        tolerance: How much the solver's distance from the minimiser may add to the sensitivity, as a fraction.
    """

    logit_noise: Positive | None = None
    regularisation: Positive | None = None
    tolerance: Annotated[float, Field(ge=1e-6, le=1)] = 1e-3


# What methods are built on.


class PublicFeatures(Channel):
    """A frozen public front end for methods that fit heads on it; unit record or person, relation add-remove."""

    channel: ClassVar[str] = "answers"
    settings_model: ClassVar[type[Frozen] | None] = FrontEndSettings
    settings: FrontEndSettings
    assumptions: ClassVar[tuple[str, ...]] = ASSUMPTIONS
    weighs_classes: ClassVar[bool] = True

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        refuse_net(config)
        self.records = facts.expected("private", config.split)  # people, where these are the unit
        self.features = by_facts(facts) if self.settings.features == "auto" else self.settings.features
        check_texts(self.features, facts)
        self.layout = layout_of(self.features, facts, products=False)
        self.net_name = f"{self.features}-linear" if self.layout is None else self.layout.name

    def sized(self) -> Framed:
        """The network before any public tensor was computed for it."""
        if self.layout is not None:
            return steps_linear(self.layout, self.facts.outputs)
        return build_front(self.net_name, self.facts.shape, self.facts.outputs)

    def ready(self) -> Framed:
        """The network with all public tensors in place; its head is still zero."""
        net = self.sized()
        with_weights(net, self.features, self.facts.shape, self.config.seed)
        return net

    def weights_of(self, records: Records) -> Tensor:
        """With which weight each record's loss counts: its share of its person, times the weight of its class."""
        shares = records.weights
        if self.class_weights is not None:
            shares = shares * self.class_weights.of_array(records.y)
        return torch.from_numpy(shares)

    def check(self, objective: ConvexHead, width: int, records: int | None = None) -> None:
        """Refuse figures at which rounding alone could keep a head from being certified, whatever the records are.

        That includes ten times as many records as declared, because how many there are is private; or ten times as many
        people, with any number of records.
        """
        rows = MOST_ROWS if self.facts.unit == "person" else None  # nobody knows how many records a person has
        if objective.largest_gradient < 2 * objective.sharpest(width, records or _TIMES * objective.records, rows):
            raise ConfigError(
                "a head that float64 can certify whatever the records are",
                f"a regularisation of {objective.regularisation:.2g} at a tolerance of {objective.tolerance:.2g}",
                "A refusal after the records were read would reveal something about them.",
                "Raise settings.tolerance or settings.regularisation, or lower settings.logit_noise.",
            )


class CertifiedHead(PublicFeatures):
    """One certified head of all private records, with noise on it or on its answers."""

    settings_model: ClassVar[type[Frozen] | None] = HeadSettings
    settings: HeadSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        if self.settings.regularisation is not None and "logit_noise" in self.settings.model_fields_set:
            raise ConfigError(
                "one of settings.logit_noise and settings.regularisation",
                "both",
                "A key that is ignored hides a mistake.",
                "Leave one of them out.",
            )

    def objective(self, noise_multiplier: float) -> ConvexHead:
        """What is minimised, by public figures; λ follows from the noise allowed on an output."""
        fixed, tolerance = self.settings.regularisation, self.settings.tolerance
        plain: ConvexHead
        if self.facts.target is None:
            plain = LogisticHead(len(self.facts.classes), 1.0, self.records, tolerance)
        else:
            plain = HuberHead(1, 1.0, self.records, tolerance, threshold=_THRESHOLD)
        usual = _LOGIT_NOISE if self.facts.target is None else _TARGET_NOISE
        allowed = self.settings.logit_noise or usual
        regularisation = noise_multiplier * plain.sensitivity() / allowed if fixed is None else fixed
        return replace(plain, regularisation=regularisation)

    def solve(self, net: Framed, records: Records, noise_multiplier: float, run: Run) -> Tensor:
        """The certified head of these records, without noise; it must not leave."""
        labels = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        even = records.person is None and self.class_weights is None
        own = None if even else [self.weights_of(records).to(run.device)]
        return solve([(embed(net, records, run), labels)], self.objective(noise_multiplier), weights=own)[0]


# Features.


def embed_queries(body: nn.Module, x: NDArray[np.float32], objective: ConvexHead) -> Tensor:
    """Features of queries, of norm at most R whatever they are; computed on the CPU from the query alone.

    They need no float64: queries and front end are not private, so neither is their rounding. A query that occurs
    several times among these, as when somebody asks again, goes through the front end once.

    Args:
        body: From `front_of`, in float32.
        x: Queries.
        objective: R.
    """
    seen: dict[bytes, int] = {}
    places = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in x])
    own = torch.from_numpy(x[np.unique(places, return_index=True)[1]])  # in the order in which they occur
    with torch.no_grad():
        features = torch.cat([body(part) for part in torch.split(own, _BATCH)])
    return objective.bounded(features)[torch.from_numpy(places)]


# The records of the cases of `head` and `per-query`.
#
# The record that differs is (φ, class 0). The others are nearly orthogonal to it: those of class 1 a little on its
# side, those of class 0 a little on the other. What else they have cancels out, including the constant of the bias, so
# they can only be told apart along φ: between them they make class 0 unlikely there, and the record's gradient is
# almost as long as it can be, while each holds the head back along φ only a little. The head then moves by nine tenths
# of what is accounted for.

CASE_RECORDS = 1000  # as stated
_OTHERS = 400  # in truth
_COSINE = 0.02  # between the features of the record that differs and those of the others
CASE_REGULARISATION = 1e-3
MADE_UP = "made up for the court"
VISITS = 20  # records of the person who differs
PAIR_OF_PEOPLE = (
    f"{_OTHERS} people with one record each, with and without one with {VISITS} records that all push one way"
)
PAIR = f"{_OTHERS} records, with and without one of the other side's class that is nearly orthogonal to all of them"


def case_config(method: str, epsilon: float, delta: float, settings: Mapping[str, object]) -> ReleaseConfig:
    """A release of made-up records, which are their own features."""
    return from_table(
        {
            "channel": "answers",
            "method": method,
            "data": "court",
            "epsilon": epsilon,
            "delta": delta,
            "split": {"test": 0.0, "holdout": 0.0},
            "device": "cpu",
            "settings": {"features": "pixels", **settings},
        }
    )


def case_facts(classes: int = 2, records: int = CASE_RECORDS, inputs: int = 2, people: bool = False) -> Facts:
    """What is stated about the made-up records; with `people`, as many as records."""
    names = tuple(map(str, range(classes)))
    return Facts("court", (inputs,), names, records, 1, MADE_UP, people=records if people else None)


def neighbours(visits: int | None = None) -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last.

    With `visits`, it is a person who differs, with so many records that all push the same way; everybody else has one.
    Her loss is their mean, so that the head moves as far as by one record; as a sum it would move many times as far.
    """
    i = np.arange(_OTHERS)
    y = i % 2
    cosine = np.where(y == 1, _COSINE, -_COSINE) * (1 + CONSTANT**2) - CONSTANT**2  # before the constant is put in
    others = np.stack([cosine, np.where(i % 4 < 2, 1.0, -1.0) * np.sqrt(1 - cosine**2)], 1)
    more = visits or 1
    x = np.concatenate([others, np.repeat([[1.0, 0.0]], more, 0)]).astype(np.float32)
    person = None if visits is None else np.append(i, np.full(more, _OTHERS)).astype(np.int64)
    both = Records(x, np.append(y, np.zeros(more)).astype(np.int64), person)
    return both, both.take(np.arange(_OTHERS))

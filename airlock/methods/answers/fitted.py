"""Public features with a private head: what `head`, `per-query` and `poll` have in common.

A frozen public front end turns every record, by itself, into a feature vector φ of norm at most 1, a constant for the
bias inside. A multinomial logistic head is solved on private records to a certified distance of its minimiser
(`training.convex`), which bounds how far one record more or less can move it.

Features are computed in float64: in a batch another record can change the order in which sums are taken, and with it
their last bits, which are 10^-15 here and add nothing to Δ that could be seen beside the gap.
"""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.config import Frozen, Positive, ReleaseConfig, parse
from airlock.data import Facts, Records
from airlock.errors import ConfigError
from airlock.methods.contract import NOTHING_ELSE_LEAVES, Channel, refuse_net
from airlock.nets import build_front
from airlock.nets.frontend import Framed, pretrain
from airlock.nets.scattering import SMALLEST, dense
from airlock.training import Run
from airlock.training.convex import LogisticHead, solve
from airlock.training.devices import to_input

ASSUMPTIONS = (
    "One person contributes one record; whoever contributes several is protected less.",
    "The number of records stated on this card is public and was not derived from the private records.",
    "Settings and class names were chosen without looking at the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
    "The front end is public: it was neither trained nor chosen on the private records.",
)
_TIMES = 10  # as many records as are declared may be there, and heads are still certified
_BATCH = 250


class FittedFrontSettings(Frozen):
    """Which public front end.

    Args:
        features: scattering, pixels, or auto (scattering for images of at least 8 pixels a side).
    """

    features: Literal["auto", "scattering", "pixels"] = "auto"


class HeadSettings(FittedFrontSettings):
    """How the head is solved; everything left out follows from public facts.

    Args:
        logit_noise: The standard deviation of the noise on a logit; sets the regularisation.
        regularisation: λ itself, instead.
        tolerance: How much the solver's distance from the minimiser may add to the sensitivity, as a fraction.
    """

    logit_noise: Positive = 0.2
    regularisation: Positive | None = None
    tolerance: Annotated[float, Field(ge=1e-6, le=1)] = 1e-3


class Featured(Channel):
    """A frozen public front end and the promise of a method that fits heads on it; unit record, add-remove."""

    settings_type: ClassVar[type[FittedFrontSettings]] = FittedFrontSettings
    assumptions: ClassVar[tuple[str, ...]] = ASSUMPTIONS

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = parse(self.settings_type, config.settings, where="settings")
        refuse_net(config)
        self.records = facts.expected("private", config.split)
        picture = len(facts.shape) == 3 and min(facts.shape[1:]) >= SMALLEST
        automatic = "scattering" if picture else "pixels"
        self.features = automatic if self.settings.features == "auto" else self.settings.features
        self.net_name = f"{self.features}-linear"

    def sized(self) -> Framed:
        """The network before anything public was computed for it."""
        return build_front(self.net_name, self.facts.shape, len(self.facts.classes))

    def ready(self) -> Framed:
        """The network with all public tensors in place; its head is still zero."""
        net = self.sized()
        if self.features == "scattering":
            pretrain(net, self.facts.shape, self.config.seed)
        return net

    def check(self, objective: LogisticHead, width: int, records: int | None = None) -> None:
        """Refuse figures at which rounding alone could keep a head from being certified, whatever the records are.

        Also where there are ten times as many as declared: how many there are is private.
        """
        if objective.largest_gradient < 2 * objective.sharpest(width, records or _TIMES * objective.records):
            raise ConfigError(
                "a head that float64 can certify whatever the records are",
                f"a regularisation of {objective.regularisation:.2g} at a tolerance of {objective.tolerance:.2g}",
                "A refusal after the records were read would tell something about them.",
                "Raise settings.tolerance, settings.regularisation or lower settings.logit_noise.",
            )


class Fitted(Featured):
    """One certified head of all private records, with noise on it or on its answers."""

    settings_type: ClassVar[type[FittedFrontSettings]] = HeadSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        assert isinstance(self.settings, HeadSettings)
        self.solving = self.settings
        if self.solving.regularisation is not None and "logit_noise" in self.solving.model_fields_set:
            raise ConfigError(
                "one of settings.logit_noise and settings.regularisation",
                "both",
                "A key that is ignored hides a mistake.",
            )

    def objective(self, noise_multiplier: float) -> LogisticHead:
        """What is minimised, by public figures; λ from the noise that a logit may have."""
        fixed, tolerance = self.solving.regularisation, self.solving.tolerance
        per_unit = LogisticHead(len(self.facts.classes), 1.0, self.records, tolerance).sensitivity()
        regularisation = noise_multiplier * per_unit / self.solving.logit_noise if fixed is None else fixed
        return LogisticHead(len(self.facts.classes), regularisation, self.records, tolerance)

    def solve(self, net: Framed, records: Records, noise_multiplier: float, run: Run) -> Tensor:
        """The certified head of these records, without noise; it must not leave."""
        labels = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        return solve([(embed(net, records, run), labels)], self.objective(noise_multiplier))[0]


def front_of(net: Framed, device: torch.device) -> nn.Module:
    """Front end and constant, in float64."""
    return copy.deepcopy(nn.Sequential(net.front, net.centre)).double().eval().to(device)


def embed(net: Framed, records: Records, run: Run) -> Tensor:
    """Features with their constant, in float64, in blocks of one size whatever the number of records."""
    body = front_of(net, run.device)
    if run.device.type == "cpu":
        body = dense(body)
    found = torch.empty(len(records), net.head.in_features, dtype=torch.float64, device=run.device)
    for start in range(0, len(records), _BATCH):
        part = torch.from_numpy(np.ascontiguousarray(records.x[start : start + _BATCH])).to(run.device)
        block = part.new_zeros(_BATCH, *part.shape[1:])
        block[: len(part)] = part
        with torch.no_grad():
            found[start : start + len(part)] = body(to_input(block).double())[: len(part)]
        if run.progress:
            run.progress("features", start + len(part), len(records))
    return found


def embed_queries(body: nn.Module, x: NDArray[np.float32], objective: LogisticHead) -> Tensor:
    """Features of queries, of norm at most R whatever they are; computed on the CPU from the query alone."""
    with torch.no_grad():
        blocks = [body(torch.from_numpy(x[i : i + _BATCH]).double()) for i in range(0, len(x), _BATCH)]
    return objective.bounded(torch.cat(blocks))

"""The settings of `answers`/`published`; defaults are the paper's (Tables 3 and 4)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airlock.config import Frozen, Positive
from airlock.errors import ConfigError
from airlock.papers.answers.neuron import Noise

LARGEST_ALPHA, ALPHA_STEP = 10.0, 0.5
ALPHAS = tuple(ALPHA_STEP * i for i in range(1, round(LARGEST_ALPHA / ALPHA_STEP) + 1))
_TABLE_4 = {"location30": 1.0, "mnist": 1.0, "adult": 1.0, "cifar10": 2.0, "cifar100": 1.0}
_DEFAULT_ALPHA = 1.0


class PublishedSettings(Frozen):
    """How the network is trained and how answers are made.

    Args:
        loss: elements: convexified as in the authors' code, which gives the paper's figures; records: convexified as
            printed (Eq. 22); mean: not convexified, the paper's "original loss".
        alpha: α of the convexified loss; "search" tries 0.5, 1, ... 10 on the private records, as the paper did. Left
            out: the paper's for the data sets that it used, else 1.
        judged_on: Which records judge α beside the private ones when it is searched.
        noise: On the picked neuron.
        shares: How a query's ε is divided; with Gaussian noise the authors' code divides by 2√C + 1, the paper by
            √(4C + 1). With Laplace noise both by 2C + 1.
        l2: Times the squared weights, without biases; twice the λ of the sensitivities.
        learning_rate: Of Adam.
        batch_size: Records in a batch.
        epochs: How often the records are gone through.
        queries: How many answers may be asked for in all.
    """

    loss: Literal["elements", "records", "mean"] = "elements"
    alpha: Annotated[float, Field(gt=0, le=LARGEST_ALPHA)] | Literal["search"] | None = None
    judged_on: Literal["test", "public"] = "test"
    noise: Noise = "laplace"
    shares: Literal["paper", "code"] = "paper"
    l2: Positive = 0.001
    learning_rate: Positive = 0.001
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 100
    queries: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1000

    def alpha_for(self, data: str) -> float | Literal["search"]:
        """α, by the data's name where it was left out."""
        return _TABLE_4.get(data, _DEFAULT_ALPHA) if self.alpha is None else self.alpha


def check(settings: PublishedSettings, net: str, public_share: float) -> None:
    """Refuse settings that would be ignored or contradict each other.

    Raises:
        ConfigError: It says which.
    """
    ignored = "A key that is ignored hides a mistake."
    given = settings.model_fields_set
    if settings.loss == "mean" and "alpha" in given:
        raise ConfigError('no settings.alpha with settings.loss = "mean"', "one", ignored)
    if settings.alpha != "search" and "judged_on" in given:
        raise ConfigError('settings.alpha = "search" beside settings.judged_on', "none", ignored)
    if settings.judged_on == "public" and not public_share:
        raise ConfigError(
            'public records for settings.judged_on = "public"', "none", do="Set split.public, or judge on test records."
        )
    if net not in ("auto", "mlp"):
        raise ConfigError(
            "net 'mlp' for answers/published",
            f"'{net}'",
            "The paper's sensitivities are those of one hidden layer of 128 tanh units.",
        )

"""What is compared: TOML in, a frozen `CompareConfig` out; `data`, `epsilons` and `delta` are a complete one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airlock.comparison.values import BASELINE, Need
from airlock.config import (
    About,
    Accounting,
    AnyData,
    Device,
    Frozen,
    Positive,
    ReleaseConfig,
    SplitConfig,
    TuneTerms,
    may_have_a_register,
    merge,
    parse,
    placed,
    read_table,
    resolved,
)
from airlock.errors import ConfigError
from airlock.methods import METHODS, RENAMED, current_name, named, refuse_gone

QUICK_COURT = 2.0  # seconds per method
NAMES = tuple(f"{channel}/{method}" for channel, methods in METHODS.items() for method in methods)


def _seeds(value: object) -> object:
    """A number of seeds, or the seeds themselves."""
    counted = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000
    return tuple(range(value)) if counted else value  # type: ignore[call-overload]


class BaselineSettings(Frozen):
    """How the model without privacy is trained, with Adam on shuffled batches.

    Args:
        epochs: Passes over the records.
        batch_size: Records per step.
        learning_rate: The learning rate of Adam.
    """

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 30
    batch_size: Annotated[int, Field(ge=1)] = 128
    learning_rate: Positive = 2e-3


may_have_a_register()


class CompareConfig(Frozen):
    """One comparison: the records, the values of ε, and what to compare.

    Args:
        data: As in a release.
        epsilons: The values of ε at which every method is run.
        delta: The δ of every guarantee.
        seeds: The number of runs of each method, or the seeds themselves; at the same seed, all methods use the same
            split of the records.
        methods: The methods, as CHANNEL/METHOD, or CHANNEL for all of its methods; all if omitted. Unlisted methods
            (`Channel.listed`) are included only by their full names. The model without privacy and plain DP-SGD are
            always included.
        minutes: The wall-clock time limit; cells at the end of the queue are dropped and reported.
        split: As in a release.
        net: As in a release, for every method that accepts it.
        nets: The networks of individual methods.
        device: As in a release.
        accountant: As in a release.
        unit: As in a release.
        settings: The settings of individual methods, by CHANNEL/METHOD; `baseline` is the model without privacy.
        court_seconds: How long the court tries each proven method; a claim gets up to ten times as long. 0: no court.
        need: What the release is for.
        about: As in a release, for `--pay`.
        register: As in a release, for `--pay`: a comparison charges nothing.
        pay: How the search runs that `airlock compare --pay` makes of the comparison; a comparison has no use for it.
    """

    data: AnyData
    epsilons: Annotated[tuple[Annotated[Positive, Field(le=1000)], ...], Field(min_length=1, max_length=32)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], BeforeValidator(_seeds), Field(min_length=1, max_length=1000)
    ] = (0, 1, 2)
    methods: tuple[str, ...] = ()
    minutes: Positive | None = None
    split: SplitConfig = SplitConfig()
    net: str = "auto"
    nets: dict[str, str] = Field(default_factory=dict)
    device: Device = "auto"
    accountant: Accounting = "auto"
    unit: Literal["person", "record"] | None = None
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    court_seconds: Annotated[float, Field(ge=0, le=3600)] = 10.0
    need: Need = Need()
    pay: TuneTerms = TuneTerms()
    about: About = About()
    register: str | None = None

    @field_validator("epsilons", "seeds", "methods")
    @classmethod
    def _once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a value is listed twice")
        return value

    @model_validator(mode="after")
    def _chooses_among_them(self) -> Self:
        if self.need.epsilon is not None and self.need.epsilon not in self.epsilons:
            raise ValueError("need.epsilon must be one of epsilons: the choice is made among methods that were run")
        return self

    @property
    def baseline(self) -> BaselineSettings:
        """How the model without privacy is trained."""
        return parse(BaselineSettings, self.settings.get(BASELINE, {}), f"settings.{BASELINE}")

    @property
    def names(self) -> tuple[str, ...]:
        """The methods to choose from: all that are listed, and those requested by their full names."""
        return tuple(name for name in NAMES if name in self.methods or named(name).listed)

    def quick(self) -> CompareConfig:
        """The same comparison with one seed and a short court, for a first look."""
        short = min(self.court_seconds, QUICK_COURT)
        return self.model_copy(update={"seeds": self.seeds[:1], "court_seconds": short})

    def release(self, method: str, epsilon: float, seed: int, **more: object) -> ReleaseConfig:
        """The release config of one cell; `more` overrides keys."""
        channel, _, name = method.partition("/")
        table = {
            "channel": channel,
            "method": name or None,
            "task": "classification" if self.data.target is None else "regression",
            "data": self.data.model_dump(exclude_none=True),
            "epsilon": epsilon,
            "delta": self.delta,
            "seed": seed,
            "net": self.nets.get(method, self.net),
            "split": self.split.model_dump(),
            "accountant": self.accountant,
            "device": self.device,
            "unit": self.unit,
            "settings": self.settings.get(method, {}),
        }
        return parse(ReleaseConfig, table | more)


def refuse_numbers(config: CompareConfig) -> None:
    """Refuse to compare methods that predict a number; advice on them is given.

    Raises:
        ConfigError: A target is declared.
    """
    if config.data.target is not None:
        raise ConfigError(
            "classes to compare methods by",
            "data.target, a number to predict",
            "Cells, pages and the paid choice count how often a class is right.",
            "Ask `airlock advise` instead, or make releases and read their cards.",
        )


def load(path: Path, overrides: Mapping[str, object] | None = None) -> CompareConfig:
    """Read a TOML file; `overrides` maps dotted keys to values that replace the file's."""
    return from_table(read_table(path, overrides), overrides, folder=path.parent)


def from_table(
    table: Mapping[str, object], overrides: Mapping[str, object] | None = None, folder: Path | None = None
) -> CompareConfig:
    """Validate a table; relative data paths are resolved against `folder` if they exist there.

    Raises:
        ConfigError: A key or a value is invalid, or a named method does not exist.
    """
    config = parse(CompareConfig, _renamed(merge(table, overrides or {})))
    for key, names in (("methods", config.methods), ("nets", config.nets), ("settings", config.settings)):
        for name in names:
            _check_name(key, name)
    config.baseline  # noqa: B018 - validates it early
    return config.model_copy(
        update={"data": placed(config.data, folder), "register": resolved(config.register, folder)}
    )


def _renamed(table: dict[str, object]) -> dict[str, object]:
    """The same table with current method names; one warning per old name."""
    given = {key: table[key] for key in ("methods", "nets", "settings") if key in table}
    names = [name for value in given.values() if isinstance(value, Mapping | list | tuple) for name in value]
    now = {name: current_name(name) for name in RENAMED if name in names}
    for key, value in given.items():
        if isinstance(value, Mapping):
            for old, new in now.items():
                if old in value and new in value:
                    raise ConfigError(f"one of '{old}' and '{new}' in '{key}'", "both", f"They are both '{new}'.")
            table[key] = {now.get(name, name): inner for name, inner in value.items()}
        elif isinstance(value, list | tuple):
            table[key] = [now.get(name, name) if isinstance(name, str) else name for name in value]
    return table


def _check_name(key: str, name: str) -> None:
    refuse_gone(name)
    known = {"methods": (*NAMES, *METHODS, BASELINE), "nets": NAMES, "settings": (*NAMES, BASELINE)}[key]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}."
        raise ConfigError(f"names of methods, as CHANNEL/METHOD, in '{key}'", f"'{name}'", do=hint)

"""What the user asked for: TOML in, a frozen `ReleaseConfig` out.

Every field is public: a config is copied into the bundle. Nothing that depends on private records ever enters it. A
method's own settings stay a plain table here (`settings`) and are parsed by the method with `parse`, so that this
module knows no channel.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import re
import sys
import tomllib
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from fractions import Fraction as Ratio
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from airlock import plugins
from airlock.errors import ConfigError


class Frozen(BaseModel):
    """Base of every settings table: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


M = TypeVar("M", bound=Frozen)
_BESIDE_A_CARD = ("card.json", "SHA256SUMS")  # files that show a folder to be a bundle
MAX_BYTES = 4 << 20  # of a config file
_RECORDS = (".csv", ".tsv", ".jsonl", ".parquet", ".pq", ".npz")  # files of records, which are no config
_DEEPEST = 32
_FLAT, _SMALL = "No setting has that many levels.", "TOML's whole numbers have 64 bits."


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Positive = Annotated[float, Field(gt=0), AfterValidator(_finite)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
# What figures may be, wherever a value of the house is read from a file that somebody else may have written.
Proportion = Annotated[float, Field(ge=0, le=1)]
Signed = Annotated[float, Field(ge=-1, le=1)]
Epsilon = Annotated[float, Field(ge=0)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=8)]


def _bound(value: object) -> object:
    """A date in ISO form as one; a number, or anything else, unchanged."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        return date.fromisoformat(value)
    return value


def _stand_in(value: object, info: ValidationInfo) -> object:
    """What stands for an empty cell: of a range like its ends, of a category one of its values as it is."""
    return _bound(value) if info.data.get("categories") is None else value


Bound = Annotated[float | date, BeforeValidator(_bound)]
_DAY_0 = date(1970, 1, 1).toordinal()
INDICATOR = "indicator"  # as `missing`: a feature of its own says that there is no value


def as_number(value: float | date) -> float:
    """A number as it is, a date as days since 1970-01-01."""
    return float(value.toordinal() - _DAY_0) if isinstance(value, date) else float(value)


_NARROWEST, _WIDEST = 1e-290, 1e290  # of a range; beyond, a division by its length overflows or loses digits


class Column(Frozen):
    """The public schema of one column: a number or a date with its range, or a category with its values.

    Numbers are clamped to [min, max] and scaled to [0, 1]; so are dates, by their days. Categories become one-hot.

    Args:
        kind: "number", "date" or "category"; it follows from the other keys when left out, except that a date is
            recognised by its range.
        min: The lower end of the range: a number, or a date such as 1990-01-31.
        max: The upper end.
        scale: How a number is scaled: "linear", or "log" for amounts of which most are small (log(1 + x − min)).
        categories: The values of a category; a plain list instead of the table is a shorthand.
        other: Whether values that are not listed share one extra slot; otherwise records with such a value are left
            out.
        missing: What stands for an empty cell: a number or date in the range, a declared category, or "indicator", an
            additional feature that is 1 where there is no value. When left out, records without a value are left out,
            except where `other` takes them.
        outside: What becomes of a value outside the range: "clamp", or "refuse", which leaves the record out.
        unit: What the numbers are measured in, such as "mg/dl"; for readers.
    """

    kind: Literal["number", "date", "category"] | None = None
    min: Bound | None = None
    max: Bound | None = None
    scale: Literal["linear", "log"] = "linear"
    categories: tuple[str, ...] | None = None
    other: bool = False
    missing: Annotated[float | date | str, BeforeValidator(_stand_in)] | None = None
    outside: Literal["clamp", "refuse"] = "clamp"
    unit: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[^\x00-\x1f]*$")] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Column:
        ranged = self.min is not None and self.max is not None
        if ranged == (self.categories is not None) or (ranged and self.other) or (not ranged and self.scale == "log"):
            raise ValueError("needs either min and max (a number) or categories (with other = true or false)")
        if ranged and isinstance(self.min, date) != isinstance(self.max, date):
            raise ValueError("needs two numbers or two dates as min and max")
        if self.kind not in (None, self.sort):
            raise ValueError(f"is a {self.sort} by its other keys, and kind says {self.kind}")
        if ranged and not self.low < self.high:
            raise ValueError("needs min < max")
        if ranged and not _NARROWEST <= self.high - self.low <= _WIDEST:
            raise ValueError("needs a range between 1e-290 and 1e290 long: numbers are divided by its length")
        if self.categories is not None and len(set(self.categories)) < len(self.categories):
            raise ValueError("names a category twice")
        if not ranged and self.outside == "refuse":
            raise ValueError("has no range that a value could be outside of; without other = true, none but the "
                             "declared categories is taken")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _missing_fits(self) -> Column:
        value = self.missing
        if value is None or value == INDICATOR:
            if value is not None and self.categories is not None and INDICATOR in self.categories:
                raise ValueError("has a category called 'indicator', so that missing = \"indicator\" is ambiguous")
        elif self.categories is not None:
            if value not in self.categories:
                raise ValueError('needs a declared category, or "indicator", as missing')
        elif isinstance(value, str) or isinstance(value, date) != isinstance(self.min, date):
            raise ValueError(f'needs a {self.sort} in the range, or "indicator", as missing')
        elif not self.low <= as_number(value) <= self.high:
            raise ValueError("needs a value from min to max as missing")
        return self

    @property
    def sort(self) -> Literal["number", "date", "category"]:
        """What kind of column it is."""
        if self.categories is not None:
            return "category"
        return "date" if isinstance(self.min, date) else "number"

    @property
    def low(self) -> float:
        """The lower end of the range, of dates in days since 1970-01-01; 0 for a category."""
        return 0.0 if self.min is None else as_number(self.min)

    @property
    def high(self) -> float:
        """The upper end."""
        return 0.0 if self.max is None else as_number(self.max)

    @property
    def flagged(self) -> bool:
        """Whether a feature of its own, its last, says that there is no value."""
        return self.missing == INDICATOR

    @property
    def width(self) -> int:
        """How many features it is encoded as."""
        return (1 if self.categories is None else len(self.categories) + self.other) + self.flagged


def _column(value: object) -> object:
    return {"categories": value} if isinstance(value, list | tuple) else value


_FINEST = 1 << 13  # of the larger end of a target's range: then single precision has 2^10 numbers in it
STEPS = 1 << 20  # a target is stored as a whole number of this many steps of its declared range


class TargetRange(Frozen):
    """The declared range of the number that a regression predicts; nothing about it is read off the records.

    Args:
        min: The lower end.
        max: The upper end.
        unit: What it is measured in, such as "days"; errors on the card are in this unit.
        outside: What becomes of a target outside the range: "clamp", or "refuse", which leaves the record out.
    """

    min: Annotated[float, Field(ge=-1e30, le=1e30)]
    max: Annotated[float, Field(ge=-1e30, le=1e30)]
    unit: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[^\x00-\x1f]*$")] | None = None
    outside: Literal["clamp", "refuse"] = "clamp"

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not self.min < self.max:
            raise ValueError("needs min < max")
        if self.span < max(1e-30, max(abs(self.min), abs(self.max)) / _FINEST):
            raise ValueError(
                f"needs a range of at least 1/{_FINEST} of its larger end: model.onnx predicts in single precision, "
                "which would round all numbers in it to a few; subtract a constant from the target"
            )
        return self

    @property
    def span(self) -> float:
        """The length of the range."""
        return self.max - self.min


Side = Annotated[int, Field(ge=1, le=65_536)]
MINILM = "minilm"  # the encoder that comes with the extra `text`, and its tokenizer
TRANSFORMERS = plugins.TRANSFORMERS
ReadOff = Literal["classes", "columns", "people", "records", "tokenizer"]


class DataConfig(Frozen):
    """Where the records are and what is public about them.

    Args:
        source: A named source (`airlock datasets` lists them, those of other packages too) or the path of the user's
            own file or folder.
        name: What the card calls the data; the file's name never leaves.
        label: The name of the label column of a CSV or Parquet file.
        classes: The class names, or their number when labels are 0, 1, 2 ...; public.
        columns: The public schema of a CSV or Parquet file, in order.
        shape: The shape of one image in a folder, [channels, height, width]; public.
        target: The range of the label column where it holds a number to predict (`task = "regression"`); public.
        text: The name of the column with the texts, where records are texts; then there are no columns. With `task =
            "language"` it is all that is read, beside `person`: there is no label.
        tokenizer: What texts become numbers by: a tokenizer.json, or a folder that has one; public, and never fitted to
            the records. "minilm" if left out: the one that comes with the extra `text`.
        tokens: How many tokens a record has: longer texts are cut off and shorter ones padded, both on the right; 64 if
            left out.
        records: The number of records the source holds for training, as a public figure; it need not be exact. Defaults
            to the published number for a named source. Never counted.
        test: A file of the same format with the test records; when left out, they are split off from the source.
        test_records: The same figure for test records that come separately: published, or a share of `records`.
        person: Which column says whose a record is: of a CSV or Parquet file, the name of an array of an npz file, or a
            column of `people.csv` in a folder of images. It is never a feature and never leaves.
        people: The number of people, as a public figure; it need not be exact. Never counted.
        records_per_person: A bound K on the records of one person that a step or a release uses; 8 if left out.
        read_off: Which of these declarations were read off the records, not known beforehand: "classes", "columns",
            "people", "records", "tokenizer". Nothing pays for that: the card says that the guarantee does not cover
            them.
    """

    source: str
    name: str | None = None
    label: str | None = None
    classes: int | tuple[str, ...] | None = None
    columns: dict[str, Annotated[Column, BeforeValidator(_column)]] = Field(default_factory=dict)
    shape: tuple[Literal[1, 3], Side, Side] | None = None
    target: TargetRange | None = None
    text: Annotated[str, Field(min_length=1)] | None = None
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    tokens: Annotated[int, Field(ge=1, le=8192)] | None = None
    records: Annotated[int, Field(ge=1)] | None = None
    test: str | None = None
    test_records: Annotated[int, Field(ge=1)] | None = None
    person: Annotated[str, Field(min_length=1)] | None = None
    people: Annotated[int, Field(ge=1)] | None = None
    records_per_person: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    read_off: Annotated[tuple[ReadOff, ...], AfterValidator(lambda names: tuple(sorted(set(names))))] = ()

    @property
    def documents(self) -> bool:
        """Whether records are texts without labels."""
        return self.text is not None and self.label is None and self.classes is None and self.target is None


def _no_count(value: object) -> object:
    if isinstance(value, int | float) and value >= 1:
        raise ValueError(
            "must be a fraction below 1: with a count, a record's part would depend on all others, and one extra "
            "record would move another, which the guarantee does not cover"
        )
    return value


Share = Annotated[Fraction, BeforeValidator(_no_count)]


ClassName = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


class SplitConfig(Frozen):
    """The fraction of the records in each part; the remainder is private.

    Args:
        public: The public fraction of all records.
        test: The test fraction of all records, if there is no official test set.
        holdout: The holdout fraction of all records.
        public_without: Names of classes that have no public records: their records that the fractions would have made
            public are private instead. The list itself is public.
    """

    public: Share = 0.0
    test: Share = 0.2
    holdout: Share = 0.1
    public_without: tuple[ClassName, ...] = ()

    @model_validator(mode="after")
    def _leaves_private(self) -> SplitConfig:
        if self.public + self.test + self.holdout >= 1:
            raise ValueError("public, test and holdout must add up to less than 1, or no private record is left")
        return self

    @model_validator(mode="after")
    def _takes_out_of_something(self) -> SplitConfig:
        if self.public_without and not self.public:
            raise ValueError("public_without takes classes out of the public part, and split.public = 0 leaves none")
        if len(set(self.public_without)) < len(self.public_without):
            raise ValueError("public_without names a class twice")
        return self


def _data(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


AnyData = Annotated[DataConfig, BeforeValidator(_data)]
ACCOUNTANTS = ("auto", "pld", "rdp")


def _known(name: str) -> str:
    known = (*ACCOUNTANTS, *plugins.table(plugins.ACCOUNTANTS))
    if name not in known:
        raise ValueError(f"Known accountants: {', '.join(known)}; others come with a package that has to be installed")
    return name


Accounting = Annotated[str, AfterValidator(_known)]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


def may_have_a_register() -> None:
    """Before a model with the field: every class can register others (`abc`), and pydantic warns of the name."""
    warnings.filterwarnings("ignore", 'Field name "register" in', UserWarning)


may_have_a_register()

MOST_CANDIDATES = 64  # each is planned before a record is read, and again by whoever verifies
SEARCHED_KEYS = ("channel", "method", "net")  # what a candidate may name besides settings


def _grids(value: object) -> object:
    """A table of lists, or several: with dotted keys, whether they were written as such or as tables in tables."""
    grids = [value] if isinstance(value, Mapping) else value
    if not isinstance(grids, list | tuple) or not all(isinstance(grid, Mapping) for grid in grids):
        return value
    return [{key: row if isinstance(row, list | tuple) else [row] for key, row in _dotted(grid)} for grid in grids]


def _dotted(table: Mapping[str, object], above: str = "") -> Iterable[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _searchable(grid: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    for key, values in grid.items():
        if key not in SEARCHED_KEYS and not key.startswith("settings."):
            raise ValueError(f"'{key}' cannot be searched: only {', '.join(SEARCHED_KEYS)} and keys of settings can")
        if not values:
            raise ValueError(f"'{key}' needs at least one value")
    if not grid:
        raise ValueError("names nothing to search")
    return grid


Grid = Annotated[dict[str, tuple[Any, ...]], AfterValidator(_searchable)]


class TuneBase(Frozen):
    """What the candidates of a search have in common, as the config had it before one of them won.

    Args:
        channel: As in the config; in bundles from before candidates could name one, that of the winner.
        method: As in the config.
        net: As in the config.
        settings: As in the config.
    """

    channel: str | None = None
    method: str | None = None
    net: str = "auto"
    settings: dict[str, Any] = Field(default_factory=dict)


class TuneTerms(Frozen):
    """How often a search runs, and what its scores may cost.

    Args:
        mean: The expected number of runs. How many there are is drawn at random and stays secret.
        shape: Of their distribution, the truncated negative binomial: 1 is geometric, 0 logarithmic.
        score_share: The share of ε that the runs' scores may cost a test record; the card's figures get the rest.
    """

    mean: Annotated[float, Field(gt=1, le=1000)] = 10.0
    shape: Annotated[float, Field(ge=0, le=10)] = 1.0
    score_share: Annotated[float, Field(gt=0, lt=1)] = 0.5

    @model_validator(mode="after")
    def _has_a_sampler(self) -> Self:
        if float(Ratio(self.shape).limit_denominator(10_000)) != self.shape:
            raise ValueError("shape must be a fraction with a denominator of at most 10,000")
        return self


class TuneConfig(TuneTerms):
    """A random search over declared settings, which the release's (ε, δ) pays for (`methods.search`).

    Args:
        run_epsilon: The ε that each run alone is planned with; found when left out.
        score_epsilon: The ε of one score; found when left out.
        search: For each dotted key (`channel`, `method`, `net`, `settings.…`) the list of its values: every combination
            is a candidate. With several tables, the candidates of all of them. What a candidate does not name, it has
            from the config.
        base: In a bundle, whose config is that of the winner: what the others have in common.
        won: In a bundle: the place of the winner among the candidates, from 0.
    """

    run_epsilon: Positive | None = None
    score_epsilon: Annotated[float, Field(ge=1e-4, le=100)] | None = None
    search: Annotated[tuple[Grid, ...], Field(min_length=1), BeforeValidator(_grids)]
    base: TuneBase | None = None
    won: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _not_too_many(self) -> TuneConfig:
        total = sum(math.prod(map(len, grid.values())) for grid in self.search)
        if total > MOST_CANDIDATES:
            raise ValueError(f"search has {total:,} candidates, and at most {MOST_CANDIDATES} can be planned")
        if self.won is not None and self.won >= len(self.candidates):
            raise ValueError("won is no place of a candidate")
        return self

    @property
    def candidates(self) -> tuple[dict[str, Any], ...]:
        """Every combination once, as dotted keys and values."""
        found: list[dict[str, Any]] = []
        for grid in self.search:
            for values in itertools.product(*grid.values()):
                one = dict(zip(grid, values, strict=True))
                if one not in found:
                    found.append(one)
        return tuple(found)


def _declared(text: str) -> str:
    if any(unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in text):
        raise ValueError("must be one line of plain text, without signs that a terminal or a page acts on")
    return text.strip()


Declared = Annotated[str, Field(max_length=500), AfterValidator(_declared)]


class About(Frozen):
    """Whose data and what for, as whoever answers for them declares it in plain words; the card says it as it is.

    Args:
        whose: Whose data these are.
        fields: Which fields of a record were used.
        purpose: What the release is for.
        controller: Who answers for the data.
        recipient: To whom the release goes; the register says so too.
        retention: How long the recipient may keep it.
    """

    whose: Declared = ""
    fields: Declared = ""
    purpose: Declared = ""
    controller: Declared = ""
    recipient: Declared = ""
    retention: Declared = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The keys that declare nothing."""
        return tuple(key for key in type(self).model_fields if not getattr(self, key))


def _weights(value: object) -> object:
    """Positive, finite numbers by class, checked here so that the error names the key as it was written."""
    if value is None:
        return value
    if not isinstance(value, Mapping | list | tuple):
        raise PydanticCustomError("weights", "Write { dies = 10 }, say, or a list in the order of the classes")
    if not all(_is_weight(one) for one in (value.values() if isinstance(value, Mapping) else value)):
        raise PydanticCustomError("weights", "Every weight has to be a number above 0")
    return value


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


ClassWeights = Annotated[dict[ClassName, float] | tuple[float, ...] | None, BeforeValidator(_weights)]


class ReleaseConfig(Frozen):
    """One release: channel, method, data and budget; everything else has a working default.

    Args:
        channel: What leaves: weights, twin, student, features or answers.
        method: How it is made. When left out, what usually does best by public facts (`methods.choice`); the channel's
            first method where `net`, `settings` or `tune` is given.
        data: A named source, a path, or a table (`DataConfig`).
        task: What is learnt: which of several classes the label is, a number ("regression") with a range in
            `data.target`, or the next token of texts that have no label ("language").
        epsilon: The target ε of the whole release.
        delta: The δ at which ε is stated.
        seed: Seeds initialisation and splits. Never seeds the privacy noise, the sampling of lots, or the random
            treatment of the records in a lot.
        net: A built-in network, one of another package by its name, `package.module:function`, or "auto".
        split: The fractions of public, test and holdout records.
        accountant: The accountant that bounds ε: "pld", "rdp", or "auto", which uses PLD and falls back to RDP. An
            accountant of another package, by its name, can raise ε above that but never lower it.
        tuning_runs: How many times in total this release is run before one result is picked; each run is paid for.
        attack_share: The share of ε spent on attack figures on the card; the method gets the rest. At 0 only the
            dossier has them.
        device: Where to compute; "auto" uses the GPU if there is one.
        unit: Whose presence is protected: "person", with all her records, or "record". When left out, a person where
            `data.person` says whose a record is, else a record.
        tune: A search over settings, which is paid for; none when left out.
        settings: The method's own settings.
        class_weights: How much a record of each class counts in training, relative to the others: a table such as {
            dies = 10 }, where classes that it does not name count 1, or a list in the order of the classes. Declared,
            never read off the records; for methods that learn from labels.
        register: The register of the data set: a SQLite file or postgresql://…; never in a bundle.
        recipient: `about.recipient` by its earlier name: for the register alone, never in a bundle.
        about: Whose data and what for, in plain words; on the card.
    """

    channel: str
    method: str | None = None
    data: AnyData
    task: Literal["classification", "regression", "language"] = "classification"
    epsilon: Annotated[Positive, Field(le=1000)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    net: str = "auto"
    split: SplitConfig = SplitConfig()
    accountant: Accounting = "auto"
    tuning_runs: Annotated[int, Field(ge=1, le=10_000)] = 1
    attack_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    device: Device = "auto"
    unit: Literal["person", "record"] | None = None
    tune: TuneConfig | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    class_weights: ClassWeights = None
    register: str | None = None
    recipient: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")] = ""
    about: About = About()

    @model_validator(mode="after")
    def _one_recipient(self) -> Self:
        if self.recipient and self.about.recipient and self.recipient != self.about.recipient:
            raise ValueError("recipient and about.recipient name two recipients; about.recipient alone is enough")
        return self

    @model_validator(mode="after")
    def _task_fits(self) -> Self:
        if self.task != "regression" and self.data.target is not None:
            raise ValueError('data.target is the range of a number to predict; add task = "regression"')
        if self.task == "language":
            self._check_language()
        elif self.task == "regression":
            self._check_regression()
        return self

    def _check_language(self) -> None:
        """Refuse what a language model has no use for."""
        if self.data.label is not None or self.data.classes is not None or self.split.public_without:
            raise ValueError(
                'the next token (task = "language") needs no label: leave out data.label, data.classes and '
                "split.public_without, and name the texts in data.text"
            )
        if self.class_weights is not None:
            raise ValueError("texts without labels have no classes: leave out class_weights")
        if self.data.tokens == 1:
            raise ValueError("of one token there is no next one: data.tokens has to be at least 2")
        self._check_without_classes("a language model")

    def _check_regression(self) -> None:
        """Refuse a number without a range, and what is about classes."""
        if self.data.target is None:
            raise ValueError(
                'a number to predict (task = "regression") needs the range that it is in: '
                'target = { min = 0, max = 100, unit = "days" } in [data]'
            )
        if self.data.classes is not None or self.split.public_without:
            raise ValueError("a number to predict has no classes: leave out data.classes and split.public_without")
        self._check_without_classes("a number to predict")

    def _check_without_classes(self, what: str) -> None:
        if self.tune is not None:
            raise ValueError(f"a search compares candidates by their accuracy, and {what} has none: leave out [tune]")
        if self.attack_share:
            raise ValueError("paid attack figures are about classes: leave out attack_share")

    @property
    def receiver(self) -> str:
        """To whom the release goes, for the register."""
        return self.about.recipient or self.recipient


class Project(Frozen):
    """What a file airlock.toml says for all releases that are made in its folder.

    Args:
        register: The register of the data set.
    """

    register: str | None = None


def load_project(path: Path) -> str | None:
    """The register that a project file names, relative to its folder; None if there is no such file, or it names none.

    Raises:
        ConfigError: It is not TOML, or has other keys.
    """
    if not path.is_file():
        return None
    named = parse(Project, read_toml(path), path.name).register
    return resolved(named, path.absolute().parent) if named is not None else None


def load(path: Path, overrides: Mapping[str, object] | None = None) -> ReleaseConfig:
    """Read a TOML file; `overrides` maps dotted keys ("settings.steps") to values that replace the file's.

    Raises:
        Refused: It is a bundle's and leads to code from elsewhere that `overrides` does not name.
    """
    return from_table(read_table(path, overrides), overrides, folder=path.parent)


def read_table(path: Path, overrides: Mapping[str, object] | None = None) -> dict[str, object]:
    """The table in a TOML file; a bundle's, which anyone may have written, must not lead to code from elsewhere.

    Args:
        path: The file.
        overrides: What the user names, by dotted key.

    Raises:
        Refused: It is a bundle's and leads to code from elsewhere that `overrides` does not name.
    """
    table = read_toml(path)
    if any((folder / name).exists() for name in _BESIDE_A_CARD for folder in (path.parent, path.resolve().parent)):
        plugins.refuse_strangers(table, overrides)
    return table


def read_toml(path: Path) -> dict[str, object]:
    """The table in a TOML file.

    Raises:
        ConfigError: There is none that can be read.
    """
    if path.suffix.lower() in _RECORDS:
        do = f"To write a config for it, with what you declare about it: airlock advise --data {path}"
        raise ConfigError("a config, which is a TOML file", f"{path}, which holds records", do=do)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"at most {MAX_BYTES:,} bytes in {path}", "more", do="Check the path.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError("a config file", f"nothing at {path}", do="Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("a readable config file", f"{path}, which cannot be read as text") from error
    return parse_toml(text, str(path))


def parse_toml(text: str, where: str) -> dict[str, object]:
    """The table in a TOML text; `where` it is from is for the error.

    Raises:
        ConfigError: It is not TOML, is nested too deeply, or has a whole number of more than 64 bits.
    """
    expected = f"valid TOML in {where}"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(expected, f"a syntax error: {error}") from error
    except RecursionError as error:
        raise ConfigError(expected, "tables nested too deeply", _FLAT, "Flatten them.") from error
    except ValueError as error:  # Python converts no number of thousands of digits
        raise ConfigError(expected, "a number with too many digits", _SMALL, "Write it as 1e30.") from error
    layer: list[object] = [table]
    for _ in range(_DEEPEST):
        if any(type(value) is int and not -(2**63) <= value < 2**63 for value in layer):
            raise ConfigError(expected, "a whole number of more than 64 bits", _SMALL, "Write it as 1e30.")
        layer = [inner for value in layer for inner in _inside(value)]
        if not layer:
            return table
    raise ConfigError(expected, "tables nested too deeply", _FLAT, "Flatten them.")


def _inside(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def from_table(
    table: Mapping[str, object], overrides: Mapping[str, object] | None = None, folder: Path | None = None
) -> ReleaseConfig:
    """Validate a table; relative data paths are resolved against `folder` if they exist there."""
    merged = merge(table, overrides or {})
    config = parse(ReleaseConfig, merged)
    return config.model_copy(
        update={
            "data": placed(config.data, folder),
            "net": _placed_net(config.net, folder),
            "register": resolved(config.register, folder),
        }
    )


def placed(data: DataConfig, folder: Path | None) -> DataConfig:
    """The same data, with relative paths resolved against `folder` if they exist there."""
    places = {key: resolved(getattr(data, key), folder) for key in ("source", "test", "tokenizer")}
    places |= {"tokenizer": MINILM} if data.tokenizer == MINILM else {}
    return data.model_copy(update=places)


def _placed_net(net: str, folder: Path | None) -> str:
    """The same for the folder of a network of transformers."""
    place = net.removeprefix(TRANSFORMERS)
    return net if place in (net, MINILM) else f"{TRANSFORMERS}{resolved(place, folder)}"


def parse(model: type[M], table: Mapping[str, object], where: str = "") -> M:
    """Validate a table against a model; the error names the key, the nearest valid key, and the reason."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        found = error.errors(include_url=False)  # a misspelt key is also a missing one: the typed name says more
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        raise _translate(model, first, where) from error


def _translate(model: type[BaseModel], error: Any, where: str) -> ConfigError:
    path = [str(part) for part in error["loc"]]
    key = ".".join([where, *path] if where else path)
    if error["type"] == "extra_forbidden":
        known = _keys_at(model, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(sorted(known))}."
        return ConfigError(
            "only known keys in the config", f"'{key}'", "A key that was silently ignored would hide a mistake.", hint
        )
    if error["type"] == "missing":
        return ConfigError(f"'{key}' in the config", "none", do=f"Add a line '{key} = ...'.")
    found, reason = error.get("input"), _sentence(error["msg"])
    if isinstance(found, Mapping) and error["type"] == "value_error":  # each key is valid, but not the combination
        return ConfigError(
            f"keys{f' of [{key}]' if key else ''} that go together", "a combination that does not", reason
        )
    return ConfigError(f"a valid '{key}'", repr(found) if _plain(found) else "another value", reason)


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    if "." in message.split()[0][:-1] or "_" in message.split()[0]:  # the name of a key
        return message + ("" if message.endswith(".") else ".")
    return message[:1].upper() + message[1:] + ("" if message.endswith(".") else ".")


def _plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str) and len(str(value)) <= 80


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The known keys of the table that `path` leads to, walking through nested models."""
    for part in path:
        field = model.model_fields.get(part)
        models = _models_in(field.annotation) if field else [model]
        model = models[0] if models else model
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models_in(inner)]


def described(model: type[BaseModel]) -> dict[str, str]:
    """What each key says, from the `Args:` of the model's docstring and of those it inherits from."""
    found: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        text = inspect.cleandoc(parent.__doc__ or "").partition("\nArgs:\n")[2].split("\n\n")[0]
        for name, says in re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text, re.M):
            found[name] = " ".join(says.split())
    return found


def merge(table: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    """A table with the values of dotted keys replaced."""
    merged: dict[str, object] = dict(table)
    for dotted, value in overrides.items():
        *path, last = dotted.split(".")
        inner = merged
        for part in path:
            below = inner.get(part, {})
            below = {"source": below} if part == "data" and isinstance(below, str) else below
            if not isinstance(below, Mapping):
                raise ConfigError(f"a table at '{part}'", f"a plain value, so '{dotted}' cannot be set")
            inner[part] = inner = dict(below)
        inner[last] = value
    return merged


def resolved(source: str | None, folder: Path | None) -> str | None:
    """A relative path, resolved against `folder` if something is there; anything else unchanged."""
    if source is None or folder is None or Path(source).is_absolute():
        return source
    return str(folder / source) if (folder / source).exists() else source

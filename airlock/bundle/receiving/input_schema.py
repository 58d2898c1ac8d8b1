"""What a row is and what comes back, as declared: `schema.json`.

In: the public facts about the data, which follow from the config. Out: an `InputSchema` for whoever receives the
bundle: the declared columns in their order with units, ranges and categories, what a missing value becomes and what
happens to one outside its range; for images, their shape and scale; for texts, by which tokenizer they become how many
numbers; and the classes. Nothing in it depends on a record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from airlock.config import INDICATOR, Bound, Column, DataConfig, Frozen, Shape, TargetRange, parse
from airlock.data.sources import SOURCES
from airlock.errors import ConfigError

IMAGE_AXES = 3
_ELSEWHERE = "(not in the bundle)"
_SHOWN = 12  # categories that a sentence names
_REST = "counts as “other”"
PIXELS = "whole numbers from 0 to 255 (uint8), or numbers from 0 to 1"


class NamedColumn(Column):
    """One column of a table, as declared.

    Args:
        name: Its name.
    """

    name: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the keys that mean something for this kind of column; `missing` null refuses empty cells."""
        own = ("categories", "other") if self.sort == "category" else ("min", "max", "scale", "outside")
        keys = ("name", "kind", *(("unit",) if self.unit else ()), *own, "missing")
        table = self.model_dump(mode="json")
        return {key: table[key] for key in keys}

    @property
    def example(self) -> float | str:
        """A value that fits: the middle of a range, a date's first day, the first category."""
        if self.categories is not None:
            return self.categories[0] if self.categories else "anything"
        return str(self.min) if self.sort == "date" else float(f"{(self.low + self.high) / 2:.6g}")

    @property
    def takes(self) -> str:
        """What a cell may be, in words."""
        if self.categories is not None:
            more = len(self.categories) - _SHOWN
            named = ", ".join(self.categories[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            return f"{named}{', or anything else' if self.other else ''}".removeprefix(", or ")
        unit = f", in {self.unit}" if self.unit else ""
        return f"a {self.sort} from {_shown(self.min)} to {_shown(self.max)}{unit}"

    @property
    def when_missing(self) -> str:
        """What an empty cell becomes, in words."""
        if self.missing is None:
            return _REST if self.other else "refused"
        return "is a value of its own" if self.missing == INDICATOR else f"counts as {_shown(self.missing)}"

    @property
    def otherwise(self) -> str:
        """What becomes of any other value, in words."""
        if self.categories is not None:
            return _REST if self.other else "refused"
        return "counts as the nearest end" if self.outside == "clamp" else "refused"


class TextColumn(Frozen):
    """The column of the texts, and the public tokenizer that they become numbers by, which is in the bundle.

    Args:
        name: Of the column.
        tokenizer: SHA-256 of tokenizer.json.
        tokens: How many tokens of a text are read; what it has beyond them is cut off.
        vocabulary: How many different numbers there are: 0 for nothing, else a token's number plus 1.
    """

    name: str
    tokenizer: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    tokens: Annotated[int, Field(ge=1)]
    vocabulary: Annotated[int, Field(ge=2)]


class InputSchema(Frozen):
    """What a row is and what comes back.

    Args:
        schema_version: The version of this format.
        kind: "table", "image", "text", or "numbers": a vector whose meaning only the holder knows.
        columns: Of a table, in the order in which they are encoded.
        shape: What one row becomes for the network: (numbers,), or (channels, height, width) of an image.
        pixels: The scale of an image's pixels; null elsewhere.
        text: The column of the texts and their tokenizer; null elsewhere.
        label: The name of what is predicted, where the holder declared one.
        classes: The classes, in the order of the outputs; none where a number or the next token is predicted.
        target: The range and unit of the number that is predicted; null where there is none.
    """

    schema_version: Literal[1] = 1
    kind: Literal["table", "image", "text", "numbers"]
    columns: tuple[NamedColumn, ...] = ()
    shape: Shape
    pixels: str | None = None
    text: TextColumn | None = None
    label: str | None = None
    classes: tuple[str, ...] = ()
    target: TargetRange | None = None

    @property
    def by_name(self) -> dict[str, Column]:
        """The columns by name, in their order."""
        return {column.name: column for column in self.columns}

    @property
    def language(self) -> bool:
        """Whether the next token of a text is predicted."""
        return self.text is not None and not self.classes and self.target is None

    @property
    def gives(self) -> str:
        """What is predicted, in words."""
        if self.target is not None:
            unit = f", in {self.target.unit}" if self.target.unit else ""
            return f"a number from {_shown(self.target.min)} to {_shown(self.target.max)}{unit}"
        if self.language:
            return "the perplexity of a text, and the probability of each token after it"
        return f"one of {', '.join(self.classes[:_SHOWN])}{', …' if len(self.classes) > _SHOWN else ''}"

    @property
    def example(self) -> dict[str, float | str]:
        """A row of a table that fits."""
        return {column.name: column.example for column in self.columns}

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what does not apply is left out."""
        table = self.model_dump(mode="json", exclude_none=True)
        table["columns"] = [column.to_dict() for column in self.columns]
        return {key: value for key, value in table.items() if value != []}

    def to_json(self) -> str:
        """The content of schema.json."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def input_schema(
    columns: Sequence[tuple[str, Column]],
    shape: tuple[int, ...],
    classes: tuple[str, ...],
    label: str | None,
    target: TargetRange | None = None,
    text: TextColumn | None = None,
) -> InputSchema:
    """The schema that follows from public facts.

    Args:
        columns: Of a table, in the order in which they are encoded; empty for other data.
        shape: Of a record, encoded.
        classes: In the order of the outputs.
        label: The name of what is predicted.
        target: Its range, if it is a number.
        text: The column of the texts, where records are texts.
    """
    image = len(shape) == IMAGE_AXES
    return InputSchema(
        kind="table" if columns else "image" if image else "text" if text is not None else "numbers",
        columns=tuple(_named(name, column) for name, column in columns),
        shape=shape,
        pixels=PIXELS if image else None,
        text=text,
        label=label,
        classes=classes,
        target=target,
    )


def text_column(data: DataConfig, tokens: int, vocabulary: int | None, tokenizer: str | None) -> TextColumn | None:
    """The column of the texts that a config declares, by a tokenizer of this digest; None for other data."""
    if vocabulary is None or tokenizer is None:
        return None
    known = SOURCES.get(data.source)
    name = data.text or (known.text if known is not None else None) or "text"
    return TextColumn(name=name, tokenizer=tokenizer, tokens=tokens, vocabulary=vocabulary)


def declared_schema(
    data: object,
    shape: tuple[int, ...],
    classes: tuple[str, ...],
    vocabulary: int | None = None,
    tokenizer: str | None = None,
) -> InputSchema:
    """The schema that the table [data] of a bundle's config leads to.

    Args:
        data: The table; where the holder's own records are is not in a bundle.
        shape: Of a record, encoded.
        classes: In the order of the outputs.
        vocabulary: Of texts, as the card says.
        tokenizer: Of texts: SHA-256 of their tokenizer.json, as the card says.

    Raises:
        ConfigError: It declares nothing that can be read, or its columns have another width.
    """
    declared = parse(DataConfig, {"source": _ELSEWHERE, **(data if isinstance(data, Mapping) else {})}, "data")
    known = SOURCES.get(declared.source)
    columns = tuple(declared.columns.items()) if known is None else known.columns
    width = sum(column.width for _, column in columns)
    if columns and shape != (width,):
        raise ConfigError(f"columns that become {shape} numbers", f"columns that become {width}")
    text = text_column(declared, shape[0], vocabulary, tokenizer)
    return input_schema(columns, shape, classes, declared.label, declared.target, text)


def _shown(value: Bound | str | None) -> str:
    return f"{value:,.12g}" if isinstance(value, float) else str(value)


def _named(name: str, column: Column) -> NamedColumn:
    return NamedColumn(name=name, **{**dict(column), "kind": column.sort})

"""What a row is and what comes back, as declared: `schema.json`.

In: the public facts about the data, which follow from the config. Out: an `InputSchema` for whoever receives the
bundle: the declared columns in their order with units, ranges and categories, what a missing value becomes and what
happens to one outside its range; for images, their shape and scale; and the classes. Nothing in it depends on a record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from airlock.config import Column, Frozen, Shape

IMAGE_AXES = 3
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


class InputSchema(Frozen):
    """What a row is and what comes back.

    Args:
        schema_version: The version of this format.
        kind: "table", "image", or "numbers": a vector whose meaning only the holder knows.
        columns: Of a table, in the order in which they are encoded.
        shape: What one row becomes for the network: (numbers,), or (channels, height, width) of an image.
        pixels: The scale of an image's pixels; null elsewhere.
        label: The name of what is predicted, where the holder declared one.
        classes: The classes, in the order of the outputs.
    """

    schema_version: Literal[1] = 1
    kind: Literal["table", "image", "numbers"]
    columns: tuple[NamedColumn, ...] = ()
    shape: Shape
    pixels: str | None = None
    label: str | None = None
    classes: tuple[str, ...]

    @property
    def by_name(self) -> dict[str, Column]:
        """The columns by name, in their order."""
        return {column.name: column for column in self.columns}

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what does not apply is left out."""
        table = self.model_dump(mode="json", exclude={"columns"}, exclude_none=True)
        return table | ({"columns": [column.to_dict() for column in self.columns]} if self.columns else {})

    def to_json(self) -> str:
        """The content of schema.json."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def input_schema(
    columns: Sequence[tuple[str, Column]], shape: tuple[int, ...], classes: tuple[str, ...], label: str | None
) -> InputSchema:
    """The schema that follows from public facts.

    Args:
        columns: Of a table, in the order in which they are encoded; empty for other data.
        shape: Of a record, encoded.
        classes: In the order of the outputs.
        label: The name of what is predicted.
    """
    image = len(shape) == IMAGE_AXES
    return InputSchema(
        kind="table" if columns else "image" if image else "numbers",
        columns=tuple(_named(name, column) for name, column in columns),
        shape=shape,
        pixels=PIXELS if image else None,
        label=label,
        classes=classes,
    )


def _named(name: str, column: Column) -> NamedColumn:
    return NamedColumn(name=name, **{**dict(column), "kind": column.sort})

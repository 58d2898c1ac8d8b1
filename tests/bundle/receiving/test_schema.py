"""schema.json says what a row is, follows from the declared config, and nothing but that passes verification."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import airlock
from airlock.bundle import Bundle, Card, Vault, verify
from airlock.bundle.bundle import hashes, texts
from airlock.bundle.contents import Contents
from airlock.bundle.receiving.input_schema import InputSchema, input_schema
from airlock.bundle.receiving.model import schema_of
from airlock.bundle.rendering.page import render_html, render_readme
from airlock.config import Column
from airlock.errors import ConfigError
from tests.bundle.forging import forge, seal
from tests.bundle.receiving import table


def failed(folder: Path, vault: Vault) -> dict[str, str]:
    return {check.name: check.says for check in verify(folder, vault).checks if check.outcome == "failed"}


def test_it_says_all_that_is_declared_and_nothing_else(table_bundle: Bundle) -> None:
    found = json.loads((table_bundle.folder / "schema.json").read_text())
    assert list(found) == ["schema_version", "kind", "columns", "shape", "label", "classes"]
    assert (found["kind"], found["label"], found["classes"]) == ("table", "ill", ["no", "yes"])
    assert found["shape"] == [sum(column.width for column in table.CONFIG.data.columns.values())]
    assert [column["name"] for column in found["columns"]] == list(table.COLUMNS)
    assert found["columns"][0] == {
        "name": "age", "kind": "number", "unit": "years", "min": 18.0, "max": 90.0, "scale": "linear",
        "outside": "clamp", "missing": 60.0,
    }  # fmt: skip
    assert found["columns"][3]["min"] == "2000-01-01"
    assert found["columns"][4] == {
        "name": "city", "kind": "category", "categories": ["Bern", "Basel", "Chur"], "other": True, "missing": None,
    }  # fmt: skip


def test_an_untouched_bundle_of_a_table_passes(table_folder: Path, vault: Vault) -> None:
    checks = {check.name: check.outcome for check in verify(table_folder, vault).checks}
    assert checks["schema"] == checks["table"] == checks["plan"] == "ok"
    assert "failed" not in checks.values()


@pytest.mark.parametrize(
    ("card", "config"),
    [
        ({"inputs.label": "well"}, {}),
        ({"inputs.classes": ["yes", "no"]}, {}),
        ({"inputs.kind": "numbers"}, {}),
        ({}, {"data.columns.age.max": 91.0}),
        ({}, {"data.columns.amount.outside": "clamp"}),
        ({}, {"data.label": "well"}),
    ],
)
def test_it_has_to_be_what_the_config_declares(
    table_folder: Path, vault: Vault, card: dict[str, object], config: dict[str, object]
) -> None:
    """Although the forger writes schema.json, the pages and the checksums again."""
    assert "schema" in failed(forge(table_folder, card, config), vault)


def columns_changed(folder: Path) -> None:
    """A range that makes everybody old, in the card and all that follows from it, but not in the config."""
    whole = json.loads((folder / "card.json").read_text())
    whole["inputs"]["columns"][0]["max"] = 1000.0
    made = Card.model_validate(whole)
    for name, text in texts(made).items():
        (folder / name).write_text(text)


def edited(folder: Path) -> None:
    (folder / "schema.json").write_text((folder / "schema.json").read_text().replace("90.0", "900.0"))


def gone(folder: Path) -> None:
    (folder / "schema.json").unlink()


def another_graph(folder: Path) -> None:
    """A file that answers "no" to everybody, under its right hash on the card."""
    place = folder / "model.table.onnx"
    model = onnx.load_model_from_string(place.read_bytes())
    for tensor in model.graph.initializer:
        if list(tensor.string_data) == [b"no", b"yes"]:
            tensor.string_data[:] = [b"no", b"no"]
    place.write_bytes(model.SerializeToString(deterministic=True))
    rehashed(folder)


def a_note(folder: Path) -> None:
    place = folder / "model.table.onnx"
    model = onnx.load_model_from_string(place.read_bytes())
    model.doc_string = "by ann"
    place.write_bytes(model.SerializeToString(deterministic=True))
    rehashed(folder)


def rehashed(folder: Path) -> None:
    names = ("model.safetensors", "model.onnx", "model.table.onnx", "config.toml")
    whole = Card.model_validate_json((folder / "card.json").read_text())
    own = hashes({name: (folder / name).read_bytes() for name in names})
    for name, text in texts(whole.model_copy(update={"hashes": own})).items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("tamper", "check"),
    [(columns_changed, "schema"), (edited, "schema"), (gone, "schema"), (another_graph, "table"), (a_note, "table")],
)
def test_what_is_forged_is_found(table_folder: Path, vault: Vault, tamper: Callable[[Path], None], check: str) -> None:
    tamper(table_folder)
    seal(table_folder)
    found = failed(table_folder, vault)
    assert check in found
    assert set(found) <= {check, "table", "checksums"}


def without_a_schema(card: Card) -> Card:
    own = card.hashes.model_copy(update={"model_table_onnx": None}) if card.hashes else None
    return card.model_copy(update={"inputs": None, "hashes": own})


def test_a_bundle_from_before_has_none_and_opens_all_the_same(table_folder: Path, table_bundle: Bundle) -> None:
    older = without_a_schema(table_bundle.card)
    for name in ("schema.json", "model.table.onnx"):
        (table_folder / name).unlink()
    for name, text in texts(older).items():
        (table_folder / name).write_text(text)
    seal(table_folder)
    model = airlock.load(table_folder)
    assert model.schema == table_bundle.card.inputs
    assert model.predict([table.GOOD])[0] in table.CLASSES
    assert "pixels are scaled to 0 to 1" in (table_folder / "README.md").read_text()  # as it was written then
    (table_folder / "schema.json").write_text(model.schema.to_json())
    seal(table_folder)
    assert "schema" in failed(table_folder, Vault.open())


def test_the_pages_describe_a_table_in_its_own_words(table_bundle: Bundle) -> None:
    readme, page = render_readme(table_bundle.card), render_html(table_bundle.card)
    assert "pixel" not in readme
    assert "pixel" not in page
    for words in ("a number from 18 to 90, in years", "counts as 60", "counts as the nearest end",
                  "is a value of its own", "a date from 2000-01-01 to 2020-12-31", "counts as 2010-01-01",
                  "Bern, Basel, Chur, or anything else", "counts as “other”", "refused"):  # fmt: skip
        assert words in readme
        assert words in page


def test_the_examples_in_the_readme_run(table_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(table_bundle.folder)
    parts = (table_bundle.folder / "README.md").read_text().split("```python\n")[1:]
    names: dict[str, object] = {}
    for part in parts:
        exec(compile(part.split("```")[0], "README.md", "exec"), names)
    assert len(parts) == 4
    assert names["label"].tolist() == names["model"].predict(names["rows"]).tolist()  # type: ignore[attr-defined]
    assert not names["refused"].any()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ['"', "\\", "`", "</pre>", "a|b", "😀", "\u202eevil", "line\nbreak", ""])
def test_no_name_of_a_column_breaks_a_page(table_bundle: Bundle, name: str) -> None:
    columns = ((name, Column(min=0, max=1)), ("b", Column(categories=(name, "x"))))
    schema = input_schema(columns, (3,), table.CLASSES, name or None)
    card = table_bundle.card.model_copy(update={"inputs": schema})
    readme, page = render_readme(card), render_html(card)
    code = readme.split("```python\n")[1].split("```")[0].split("rows = ")[1].split("model.predict")[0]
    assert list(ast.literal_eval(code)[0]) == [name, "b"]
    assert "</pre></td>" not in page
    assert "\u202e" not in readme + page


def test_images_and_vectors_have_one_too(original: Bundle) -> None:
    found = json.loads((original.folder / "schema.json").read_text())
    assert found["kind"] == "image"
    assert found["shape"] == [1, 8, 8]
    assert "0 to 255" in found["pixels"]
    numbers = input_schema((), (446,), ("a", "b"), None)
    assert numbers.to_dict() == {"schema_version": 1, "kind": "numbers", "shape": [446], "classes": ["a", "b"]}
    assert schema_of(original) == original.card.inputs


def test_columns_of_another_width_are_refused(table_folder: Path, table_bundle: Bundle) -> None:
    card = without_a_schema(table_bundle.card)
    other = card.model_copy(update={"data": card.data.model_copy(update={"shape": (3,)})})
    with pytest.raises(ConfigError, match="columns"):
        schema_of(dataclasses.replace(table_bundle, card=other))


def test_the_schema_of_a_card_is_read_back(table_bundle: Bundle) -> None:
    again = Card.model_validate_json(table_bundle.card.to_json())
    assert isinstance(again.inputs, InputSchema)
    assert again.inputs == table_bundle.card.inputs
    assert Contents(table_bundle.folder).read("schema.json").decode() == again.inputs.to_json()

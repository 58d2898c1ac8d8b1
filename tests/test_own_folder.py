"""A user's own folder of transformers: an architecture that no other test looks at, from release to service."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

import airlock
from airlock import pipeline
from airlock.auditing import AuditSettings
from airlock.bundle import Vault
from airlock.bundle.answering import open_answerer, open_reader
from airlock.config import from_table
from airlock.serve.service import Service
from tests.serve.selling import make, running
from tests.texts import SPECIAL, WORDS, reviews, write_tokenizer

TOKENS, RECORDS, VOCABULARY = 10, 800, len(SPECIAL) + len(WORDS)


def save_roformer(folder: Path) -> Path:
    """An encoder with rotary positions, as `save_pretrained` leaves it: a body without a head for classes."""
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(
        "roformer", vocab_size=VOCABULARY, embedding_size=16, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        AutoModel.from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_a_folder_of_one_s_own_goes_all_the_way(tmp_path: Path) -> None:
    mine = save_roformer(tmp_path / "mine")
    with (tmp_path / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("review", "verdict"), *zip(*reviews(RECORDS), strict=True)])
    net, out, vault = f"transformers:{mine}", tmp_path / "bundle", tmp_path / "vault"
    table: dict[str, Any] = {
        "channel": "weights", "method": "gaussian", "net": net, "epsilon": 8.0, "delta": 1e-5, "device": "cpu",
        "split": {"test": 0.2, "holdout": 0.2},
        "settings": {"tune": "lora", "lora_rank": 4, "steps": 30, "lot_size": 300, "learning_rate": 0.02},
        "data": {"source": str(tmp_path / "reviews.csv"), "text": "review", "label": "verdict", "records": RECORDS,
                 "classes": ["bad", "good"], "tokenizer": str(mine), "tokens": TOKENS},
    }  # fmt: skip
    made = pipeline.make_release(from_table(table), out, insecure_seed=1, vault=vault, court_seconds=5.0)
    assert [one.refuted for one in made.dossier.court] == [False]

    checked = airlock.verify(out, net=net, vault=vault)
    assert {one.outcome for one in checked.checks} == {"ok"}, [one for one in checked.checks if one.outcome != "ok"]
    alone = airlock.verify(out, vault=vault)
    assert alone.ok
    assert {one.name for one in alone.checks if one.outcome == "skipped"} == {"plan", "outputs"}
    for file in out.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
    assert tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))["net"].startswith("transformers:roformer@")

    found = pipeline.audit_bundle(
        out, AuditSettings(shadows=4, epochs=1, most=100), net=net, vault=vault,
        overrides={"data.source": str(tmp_path / "reviews.csv")},
    )  # fmt: skip
    assert {"loss threshold", "gradient norm", "LiRA, online"} <= {one.name for one in found.dossier.audit.attacks}

    told, _ = reviews(20, seed=7)
    card, answerer = open_answerer(out, Vault.open(vault))
    service = make(tmp_path, answerer, keys=False)
    service.ledger.set_quota("local", None)
    asked = {"inputs": [{"name": "review", "datatype": "BYTES", "shape": [20], "data": told}]}
    with service.ledger:
        whole = Service(**{**vars(service), "schema": card.inputs, "tokenizer": open_reader(out, card)})
        with running(whole) as where, httpx.Client(base_url=where) as client:
            done = client.post("/v2/models/pets/infer", json=asked)
    assert done.status_code == 200, done.text
    classes = next(one["data"] for one in done.json()["outputs"] if one["name"] == "class")
    assert classes == airlock.load(out, vault=vault).predict(told).tolist()


@pytest.mark.parametrize("kind", ["roformer"])
def test_no_source_of_the_architecture_is_in_this_repository(kind: str) -> None:
    here = Path(__file__).resolve().parents[1]
    assert not [place for place in (here / "airlock").rglob("*.py") if kind in place.read_text(encoding="utf-8")]

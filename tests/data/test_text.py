"""Texts as records: token ids by a public tokenizer."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.config import from_table
from airlock.data import Split, describe, load, memory
from airlock.data.remarks import Faults
from airlock.data.text import CHARACTERS, Tokenizer, open_tokenizer, parse_tokenizer
from airlock.errors import AirlockError, ConfigError
from tests.texts import SPECIAL, WORDS, reviews, tokenizer_json, write_tokenizer

from .writers import config

TOKENS = 8
TEXTS, LABELS = reviews(60)
PLACES = {word: place + 1 for place, word in enumerate((*SPECIAL, *WORDS))}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path)


def own(source: object, tokenizer: Path, **data: Any) -> Any:
    known = {"records": 60, "classes": ["bad", "good"], "label": "verdict", "text": "review", "tokens": TOKENS}
    return config(source, tokenizer=str(tokenizer), **(known | data))


def frame(texts: Any = TEXTS, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"review": texts, "verdict": LABELS} | columns)


def write_csv(path: Path, texts: Any = TEXTS) -> Path:
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerows([("verdict", "review"), *zip(LABELS, texts, strict=True)])
    return path


def everything(split: Split) -> tuple[np.ndarray, np.ndarray]:
    parts = (split.private, split.test, split.holdout)
    return np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])


def expected(text: str, tokens: int = TOKENS) -> list[float]:
    inside = [PLACES.get(word, PLACES["[UNK]"]) for word in text.lower().split()][: tokens - 2]
    found = [PLACES["[CLS]"], *inside, PLACES["[SEP]"]]
    return [*map(float, found), *[0.0] * (tokens - len(found))]


def made(tokens: int = TOKENS, **kinds: Any) -> Tokenizer:
    return parse_tokenizer(tokenizer_json(**kinds).encode(), tokens)


def test_the_facts_say_how_many_numbers_and_by_which_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    facts = describe(own(write_csv(tmp_path / "d.csv"), tokenizer))
    assert facts.shape == (TOKENS,)
    assert facts.vocabulary == len(SPECIAL) + len(WORDS) + 1
    assert facts.tokenizer == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    assert describe(own(tmp_path / "d.csv", tokenizer.parent)) == facts  # the folder that holds it


def test_a_file_and_a_frame_give_the_numbers_of_the_tokens(tmp_path: Path, tokenizer: Path) -> None:
    frame().to_parquet(tmp_path / "d.parquet")
    with memory.held(frame()):
        found = [load(own(memory.SOURCE, tokenizer))]
    with memory.held((np.array(TEXTS), np.array(LABELS))):
        found += [load(own(memory.SOURCE, tokenizer, label=None))]
    found += [load(own(path, tokenizer)) for path in (write_csv(tmp_path / "d.csv"), tmp_path / "d.parquet")]
    wanted = sorted(zip(map(expected, TEXTS), [["bad", "good"].index(label) for label in LABELS], strict=True))
    for split in found:
        x, y = everything(split)
        assert x.dtype == np.float32
        assert sorted(zip(x.tolist(), y.tolist(), strict=True)) == wanted
        assert not split.remarks or all("left out" not in remark for remark in split.remarks)


def test_an_empty_text_is_one_and_a_missing_one_leaves_its_record_out(tokenizer: Path) -> None:
    texts = [*TEXTS[:-3], "", None, float("nan")]
    with memory.held(frame(pd.Series(texts, dtype=object))):
        split = load(own(memory.SOURCE, tokenizer))
    x, _ = everything(split)
    assert len(x) == 58
    assert expected("") in x.tolist()
    assert "2 records of the data in memory left out: no text in column 'review' (rows 59, 60)" in split.remarks[0]


def test_bytes_that_are_not_utf_8_leave_their_record_out_and_no_other(tmp_path: Path, tokenizer: Path) -> None:
    split = load(own(write_csv(tmp_path / "d.csv", ["fine\udcff film", *TEXTS[1:]]), tokenizer))
    x, _ = everything(split)
    assert sorted(x.tolist()) == sorted(map(expected, TEXTS[1:]))
    assert "bytes that are not UTF-8 in the text (row 1)" in split.remarks[0]


def test_a_text_that_the_tokenizer_cannot_encode_leaves_its_record_out() -> None:
    faults = Faults()
    made(unknown=None).encode("review", ["good film", "a word that nobody knows", "bad"], faults)
    (fault,) = faults.taken().items()
    assert (fault[0].what, fault[1]) == ("a text that the tokenizer cannot encode", [1])


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=1, max_size=6), st.integers(0, 5))
def test_what_a_text_becomes_depends_on_it_alone(texts: list[str | None], place: int) -> None:
    """Guarantee of `airlock.data.text`: the others of a block change neither its numbers nor whether it is kept."""
    place %= len(texts)
    tokenizer, together, alone = made(), Faults(), Faults()
    block = tokenizer.encode("t", texts, together)
    single = tokenizer.encode("t", [texts[place]], alone)
    assert np.array_equal(block[place], single[0])
    assert together.kept(len(texts))[place] == alone.kept(1)[0]
    assert block.shape == (len(texts), TOKENS)
    assert block.min() >= 0
    assert block.max() < tokenizer.vocabulary
    assert np.array_equal(block, block.round())


def test_padding_and_truncation_are_on_the_right_whatever_the_file_says() -> None:
    assert '"Left"' in tokenizer_json()
    for text in ("the film was good", " ".join(WORDS)):
        assert made().encode("t", [text], Faults())[0].tolist() == expected(text)


def test_a_text_of_any_length_costs_no_more_than_what_is_looked_at() -> None:
    seen: list[int] = []

    class Counting:
        def encode(self, text: str) -> Any:
            seen.append(len(text))
            return made().encoder.encode(text)

    assert replace(made(), encoder=Counting()).numbers("good " * 1_000_000) == expected("good " * 9)
    assert seen == [CHARACTERS * TOKENS]


def test_a_tokenizer_that_draws_random_numbers_is_refused() -> None:
    parse_tokenizer.cache_clear()
    with pytest.raises(ConfigError, match="draws random numbers"):
        made(dropout=0.1)


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b"[1]", b'{"model": {"type": "WordLevel"}}'])
def test_a_file_that_is_no_tokenizer_is_refused(text: bytes) -> None:
    with pytest.raises(AirlockError, match=r"tokenizer\.json as the tokenizers library writes it"):
        parse_tokenizer(text, TOKENS)


def test_room_for_the_text_is_needed() -> None:
    assert made(3).encode("t", ["good film"], Faults())[0].tolist() == expected("good", 3)
    with pytest.raises(ConfigError, match="more than 2 tokens in data.tokens"):
        made(2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": {"age": {"min": 0, "max": 9}}}, "either texts or rows"),
        ({"text": None, "columns": {"age": {"min": 0, "max": 9}}}, "data.tokenizer without data.text"),
        ({"text": "verdict"}, "is given the label"),
        ({"person": "review", "people": 9}, "Whose a record is"),
        ({"tokenizer": "nowhere.json"}, "nothing of that kind at nowhere.json"),
        ({"shape": [1, 2, 2]}, "data.shape only for a folder"),
    ],
)
def test_what_does_not_go_with_texts_is_refused_before_any_is_read(
    tmp_path: Path, tokenizer: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        describe(from_table({"channel": "weights", "epsilon": 1.0, "delta": 1e-5, "data": own(
            write_csv(tmp_path / "d.csv"), tokenizer).data.model_dump(exclude_none=True) | change}))  # fmt: skip


def test_people_stay_together_and_a_read_off_tokenizer_is_declared(tokenizer: Path) -> None:
    who = [f"reader {i % 12}" for i in range(60)]
    with memory.held(frame(who=who)):
        cfg = own(memory.SOURCE, tokenizer, person="who", people=12, read_off=["tokenizer"])
        split = load(cfg)
    assert split.facts.unit == "person"
    assert split.facts.read_off == ("tokenizer",)
    assert not set(split.private.person) & set(split.holdout.person)  # type: ignore[arg-type]


def test_the_tokenizer_that_comes_with_the_extra_is_the_default() -> None:
    """Only its tokenizer.json is read, half a megabyte."""
    tokenizer = open_tokenizer(config("x", text="review").data)
    assert (tokenizer.tokens, tokenizer.vocabulary) == (64, 30_523)
    assert tokenizer.numbers("A fine film.") == [102, 1038, 2987, 2144, 1013, 103]
    assert json.loads(tokenizer.json)["model"]["type"] == "WordPiece"

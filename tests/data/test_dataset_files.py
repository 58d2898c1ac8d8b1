"""TSV, JSON lines, and folders of data sets, read as tables are: each record by itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from airlock.data import Split, describe, load
from airlock.data.dataset_files import Texts, is_compressed, jsonl_blocks, suffix_of
from airlock.data.limits import MAX_BYTES_VARIABLE
from airlock.data.remarks import Faults
from airlock.data.sources import SOURCES
from airlock.errors import ConfigError, DataError, FormatError
from tests.texts import reviews, write_tokenizer

from .writers import config

TEXTS, LABELS = reviews(40)
FRAME = pd.DataFrame({"review": TEXTS, "verdict": LABELS, "stars": range(40)})
CLASSES = ["bad", "good"]


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Any]:
    tokenizer = str(write_tokenizer(tmp_path))

    def made(source: object, **data: Any) -> Any:
        known = {"records": 40, "classes": CLASSES, "label": "verdict", "text": "review", "tokens": 12}
        return config(source, **(known | {"tokenizer": tokenizer} | data))

    return made


def rows(split: Split) -> list[tuple[Any, ...]]:
    parts = (split.private, split.test, split.holdout)
    return sorted((*x.tolist(), y) for part in parts for x, y in zip(part.x, part.y, strict=True))


def write_arrow(path: Path, frame: pd.DataFrame = FRAME, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with pa.ipc.new_stream(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table, max_chunksize=7)
    return path


def saved_to_disk(folder: Path) -> Path:
    """What `datasets.save_to_disk` leaves, with labels as numbers that the description names."""
    numbered = FRAME.assign(verdict=[CLASSES.index(label) for label in LABELS])
    write_arrow(folder / "data-00000-of-00002.arrow", numbered[:25])
    write_arrow(folder / "data-00001-of-00002.arrow", numbered[25:])
    features = {"verdict": {"names": CLASSES, "_type": "ClassLabel"}, "review": {"dtype": "string", "_type": "Value"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}), encoding="utf-8")
    (folder / "state.json").write_text("{}", encoding="utf-8")
    return folder


def on_the_hub(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    FRAME[:30].to_parquet(folder / "data" / "train-00000-of-00002.parquet")
    FRAME[30:].to_parquet(folder / "data" / "train-00001-of-00002.parquet")
    FRAME[:10].to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    (folder / "README.md").write_text("a card", encoding="utf-8")
    return folder


def lines_in_a_folder(folder: Path) -> Path:
    folder.mkdir()
    FRAME.to_json(folder / "all.jsonl", orient="records", lines=True)
    return folder


def as_tsv(path: Path, packed: bool = False) -> Path:
    text = "\n".join(["verdict\treview", *map("\t".join, zip(LABELS, TEXTS, strict=True))]).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def as_jsonl(path: Path, packed: bool = False) -> Path:
    text = FRAME.to_json(None, orient="records", lines=True).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


EVERY: dict[str, Callable[[Path], Path]] = {
    "tsv": lambda place: as_tsv(place / "d.tsv"),
    "tsv.gz": lambda place: as_tsv(place / "d.tsv.gz", True),
    "jsonl": lambda place: as_jsonl(place / "d.jsonl"),
    "jsonl.gz": lambda place: as_jsonl(place / "d.jsonl.gz", True),
    "arrow": lambda place: write_arrow(place / "d.arrow"),
    "save_to_disk": lambda place: saved_to_disk(place / "saved"),
    "hub": lambda place: on_the_hub(place / "hub"),
    "folder of lines": lambda place: lines_in_a_folder(place / "lines"),
}


@pytest.mark.parametrize("kind", EVERY)
def test_every_form_of_the_same_texts_gives_the_same_records(tmp_path: Path, own: Any, kind: str) -> None:
    FRAME.to_csv(tmp_path / "d.csv", index=False)
    wanted = load(own(tmp_path / "d.csv"))
    path = EVERY[kind](tmp_path)
    assert describe(own(path)).vocabulary == 16
    found = load(own(path))
    assert rows(found) == rows(wanted)
    assert not [remark for remark in found.remarks if "left out" in remark]


def test_declared_columns_are_read_of_lines_too(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [1.5, 2, 3, None], "ward": ["a", "b", "a", "b"], "ill": [True, False, True, False]})
    frame.to_json(tmp_path / "d.jsonl", orient="records", lines=True)
    columns = {"age": {"min": 0, "max": 10}, "ward": ["a", "b"]}
    split = load(config(tmp_path / "d.jsonl", records=4, label="ill", classes=["false", "true"], columns=columns))
    assert len(rows(split)) == 3
    assert "an empty cell in column 'age' (row 4)" in split.remarks[0]


def test_the_parts_of_a_data_set_on_the_hub_are_its_own(tmp_path: Path, own: Any) -> None:
    folder = on_the_hub(tmp_path / "hub")
    split = load(own(folder, test=str(folder)))
    assert len(split.test) == 10
    assert len(split.private) + len(split.holdout) == 40


BAD_LINES = [
    b"not json",
    b"[1, 2]",
    b'{"review": ["a"], "verdict": "good"}',
    b'{"review": {"a": 1}, "verdict": "good"}',
    b'{"verdict": "good"}',
    b'{"review": null, "verdict": "good"}',
    b'{"review": "fine \xff film", "verdict": "good"}',
    b'{"review": "fine \\ud800 film", "verdict": "good"}',
    b'{"review": "fine", "verdict": "maybe"}',
    b'{"review": "fine", "verdict": ' + b"[" * 100_000,
    b'{"review": "fine", "verdict": ' + b"9" * 10_000 + b"}",
    b"\x00\x01\x02",
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_of_json_costs_its_own_record_alone(tmp_path: Path, own: Any, line: bytes) -> None:
    wanted = rows(load(own(as_jsonl(tmp_path / "good.jsonl"))))
    whole = as_jsonl(tmp_path / "d.jsonl").read_bytes().splitlines()
    (tmp_path / "d.jsonl").write_bytes(b"\n".join([*whole[:20], line, *whole[20:]]))
    split = load(own(tmp_path / "d.jsonl"))
    assert rows(split) == wanted
    assert sum("1 record of" in remark and "(row 21)" in remark for remark in split.remarks) == 1


@pytest.mark.parametrize("line", [b"good", b"good\ta\tb", b"good\tfine \xff film", b"maybe\tfine", b'good"\tfine'])
def test_a_bad_line_of_tsv_costs_its_own_record_alone(tmp_path: Path, own: Any, line: bytes) -> None:
    wanted = rows(load(own(as_tsv(tmp_path / "good.tsv"))))
    whole = as_tsv(tmp_path / "d.tsv").read_bytes().split(b"\n")
    (tmp_path / "d.tsv").write_bytes(b"\n".join([*whole[:20], line, *whole[20:]]))
    split = load(own(tmp_path / "d.tsv"))
    assert rows(split) == wanted
    assert "1 record of" in split.remarks[0]


def test_a_quote_in_tsv_is_a_character(tmp_path: Path, own: Any) -> None:
    (tmp_path / "d.tsv").write_text('review\tverdict\nthe "fine\tgood\nfilm" was\tbad\n', encoding="utf-8")
    assert len(rows(load(own(tmp_path / "d.tsv")))) == 2


@pytest.mark.parametrize("name", ["d.tsv.gz", "d.jsonl.gz"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, own: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b"review\tverdict\n" if "tsv" in name else b""
    (tmp_path / name).write_bytes(gzip.compress(head + b"a" * 3_000_000))
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "2000000")
    with pytest.raises(DataError, match="at most 2000000 bytes of decoded data"):
        load(own(tmp_path / name))


def test_a_truncated_archive_is_refused(tmp_path: Path, own: Any) -> None:
    path = as_tsv(tmp_path / "d.tsv.gz", True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FormatError, match="a TSV file in UTF-8"):
        load(own(path))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrow_is_refused(tmp_path: Path, own: Any, codec: str) -> None:
    write_arrow(tmp_path / "d.arrow", compression=codec)
    with pytest.raises(FormatError, match="not compressed"):
        load(own(tmp_path / "d.arrow"))


def test_compression_is_read_off_every_record_batch(tmp_path: Path) -> None:
    for options, wanted in (({}, False), ({"compression": "lz4"}, True)):
        with pa.memory_map(str(write_arrow(tmp_path / "d.arrow", **options))) as source:
            kinds = list(pa.ipc.MessageReader.open_stream(source))
        batches = [one.metadata.to_pybytes() for one in kinds if one.type == "record batch"]
        assert len(batches) == 6
        assert [is_compressed(one) for one in batches] == 6 * [wanted]


def test_a_damaged_arrow_file_is_refused_and_never_crashes(tmp_path: Path, own: Any) -> None:
    whole = write_arrow(tmp_path / "d.arrow").read_bytes()
    chance = np.random.default_rng(3)
    refused = 0
    for _ in range(150):
        broken = bytearray(whole)
        for place in chance.integers(0, len(whole), 3):
            broken[place] = int(chance.integers(256))
        (tmp_path / "d.arrow").write_bytes(bytes(broken[: int(chance.integers(len(whole) // 2, len(whole)))]))
        try:
            load(own(tmp_path / "d.arrow"))
        except DataError:
            refused += 1
    assert refused > 50


def test_bytes_of_one_cell_in_arrow_cost_its_own_record_alone(tmp_path: Path, own: Any) -> None:
    path = write_arrow(tmp_path / "d.arrow")
    whole = path.read_bytes()
    word = TEXTS[30].encode()
    assert whole.count(word) == 1
    path.write_bytes(whole.replace(word, b"\xff" + word[1:]))
    split = load(own(path))
    assert len(rows(split)) == 39
    assert "bytes that are not UTF-8 in the text (row 31)" in split.remarks[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "dataset_dict.json").write_text("{}"), "the folder of one part"),
        (lambda folder: (folder / "data-0.parquet").write_bytes(b""), "files of one kind"),
        (lambda folder: (folder / "data-00001-of-00002.arrow").rename(folder / "test-0.arrow"), "begin with train"),
    ],
)
def test_a_folder_that_could_be_read_in_two_ways_is_refused(
    tmp_path: Path, own: Any, change: Callable[[Path], Any], words: str
) -> None:
    folder = saved_to_disk(tmp_path / "saved")
    change(folder)
    with pytest.raises(ConfigError, match=words):
        describe(own(folder))


def test_a_folder_of_classes_with_images_is_still_one_of_images(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    cfg = config(tmp_path / "images", records=4, classes=["cat", "dog"], shape=[3, 4, 4])
    assert describe(cfg).shape == (3, 4, 4)


def test_numbers_and_truth_in_json_are_written_as_in_other_tables(tmp_path: Path) -> None:
    cells = {"a": 3, "b": 3.0, "c": True, "d": None, "e": 1e300, "f": "x"}
    (tmp_path / "d.jsonl").write_text(json.dumps(cells) + "\n", encoding="utf-8")
    (block,) = jsonl_blocks(tmp_path / "d.jsonl", dict.fromkeys(cells), Faults())
    assert {name: column[0] for name, column in block.items()} == {
        "a": "3", "b": "3", "c": "true", "d": None, "e": str(int(1e300)), "f": "x"}  # fmt: skip


def test_suffixes() -> None:
    assert [suffix_of(Path(name)) for name in ("a.TSV", "a.tsv.gz", "a.b.jsonl", "a.gz")] == [
        ".tsv", ".tsv.gz", ".jsonl", ".gz"]  # fmt: skip


# The named source.


def write_sst2(folder: Path, records: int = 40) -> None:
    folder.mkdir(parents=True)
    for name, count in (("train", records), ("test", 10)):
        told, labels = reviews(count, seed=count)
        lines = [f"{text} \t{int(label == 'good')}" for text, label in zip(told, labels, strict=True)]
        content = "\n".join(["sentence\tlabel", *lines]).encode()
        (folder / f"sst2_{name}.tsv.gz").write_bytes(gzip.compress(content))


def test_sst2_is_found_counted_and_read(tmp_path: Path) -> None:
    write_sst2(tmp_path / "sst2")
    place = SOURCES["sst2"].find(tmp_path)
    assert isinstance(place, Texts)
    assert place.sizes() == (40, 10)
    cfg = config("sst2", records=40, test_records=10, tokenizer=str(write_tokenizer(tmp_path)), tokens=10)
    facts = describe(cfg, tmp_path)
    assert (facts.shape, facts.vocabulary, facts.classes) == ((10,), 16, ("negative", "positive"))
    split = load(cfg, tmp_path)
    assert len(split.test) == 10
    assert len(split.private) + len(split.holdout) == 40
    assert describe(cfg, tmp_path, read_by=(facts.tokenizer or "", 16)) == facts


def test_a_bad_line_of_sst2_costs_its_own_record_alone(tmp_path: Path) -> None:
    write_sst2(tmp_path / "sst2")
    path = tmp_path / "sst2" / "sst2_train.tsv.gz"
    lines = gzip.decompress(path.read_bytes()).split(b"\n")
    path.write_bytes(gzip.compress(b"\n".join([*lines, b"fine\t2", b"fine", b"fi\xffne\t1"])))
    cfg = config("sst2", records=40, test_records=10, tokenizer=str(write_tokenizer(tmp_path)))
    split = load(cfg, tmp_path)
    assert len(split.private) + len(split.holdout) == 40
    assert len([remark for remark in split.remarks if "1 record of" in remark]) == 3


def test_what_is_known_about_sst2_is_not_declared_again(tmp_path: Path) -> None:
    for key, value in (("text", "sentence"), ("label", "label"), ("read_off", ["records"])):
        with pytest.raises(ConfigError, match="tokenizer and tokens alongside the named source 'sst2'"):
            describe(config("sst2", **{key: value}))
    with pytest.raises(ConfigError, match="alongside the named source 'digits'"):
        describe(config("digits", tokens=4))

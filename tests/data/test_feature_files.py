"""Shards of features: what is read is what was written, nothing is ever half there, and bad files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from airlock.data import feature_files as ff
from airlock.data.feature_files import Form, Layout, Precision, ShardWriter
from airlock.errors import DataError, FormatError

CLASSES = ("a", "b", "c")


def written(folder: Path, form: Form = "parquet", precision: Precision = "float16", records: int = 25) -> ff.Manifest:
    layout = Layout((2, 3), form, precision, per_shard=10)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(records, 2, 3)).astype(np.float32), rng.integers(0, 3, records)
    shards = []
    for number, own in enumerate(layout.shards(records)):
        with ShardWriter(folder, number, layout) as writer:
            for start in range(own.start, own.stop, 4):
                part = slice(start, min(start + 4, own.stop))
                writer.add(x[part], y[part])
        shards.append(ff.describe_shard(writer.path, writer.records))
    made = ff.make_manifest(layout, CLASSES, None, shards)
    (folder / ff.MANIFEST).write_text(made.to_json(), encoding="utf-8")
    np.savez(folder / "wanted.npz", x=x, y=y)
    return made


@pytest.mark.parametrize("form", ["parquet", "npz"])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_what_is_read_is_what_was_written(tmp_path: Path, form: Form, precision: Precision) -> None:
    made = written(tmp_path, form, precision)
    assert ff.read_manifest(tmp_path) == made
    assert [shard.records for shard in made.shards] == [10, 10, 5]
    found, wanted = ff.load(tmp_path, made), np.load(tmp_path / "wanted.npz")
    assert found.x.dtype == np.float32
    np.testing.assert_array_equal(found.x, wanted["x"].astype(precision).astype(np.float32))
    np.testing.assert_array_equal(found.y, wanted["y"])
    assert len(ff.load(tmp_path, made, most_bytes=1)) == 10


def test_a_shard_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    layout = Layout((4,), per_shard=10)
    with ShardWriter(tmp_path, 0, layout) as writer:
        writer.add(np.ones((3, 4)), np.zeros(3, np.int64))
        assert [path.name for path in tmp_path.iterdir()] == [".features-00000.parquet.part"]
        writer.__exit__(RuntimeError, RuntimeError("stop"), None)
        assert not list(tmp_path.iterdir())
        writer.__enter__()
    writer.path.unlink()
    assert not list(tmp_path.iterdir())
    (tmp_path / ".features-00000.parquet.part").write_bytes(b"half")
    ff.remove_unfinished(tmp_path)
    assert not list(tmp_path.iterdir())


def test_numbers_too_large_for_the_precision_stay_finite(tmp_path: Path) -> None:
    layout = Layout((1,), per_shard=10)
    with ShardWriter(tmp_path, 0, layout) as writer:
        writer.add(np.array([[1e9], [-1e9]]), np.zeros(2, np.int64))
    made = ff.make_manifest(layout, CLASSES, 1.5, [ff.describe_shard(writer.path, 2)])
    np.testing.assert_array_equal(ff.load(tmp_path, made).x, [[65504.0], [-65504.0]])


def test_shards_are_of_a_bounded_size() -> None:
    layout = Layout((128, 8, 8), "parquet", "float32")
    assert layout.per_shard * layout.row_bytes <= ff.SHARD_BYTES
    with pytest.raises(DataError, match="shards"):
        Layout((1,), per_shard=1).shards(10_001)


def test_files_that_lie_are_refused(tmp_path: Path) -> None:
    made = written(tmp_path)
    table = json.loads((tmp_path / ff.MANIFEST).read_text())
    for key, value in (("form", "pickle"), ("shape", [0]), ("noise", -1.0), ("shards", []), ("more", 1)):
        with pytest.raises(FormatError):
            ff.parse_manifest({**table, key: value})
    table["shards"][0]["name"] = "../card.json"
    with pytest.raises(FormatError):
        ff.parse_manifest(table)
    (tmp_path / "features-00001.parquet").write_bytes((tmp_path / "features-00002.parquet").read_bytes())
    with pytest.raises(FormatError, match="features-00001"):
        ff.load(tmp_path, made)
    (tmp_path / "features-00001.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(FormatError, match="features-00001"):
        ff.load(tmp_path, made)
    with pytest.raises(DataError):
        ff.read_manifest(tmp_path / "nowhere")

"""Files of kilobytes that ask for gigabytes are refused before the memory is asked for."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airlock.config import load as load_config
from airlock.data import load
from airlock.data.feature_files import Layout, Shard, ShardWriter, blocks, make_manifest
from airlock.data.parquet_pages import largest_page
from airlock.errors import ConfigError, DataError, FormatError

from .test_tables import own
from .writers import config, images, python3_batch, write_idx, write_svhn

MUCH = 150 * 10**6  # more than a ratio of compression is allowed to be absurd for


def zeros(size: int) -> bytes:
    """So many zeros, gzipped."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=9) as file:
        for _ in range(size // 10**6):
            file.write(bytes(10**6))
    return packed.getvalue()


def test_a_gzipped_idx_file(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", end=".gz")
    header = b"\x00\x00\x08\x03" + struct.pack(">III", 150, 1000, 1000)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(header) + zeros(MUCH))
    assert file.stat().st_size < MUCH / 1000
    with pytest.raises(FormatError, match="compression ratio"):
        load(config("mnist"), tmp_path)


def test_a_matlab_file_whose_header_says_little(tmp_path: Path) -> None:
    write_svhn(tmp_path / "svhn")
    file = tmp_path / "svhn" / "train_32x32.mat"
    packed = zlib.compress(bytes(MUCH), 9)
    file.write_bytes(file.read_bytes()[:128] + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(FormatError, match="compression ratio"):
        load(config("svhn"), tmp_path)


def test_a_sparse_member_of_an_archive(tmp_path: Path) -> None:
    """A tar file may say that a member is mostly holes: a terabyte of zeros in a few bytes."""
    path = tmp_path / "cifar10" / "cifar-10-python.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            content = python3_batch(*images(20, 10, (3, 32, 32), 0), 2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            if name == "data_batch_3":
                content = b"1\n0\n1\n".ljust(512, b"\0") + b"x"
                info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                    "GNU.sparse.name": info.name, "GNU.sparse.realsize": str(2**33)}  # fmt: skip
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(FormatError, match="size of a CIFAR archive"):
        load(config("cifar10"), tmp_path)


def table(path: Path, rows: int, label: str = "yes", **options: object) -> Path:
    """A table whose rows are all alike."""
    first = pa.array(np.zeros(rows, np.int32))
    text = {"ward": "north", "blood": "A", "ill": label}
    columns = {name: pa.DictionaryArray.from_arrays(first, [cell]) for name, cell in text.items()}
    pq.write_table(pa.table(columns | {"age": pa.array(np.zeros(rows))}), path, **options)
    return path


def test_a_parquet_file_whose_rows_are_all_alike(tmp_path: Path) -> None:
    file = table(tmp_path / "d.parquet", 5 * 10**6, compression="zstd")
    assert file.stat().st_size < 200_000
    with pytest.raises(FormatError, match="compression ratio"):
        load(own(file), tmp_path)


def test_a_parquet_page_that_says_it_is_larger_than_the_footer_does(tmp_path: Path) -> None:
    """The page's own header decides how much the reader allocates."""
    file = table(tmp_path / "d.parquet", 60, compression="snappy", use_dictionary=False)
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(3)
    content = bytearray(file.read_bytes())
    at = chunk.data_page_offset
    assert content[at : at + 3] == b"\x15\x00\x15"  # the type of the page, then its size
    size = content[at + 3 : at + 5]
    assert size[1] < 128
    content[at + 3 : at + 5] = b"\xfe\xff\xff\xff\x0f"  # 2 GiB
    shift = len(content) - file.stat().st_size
    file.write_bytes(content)
    metadata = _Shifted(chunk, shift)
    with pytest.raises(FormatError, match="compression ratio"):
        largest_page(file, metadata, ["age"])


class _Shifted:
    """The footer of a file with one column chunk, which became a little longer."""

    num_row_groups = num_columns = num_rows = 1

    def __init__(self, chunk: object, more: int) -> None:
        self.chunk, self.more = chunk, more
        self.total_compressed_size = chunk.total_compressed_size + more  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self.chunk, name)

    def row_group(self, _: int) -> _Shifted:
        return self

    def column(self, _: int) -> _Shifted:
        return self


def test_pages_are_measured_as_they_are(tmp_path: Path) -> None:
    for codec in ("none", "snappy", "zstd"):
        for dictionary in (True, False):
            file = table(tmp_path / "d.parquet", 5000, compression=codec, use_dictionary=dictionary)
            with pq.ParquetFile(file) as opened:
                assert largest_page(file, opened.metadata, ["age"]) >= (8 if dictionary else 5000 * 8)
    load(own(file), tmp_path)


def test_a_long_cell_that_many_rows_share_is_not_copied_for_all_of_them_at_once(tmp_path: Path) -> None:
    from airlock.data import tables

    file = table(tmp_path / "d.parquet", 70, label="x" * 2**22)
    assert file.stat().st_size < 3 * 2**22
    sizes = [len(block["ill"]) for block in tables.parquet_blocks(file, tables.wanted(own(file).data), tables.Faults())]
    assert sum(sizes) == 70
    assert max(sizes) <= 64


def test_a_shard_of_features_whose_rows_are_all_alike(tmp_path: Path) -> None:
    layout = Layout((64,), precision="float32")
    with ShardWriter(tmp_path, 0, layout) as writer:
        writer.add(np.zeros((10, 64), np.float32), np.zeros(10, np.int64))
    rows = 400_000
    alike = pa.array([bytes(256)] * rows, pa.binary(256))
    pq.write_table(
        pa.table({"features": alike, "label": pa.array(np.zeros(rows, np.int32))}),
        tmp_path / layout.name(0),
        compression="zstd",
    )
    size = (tmp_path / layout.name(0)).stat().st_size
    assert size < 200_000
    made = make_manifest(layout, ["a", "b"], None, [Shard(layout.name(0), rows, size, "0" * 64)])
    with pytest.raises(DataError, match="too small"):
        list(blocks(tmp_path, made))
    sha = hashlib.sha256((tmp_path / layout.name(0)).read_bytes()).hexdigest()
    few = make_manifest(layout, ["a", "b"], None, [Shard(layout.name(0), 10, size, sha)])
    with pytest.raises(DataError, match="packed"):
        list(blocks(tmp_path, few))


HUGE = {
    "nested lists": "a = " + "[" * 5000 + "]" * 5000,
    "nested keys": ".".join("a" * 3000) + " = 1",
    "many digits": "epsilon = " + "9" * 5000,
    "many hexadecimal digits": "seed = 0x" + "f" * 5000,
    "more than 64 bits": "seed = 9223372036854775808",
    "nested deeply enough": "[settings]\na = " + "[" * 60 + "]" * 60,
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_a_config_that_no_parser_likes_is_an_error_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match="valid TOML") as found:
        load_config(tmp_path / "c.toml")
    assert found.value.why
    assert found.value.do
    assert len(str(found.value)) < 500


def test_a_config_of_terabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "c.toml").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ConfigError, match="at most"):
        load_config(tmp_path / "c.toml")

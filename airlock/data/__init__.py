"""What goes in: named sources and the user's own files, as a `Split` into private, public, test and holdout records.

`describe(config)` gives the `Facts`, which are public and known before a record is read; `load(config)` gives the
`Split`; `find_all()` lists the named sources and which of their files are present. Files are data and never code:
nothing in this package unpickles, and nothing is allocated because a header says so.

    loading        `describe` and `load`: from a config to its data
    split          `Facts`, `Records`, `Split`, and shards; which record belongs to which part
    people         whose a record is: identifiers, and what is declared about people
    public         a public set alongside the private one
    sources        the named sources, other packages' too: what is published about each, and where its files are
    benchmarks     files of MNIST, Fashion-MNIST, SVHN, UCI Adult and Location-30
    cifar          CIFAR-10 and CIFAR-100, in a folder or in their archive
    batches        CIFAR's pickled batches, read without running them
    own            the user's own files, and a folder of images
    memory         frames and arrays that are in memory
    tables         CSV and Parquet, encoded by the public schema
    text           texts as the numbers of their tokens, by a public tokenizer
    dataset_files  TSV, JSON lines, and folders as Hugging Face's datasets library has them
    table_check    everything that is in the way of a table, for the holder alone
    parquet_pages  how large the pages of a Parquet file become in memory
    npz            arrays in an npz file, validated before they are read
    feature_files  features on disk: shards and their manifest
    validate       checks applied to every load: raw arrays in, records out
    remarks        notes about the records, for the holder alone
    limits         how much memory a file may claim, and a file in place of memory; how a bad file is reported
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.data.limits import MAX_BYTES_VARIABLE as MAX_BYTES_VARIABLE
    from airlock.data.loading import describe as describe
    from airlock.data.loading import load as load
    from airlock.data.public import add_public as add_public
    from airlock.data.public import describe_public as describe_public
    from airlock.data.public import digest as digest
    from airlock.data.public import halve as halve
    from airlock.data.public import open_public as open_public
    from airlock.data.sources import FOLDER_VARIABLE as FOLDER_VARIABLE
    from airlock.data.sources import Listing as Listing
    from airlock.data.sources import Place as Place
    from airlock.data.sources import Source as Source
    from airlock.data.sources import find_all as find_all
    from airlock.data.sources import register as register
    from airlock.data.split import (
        Facts,
        Groups,
        Part,
        Public,
        Records,
        Split,
        at_most,
        content_digests,
        divide,
        joined,
        limited,
        person_digests,
        shard,
        share,
    )
    from airlock.data.validate import Raw as Raw

__all__ = [
    "FOLDER_VARIABLE",
    "MAX_BYTES_VARIABLE",
    "Facts",
    "Groups",
    "Listing",
    "Part",
    "Place",
    "Public",
    "Raw",
    "Records",
    "Source",
    "Split",
    "add_public",
    "at_most",
    "content_digests",
    "describe",
    "describe_public",
    "digest",
    "divide",
    "find_all",
    "halve",
    "joined",
    "limited",
    "load",
    "open_public",
    "person_digests",
    "register",
    "shard",
    "share",
]

lazy.load(__name__)

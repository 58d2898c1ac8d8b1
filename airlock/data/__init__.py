"""What goes in: named sources and the user's own files, as a `Split` into private, public, test and holdout records.

`describe(config)` gives the `Facts`, which are public and known before a record is read; `load(config)` gives the
`Split`; `find_all()` lists the named sources and what is there of them. Files are data and never code: nothing in this
room unpickles, and nothing is allocated on the word of a header alone.
"""

from airlock.data.limits import MAX_BYTES_VARIABLE as MAX_BYTES_VARIABLE
from airlock.data.loading import describe as describe
from airlock.data.loading import load as load
from airlock.data.public import add_public as add_public
from airlock.data.public import describe_public as describe_public
from airlock.data.public import digest as digest
from airlock.data.public import halve as halve
from airlock.data.public import open_public as open_public
from airlock.data.shards import shard as shard
from airlock.data.sources import FOLDER_VARIABLE as FOLDER_VARIABLE
from airlock.data.sources import Listing as Listing
from airlock.data.sources import Source as Source
from airlock.data.sources import find_all as find_all
from airlock.data.split import Facts as Facts
from airlock.data.split import Part as Part
from airlock.data.split import Public as Public
from airlock.data.split import Records as Records
from airlock.data.split import Split as Split
from airlock.data.split import content_digests as content_digests
from airlock.data.split import divide as divide
from airlock.data.split import exact as exact
from airlock.data.split import share as share

__all__ = [
    "FOLDER_VARIABLE",
    "MAX_BYTES_VARIABLE",
    "Facts",
    "Listing",
    "Part",
    "Public",
    "Records",
    "Source",
    "Split",
    "add_public",
    "content_digests",
    "describe",
    "describe_public",
    "digest",
    "divide",
    "exact",
    "find_all",
    "halve",
    "load",
    "open_public",
    "shard",
    "share",
]

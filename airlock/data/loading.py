"""From a config to its data: `describe` says what is public before a record is read, `load` reads and divides.

Both accept named sources and the user's own files; what differs is in `sources` and `own`. Files that are missing or
malformed are refused. Single records never are: `remarks` says what happens to those that do not fit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from airlock.config import ReleaseConfig, SplitConfig
from airlock.data import memory, own
from airlock.data.limits import MEMORY, Storage
from airlock.data.people import unit_of
from airlock.data.remarks import about_classes, about_empty, about_shared, about_size
from airlock.data.sources import Source, named
from airlock.data.split import Facts, Part, Records, Split, divide, each_content_digest, share
from airlock.data.text import TOKENS, Tokenizer, open_tokenizer
from airlock.data.validate import Raw, check_records
from airlock.errors import ConfigError, DataError

_KEY = b"\0" * 8  # of digests that are only compared


def describe(config: ReleaseConfig, data_dir: Path | None = None, read_by: tuple[str, int] | None = None) -> Facts:
    """What is public about the data, before any record's values are read.

    Sizes are those declared in the config or, for a named source, the published ones. They are never counted: subsets
    of benchmarks are in use, and the number of records in a file depends on each of them. A named source need not be
    present, so that a release can be planned anywhere.

    Args:
        config: The release.
        data_dir: The folder of the named sources; defaults to the environment's AIRLOCK_DATA, then to ./data.
        read_by: Of a named source of texts: digest and vocabulary of the tokenizer, where it is not at hand.
    """
    known = named(config.data.source, data_dir)
    facts = own.facts(config) if known is None else _facts(config, known[0], read_by)
    return _stated(facts, config.split)


def load(config: ReleaseConfig, data_dir: Path | None = None, storage: Storage = MEMORY) -> Split:
    """Read the records and divide them into private, public, test and holdout.

    What the holder should know about them is in `Split.remarks`, and nowhere else.

    Args:
        config: The release.
        data_dir: The folder of the named sources; defaults to the environment's AIRLOCK_DATA, then to ./data.
        storage: Where the records are held: in memory, or in a file. They are the same either way.
    """
    facts, raw_pool, raw_test = read_all(config, data_dir, storage)
    where = memory.WORDS if config.data.source == memory.SOURCE else config.data.source
    pool, left_out = check_records(facts, raw_pool, where, storage)
    if raw_test is None:
        test = None
    else:
        test, more = check_records(facts, raw_test, f"the test records of {where}", storage)
        left_out += more
    split = divide(facts, pool, test, config.split, config.seed, storage)
    return replace(split, remarks=left_out + _remarks(split, pool, test, config.split))


def read_all(config: ReleaseConfig, data_dir: Path | None, storage: Storage = MEMORY) -> tuple[Facts, Raw, Raw | None]:
    """The facts, all records as read, and the official test records if there are any."""
    known, facts = named(config.data.source, data_dir), describe(config, data_dir)
    if known is None:
        return facts, *own.read(config, facts, storage)
    source, folder = known
    place = source.find(folder)
    if place is None:
        raise DataError(
            f"the files of '{source.name}' in {folder / source.name} or {folder}",
            "none of them",
            "Nothing is ever downloaded.",
            f"Get it: {source.get} Another folder can be given with --data-dir or in AIRLOCK_DATA.",
        )
    pool, test = (None if raw is None else _without_labels(raw, facts) for raw in place.read())
    assert pool is not None
    if source.text is not None:
        tokenizer = open_tokenizer(config.data)
        pool, test = (None if raw is None else _encoded(raw, tokenizer, source.text) for raw in (pool, test))
        assert pool is not None
    if (test is None) != (source.test_records is None):
        raise DataError(
            f"{'no' if test is not None else 'the'} test records in {place.where}, as '{source.name}' is published",
            "some" if test is not None else "none",
            "The public facts about a named source are the published ones.",
            "Get the complete set, or use the file as your own data: give its path under another name.",
        )
    return facts, pool, test


def _stated(facts: Facts, fractions: SplitConfig) -> Facts:
    """The same facts, naming the classes that have no public record; unknown class names are refused."""
    kept_out = [facts.classes[label] for label in facts.without(fractions)]
    if not kept_out:
        return facts
    return replace(facts, origin=f"{facts.origin} No record of these classes is public: {', '.join(kept_out)}.")


def _encoded(raw: Raw, tokenizer: Tokenizer, name: str) -> Raw:
    """Texts as numbers, each by itself."""
    return replace(raw, x=tokenizer.encode(name, memory.text(raw.x), raw.faults))


def _without_labels(raw: Raw, facts: Facts) -> Raw:
    """Of a named source: whose each record is is not used, nor its label where the next token is predicted."""
    return replace(raw, person=None, y=np.zeros(len(raw.y), np.int64) if facts.task == "language" else raw.y)


def _facts(config: ReleaseConfig, source: Source, read_by: tuple[str, int] | None) -> Facts:
    """The facts of a named source: as published, unless the config declares a subset."""
    data = config.data
    keys = ["label", "classes", "columns", "shape", "target", "test", "person", "text"]
    keys += ["read_off", "tokenizer", "tokens"] if source.text is None else []
    given = [key for key in keys if getattr(data, key) not in (None, {}, ())]
    given += ["read_off"] if set(data.read_off) - {"tokenizer"} and not given else []
    if given:
        more = "" if source.text is None else ", tokenizer and tokens"
        raise ConfigError(
            f"only name, records and test_records{more} alongside the named source '{source.name}'",
            f"data.{given[0]}",
            "Everything else about it is known; a key that was silently ignored would hide a mistake.",
            "Remove it.",
        )
    unit_of(config)
    if data.test_records is not None and source.test_records is None:
        raise ConfigError(
            f"no data.test_records for '{source.name}'",
            "a number",
            "It has no official test set; test records are split off from it.",
            "Set split.test.",
        )
    if config.task == "language" and source.text is None:
        raise ConfigError(
            'texts for task = "language"',
            f"the named source '{source.name}'",
            "A language model predicts the next token of a text.",
            "Take a source of texts, or your own file with data.text.",
        )
    sizes = "declared" if data.records or data.test_records else "as published"
    origin = f"{source.title}; its sizes are public and {sizes}."
    if source.package:
        origin = f"{origin.replace('as published', 'as its package says')} It comes from {source.package}."
    shape, digest, vocabulary = source.shape, None, None
    if source.text is not None:
        digest, vocabulary = read_by or ((known := open_tokenizer(data)).digest, known.vocabulary)
        shape = (data.tokens or TOKENS,)
    return Facts(
        name=data.name or source.name,
        shape=shape,
        classes=() if config.task == "language" else source.classes,
        records=data.records or source.records,
        test_records=data.test_records or source.test_records,
        origin=origin,
        columns=source.columns,
        read_off=data.read_off,
        vocabulary=vocabulary,
        tokenizer=digest,
    )


def _remarks(split: Split, pool: Records, test: Records | None, fractions: SplitConfig) -> tuple[str, ...]:
    """What the holder should know about the parts."""
    facts, found = split.facts, list(about_size("records", len(pool), split.facts.records))
    if facts.people is not None:
        found += about_size("people", pool.units, facts.people)
    if test is not None:
        found += about_size("test records", len(test), facts.test_records or 1)
        shared = set(each_content_digest(test, _KEY))
        count = sum(digest in shared for digest in each_content_digest(pool, _KEY))
        found += about_shared(
            count,
            "",
            "the test set",
            ": accuracy on them says nothing about others. Remove them from one of the files.",
        )
    parts: tuple[Part, ...] = ("private", "public", "test", "holdout")
    for part in parts:
        wanted = share(part, fractions, test is not None) > 0 or part in ("private", "test")
        if wanted and not len(getattr(split, part)):
            found.append(about_empty(part, "Give more records, or change the fractions in [split]."))
    if facts.task == "language":
        return tuple(found)
    if facts.target is None:
        found += about_classes(split.private.y, facts.classes)
    if len(np.unique(pool.y)) == 1 and facts.target is not None:
        found.append("All records have the same target: there is nothing to learn. Check the cells and data.target.")
    elif len(np.unique(pool.y)) == 1:
        found.append("All records are of one class: there is nothing to learn. Check the labels and data.classes.")
    return tuple(found)

"""From a config to its data: `describe` says what is public before a record is read, `load` reads and divides.

Both take named sources and the user's own files alike; what differs is in `sources` and `own`. Files that are missing
or are not what they say are refused. Single records never are: `remarks` says what becomes of those that do not fit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from airlock.config import DataConfig, ReleaseConfig, SplitConfig
from airlock.data import own
from airlock.data.remarks import about_classes, about_empty, about_shared, about_size
from airlock.data.sources import Source, named
from airlock.data.split import Facts, Part, Records, Split, divide, positions, share
from airlock.data.validate import Raw, check_records
from airlock.errors import ConfigError, DataError


def describe(config: ReleaseConfig, data_dir: Path | None = None) -> Facts:
    """What is public about the data, before any record's values are read.

    Sizes are those that the config declares, or of a named source the published ones. They are never counted: subsets
    of benchmarks are in use, and how many records lie here depends on each of them. A named source need not be there,
    so that a release can be planned anywhere.

    Args:
        config: The release.
        data_dir: Where named sources lie; else the environment's AIRLOCK_DATA, else ./data.
    """
    known = named(config.data.source, data_dir)
    facts = own.facts(config) if known is None else _facts(config.data, known[0])
    return _stated(facts, config.split)


def load(config: ReleaseConfig, data_dir: Path | None = None) -> Split:
    """Read the records and divide them into private, public, test and holdout.

    What the holder should know of them is in `Split.remarks`, and nowhere else.

    Args:
        config: The release.
        data_dir: Where named sources lie; else the environment's AIRLOCK_DATA, else ./data.
    """
    facts, raw_pool, raw_test = read_all(config, data_dir)
    where = config.data.source
    pool, left_out = check_records(facts, raw_pool, where)
    if raw_test is None:
        test = None
    else:
        test, more = check_records(facts, raw_test, f"the test records of {where}")
        left_out += more
    split = divide(facts, pool, test, config.split, config.seed)
    return replace(split, remarks=left_out + _remarks(split, pool, test, config.split))


def read_all(config: ReleaseConfig, data_dir: Path | None) -> tuple[Facts, Raw, Raw | None]:
    """The facts, all records as they were read, and the test records where there are official ones."""
    known, facts = named(config.data.source, data_dir), describe(config, data_dir)
    if known is None:
        return facts, *own.read(config, facts)
    source, folder = known
    place = source.find(folder)
    if place is None:
        raise DataError(
            f"the files of '{source.name}' in {folder / source.name} or {folder}",
            "none of them",
            "Nothing is ever downloaded.",
            f"Get it: {source.get} Another folder can be named with --data-dir or in AIRLOCK_DATA.",
        )
    pool, test = place.read()
    if (test is None) != (source.test_records is None):
        raise DataError(
            f"{'no' if test is not None else 'the'} test records in {place.where}, as '{source.name}' is published",
            "some" if test is not None else "none",
            "What is public about a named source is what is published of it.",
            "Get the whole set, or use the file as your own: give its path under another name.",
        )
    return facts, pool, test


def _stated(facts: Facts, fractions: SplitConfig) -> Facts:
    """The same, saying which classes have no public record; refused where there are no such classes."""
    kept_out = [facts.classes[label] for label in facts.without(fractions)]
    if not kept_out:
        return facts
    return replace(facts, origin=f"{facts.origin} No record of these classes is public: {', '.join(kept_out)}.")


def _facts(data: DataConfig, source: Source) -> Facts:
    """Of a named source: as published, unless the config says that it is a part of it."""
    given = [key for key in ("label", "classes", "columns", "shape", "test") if getattr(data, key) not in (None, {})]
    if given:
        raise ConfigError(
            f"only name, records and test_records beside the named source '{source.name}'",
            f"data.{given[0]}",
            "What is public about it is known; a key that is ignored hides a mistake.",
            "Remove it.",
        )
    if data.test_records is not None and source.test_records is None:
        raise ConfigError(
            f"no data.test_records for '{source.name}'",
            "a number",
            "It has no official test set; test records are split off.",
            "Set split.test.",
        )
    sizes = "declared" if data.records or data.test_records else "as published"
    origin = f"{source.title}; its sizes are public and {sizes}."
    if source.package:
        origin = f"{origin.replace('as published', 'as its package says')} It comes from {source.package}."
    return Facts(
        name=data.name or source.name,
        shape=source.shape,
        classes=source.classes,
        records=data.records or source.records,
        test_records=data.test_records or source.test_records,
        origin=origin,
    )


def _remarks(split: Split, pool: Records, test: Records | None, fractions: SplitConfig) -> tuple[str, ...]:
    """What the holder should know of the parts."""
    facts, found = split.facts, list(about_size("records", len(pool), split.facts.records))
    if test is not None:
        found += about_size("test records", len(test), facts.test_records or 1)
        shared = set(positions(test, 0)[1])
        count = sum(digest in shared for digest in positions(pool, 0)[1])
        found += about_shared(
            count, "", "the test set", ": accuracy on those says nothing of others. Take them out of one of the files."
        )
    parts: tuple[Part, ...] = ("private", "public", "test", "holdout")
    for part in parts:
        wanted = share(part, fractions, test is not None) > 0 or part in ("private", "test")
        if wanted and not len(getattr(split, part)):
            found.append(about_empty(part, "Give more records, or change the fractions in [split]."))
    found += about_classes(split.private.y, facts.classes)
    if len(np.unique(pool.y)) == 1:
        found.append("All records are of one class: there is nothing to learn. Check the labels and data.classes.")
    return tuple(found)

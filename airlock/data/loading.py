"""From a config to its data: `describe` says what is public before a record is read, `load` reads, checks and divides.

Both take named sources and the user's own files alike; what differs is in `sources` and `own`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airlock.config import DataConfig, ReleaseConfig, SplitConfig
from airlock.data import own
from airlock.data.sources import Place, Source, named
from airlock.data.split import Facts, Split, divide
from airlock.data.validate import Raw, check_pool, check_private, check_records
from airlock.errors import ConfigError, DataError


def describe(config: ReleaseConfig, data_dir: Path | None = None) -> Facts:
    """What is public about the data, before any record's values are read.

    A named source need not be there: without its files the published sizes are taken, so that a release can be planned
    anywhere. Where files are there their headers are counted, because subsets of benchmarks are in use and a
    benchmark's size is public.

    Args:
        config: The release.
        data_dir: Where named sources lie; else the environment's AIRLOCK_DATA, else ./data.
    """
    known = named(config.data.source, data_dir)
    if known is None:
        return _stated(own.facts(config), config.split)
    source, folder = known
    return _stated(_facts(config.data, source, source.find(folder)), config.split)


def load(config: ReleaseConfig, data_dir: Path | None = None) -> Split:
    """Read the records, check them, and divide them into private, public, test and holdout.

    Args:
        config: The release.
        data_dir: Where named sources lie; else the environment's AIRLOCK_DATA, else ./data.
    """
    facts, pool, test = read_all(config, data_dir)
    where = config.data.source
    pool_records = check_records(facts, pool, where)
    check_pool(facts, pool_records, where)
    test_records = check_records(facts, test, f"the test records of {where}") if test is not None else None
    split = divide(facts, pool_records, test_records, config.split, config.seed)
    check_private(split)
    return split


def read_all(config: ReleaseConfig, data_dir: Path | None) -> tuple[Facts, Raw, Raw | None]:
    """The facts, all records as they were read, and the test records where there are official ones."""
    known = named(config.data.source, data_dir)
    if known is None:
        facts = _stated(own.facts(config), config.split)
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
    return _stated(_facts(config.data, source, place), config.split), *place.read()


def _stated(facts: Facts, fractions: SplitConfig) -> Facts:
    """The same, saying which classes have no public record; refused where there are no such classes."""
    kept_out = [facts.classes[label] for label in facts.without(fractions)]
    if not kept_out:
        return facts
    return replace(facts, origin=f"{facts.origin} No record of these classes is public: {', '.join(kept_out)}.")


def _facts(data: DataConfig, source: Source, place: Place | None) -> Facts:
    given = [key for key in ("label", "classes", "columns", "test") if getattr(data, key) not in (None, {})]
    if given:
        raise ConfigError(
            f"only name and records beside the named source '{source.name}'",
            f"data.{given[0]}",
            "What is public about it is known; a key that is ignored hides a mistake.",
            "Remove it.",
        )
    records, test_records = place.sizes() if place is not None else (source.records, source.test_records)
    if not (data.records or records):
        raise DataError(f"at least one record in {source.name}", "none", "Nothing can be trained without.")
    sizes = "counted in its files" if place is not None else "as published"
    return Facts(
        name=data.name or source.name,
        shape=source.shape,
        classes=source.classes,
        records=data.records or records,
        test_records=test_records,
        origin=f"{source.title}; its sizes are public and {'declared' if data.records else sizes}.",
    )

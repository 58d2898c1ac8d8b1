"""Whose a record is: identifiers in, numbers out, one for each person; and what is declared about people.

Identifiers are compared exactly, byte by byte: two that differ are two people, also where they differ by a space. A
record without one is left out, because nobody knows whose it is, and together with all others like it it would be one
person of many records.

Guarantee: what is computed from numbers follows from each person's own identifier. Proof. A number is the identifier's
53-bit hash, and above it the place of the identifier among those with the same hash, in the order of their bytes. So
different identifiers have different numbers. Where a person is placed (`split.positions`) follows from the hash alone;
the place among equal hashes is used only to compare, for equality and for the order of two people with equal hashes,
which is that of their bytes whoever else there is. ∎

Equal hashes of two people are found on purpose with 2^27 trials and cost nothing; a thousand of one hash, which is what
the bits above it can count, are out of reach.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airlock.config import DataConfig, ReleaseConfig
from airlock.data.limits import Array
from airlock.data.remarks import Fault, Faults
from airlock.data.split import PLACED_BY
from airlock.errors import ConfigError, DataError

RECORDS_PER_PERSON = 8  # K, unless data.records_per_person says otherwise
MANIFEST = "people.csv"  # whose the images of a folder are
_BITS = 53
# How programs write that there is none, without the spaces around it and in lower case.
_MISSING = frozenset((
    "", "nan", "-nan", "na", "n/a", "#na", "#n/a", "<na>", "nat", "null", "(null)", "#null!", "none", "nil", "1.#ind",
    "-1.#ind", "1.#qnan", "-1.#qnan",
))  # fmt: skip
_EXACT = 2**53  # up to here a program that keeps whole numbers as fractions tells all of them apart
_FEWEST_LONG = 7  # of numbers that are fractions by chance, at most one in a hundred sets looks so
_ROUNDED = re.compile(r"[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]{2,}")
NOBODY = Fault(
    "no identifier of a person",
    "Nobody knows whose they are: fill in the identifiers, or a different one for each record of an unknown person.",
)

Ids = Sequence[str | None]


def number(ids: Ids) -> NDArray[np.int64]:
    """One number per identifier, the same for equal ones and no others; None becomes the number of an empty one."""
    each = [_as_bytes(one) or b"" for one in ids]
    known: dict[bytes, int] = {}
    times: dict[int, int] = {}
    for one in sorted(set(each)):
        found = placed_by(one)
        known[one] = found + (times.get(found, 0) << _BITS)
        times[found] = times.get(found, 0) + 1
    return np.array([known[one] for one in each], np.int64)


def _as_bytes(identifier: str | None) -> bytes | None:
    """The bytes that it was read from; None if there are none, as of half a pair of UTF-16."""
    try:
        return None if identifier is None else identifier.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None


def placed_by(identifier: bytes) -> int:
    """The identifier's hash."""
    digest = hashlib.blake2b(identifier, digest_size=8, person=b"airlock person").digest()
    return int.from_bytes(digest, "big") & PLACED_BY


def leave_out_nobody(ids: Ids, faults: Faults) -> None:
    """Add the records that have no identifier to the faults."""
    missing = (_as_bytes(one) is None or _bare(str(one)) in _MISSING for one in ids)
    faults.add(NOBODY, (place for place, none in enumerate(missing) if none))


def _bare(identifier: str) -> str:
    """In lower case, without what does not show at its ends: spaces of any width, and marks of an encoding."""
    start, end = 0, len(identifier)
    while start < end and _is_unseen(identifier[start]):
        start += 1
    while start < end and _is_unseen(identifier[end - 1]):
        end -= 1
    return identifier[start:end].lower()


def _is_unseen(letter: str) -> bool:
    return letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf", "Zs")


def as_ids(values: Array, name: str, where: Path) -> list[str | None]:
    """An array of identifiers: whole numbers, text, or numbers of which NaN stands for none; 7.0 is 7.

    Numbers with a point do not hold whole ones from 2^53 on exactly: there, one may be two people's, so it is no
    identifier.

    Raises:
        DataError: It has more than one dimension, or holds something else.
    """
    if values.ndim != 1 or values.dtype.kind not in "iufUS":
        raise DataError(
            f"one identifier per record in '{name}' of {where}",
            f"{values.ndim} dimensions of type {values.dtype}",
            "Equal identifiers are the same person.",
            "Save whole numbers or text.",
        )
    if values.dtype.kind == "S":
        return [bytes(one).decode("utf-8", "surrogateescape") for one in values.tolist()]
    if values.dtype.kind == "f":
        exact = [None if math.isnan(one) or abs(one) >= 2**_BITS else one for one in values.tolist()]
        return [one if one is None else str(int(one)) if one.is_integer() else repr(one) for one in exact]
    return [str(one) for one in values.tolist()]


# What is declared.


def unit_of(config: ReleaseConfig) -> str:
    """The protected unit: as asked for, else a person where the data say whose a record is.

    Raises:
        ConfigError: A person is asked for, and nothing says whose a record is; or something about people is declared
            and not used.
    """
    data = config.data
    unused = [key for key in ("people", "records_per_person") if getattr(data, key) is not None]
    if data.person is None and config.unit == "person":
        raise ConfigError(
            'data.person for unit = "person"',
            "none",
            "Without it nothing says which records are the same person's.",
            'Name the column with the identifiers, such as person = "patient_id", or set unit = "record".',
        )
    if data.person is None and unused:
        raise ConfigError(f"data.person together with data.{unused[0]}", "none", do="Name the column, or remove it.")
    return config.unit or ("record" if data.person is None else "person")


def declared_people(data: DataConfig) -> tuple[int, int]:
    """The public number of people and the bound K on the records of one of them.

    Raises:
        ConfigError: The number is missing, or larger than that of the records.
    """
    if data.people is None:
        raise ConfigError(
            "the number of people in data.people",
            "none",
            "How many people there are is itself private, so they are not counted: give a public round figure. It need "
            "not be exact; it sets the noise and the size of a step, and the guarantee holds regardless.",
            'Add a line such as people = 2000, or set unit = "record" to protect single records only.',
        )
    if data.records is not None and data.people > data.records:
        raise ConfigError(
            f"at most {data.records:,} people in data.people, as many as data.records",
            f"{data.people:,}",
            "Everybody in the data has a record.",
            "Correct one of them.",
        )
    return data.people, data.records_per_person or RECORDS_PER_PERSON


def refuse_test_file(what: str) -> None:
    """Refuse test records in a file of their own, where the unit is a person.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        "one file for all records of a person",
        what,
        "A person could be in both: she would pay in the private part and in the test part, and accuracy on people who "
        "were trained on says little about others.",
        'Put all records into one file and let split.test divide the people, or set unit = "record".',
    )


# Remarks.


def about_people(ids: Ids, most: int | None) -> tuple[str, ...]:
    """Remarks for the holder: identifiers that may be one person's, and people with many records.

    Args:
        ids: Of the records that are kept.
        most: The declared bound on the records of one person, if there is one.
    """
    known = [one for one in ids if one is not None]
    told = []
    distinct = set(known)
    alike = len(distinct) - len({_plain(one) for one in distinct})
    if alike:
        told.append(
            f"{alike:,} {'identifier differs' if alike == 1 else 'identifiers differ'} from another only in how it is "
            "written (spaces, upper and lower case, accents, zeros in front, .0 at the end): they count as different "
            "people. If they are the same, the guarantee is for a part of their records: clean them up."
        )
    rounded = _rounded(distinct)
    if rounded:
        looks = "identifier looks" if rounded == 1 else "identifiers look"
        told.append(
            f"{rounded:,} {looks} like a long number that was rounded by a program that keeps numbers as fractions: "
            "different people may have become one, and are protected less. Write identifiers as text."
        )
    counts = _counts(known)
    many = 0 if most is None else sum(count > most for count in counts)
    if many:
        told.append(
            f"{many:,} {'person has' if many == 1 else 'people have'} more than {most or 0:,} records "
            "(data.records_per_person): where a bound on them is used, the others are left out. The one with most has "
            f"{max(counts):,}; if that one stands for all who are unknown, give each of these records an identifier of "
            "its own."
        )
    return tuple(told)


def _plain(identifier: str) -> str:
    """What two ways of writing one identifier have in common."""
    folded = unicodedata.normalize("NFKD", identifier).casefold()
    kept = "".join(letter for letter in folded if not _is_unseen(letter) and not unicodedata.combining(letter))
    number = re.fullmatch(r"0*([0-9]+?)(\.0+)?", kept)
    return number[1] if number else kept


def _rounded(distinct: Iterable[str]) -> int:
    """How many identifiers are long numbers, if all of these are among the fractions; by chance, half of them are."""
    written = [one for one in map(str.strip, distinct) if _ROUNDED.fullmatch(one)]
    long = [int(one) for one in distinct if re.fullmatch(r"[0-9]{16,300}", one) and int(one) > _EXACT]
    exact = len(long) < _FEWEST_LONG or any(int(float(one)) != one for one in long)
    return len(written) + (0 if exact else len(long))


def _counts(known: Iterable[str]) -> list[int]:
    found: dict[str, int] = {}
    for one in known:
        found[one] = found.get(one, 0) + 1
    return list(found.values())

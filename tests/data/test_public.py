"""A public set beside the private one: it never depends on a private record, and no record is in both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from airlock import data
from airlock.config import DataConfig, ReleaseConfig, from_table
from airlock.data import Facts, Records, Split, add_public, describe_public, digest
from airlock.data.people import number
from airlock.data.public import fit_shape
from airlock.errors import ConfigError

SHAPE = (3, 8, 8)
FACTS = Facts("own", SHAPE, ("a", "b"), 300, None, "x")


def pictures(count: int, seed: int, shape: tuple[int, ...] = SHAPE) -> Records:
    chance = np.random.default_rng(seed)
    return Records(chance.integers(0, 256, (count, *shape), np.uint8), chance.integers(0, 2, count))


def saved(folder: Path, records: Records) -> DataConfig:
    np.savez(folder / "public.npz", x=records.x, y=records.y)
    return DataConfig(source=str(folder / "public.npz"), classes=2, name="others")


def joined(a: Records, b: Records) -> Records:
    return Records(np.concatenate([a.x, b.x]), np.concatenate([a.y, b.y]))


@pytest.fixture
def split() -> Split:
    return Split(FACTS, pictures(200, 1), pictures(0, 2), pictures(40, 3), pictures(30, 4))


def test_the_public_set_is_read_whole_and_named(split: Split, tmp_path: Path) -> None:
    public = pictures(50, 9)
    found = add_public(split, saved(tmp_path, public))
    assert found.beside is not None
    assert (found.beside.name, found.beside.classes, len(found.beside.records)) == ("others", 2, 50)
    assert found.beside.digest == digest(public)
    assert np.array_equal(found.private.x, split.private.x)


def test_a_record_that_is_public_changes_nothing_whether_private_or_not(split: Split, tmp_path: Path) -> None:
    """Neighbouring private sets stay neighbours or become equal, and the public set is the same for both."""
    public = saved(tmp_path, pictures(50, 9))
    one = pictures(50, 9).take(np.array([7]))
    more = Split(FACTS, joined(split.private, one), split.public, split.test, joined(split.holdout, one))
    a, b = add_public(split, public), add_public(more, public)
    assert a.beside is not None
    assert b.beside is not None
    assert a.beside.digest == b.beside.digest
    for x, y in ((a.private, b.private), (a.holdout, b.holdout)):
        assert np.array_equal(x.x, y.x)
        assert np.array_equal(x.y, y.y)


@pytest.mark.parametrize("part", ["private", "test", "holdout"])
@pytest.mark.parametrize("share", [1, 10, None])
def test_the_public_set_is_the_same_whoever_else_is_in_it(
    split: Split, tmp_path: Path, part: str, share: int | None
) -> None:
    """Records of every part leave theirs, one or all of them, and the digest on the card is the public set's own."""
    own: Records = getattr(split, part)
    public = joined(pictures(20, 9), own.take(np.arange(len(own))[:share]))
    found = add_public(split, saved(tmp_path, public))
    assert found.beside is not None
    assert found.beside.digest == digest(public)
    gone = len(own) - len(getattr(found, part))
    assert gone == (share or len(own))
    for other in {"private", "test", "holdout"} - {part}:
        assert len(getattr(found, other)) == len(getattr(split, other))
    assert f"{gone} {part} record{'s'[: gone > 1]} also appear" in found.remarks[-1]


@pytest.mark.parametrize("said", [None, "whose"])
def test_the_holder_is_told_of_people_who_are_in_both_sets(split: Split, tmp_path: Path, said: str | None) -> None:
    """Nobody is left out for it: what is private of them stays protected, given the public set."""
    names, records = [f"P{i // 4}" for i in range(100)], pictures(100, 9)
    np.savez(tmp_path / "public.npz", x=records.x, y=records.y, whose=np.array(names))
    public = DataConfig(source=str(tmp_path / "public.npz"), classes=2, name="others", person=said)
    theirs = number([f"P{i % 40}" for i in range(200)])  # P0 to P24 are in both
    mine = replace(split, private=replace(split.private, person=theirs))
    found = add_public(mine, public)
    assert found.beside is not None
    assert found.beside.records.units == (100 if said is None else 25)
    assert np.array_equal(found.private.x, split.private.x)
    told = [one for one in found.remarks if "people also have records in others" in one]
    assert [one.split()[0] for one in told] == ([] if said is None else ["25"])


def test_the_same_picture_in_floats_is_found(split: Split, tmp_path: Path) -> None:
    private = Records(split.private.x.astype(np.float32) / 255, split.private.y)
    found = add_public(replace(split, private=private), saved(tmp_path, split.private))
    assert len(found.private) == 0


def test_a_public_record_that_does_not_fit_is_left_out_and_told(split: Split, tmp_path: Path) -> None:
    public = Records(pictures(20, 9).x, np.where(np.arange(20) == 3, 7, 0))
    found = add_public(split, saved(tmp_path, public))
    assert found.beside is not None
    assert len(found.beside.records) == 19
    assert "row 4" in found.remarks[0]


def digits(**changes: Any) -> tuple[ReleaseConfig, Facts]:
    config = from_table({"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-4, **changes})
    return config, data.describe(config)


def test_the_private_set_itself_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"split\.public"):
        describe_public(DataConfig(source="digits"), *digits())


@pytest.mark.parametrize(("private", "public"), [("adult", "cifar100"), ("digits", "location30")])
def test_records_that_are_no_pictures_are_refused(private: str, public: str) -> None:
    with pytest.raises(ConfigError, match="grey or colour images"):
        describe_public(DataConfig(source=public), *digits(data=private))


def test_a_public_set_need_not_be_there_to_plan() -> None:
    assert describe_public(DataConfig(source="cifar100"), *digits()).name == "cifar100"


def test_the_digest_tells_pixels_and_labels_apart() -> None:
    one, other = pictures(5, 1), pictures(5, 1)
    assert digest(one) == digest(other)
    other.x[3, 0, 0, 0] ^= 1  # type: ignore[operator]
    assert digest(one) != digest(other)
    assert digest(Records(one.x, 1 - one.y)) != digest(one)


def mean(x: NDArray[Any]) -> float:
    return float(x.astype(np.float64).mean())


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (3, 16, 16), (1, 5, 7), (3, 4, 12)])
def test_pictures_fit_any_shape_and_keep_their_light(shape: tuple[int, ...]) -> None:
    flat = np.full((4, 3, 8, 8), 200, np.uint8)
    found = fit_shape(flat, shape)
    assert found.shape == (4, *shape)
    assert found.dtype == np.uint8
    assert (found == 200).all()
    noise = pictures(50, 1, (3, 32, 32)).x
    assert abs(mean(fit_shape(noise, shape)) - mean(noise)) < 3


def test_halving_averages_and_the_middle_is_kept() -> None:
    x = np.zeros((1, 1, 4, 8), np.float32)
    x[:, :, :, 3:5] = 1.0
    found = fit_shape(x, (1, 2, 2))
    assert np.allclose(found[0, 0], found[0, 0, 0, 0])  # the middle 4 x 4 is symmetric
    assert found.mean() == pytest.approx(0.5, abs=0.1)
    assert np.array_equal(fit_shape(x, (3, 4, 8))[0, 2], x[0, 0])

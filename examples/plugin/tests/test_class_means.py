"""All that a method in a package of its own has to test: it keeps the contract, and the court lets it stand."""

from class_means import ClassMeans

from airlock.auditing import judge
from airlock.mechanisms import Stream
from airlock.testing import check_method


def test_it_keeps_the_contract() -> None:
    check_method(ClassMeans)


def test_its_claim_stands() -> None:
    assert not judge(ClassMeans.case(1.0, 1e-5), Stream.from_seed(0), pairs=1000, seconds=1e9).refuted

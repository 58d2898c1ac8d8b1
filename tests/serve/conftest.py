"""A service's ledger lies on the same databases as any other; services in processes of their own share a nursery."""

from collections.abc import Iterator

import pytest

from tests.ledger.conftest import _patient_locks, folder, ledger, mark, new_database, place, server
from tests.serve.selling import Nursery

__all__ = ["_patient_locks", "folder", "ledger", "mark", "new_database", "nursery", "place", "server"]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()

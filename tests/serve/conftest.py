"""A service's ledger lies on the same databases as any other."""

from tests.ledger.conftest import _patient_locks, folder, ledger, mark, new_database, place, server

__all__ = ["_patient_locks", "folder", "ledger", "mark", "new_database", "place", "server"]

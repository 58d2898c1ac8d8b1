"""One bundle of a table's network, as it was verified, for all tests of this room."""

from __future__ import annotations

import pytest

from airlock.bundle import Bundle, Vault, write
from airlock.bundle.platforms import open_for_others
from tests.bundle.receiving import table


@pytest.fixture(scope="session")
def own_vault(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    return Vault.open(tmp_path_factory.mktemp("platforms") / "vault")


@pytest.fixture(scope="session")
def verified(own_vault: Vault, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    made = write(tmp_path_factory.mktemp("platforms") / "bundle", table.CONFIG, table.release(), table.card())
    return open_for_others(made.folder, own_vault)

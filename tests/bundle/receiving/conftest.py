"""One bundle of a table's network for all tests of this room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airlock.bundle import Bundle, Vault, write
from airlock.bundle.receiving.model import ReleasedModel, load
from tests.bundle.receiving import table


@pytest.fixture(scope="session")
def table_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write(tmp_path_factory.mktemp("table") / "bundle", table.CONFIG, table.release(), table.card())


@pytest.fixture(scope="session")
def table_model(table_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> ReleasedModel:
    """As somebody opens it who has the bundle and nothing else."""
    return load(table_bundle.folder, Vault.open(tmp_path_factory.mktemp("table-vault") / "vault"))


@pytest.fixture
def table_folder(table_bundle: Bundle, tmp_path: Path) -> Path:
    """A copy that a test may tamper with."""
    return Path(shutil.copytree(table_bundle.folder, tmp_path / "table"))

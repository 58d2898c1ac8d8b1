from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from airlock.errors import ConfigError, ExpiredKey, UnknownKey
from airlock.ledger import KeyStore, Ledger, Spend, Terms, digest, tables

REQUEST = digest("a request")


@pytest.fixture
def keys(ledger: Ledger) -> KeyStore:
    return KeyStore(ledger)


def test_a_token_opens_and_is_nowhere_in_the_database(ledger: Ledger, keys: KeyStore) -> None:
    key, token = keys.add("cat", quota=7)
    assert keys.authenticate(token) == key
    assert (key.client, key.admin) == ("cat", False)
    assert ledger.balance("cat").limit == 7
    with tables.reading(ledger.engine) as connection:
        stored = repr(connection.execute(sa.select(tables.keys)).all())
    assert token.split("_", 2)[2] not in stored
    assert digest(token) in stored


def test_tokens_have_256_random_bits(keys: KeyStore) -> None:
    tokens = [keys.add("cat")[1].split("_", 2)[2] for _ in range(3)]
    assert len(set(tokens)) == 3
    assert {len(token) for token in tokens} == {43}


def test_wrong_tokens(keys: KeyStore) -> None:
    key, token = keys.add("cat")
    other = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in ("", "airlock_", other, token + "x", token.upper(), f"airlock_{key.id}_{'A' * 43}", "ü" * 60):
        with pytest.raises(UnknownKey) as refusal:
            keys.authenticate(wrong)
        assert not wrong or wrong not in str(refusal.value)


def test_a_revoked_key_opens_no_more(keys: KeyStore) -> None:
    (first, one), (_, two), (_, other) = keys.add("cat"), keys.add("cat"), keys.add("dog")
    assert [key.id for key in keys.revoke(first.id)] == [first.id]
    with pytest.raises(UnknownKey, match="revoked"):
        keys.authenticate(one)
    keys.authenticate(two)
    assert len(keys.revoke("cat")) == 1
    assert keys.revoke("cat") == []
    with pytest.raises(UnknownKey):
        keys.authenticate(two)
    keys.authenticate(other)
    for unknown in ("nobody", ""):
        with pytest.raises(UnknownKey):
            keys.revoke(unknown)


def test_a_new_key_brings_no_new_budget(ledger: Ledger, keys: KeyStore) -> None:
    ledger.spend(Spend("bob", 9, REQUEST))
    keys.revoke(keys.add("bob")[0].id)
    keys.add("bob")
    assert ledger.balance("bob").left == 1
    keys.add("bob", quota=12)
    assert ledger.balance("bob").left == 3
    assert ledger.verify().ok


def test_a_key_ends_at_its_time(place: str, mark: Path) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    clock = [now.timestamp()]
    with Ledger.open(place, mark, Terms("r", 10, "u"), clock=lambda: clock[0]) as ledger:
        keys = KeyStore(ledger)
        key, token = keys.add("ann", expires=now + timedelta(days=1))
        clock[0] += 24 * 3600 - 1
        assert keys.authenticate(token) == key
        clock[0] += 1
        with pytest.raises(ExpiredKey):
            keys.authenticate(token)
        assert keys.all()[0].state(ledger.now()) == "expired"
        with pytest.raises(ConfigError, match="future"):
            keys.add("ann", expires=now)
        with pytest.raises(ConfigError, match="zone"):
            keys.add("ann", expires=datetime(2040, 1, 1))


def test_an_admin_key_is_nobodys_client(ledger: Ledger, keys: KeyStore) -> None:
    key, token = keys.add_admin()
    assert keys.authenticate(token).admin
    with pytest.raises(UnknownKey):
        ledger.spend(Spend(key.client, 1, REQUEST))
    assert keys.revoke(key.id)
    with pytest.raises(UnknownKey):
        keys.authenticate(token)


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "ann\n", "ann\0", "-ann"])
def test_names_of_clients_are_plain(keys: KeyStore, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        keys.add(name)
    assert keys.all() == []

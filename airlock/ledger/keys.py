"""Keys: who may ask, for how long, and how much.

A token is 256 random bits, shown once; the database holds its SHA-256. A plain hash is enough: salts and slow hashes
protect secrets that can be guessed, and 256 random bits cannot be. The token's first part is the key's public name, by
which its row is found; hashes are compared in constant time, even if there is no such row. A quota belongs to the
client, not to the key: a second key, or a new one after a revocation, brings no new budget.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from airlock.errors import ConfigError, ExpiredKey, UnknownKey
from airlock.ledger import tables
from airlock.ledger.chain import digest
from airlock.ledger.ledger import Ledger
from airlock.ledger.transaction import SetQuota

_TOKEN = re.compile(r"airlock_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = digest("")


@dataclass(frozen=True)
class Key:
    """What is known about a key; times in milliseconds since 1970. An admin key has no client and cannot spend."""

    id: str
    client: str
    admin: bool
    created: int
    expires: int | None
    revoked: int | None

    def state(self, now: int) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "valid"


class KeyStore:
    """The keys of one ledger's service."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def add(self, client: str, quota: int | None = None, expires: datetime | None = None) -> tuple[Key, str]:
        """A new key for a client, and its token, which is never shown again.

        A known client keeps its spending, and its quota if none is given.

        Raises:
            ConfigError: The name, the quota or the expiry is not valid.
        """
        until = self._until(expires)
        SetQuota(client, quota)  # refuses an invalid name before the database is queried
        if quota is not None or not self._knows(client):
            self._ledger.set_quota(client, quota)
        return self._insert(client, False, until)

    def add_admin(self, expires: datetime | None = None) -> tuple[Key, str]:
        """A new admin key and its token; it can read and manage, but never spend."""
        return self._insert("", True, self._until(expires))

    def revoke(self, id_or_client: str) -> list[Key]:
        """Revoke a key by its id, or all keys of a client; returns those that were valid or expired before.

        Raises:
            UnknownKey: There is no such key or client.
        """
        t = tables.keys
        matches = [key for key in self.all() if id_or_client and id_or_client in (key.id, key.client)]
        if not matches:
            raise UnknownKey("a key's id or a client's name", repr(id_or_client)[:80], do="See airlock keys list.")
        fresh = [key for key in matches if key.revoked is None]
        with tables.writing(self._ledger.engine) as connection:
            chosen = t.c.id.in_([key.id for key in fresh]) & t.c.revoked.is_(None)
            connection.execute(sa.update(t).where(chosen).values(revoked=self._ledger.now()))
        return fresh

    def all(self) -> list[Key]:
        """Every key ever issued, oldest first; no secrets."""
        t = tables.keys
        with tables.reading(self._ledger.engine) as connection:
            return [_key(row) for row in connection.execute(sa.select(t).order_by(t.c.created, t.c.id))]

    def authenticate(self, token: str) -> Key:
        """The key that a token belongs to.

        Raises:
            UnknownKey: The token is unknown or was revoked.
            ExpiredKey: The key has expired.
        """
        parts = _TOKEN.fullmatch(token)
        t = tables.keys
        with tables.reading(self._ledger.engine) as connection:
            row = connection.execute(sa.select(t).where(t.c.id == (parts[1] if parts else ""))).one_or_none()
        same = hmac.compare_digest(row.hash if row else _NOBODY, digest(token))
        if row is None or not same or row.revoked is not None:
            raise UnknownKey("a valid key of this service", "an unknown or a revoked one", "Nothing was charged.")
        key = _key(row)
        if key.state(self._ledger.now()) == "expired":
            raise ExpiredKey("a key that has not expired", "an expired one", "Nothing was charged.")
        return key

    def now(self) -> int:
        """The time by which keys expire, in milliseconds since 1970."""
        return self._ledger.now()

    def _insert(self, client: str, admin: bool, expires: int | None) -> tuple[Key, str]:
        key = Key(secrets.token_hex(6), client, admin, self._ledger.now(), expires, None)
        token = f"airlock_{key.id}_{secrets.token_urlsafe(32)}"
        with tables.writing(self._ledger.engine) as connection:
            connection.execute(sa.insert(tables.keys), [vars(key) | {"hash": digest(token)}])
        return key, token

    def _knows(self, client: str) -> bool:
        with tables.reading(self._ledger.engine) as connection:
            found = connection.execute(sa.select(tables.clients.c.name).where(tables.clients.c.name == client))
            return found.first() is not None

    def _until(self, expires: datetime | None) -> int | None:
        if expires is None:
            return None
        if expires.tzinfo is None:
            raise ConfigError("a time with a time zone", "one without", "The hour of expiry would be ambiguous.")
        until = int(expires.timestamp() * 1000)
        if until <= self._ledger.now():
            raise ConfigError("an expiry in the future", expires.isoformat(), "The key could never be used.")
        return until


def _key(row: sa.Row[tuple[object, ...]]) -> Key:
    return Key(row.id, row.client, row.admin, row.created, row.expires, row.revoked)

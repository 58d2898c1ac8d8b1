"""Keys: who may ask, for how long, and how much.

A token is 256 random bits, shown once; the database holds its SHA-256. A plain hash is enough: salts and slow hashes
protect secrets that can be guessed, and 256 random bits cannot be. The token's first part is the key's public name, by
which it is found; hashes are compared in constant time, even if there is no such key. A quota belongs to the client,
not to the key: a second key, or a new one after a revocation, brings no new budget.

Keys are entries of the log. A row in the table of keys that the log does not name opens nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime

from airlock.errors import ConfigError, ExpiredKey, LedgerUnavailable, UnknownKey
from airlock.ledger.chain import digest
from airlock.ledger.ledger import Ledger
from airlock.ledger.state import Key as Key
from airlock.ledger.transaction import SetQuota

_TOKEN = re.compile(r"airlock_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = digest("")


class KeyStore:
    """The keys of one ledger's service."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended: set[str] = set()

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
        known = self._ledger.list_keys() if id_or_client else []
        matches = [(key, token) for key, token in known if id_or_client in (key.id, key.client)]
        if not matches:
            raise UnknownKey("a key's id or a client's name", repr(id_or_client)[:80], do="See airlock keys list.")
        fresh = [(key, token) for key, token in matches if key.revoked is None]
        for key, token in fresh:
            self._ledger.set_key(replace(key, revoked=self._ledger.now()), token)
        return [key for key, _ in fresh]

    def all(self) -> list[Key]:
        """Every key ever issued, oldest first; no secrets."""
        return sorted((key for key, _ in self._ledger.list_keys()), key=lambda key: (key.created, key.id))

    def authenticate(self, token: str) -> Key:
        """The key that a token belongs to.

        Raises:
            UnknownKey: The token is unknown or was revoked.
            ExpiredKey: The key has expired.
            LedgerBroken: The ledger is not intact.
        """
        parts = _TOKEN.fullmatch(token)
        key, stored = self._ledger.find_key(parts[1] if parts else "") or (None, _NOBODY)
        same = hmac.compare_digest(stored, digest(token))
        if key is None or not same or key.revoked is not None:
            raise UnknownKey("a valid key of this service", "an unknown or a revoked one", "Nothing was charged.")
        if key.state(self._ledger.now()) == "expired":
            self._end(key)
            raise ExpiredKey("a key that has not expired", "an expired one", "Nothing was charged.")
        return key

    def _end(self, key: Key) -> None:
        """Write down that this key's time has come, once, so that no clock brings it back."""
        if key.id not in self._ended:
            with contextlib.suppress(LedgerUnavailable):
                self._ledger.remember_time()
                self._ended.add(key.id)

    def now(self) -> int:
        """The time by which keys expire, in milliseconds since 1970."""
        return self._ledger.now()

    def _insert(self, client: str, admin: bool, expires: int | None) -> tuple[Key, str]:
        key = Key(secrets.token_hex(6), client, admin, self._ledger.now(), expires, None)
        token = f"airlock_{key.id}_{secrets.token_urlsafe(32)}"
        self._ledger.set_key(key, digest(token))
        return key, token

    def _knows(self, client: str) -> bool:
        try:
            return self._ledger.balance(client).client == client
        except UnknownKey:
            return False

    def _until(self, expires: datetime | None) -> int | None:
        if expires is None:
            return None
        if expires.tzinfo is None:
            raise ConfigError("a time with a time zone", "one without", "The hour of expiry would be ambiguous.")
        until = int(expires.timestamp() * 1000)
        if until <= (now := self._ledger.now()):
            latest = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="seconds")
            raise ConfigError(
                f"an expiry after {latest}, the latest time that the ledger has seen",
                expires.isoformat(),
                "The key could never be used.",
                "Choose a time in the future.",
            )
        return until

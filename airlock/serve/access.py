"""Authentication: bearer tokens, and what each kind of key may do.

A client's key may send queries and see its own budget. The admin's key sees metrics and the whole budget but cannot
spend. A valid key is cached for a second, so a revocation takes effect within a second; an expiry takes effect at once.
A browser, which cannot send a bearer token by itself, may send the token as the password of HTTP Basic, for reading but
never for spending.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request

from airlock.errors import ExpiredKey
from airlock.ledger.chain import digest
from airlock.ledger.keys import Key, KeyStore
from airlock.serve.problems import Problem

BELIEVED_SECONDS = 1.0
_MOST_BELIEVED = 4096
LOCAL = "local"  # the client's name if no keys are required
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "[::1]"}


class Access:
    """Finds the key behind a request.

    Args:
        store: The keys; None if everyone on this machine may send queries, as the client `local`.
    """

    def __init__(self, store: KeyStore | None) -> None:
        self._store = store
        self._believed: OrderedDict[str, tuple[Key, float]] = OrderedDict()
        self._threads = ThreadPoolExecutor(1, "airlock-keys")

    def close(self) -> None:
        """Stop its thread."""
        self._threads.shutdown()

    async def client(self, request: Request) -> str:
        """The client whose budget pays.

        Raises:
            Problem: There is no key, or it is an admin's.
            UnknownKey: The key is unknown or revoked.
            ExpiredKey: The key has expired.
        """
        key = await self._key(request, looking=False)
        if key is None:
            return LOCAL
        if key.admin:
            raise Problem("not-allowed", "a client's key", "an admin's", "An admin key can read but never spend.")
        return key.client

    async def looker(self, request: Request) -> str | None:
        """The client whose budget may be seen; None for all of it. Raises like `client`, but not for an admin."""
        key = await self._key(request, looking=True)
        return None if key is None or key.admin else key.client

    async def admin(self, request: Request) -> None:
        """Raise unless the request is an admin's, or no keys are required."""
        if await self.looker(request) is not None:
            raise Problem("not-allowed", "the admin's key", "a client's", "This concerns all clients.")

    async def _key(self, request: Request, *, looking: bool) -> Key | None:
        if self._store is None:
            _check_host(request)
            return None
        token = _token(request, looking=looking)
        name = digest(token)
        key, until = self._believed.get(name, (None, 0.0))
        if key is None or time.monotonic() >= until:
            self._believed.pop(name, None)
            begun = time.monotonic()  # before the database is queried: a revocation may arrive in the meantime
            key = await asyncio.get_running_loop().run_in_executor(self._threads, self._store.authenticate, token)
            self._believed[name] = (key, begun + BELIEVED_SECONDS)
            while len(self._believed) > _MOST_BELIEVED:
                self._believed.popitem(last=False)
        if key.state(self._store.now()) == "expired":
            raise ExpiredKey("a key that has not expired", "an expired one", "Nothing was charged.")
        return key


def _token(request: Request, *, looking: bool) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip():
        return secret.strip()
    if looking and scheme.lower() == "basic":
        try:
            return base64.b64decode(secret.strip(), validate=True).decode("ascii").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            pass
    wanted = "Basic" if looking and "text/html" in request.headers.get("accept", "") else "Bearer"
    raise Problem(
        "no-key",
        "Authorization: Bearer and a token",
        "none",
        "Every answer is paid for by someone.",
        "Ask the operator of the service for a key.",
        {"WWW-Authenticate": f'{wanted} realm="airlock"'},
    )


def _check_host(request: Request) -> None:
    """Without keys, guard against DNS rebinding: another site's page may make its name resolve to our address."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in _LOOPBACK_HOSTS:
        raise Problem(
            "not-allowed", "this machine's own name as Host", "another", "Without keys, only this machine may ask."
        )

"""Who asks: bearer tokens, and what each kind of key may do.

A client's key may infer and see its own budget. The admin's key sees metrics and the whole budget and cannot spend. A
key that was found valid is believed for a second without asking the database again, so a revocation takes effect within
a second; an expiry at once. A browser, which cannot send a bearer token by itself, may send the token as the password
of HTTP Basic, to look and never to spend.
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
LOCAL = "local"  # who asks where no keys are asked for
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "[::1]"}


class Access:
    """Finds the key behind a request.

    Args:
        store: The keys; None where everyone on this machine may ask, as the client `local`.
    """

    def __init__(self, store: KeyStore | None) -> None:
        self._store = store
        self._believed: OrderedDict[str, tuple[Key, float]] = OrderedDict()
        self._threads = ThreadPoolExecutor(1, "airlock-keys")

    def close(self) -> None:
        """End its thread."""
        self._threads.shutdown()

    async def client(self, request: Request) -> str:
        """Whose budget pays.

        Raises:
            Problem: There is no key, or an admin's.
            UnknownKey: Nobody's, or revoked.
            ExpiredKey: Its time is over.
        """
        key = await self._key(request, looking=False)
        if key is None:
            return LOCAL
        if key.admin:
            raise Problem("not-allowed", "a client's key", "an admin's", "It can look, and never spend.")
        return key.client

    async def looker(self, request: Request) -> str | None:
        """Whose budget may be seen; None for all of it. Raises as `client` does, but not for an admin."""
        key = await self._key(request, looking=True)
        return None if key is None or key.admin else key.client

    async def admin(self, request: Request) -> None:
        """Raise unless an admin asks, or anyone where no keys are asked for."""
        if await self.looker(request) is not None:
            raise Problem("not-allowed", "the admin's key", "a client's", "This tells about all clients.")

    async def _key(self, request: Request, *, looking: bool) -> Key | None:
        if self._store is None:
            _check_host(request)
            return None
        token = _token(request, looking=looking)
        name = digest(token)
        key, until = self._believed.get(name, (None, 0.0))
        if key is None or time.monotonic() >= until:
            self._believed.pop(name, None)
            begun = time.monotonic()  # before the database is asked: a revocation may come while it answers
            key = await asyncio.get_running_loop().run_in_executor(self._threads, self._store.authenticate, token)
            self._believed[name] = (key, begun + BELIEVED_SECONDS)
            while len(self._believed) > _MOST_BELIEVED:
                self._believed.popitem(last=False)
        if key.state(self._store.now()) == "expired":
            raise ExpiredKey("a key whose time is not over", "one that has expired", "Nothing was charged.")
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
        "Ask whoever runs the service for a key.",
        {"WWW-Authenticate": f'{wanted} realm="airlock"'},
    )


def _check_host(request: Request) -> None:
    """Without keys the browser of this machine is a way in: a page from elsewhere may give its name our address."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in _LOOPBACK_HOSTS:
        raise Problem(
            "not-allowed", "this machine's own name as Host", "another", "Without keys only this machine asks."
        )

"""Authentication: bearer tokens, and what each kind of key may do.

A client's key may send queries and see its own budget. The admin's key sees metrics and the whole budget but cannot
spend. A valid key is cached for a second, so a revocation takes effect within a second; an expiry takes effect at once.
A browser, which cannot send a bearer token by itself, may send the token as the password of HTTP Basic, for reading but
never for spending.

A token cannot be guessed: it has 256 random bits. Whoever tries all the same is told to wait, twice as long each time
(`WrongTokens`), and holds up nobody else: addresses take turns to look keys up. A valid key is accepted at once,
whatever was tried from the same address.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request

from airlock.errors import ExpiredKey, UnknownKey
from airlock.ledger.chain import digest
from airlock.ledger.keys import Key, KeyStore
from airlock.serve.admission import Turns
from airlock.serve.connections import client_network
from airlock.serve.middleware import Meters
from airlock.serve.problems import Problem

BELIEVED_SECONDS = 1.0
_MOST_BELIEVED = 4096
_FREE_ATTEMPTS, _LONGEST_WAIT, _FORGET_SECONDS = 10, 300.0, 600.0
LOCAL = "local"  # the client's name if no keys are required
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "[::1]"}


class WrongTokens:
    """How often each address sent a wrong token lately, and until when it should send none; of bounded size."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[int, float, float]] = OrderedDict()  # how many, since when, until when

    def add(self, network: str) -> float:
        """Count one more; the seconds it should have waited and has to wait now, 0 if it did not come too early."""
        now = time.monotonic()
        count, last, until = self._seen.pop(network, (0, now, now))
        count = 1 if now - last > _FORGET_SECONDS else count + 1
        early = now < until
        until = now + min(2.0 ** min(count - _FREE_ATTEMPTS, 30), _LONGEST_WAIT) if count > _FREE_ATTEMPTS else now
        self._seen[network] = (count, now, until)
        while len(self._seen) > _MOST_BELIEVED:
            self._seen.popitem(last=False)
        return until - now if early else 0.0


class Access:
    """Finds the key behind a request.

    Args:
        store: The keys; None if everyone on this machine may send queries, as the client `local`.
        meters: Where wrong tokens are counted.
    """

    def __init__(self, store: KeyStore | None, meters: Meters) -> None:
        self._store, self._meters = store, meters
        self._wrong, self._lookups = WrongTokens(), Turns(2)
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
            _trust(request)
            return None
        token = _token(request, looking=looking)
        try:
            key = self._recall(token) or await self._look_up(token, _network(request))
        except UnknownKey:
            self._meters.wrong_tokens.inc()
            if seconds := self._wrong.add(_network(request)):
                raise _too_many(seconds) from None
            raise
        if key.state(self._store.now()) == "expired":
            raise ExpiredKey("a key that has not expired", "an expired one", "Nothing was charged.")
        _trust(request)
        return key

    def _recall(self, token: str) -> Key | None:
        """A key that was found to be valid less than a second ago."""
        key, until = self._believed.get(digest(token), (None, 0.0))
        return key if time.monotonic() < until else None

    async def _look_up(self, token: str, network: str) -> Key:
        assert self._store is not None
        async with self._lookups.turn(network) as waited:
            if waited and (known := self._recall(token)):
                return known
            self._believed.pop(digest(token), None)
            begun = time.monotonic()  # before the database is queried: a revocation may arrive in the meantime
            key = await asyncio.get_running_loop().run_in_executor(self._threads, self._store.authenticate, token)
        self._believed[digest(token)] = (key, begun + BELIEVED_SECONDS)
        while len(self._believed) > _MOST_BELIEVED:
            self._believed.popitem(last=False)
        return key


def _network(request: Request) -> str:
    return client_network(request.client.host) if request.client else ""


def _trust(request: Request) -> None:
    """Tell the connection that it has a client with a key."""
    if (connection := request.scope["state"].get("connection")) is not None:
        connection.trust()


def _too_many(seconds: float) -> Problem:
    return Problem(
        "too-many-attempts",
        "a valid key",
        "too many wrong ones from this address",
        "A valid key works at once.",
        "Wait before you try another.",
        {"Retry-After": str(math.ceil(seconds)), "WWW-Authenticate": 'Bearer realm="airlock", error="invalid_token"'},
    )


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

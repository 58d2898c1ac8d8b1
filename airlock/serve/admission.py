"""Who gets what when there is not enough for all: room for bodies, and turns to be answered.

One rule for everything that is shared: nobody may hold more than is still free. Alone, a client gets half; n clients
that want as much as they can get have 1 / (n + 1) each. Something is always free for whoever comes next, so that no
client can keep another out, however much it asks for, and no share has to be set by hand. (In switches the rule is
known as dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator

from airlock.serve.problems import Problem


class Share:
    """An amount that clients share; each may hold at most as much as is still free."""

    def __init__(self, total: int) -> None:
        self._total, self._taken = total, 0
        self._held: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """What all hold together."""
        return self._taken

    def take(self, client: str, amount: int = 1) -> bool:
        """Take so much more for a client; False, and nothing is taken, if that is more than its share."""
        if self._held.get(client, 0) + amount > self._total - self._taken:
            return False
        self._held[client] = self._held.get(client, 0) + amount
        self._taken += amount
        return True

    def give_back(self, client: str, amount: int = 1) -> None:
        """Give back what was taken."""
        self._taken -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]


class Turns:
    """So many at a time, in a fair order: clients take turns, and each is served in the order in which it asked."""

    def __init__(self, at_once: int) -> None:
        self._share = Share(at_once)
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of the clients' turns

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[bool]:
        """Wait for a turn and keep it; tells whether there was a wait."""
        waited = client in self._queues or not self._share.take(client)
        if waited:
            await self._wait(client)
        try:
            yield waited
        finally:
            self._share.give_back(client)
            self._call()

    async def _wait(self, client: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was this one's turn
                self._share.give_back(client)
            else:
                self._leave(client, mine)
            self._call()
            raise

    def _leave(self, client: str, mine: asyncio.Future[None]) -> None:
        queue = self._queues.get(client, deque())
        with contextlib.suppress(ValueError):
            queue.remove(mine)
        if not queue:
            self._queues.pop(client, None)

    def _call(self) -> None:
        """Give free turns to whoever waits: one each, until there are no more."""
        called = True
        while called:
            called = False
            for client in list(self._queues):
                if self._share.take(client):
                    queue = self._queues.pop(client)
                    queue.popleft().set_result(None)
                    if queue:
                        self._queues[client] = queue  # behind the others
                    called = True


class Admission:
    """What requests with a key share: their number, the memory of their bodies, and turns to be answered.

    Args:
        requests: The most at once, whether their bodies arrive, they wait or they are answered.
        body_bytes: The most bytes of their bodies.
        answering: The most that are answered at once.
    """

    def __init__(self, requests: int, body_bytes: int, answering: int) -> None:
        self._requests, self._bytes = Share(requests), Share(body_bytes)
        self.answering = Turns(answering)
        self.parsing = Turns(2)  # large bodies alone: they take ten times their size while they are parsed

    @contextlib.contextmanager
    def request(self, client: str) -> Iterator[BodyRoom]:
        """Admit a request, and give the room for its body until it is answered.

        Raises:
            Problem: The client already has its share of requests.
        """
        if not self._requests.take(client):
            raise _busy("no more requests of one client at once than others could still send")
        room = BodyRoom(self._bytes, client)
        try:
            yield room
        finally:
            room.give_back()
            self._requests.give_back(client)


class BodyRoom:
    """The memory that one body takes, counted as it arrives."""

    def __init__(self, share: Share, client: str) -> None:
        self._share, self._client, self.size = share, client, 0

    def add(self, amount: int) -> None:
        """Take room for so many bytes more.

        Raises:
            Problem: The client already has its share of memory.
        """
        if not self._share.take(self._client, amount):
            raise _busy("no larger bodies of one client at once than others could still send")
        self.size += amount

    def give_back(self) -> None:
        """Give all of it back."""
        if self.size:
            self._share.give_back(self._client, self.size)
        self.size = 0


def _busy(expected: str) -> Problem:
    headers = {"Retry-After": "1", "Connection": "close"}  # the rest of the body would be read as the next request
    return Problem("busy", expected, "more", "Nothing was charged.", "Retry in a second.", headers)

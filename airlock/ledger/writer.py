"""Group commit: one thread writes for all callers, and each transaction takes whatever has queued up meanwhile.

A commit waits for the disk. Meanwhile orders queue up, and the next transaction takes up to `batch` of them,
round-robin over the clients, so that a client that floods the queue delays only itself. The queue is bounded in total
and per client. Callers wait on a future, which is set after the commit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from airlock.errors import AirlockError, LedgerError, LedgerUnavailable
from airlock.ledger.transaction import Order

Settle = Callable[[Sequence[Order]], list[object]]


@dataclass(frozen=True)
class _Waiting:
    order: Order
    future: Future[object]


class Writer:
    """A thread that settles orders in batches.

    Args:
        settle: Settles orders in one transaction and returns one outcome per order; an `AirlockError` is a refusal. It
            raises if the transaction failed; then none of them took effect, unless the error is `uncertain`.
        batch: The most orders in one transaction; 1 turns group commit off.
        room: The most orders that may wait in total; one client may use a quarter of it.
    """

    def __init__(self, settle: Settle, batch: int = 256, room: int = 4096) -> None:
        self._settle, self._batch, self._room = settle, batch, room
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="airlock-ledger", daemon=True)
        self._thread.start()

    def submit(self, order: Order) -> Future[object]:
        """Queue an order.

        Raises:
            LedgerUnavailable: The queue is full, or the ledger is closed (or was opened before a fork).
        """
        waiting = _Waiting(order, Future())
        with self._changed:
            if self._closed or not self._thread.is_alive():
                raise LedgerUnavailable("an open ledger", "a closed one", "Nothing was charged.", "Open it again.")
            queue = self._queues.setdefault(order.client, deque())
            if self._waiting >= self._room or len(queue) >= max(1, self._room // 4):
                raise LedgerUnavailable("room in the queue", "none", "Nothing was charged.", "Retry more slowly.")
            queue.append(waiting)
            self._waiting += 1
            self._changed.notify()
        return waiting.future

    def close(self) -> None:
        """Settle the queued orders, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            self._settle_all(batch)

    def _take(self) -> list[_Waiting]:
        """The next batch, one order per client in turn; empty when closed and nothing waits."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            batch: list[_Waiting] = []
            while self._waiting and len(batch) < self._batch:
                client, queue = self._queues.popitem(last=False)
                if queue:
                    batch.append(queue.popleft())
                    self._waiting -= 1
                if queue:
                    self._queues[client] = queue
            return batch

    def _settle_all(self, batch: list[_Waiting]) -> None:
        """Settle a batch; if it certainly failed, settle one by one, so that one bad order does not fail the others."""
        batch = [one for one in batch if one.future.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            outcomes = self._settle([one.order for one in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, callers are waiting for it
            if len(batch) > 1 and not _is_down(error):
                for one in batch:
                    self._settle_one(one)
            else:
                for one in batch:
                    one.future.set_exception(_told(error))
            return
        for one, outcome in zip(batch, outcomes, strict=True):
            _resolve(one.future, outcome)

    def _settle_one(self, one: _Waiting) -> None:
        try:
            _resolve(one.future, self._settle([one.order])[0])
        except Exception as error:  # noqa: BLE001
            one.future.set_exception(_told(error))


def _resolve(future: Future[object], outcome: object) -> None:
    if isinstance(outcome, AirlockError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _is_down(error: Exception) -> bool:
    """Whether retrying one by one would only make everyone wait, or could charge twice."""
    return isinstance(error, LedgerUnavailable)


def _told(error: Exception) -> AirlockError:
    if isinstance(error, AirlockError):
        return error
    told = LedgerError("to settle an order", f"an error ({type(error).__name__})", "Nothing was answered.")
    told.__cause__ = error
    return told

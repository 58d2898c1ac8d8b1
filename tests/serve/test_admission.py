"""Fair shares: nobody holds more than is free, clients take turns, and whoever leaves gives everything back."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.methods.interface import Answers, Reservation
from airlock.serve.admission import Admission, Share, Turns
from airlock.serve.answer_handler import Batcher
from airlock.serve.problems import Problem
from tests.serve.selling import Priced
from tests.waiting import LONG


@given(st.integers(1, 50), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.booleans())))
def test_nobody_takes_what_others_need(total: int, steps: list[tuple[str, int, bool]]) -> None:
    share, held = Share(total), dict.fromkeys("abcd", 0)
    for client, amount, takes in steps:
        if takes and share.take(client, amount):
            held[client] += amount
        elif not takes and held[client]:
            share.give_back(client, held[client])
            held[client] = 0
        assert share.taken == sum(held.values()) <= total
        free = total - share.taken
        for one, much in held.items():
            assert much + 1 <= free or not share.take(one)  # what is taken was free twice over


def test_a_client_alone_gets_half_and_each_of_n_an_equal_part() -> None:
    for clients, part in ((1, 0.5), (2, 1 / 3), (4, 0.2), (9, 0.1)):
        share, counts = Share(1000), [0] * clients
        for _ in range(1000):
            for client in range(clients):
                counts[client] += share.take(str(client))
        assert all(abs(count / 1000 - part) < 0.01 for count in counts)
        assert share.take("another", 90)


async def settle() -> None:
    """Let every task go on as far as it can."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        passed = loop.create_future()
        loop.call_soon(passed.set_result, None)
        await passed


def test_turns_go_round_and_nobody_waits_for_a_place_that_is_free() -> None:
    asyncio.run(_take_turns())


async def _take_turns() -> None:
    turns, order, gates = Turns(2), list[str](), dict[str, asyncio.Event]()

    async def come(name: str) -> None:
        async with turns.turn(name[0]) as waited:
            order.append(f"{name}{'+' if waited else ''}")
            await gates.setdefault(name, asyncio.Event()).wait()

    names = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]
    tasks = {}
    for name in names:
        tasks[name] = asyncio.create_task(come(name))
        await settle()
    assert order == ["a1", "b1"]  # one each, though a asked four times before b came
    tasks["a3"].cancel()  # it leaves while it waits
    await settle()
    for name in ("a1", "b1", "a2", "c1", "b2", "a4"):
        gates.setdefault(name, asyncio.Event()).set()
        await settle()
    assert order == ["a1", "b1", "a2+", "b2+", "c1+", "a4+"]
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    async with turns.turn("a") as waited:
        assert not waited


def test_whoever_is_called_and_leaves_at_once_gives_its_turn_back() -> None:
    async def run() -> None:
        turns = Turns(1)

        async def come() -> None:
            async with turns.turn("a"):
                pass

        async with turns.turn("a"):
            waiting = asyncio.create_task(come())
            await settle()
        waiting.cancel()  # it has been called, and has not noticed yet
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(LONG), turns.turn("b"):
            pass

    asyncio.run(run())


def test_what_a_request_held_is_free_again_however_it_ends() -> None:
    admission = Admission(4, 100, 4)
    for _ in range(20):
        with admission.request("a") as room:
            room.add(40)
            with pytest.raises(Problem):
                room.add(40)
        with pytest.raises(Problem), admission.request("a") as room:
            room.add(101)
    with admission.request("a"), admission.request("a"):
        with pytest.raises(Problem), admission.request("a"):
            pass
        with admission.request("b") as room:
            room.add(100)


def test_answers_are_computed_for_clients_in_turns() -> None:
    seen: list[int] = []

    class Noting(Priced):
        def answer(self, x: Any, reservation: Any, stream: Any) -> Any:
            seen.append(len(x))
            assert self.go.wait(LONG)
            return Answers(np.zeros(len(x), np.int64))

    async def run() -> None:
        answerer = Noting(10**6)
        batcher = Batcher(answerer)
        answerer.go.clear()
        asked = [batcher.answer(np.zeros((1, 1, 2, 2), np.float32), Reservation(1, 1), "first")]
        asked += [batcher.answer(np.zeros((600, 1, 2, 2), np.float32), Reservation(600, 600), "many") for _ in range(9)]
        asked += [batcher.answer(np.zeros((2, 1, 2, 2), np.float32), Reservation(2, 2), "one")]
        tasks = [asyncio.ensure_future(one) for one in asked]
        await settle()
        answerer.go.set()
        await asyncio.gather(*tasks)
        batcher.close()

    asyncio.run(run())
    assert sorted(seen) == [1, 2] + [600] * 9
    assert seen.index(2) <= 2  # not behind all that another client sent before it

"""Every answer is paid for: what a method says its answers cost is what the ledger loses, through the code that sells.

For every method that answers instead of leaving: a real release, its own answerer from the interface and the vault, a
real ledger with the interface's units as its cap, and the handler that the service asks, in requests of several rows.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from airlock import methods
from airlock.data import divide
from airlock.errors import AirlockWarning, Exhausted, Refused
from airlock.ledger import Ledger
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Interface, Release
from airlock.methods.interface import ONE_ANSWER, Answerer, Answers, Reservation, as_queries
from airlock.serve.answer_handler import AnswerHandler, Batcher
from airlock.serve.ledger_paths import terms_of
from airlock.serve.protocol import LABEL, Query
from airlock.training import Run
from tests.methods.test_missing_records import FACTS, NAMES, config, digits

SETTINGS: dict[str, dict[str, Any]] = {
    "answers/per-query": {"queries": 15},
    "answers/per-query, labels": {"queries": 15, "gives": "label"},
    "answers/votes": {"queries": 15},
    "answers/neighbours": {"queries": 15},
    "answers/published": {"queries": 15},
}
REQUESTS = ((1, "ann", None), (3, "bob", None), (3, "ann", None), (2, "ann", "a key"), (2, "bob", "a key"))


@cache
def released(name: str) -> Release:
    """Made once, before any fault is planted under what sells its answers."""
    asked = config(name.split(",")[0], **SETTINGS[name])
    split = divide(FACTS, digits(), None, asked.split, asked.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        return methods.build(asked, FACTS).release(split, Randomness.make(0, insecure_seed=1), Run())


def opened(name: str) -> Answerer:
    """Whoever answers, as the service opens it."""
    made = released(name)
    assert isinstance(made.artefact, Interface)
    return methods.named(name.split(",")[0]).answerer(made.artefact, made.secrets)


class Shop:
    """Sells the answers of one answerer to two clients, against a ledger of its own."""

    def __init__(self, answerer: Answerer, folder: Path) -> None:
        self.answerer = answerer
        self.ledger = Ledger.open(folder / "ledger.db", folder / "mark", terms_of("a-release", answerer.interface))
        self.ledger.set_quota("ann", None)
        self.ledger.set_quota("bob", None)
        self.given, self.unpaid = 0, 0
        self._watch()

    def _watch(self) -> None:
        """Count what is answered, and what was not on the ledger when its noise was drawn."""
        answer = self.answerer.answer

        def watched(x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
            self.given += len(x)
            self.unpaid = max(self.unpaid, self.given - self.spent)
            return answer(x, reservation, stream)

        self.answerer.answer = watched  # type: ignore[method-assign]

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    @property
    def spent(self) -> int:
        return self.ledger.balance().spent

    def handle(self, rows: int, client: str = "ann", key: str | None = None, first: int = 0) -> NDArray[np.int64]:
        """The labels of one request, as they leave."""
        return asyncio.run(self._sell(as_queries(digits().take(np.arange(first, first + rows))), client, key))

    async def _sell(self, x: NDArray[np.float32], client: str, key: str | None) -> NDArray[np.int64]:
        handler = AnswerHandler(self.answerer, self.ledger)
        try:
            sold = await handler.handle(client, Query(x, (LABEL,), None, f"{len(x):064x}"), key)
        finally:
            handler.close()
        found = {one["name"]: one["data"] for one in json.loads(sold.outputs)}
        return np.array(found[LABEL], np.int64)


def every_answer_is_charged(name: str, requests: Sequence[tuple[int, str, str | None]] = REQUESTS) -> None:
    """A fixed price: n answers cost n units, the next n cost as much again, and when all are spent none is given."""
    with tempfile.TemporaryDirectory() as folder, Shop(opened(name), Path(folder)) as shop:
        desk, paid = shop.answerer, 0
        for rows, client, key in requests:
            shop.handle(rows, client, key)
            paid += rows
            assert shop.spent == paid, f"{shop.spent} units were charged for {paid} answers"
            assert not shop.unpaid, f"noise was drawn for {shop.unpaid} answers before they were charged"
            asked = desk.reserve(rows)
            assert asked.units == rows, f"{rows} more answers would cost {asked.units}"
            desk.cancel(asked)
        units = desk.interface.units
        assert units is not None
        assert shop.handle(*requests[-1]).shape == (requests[-1][0],)  # again, by the same key: the same answer
        assert (shop.given, shop.spent) == (paid, paid), "an answer that is given again is drawn or charged again"
        with pytest.raises(Exhausted):
            shop.handle(units - paid + 1)
        shop.handle(units - paid)
        with pytest.raises(Exhausted):
            shop.handle(1)
        assert shop.given == shop.spent == units


def answers_have_noise_of_their_own(name: str) -> None:
    """The same question, several times in one request and in several requests: as many noises."""
    desk, found = opened(name), []
    seller = Batcher(desk)
    for _ in range(2):
        answers = seller._one(np.repeat(as_queries(digits().take(np.arange(1))), 3, 0), desk.reserve(3))
        assert isinstance(answers, Answers), answers
        assert answers.values is not None
        found.append(answers.values)
    assert len(np.unique(np.concatenate(found), axis=0)) == 6, "answers to the same question share their noise"


def a_reservation_is_answered_once(name: str) -> None:
    """Noise is drawn once for what was paid once."""
    desk, x = opened(name), as_queries(digits().take(np.arange(2)))
    paid = desk.reserve(2)
    desk.answer(x, paid, Stream.from_seed(1))
    with pytest.raises(Refused):
        desk.answer(x, paid, Stream.from_seed(2))


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_charged_one_by_one_and_end_with_the_budget(name: str) -> None:
    every_answer_is_charged(name)


@pytest.mark.parametrize("name", ["answers/per-query", "answers/votes"])
def test_a_reservation_is_answered_once(name: str) -> None:
    a_reservation_is_answered_once(name)


def test_every_answer_has_noise_of_its_own() -> None:
    answers_have_noise_of_their_own("answers/per-query")


def test_every_method_that_answers_is_tried() -> None:
    for name in NAMES:
        channel = methods.named(name)
        if "answerer" in vars(channel):
            assert name in SETTINGS, f"{name} answers: add it to SETTINGS"
    for name in SETTINGS:
        artefact = released(name).artefact
        assert isinstance(artefact, Interface)
        assert artefact.unit == ONE_ANSWER or name == "answers/published"

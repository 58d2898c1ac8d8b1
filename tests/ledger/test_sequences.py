"""Any sequence of spends, replays, crashes and quotas: the ledger does what a few lines of plain Python say."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airlock.errors import Exhausted, KeyReused
from airlock.ledger import Charge, Ledger, Replay, Rules, Spend, Terms, digest
from tests.ledger.conftest import MEMORY

CAP = 40
CLIENTS = st.sampled_from(["ann", "bob"])
RULES = Rules(replay_seconds=100, answer_seconds=10)


class Sequences(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.time = 1e9
        self.spent = {"ann": 0, "bob": 0}
        self.quotas: dict[str, int | None] = {"ann": None, "bob": 15}
        self.held: dict[tuple[str, str], tuple[str, float, bytes | None]] = {}
        self.open: list[tuple[Charge, str]] = []
        self.answers = 0
        self.ledger = self.opened()
        for client, quota in self.quotas.items():
            self.ledger.set_quota(client, quota)

    def opened(self) -> Ledger:
        return Ledger.open(
            self.folder / "db", self.folder / "mark", Terms("r", CAP, "u"), rules=RULES, clock=lambda: self.time
        )

    @rule(
        client=CLIENTS,
        units=st.integers(1, 6),
        rows=st.integers(1, 4),
        request=st.sampled_from("xy"),
        key=st.sampled_from([None, "k", "l"]),
    )
    def spend(self, client: str, units: int, rows: int, request: str, key: str | None) -> None:
        held = self.held.get((client, key)) if key else None
        if held is not None and self.time - held[1] >= RULES.replay_seconds:
            held = None
        quota, total = self.quotas[client], units * rows
        try:
            outcome = self.ledger.spend(Spend(client, units, digest(request), rows, key))
        except KeyReused:
            assert held is not None
            assert held[0] != request or (held[2] is None and self.time - held[1] < RULES.answer_seconds)
        except Exhausted:
            assert held is None or held[2] is None
            assert sum(self.spent.values()) + total > CAP or (quota is not None and self.spent[client] + total > quota)
        else:
            if isinstance(outcome, Replay):
                assert held is not None
                assert (held[0], held[2]) == (request, outcome.body)
                return
            assert held is None or (held[0] == request and held[2] is None)
            self.spent[client] += total
            self.open.append((outcome, request))
            if key:
                self.held[client, key] = (request, self.time, None)

    @rule()
    def answer(self) -> None:
        """The newest charge is answered and stored; older ones were those of processes that died."""
        if not self.open:
            return
        charge, request = self.open.pop()
        self.answers += 1
        body = str(self.answers).encode()
        stored = self.ledger.keep(charge, body)
        for place, held in self.held.items():
            if charge.key and place == (charge.client, next(k for k in "kl" if digest(k) == charge.key)):
                assert stored == (held[2] is None), "the newest charge of its key is the one that may be stored"
                if stored:
                    self.held[place] = (request, self.time, body)

    @rule()
    def crash(self) -> None:
        """Charges without an answer stay charged, and their answers never come."""
        self.open.clear()
        self.ledger.close()
        self.ledger = self.opened()

    @rule(seconds=st.sampled_from([1, 11, 101]))
    def wait(self, seconds: int) -> None:
        self.time += seconds
        self.open.clear()

    @rule(client=CLIENTS, quota=st.one_of(st.none(), st.integers(0, 30)))
    def set_quota(self, client: str, quota: int | None) -> None:
        self.ledger.set_quota(client, quota)
        self.quotas[client] = None if quota is None else max(quota, self.spent[client])

    @rule()
    def forget(self) -> None:
        self.ledger.forget_answers()

    @invariant()
    def charged_is_what_was_charged(self) -> None:
        assert self.ledger.balance().spent == sum(self.spent.values()) <= CAP
        for client, spent in self.spent.items():
            assert self.ledger.balance(client).spent == spent

    def teardown(self) -> None:
        verdict = self.ledger.verify()
        assert verdict.ok, verdict.says
        assert verdict.spent == sum(self.spent.values())
        self.ledger.close()
        shutil.rmtree(self.folder)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)

"""`answers`/`savings`: many heads on disjoint records vote; what they agree on is free, the rest costs a unit each.

`votes` has the proof. Heads stay in the vault; what leaves is the right to ask until T questions were too close to
call. The noise is on how sure a vote was, so that how many heads there are is the one figure that matters: more of them
are surer together and know less each.

Settings, by one rule: a vote is sure if the first class leads the second by 2t heads or so, t the threshold; with 4t
heads that is half of them. `planner` compares this with the other methods before a record is read.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
from pydantic import Field

from airlock.accounting import Course
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import AboveThreshold, Randomness, Stream
from airlock.methods.answers import votes_case
from airlock.methods.answers.fitted import FrontSettings
from airlock.methods.answers.shards import FEWEST, Sharded, ShardSettings
from airlock.methods.answers.votes import NONE, Voters, course, rule_for
from airlock.methods.case import Case
from airlock.methods.contract import Plan, Release, Secrets, check_executed
from airlock.methods.interface import Answerer, Interface, as_queries
from airlock.training import Run
from airlock.training.outcomes import Outcomes

UNIT = "one question that is too close to call, or {queries:,} that are not"


class SavingsSettings(ShardSettings):
    """Who votes and what may be asked.

    Args:
        queries: The most questions that one unit can pay for; all of them if none is too close to call.
        unsure: T, how many questions may be too close to call before it is over.
    """

    queries: Annotated[int, Field(ge=1, le=10**7)] = 1000
    unsure: Annotated[int, Field(ge=1, le=10**5)] = 10


class Savings(Sharded):
    """Votes with a threshold; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "answers"
    method: ClassVar[str] = "savings"
    status: ClassVar[Status] = "proven"
    leaves: ClassVar[str] = (
        "Answers to questions on which many models, each trained on other records, agree clearly. The models stay "
        "inside, and it ends after a fixed number of questions on which they do not."
    )
    settings_type: ClassVar[type[FrontSettings]] = SavingsSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        assert isinstance(self.settings, SavingsSettings)
        self.asking = self.settings

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """Questions that one record makes surer, and others that it makes less sure."""
        return votes_case.of_votes(cls, epsilon, delta)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """Whoever answers, from the interface's figures and the vault's heads."""
        return Voters(interface, kept)

    def plan(self) -> Plan:
        """Calibrate the noise of T sessions to (ε, δ) and fix threshold and heads; touches no record."""
        rule, net = self.rule(), self.sized()
        heads = self.heads(rule)
        objective = self.objective(heads)
        self.check(objective, net.head.in_features, 2 * self.records)
        spent = self.course(rule.event)
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.guarantee(spent.events()),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "queries_a_unit": self.asking.queries,
                "units": self.asking.unsure,
                "heads": heads,
                "regularisation": objective.regularisation,
                "threshold": rule.threshold,
                "lead_that_is_sure": min(1.0, 2 * (rule.threshold + 1) / heads),
                "noise_multiplier": 1 / (rule.first + rule.second),
                "epsilon_of_a_unit": rule.first + rule.second,
            },
            spent,
        )

    def release(self, split: Split, randomness: Randomness, run: Run) -> Release:
        """Compute features once, solve a head a shard, put them away, and ask about test records."""
        plan, rule = self.plan(), self.rule()
        net = self.ready().to(run.device)
        kept = self.kept(net, split.private, self.heads(rule), run)
        interface = self.interface(rule)
        desk = Voters(interface, kept)
        executed = self.course(desk.event).events()
        check_executed(plan, executed)
        utility = self.utility(desk, split.test, randomness.privacy.child("utility"))
        return self.leave(plan, executed, interface, utility, kept, randomness)

    def utility(self, desk: Voters, test: Records, stream: Stream) -> Outcomes:
        """As many test records as one unit pays for at most, until all units are spent; no answer is a wrong one."""
        some = test.take(np.arange(min(len(test), self.asking.queries)))
        if not len(some):
            return Outcomes(some.y, some.y)
        labels = desk.answer(as_queries(some), desk.reserve(len(some)), stream).labels
        over = np.cumsum(labels == NONE) >= self.asking.unsure
        return Outcomes(some.y, np.where(over, NONE, labels).astype(np.int64))

    def interface(self, rule: AboveThreshold) -> Interface:
        """What may be asked, and the figures that whoever answers needs."""
        figures: dict[str, str | int | float] = {
            "net": self.net_name,
            "queries": self.asking.queries,
            "heads": self.heads(rule),
            "threshold": rule.threshold,
            "epsilon_threshold": rule.first,
            "epsilon_numbers": rule.second,
        }
        unit = UNIT.format(queries=self.asking.queries)
        return Interface("label", self.facts.shape, self.facts.classes, self.asking.unsure, unit, figures)

    def rule(self) -> AboveThreshold:
        """The sessions' noise and threshold, by public figures."""
        config, asking = self.config, self.asking
        runs, accountant = config.tuning_runs, config.accountant
        return rule_for(config.epsilon, config.delta, asking.unsure, asking.queries, runs, accountant)

    def heads(self, rule: AboveThreshold) -> int:
        """K.

        Raises:
            ConfigError: So few that no vote of theirs could ever be sure.
        """
        fewest, chosen = 2 * rule.threshold + 4, self.asking.heads
        heads = min(4 * rule.threshold, self.records // FEWEST) if chosen is None else chosen
        if heads < fewest:
            raise ConfigError(
                f"at least {fewest:,} heads, or no vote could be sure",
                f"{heads:,}" if chosen else f"{self.records:,} records, enough for {max(0, heads):,}",
                "The smaller ε and the more unsure questions, the more votes the noise hides.",
                'Raise epsilon, lower settings.unsure, or take method = "head".',
            )
        return heads

    def course(self, session: dpa.DpEvent) -> Course:
        """All that is spent, by sessions of this kind."""
        return course(session, self.asking.unsure, self.config.delta, self.config.tuning_runs)

"""What is promised: `Guarantee`, the one value that every release carries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa

from airlock.accounting.epsilon import Accountant, compute_epsilon
from airlock.accounting.events import contains_sampling, to_json
from airlock.accounting.terms import Claim, Relation, Status, Unit


@dataclass(frozen=True)
class Guarantee:
    """A guarantee about what leaves.

    ε is computed from the events when the value is created; it cannot be set by hand. An accountant of another package
    can raise it above dp-accounting's figure but never lower it (`epsilon`), so a proven ε stays proven;
    `accountant_version` then says whose it is.

    Args:
        unit: Whose presence is protected: one person with all her records, one record, one model, or nothing.
        relation: What "neighbouring" means: a unit added or removed, or one replaced.
        events: What happened to the data, as a dp-accounting event.
        delta: The δ at which ε is stated.
        status: proven, claimed (a paper says so and the proof fails or is missing) or empirical.
        assumptions: Sentences a reviewer can tick off; the guarantee holds if they are true.
        claim: What the paper would print, if it differs.
        accountant: Which accountant to use: "auto", "pld", "rdp", or one from another package by its name.
    """

    unit: Unit
    relation: Relation
    events: dpa.DpEvent
    delta: float
    status: Status
    assumptions: tuple[str, ...]
    claim: Claim | None = None
    accountant: Accountant = "auto"
    epsilon: float = field(init=False)
    accountant_used: str = field(init=False)
    accountant_version: str = field(init=False)

    def __post_init__(self) -> None:
        spent = compute_epsilon(self.events, self.delta, self.relation, self.accountant)
        object.__setattr__(self, "epsilon", math.inf if self.unit == "none" else spent.epsilon)
        object.__setattr__(self, "accountant_used", spent.accountant)
        object.__setattr__(self, "accountant_version", spent.version)

    @property
    def sampling(self) -> str:
        """How records, or people, were sampled, in words."""
        if contains_sampling(self.events):
            own = "person" if self.unit == "person" else "record"
            return f"Poisson: every {own} enters a lot independently; which ones did stays secret"
        return "none: every step used every record"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a card or for `--json`; an infinite ε is null."""
        claim = None
        if self.claim:
            claim = {"epsilon": self.claim.epsilon, "delta": self.claim.delta, "theorem": self.claim.theorem}
        return {
            "status": self.status,
            "unit": self.unit,
            "relation": self.relation,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "accountant": self.accountant_used,
            "accountant_version": self.accountant_version,
            "sampling": self.sampling,
            "claim": claim,
            "assumptions": list(self.assumptions),
            "events": to_json(self.events),
        }

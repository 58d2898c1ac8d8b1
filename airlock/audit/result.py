"""What an attack found: its score, how sure that is, and what it could have seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AttackResult:
    """One attack on what leaves.

    Args:
        name: Short name, as in "loss threshold".
        question: What the attacker tries to find out, in one sentence for a reader who is no engineer.
        score: The name of the score, as in "AUC".
        value: The score.
        low: Lower end of its confidence interval.
        high: Upper end.
        chance: What pure guessing scores.
        confidence: Of the interval.
        members: How many records of the training set were used; a public figure.
        non_members: How many records of the holdout were used; a public figure.
        smallest_effect: The smallest score that this many records could have told from guessing.
        epsilon_lower_bound: The largest ε that the attack refutes, 0 if none.
    """

    name: str
    question: str
    score: str
    value: float
    low: float
    high: float
    chance: float
    confidence: float
    members: int
    non_members: int
    smallest_effect: float
    epsilon_lower_bound: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, rounded: more digits would say more about single records than about the attack."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in vars(self).items()}


@dataclass(frozen=True)
class Audit:
    """The attacks that were run, and in plain words those that were not."""

    attacks: tuple[AttackResult, ...]
    not_tested: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for audit.json."""
        return {"attacks": [attack.to_dict() for attack in self.attacks], "not_tested": list(self.not_tested)}

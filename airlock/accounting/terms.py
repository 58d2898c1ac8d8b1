"""The words of a guarantee: whose presence it hides, from which neighbours, and how well it is founded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airlock.config import Delta, Epsilon

Unit = Literal["person", "record", "model", "none"]
PROTECTED: tuple[Unit, ...] = ("person", "record")  # units that are people's; a promise about others is none to them
Relation = Literal["add-remove", "replace-one"]
Status = Literal["proven", "claimed", "empirical"]


@dataclass(frozen=True)
class Claim:
    """What a paper would print: its ε and δ, and the theorem it relies on."""

    epsilon: Epsilon
    delta: Delta
    theorem: str

"""Attacks on what leaves: what an adversary could learn from it, measured with records that are known to be in or out.

In: a release and the split it came from. Out: an `Audit`, and the per-record scores for the vault.
"""

from airlock.audit.bounds import auc_interval, epsilon_lower_bound, proportion_interval
from airlock.audit.result import AttackResult, Audit
from airlock.audit.run import run

__all__ = ["AttackResult", "Audit", "auc_interval", "epsilon_lower_bound", "proportion_interval", "run"]

"""Attacks on what leaves: what an adversary could learn from it, measured with records that are known to be in or out.

In: a release and the split it came from. Out: an `Audit`, and the per-record scores for the vault. Beside it the court:
in goes a method's case, out comes a `Verdict` on its stated (ε, δ); in go its canaries, out comes a `OneRunVerdict`.
"""

from airlock.auditing.audit_game import Verdict, judge
from airlock.auditing.bounds import auc_interval, epsilon_lower_bound, proportion_interval
from airlock.auditing.features.attack import FeatureSettings
from airlock.auditing.features.release import attack_features
from airlock.auditing.metrics import measure, measure_all, roc
from airlock.auditing.one_trial import OneRunVerdict, judge_one_run
from airlock.auditing.result import AttackResult, Audit
from airlock.auditing.run import AuditSettings, attack, attack_answers, attack_quickly, run
from airlock.auditing.scores import Scores
from airlock.auditing.target import Target

__all__ = [
    "AttackResult",
    "Audit",
    "AuditSettings",
    "FeatureSettings",
    "OneRunVerdict",
    "Scores",
    "Target",
    "Verdict",
    "attack",
    "attack_answers",
    "attack_features",
    "attack_quickly",
    "auc_interval",
    "epsilon_lower_bound",
    "judge",
    "judge_one_run",
    "measure",
    "measure_all",
    "proportion_interval",
    "roc",
    "run",
]

"""Attacks on what leaves: what an adversary can learn from it, measured on records of known membership.

In: a release and the split it came from. Out: an `Audit`, and the per-record scores for the vault. The court tests the
privacy claim itself: from a method's case it gives a `Verdict` on the stated (ε, δ), from its canaries a
`OneRunVerdict`.

    required_attacks  which attacks must be made on what leaves, and how: one entry per kind of artefact
    run               the attacks on membership, on equal numbers of members and non-members
    target            what is attacked, and what an attacker would train to be like it
    members           who takes part in an attack
    query_attack      attacks on answers, through the interface
    result            scores of records, figures about attacks, the audit
    metrics           from scores to figures
    bounds            confidence bounds for proportions and for the area under a ROC curve
    evaluation        how useful a release is, paid for on the test part
    regression_errors the same of a regression: how far its predictions are off
    perplexity        the same of a language model: perplexity before and after training
    two_tables        the noisy tables that these two have in common
    usefulness        whether a release is better than a blind guess
    noisy_proportion  an interval for a proportion of which count and total are noisy
    paid_attacks      attacks whose figures a share of ε pays for
    paid_auc          one such figure: a noisy AUC, as it may stand on a card
    dp_audit          can a stated (ε, δ) be refuted? the statistics
    audit_game        the court: runs on both sides until the claim is settled
    one_run_audit     the court with one run and many canaries
    one_run_curve     the same against all that accounting claims at once: f-DP in one run
    attacks/          the attacks on membership, and those on features
    features/         what attacks on features share
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.auditing.attacks import open_attacks
    from airlock.auditing.audit_game import Verdict, judge
    from airlock.auditing.bounds import auc_interval, epsilon_lower_bound, proportion_interval
    from airlock.auditing.features.attack import FeatureAttackSettings
    from airlock.auditing.features.release import attack_features
    from airlock.auditing.metrics import measure, measure_all, roc
    from airlock.auditing.one_run_audit import OneRunVerdict, judge_one_run
    from airlock.auditing.required_attacks import Situation, attack_artefact, run
    from airlock.auditing.result import AttackResult, Audit, Scores
    from airlock.auditing.run import AuditSettings, attack, attack_answers, attack_quickly
    from airlock.auditing.target import Target

__all__ = [
    "AttackResult",
    "Audit",
    "AuditSettings",
    "FeatureAttackSettings",
    "OneRunVerdict",
    "Scores",
    "Situation",
    "Target",
    "Verdict",
    "attack",
    "attack_answers",
    "attack_artefact",
    "attack_features",
    "attack_quickly",
    "auc_interval",
    "epsilon_lower_bound",
    "judge",
    "judge_one_run",
    "measure",
    "measure_all",
    "open_attacks",
    "proportion_interval",
    "roc",
    "run",
]

lazy.load(__name__)

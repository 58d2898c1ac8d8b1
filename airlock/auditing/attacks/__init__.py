"""One attack a file: what an adversary learns from the thing that leaves.

Those on membership give `Scores`, those on features pictures, names or answers; docs/attacks.md says what each one
knows and asks. A record used to train an attack never scores it, and no setting of an attack is chosen by the records
that it is measured with.
"""

from airlock.auditing.attacks.gradient import gradient_norm
from airlock.auditing.attacks.label_only import LabelSettings, label_only
from airlock.auditing.attacks.lira import lira
from airlock.auditing.attacks.loss import loss_threshold
from airlock.auditing.attacks.rmia import rmia
from airlock.auditing.attacks.shadow import Answers, ShadowSettings, shadow_attack
from airlock.auditing.attacks.shadows import Shadows, balanced, subsets, train_shadows

__all__ = [
    "Answers",
    "LabelSettings",
    "ShadowSettings",
    "Shadows",
    "balanced",
    "gradient_norm",
    "label_only",
    "lira",
    "loss_threshold",
    "rmia",
    "shadow_attack",
    "subsets",
    "train_shadows",
]

"""The attacks: what an adversary learns from the thing that leaves.

Those on membership give `Scores`, those on features pictures, names or answers; docs/attacks.md says what each one
knows and asks. A record used to train an attack never scores it, and no setting of an attack is chosen by the records
that it is measured with.

    signals      what an attack looks at: a model's logits on records, and what follows from them
    threshold    loss threshold and gradient norm
    label_only   for an attacker who sees decisions alone
    shadows      shadow models, by plain training or by the release's own method, and the attack that learns from them
    lira         the likelihood-ratio attack, online and offline
    rmia         the robust membership attack
    lookup       membership by looking up features that the attacker can compute
    reconstruct  records rebuilt from features, by a linear guess or by a trained net
    invert       records rebuilt from features by someone who knows the front end
    identify     which public net the front end was cut from
    attribute    something about a record that is not its label
"""

from airlock.auditing.attacks.label_only import LabelSettings, label_only
from airlock.auditing.attacks.lira import lira
from airlock.auditing.attacks.rmia import rmia
from airlock.auditing.attacks.shadows import (
    AnsweredRecords,
    Shadows,
    ShadowSettings,
    balanced,
    shadow_attack,
    subsets,
    train_shadows,
)
from airlock.auditing.attacks.threshold import gradient_norm, loss_threshold

__all__ = [
    "AnsweredRecords",
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

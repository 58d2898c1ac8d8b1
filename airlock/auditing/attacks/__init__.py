"""The attacks: what an adversary learns from what leaves.

Membership attacks return `Scores`; attacks on features return reconstructions, identifications or guessed attributes.
docs/attacks.md says what each attacker knows and tries to find out. An attack is never scored on records that it was
trained on, and none of its settings is chosen on the records that it is measured with.

    signals      what an attack looks at: a model's logits on records, and what follows from them
    threshold    loss threshold and gradient norm
    label_only   for an attacker who sees decisions alone
    shadows      shadow models, by plain training or by the release's own method, and the attack that learns from them
    lira         the likelihood-ratio attack, online and offline
    bavaria      the same with what all records say about one's spread: for few shadow models
    quantile     one model that learns how well the attacked one does on records that it never saw
    exposure     canary sentences of a language model: how far it prefers what it was trained on
    rmia         the robust membership attack
    lookup       membership by looking up features that the attacker can compute
    reconstruct  records rebuilt from features, by a linear guess or by a trained net
    invert       records rebuilt from features by someone who knows the front end
    identify     which public net the front end was cut from
    attribute    something about a record that is not its label
    worst_case   how tight the promise is: attackers who choose the record, all others and the initial weights
    attribute_of_model  a column of a row that is withheld, and its share among all rows, from a model
    external     attacks of other packages
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.auditing.attacks.bavaria import bavaria
    from airlock.auditing.attacks.exposure import exposure
    from airlock.auditing.attacks.external import Attack, open_attacks, others, register
    from airlock.auditing.attacks.label_only import LabelSettings, label_only
    from airlock.auditing.attacks.lira import lira
    from airlock.auditing.attacks.quantile import QuantileSettings, quantile_regression
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
    "Attack",
    "LabelSettings",
    "QuantileSettings",
    "ShadowSettings",
    "Shadows",
    "balanced",
    "bavaria",
    "exposure",
    "gradient_norm",
    "label_only",
    "lira",
    "loss_threshold",
    "open_attacks",
    "others",
    "quantile_regression",
    "register",
    "rmia",
    "shadow_attack",
    "subsets",
    "train_shadows",
]

lazy.load(__name__)

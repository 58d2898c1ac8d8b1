"""The loss-threshold attack (Yeom et al. 2018): a record that the model fits well was probably in the training set."""

from __future__ import annotations

import numpy as np

from airlock.auditing.bounds import Floats
from airlock.auditing.scores import Ints, Scores


def loss_threshold(member_losses: Floats, other_losses: Floats, member_classes: Ints, other_classes: Ints) -> Scores:
    """The negative loss as score: a lower loss means "member". It takes the class probabilities alone: black-box."""
    return Scores(
        name="loss threshold",
        question="Can someone who holds the model and a person's record tell whether it was in the training set?",
        view="black-box",
        members=-np.asarray(member_losses),
        others=-np.asarray(other_losses),
        member_classes=member_classes,
        other_classes=other_classes,
    )

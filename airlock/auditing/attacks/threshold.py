"""Attacks that compare one quantity of a record with a threshold: its loss, or the norm of its gradient.

The loss (`loss_threshold`; Yeom et al. 2018): a record that the model fits well was probably in the training set.

The gradient norm (`gradient_norm`; after Nasr et al. 2019), for an attacker who holds the weights. After training there
is little left to learn from a member, so the gradient of its loss is small. In: the network and records. Out: the
negative norm of every record's loss gradient, over all parameters or over the last layer alone. It is deterministic and
fits nothing.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import nn

from airlock.auditing.bounds import Floats
from airlock.auditing.result import QUESTION, Ints, Scores
from airlock.data import Records
from airlock.errors import NetError
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample.norms import gradient_squares


def loss_threshold(member_losses: Floats, other_losses: Floats, member_classes: Ints, other_classes: Ints) -> Scores:
    """The negative loss as score: a lower loss means "member". It needs only the class probabilities: black-box."""
    return Scores(
        name="loss threshold",
        question="Can someone who holds the model and a person's record tell whether it was in the training set?",
        view="black-box",
        members=-np.asarray(member_losses),
        others=-np.asarray(other_losses),
        member_classes=member_classes,
        other_classes=other_classes,
    )


Over = Literal["all", "last"]

_NAMES: dict[Over, str] = {"all": "gradient norm", "last": "gradient norm, last layer"}


def gradient_norm(
    net: nn.Module, members: Records, others: Records, over: Over = "all", loss: Loss = CROSS_ENTROPY
) -> Scores:
    """Attack with the negative gradient norm as score."""
    found = [_score(net, side, over, loss) for side in (members, others)]
    return Scores(_NAMES[over], QUESTION, "white-box", found[0], found[1], members.y, others.y)


def _score(net: nn.Module, records: Records, over: Over, loss: Loss) -> Floats:
    squares = gradient_squares(net, records, loss)
    names = set(squares) if over == "all" else last_layer(net)
    total: Floats = np.sum([square for name, square in squares.items() if name in names], axis=0)
    return -np.sqrt(total)


def last_layer(net: nn.Module) -> set[str]:
    """The trainable parameters of the last module that has any, in the order in which the network lists them."""
    trainable = [name for name, p in net.named_parameters() if p.requires_grad]
    if not trainable:
        raise NetError("a network with trainable parameters", "none", "There is no gradient to measure.")
    owner = trainable[-1].rpartition(".")[0]
    return {name for name in trainable if name.rpartition(".")[0] == owner}

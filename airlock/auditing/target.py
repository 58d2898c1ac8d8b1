"""What is attacked, and how an attacker would train models like it.

In: the network that leaves. Out: its answers, and for shadow models the records and networks to train. With a frozen
public front end and a trained head, only the head is retrained: records go through the front end once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from airlock.auditing.attacks.signals import ask, of_losses
from airlock.auditing.attacks.signals import loss as cross_entropy
from airlock.auditing.bounds import Floats
from airlock.data import Records
from airlock.nets.frontend import Framed
from airlock.training.ensembles.ensemble import Make
from airlock.training.losses import CROSS_ENTROPY, NEXT_TOKEN, Loss

_RATE, _HEAD_RATE = 1e-3, 2e-2  # of Adam, for a network and for a linear head on features of norm 1


@dataclass(frozen=True)
class Target:
    """A network that leaves, as its recipient has it.

    Args:
        net: In evaluation mode.
        fresh: Gives an untrained network of the same kind from a seed.
        classes: The public names.
        delta: At which its ε is stated.
        loss: What it was trained to minimise.
    """

    net: nn.Module
    fresh: Callable[[int], nn.Module]
    classes: tuple[str, ...]
    delta: float
    loss: Loss = CROSS_ENTROPY

    def losses(self, records: Records) -> Floats:
        """Its loss on each record."""
        found = self.outputs(records)
        if self.loss == CROSS_ENTROPY:
            return cross_entropy(found, records.y)
        given = torch.from_numpy(np.array(found, np.float32)), torch.from_numpy(records.y)
        return np.asarray(self.loss(*given).double().numpy())

    def answers(self, records: Records) -> Floats:
        """Its logits; of a language model, those of a text's own tokens and of any others (`signals.of_losses`)."""
        return self.as_logits(self.outputs(records))

    def as_logits(self, outputs: Floats) -> Floats:
        """Outputs of a network like it, as attacks compare them: (..., records, classes)."""
        return of_losses(outputs) if self.loss == NEXT_TOKEN else outputs

    def outputs(self, records: Records) -> Floats:
        """What it gives for each record."""
        device = next(self.net.parameters()).device
        return ask(self.net, records, device)

    @property
    def trained(self) -> nn.Module:
        """A copy of the network in which exactly the trained parameters require gradients."""
        copied = copy.deepcopy(self.net).requires_grad_(True)
        if isinstance(copied, Framed):
            copied.front.requires_grad_(False)
        return copied

    def embed(self, records: Records) -> Records:
        """The records as the trained part of the network sees them."""
        if not isinstance(self.net, Framed):
            return records
        device = next(self.net.parameters()).device
        front = nn.Sequential(self.net.front, self.net.centre).eval()
        return Records(ask(front, records, device).astype(np.float32), records.y)

    @property
    def make(self) -> Make:
        """Makes untrained networks for `embed`'s records, by model number."""
        if not isinstance(self.net, Framed):
            return self.fresh
        width, classes = self.net.head.in_features, self.net.head.out_features
        return lambda model: _blank(width, classes)

    @property
    def learning_rate(self) -> float:
        """Of Adam, for shadow models."""
        return _HEAD_RATE if isinstance(self.net, Framed) else _RATE


def _blank(width: int, classes: int) -> nn.Module:
    head = nn.Linear(width, classes, bias=False)
    with torch.no_grad():
        head.weight.zero_()
    return head

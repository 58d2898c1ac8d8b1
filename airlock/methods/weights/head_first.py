"""A network's last layer, trained alone before the rest (linear probing, then fine-tuning; Kumar et al. 2022).

A fresh layer on a network that brings weights knows nothing, and noise drowns what it could tell the layers below. So a
small share of the budget first trains it on what the network's other layers, as they are, make of the records: few
parameters, every record in every step, and so hardly any noise. It starts from zeros.

Proof. What goes into the last layer for a record follows from that record and public weights (`per_sample.outputs`
shows it). Each of k steps of DP-SGD on it with every record is `GaussianDpEvent(z)` (`dp_sgd`), for people as for
records. The layer is then where fine-tuning starts; both compose adaptively. The share ρ is meant in terms of 1/z²,
against k'·q'²/z'² of the fine-tuning.

The rate follows the rule of `weights`/`head`: noise z on steps that are scaled to clip norm C and expected records N
leaves about η·√k·z·C/((1-m)·N) on a weight, and η makes this `_NOISE`. Inputs are divided by a public number, about
the norm that they have for made-up records, and the weights in the end. That it helps was seen on the public texts of
docs/results/text_rates.py; share and number of steps were tried with one value each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import repeat
from airlock.data import Facts, Records
from airlock.mechanisms import GaussianNoise, Stream
from airlock.nets.domain import drawn
from airlock.nets.hugging_face import Pretrained
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit
from airlock.training.class_weights import ClassWeights
from airlock.training.front_ends.features import compute
from airlock.training.losses import CROSS_ENTROPY, Loss

STEPS, CLIP, SHARE = 50, 0.1, 0.05
_MOMENTUM, _NOISE = 0.9, 0.3
_LARGEST_RATE = 50.0
_TRIED = 16  # made-up records, for the norm of what goes into the layer


@dataclass(frozen=True)
class HeadFirst:
    """How the last layer is trained alone.

    Args:
        noise_multiplier: z.
        records: The public expected number of records, or of people.
        facts: What is public about the records.
        class_weights: How much a record of each class counts.
        loss: Of one record.
    """

    noise_multiplier: float
    records: float
    facts: Facts
    class_weights: ClassWeights | None = None
    loss: Loss = CROSS_ENTROPY

    @property
    def event(self) -> dpa.DpEvent:
        """What it is planned to cost."""
        return repeat(GaussianNoise(CLIP, self.noise_multiplier).event, STEPS)

    @property
    def recipe(self) -> Recipe:
        """The steps, by the rule above."""
        noise = self.noise_multiplier * CLIP * math.sqrt(STEPS) / self.records
        rate = min(_NOISE * (1 - _MOMENTUM) / noise, _LARGEST_RATE)
        return Recipe(steps=STEPS, learning_rate=rate, momentum=_MOMENTUM, precision="fp32")

    def gradients(self, stream: Stream) -> PrivateGradients:
        """Of the last layer, with noise."""
        return PrivateGradients(
            CLIP,
            self.noise_multiplier,
            self.records,
            stream.child("gradients"),
            sampled=False,
            records_per_person=self.facts.most,
            expected_rows=self.facts.rows(self.records),
            class_weights=self.class_weights,
            loss=self.loss,
        )

    def train(self, net: nn.Module, records: Records, stream: Stream, seed: int, run: Run) -> dpa.DpEvent:
        """Train the last layer of `net` in place; returns what it cost.

        It takes about as long as one or two steps with every record after it, and is not kept in checkpoints: a resumed
        run does it again, with the same noise, and goes on from the checkpoint's weights.
        """
        last = last_layer(net, self.facts.outputs)
        assert last is not None
        run = replace(run, checkpoint=None, resume=False)
        front = Before(net.eval(), last, self.facts, seed)
        features = np.empty((len(records), last.in_features), np.float32)
        for place, block in compute(front, records, run, "features"):
            features[place] = block.cpu().numpy()
        data = Resident(Records(features, records.y, records.person), run.device, self.facts.most)
        sampler, gradients = Poisson(1.0, stream.child("sampling")), self.gradients(stream)
        head = nn.Linear(last.in_features, last.out_features)
        with torch.no_grad():
            for value in head.parameters():
                value.zero_()
        steps = fit(
            head, data, sampler, gradients, self.recipe, seed, run, label="head", secret=stream.child("records")
        )
        with torch.no_grad():
            last.weight.copy_(head.weight.to(last.weight) / front.scale)
            if last.bias is not None:
                last.bias.copy_(head.bias.to(last.bias))
        return repeat(sampler.event(gradients.event), steps)


class Before(nn.Module):
    """A network up to its last layer: what goes into that, over its usual norm.

    Args:
        net: The network, in the mode in which it is applied.
        last: Its last layer, which is called once for all records.
        facts: What is public about the records.
        seed: Of the made-up ones.
    """

    def __init__(self, net: nn.Module, last: nn.Linear, facts: Facts, seed: int) -> None:
        super().__init__()
        self.net, self.scale = net, 1.0
        self._last: list[nn.Linear] = [last]  # it is part of the network already
        with torch.no_grad():
            there = next(net.parameters()).device
            found = self(drawn(net, _TRIED, facts.shape, seed).to(there)).norm(dim=1)
        self.scale = max(float(f"{float(found.median()):.3g}"), 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """(records, inputs of the last layer)."""
        kept: list[Tensor] = []

        def keep(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            kept.append(inputs[0])

        hook = self._last[0].register_forward_pre_hook(keep)
        try:
            self.net(x)
        finally:
            hook.remove()
        found: Tensor = kept[-1].float() / self.scale
        return found


def noise_for(share: float, noise_multiplier: float, sampling_probability: float, steps: int) -> float:
    """The noise multiplier of the layer's steps by their share of the budget, from that of the steps after them."""
    after = steps * (sampling_probability / noise_multiplier) ** 2
    return math.sqrt(STEPS * (1 - share) / (share * after))


def last_layer(net: nn.Module, outputs: int) -> nn.Linear | None:
    """The last layer of a network of transformers with a fresh head: the dense one with this many outputs, if any."""
    if not isinstance(net, Pretrained) or not net.fresh_head:
        return None
    names = {name.rpartition(".")[0] for name in net.head_names()}
    found = [
        layer
        for name, layer in net.named_modules()
        if name in names and type(layer) is nn.Linear and layer.out_features == outputs and layer.weight.requires_grad
    ]
    return found[-1] if found else None

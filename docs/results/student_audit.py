"""Membership inference on a student beside its teacher, which does not leave.

    python docs/results/student_audit.py runs/student-published-digits.toml 0 1 2
    python docs/results/student_audit.py runs/student-ensemble-digits-eps8.toml 0 1 2

The teacher is one network of the config's teacher architecture, trained as the method trains a teacher on all private
and public records: the one that `published` asks. `ensemble` has no such teacher; there it is what would be asked if
nothing were divided. Figures about it follow from private records without noise, no ε covers them, and it is no part of
the release: they are printed here, for records that are public anyway, and stand on no card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from torch import nn

from airlock import data, methods
from airlock.auditing.attacks import gradient_norm, loss_threshold
from airlock.auditing.attacks.signals import ask, loss
from airlock.auditing.members import AttackSet, draw
from airlock.auditing.metrics import measure_all
from airlock.config import load
from airlock.data import Records
from airlock.mechanisms import Randomness
from airlock.methods.student.ensemble import Ensemble
from airlock.methods.student.teachers import make_pair, taught
from airlock.papers.student.published import Published
from airlock.training import Run, count_correct
from airlock.training.devices import choose_device
from airlock.training.stages import Stages

MOST = 10_000


def main() -> None:
    """One line of JSON a seed and network."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    for seed in asked.seeds:
        config = load(asked.config, {"seed": seed})
        split = data.load(config, asked.data_dir)
        channel = methods.build(config, data.describe(config, asked.data_dir))
        assert isinstance(channel, Published | Ensemble)
        run = Run(device=choose_device(config.device))
        made = channel.release(split, Randomness.make(seed, seed), run)
        attack_set = draw(split, config.split, seed, MOST)
        assert attack_set is not None
        start = make_pair((channel.teacher_name, channel.net_name), channel.layers, channel.facts, seed)[0]
        everyone = Records(
            *(np.concatenate(pair) for pair in zip(_arrays(split.private), _arrays(split.public), strict=True))
        )
        teacher = taught("teacher", start, everyone, channel.settings, seed, Stages(run, {"seed": seed})).eval()
        for whose, net in (("student", made.network.net), ("teacher", teacher)):
            right = count_correct(net, split.test) / len(split.test)
            for row in attacked(net.cpu(), attack_set, made.guarantee.delta, channel.facts.classes):
                print(json.dumps({"seed": seed, "network": whose, "accuracy": round(right, 4), **row}), flush=True)


def attacked(net: nn.Module, attack_set: AttackSet, delta: float, classes: tuple[str, ...]) -> list[dict[str, object]]:
    """The two attacks that take seconds."""
    losses = [loss(ask(net, side), side.y) for side in (attack_set.members, attack_set.others)]
    trainable = net.requires_grad_(True)
    found = [
        loss_threshold(losses[0], losses[1], attack_set.members.y, attack_set.others.y),
        gradient_norm(trainable, attack_set.members, attack_set.others),
    ]
    return [
        {
            "attack": result.name,
            "auc": result.value,
            "low": result.low,
            "high": result.high,
            "balanced_accuracy": result.advantage.balanced_accuracy if result.advantage else None,
            "tpr_at_1%": [rate.value for rate in result.rates if rate.false_positive_rate == 0.01],
            "members": result.members,
        }
        for result in measure_all(found, delta, classes=classes)
    ]


def _arrays(records: Records) -> tuple[np.ndarray, np.ndarray]:
    return records.x, records.y


if __name__ == "__main__":
    main()

"""Attacks whose figures an explicit share of ε pays for, so that they may stand on the card.

In: a config with `attack_share` = s > 0. The method is planned with ε(1 − s), and sε pays for the AUCs of the attacks
below: of the private part after the method, and of the holdout. Out: the guarantee with both, and the noisy figures.

Guarantee: the AUCs of all attacks together are ε_a · k-DP for every member and for every non-member (`paid`), ε_a being
the ε of one and k their number. Members and non-members are the records with the smallest hashes of their content under
a secret key, as many as a public figure says (`methods.features.rows.keep`). What a record scores depends on the
release and on that record alone: each is asked about by itself, so that no other record moves it, not even by rounding.
"""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting as dpa
import numpy as np

from airlock.accounting import Guarantee, compose, repeat, spend
from airlock.auditing.attacks import gradient_norm
from airlock.auditing.attacks.signals import loss
from airlock.auditing.bounds import Floats
from airlock.auditing.members import FEWEST
from airlock.auditing.paid import PaidFigure, attack_event, paid_auc
from airlock.auditing.required_attacks import FITTING
from airlock.auditing.target import Target
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import AirlockError, ConfigError
from airlock.mechanisms import Stream
from airlock.methods import Plan, Release
from airlock.methods.features.rows import keep
from airlock.training import predict
from airlock.training.per_sample.one_by_one import FAILURES

ATTACKS = ("loss threshold", "gradient norm")
MOST = 2000  # of each side: every record is asked about by itself
LEAST = 1e-4  # of the ε of one figure; with less there is nothing but noise
_DEVIATIONS = 3.0  # below the expected size, so that slots are mostly filled


def for_method(config: ReleaseConfig) -> ReleaseConfig:
    """The config as the method gets it: with the ε that is left for it."""
    left = config.epsilon * (1.0 - config.attack_share)
    return config.model_copy(update={"epsilon": left}) if config.attack_share else config


def slots(config: ReleaseConfig, facts: Facts) -> tuple[int, int]:
    """M and n: how many members and others take part, by public figures."""
    sizes = (facts.expected(part, config.split) for part in ("private", "holdout"))
    m, n = (min(MOST, int(size - _DEVIATIONS * math.sqrt(size))) for size in sizes)
    return m, n


def planned(config: ReleaseConfig, facts: Facts, plan: Plan) -> Plan:
    """The plan of the method with what attacks will cost; touches no record.

    Raises:
        ConfigError: No network leaves, or so few records or so little ε are there that a figure would say nothing.
    """
    if not config.attack_share:
        return plan
    fitting = FITTING.get(f"{plan.channel}/{plan.method}", FITTING.get(plan.channel, ()))
    if ("membership", "white-box") not in fitting:
        raise ConfigError(
            "attack_share = 0 where no network leaves",
            f"{config.attack_share:g} for {plan.channel}/{plan.method}",
            "Attacks there look at more than the release and one record, so that no share of ε pays for them.",
            "Leave attack_share out: what attacks find is in the dossier.",
        )
    if min(slots(config, facts)) < FEWEST:
        raise ConfigError(
            f"at least {FEWEST} private and {FEWEST} holdout records for attack_share",
            f"about {max(0, min(slots(config, facts)))}",
            "A figure of so few would be noise.",
            "Leave attack_share out, or raise split.holdout.",
        )
    return replace(plan, guarantee=composed(config, plan.guarantee), course=None)


def each(config: ReleaseConfig, promise: Guarantee) -> float:
    """The ε of one attack's figure, such that method and attacks of all runs cost no more than was asked for.

    Raises:
        ConfigError: It is too small for a figure.
    """
    own = config.epsilon * config.attack_share / (len(ATTACKS) * config.tuning_runs)
    bounded = math.isfinite(promise.epsilon)
    for turn in range(40 if bounded and own >= LEAST else 0):
        both = compose([promise.events, events(own, config.tuning_runs)])
        over = spend(both, promise.delta, promise.relation, promise.accountant).epsilon - config.epsilon
        if over <= 0:
            break
        own -= 2**turn * over / (len(ATTACKS) * config.tuning_runs)
    if own < LEAST:
        raise ConfigError(
            f"an ε of at least {LEAST:g} for each figure of an attack",
            f"{own:.2g}",
            f"attack_share is divided by {len(ATTACKS)} attacks in {config.tuning_runs:,} runs.",
            "Raise attack_share, or leave it out.",
        )
    return own


def events(epsilon: float, runs: int, attacks: int = len(ATTACKS)) -> dpa.DpEvent:
    """What the figures of all runs cost: of the private part beside the method, and of the holdout."""
    return repeat(attack_event(epsilon, attacks), runs)


def composed(config: ReleaseConfig, promise: Guarantee) -> Guarantee:
    """The guarantee of a method and of the attacks after it."""
    if not config.attack_share:
        return promise
    return replace(promise, events=compose([promise.events, events(each(config, promise), config.tuning_runs)]))


def attack(
    config: ReleaseConfig, release: Release, split: Split, stream: Stream
) -> tuple[Release, tuple[PaidFigure, ...]]:
    """The release with the guarantee of both, and the noisy figures.

    Args:
        config: With the share.
        release: By the method alone.
        split: The records.
        stream: Secret; read here and nowhere else.
    """
    if not config.attack_share:
        return release, ()
    m, n = slots(config, split.facts)
    members, others = (
        part.take(keep(part, count, stream.child("kept", name).take_key()))
        for name, part, count in (("private", split.private, m), ("holdout", split.holdout, n))
    )
    network, epsilon = release.network, each(config, release.guarantee)
    target = Target(network.net, lambda model: network.net, network.classes, release.guarantee.delta)
    scores = {"loss threshold": _losses, "gradient norm": _norms}
    found = tuple(
        paid_auc(name, scores[name](target, members), scores[name](target, others), m, n, epsilon, stream.child(name))
        for name in ATTACKS
    )
    return replace(release, guarantee=composed(config, release.guarantee)), found


def _losses(target: Target, records: Records) -> Floats:
    """Minus the loss of every record, each by itself: `predict` gives each its own logits, bit for bit."""
    logits = predict(target.net, records).double().numpy()
    return np.array(
        [-loss(logits[place : place + 1], records.y[place : place + 1])[0] for place in range(len(records))]
    )


def _norms(target: Target, records: Records) -> Floats:
    """Minus the norm of every record's gradient, each by itself; the lowest of a record on which the network fails."""
    nobody, net = records.take(np.arange(0)), target.trained

    def score(one: Records) -> float:
        try:
            return float(gradient_norm(net, one, nobody).members[0])
        except (AirlockError, *FAILURES):
            return -math.inf

    return np.array([score(one) for one in _singly(records)])


def _singly(records: Records) -> list[Records]:
    return [records.take(np.array([place])) for place in range(len(records))]

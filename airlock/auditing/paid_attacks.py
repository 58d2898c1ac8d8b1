"""Attacks whose figures are paid for by an explicit share of ε, so that they may appear on the card.

In: a config with `attack_share` = s > 0. The method is planned with ε(1 − s), and sε pays for the AUCs of the attacks
below: for the private part in addition to the method, and for the holdout. Out: the composed guarantee, and the noisy
figures.

Guarantee: the AUCs of all attacks together are k · ε_a-DP for every member and for every non-member (`paid_auc`), where
ε_a is the ε of one attack and k their number. Members and non-members are the records whose content has the smallest
hashes under a secret key, a public number of them (`methods.rows.keep_people`). A record's score depends on the release
and on that record alone: each record is queried separately, so that no other record changes its score, not even by
rounding.

Where the unit is a person, members and non-members are people, of whom at most `records_per_person` records each are
queried (chosen by a hash of the person's own records), and a person's score is the mean of theirs: it depends on the
release and on that person alone, and everything here holds for people in place of records.

Only attacks qualify whose score of a record depends on the release, that record and public data alone, as with the loss
threshold and the gradient norm. Attacks with shadow models use all records, so one record changes all scores: their
figures stay in the dossier.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from airlock import methods
from airlock.accounting import Guarantee, compose, compute_epsilon
from airlock.auditing.attacks import gradient_norm
from airlock.auditing.attacks.signals import loss
from airlock.auditing.bounds import Floats
from airlock.auditing.members import FEWEST, by_person
from airlock.auditing.paid_auc import ATTACKS, PaidAttack, events, paid_auc
from airlock.auditing.required_attacks import ATTACKS as BY_KIND
from airlock.auditing.target import Target
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split, limited
from airlock.errors import AirlockError, ConfigError
from airlock.mechanisms import Stream
from airlock.methods import Plan, Release
from airlock.methods.rows import keep_people
from airlock.training import predict
from airlock.training.per_sample.one_by_one import FAILURES

MOST = 2000  # of each side: every record is queried separately
LEAST = 1e-4  # of the ε of one figure; with less it is pure noise
_DEVIATIONS = 3.0  # below the expected size, so that most slots are filled


def for_method(config: ReleaseConfig) -> ReleaseConfig:
    """The config as the method sees it: with the ε that remains for it."""
    left = config.epsilon * (1.0 - config.attack_share)
    return config.model_copy(update={"epsilon": left}) if config.attack_share else config


def slots(config: ReleaseConfig, facts: Facts) -> tuple[int, int]:
    """The numbers m and n of members and others that take part, from public figures."""
    sizes = (facts.expected(part, config.split) for part in ("private", "holdout"))
    m, n = (min(MOST, int(size - _DEVIATIONS * math.sqrt(size))) for size in sizes)
    return m, n


def planned(config: ReleaseConfig, facts: Facts, plan: Plan) -> Plan:
    """The method's plan with the cost of the attacks included; touches no record.

    Raises:
        ConfigError: No network leaves, or there are too few records or too little ε for a figure to be informative.
    """
    if not config.attack_share:
        return plan
    if ("membership", "white-box") not in BY_KIND[methods.named(f"{plan.channel}/{plan.method}").artefact].required:
        raise ConfigError(
            "attack_share = 0 where no network leaves",
            f"{config.attack_share:g} for {plan.channel}/{plan.method}",
            "Attacks there look at more than the release and one record, so that no share of ε pays for them.",
            "Leave attack_share out: what attacks find is in the dossier.",
        )
    if min(slots(config, facts)) < FEWEST:
        raise ConfigError(
            f"at least {FEWEST} private and {FEWEST} holdout {facts.counted} for attack_share",
            f"about {max(0, min(slots(config, facts)))}",
            "A figure of so few would be noise.",
            "Leave attack_share out, or raise split.holdout.",
        )
    return replace(plan, guarantee=composed(config, plan.guarantee), schedule=None)


def each(config: ReleaseConfig, promise: Guarantee) -> float:
    """The ε of one attack's figure, such that method and attacks over all runs cost no more than requested.

    Raises:
        ConfigError: It is too small for a figure.
    """
    own = config.epsilon * config.attack_share / (len(ATTACKS) * config.tuning_runs)
    bounded = math.isfinite(promise.epsilon)
    for turn in range(40 if bounded and own >= LEAST else 0):
        both = compose([promise.events, events(own, config.tuning_runs)])
        over = compute_epsilon(both, promise.delta, promise.relation, promise.accountant).epsilon - config.epsilon
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


def composed(config: ReleaseConfig, promise: Guarantee) -> Guarantee:
    """The composed guarantee of the method and the attacks after it."""
    if not config.attack_share:
        return promise
    return replace(promise, events=compose([promise.events, events(each(config, promise), config.tuning_runs)]))


def attack(
    config: ReleaseConfig, release: Release, split: Split, stream: Stream
) -> tuple[Release, tuple[PaidAttack, ...]]:
    """The release with the composed guarantee, and the noisy figures.

    Args:
        config: With the share.
        release: By the method alone.
        split: The records.
        stream: Secret; read here and nowhere else.
    """
    if not config.attack_share:
        return release, ()
    m, n = slots(config, split.facts)
    most = split.facts.records_per_person
    members, others = (
        _kept(part, most, count, config.seed, stream.child("kept", name).take_key())
        for name, part, count in (("private", split.private, m), ("holdout", split.holdout, n))
    )
    network, epsilon = release.network, each(config, release.guarantee)
    target = Target(network.net, lambda model: network.net, network.classes, release.guarantee.delta)
    scores = {"loss threshold": _losses, "gradient norm": _norms}
    found = []
    for name in ATTACKS:
        mine, theirs = (by_person(scores[name](target, side), side) for side in (members, others))
        found.append(paid_auc(name, mine, theirs, m, n, epsilon, stream.child(name)))
    return replace(release, guarantee=composed(config, release.guarantee)), tuple(found)


def _kept(records: Records, most: int, count: int, seed: int, key: bytes) -> Records:
    """The records of at most `count` people, at most so many of each; of others only the places are looked at."""
    if records.person is None:
        return records.take(keep_people(records, count, key))
    own = limited(records, most, seed)
    return records.take(own[keep_people(Records(own, records.y[own], records.person[own]), count, key)])


def _losses(target: Target, records: Records) -> Floats:
    """Minus the loss of every record, computed separately: `predict` gives batch-independent logits, bit for bit."""
    logits = predict(target.net, records).double().numpy()
    return np.array(
        [-loss(logits[place : place + 1], records.y[place : place + 1])[0] for place in range(len(records))]
    )


def _norms(target: Target, records: Records) -> Floats:
    """Minus each record's gradient norm, computed separately; −∞ for a record on which the network fails."""
    nobody, net = records.take(np.arange(0)), target.trained

    def score(one: Records) -> float:
        try:
            return float(gradient_norm(net, one, nobody).members[0])
        except (AirlockError, *FAILURES):
            return -math.inf

    return np.array([score(one) for one in _singly(records)])


def _singly(records: Records) -> list[Records]:
    return [records.take(np.array([place])) for place in range(len(records))]

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
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import dp_accounting as dpa
import numpy as np
from pydantic import Field
from scipy.stats import norm

from airlock import methods
from airlock.accounting import Guarantee, compose, compute_epsilon, pure, repeat
from airlock.auditing.attacks import gradient_norm
from airlock.auditing.attacks.signals import QUESTION, loss
from airlock.auditing.bounds import Floats
from airlock.auditing.members import FEWEST, by_person
from airlock.auditing.required_attacks import ATTACKS as BY_KIND
from airlock.auditing.result import Some, View
from airlock.auditing.target import Target
from airlock.config import Frozen, Proportion, ReleaseConfig
from airlock.data import Facts, Records, Split, limited
from airlock.errors import AirlockError, ConfigError
from airlock.mechanisms import GridNoise, Stream
from airlock.methods import Plan, Release
from airlock.methods.rows import keep_people
from airlock.training import predict
from airlock.training.per_sample.one_by_one import FAILURES

# One figure.

CONFIDENCE = 0.95

VIEWS: Mapping[str, View] = {"loss threshold": "black-box", "gradient norm": "white-box"}
ATTACKS = tuple(VIEWS)


class PaidAttack(Frozen):
    """One attack whose figure is noisy and paid for: the AUC as it may leave; all other figures here are public.

    Args:
        name: Short name.
        question: What the attacker tries to find out.
        score: The name of the score.
        view: What the attacker has.
        value: The noisy score, clipped to [0, 1].
        low: Lower end of the 95% interval, which covers both sampling error and noise.
        high: Upper end.
        chance: What pure guessing scores.
        members: Slots for records (people, where these are the unit) of the private part: a public figure.
        non_members: Slots for those of the holdout: a public figure.
        epsilon: What the figure costs each of them.
    """

    name: str
    question: str
    score: str
    view: View
    value: Proportion
    low: Proportion
    high: Proportion
    chance: Proportion
    members: Some
    non_members: Some
    epsilon: Annotated[float, Field(gt=0)]

    def beats_chance(self, tries: int = 1) -> bool:
        """Whether its interval lies above chance, as one of so many tries; from figures of the card alone."""
        confidence = 1.0 - (1.0 - CONFIDENCE) / tries
        noise = _noise(self.members, self.non_members, self.epsilon)
        return _interval(self.value, self.members, self.non_members, noise, confidence)[0] > self.chance

    @classmethod
    def of_auc(cls, name: str, value: float, ends: tuple[float, float], m: int, n: int, epsilon: float) -> PaidAttack:
        """A membership attack with an AUC over m slots for members and n for others."""
        return cls(
            name=name,
            question=QUESTION,
            score="AUC",
            view=VIEWS.get(name, "black-box"),
            value=value,
            low=ends[0],
            high=ends[1],
            chance=0.5,
            members=m,
            non_members=n,
            epsilon=epsilon,
        )


def attack_event(epsilon: float, attacks: int) -> dpa.DpEvent:
    """What the AUCs of this many attacks cost, at ε each: the private part, and likewise the holdout."""
    return repeat(pure(epsilon), attacks)


def paid_auc(name: str, members: Floats, others: Floats, m: int, n: int, epsilon: float, stream: Stream) -> PaidAttack:
    """The AUC over m slots for members and n for others, with Laplace noise on a grid.

    Guarantee: ε-DP under add-remove for every record of the private part and for every record of the holdout.

    Proof. A(D, H) is the mean over all m · n pairs of slots of whether the member's slot ranks above the other's: 1 or
    0 by their scores, one half for ties and wherever a slot is empty. The slots of one side hold the kept records of
    one part. (1) By the argument of `keep_people`, adding or removing one private record changes the content of at most
    one slot, and a score depends only on the release, which is conditioned on, and on its own record. So only the n
    pairs of that slot change, each by at most 1: A changes by at most n/(m n) = 1/m. The same record is not in the
    holdout.
    (2) Likewise one record of the holdout changes A by at most 1/n. The noise is scaled to the larger of the two, plus
    the rounding of A to the grid (`GridNoise`). ∎

    Empty slots count one half in all m · n pairs, so with few records the AUC lies closer to chance.

    Args:
        name: Of the attack.
        members: Scores of the kept records of the private part, at most m; higher means more like a member.
        others: Scores of the kept records of the holdout, at most n.
        m: A public figure.
        n: A public figure.
        epsilon: Of this one figure.
        stream: Secret; read once.
    """
    noise = _noise(m, n, epsilon)
    noisy = float(noise.add(np.array([slotted_auc(members, others, m, n)]), stream)[0])
    return PaidAttack.of_auc(name, min(1.0, max(0.0, noisy)), _interval(noisy, m, n, noise), m, n, epsilon)


def slotted_auc(members: Floats, others: Floats, m: int, n: int) -> float:
    """The AUC over all pairs of slots: ties and empty slots count one half; NaN ranks lowest.

    Raises:
        ValueError: There are more records than slots.
    """
    if len(members) > m or len(others) > n:
        raise ValueError("more scores than slots: the sensitivity was computed for a kept number of records")
    mine, theirs = (np.where(np.isnan(side), -np.inf, side) for side in (members, others))
    theirs = np.sort(theirs)
    below, upto = np.searchsorted(theirs, mine, "left"), np.searchsorted(theirs, mine, "right")
    halves = int(below.sum()) + int(upto.sum()) + m * n - len(mine) * len(theirs)  # of a win, over all pairs
    return halves / (2.0 * m * n)


def _noise(m: int, n: int, epsilon: float) -> GridNoise:
    return GridNoise("laplace", max(1.0 / m, 1.0 / n), 1.0 / epsilon)


def _interval(noisy: float, m: int, n: int, noise: GridNoise, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The half-widths for sampling error and for noise, each from its own quantile, added in quadrature.

    The variance of an AUC is at most AUC(1 − AUC)/min(m, n) (van Dantzig 1951), which is largest at one half.
    """
    chance = float(norm.ppf(0.5 + confidence / 2.0)) * 0.5 / math.sqrt(min(m, n))
    added = -math.log(1.0 - confidence) * noise.scale * noise.grid
    reach = math.hypot(chance, added)
    return min(1.0, max(0.0, noisy - reach)), max(0.0, min(1.0, noisy + reach))


# All of them, from a share of ε.

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


def events(epsilon: float, runs: int, attacks: int = len(ATTACKS)) -> dpa.DpEvent:
    """What the figures of all runs cost: the private part in addition to the method, and the holdout."""
    return repeat(attack_event(epsilon, attacks), runs)


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

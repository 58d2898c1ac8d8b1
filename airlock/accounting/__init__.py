"""Guarantees and their cost; the maths is dp-accounting's.

In: mechanisms' events and a δ. Out: a `Guarantee` whose ε is computed here and never typed in.

    terms         the words of a guarantee: its unit, its relation, its status; a paper's claim
    guarantee     `Guarantee`: what every release carries
    events        dp-accounting's events to JSON and back
    epsilon       from events and δ to ε, and what other packages' accountants may change about it
    renyi         its RDP accountant, for one of several mechanisms and for any ε-DP mechanism too
    pld           dp-accounting's PLD accountant, made faster for Gaussian noise
    calibrate     the smallest noise that meets (ε, δ)
    budget_curve  how ε accumulates over a release's steps
    trade_off     all of an event's (ε, δ) at once: the ROC curve of the best test
    privacy_filter  releases chosen one after the other, together within (ε, δ)
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.accounting.budget_curve import BudgetSchedule, Curve, trace
    from airlock.accounting.calibrate import calibrate, gaussian_multiplier
    from airlock.accounting.epsilon import LARGEST, EpsilonBound, compute_epsilon, deltas, raised_by, register
    from airlock.accounting.events import (
        ChoiceDpEvent,
        FailureDpEvent,
        choose,
        compose,
        from_json,
        pure,
        repeat,
        repeat_and_select,
        to_json,
    )
    from airlock.accounting.guarantee import Guarantee
    from airlock.accounting.pld import LossAccountant
    from airlock.accounting.privacy_filter import PrivacyFilter, divergence
    from airlock.accounting.terms import Claim
    from airlock.accounting.trade_off import TradeOff

__all__ = [
    "LARGEST",
    "BudgetSchedule",
    "ChoiceDpEvent",
    "Claim",
    "Curve",
    "EpsilonBound",
    "FailureDpEvent",
    "Guarantee",
    "LossAccountant",
    "PrivacyFilter",
    "TradeOff",
    "calibrate",
    "choose",
    "compose",
    "compute_epsilon",
    "deltas",
    "divergence",
    "from_json",
    "gaussian_multiplier",
    "pure",
    "raised_by",
    "register",
    "repeat",
    "repeat_and_select",
    "to_json",
    "trace",
]

lazy.load(__name__)

"""What is promised and what it costs; the maths is dp-accounting's.

In: mechanisms' events and a δ. Out: a `Guarantee` whose ε is computed here and never typed in.

    guarantee     `Guarantee`: what every release carries
    events        dp-accounting's events to JSON and back
    epsilon       from events and δ to ε
    pld           dp-accounting's PLD accountant, made faster for Gaussian noise
    calibrate     the smallest noise that keeps within (ε, δ)
    budget_curve  how ε builds up along a release's steps
"""

from airlock.accounting.budget_curve import BudgetSchedule, Curve, trace
from airlock.accounting.calibrate import calibrate
from airlock.accounting.epsilon import EpsilonBound, compute_epsilon
from airlock.accounting.events import FailureDpEvent, compose, from_json, pure, repeat, to_json
from airlock.accounting.guarantee import Claim, Guarantee

__all__ = [
    "BudgetSchedule",
    "Claim",
    "Curve",
    "EpsilonBound",
    "FailureDpEvent",
    "Guarantee",
    "calibrate",
    "compose",
    "compute_epsilon",
    "from_json",
    "pure",
    "repeat",
    "to_json",
    "trace",
]

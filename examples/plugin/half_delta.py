"""Accountant `half-delta`: the ε at half of δ, so that the other half is left for whatever nobody has thought of."""

from airlock.accounting import compute_epsilon


def half_delta(event, delta):
    return compute_epsilon(event, delta / 2).epsilon

"""What one run with many canaries says about a whole trade-off curve. Statistics only.

The game is that of `one_run_audit`: m canaries, each in or out by a fair, secret and independent coin; one run gives y;
from y alone the coins of r canaries are guessed, r fixed in advance, and W is the number of right guesses. There the
claim is one (ε, δ). Here it is a curve F (`accounting.TradeOff`), which says far more of Gaussian noise: that a test
with few false alarms finds few canaries, and that one that is often right is not right much more often than wrong.

Theorem (after Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run"). If no test of
whether one record is in the data does better than F, whichever other records are in it, and the other records do not
depend on the coins, then for every v in 1, …, r the probability of W ≥ v is at most any p for which `exceeds` holds:
the recursion below, begun at v with probability p, needs more than all of the probability.

Proof.

1. Fix a canary i and a number k. Let A be the event that i is guessed "in" and that k − 1 of the other guesses are
   right; it concerns y and the others' coins alone. If i is in, then A means a right guess about i and W = k; if i is
   out, a wrong guess and W = k − 1. The others' coins do not depend on i's, so the pair (others' coins, y) is as hard
   to tell apart as y for known others, at worst: the mean over them of F at their error rates is at most F at the mean
   rate, F being concave. Likewise for "out", with in and out exchanged. For any set K of numbers k, F in both
   directions gives P[i right, W ∈ K] ≤ F(P[i wrong, W + 1 ∈ K]).
2. Take the mean over the m canaries, again by concavity. Σ_i P[i right, W = k] = k p_k with p_k = P[W = k], and
   Σ_i P[i wrong, W = k] = (r − k) p_k. With K all numbers above k: let R_k = Σ_{j ≥ k} j p_j / m and
   H_k = Σ_{j ≥ k} (r − j) p_j / m. Then H_k ≥ F⁻¹(R_{k+1}): whoever is often right about many must often be wrong too.
3. Let S_k = R_k + H_k = r P[W ≥ k]/m; so S_0 = r/m. Compare with the recursion: r_v = p v/m and h_v = p (r − v)/m, and
   going down h_k = max(h_{k+1}, F⁻¹(r_{k+1})), r_k = r_{k+1} + (h_k − h_{k+1}) k/(r − k), s_k = r_k + h_k. If
   P[W ≥ v] > p, then S_k ≥ s_k and R_k − r_k ≥ (k/r)(S_k − s_k) for all k ≤ v, by induction. At v this holds since all
   of R_v has W ≥ v. For the step, write X and x for the next lower level, with R_k = R_{k+1} + (k/r)(S_k − S_{k+1}) and
   the same for r_k. Then R_k − r_k − (k/r)(S_k − s_k) = R_{k+1} − r_{k+1} − (k/r)(S_{k+1} − s_{k+1}), which is at least
   (S_{k+1} − s_{k+1})/r ≥ 0. And where the recursion does not stand still, H_k ≥ F⁻¹(R_{k+1}) ≥ F⁻¹(r_{k+1}) = h_k, so
   (1 − k/r)(S_k − s_k) = H_k − h_k + (R_k − r_k) − (k/r)(S_k − s_k) ≥ 0; where it stands still, S_k ≥ S_{k+1} ≥
   s_{k+1} = s_k. So s_0 > r/m contradicts P[W ≥ v] > p.

Rejecting F whenever `exceeds` holds for the W that was observed is wrong with probability at most p: all such numbers
are at least the smallest of them, to which the theorem applies. As an (ε, δ) is a curve too, it bounds what
`one_run_audit` bounds; that bound is exact at δ = 0, where this one asks for about one right guess more, and it was
never worse at any δ that was tried.

What the curve adds. A curve may be false while its (ε, δ) at the claimed δ is true, so rejecting it says that the proof
fails, not which ε is exceeded. `divided_by` says more, under an assumption: that the mechanism has *some* curve of a
family, that of the same noise divided by a number. Curves of less noise allow more, and what rejects a curve rejects
all curves below it. So if the curve of noise divided by d is rejected, the noise is divided by more than d, wrongly
with probability at most p for all d together: only if the true curve is rejected too.

Even in one run with any number of canaries, an error of 5% leaves room: a mechanism may be much worse with probability
5% and within its curve. Few guesses, about the canaries of which the scores are surest, leave least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from airlock.accounting import TradeOff
from airlock.methods.case import LessNoise

SHARE = 0.15  # of the canaries that are guessed about; fixed here, before any score is seen
LEAST, MOST = 1 / 64, 64.0  # what noise may be divided by
_PRECISION = 1.01


@dataclass(frozen=True)
class CurveLook:
    """What one number of guesses says about the claimed curve.

    Args:
        guesses: r.
        correct: v.
        chance: The probability of rejecting a curve that is true.
        refuted: Whether the claimed curve is rejected.
    """

    guesses: int
    correct: int
    chance: float
    refuted: bool


def exceeds(curve: TradeOff, canaries: int, guesses: int, correct: int, chance: float) -> bool:
    """Whether this many right guesses have at most this probability, by the theorem; False says nothing."""
    if correct <= 0:
        return False
    right, wrong = chance * correct / canaries, chance * (guesses - correct) / canaries
    whole = guesses / canaries
    for level in range(correct - 1, -1, -1):
        needed = curve.least_false(right)
        if needed > wrong:
            right += (needed - wrong) * level / (guesses - level)
            wrong = needed
            if right + wrong > whole * (1 + 1e-12):
                return True
    return False


def p_value(curve: TradeOff, canaries: int, guesses: int, correct: int) -> float:
    """The smallest probability that the theorem gives for at least this many right guesses."""
    low, high = 1e-300, 1.0  # `high` holds, or is 1
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if exceeds(curve, canaries, guesses, correct, middle) else (middle, high)
    return high


def fewest_correct(curve: TradeOff, canaries: int, guesses: int, chance: float) -> int:
    """The smallest number of right guesses that rejects the curve at this error; more than `guesses` if none does."""
    low, high = 0, guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(curve, canaries, guesses, middle, chance) else (middle, high)
    return high


def guesses_of(canaries: int) -> int:
    """How many guesses are made about a curve."""
    return max(1, round(SHARE * canaries))


def look_at_curve(family: LessNoise, canaries: int, correct: int, chance: float) -> CurveLook | None:
    """What so many right guesses of `guesses_of(canaries)` say about a mechanism; None where its noise is not known.

    Guarantee: if the mechanism has the claimed curve, it is refuted with probability at most `chance`.
    """
    curve, guesses = family.trade_off(1.0), guesses_of(canaries)
    if curve is None:
        return None
    return CurveLook(guesses, correct, chance, exceeds(curve, canaries, guesses, correct, chance))


def divided_by(family: LessNoise, canaries: int, look: CurveLook) -> float:
    """What the noise is divided by at least, if the mechanism is the claimed one but for that; 0 if nothing is shown.

    Guarantee: it exceeds the true divisor with probability at most `look.chance`.
    """

    def rejected(divisor: float) -> bool:
        curve = family.trade_off(divisor)
        return curve is not None and exceeds(curve, canaries, look.guesses, look.correct, look.chance)

    low, high = (1.0, MOST) if look.refuted else (LEAST, 1.0)
    if not look.refuted and not rejected(low):
        return 0.0
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low

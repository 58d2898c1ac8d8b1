"""Numbers as a reviewer reads them; bounds on risk are rounded up, so that they never look smaller than they are."""

from __future__ import annotations

import math


def best_guess(epsilon: float, delta: float) -> float:
    """The largest probability that a membership guess is right, starting from even odds."""
    return min(1.0, (1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon)))


def size(epsilon: float, delta: float) -> str:
    """ε and δ, ε rounded up so that it never looks smaller than it is."""
    return f"ε = {epsilon_up(epsilon)} at δ = {short(delta)}"


def epsilon_up(epsilon: float) -> str:
    """ε to two decimals, or two digits where it is small; rounded up."""
    decimals = 2 if epsilon >= 0.1 or epsilon <= 0 else 1 - math.floor(math.log10(epsilon))
    return f"{_up(epsilon, decimals):.{decimals}f}"


def cost_up(value: float) -> str:
    """What something costs in a register, to two decimals; rounded up."""
    return f"{math.ceil(value * 100) / 100:.2f}"


def left_down(value: float) -> str:
    """What is left in a register, to two decimals; rounded down."""
    return f"{math.floor(value * 100) / 100:.2f}"


def percent_up(value: float) -> str:
    """A probability in per cent with one decimal, rounded up; more decimals close to 100."""
    decimals = next((d for d in (1, 2, 3) if _up(100 * value, d) < 100), 1)
    return f"{_up(100 * value, decimals):.{decimals}f}%"


def times(epsilon: float) -> str:
    """The factor e^ε in words."""
    if epsilon > math.log(1e6):
        return "more than a million"
    factor = math.exp(epsilon)
    return f"{_up(factor, 2):.2f}" if factor < 10 else f"{math.ceil(factor):,}"


def one_in(delta: float) -> str:
    """A small probability as "1 in N", N rounded down."""
    return f"1 in {math.floor(1 / delta * (1 + 1e-9)):,}"


def short(value: float) -> str:
    """A number in short notation: 1e-5, not 1e-05."""
    text = f"{value:.3g}"
    return text.replace("e-0", "e-").replace("e+0", "e") if "e" in text else _small(value, text)


def _small(value: float, text: str) -> str:
    """Small decimals in scientific notation, like δ: 0.0001 becomes 1e-4."""
    if not 0 < abs(value) < 1e-3:
        return text
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _up(value: float, decimals: int) -> float:
    """Rounded up, ignoring floating-point error."""
    scale = 10.0**decimals
    return math.ceil(value * scale - 1e-6) / scale

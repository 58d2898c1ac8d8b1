"""How many layers and how many channels: from limits on PSNR, time and storage, as PrivyNet chooses.

In: what was characterised on public data and profiled here, and the limits. Out: a point, the set it is from, and
the reason in a sentence. Two regimes: where a shallow front end that keeps to the PSNR serves about as well as a deep
one, the shallowest is taken, because it costs least; where it does not, the deepest that time and storage allow. Then
the largest number of channels within the PSNR. Everything here is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airlock.errors import ConfigError
from airlock.training.front_ends.characterise import Characterisation
from airlock.training.front_ends.profiling import Profile

MARGIN = 0.02  # of accuracy: what counts as about as well
HIGH = 25.0  # dB from which a limit counts as generous where no utility was measured
_UNITS = {"psnr": "dB", "milliseconds": "ms", "bytes": "bytes"}


@dataclass(frozen=True)
class Limits:
    """The most that is allowed; None: no limit.

    Args:
        psnr: Of the reconstruction network's pictures, in dB.
        milliseconds: For one record on this machine.
        bytes: Of the front end's weights.
    """

    psnr: float | None = None
    milliseconds: float | None = None
    bytes: float | None = None

    def __post_init__(self) -> None:
        for name in _UNITS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"a positive settings.{name}", f"{value:g}", "No front end keeps to it.")

    def given(self) -> dict[str, float]:
        """Those that are set."""
        return {name: value for name in _UNITS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Option:
    """One point: what it leaks, what it serves, what it costs."""

    layers: int
    channels: int
    psnr: float
    utility: float | None = None
    milliseconds: float | None = None
    bytes: float | None = None

    @property
    def place(self) -> str:
        """In words."""
        return f"m = {self.layers}, D' = {self.channels}"

    def exceeds(self, name: str, limit: float) -> bool:
        """Whether it is beyond a limit; what was not measured is taken to be."""
        value = getattr(self, name)
        return value is None or value > limit


@dataclass(frozen=True)
class Chosen:
    """The point taken, why, and the set that it was taken from."""

    option: Option
    regime: str
    why: str
    feasible: tuple[Option, ...]
    options: tuple[Option, ...]


def options(found: Characterisation, profiles: Sequence[Profile] = ()) -> tuple[Option, ...]:
    """Every point that was characterised, with its costs where they were measured."""
    utility: Mapping[tuple[int, int], float] = found.mean("utility")
    costs = {(p.layers, p.channels): p for p in profiles}
    made = []
    for (layers, channels), psnr in found.mean("privacy").items():
        cost = costs.get((layers, channels))
        time, size = (cost.milliseconds, cost.parameter_bytes) if cost else (None, None)
        made.append(Option(layers, channels, psnr, utility.get((layers, channels)), time, size))
    return tuple(made)


def choose(points: Sequence[Option], limits: Limits, margin: float = MARGIN, high: float = HIGH) -> Chosen:
    """The point for these limits.

    Args:
        points: All there are.
        limits: What is allowed.
        margin: How much less accurate a shallow front end may be and still count as about as good as the deepest.
        high: From how many dB on the limit counts as generous where no utility was measured.

    Raises:
        ConfigError: No point keeps to the limits; it says which of them binds, and by how much.
    """
    if not points:
        raise ConfigError("a characterised front end to choose from", "no point", do="Characterise it first.")
    given = limits.given()
    feasible = tuple(p for p in points if not any(p.exceeds(name, limit) for name, limit in given.items()))
    if not feasible:
        raise _infeasible(points, given)
    best = {
        m: max((p for p in feasible if p.layers == m), key=lambda p: p.channels) for m in {p.layers for p in feasible}
    }
    shallow, deep = best[min(best)], best[max(best)]
    generous, reason = _generous(shallow, deep, limits, margin, high)
    taken = shallow if generous else deep
    held = ", ".join(f"{limit:g} {_UNITS[name]}" for name, limit in given.items()) or "no limit"
    why = (
        f"{taken.place}: {len(feasible)} of {len(points)} points keep to {held}; {reason}, so the "
        f"{'shallowest' if generous else 'deepest'} front end is taken, with the most channels that keep to it."
    )
    return Chosen(taken, "shallowest" if generous else "deepest", why, feasible, tuple(points))


def _generous(shallow: Option, deep: Option, limits: Limits, margin: float, high: float) -> tuple[bool, str]:
    """Whether the shallowest front end will do, and what says so."""
    if shallow.layers == deep.layers:
        return False, f"only m = {deep.layers} does"
    if shallow.utility is not None and deep.utility is not None:
        gain = 100 * (deep.utility - shallow.utility)
        serves = gain <= 100 * margin
        word = "no more than" if serves else "more than"
        return (
            serves,
            f"{deep.layers} layers serve {gain:+.1f} points against {shallow.layers}, {word} {100 * margin:g}",
        )
    if limits.psnr is None or limits.psnr >= high:
        return True, f"so high a PSNR is allowed ({high:g} dB or more) that front ends serve alike"
    return False, f"a PSNR below {high:g} dB is wanted, where deeper front ends serve better"


def _infeasible(points: Sequence[Option], given: Mapping[str, float]) -> ConfigError:
    """Which limit binds, and by how much."""
    held = " and ".join(f"settings.{name} = {limit:g}" for name, limit in given.items())
    for name, limit in given.items():
        if all(getattr(p, name) is None for p in points):
            return ConfigError(f"settings.{name} only where it was measured", "no measurement", do="Profile it first.")
        if all(p.exceeds(name, limit) for p in points):
            return ConfigError(f"a front end with {held}", "none", _nearest(points, name, limit), "Raise this limit.")
    alone = []
    for name, limit in given.items():
        rest = [p for p in points if not any(p.exceeds(n, v) for n, v in given.items() if n != name)]
        if rest:
            alone.append(
                f"With the others kept, {_nearest(rest, name, limit)[0].lower()}{_nearest(rest, name, limit)[1:]}"
            )
    why = " ".join(alone) or "No single limit is to blame: at least two would have to be raised."
    return ConfigError(f"a front end with {held}", "none: they contradict each other", why, "Raise one of them.")


def _nearest(points: Sequence[Option], name: str, limit: float) -> str:
    near = min((p for p in points if getattr(p, name) is not None), key=lambda p: getattr(p, name))
    value, unit = getattr(near, name), _UNITS[name]
    return f"{name} binds: the least is {value:.4g} {unit} ({near.place}), {value - limit:.3g} {unit} too much."

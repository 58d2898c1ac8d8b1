"""Where tests have their chance from: the same in every `make test`, new in `make fuzz`.

`make test` judges a change, so a run must not depend on luck: no random examples, none remembered from another run, no
clock, and every generator starts at the name of its test. `make fuzz` searches; whatever it finds stays behind as an
explicit `@example`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import HealthCheck, register_random, settings

# torch and Airlock are imported where they are used: the process that only hands tests out to others needs neither.
USUAL = 100  # examples of a test that asks for no number of its own
FUZZ_EXAMPLES = int(os.environ.get("AIRLOCK_FUZZ_EXAMPLES", "3000"))


def register() -> None:
    """The two profiles, the fixed one in force; `--hypothesis-profile fuzz` changes over before tests are collected."""
    common: dict[str, Any] = {"deadline": None, "database": None, "print_blob": True, "max_examples": USUAL}
    common["suppress_health_check"] = [HealthCheck.too_slow]
    settings.register_profile("test", derandomize=True, **common)
    settings.register_profile("fuzz", derandomize=False, **common)
    settings.load_profile("test")
    register_random(_torch_chance)


def is_fuzzing() -> bool:
    """Whether the profile in force is the one of `make fuzz`."""
    return settings.get_current_profile_name().startswith("fuzz")


def scaled(examples: int) -> int:
    """As many more than a test asks for as `make fuzz` was asked for more than usual."""
    return max(1, round(examples * FUZZ_EXAMPLES / USUAL)) if is_fuzzing() else examples


def without_clock(chosen: settings) -> settings:
    """A test's own settings, with the profile's indifference to time and its budget."""
    suppressed = {*chosen.suppress_health_check, HealthCheck.too_slow}
    examples = scaled(chosen.max_examples)
    return settings(chosen, deadline=None, suppress_health_check=list(suppressed), max_examples=examples)


def settle(test: Any, owner: Any = None) -> None:
    """Apply `without_clock` to a property test that was collected, in its class or in none.

    A state machine's settings are its class's. Those of a function that is decorated already can be changed in no
    public way; `test_chance.py` notices when this one no longer works.
    """
    if isinstance(getattr(owner, "settings", None), settings):
        holder, name = owner, "settings"
    else:
        holder, name = getattr(test, "__func__", test), "_hypothesis_internal_use_settings"
    if "_airlock_settled" not in vars(holder):  # a parametrised test is collected several times
        setattr(holder, name, without_clock(getattr(holder, name)))
        holder._airlock_settled = True


def forget_local_constants() -> None:
    """Let examples not depend on which modules happen to be imported.

    Hypothesis tries the constants that it reads in the source of every imported module. Modules are imported late here,
    so under `make test` which examples were tried would hang on which tests ran before in the same process.
    """
    with contextlib.suppress(ImportError, AttributeError):  # older releases do not look there
        from hypothesis.internal.conjecture import providers

        none = type(providers._local_constants)()
        providers._get_local_constants = lambda: none  # type: ignore[attr-defined]


def seed_all(name: str) -> None:
    """Start every global generator that a test could draw from anew, from a name."""
    import torch

    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def own_chance(name: str) -> Iterator[None]:
    """Seeded inside; afterwards the generators go on as if nothing had been drawn."""
    import torch

    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_all(name)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)


@contextlib.contextmanager
def seeded_system(name: str) -> Iterator[None]:
    """Streams that are keyed by the system are keyed by a name and a count here; to the code they are as secure.

    A process that is forked meanwhile asks the system itself: else two of them would draw the same.
    """
    from airlock.mechanisms import randomness

    count, here = itertools.count(), os.getpid()

    class Seeded:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(os, attribute)

        def urandom(self, size: int) -> bytes:
            if os.getpid() != here:
                return os.urandom(size)
            return hashlib.shake_256(f"{name} {next(count)}".encode()).digest(size)

    before = randomness.os
    randomness.os = Seeded()  # type: ignore[assignment]
    try:
        yield
    finally:
        randomness.os = before


class _TorchChance:
    """torch's global generator as Hypothesis wants to see it, so that an example means the same when it is repeated."""

    def seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    def getstate(self) -> Any:
        import torch

        return torch.get_rng_state()

    def setstate(self, state: Any) -> None:
        import torch

        torch.set_rng_state(state)


_torch_chance = _TorchChance()  # hypothesis keeps no reference of its own

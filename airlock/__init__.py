"""Airlock: release models trained on sensitive data, each with a true guarantee, an attack result and a card.

The front door: explicit re-exports, loaded when they are first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airlock import lazy
from airlock._version import VERSION as __version__

# Intel's library may round a row of a matrix product by where it lies in memory. In this mode it does not, so that what
# is computed for a record does not depend on its place (`training.per_sample.self_check`). It looks once, at first use.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from airlock.accounting import Guarantee
    from airlock.api import (
        advise,
        audit,
        compare,
        compare_paid,
        court,
        gate,
        load,
        plan,
        push_to_hub,
        release,
        show,
        tune,
        verify,
    )
    from airlock.auditing import Audit
    from airlock.bundle import Bundle, Card
    from airlock.bundle.verify import verify as verify_bundle
    from airlock.comparison import Comparison
    from airlock.config import ReleaseConfig
    from airlock.config import from_table as make_config
    from airlock.config import load as load_config
    from airlock.data import Split
    from airlock.errors import AirlockError
    from airlock.estimator import PrivateClassifier, PrivateRegressor
    from airlock.methods import Plan, Release
    from airlock.pipeline import audit_bundle, make_release, plan_release
    from airlock.private_training import train_private

__all__ = [
    "AirlockError",
    "Audit",
    "Bundle",
    "Card",
    "Comparison",
    "Guarantee",
    "Plan",
    "PrivateClassifier",
    "PrivateRegressor",
    "Release",
    "ReleaseConfig",
    "Split",
    "__version__",
    "advise",
    "audit",
    "audit_bundle",
    "compare",
    "compare_paid",
    "court",
    "gate",
    "load",
    "load_config",
    "make_config",
    "make_release",
    "plan",
    "plan_release",
    "push_to_hub",
    "release",
    "show",
    "train_private",
    "tune",
    "verify",
    "verify_bundle",
]

lazy.load(__name__)

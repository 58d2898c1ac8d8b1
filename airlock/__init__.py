"""Airlock: release models trained on sensitive data, each with a true guarantee, an attack result and a card.

The front door: explicit re-exports, loaded when they are first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

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

_WHERE = {
    "AirlockError": "airlock.errors:AirlockError",
    "Audit": "airlock.auditing:Audit",
    "Bundle": "airlock.bundle:Bundle",
    "Card": "airlock.bundle:Card",
    "Comparison": "airlock.comparison:Comparison",
    "Guarantee": "airlock.accounting:Guarantee",
    "Plan": "airlock.methods:Plan",
    "PrivateClassifier": "airlock.estimator:PrivateClassifier",
    "PrivateRegressor": "airlock.estimator:PrivateRegressor",
    "Release": "airlock.methods:Release",
    "ReleaseConfig": "airlock.config:ReleaseConfig",
    "Split": "airlock.data:Split",
    "advise": "airlock.api:advise",
    "audit": "airlock.api:audit",
    "audit_bundle": "airlock.pipeline:audit_bundle",
    "compare": "airlock.api:compare",
    "compare_paid": "airlock.api:compare_paid",
    "court": "airlock.api:court",
    "gate": "airlock.api:gate",
    "load": "airlock.api:load",
    "load_config": "airlock.config:load",
    "make_config": "airlock.config:from_table",
    "make_release": "airlock.pipeline:make_release",
    "plan": "airlock.api:plan",
    "plan_release": "airlock.pipeline:plan_release",
    "push_to_hub": "airlock.api:push_to_hub",
    "release": "airlock.api:release",
    "show": "airlock.api:show",
    "train_private": "airlock.private_training:train_private",
    "tune": "airlock.api:tune",
    "verify": "airlock.api:verify",
    "verify_bundle": "airlock.bundle.verify:verify",
}

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


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'airlock' has no attribute '{name}'")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)

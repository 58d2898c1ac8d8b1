"""Airlock: release models trained on sensitive data, each with a true guarantee, an attack result and a card.

The front door: explicit re-exports, loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airlock._version import VERSION as __version__

if TYPE_CHECKING:
    from airlock.accounting import Guarantee
    from airlock.audit import Audit
    from airlock.channels import Plan, Release
    from airlock.config import ReleaseConfig
    from airlock.config import from_table as make_config
    from airlock.config import load as load_config
    from airlock.data import Split
    from airlock.errors import AirlockError
    from airlock.pipeline import audit_bundle, make_release, plan_release
    from airlock.release import Bundle, Card
    from airlock.release.verify import verify as verify_bundle

_WHERE = {
    "AirlockError": "airlock.errors:AirlockError",
    "Audit": "airlock.audit:Audit",
    "Bundle": "airlock.release:Bundle",
    "Card": "airlock.release:Card",
    "Guarantee": "airlock.accounting:Guarantee",
    "Plan": "airlock.channels:Plan",
    "Release": "airlock.channels:Release",
    "ReleaseConfig": "airlock.config:ReleaseConfig",
    "Split": "airlock.data:Split",
    "audit_bundle": "airlock.pipeline:audit_bundle",
    "load_config": "airlock.config:load",
    "make_config": "airlock.config:from_table",
    "make_release": "airlock.pipeline:make_release",
    "plan_release": "airlock.pipeline:plan_release",
    "verify_bundle": "airlock.release.verify:verify",
}

__all__ = [
    "AirlockError",
    "Audit",
    "Bundle",
    "Card",
    "Guarantee",
    "Plan",
    "Release",
    "ReleaseConfig",
    "Split",
    "__version__",
    "audit_bundle",
    "load_config",
    "make_config",
    "make_release",
    "plan_release",
    "verify_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'airlock' has no attribute '{name}'")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)

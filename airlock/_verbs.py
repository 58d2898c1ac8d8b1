"""Two packages that are also verbs: `airlock.release(...)` makes a release, `airlock.release.card` is still a module.

A function of the same name in place of the package would break `from airlock import audit`, `import airlock.audit as a`
and every dotted path through it, or win only until the package is first imported. So the package stays what it is, and
can be called; the call goes to the function of that name in `airlock.notebook`, which is what type checkers see.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

NOTEBOOK = "airlock.notebook"


class _Verb(ModuleType):
    def __call__(self, *args: Any, **named: Any) -> Any:
        return _function(self)(*args, **named)

    @property
    def __signature__(self) -> inspect.Signature:  # what a notebook shows while one types
        return inspect.signature(_function(self))


def _function(package: ModuleType) -> Any:
    return getattr(importlib.import_module(NOTEBOOK), package.__name__.rpartition(".")[2])


def make_verb(package: str) -> None:
    """Let an imported package be called."""
    sys.modules[package].__class__ = _Verb

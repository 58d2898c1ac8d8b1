"""Rooms whose names are loaded on demand: a card can be read without loading torch, scipy or dp-accounting.

A room imports what it exports under `if TYPE_CHECKING:`, where type checkers see it. `lazy.load`, its last line, reads
the same lines: a name is imported when it is first asked for, and no other file of the room with it. What a file of the
house needs only now and then it asks of the room, as in `accounting.compose(...)`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A package whose exported names are loaded when they are first asked for."""

    _where: dict[str, tuple[str, str]]  # exported name -> module, and its name there

    def __getattr__(self, name: str) -> Any:
        if name not in self._where:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        module, own = self._where[name]
        return getattr(importlib.import_module(module), own)

    def __setattr__(self, name: str, value: object) -> None:
        """Python sets each file that was imported on its room; one called like an exported name must not hide it."""
        if not (isinstance(value, ModuleType) and name in self._where):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(self.__all__)


def load(room: str) -> None:
    """Load what a room exports on demand; the last line of its `__init__.py`.

    Args:
        room: The name of the package that is being imported.
    """
    module = sys.modules[room]
    module.__dict__["_where"] = _exported(module)
    module.__class__ = _Room


def _exported(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Where the names come from that it imports under `if TYPE_CHECKING:`."""
    blocks = [
        node.body
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    lines = [line for body in blocks for line in body if isinstance(line, ast.ImportFrom) and line.module]
    return {one.asname or one.name: (str(line.module), one.name) for line in lines for one in line.names}

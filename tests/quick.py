"""Which modules are slow: those on tests/slow.txt, which `make times` writes.

`make test-quick` leaves them out, and all others begin with them.

The list is of whole modules, since the first test of one pays for what all of its tests share. A module that is not on
it is quick until the times are taken again.

    python -m tests.quick times.xml    # of a run with --junitxml=times.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent
LIST = HERE / "slow.txt"
SLOW = 3.0  # seconds of all tests of a module
HEADER = f"# Whose tests took more than {SLOW:g} s in all when `make times` ran; `make test-quick` leaves them out.\n"


@cache
def slow() -> frozenset[Path]:
    """The modules on the list."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(HERE.parent / line for line in lines if line and not line.startswith("#"))


T = TypeVar("T")


def slow_first(items: Sequence[T], modules: Sequence[Path]) -> list[T]:
    """In an order that keeps both of two workers busy to the end, each of which begins with one half of the list.

    The slow modules, whole, are dealt out to the halves in turn; the others follow, small work to be shared at the end.

    Args:
        items: All tests.
        modules: The module of each.
    """
    of_module = {module: place for place, module in enumerate(dict.fromkeys(m for m in modules if m in slow()))}
    halves: tuple[list[T], list[T], list[T]] = ([], [], [])
    for item, module in zip(items, modules, strict=True):
        halves[of_module[module] % 2 if module in of_module else 2].append(item)
    first, second, small = halves
    more = max(0, len(items) // 2 - len(first))
    return first + small[:more] + second + small[more:]


def record(report: Path) -> list[str]:
    """Write the list by the times of a run."""
    took: dict[str, float] = defaultdict(float)
    for case in ET.parse(report).iter("testcase"):
        names = [name for name in case.attrib["classname"].split(".") if not name[:1].isupper()]  # of no class
        took["/".join(names) + ".py"] += float(case.attrib["time"])
    found = sorted(module for module, seconds in took.items() if seconds > SLOW)
    LIST.write_text(HEADER + "".join(f"{module}\n" for module in found), encoding="utf-8")
    return found


if __name__ == "__main__":
    print(f"{len(record(Path(sys.argv[1])))} slow modules")

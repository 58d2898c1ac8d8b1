"""Which modules `make test-quick` leaves out: those on tests/slow.txt, which `make times` writes.

The list is of whole modules, since the first test of one pays for what all of its tests share. A module that is not on
it is quick until the times are taken again.

    python -m tests.quick times.xml    # of a run with --junitxml=times.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
LIST = HERE / "slow.txt"
SLOW = 3.0  # seconds of all tests of a module
HEADER = f"# Whose tests took more than {SLOW:g} s in all when `make times` ran; `make test-quick` leaves them out.\n"


@cache
def slow() -> frozenset[Path]:
    """The modules on the list."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(HERE.parent / line for line in lines if line and not line.startswith("#"))


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

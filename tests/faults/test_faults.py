"""Every fault of the table is caught, and whoever catches it is quiet where there is none.

`make test` runs what is quick, `make faults` everything, and prints the table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault import Catcher, Fault, noticed
from tests.faults.table import CATCHERS, FAULTS


def _marked(values: tuple[Any, ...]) -> list[Any]:
    return [
        pytest.param(one, id=one.name, marks=[pytest.mark.long] if one.long or _is_a_test(one) else [])
        for one in values
    ]


def _is_a_test(one: Fault | Catcher) -> bool:
    """Whether it is a test of its own, which is quiet in `make test` without being asked here."""
    return isinstance(one, Catcher) and one.name.partition("[")[0].rpartition(".")[2].startswith("test_")


@pytest.mark.parametrize("fault", _marked(FAULTS))
def test_a_fault_is_caught(fault: Fault, tmp_path: Path, record_property: Any) -> None:
    said = noticed(fault.caught_by, tmp_path, fault)
    record_property("fault", fault.name)
    record_property("said", said)
    assert said, f"{fault.caught_by.name} did not notice: {fault.name}"


@pytest.mark.parametrize("catcher", _marked(CATCHERS))
def test_a_catcher_is_quiet_where_nothing_is_wrong(catcher: Catcher, tmp_path: Path, record_property: Any) -> None:
    said = noticed(catcher, tmp_path)
    record_property("catcher", catcher.name)
    record_property("said", said)
    assert not said, f"{catcher.name} speaks up without a fault: {said}"


def test_no_two_lines_have_one_name() -> None:
    assert len(FAULTS) >= 40
    for names in ([fault.name for fault in FAULTS], [catcher.name for catcher in CATCHERS]):
        assert Counter(names).most_common(1)[0][1] == 1

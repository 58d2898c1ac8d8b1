"""Prints the table after `make faults`."""

from __future__ import annotations

from typing import Any

import pytest


def _said(reports: list[pytest.TestReport], kind: str) -> dict[str, tuple[bool, str]]:
    found = {}
    for report in reports:
        told = dict(report.user_properties)
        if kind in told:
            found[str(told[kind])] = (report.passed, str(told["said"]))
    return found


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table, where all of it was run."""
    if config.getoption("markexpr") != "long or not long":
        return
    from tests.faults.table import FAULTS

    reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])]
    caught, quiet = _said(reports, "fault"), _said(reports, "catcher")
    rows = [("", "fault", "planted in", "must be caught by", "caught", "as it said")]
    missed = 0
    for number, fault in enumerate(FAULTS, 1):
        is_caught, said = caught.get(fault.name, (False, "not run"))
        is_quiet, alarm = quiet.get(fault.caught_by.name, (False, "not run without a fault"))
        word = "yes" if is_caught and is_quiet else "NO"
        missed += word == "NO"
        rows.append((str(number), fault.name, fault.where, fault.caught_by.name, word, said if is_quiet else alarm))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    terminalreporter.write_line("")
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        terminalreporter.write_line(f"{line}  {row[5][:90]}".rstrip())
    says = "all are caught" if not missed else f"{missed} are NOT caught"
    terminalreporter.write_line(f"\n{len(FAULTS)} faults; {says}, and who catches them is quiet without.")

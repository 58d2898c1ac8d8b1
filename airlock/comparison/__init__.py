"""Which way out is best: every method that fits on the same records, under the same attacks, and the page about it.

In: a `CompareConfig`. Out: a `Comparison`, as JSON, as CSV and as a page. It is the holder's own look at the records:
no ε covers it, and nothing of it may leave.

    settings  what is compared: TOML in, a frozen `CompareConfig` out
    matrix    which cells there are, laid out before any record is read
    run       cell after cell, until all are done or the time is over
    cell      one cell: run it, and keep its figures alone
    pool      several cells at once, each in a process of its own
    values    what a comparison is made of
    results   its files on disk, and every finished cell
    advise    the chooser: which way out for a stated need
    page      what a comparison found, and the page that shows it
    charts    its figures
"""

from airlock.comparison.page import Comparison
from airlock.comparison.values import Advice as Advice
from airlock.comparison.values import AttackSummary as AttackSummary
from airlock.comparison.values import Cell as Cell
from airlock.comparison.values import ComparedData as ComparedData
from airlock.comparison.values import Dropped as Dropped
from airlock.comparison.values import MethodVerdict as MethodVerdict
from airlock.comparison.values import Need as Need
from airlock.comparison.values import Ranked as Ranked
from airlock.comparison.values import Row as Row
from airlock.comparison.values import Skipped as Skipped

__all__ = [
    "Advice",
    "AttackSummary",
    "Cell",
    "ComparedData",
    "Comparison",
    "Dropped",
    "MethodVerdict",
    "Need",
    "Ranked",
    "Row",
    "Skipped",
]

"""Which method is best: all applicable methods on the same records, under the same attacks, and a page of the results.

In: a `CompareConfig`. Out: a `Comparison`, as JSON, as CSV and as a page. It is for the holder of the records alone: no
ε covers it, and none of it may leave. What may leave is the choice itself, made by a search that is paid for.

    settings  what is compared: TOML in, a frozen `CompareConfig` out
    paid      a comparison as a search over its methods, which is paid for
    matrix    the cells, laid out before any record is read
    run       run cell after cell, until all are done or time runs out
    cell      run one cell and keep only its figures
    pool      several cells at once, each in its own process
    values    the values that make up a comparison
    results   its files on disk, and every finished cell
    advise    the chooser: which method for a stated need
    choices   three choices from them: the best, the smallest, the fastest to serve
    page      the results of a comparison, and the page that shows them
    bars      a row of a chart for every method
    charts    its charts
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
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

lazy.load(__name__)

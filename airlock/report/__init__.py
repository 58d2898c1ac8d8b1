"""Which way out is best: every method that fits on the same records, under the same attacks, and the page about it.

In: a `CompareConfig`. Out: a `Comparison`, as JSON, as CSV and as a page. It is the holder's own look at the records:
no ε covers it, and nothing of it may leave.
"""

from airlock.report.results import Advice as Advice
from airlock.report.results import Attacked as Attacked
from airlock.report.results import Cell as Cell
from airlock.report.results import Comparison as Comparison
from airlock.report.results import Dropped as Dropped
from airlock.report.results import Need as Need
from airlock.report.results import Ranked as Ranked
from airlock.report.results import Row as Row
from airlock.report.results import Skipped as Skipped
from airlock.report.results import Subject as Subject
from airlock.report.results import Verdict as Verdict

__all__ = [
    "Advice",
    "Attacked",
    "Cell",
    "Comparison",
    "Dropped",
    "Need",
    "Ranked",
    "Row",
    "Skipped",
    "Subject",
    "Verdict",
]

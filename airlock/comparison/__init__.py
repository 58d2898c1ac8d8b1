"""Which way out is best: every method that fits on the same records, under the same attacks, and the page about it.

In: a `CompareConfig`. Out: a `Comparison`, as JSON, as CSV and as a page. It is the holder's own look at the records:
no ε covers it, and nothing of it may leave.
"""

from airlock.comparison.results import Comparison as Comparison
from airlock.comparison.values import Advice as Advice
from airlock.comparison.values import Attacked as Attacked
from airlock.comparison.values import Cell as Cell
from airlock.comparison.values import Dropped as Dropped
from airlock.comparison.values import Need as Need
from airlock.comparison.values import Ranked as Ranked
from airlock.comparison.values import Row as Row
from airlock.comparison.values import Skipped as Skipped
from airlock.comparison.values import Subject as Subject
from airlock.comparison.values import Verdict as Verdict

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

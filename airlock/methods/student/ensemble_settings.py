"""The settings of `student`/`ensemble`, and what follows from public figures when they are left out.

The defaults were tried on digits alone, where little can be told apart (docs/results/student.md). With n records, K
teachers and noise multiplier z of one answer, noise falls as z/K, and what a teacher cannot know grows as K/n: both are
even at K ~ √(z n). Where they suit other data badly, accuracy suffers and the promise does not.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from airlock.config import Positive
from airlock.methods.student.settings import TeacherSettings

Kind = Literal["residuals", "matrix", "probabilities", "votes", "confident-votes"]
UNBOUNDED: tuple[Kind, ...] = ("probabilities", "votes", "confident-votes")  # they need no bound
_TEACHERS = 1.0  # times √(z n)
_QUERIES = 1000


class EnsembleSettings(TeacherSettings):
    """How teachers on disjoint shards are made, and how their answers are released.

    Args:
        answers: "residuals", a clipped and noisy mean for every query; "matrix", one for all queries together;
            "probabilities", a noisy mean of probabilities; "votes", noisy counts of which the largest gives a label;
            "confident-votes", the same where enough teachers agree.
        threshold: Of "confident-votes": the share of the teachers that has to agree, up to noise.
        teachers: K; when left out, by the number of records and the noise.
        bound: B, the largest norm of how far one teacher moves the public logits of a query (of all queries together
            for "matrix"); when left out, the median over teachers that learn from public records in the same way.
        shard_public: How many public records a shard's teacher sees for each of its own, lest it forgets.
        shard_epochs: Of a shard's teacher, after it has started from the public one.
        shard_learning_rate: By SGD with momentum 0.9.
        shrink: Scale noisy answers down by what noise alone explains of their size; it costs nothing.
    """

    answers: Kind = "residuals"
    teachers: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    bound: Positive | None = None
    shard_public: Annotated[int, Field(ge=0, le=1000)] = 3
    shard_epochs: Annotated[int, Field(ge=1, le=100_000)] = 10
    shard_learning_rate: Positive = 0.003
    shrink: bool = True


def default_teachers(records: int, noise_multiplier: float) -> int:
    """√(z n), between 2 and the number of records."""
    return max(2, min(records, round(_TEACHERS * math.sqrt(noise_multiplier * records))))


def default_queries(select_rate: float, public: int) -> int:
    """This share of the public records, 1,000 at most: every answer costs."""
    return max(1, min(_QUERIES, round(select_rate * public)))

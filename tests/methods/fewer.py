"""Fewer records than were declared, for tests that whole data sets would only make slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airlock.data import Split


def at_most(count: int, split: Split) -> Split:
    """The first so many records of every part; the declared facts, and with them every plan, stay."""
    names = ("private", "public", "test", "holdout")
    return replace(
        split, **{name: getattr(split, name).take(np.arange(min(count, len(getattr(split, name))))) for name in names}
    )

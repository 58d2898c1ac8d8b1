"""Data source `stripes`: 600 made-up pictures of stripes that lie or stand."""

import numpy as np

from airlock.data import Raw, Source


class Stripes:
    where = None  # it needs no files

    def sizes(self):
        return 600, None

    def read(self):
        pictures = [picture(place) for place in range(600)]
        return Raw(np.stack(pictures), np.arange(600) % 2), None


def picture(place):
    """Every record has its own seed, so that one more or less changes no other."""
    chance = np.random.default_rng(place)
    lying = np.tile(chance.random((8, 1)) < 0.5, (1, 8)) * 0.6 + chance.random((8, 8)) * 0.4
    return (lying.T if place % 2 else lying)[None].astype(np.float32)


STRIPES = Source(
    name="stripes",
    title="Made-up stripes",
    shape=(1, 8, 8),
    classes=("lying", "standing"),
    records=600,
    test_records=None,
    get="Comes with its package.",
    find=lambda folder: Stripes(),
)

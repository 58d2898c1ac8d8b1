"""Training: one loop, with plain or private gradients; many models at once; evaluation; checkpoints.

In: a network, records, a sampler and a source of gradients. Out: the trained network and how many steps were executed.
"""

from airlock.training.ensembles.align import Aligned, align
from airlock.training.ensembles.ensemble import Ensemble, train_together
from airlock.training.evaluate import count_correct, losses, outcomes_of, predict
from airlock.training.gradients import PlainGradients
from airlock.training.loop import Recipe, Run, fit
from airlock.training.private import PrivateGradients
from airlock.training.resident import Resident
from airlock.training.sampling import Poisson, Shuffled

__all__ = [
    "Aligned",
    "Ensemble",
    "PlainGradients",
    "Poisson",
    "PrivateGradients",
    "Recipe",
    "Resident",
    "Run",
    "Shuffled",
    "align",
    "count_correct",
    "fit",
    "losses",
    "outcomes_of",
    "predict",
    "train_together",
]

"""Training: one loop, with plain or private gradients; many models at once; evaluation; checkpoints.

In: a network, records, a sampler and a source of gradients. Out: the trained network and how many steps were executed.

    loop            the one training loop, and the learning-rate schedules
    sampling        which records enter a step; a private run's event comes from its sampler
    losses          what a record's outputs cost: cross-entropy, or squared error
    gradients       where a step's gradient comes from, and what is minimised
    class_weights   how much a record of each class counts: declared weights, and why no bound changes
    private         private gradients: clip every record's, sum, add noise, divide by a public constant
    adam_bc         Adam that takes the noise off its second moment
    noise_aware_lr  the largest learning rate at which noise does little harm
    public_start    a network trained on public records, where private training starts from
    augment         augmentations that change each record independently
    neighbours      records vote for public inputs near them, and votes travel along a graph of these
    convex          logistic heads with a certified distance to their minimiser
    outcomes        a network's outputs and accuracy, and the prediction for every test record
    checkpoint      a training run on disk
    stages          several trainings in sequence, as one run
    distributed     several processes that train one network together
    sharding        a network in shards over several processes (FSDP2), for one that no device holds whole
    devices         the device, records kept on it, its memory, CUDA graphs
    per_sample/     clipped per-sample gradients: the engine and its self-check
    ensembles/      many models as one
    front_ends/     public front ends: trained, profiled, characterised, applied
    distillation/   a student and its teachers
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.training.class_weights import ClassWeights
    from airlock.training.devices import Resident
    from airlock.training.ensembles.align import Aligned, align
    from airlock.training.ensembles.ensemble import Ensemble, train_together
    from airlock.training.gradients import PlainGradients
    from airlock.training.loop import Recipe, Run, fit
    from airlock.training.outcomes import count_correct, losses_of, outcomes_of, predict
    from airlock.training.private import PrivateGradients
    from airlock.training.sampling import Poisson, Shuffled

__all__ = [
    "Aligned",
    "ClassWeights",
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
    "losses_of",
    "outcomes_of",
    "predict",
    "train_together",
]

lazy.load(__name__)

"""Which public inputs to query, based on the student's current outputs; nothing private is used.

`k_centre` is Algorithm 3 of Wang et al. 2019: starting from a first sample, it repeatedly picks the sample whose
nearest chosen one is farthest, where the distance from i to a chosen j is KL(p_i ‖ p_j) of the student's outputs. A
step is one product of a (samples × classes) matrix with a vector, because KL(p_i ‖ p_j) = Σ p_i log p_i − Σ p_i log
p_j; on a GPU nothing waits for the host until the end. The other selections are those that the paper compares with.

Ties go to the earlier sample; distances that differ by less than rounding (about 1e-6 in float32) may fall either way,
and float64 logits stay in float64. All functions take logits, (samples, classes), and return positions in order of
choice.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from airlock.errors import ConfigError, TrainingError
from airlock.threads import one_thread
from airlock.training.sampling import Index

Name = Literal["k-centre", "random", "margin", "diverse"]
_REFERENCE, _BLOCK = 4096, 256  # samples that represent all; columns of a kernel matrix at a time


def select(name: Name, logits: Tensor, count: int, seed: int) -> Index:
    """`count` samples by the named selection; `seed` is public and determines all random choices.

    Raises:
        ConfigError: There are fewer samples, or no such selection.
        TrainingError: The student's outputs are not finite.
    """
    _check(logits, count)
    if name == "random":
        return choose_random(len(logits), count, seed)
    if name == "k-centre":
        return k_centre(logits, count, int(np.random.default_rng(seed).integers(len(logits))))
    if name == "margin":
        return smallest_margin(logits, count)
    if name == "diverse":
        return diverse(logits, count)
    raise ConfigError("a selection (k-centre, random, margin, diverse)", f"'{name}'")


def choose_random(samples: int, count: int, seed: int) -> Index:
    """Random samples without replacement."""
    return np.random.default_rng(seed).permutation(samples)[:count].astype(np.int64)


def k_centre(logits: Tensor, count: int, first: int) -> Index:
    """Algorithm 3 starting from the sample `first`: argmax over the rest of the least KL to a chosen one."""
    _check(logits, count)
    log_p = torch.log_softmax(logits.detach() if logits.dtype == torch.float64 else logits.detach().float(), 1)
    p = log_p.exp()
    own = (p * log_p).sum(1)
    columns = p.t().contiguous()  # one row per class: the product reads memory in order
    nearest = torch.full_like(own, torch.inf)
    chosen = torch.empty(count, dtype=torch.int64, device=own.device)
    chosen[0] = first
    cross = torch.empty_like(own)
    with one_thread():
        for step in range(1, count):
            last = chosen[step - 1 : step]
            torch.mv(columns.t(), log_p.index_select(0, last).squeeze(0), out=cross)
            torch.minimum(nearest, torch.sub(own, cross, out=cross), out=nearest)
            nearest.index_fill_(0, last, -torch.inf)
            chosen[step] = nearest.argmax()
    return np.asarray(chosen.cpu().numpy(), np.int64)


def smallest_margin(logits: Tensor, count: int) -> Index:
    """The samples with the least difference between the two largest probabilities (Wang et al. 2017)."""
    return np.asarray(_margins(logits).argsort(stable=True)[:count].cpu().numpy(), np.int64)


def diverse(logits: Tensor, count: int) -> Index:
    """Samples that are uncertain and representative, chosen one by one; after Wang and Ye 2013, without their solver.

    A sample's score is its mean similarity to all samples (to 4,096 evenly spaced ones, if there are more), minus that
    to the chosen ones, plus its uncertainty (1 − its margin); similarity is exp(−‖p − q‖²). The first two terms are the
    greedy descent of the maximum mean discrepancy between the chosen samples and all.
    """
    _check(logits, count)
    p = torch.softmax(logits.detach().float(), 1)
    size = p.square().sum(1)
    worth = 1.0 - _margins(logits)
    reference = p[:: -(-len(p) // _REFERENCE)]
    for start in range(0, len(reference), _BLOCK):
        worth += _similar(p, size, reference[start : start + _BLOCK]).sum(1) / len(reference)
    near = torch.zeros_like(worth)
    chosen = torch.empty(count, dtype=torch.int64, device=p.device)
    with one_thread():
        for step in range(count):
            last = (worth - near / max(step, 1)).argmax().unsqueeze(0)
            chosen[step : step + 1] = last
            worth.index_fill_(0, last, -torch.inf)
            near += _similar(p, size, p.index_select(0, last)).squeeze(1)
    return np.asarray(chosen.cpu().numpy(), np.int64)


def _similar(p: Tensor, size: Tensor, q: Tensor) -> Tensor:
    """exp(−‖p − q‖²) of every pair, (rows of p, rows of q); `size` is ‖p‖² of every row."""
    return torch.addmm(size[:, None] + q.square().sum(1), p, q.t(), alpha=-2).clamp_(min=0).neg_().exp_()


def _margins(logits: Tensor) -> Tensor:
    p = torch.softmax(logits.detach().float(), 1)
    if p.shape[1] < 2:
        return torch.ones_like(p[:, 0])
    two = p.topk(2, 1).values
    return two[:, 0] - two[:, 1]


def _check(logits: Tensor, count: int) -> None:
    if not 1 <= count <= len(logits):
        raise ConfigError(
            f"from 1 to {len(logits)} samples to select, the number of public records",
            f"{count}",
            do="Lower settings.queries or settings.select_rate, or give more public records.",
        )
    if not bool(torch.isfinite(logits).all()):
        raise TrainingError(
            "finite outputs of the student to select by",
            "NaN or infinity",
            "The distance between them is undefined.",
            "Lower the learning rate.",
        )

"""What labelled public records give by themselves, without noise: a trained network, or a head on public features.

In: a network with its initial weights, or a front end; and labelled public records. Out: the same network, trained on
them, or the head's weights. No private record is involved.

Without public records there are still images that a random process makes (Tang et al. 2023, arXiv 2306.06076): a
network that learns to tell a hundred kinds of random shapes apart (`nets.synthetic`) starts with filters for edges,
directions and their arrangement. Its weights but for the head are what private training starts from (`from_shapes`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from airlock.data import Public, Records
from airlock.nets.frontend import Framed
from airlock.nets.registry import build, seed_torch
from airlock.training.augment import Name, named
from airlock.training.devices import Resident
from airlock.training.distributed import ALONE
from airlock.training.front_ends.features import compute
from airlock.training.front_ends.pretrain import recall, remember
from airlock.training.front_ends.public import synthetic_images
from airlock.training.gradients import PlainGradients
from airlock.training.loop import Recipe, Run, fit
from airlock.training.sampling import Shuffled

LABEL = "training on the public records"
_EPOCHS, _BATCH = 60, 128
_RATE = 2e-3
_VERSION, _KINDS, _EACH, _SHAPES_EPOCHS = 1, 100, 400, 20  # of images of random shapes
_PENALTIES = (0.03, 0.3, 3.0, 30.0)  # of a head, tried on a fifth of the public records


def train_openly(
    net: nn.Module, records: Records, seed: int, run: Run, augment: Name = "none", epochs: int = _EPOCHS
) -> None:
    """Train a network in place on public records with Adam; nothing happens if there are none.

    Args:
        net: With its initial weights; where the run computes afterwards.
        records: The public records.
        seed: Of their order and augmentation.
        run: An unfinished training is saved in the folder `public` of its checkpoints.
        augment: Random changes to each record by itself.
        epochs: Passes over the records.
    """
    net.to(run.device)
    if not len(records):
        return
    steps = epochs * math.ceil(len(records) / _BATCH)
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=_RATE, schedule="cosine")
    own = replace(run, group=ALONE, checkpoint=run.checkpoint / "public" if run.checkpoint else None)
    batches = Shuffled(min(_BATCH, len(records)), seed)
    fit(net, Resident(records, run.device), batches, PlainGradients(), recipe, seed, own, named(augment), LABEL)


def shapes(shape: tuple[int, ...], seed: int) -> Public:
    """The images that `from_shapes` learns from."""
    return synthetic_images(shape, seed, _EACH)


def from_shapes(
    name: str, shape: tuple[int, ...], seed: int, run: Run, epochs: int = _SHAPES_EPOCHS
) -> dict[str, Tensor]:
    """The weights of a built-in network that tells random shapes apart, in float16; from the cache if they are there.

    Args:
        name: Of the network.
        shape: Of the records that it is for.
        seed: Of images, initial weights and order.
        run: Where to compute.
        epochs: Passes over the images.

    Raises:
        NetError: There is no built-in network of this name, or it does not take such records.
    """
    key = json.dumps(["shapes", _VERSION, name, shape, seed, epochs])
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        net = build(name, shape, _KINDS)
    remembered = recall(key, net.state_dict())
    if remembered is None:
        train_openly(net, shapes(shape, seed).records, seed, run, "shift+flip", epochs)
        remembered = {key: value.cpu() for key, value in net.state_dict().items()}
        remember(key, remembered)
    return {name: value.half() if value.is_floating_point() else value for name, value in remembered.items()}


def fill(net: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Put in all weights whose name and shape fit; returns the names of the tensors that stay as they are."""
    own, left = net.state_dict(), []
    for name, value in own.items():
        given = weights.get(name)
        if given is None or given.shape != value.shape or not bool(torch.isfinite(given.float()).all()):
            left.append(name)
            continue
        with torch.no_grad():
            value.copy_(given)
    return left


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors by name, whatever file they came from."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode() + weights[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def head_of(net: Framed, records: Records, run: Run) -> Tensor:
    """The weights of a linear head on this network's features, as public records alone give it; zeros without any.

    A ridge regression of their centred one-hot labels, with the penalty that does best on the last fifth of them when
    it is fitted to the others.
    """
    classes = net.head.out_features
    blocks = [net.centre(block).double() for _, block in compute(net.front, records, run, "features of public records")]
    if not blocks:
        return torch.zeros_like(net.head.weight)
    x, labels = torch.cat(blocks), torch.from_numpy(records.y).to(run.device)
    y = nn.functional.one_hot(labels, classes).double() - 1.0 / classes
    known = len(x) - len(x) // 5

    def right(penalty: float) -> int:
        head = ridge_regression(x[:known], y[:known], penalty)
        return int(((x[known:] @ head.T).argmax(1) == labels[known:]).sum())

    best = max(_PENALTIES, key=right)
    return ridge_regression(x, y, best).to(net.head.weight.dtype)


def ridge_regression(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """The W that minimises ‖x Wᵀ − y‖² + penalty · ‖W‖², by whichever of the two normal equations is smaller."""
    if len(x) <= x.shape[1]:
        dual: Tensor = torch.linalg.solve(_penalised(x @ x.T, penalty), y)
        return dual.T @ x
    primal: Tensor = torch.linalg.solve(_penalised(x.T @ x, penalty), x.T @ y)
    return primal.T


def _penalised(square: Tensor, penalty: float) -> Tensor:
    return square + penalty * torch.eye(len(square), dtype=square.dtype, device=square.device)

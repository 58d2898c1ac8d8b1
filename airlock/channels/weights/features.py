"""The front ends of `head` by name, and private records as features that are computed once.

Every feature vector depends on its own record and on public tensors alone, so computing it costs no privacy. A user's
own front end is tried: it must give finite vectors, and one record's must not change with its neighbours in a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.errors import NetError
from airlock.nets import build
from airlock.nets.frontend import Framed, Unit, pretrain
from airlock.nets.pretrained import efficientnet_linear
from airlock.nets.registry import open_user_net
from airlock.nets.scattering import SMALLEST
from airlock.training import Resident, Run
from airlock.training.resident import to_input

Shape = tuple[int, ...]
Make = Callable[[bool], Framed]

PRETRAINED = "efficientnet-lite0"
_BUILT_IN = ("scattering", "pixels")
_BATCH = 250
_TOLERANCE = 1e-4


def front_end(features: str, shape: Shape, classes: int, seed: int) -> tuple[str, Make]:
    """The name of the whole network, and a function that makes it: with its public tensors filled in, or only sized.

    Args:
        features: auto, scattering, pixels, efficientnet-lite0 or `package.module:function`.
        shape: Of one record.
        classes: How many.
        seed: Of the random projection and of the synthetic images; public.

    Raises:
        NetError: No such front end, or it does not take records of this shape.
    """
    if features == "auto":
        features = "scattering" if len(shape) == 3 and min(shape[1:]) >= SMALLEST else "pixels"
    if features == PRETRAINED:
        return f"{features}-linear", lambda ready: efficientnet_linear(shape, classes)
    if ":" in features:
        return features, lambda ready: _user(features, shape, classes)
    if features not in _BUILT_IN:
        known = ", ".join((*_BUILT_IN, PRETRAINED))
        raise NetError(
            f"features of a known kind ({known})", f"'{features}'", do="Or give your own as package.module:function."
        )
    return f"{features}-linear", lambda ready: _built_in(features, shape, classes, seed, ready)


def _built_in(features: str, shape: Shape, classes: int, seed: int, ready: bool) -> Framed:
    net = build(f"{features}-linear", shape, classes)
    assert isinstance(net, Framed)
    if ready and features == "scattering":
        pretrain(net, shape, seed)
    return net


def _user(features: str, shape: Shape, classes: int) -> Framed:
    """The user's module, flattened and brought to norm 1, with a head."""
    body = open_user_net(features, shape, classes).requires_grad_(False).eval()
    front = nn.Sequential(body, nn.Flatten(), Unit())
    return Framed(front, _try(body, features, shape), classes)


def _try(body: nn.Module, name: str, shape: Shape) -> int:
    """How many features the user's front end gives; refused if it fails, mixes records or gives NaN."""
    chance = torch.Generator().manual_seed(0)
    first, others = torch.rand(1, *shape, generator=chance), torch.rand(2, 3, *shape, generator=chance)
    try:
        with torch.no_grad():
            outputs = [body(torch.cat([first, other])) for other in (others[0], 3 * others[1] + 1)]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise NetError(
            f"front end '{name}' to take records of shape {' × '.join(map(str, shape))}",
            f"an error from it: {str(error).splitlines()[0]}",
        ) from error
    a, b = (output.flatten(1)[0] for output in outputs)
    if not torch.isfinite(a).all():
        raise NetError(f"finite features from front end '{name}'", "NaN or infinity")
    if not torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise NetError(
            f"features of front end '{name}' that depend on their own record alone",
            "features that change with the other records of the batch",
            "Noise for one record would not cover its effect on the others.",
            "Remove the layer that computes over the batch.",
        )
    return len(a)


class _Trained(nn.Module):
    """What the loop trains: the head. The mean travels along, so that a checkpoint holds it too."""

    mean: Tensor

    def __init__(self, net: Framed) -> None:
        super().__init__()
        self.head = net.head
        self.register_buffer("mean", net.centre.mean)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


class Features(Resident):
    """Features of all private records on the device, centred when the first batch is drawn.

    A resumed run restores the released mean from its checkpoint before that: the noisy mean is used once, whatever
    happens. `trained` is the module to train on the batches.
    """

    def __init__(self, net: Framed, records: Records, run: Run) -> None:
        self.net = net.to(run.device)
        self.trained = _Trained(net)
        self.y = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        self.x = torch.empty(len(records), net.centre.mean.numel(), device=run.device)
        self._centred: Tensor | None = None
        with torch.no_grad():
            for start in range(0, len(records), _BATCH):
                block = torch.from_numpy(np.ascontiguousarray(records.x[start : start + _BATCH])).to(run.device)
                self.x[start : start + len(block)] = net.front(to_input(block))
                if run.progress:
                    run.progress("features", start + len(block), len(records))

    def total(self) -> NDArray[np.float64]:
        """The sum of all features: one record moves it by at most 1 in L2."""
        return self.x.double().sum(0).cpu().numpy()

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these positions; all of them are not copied."""
        if self._centred is None:
            with torch.no_grad():
                self._centred = torch.cat([self.net.centre(block) for block in torch.split(self.x, _BATCH)])
            self.x = self._centred
        if len(index) == len(self.y):
            return self._centred, self.y
        where = torch.from_numpy(index).to(self.y.device)
        return self._centred.index_select(0, where), self.y.index_select(0, where)

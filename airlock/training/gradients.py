"""Where a step's gradient comes from: the protocol of the loop, and the plain mean gradient."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn


class Gradients(Protocol):
    """Puts this step's gradient into every trainable parameter's `.grad`."""

    @property
    def mark(self) -> dict[str, object]:
        """What a checkpoint must agree on before a run goes on with this source."""
        ...

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Compute the gradient of one batch; it may be empty."""
        ...


class PlainGradients:
    """The gradient of the mean loss: no privacy."""

    @property
    def mark(self) -> dict[str, object]:
        """Nothing beyond its kind."""
        return {"gradients": "plain"}

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Backward through the mean cross-entropy; an empty batch gives no gradient."""
        net.zero_grad(set_to_none=True)
        if len(y):
            F.cross_entropy(net(x).float(), y).backward()  # type: ignore[no-untyped-call]

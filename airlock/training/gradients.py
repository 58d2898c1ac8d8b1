"""Where a step's gradient comes from: the protocol of the loop, and the plain mean gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

Named = dict[str, Tensor]  # by the name of a parameter


class Gradients(Protocol):
    """Puts this step's gradient into every trainable parameter's `.grad`."""

    @property
    def mark(self) -> dict[str, object]:
        """What a checkpoint must agree on before a run goes on with this source."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What changes from step to step and the next one depends on; it goes into checkpoints."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the state of a checkpoint."""
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

    def state(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Backward through the mean cross-entropy; an empty batch gives no gradient."""
        net.zero_grad(set_to_none=True)
        if len(y):
            F.cross_entropy(net(x).float(), y).backward()  # type: ignore[no-untyped-call]

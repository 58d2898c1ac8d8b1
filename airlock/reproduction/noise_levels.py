"""DP-SGD of one small network at many noise levels at once, for figures of public data alone.

A figure asks for the same training at dozens of noise multipliers. The networks have two dense layers, so that all of
them are a few products of stacked matrices: a step of 44 networks costs little more than one of a single network.

What is computed is what `PrivateGradients` and `Poisson` compute: every record enters a lot independently, its gradient
is clipped as a whole, and the sum gets Gaussian noise and is divided by the expected lot. A test compares a step with
the engine's. Nothing here may be released: the noise comes from a seeded generator, and norms have no room for
rounding, of which the engine leaves a thousandth.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from airlock.training import Resident, Run
from airlock.training.devices import to_input


def train_at_noise_levels(
    net: nn.Module,
    data: Resident,
    noise_multipliers: Sequence[float],
    run: Run,
    *,
    steps: int,
    lot: float,
    clip_norm: float,
    learning_rate: float,
    weight_decay: float,
    seed: int,
) -> list[nn.Module]:
    """The network trained by DP-SGD with Adam at each noise multiplier, on the CPU.

    Args:
        net: Flatten, linear, tanh, linear; every network starts from it, and it stays as it is.
        data: All records, on the device.
        noise_multipliers: One per network.
        run: For its progress.
        steps: Of each.
        lot: The expected number of records in a step.
        clip_norm: The bound on a record's gradient.
        learning_rate: Adam's.
        weight_decay: Adam's.
        seed: Of lots and noise.
    """
    count, device = len(noise_multipliers), data.device
    first, second = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    layers = [value.detach() for layer in (first, second) for value in (layer.weight, layer.bias)]
    stacked = [nn.Parameter(value.to(device).expand(count, *value.shape).clone()) for value in layers]
    noise = torch.tensor(list(noise_multipliers), device=device) * clip_norm
    optimiser = torch.optim.Adam(stacked, lr=learning_rate, weight_decay=weight_decay)
    chance = torch.Generator(device=device).manual_seed(seed)
    for step in range(steps):
        x, y, drawn = lots(data, lot, count, chance)
        for parameter, total in zip(stacked, clipped_sums(stacked, x, y, drawn, clip_norm), strict=True):
            normal = torch.randn(total.shape, generator=chance, device=device)
            parameter.grad = (total + normal * noise.view(-1, *(1,) * (total.dim() - 1))) / lot
        optimiser.step()
        if run.progress:
            run.progress("DP-SGD at all noise levels", step + 1, steps)
    found = []
    for number in range(count):
        made = copy.deepcopy(net).cpu()
        own = [layer for layer in made.modules() if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for place, value in enumerate((own[0].weight, own[0].bias, own[1].weight, own[1].bias)):
                value.copy_(stacked[place][number])
        found.append(made.eval())
    return found


def lots(data: Resident, lot: float, count: int, chance: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A Poisson lot for each network, padded to the largest of them: records, labels, and which of them were drawn.

    Every record has a uniform number and is drawn if it is below q: a lot is what has the smallest numbers.
    """
    rate = lot / len(data)
    numbers = torch.rand((count, len(data)), generator=chance, device=data.device)
    largest = int((numbers < rate).sum(1).max())
    smallest, rows = numbers.topk(largest, largest=False, sorted=False)
    x = to_input(data.x[rows]).flatten(2)
    return x, data.y[rows], smallest < rate


@torch.no_grad()
def clipped_sums(stacked: Sequence[Tensor], x: Tensor, y: Tensor, drawn: Tensor, clip_norm: float) -> list[Tensor]:
    """The sum of each network's clipped gradients of the cross-entropy, parameter by parameter.

    A dense layer's gradient of one record is the outer product of what goes in and what comes back, so its norm is the
    product of theirs and needs no gradient of single records.
    """
    weight_1, bias_1, weight_2, bias_2 = stacked
    hidden = torch.tanh(x @ weight_1.mT + bias_1[:, None])
    outputs = hidden @ weight_2.mT + bias_2[:, None]
    back_2 = torch.softmax(outputs, 2)
    back_2 -= nn.functional.one_hot(y.long(), outputs.shape[2])
    back_1 = (back_2 @ weight_2) * (1 - hidden.square())
    squares = back_2.square().sum(2) * (hidden.square().sum(2) + 1) + back_1.square().sum(2) * (x.square().sum(2) + 1)
    share = drawn * (clip_norm / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
    back_1, back_2 = back_1 * share[:, :, None], back_2 * share[:, :, None]
    return [back_1.mT @ x, back_1.sum(1), back_2.mT @ hidden, back_2.sum(1)]

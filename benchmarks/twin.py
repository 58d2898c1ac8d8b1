"""Drawing a twin (`twin`/`published`): MNIST-Net's 1,199,882 parameters, 50 models, 256 points, versus scipy in a loop.

All three do the same for a parameter: Silverman's bandwidth, a range from the data, the estimated probability of a
window around every point of a grid, and one draw. scipy goes parameter by parameter, with `gaussian_kde` and
`integrate_box_1d` at every point; it is timed on a few and scaled up to all. Direct is the prototype's way: torch's
error function for every model, point and parameter, also on a few and scaled up. On a CPU, processor time is measured,
so that other load on the machine is excluded; ours uses one core.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from airlock.mechanisms import Stream
from airlock.mechanisms.density import DensityMechanism, published_sensitivity, silverman
from airlock.papers.twin.generate import DensitySettings, draw

PARAMETERS, MODELS, POINTS = 1_199_882, 50, 256
SCIPY, DIRECT = 2000, 2048
COLUMNS = {"cpu": 16_384, "cuda": 131_072}  # per block
GOAL = {"cpu": 60.0, "cuda": 0.3}
SPEED_UP = 100.0
MECHANISM = DensityMechanism(1.0, published_sensitivity(MODELS), points=POINTS)


def run() -> list[dict[str, Any]]:
    """Seconds for the whole network, on the CPU and on the GPU if there is one."""
    made = torch.Generator().manual_seed(0)
    slices = torch.randn(MODELS, PARAMETERS, generator=made).mul_(0.01)
    loop = _scaled(_scipy, slices, SCIPY)
    rows = [_row("scipy's gaussian_kde in a loop", "cpu", loop, loop)]
    rows.append(_row("error functions, directly", "cpu", _scaled(_directly, slices, DIRECT), loop))
    rows.append(_row("airlock", "cpu", _whole(slices), loop, GOAL["cpu"], SPEED_UP))
    if torch.cuda.is_available():
        there = slices.cuda()
        _whole(there)
        rows.append(_row("airlock", "cuda", min(_whole(there) for _ in range(3)), loop, GOAL["cuda"]))
    return rows


def _row(
    what: str, device: str, seconds: float, loop: float, goal: float | None = None, speed_up: float | None = None
) -> dict[str, Any]:
    return {
        "what": what,
        "device": device,
        "seconds": round(seconds, 4),
        "goal, seconds": goal or "-",
        "times as fast as scipy": round(loop / seconds, 1),
        "goal, times": speed_up or "-",
    }


def _scaled(work: Callable[[Tensor], None], slices: Tensor, columns: int) -> float:
    start = time.process_time()
    work(slices[:, :columns])
    return (time.process_time() - start) * PARAMETERS / columns


def _scipy(slices: Tensor) -> None:
    rng = np.random.default_rng(0)
    for column in slices.double().numpy().T:
        kernel = stats.gaussian_kde(column, "silverman")
        b = math.sqrt(kernel.covariance[0, 0])
        low, high = column.min() - b, column.max() + b
        grid = low + (np.arange(POINTS) + 0.5) / POINTS * (high - low)
        score = np.array([kernel.integrate_box_1d(t - b / 2, t + b / 2) for t in grid])
        logits = MECHANISM.epsilon * score / (2 * MECHANISM.sensitivity)
        weights = np.exp(logits - logits.max())
        rng.choice(grid, p=weights / weights.sum())


def _directly(slices: Tensor) -> None:
    b = silverman(slices)
    low, high = slices.amin(0) - b, slices.amax(0) + b
    scores = MECHANISM._directly((slices - low) / (high - low), b / (high - low))
    logits = scores * (MECHANISM.epsilon / (2 * MECHANISM.sensitivity))
    (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(1)


def _whole(slices: Tensor) -> float:
    """Every parameter, block by block, as in a release."""
    device = slices.device
    settings, stream = DensitySettings(grid_points=POINTS), Stream.from_system()
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    for first in range(0, PARAMETERS, COLUMNS[device.type]):
        block = slices[:, first : first + COLUMNS[device.type]]
        draw(block, settings, MECHANISM, torch.zeros(block.shape[1], device=device), stream.child(first))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start

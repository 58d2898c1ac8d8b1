"""Capturing a CUDA graph so that a capture that fails leaves nothing broken behind."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


def capture(work: Callable[[], Found], *, before: Callable[[], None] = lambda: None) -> tuple[Any, Found] | None:
    """The graph of `work` and what it gives; nothing where it cannot be captured.

    A capture that CUDA itself breaks off (a value is asked for in the middle of it, say) never tells the
    generator of random numbers that it is over: every later draw of the process would fail. The generator is then
    put onto a copy of its state, which has the same seed and goes on where the last finished draw ended.

    Args:
        work: What to capture.
        before: Done first, outside of the capture; if it fails, nothing is captured.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before()
            with torch.cuda.graph(graph):
                found = work()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph, found

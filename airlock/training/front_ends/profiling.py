"""What a front end costs on this machine: time through torch and through ONNX Runtime on one thread, and storage.

In: prefixes. Out: one `Profile` each. Times are medians of several runs; they depend on this machine and its current
load.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch

from airlock.nets.prefix import Prefix, narrow
from airlock.threads import one_thread

_CHATTY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class Profile:
    """One front end.

    Args:
        layers: m.
        channels: D'.
        torch_ms: Milliseconds for one record by torch, on one thread of the CPU.
        torch_batch_ms: The same per record in a batch.
        onnx_ms: Milliseconds for one record by ONNX Runtime, on one thread; None if not measured.
        onnx_batch_ms: The same per record in a batch.
        parameter_bytes: The size of its weights, in float32.
        feature_bytes: The size of one record's features, in float32.
        multiply_adds: Multiply-adds for one record.
    """

    layers: int
    channels: int
    torch_ms: float
    torch_batch_ms: float
    onnx_ms: float | None
    onnx_batch_ms: float | None
    parameter_bytes: int
    feature_bytes: int
    multiply_adds: int

    @property
    def milliseconds(self) -> float:
        """The faster of the two for one record."""
        return self.torch_ms if self.onnx_ms is None else min(self.torch_ms, self.onnx_ms)

    def to_dict(self) -> dict[str, float | int | None]:
        """As JSON."""
        return asdict(self)


def profile_all(
    fronts: Mapping[int, Prefix], depths: Sequence[int], batch: int = 16, repeats: int = 5, onnx: bool = True
) -> tuple[Profile, ...]:
    """Profile every prefix with every possible number of channels; which channels does not matter."""
    wanted = [(m, depth) for m in sorted(fronts) for depth in depths if depth <= fronts[m].channels]
    return tuple(profile(narrow(fronts[m], range(depth)), m, batch, repeats, onnx) for m, depth in wanted)


def profile(prefix: Prefix, layers: int, batch: int = 16, repeats: int = 5, onnx: bool = True) -> Profile:
    """Measure one prefix on the CPU.

    Args:
        prefix: Narrowed as it would be used.
        layers: m, for the record.
        batch: Records in the batch.
        repeats: Runs to take the median of.
        onnx: Whether to measure ONNX Runtime too; skipped if it does not support the front end.
    """
    prefix = copy.deepcopy(prefix).cpu()
    one, many = torch.rand(1, *prefix.image_shape), torch.rand(batch, *prefix.image_shape)
    with one_thread(), torch.no_grad():
        single, several = (_time(lambda x=x: prefix(x), repeats) for x in (one, many))  # type: ignore[misc]
    session = _session(prefix) if onnx else None
    onnx_single = onnx_several = None
    if session is not None:
        onnx_single, onnx_several = (_time(lambda x=x: session(x.numpy()), repeats) for x in (one, many))  # type: ignore[misc]
    return Profile(
        layers,
        prefix.channels,
        single,
        several / batch,
        onnx_single,
        None if onnx_several is None else onnx_several / batch,
        prefix.parameter_bytes,
        4 * int(np.prod(prefix.shape)),
        prefix.multiply_adds,
    )


def _time(work: Callable[[], object], repeats: int) -> float:
    """The median in milliseconds, after one warm-up run."""
    work()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - start))
    return median(found)


def _session(prefix: Prefix) -> Callable[[np.ndarray], object] | None:
    """The front end in ONNX Runtime on one thread, or None if it cannot be exported."""
    try:
        import onnxruntime as ort

        with _quiet():
            program = torch.onnx.export(
                prefix, (torch.zeros(2, *prefix.image_shape),), input_names=["x"], output_names=["y"],
                dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
            )  # fmt: skip
        assert program is not None
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        made = ort.InferenceSession(
            program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except (ImportError, RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError):
        return None
    return lambda x: made.run(None, {"x": x})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

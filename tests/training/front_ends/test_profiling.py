"""Profiles: what is counted is exact, what is timed is there."""

from __future__ import annotations

from airlock.nets.prefix import narrow, open_prefix
from airlock.training.front_ends.profiling import profile, profile_all

SHAPE = (3, 8, 8)


def test_storage_and_work_are_counted_and_times_are_there() -> None:
    prefix = narrow(open_prefix("vgg16", 3, SHAPE), range(8))
    found = profile(prefix, 3, batch=2, repeats=1)
    weights = 3 * 64 * 9 + 64 + 64 * 8 * 9 + 8
    assert (found.parameter_bytes, found.feature_bytes) == (4 * weights, 4 * 8 * 16)
    assert found.multiply_adds == 64 * (3 * 64 * 9 + 64 * 8 * 9)
    assert found.torch_ms > 0
    assert found.onnx_ms is not None
    assert found.onnx_batch_ms is not None
    assert found.milliseconds == min(found.torch_ms, found.onnx_ms)
    assert found.to_dict()["layers"] == 3


def test_storage_grows_with_layers_and_channels() -> None:
    fronts = {m: open_prefix("vgg16", m, SHAPE) for m in (1, 4)}
    found = profile_all(fronts, (4, 64, 128), batch=2, repeats=1, onnx=False)
    assert [(p.layers, p.channels) for p in found] == [(1, 4), (1, 64), (4, 4), (4, 64), (4, 128)]
    sizes = [p.parameter_bytes for p in found]
    assert sizes == sorted(sizes)
    assert all(p.onnx_ms is None and p.milliseconds == p.torch_ms for p in found)

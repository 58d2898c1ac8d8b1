"""What public records, and images of random shapes, give to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from airlock import data, methods
from airlock.config import from_table
from airlock.data import Records
from airlock.errors import ConfigError, NetError
from airlock.mechanisms import Randomness
from airlock.nets import build
from airlock.training import Run, count_correct, public_start
from airlock.training.public_start import digest_of, fill, from_shapes, train_openly

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(public_start, "_EACH", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_shapes_give_the_same_weights_each_time_and_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = from_shapes("digits-net", SHAPE, 3, Run(), epochs=1)
    monkeypatch.setattr(public_start, "train_openly", lambda *given, **more: pytest.fail("not from the cache"))
    again = from_shapes("digits-net", SHAPE, 3, Run(), epochs=1)
    assert digest_of(first) == digest_of(again)
    assert all(value.dtype == torch.float16 for value in first.values())


def test_all_but_the_head_is_filled() -> None:
    weights, net = from_shapes("digits-net", SHAPE, 3, Run(), epochs=1), build("digits-net", SHAPE, 7)
    head = net[-1].weight.clone()  # type: ignore[index]
    assert fill(net, weights) == ["6.weight", "6.bias"]
    torch.testing.assert_close(net[0].weight, weights["0.weight"].float())  # type: ignore[index]
    assert torch.equal(net[-1].weight, head)  # type: ignore[index]


def test_weights_that_are_not_finite_are_left_out() -> None:
    net = build("digits-net", SHAPE, 7)
    assert len(fill(net, {"0.weight": torch.full((32, 1, 3, 3), torch.nan)})) == len(net.state_dict())


def test_no_public_records_are_no_error() -> None:
    net = build("digits-net", SHAPE, 7)
    before = net[0].weight.clone()  # type: ignore[index]
    train_openly(net, Records(np.zeros((0, *SHAPE), np.uint8), np.zeros(0, np.int64)), 0, Run())
    assert torch.equal(net[0].weight, before)  # type: ignore[index]


def test_public_records_are_learnt() -> None:
    chance = np.random.default_rng(0)
    y = chance.integers(0, 2, 200)
    x = (chance.integers(0, 100, (200, *SHAPE)) + 100 * y[:, None, None, None]).astype(np.uint8)
    net, records = build("digits-net", SHAPE, 2), Records(x, y)
    train_openly(net, records, 0, Run(), epochs=5)
    assert count_correct(net, records) > 190


def _channel(net: str = "rona-digits-student", **settings: Any) -> Any:
    own = {"steps": 2, "lot_size": 100, "clip_norm": 1.0, **settings}
    table = {"channel": "weights", "method": "gaussian", "data": "digits", "epsilon": 3.0, "delta": 1e-4}
    config = from_table({**table, "net": net, "settings": own})
    return methods.build(config, data.describe(config))


def test_a_release_from_shapes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does one from a file, which the card names by its digest alone."""
    monkeypatch.setattr(public_start, "_SHAPES_EPOCHS", 1)
    weights = from_shapes("rona-digits-student", SHAPE, 0, Run(), epochs=1)
    save_file(weights, tmp_path / "w.safetensors")
    found = []
    for source in ("synthetic", str(tmp_path / "w.safetensors")):
        channel = _channel(pretrain=source)
        release = channel.release(data.load(channel.config), Randomness.make(0, insecure_seed=1), Run())
        found.append(release.plan.details["pretrained_sha256"])
        assert str(tmp_path) not in repr(release.plan)
        said = "synthetic images" if source == "synthetic" else "made without the private records"
        assert any(said in line for line in release.guarantee.assumptions)
    assert found[1] == digest_of(weights)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    channel = _channel(pretrain=str(tmp_path / "w.safetensors"))
    with pytest.raises(NetError, match="another network"):
        channel.release(data.load(channel.config), Randomness.make(0, insecure_seed=1), Run())
    with pytest.raises(ConfigError, match="built-in"):
        _channel("tests.texts:nothing", pretrain="synthetic")

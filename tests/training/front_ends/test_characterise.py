"""Characterising: points as one ensemble are what each is alone; kept cell by cell; more channels leak more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from airlock.data import Records
from airlock.errors import DataError, Interrupted, NetError
from airlock.nets.prefix import Prefix, open_prefix
from airlock.nets.privynet import Icn, Irn
from airlock.nets.synthetic import draw_classes
from airlock.training import Run
from airlock.training.devices import to_input
from airlock.training.ensembles.stacked import Dropouts, Looped, Vmapped, stack
from airlock.training.front_ends.characterise import (
    Characterisation,
    Effort,
    Learning,
    Point,
    characterise,
    grid,
    singles,
)
from airlock.training.front_ends.probe_networks import _Pixels, psnr
from airlock.training.gradients import MEAN

SHAPE = (3, 8, 8)
SMALL = Effort(
    utility=Learning(records=64, epochs=1, batch_size=32),
    privacy=Learning(records=64, epochs=1, batch_size=32, width=4, blocks=1),
    test_records=24,
)
POINTS = (Point(2, (5, 1, 60), 0), Point(2, (7,), 1), Point(3, (7,), 0))


@pytest.fixture(scope="module")
def fronts() -> dict[int, Prefix]:
    return {m: open_prefix("vgg16", m, SHAPE) for m in (1, 2, 3)}


@pytest.fixture(scope="module")
def public() -> Records:
    images, labels = draw_classes(160, SHAPE, 3, 0)
    return Records(images.numpy(), labels.numpy())


class Count:
    cells = 0

    def __call__(self, label: str, done: int, total: int) -> None:
        self.cells = done


def test_cells_do_not_depend_on_company_and_are_kept(
    fronts: dict[int, Prefix], public: Records, tmp_path: Path
) -> None:
    together = characterise(fronts, public, 3, POINTS, Run(), SMALL, cache=tmp_path / "a")
    apart = [characterise(fronts, public, 3, [p], Run(), SMALL, cache=tmp_path / "b").cells[0] for p in POINTS]
    for cell, alone in zip(together.cells, apart, strict=True):
        assert cell.point == alone.point
        assert cell.utility == pytest.approx(alone.utility, abs=1e-6)
        assert cell.psnr == pytest.approx(alone.psnr, abs=1e-3)
    count = Count()
    assert characterise(fronts, public, 3, POINTS, Run(progress=count), SMALL, cache=tmp_path / "a") == together
    assert count.cells == 0
    more = SMALL.model_copy(update={"seed": 1})
    other = characterise(fronts, public, 3, POINTS[:1], Run(progress=count), more, ["privacy"], cache=tmp_path / "a")
    assert (count.cells, other.cells[0].utility) == (1, None)
    assert other.cells[0].psnr != together.cells[0].psnr


def test_an_interrupted_run_goes_on(
    fronts: dict[int, Prefix], public: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def stop(front: object) -> bool:
        calls.append(front)
        return len(calls) > 4

    from contextlib import contextmanager

    @contextmanager
    def watched():  # type: ignore[no-untyped-def]
        yield lambda: stop(None)

    with monkeypatch.context() as patched:
        patched.setattr("airlock.training.front_ends.probe_networks.watch_interrupt", watched)
        with pytest.raises(Interrupted, match="All others are kept"):
            characterise(fronts, public, 3, POINTS, Run(), SMALL, cache=tmp_path)
    kept = len(list(tmp_path.glob("*.json")))
    assert 0 < kept < 6
    count = Count()
    characterise(fronts, public, 3, POINTS, Run(progress=count), SMALL, cache=tmp_path)
    assert count.cells == 6 - kept


def test_more_channels_serve_more_and_leak_more(fronts: dict[int, Prefix], public: Records, tmp_path: Path) -> None:
    effort = Effort(
        utility=Learning(records=128, epochs=8, batch_size=32),
        privacy=Learning(records=128, epochs=12, batch_size=32, width=16, blocks=1),
        test_records=32,
    )
    points = [Point(1, (0,)), Point(1, tuple(range(24)))]
    found = characterise(fronts, public, 3, points, Run(), effort, cache=tmp_path)
    one, many = found.cells
    assert many.psnr > one.psnr + 1  # type: ignore[operator]
    pictures = to_input(torch.from_numpy(public.x))
    blind = float(psnr(pictures.mean(0).expand_as(pictures), pictures).mean())
    assert 5 < blind < 20
    assert many.psnr > blind + 3  # type: ignore[operator]
    assert many.utility > 0.5  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["utility", "privacy"])
def test_both_networks_can_be_trained_as_one(kind: str) -> None:
    nets = [Icn((2, 4, 4), 3) if kind == "utility" else Irn((2, 4, 4), SHAPE, blocks=1, width=4) for _ in range(3)]
    objective = MEAN if kind == "utility" else _Pixels()
    x = torch.rand(3, 5, 2, 4, 4)
    y = torch.zeros(3, 5, dtype=torch.int64) if kind == "utility" else torch.rand(3, 5, *SHAPE)
    dropouts, found = Dropouts(nets[0], (2, 4, 4), torch.device("cpu")), []
    for engine in (Vmapped(nets[0], dropouts, True, objective=objective), Looped(nets[0], objective=objective)):  # type: ignore[arg-type]
        held = stack(nets)
        engine(held, x, y, [5] * 3, [0] * 3)
        found.append([p.grad for p in held.parameters()])
    for a, b in zip(*found, strict=True):
        assert a is not None
        assert torch.allclose(a, b, atol=1e-5)


def test_the_value_is_read_back_and_averaged() -> None:
    made = Characterisation("vgg16", "shapes", {2: 64}, ())
    assert Characterisation.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    points = grid({2: 64, 5: 128}, (4, 128), draws=2) + singles(2, 3)
    assert [(p.layers, len(p.channels)) for p in points] == [(2, 4)] * 2 + [(5, 4)] * 2 + [(5, 128)] * 2 + [(2, 1)] * 3
    assert grid({2: 64}, (4,), draws=2) == points[:2]
    from airlock.training.front_ends.characterise import Measurement

    full = replace(
        made,
        cells=(Measurement(points[0], 0.5, 20.0), Measurement(points[1], 0.7, None), Measurement(points[-1], 0.1, 9.0)),
    )
    assert full.mean("utility") == {(2, 1): 0.1, (2, 4): pytest.approx(0.6)}
    assert full.surface("privacy") == {(2, 1): [9.0], (2, 4): [20.0]}
    assert full.single("privacy", 2) == {2: 9.0}
    assert Characterisation.from_dict(full.to_dict()) == full
    with pytest.raises(DataError, match="a characterisation"):
        Characterisation.from_dict({"cells": 3})


def test_what_cannot_be_measured_is_refused(fronts: dict[int, Prefix], public: Records, tmp_path: Path) -> None:
    with pytest.raises(NetError, match="a prefix of 9 layers"):
        characterise(fronts, public, 3, [Point(9, (1,))], Run(), SMALL, cache=tmp_path)
    with pytest.raises(NetError, match="among the 64"):
        characterise(fronts, public, 3, [Point(1, (64,))], Run(), SMALL, cache=tmp_path)
    few = Records(public.x[:40], public.y[:40])
    with pytest.raises(DataError, match="at least 56 public records"):
        characterise(fronts, few, 3, POINTS, Run(), SMALL, cache=tmp_path)
    assert float(psnr(torch.full((1, *SHAPE), 0.6), torch.full((1, *SHAPE), 0.5))) == pytest.approx(20, abs=1e-3)

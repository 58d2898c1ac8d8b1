"""Mao et al. again: small runs go through, and what is said by formulas is what the mechanism does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from airlock.mechanisms.density import published_sensitivity, sensitivity
from airlock.reproduction import PAPERS, Found, KeptRow, Trial, rendered, reproduce
from airlock.reproduction.paper import Spread, Workplace
from airlock.reproduction.twin import MODELS, PAPER, TwinWorld, _behind
from airlock.training import Run

ITEMS = {item.name: item for item in PAPER.items}


def test_a_quick_run_on_digits_keeps_its_rows_and_dp_pgp_without_groups_is_dp_pg(tmp_path: Path) -> None:
    only = ["corollary-3", "figure-3", "digits-aside"]
    found = reproduce("twin", tmp_path, only, quick=True, device="cpu")
    rows = {row.trial.experiment: row for row in map(KeptRow.from_json, found.rows.read_text("utf-8").splitlines())}
    assert (found.ran, found.left) == (5, 0)
    assert rows["same"].figures == {"alike": 1.0}
    assert found.shown["corollary-3"].words == "it runs; too small to compare"
    (trial,) = ITEMS["corollary-3"].trials(False)
    kept = KeptRow(trial, rows["same"].figures, "abc", "CPU", 1.0)
    assert ITEMS["corollary-3"].show(Found((kept,))).status == "reproduced"
    assert 0.0 <= rows["models"].figures["lowest"] <= rows["models"].figures["others"] <= 1.0
    shares = {name: value for name, value in rows["densities"].figures.items() if " in " in name}
    for number in range(3):
        values, drawn = (
            [share for name, share in shares.items() if name.startswith(f"{number}: {what}")]
            for what in ("values", "drawn")
        )
        assert sum(values) == pytest.approx(1.0)
        assert sum(drawn) == pytest.approx(1.0)
    assert "This is the quick version" in found.page.read_text("utf-8")


def test_models_of_an_earlier_stage_are_other_models_and_alignment_keeps_what_they_compute() -> None:
    world = TwinWorld("digits-apart", 0, True, Workplace(None, Run()))
    world.epochs = (1,)
    as_they_are, aligned = world.slices(1), world.slices(1, aligned=True)
    x = torch.rand(5, 1, 8, 8)
    for plain, moved in zip(next(as_they_are.blocks())[1], next(aligned.blocks())[1], strict=True):
        nets = [slices.model(row).eval() for slices, row in ((as_they_are, plain), (aligned, moved))]
        assert torch.allclose(nets[0](x), nets[1](x), atol=1e-4)


def test_models_of_a_run_that_was_killed_are_not_trained_again(tmp_path: Path) -> None:
    steps = list[int]()
    run = Run(progress=lambda label, done, total: steps.append(done))
    worlds = [TwinWorld("digits", 0, True, Workplace(None, run, tmp_path)) for _ in range(2)]
    first = next(worlds[0].slices(1).blocks())[1]
    trained = len(steps)
    again = next(worlds[1].slices(1).blocks())[1]
    assert trained == len(steps) > 0
    assert torch.equal(first, again)
    other = TwinWorld("digits", 1, True, Workplace(None, run, tmp_path))
    assert not torch.equal(next(other.slices(1).blocks())[1], first)


def test_corollary_1_holds_below_the_window_that_the_page_names() -> None:
    shown = ITEMS["corollary-1"].show(Found(()))
    most = float(shown.words.rpartition("below ")[2].split()[0])
    assert sensitivity(MODELS, most) <= published_sensitivity(MODELS) < sensitivity(MODELS, most + 0.001)
    assert float(shown.rows[-1][-1]) == pytest.approx(18.76, abs=0.01)


def test_a_twin_above_its_models_is_as_good_as_one_that_equals_them() -> None:
    assert _behind("a", Spread((0.5,)), Spread((0.7,))) == ("a", 0.0, Spread((0.0,)))
    assert _behind("a", Spread((0.5,)), None) == ("a", 0.0, None)
    behind = _behind("a", Spread((0.5,)), Spread((0.4,)))[2]
    assert behind is not None
    assert behind.mean == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["weights", "twin"])
@pytest.mark.parametrize("quick", [False, True])
def test_whichever_rows_and_figures_are_missing_there_is_a_page(name: str, quick: bool) -> None:
    paper, chance = PAPERS[name], random.Random(name)
    known = kept_names(name)
    trials = list({trial.key: trial for item in paper.items for trial in item.trials(quick)}.values())
    for share in (0.02, 0.3, 0.9, 1.0):
        rows = [made_up(trial, known, chance, share) for trial in trials if chance.random() < share]
        page = rendered(paper, Found(tuple(rows), quick))
        assert len(page.splitlines()) > 100
    assert "to run" not in page.split("## ")[0].split("left to run |")[1]  # at the end nothing is missing


def kept_names(name: str) -> dict[str, set[str]]:
    """The names of figures by experiment, from the quick rows in the docs."""
    folder = Path(__file__).resolve().parents[2] / "docs/results/reproduced"
    found: dict[str, set[str]] = {}
    for line in (folder / f"{name}-quick.jsonl").read_text("utf-8").splitlines():
        row = KeptRow.from_json(line)
        found.setdefault(row.trial.experiment, set()).update(row.figures)
    return found


def made_up(trial: Trial, known: dict[str, set[str]], chance: random.Random, share: float) -> KeptRow:
    names = sorted(known[trial.experiment])
    figures = {name: chance.random() for name in names if chance.random() <= max(share, 0.9)}
    return KeptRow(trial, figures, "abc", "CPU", 1.0)


@pytest.mark.parametrize("name", ["weights", "twin"])
def test_the_kept_quick_rows_are_those_of_every_item(name: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "docs/results/reproduced"
    rows = list(map(KeptRow.from_json, (folder / f"{name}-quick.jsonl").read_text("utf-8").splitlines()))
    wanted = {trial.key for item in PAPERS[name].items for trial in item.trials(True)}
    assert {row.trial.key for row in rows} == wanted
    assert all("+" not in row.commit for row in rows)

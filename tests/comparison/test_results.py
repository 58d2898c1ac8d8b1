"""The values of a comparison: they come back from JSON, a claim is never an ε, and refuted outranks the status."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from airlock.bundle.files import replace_file
from airlock.comparison.page import NOTES, Comparison
from airlock.comparison.results import write
from airlock.comparison.values import BASELINE, Dropped
from airlock.errors import OutputError
from tests.comparison.example import attacked, cell, comparison


def test_json_comes_back_as_it_was_and_is_strict(tmp_path: Path) -> None:
    found = comparison()
    place, _ = write(tmp_path, found)
    assert Comparison.model_validate_json(place.read_text(encoding="utf-8")) == found
    assert json.loads(place.read_text(encoding="utf-8"))["notes"] == list(NOTES)
    assert place.stat().st_mode & 0o777 == 0o600


def test_csv_has_a_line_a_cell_and_a_claim_is_not_in_the_column_of_epsilon(tmp_path: Path) -> None:
    found = comparison()
    lines = list(csv.DictReader(write(tmp_path, found)[1].read_text(encoding="utf-8").splitlines()))
    assert len(lines) == len(found.cells)
    published = [line for line in lines if line["method"] == "weights/published"]
    assert published
    assert all(line["epsilon"] == "" and line["claim_epsilon"] for line in published)
    assert {line["standing"] for line in published} == {"refuted"}


def test_a_row_is_the_mean_over_seeds_with_the_worst_promise() -> None:
    one, two = cell("weights/gaussian", 1.0, 0, 180, 0.5), cell("weights/gaussian", 1.0, 1, 200, 0.6, epsilon=0.999)
    (row,) = comparison(cells=(one, two)).rows()
    assert row.accuracy == pytest.approx(190 / 360)
    assert (row.lowest, row.highest, row.seeds) == (180 / 360, 200 / 360, 2)
    assert one.epsilon is not None
    assert row.epsilon == max(one.epsilon, 0.999)
    assert row.auc == pytest.approx(0.55)
    assert row.low < row.lowest < row.highest < row.high


def test_a_row_has_no_epsilon_where_one_seed_has_none() -> None:
    cells = (cell("weights/gaussian", 1.0, 0, 180, 0.5), cell("weights/gaussian", 1.0, 1, 180, 0.5, epsilon=None))
    assert comparison(cells=cells).rows()[0].epsilon is None


def test_failed_cells_make_no_row() -> None:
    assert ("answers/per-query", 8.0) not in {(row.method, row.epsilon_asked) for row in comparison().rows()}


def test_cells_that_were_dropped_are_said_a_method_at_a_time() -> None:
    cells = [(method, epsilon, seed) for seed in (1, 2) for method in ("a/b", "c/d") for epsilon in (1.0, 8.0)]
    cells += [("a/b", 3.0, 2), (BASELINE, None, 2), ("c/d", 1.0, None)]
    dropped = [Dropped(method=m, epsilon_asked=e, seed=s, reason="The time was over.") for m, e, s in cells]
    assert [what for what, _ in comparison(dropped=tuple(dropped)).left_out()] == [
        "a/b at ε = 1, 8, seeds 1, 2",
        "a/b at ε = 3, seed 2",
        "c/d at ε = 1, 8, seeds 1, 2",
        "no privacy, seed 2",
        "c/d at ε = 1, trial before the court",
    ]


def test_refuted_by_the_court_or_by_an_attack() -> None:
    found = comparison(court=())
    published = cell("weights/published", 1.0, 0, 300, 0.6, "claimed", claim_epsilon=1.0)
    assert found.standing(published) == "claimed"
    assert comparison().standing(published) == "refuted"
    broken = cell("weights/gaussian", 1.0, 0, 300, 0.9, bound=2.0)
    assert found.standing(broken) == "refuted"
    assert found.standing(cell(BASELINE, None, 0, 300, 0.9, "none", bound=2.0)) == "none"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    place = tmp_path / "results.json"
    replace_file(place, "old")
    replace_file(place, "new")
    assert place.read_text() == "new"
    with pytest.raises(OutputError):
        replace_file(tmp_path / "none" / "results.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_the_largest_attack_on_membership_counts() -> None:
    from airlock.comparison.values import worst_attack

    inversion = attacked(0.9).model_copy(update={"aim": "inversion"})
    made = cell("weights/gaussian", 1.0, 0, 300, 0.5).model_copy(update={"attacks": (attacked(0.55), inversion)})
    worst = worst_attack(made)
    assert worst is not None
    assert worst.auc == 0.55

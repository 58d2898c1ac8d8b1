"""A comparison on texts: the methods that take them are run, and the others are named in words."""

from __future__ import annotations

import csv
from pathlib import Path

from airlock.comparison.run import compare
from airlock.comparison.settings import from_table
from airlock.comparison.values import Cell
from tests.texts import reviews, tiny_encoder

RECORDS = 400


def test_methods_are_compared_on_texts_and_the_others_say_why_not(tmp_path: Path) -> None:
    with tiny_encoder(tmp_path / "wheel", trained=True):
        with (tmp_path / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("review", "verdict"), *zip(*reviews(RECORDS), strict=True)])
        asked = from_table({
            "data": {"source": str(tmp_path / "reviews.csv"), "text": "review", "label": "verdict", "tokens": 12,
                     "classes": ["bad", "good"], "records": RECORDS},
            "epsilons": [8.0], "delta": 1e-4, "seeds": 1, "device": "cpu", "court_seconds": 0.1,
            "split": {"test": 0.2, "holdout": 0.2, "public": 0.2},
            "methods": ["weights/head", "answers/head", "student/private-teacher", "student/ensemble"],
            "settings": {
                "baseline": {"epochs": 1}, "weights/gaussian": {"steps": 2},
                "student/private-teacher": {"rounds": 1, "self_epochs": 2, "distil_epochs": 2, "teacher_epochs": 1,
                                            "private": {"steps": 2}},
            },
        })  # fmt: skip
        found = compare(asked, tmp_path / "out")
    done = {cell.method for cell in found.cells if isinstance(cell, Cell)}
    assert done == {"baseline", "public", "weights/gaussian", "weights/head", "answers/head", "student/private-teacher"}
    assert not [cell for cell in found.cells if not isinstance(cell, Cell)]
    assert {one.method for one in found.court} == done - {"baseline", "public"}
    assert [(one.method, one.reason.split(",")[0]) for one in found.skipped] == [
        ("student/ensemble", "Expected a method for texts")
    ]
    page = next((tmp_path / "out").glob("*.html")).read_text(encoding="utf-8")
    assert "student/private-teacher" in page

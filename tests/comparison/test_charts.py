"""The figures: signs that do not rest on colour, axes that hold what they show, text that stays text."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from airlock.bundle.rendering.svg import Range
from airlock.comparison import charts
from airlock.comparison.charts import DataPoint, ReferenceLevel, Series, draw_accuracy, draw_bar, glyph

ACROSS = Range(0.0, 1.0, (0.0, 0.5, 1.0))
HOSTILE = '"><script>alert(1)</script>'


def point(x: float, y: float, standing: charts.Standing = "proven", label: str = "1") -> DataPoint:
    return DataPoint(x, y, max(0.0, y - 0.05), min(1.0, y + 0.05), standing, f"{label} at {x:g}.")


def tree(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def test_every_standing_has_a_shape_and_a_word_of_its_own() -> None:
    shapes = [re.sub(r's-\w+"', "", glyph(one)) for one in charts.WORDS]
    assert len(set(shapes)) == len(set(charts.WORDS.values())) == len(charts.WORDS) == 5


def test_accuracy_is_drawn_where_it_is() -> None:
    lines = [Series("gaussian", [point(8.0, 1.0), point(1.0, 0.5), point(0.125, 0.0)])]
    found = tree(draw_accuracy("a", "weights", lines, [], (0.125, 1.0, 8.0), ACROSS))
    way = next(one for one in found.iter("polyline") if "way" in one.get("class", ""))
    at = [tuple(map(float, pair.split(","))) for pair in way.get("points", "").split()]
    assert at[1][0] == pytest.approx((at[0][0] + at[2][0]) / 2), "a logarithmic axis"
    assert at[1][1] == pytest.approx((at[0][1] + at[2][1]) / 2)
    assert at[0][1] > at[2][1], "more accurate is higher"
    whiskers = [one.get("d", "") for one in found.iter("path") if one.get("class") == "whisker"]
    assert len(whiskers) == 3
    assert {one.text for one in found.iter("text")} >= {"weights", "gaussian", "0.125", "1", "8", "50%"}


def test_what_to_compare_with_has_no_marks_and_a_level_goes_across() -> None:
    aside = Series("DP-SGD", [point(1.0, 0.5), point(3.0, 0.6)], aside=True)
    level = ReferenceLevel("no privacy", point(1.0, 0.9, "none"))
    svg = draw_accuracy("a", "answers", [aside], [level], (1.0, 3.0), ACROSS)
    assert svg.count('class="dot"') == 1
    assert svg.count('class="level"') == svg.count('class="aside"') == 1


def test_names_of_lines_that_end_together_do_not_cover_each_other() -> None:
    lines = [Series(f"m{n}", [point(1.0, 0.02 + n / 1000)]) for n in range(9)]
    found = tree(draw_accuracy("a", "t", lines, [], (1.0,), ACROSS))
    rows = sorted(float(one.get("y", "")) for one in found.iter("text") if (one.text or "").startswith("m"))
    assert all(b - a >= 13.9 for a, b in itertools.pairwise(rows))
    assert rows[-1] <= 262


def test_a_bar_shows_its_interval_its_mark_and_what_it_has_to_beat() -> None:
    found = tree(draw_bar(point(1.0, 0.75, "refuted"), Range(0.5, 1.0, (0.5, 1.0)), 0.6))
    (mark,) = [one for one in found.iter("svg") if one is not found]
    (reach,) = [one for one in found.iter("line") if one.get("class") == "reach"]
    (level,) = [one for one in found.iter("line") if one.get("class") == "chance"]
    assert (mark.get("x"), level.get("x1")) == ("50.00%", "20.00%")
    assert float((reach.get("x1") or "")[:-1]) < 50 < float((reach.get("x2") or "")[:-1])
    assert found.findtext("title") == found.get("aria-label") != ""
    for one in (0.1, 2.0):
        assert 'class="chance"' not in draw_bar(point(1.0, 0.75), Range(0.5, 1.0, (0.5, 1.0)), one)
    assert 'class="chance"' not in draw_bar(point(1.0, 0.75), Range(0.5, 1.0, (0.5, 1.0)))


def test_figures_can_be_read_aloud() -> None:
    lines = [Series("m4", [point(0.6, 0.9, "refuted", "4")])]
    found = tree(draw_accuracy("b", "weights", lines, [], (0.6,), ACROSS))
    assert found.get("role") == "img"
    named = (found.get("aria-labelledby") or "").split()
    assert found.findtext(f"*[@id='{named[0]}']") == "weights"
    assert "4 at 0.6." in (found.findtext("desc") or "")


def test_names_are_text_and_never_markup() -> None:
    lines = [Series(HOSTILE, [point(1.0, 0.5, label=HOSTILE)])]
    for svg in (
        draw_accuracy(HOSTILE, HOSTILE, lines, [ReferenceLevel(HOSTILE, lines[0].points[0])], (1.0,), ACROSS),
        draw_bar(lines[0].points[0], ACROSS),
    ):
        tags = {one.tag for one in tree(svg).iter()}
        assert "script" not in tags
        assert "<script" not in svg

"""The figure of ROC curves: plain SVG that says which curve is which without colour."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import numpy as np

from airlock.auditing.metrics import GRID, roc, thinned
from airlock.bundle.rendering.charts import draw_roc, has_curve
from tests.bundle.conftest import ATTACK

SVG = "{http://www.w3.org/2000/svg}"


def lines(text: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(f"{SVG}polyline"))


def test_every_attack_has_a_curve_a_dash_pattern_and_a_name() -> None:
    several = [dataclasses.replace(ATTACK, name=f"attack {number}") for number in range(6)]
    text = draw_roc(several)
    drawn = lines(text)
    assert len({(line.get("class"), line.get("stroke-dasharray")) for line in drawn}) == 6
    assert len({line.get("stroke-dasharray") for line in drawn}) == 6
    assert all(one.name in text for one in several)
    assert "prefers-color-scheme: dark" in text


def test_chance_lies_on_the_diagonal_and_the_corner_is_the_corner() -> None:
    constant = thinned(roc(np.ones(2000), np.ones(2000)), 2000)
    text = draw_roc([dataclasses.replace(ATTACK, curve=constant)])
    (line,) = lines(text)
    points = [tuple(map(float, point.split(","))) for point in str(line.get("points")).split()]
    assert len(points) == len(GRID)
    diagonal = next(one for one in ET.fromstring(text).iter(f"{SVG}line") if one.get("class") == "roc-chance")
    x1, y1, x2, y2 = (float(str(diagonal.get(key))) for key in ("x1", "y1", "x2", "y2"))
    assert points[0] == (x1, y1)
    assert points[-1] == (x2, y2)
    assert all(abs((x - x1) / (x2 - x1) - (y - y1) / (y2 - y1)) < 1e-3 for x, y in points)


def test_rates_below_the_axis_stay_on_it() -> None:
    (line,) = lines(draw_roc([dataclasses.replace(ATTACK, curve=((0.001, 0.0), (1.0, 1.0)))]))
    (zero,) = lines(draw_roc([dataclasses.replace(ATTACK, curve=((0.001, 0.001), (1.0, 1.0)))]))
    assert line.get("points") == zero.get("points")


def test_names_are_escaped_and_attacks_without_a_curve_left_out() -> None:
    text = draw_roc([dataclasses.replace(ATTACK, name="<script>x</script>"), dataclasses.replace(ATTACK, curve=())])
    assert "<script" not in text
    assert len(lines(text)) == 1
    assert not has_curve([dataclasses.replace(ATTACK, curve=())])

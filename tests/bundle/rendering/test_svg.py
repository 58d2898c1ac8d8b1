"""What all figures share: axes that hold what they show, text that stays text, files that are whole."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from airlock.bundle.rendering.svg import element, figure, from_zero, label, named, polyline, span, text

HOSTILE = '"><script>alert(1)</script>'


@given(st.floats(1e-8, 1e9), st.integers(3, 12))
def test_ticks_are_round_and_reach_the_end(end: float, most: int) -> None:
    found = from_zero(end, most).ticks
    assert found[0] == 0
    assert 2 <= len(found) <= most
    assert found[-2] < end <= found[-1] * (1 + 1e-8)
    assert len({label(tick, found) for tick in found}) == len(found)


@given(st.lists(st.floats(0, 1), max_size=6))
def test_a_range_holds_its_values_and_stays_in_bounds(values: list[float]) -> None:
    found = span(values)
    assert 0 <= found.low < found.high <= 1 + 1e-9
    assert all(found.low - 1e-6 <= value <= found.high + 1e-6 for value in values)
    assert 2 <= len(found.ticks) <= 11


def test_values_lie_on_their_axis() -> None:
    across = from_zero(10.0, 6)
    assert (across.place(0.0, 50, 200), across.place(across.high, 50, 200)) == (50, 250)
    assert across.place(across.high / 2, 300, -100) == 250


def test_whatever_is_said_is_text_and_never_markup() -> None:
    parts = [
        text(1, 2, HOSTILE, fill=HOSTILE),
        named(element("circle", r=1), HOSTILE, class_=HOSTILE),
        polyline([(0, 0), (1, 1)], stroke=HOSTILE),
    ]
    for svg in (
        figure(HOSTILE, HOSTILE, (10, 10), parts),
        figure(HOSTILE, HOSTILE, (10, 10), parts, name=HOSTILE, kind=HOSTILE),
    ):
        assert "script" not in {one.tag.rpartition("}")[2] for one in ET.fromstring(svg).iter()}
        assert "<script" not in svg


def test_a_figure_of_its_own_has_a_size_and_one_in_a_page_has_names() -> None:
    alone = ET.fromstring(figure("t", "d", (10, 20), []))
    assert (alone.get("width"), alone.get("height"), alone.get("viewBox")) == ("10", "20", "0 0 10 20")
    inside = ET.fromstring(figure("t", "d", (10, 20), [], name="a", kind="chart"))
    assert (inside.get("aria-labelledby"), inside.get("class"), inside.get("width")) == ("a-t a-d", "chart", None)
    assert [one.get("id") for one in inside] == ["a-t", "a-d"]

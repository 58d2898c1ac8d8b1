"""The page of a comparison in Chromium: sorting, colours, widths, paper; nothing from elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlock.comparison.page import write_page
from tests.bundle.test_browser import browser as browser
from tests.bundle.test_browser import contrast
from tests.comparison.example import cell, cells, comparison
from tests.reading import faults

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(tmp_path_factory.mktemp("page"), comparison()).as_uri()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """The page; at the end, that nothing was complained about and nothing asked for."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    requests: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(url)
    yield opened
    assert complaints == []
    assert [request for request in requests if not request.startswith("data:")] == [url]
    opened.close()


def column(page: Any, number: int) -> list[str]:
    return page.eval_on_selector_all(
        ".sortable tbody tr", f"rows => rows.map(row => row.cells[{number}].dataset.value)"
    )


def test_the_table_is_sorted_by_mouse_and_by_keyboard(page: Any) -> None:
    page.get_by_role("heading", name="All results").click()
    heads = page.locator(".sortable thead th")
    assert heads.nth(1).get_attribute("aria-sort") == "ascending"
    button = heads.nth(2).locator("button")
    button.click()
    found = [float(value) for value in column(page, 2)]
    assert found == sorted(found)
    assert heads.nth(2).get_attribute("aria-sort") == "ascending"
    assert heads.nth(1).get_attribute("aria-sort") is None
    button.focus()
    page.keyboard.press("Enter")
    assert [float(value) for value in column(page, 2)] == sorted(found, reverse=True)
    assert heads.nth(2).get_attribute("aria-sort") == "descending"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    asked = column(page, 1)
    known = [float(value) for value in asked if value]
    assert known == sorted(known)
    assert asked[len(known) :] == [""] * (len(asked) - len(known)) != [], "what is not known stands last"
    heads.nth(0).locator("button").click()
    assert column(page, 0) == sorted(column(page, 0))


def test_colours_change_by_the_button_and_follow_the_reader_before(page: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(paper) == "rgb(16, 20, 24)"
    page.get_by_role("button", name="Light colours").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Dark colours").press("Enter")
    assert page.evaluate(paper) == "rgb(16, 20, 24)"
    assert contrast(page) >= 7
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.set_viewport_size({"width": 680, "height": 970})  # what A4 leaves between its margins
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.parametrize("folded", [False, True])
def test_nothing_overlaps_or_is_cut_off_and_all_text_stands_out(page: Any, folded: bool) -> None:
    assert faults(page, folded=folded) == {}


def test_a_long_name_is_cut_off_nowhere(browser: Any, tmp_path: Path) -> None:
    name = f"weights/{'x' * 110}"
    long = [cell("weights/gaussian", 3.0, 0, 300, 0.5).model_copy(update={"method": name, "leaves": "y" * 300})]
    opened = browser.new_page()
    opened.goto(write_page(tmp_path, comparison(cells=(*cells(), *long))).as_uri())
    assert faults(opened, folded=True) == {}
    opened.close()


MARKS = """all => all.map(one => { const box = one.getBoundingClientRect(); return [box.top, box.bottom]; })"""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_mark_covers_another_and_the_page_is_short(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    marks = sorted(page.locator(".bars").first.locator(".bar .dot").evaluate_all(MARKS))
    assert len(marks) == len({row.method for row in comparison().rows() if row.epsilon_asked in (None, 3.0)})
    assert all(above[1] <= below[0] for above, below in itertools.pairwise(marks))
    assert page.evaluate("document.documentElement.scrollHeight") < 4 * 900
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    if width == 1280:
        assert page.locator(".scroll").evaluate("node => node.scrollWidth <= node.clientWidth")
    sizes = page.eval_on_selector_all(".chart text", "all => all.map(one => one.getBoundingClientRect().height)")
    assert min(sizes) >= 10, "text in figures can be read"


def test_without_script_everything_can_be_read(browser: Any, url: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url)
    said = page.inner_text("body")
    assert "What was not tested" in said
    page.get_by_role("heading", name="All results").click()
    assert page.locator(".sortable tbody tr").count() == len(comparison().rows())
    assert page.locator("button.theme").is_hidden()
    context.close()

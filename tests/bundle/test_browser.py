"""card.html and dossier.html in Chromium: light and dark, on a phone and on a desk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airlock.bundle import Bundle, Card, Dossier, Vault
from airlock.bundle.rendering.page import keep_dossier
from airlock.bundle.reports import write as write_report
from tests.waiting import LONG

pytestmark = pytest.mark.browser
HOW = "Chromium is missing: install it with `apt install chromium`, or set AIRLOCK_REQUIRE_BROWSER=0."


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        (pytest.fail if os.environ.get("AIRLOCK_REQUIRE_BROWSER") == "1" else pytest.skip)(HOW)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        opened = playwright.chromium.launch(executable_path=chromium, args=arguments, timeout=LONG * 1000)
        for name in ("new_page", "new_context"):
            setattr(opened, name, patient(getattr(opened, name)))
        yield opened
        opened.close()


def patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Pages that wait as long as a busy machine takes; half a minute is Playwright's own choice."""

    def made(**options: Any) -> Any:
        page = make(**options)
        page.set_default_timeout(LONG * 1000)
        return page

    return made


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_card_is_readable(browser: Any, original: Bundle, scheme: str, width: int):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    url = (original.folder / "card.html").as_uri()
    page.goto(url)
    text = page.inner_text("body").replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith(original.card.headline)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [request for request in requests if not request.startswith("data:")] == [url]
    assert complaints == []
    box = page.locator("input[type=checkbox]").first
    box.check()
    assert box.is_checked()
    assert contrast(page) >= 7
    page.close()


def test_card_prints_on_a4(browser: Any, original: Bundle):
    page = browser.new_page(color_scheme="dark")
    page.goto((original.folder / "card.html").as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.locator("details pre").first.evaluate("node => node.getBoundingClientRect().height") > 0
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page.close()


def contrast(page: Any) -> float:
    """The contrast of text on paper as WCAG defines it."""
    style = "getComputedStyle(document.body)"
    values = [page.evaluate(f"{style}.{name}") for name in ("color", "backgroundColor")]
    light = sorted(map(luminance, values))
    return (light[1] + 0.05) / (light[0] + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_dossier_says_first_and_large_that_it_stays(
    browser: Any, dossier: Dossier, vault: Vault, scheme: str, width: int
):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    url = keep_dossier(vault, dossier).as_uri()
    page.goto(url)
    assert page.inner_text("body").upper().startswith("STAYS INSIDE")
    sizes = [float(page.evaluate(f"parseFloat(getComputedStyle(document.querySelector('{what}')).fontSize)"))
             for what in (".stays", "h1")]  # fmt: skip
    assert sizes[0] > sizes[1]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [request for request in requests if not request.startswith("data:")] == [url]
    assert complaints == []


@pytest.mark.parametrize("kind", ["dpia", "nist"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_document_for_others_is_readable(
    browser: Any, card: Card, dossier: Dossier, tmp_path: Path, kind: str, width: int
):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for name, inside in (("public", None), ("inside", dossier)):
        (file,) = write_report(tmp_path / f"{name}.html", kind, card, inside)
        page.goto(file.as_uri())
        text = page.inner_text("body")
        assert text.upper().startswith("STAYS INSIDE") == (inside is not None)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        shown = page.locator("tr[data-source='card:guarantee.epsilon'] td").first.inner_text()
        assert shown.splitlines()[0] == json.dumps(card.guarantee.epsilon)
        assert contrast(page) >= 7
    assert [request for request in requests if request.startswith("http")] == []
    page.close()

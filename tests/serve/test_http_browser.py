"""The pages of a service in Chromium: light and dark, on a phone and on a desk; nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airlock.bundle import make_card
from airlock.bundle.rendering.page import render_html
from airlock.config import from_table
from airlock.ledger import Spend, digest
from airlock.serve.service import Service
from tests.bundle.conftest import FACTS, guarantee, make_release, noise
from tests.bundle.test_browser import browser as browser
from tests.bundle.test_browser import contrast
from tests.reading import faults
from tests.serve.selling import Priced, make, running

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Service]]:
    config = from_table({"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4})
    card = make_card(config, FACTS, make_release(guarantee()), noise())
    service = make(tmp_path_factory.mktemp("pages"), Priced(5000))
    service = replace(service, card=render_html(card).encode(), headline=card.headline, verdict=card.verdict)
    with service.ledger, running(service) as where:
        assert service.keys is not None
        token = service.keys.add("ann", 1000)[1]
        service.ledger.spend(Spend("ann", 1, digest("x"), rows=620))
        yield where, token, service


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/budget", "/docs", "/card"])
def test_pages_are_readable(browser: Any, shop: tuple[str, str, Service], path: str, scheme: str, width: int) -> None:
    where, token, _ = shop
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        http_credentials={"username": "", "password": token},
    )
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    reply = page.goto(where + path)
    assert reply.status == 200
    assert {request for request in requests if not request.startswith("data:")} == {where + path}
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert contrast(page) >= 7
    if (scheme, width) == ("light", 390):
        assert faults(page, folded=True) == {}, "at every width, in both colours, and on paper"
    context.close()


def test_the_budget_page_says_what_is_left(browser: Any, shop: tuple[str, str, Service]) -> None:
    where, token, _ = shop
    context = browser.new_context(http_credentials={"username": "", "password": token})
    page = context.new_page()
    page.goto(f"{where}/budget")
    text = page.inner_text("body")
    assert "380 units are left" in text
    assert "620 spent" in text
    bars = [page.locator(f".meter .{name}").bounding_box()["width"] for name in ("left", "whole")]
    assert bars[0] / bars[1] == pytest.approx(0.38, abs=0.01)
    context.close()


def test_the_meter_is_live_and_says_when_it_is_not(browser: Any, shop: tuple[str, str, Service]) -> None:
    where, _, service = shop
    assert service.keys is not None
    token = service.keys.add("bob", 100)[1]
    context = browser.new_context(http_credentials={"username": "", "password": token})
    page = context.new_page()
    page.clock.install()
    page.goto(f"{where}/budget")
    assert "100 units are left" in page.inner_text("h1")
    assert service.headline in page.inner_text("main").replace("\N{NO-BREAK SPACE}", " ")
    service.ledger.spend(Spend("bob", 1, digest("y"), rows=85))
    page.clock.run_for(6000)
    page.get_by_role("heading", name="15 units are left").wait_for()
    assert page.locator("body").get_attribute("class") == "warn"
    assert "85 spent" in page.inner_text("main")
    context.set_offline(True)
    page.clock.run_for(6000)
    page.get_by_text("Not live").wait_for()
    context.close()

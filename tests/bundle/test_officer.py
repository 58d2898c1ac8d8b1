"""The first screen of card and dossier, from real releases of every channel: plain words, and nothing reassuring."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlock.bundle import Weighing, weigh
from airlock.bundle.rendering.gate_page import render_gate
from airlock.bundle.rendering.page import render_dossier, render_html
from airlock.bundle.rendering.strength import strength
from tests.bundle.previews import ABOUT, KINDS, small
from tests.bundle.test_browser import browser as browser
from tests.reading import faults, jargon, shown

pytestmark = pytest.mark.filterwarnings("ignore")
PAGES = [(kind, which) for kind in KINDS for which in ("card", "dossier")]


def weighed(kind: str) -> Weighing:
    return weigh(small(kind).card, (), small(kind).dossier)


def page_of(kind: str, which: str) -> str:
    made = small(kind)
    if which == "gate":
        return render_gate(weighed(kind), made.card, f"out/{kind}")
    return render_html(made.card) if which == "card" else render_dossier(made.dossier)


@pytest.mark.parametrize(("kind", "which"), PAGES)
def test_the_first_screen_has_no_word_of_the_trade(kind: str, which: str) -> None:
    page = page_of(kind, which)
    assert jargon(shown(page)) == []
    assert "<details>" in page


def test_every_channel_is_among_them() -> None:
    assert {table["channel"] for table in KINDS.values()} == {"weights", "twin", "student", "features", "answers"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_proven_strong_and_whole_is_green(kind: str) -> None:
    card = small(kind).card
    level = strength(card.guarantee.epsilon or 99.0, card.guarantee.delta).level
    whole = card.verdict == "proven" and level == "strong" and not card.uncovered
    for which in ("card", "dossier"):
        page = page_of(kind, which)
        (state,) = re.findall(r'<body class="(\w+)">', page)
        assert (state == "proven") == whole
        if card.guarantee.epsilon is not None and card.guarantee.epsilon > 7:
            assert state == "weak"
            assert '<circle cx="24"' not in page, "no tick"
            assert "Very weak" in shown(page)
    assert whole == (kind in ("strong", "answers"))


@pytest.mark.parametrize(("kind", "which"), PAGES)
def test_the_page_says_what_to_know_what_to_ask_and_where_to_sign(kind: str, which: str) -> None:
    page, card = page_of(kind, which), small(kind).card
    said = shown(page)
    know, ask, sign = (said.index(word) for word in ("Know what leaves", "Ask about the", "Sign at the end"))
    assert know < ask < sign < said.index("What leaves")
    assert f"{len(card.guarantee.assumptions) + 1} sentences that no program can check" in said
    for line in card.guarantee.assumptions:
        assert line in said.replace("&#39;", "'")
    for target in ("ask", "sign"):
        assert page.count(f'id="{target}"') == page.count(f'href="#{target}"') == 1
    declared = kind == "strong"
    assert ("not declared" in said) != declared
    assert all(text in said for text in ABOUT.values()) == declared
    assert "airlock approve" in said


def test_figures_that_are_folded_are_all_there() -> None:
    page = page_of("weights", "card")
    assert "(recall)" not in shown(page)
    assert page.count("(recall)") > 1
    assert "Poisson" not in shown(page)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gates_page_says_the_verdict_then_what_to_know_ask_and_sign(kind: str) -> None:
    page = page_of(kind, "gate")
    weighing, said = weighed(kind), shown(page)
    assert jargon(said) == []
    assert said.lstrip().startswith("Stays inside")
    order = ["Open:" if weighing.open else "Closed:", "What you have to know", "What you have to ask", "Where you sign"]
    assert [said.index(words) for words in order] == sorted(said.index(words) for words in order)
    assert weighing.open == (kind != "unproven")
    plain = html.unescape(page).replace("\N{NO-BREAK SPACE}", " ")
    for line in (*weighing.reject, *weighing.caution, *weighing.release):
        assert line in plain
    (state,) = re.findall(r'<body class="(\w+)">', page)
    assert state != "proven", "there is always something to ask"


def test_a_gate_that_nothing_speaks_against_is_green_and_one_without_a_card_is_not() -> None:
    card = small("strong").card
    fine = Weighing((), (), ("The bundle verifies.",))
    assert '<body class="proven">' in render_gate(fine, card, "b")
    assert '<body class="weak">' in render_gate(fine, small("weights").card, "b")
    broken = render_gate(Weighing(("There is no card.",), (), ()), None, "<b> x")
    assert '<body class="unproven">' in broken
    assert "<b> x" not in broken
    assert "Where you sign" not in broken


@pytest.mark.browser
@pytest.mark.parametrize(("kind", "which"), [*PAGES, *((kind, "gate") for kind in KINDS)])
def test_nothing_overlaps_is_cut_off_or_fades(browser: Any, tmp_path: Path, kind: str, which: str) -> None:
    place = tmp_path / "page.html"
    place.write_text(page_of(kind, which), encoding="utf-8")
    page = browser.new_page()
    page.goto(place.as_uri())
    assert faults(page, folded=True) == {}
    if kind == "features":  # what is folded takes no room
        page.goto(place.as_uri())
        assert faults(page) == {}
    page.close()


BAD = """<!doctype html><body style="margin: 0; background: rgb(255, 255, 255); color: rgb(0, 0, 0)">
<p style="color: rgb(190, 190, 190)">pale</p>
<p style="position: absolute; top: 90px; margin: 0">first line of text</p>
<p style="position: absolute; top: 92px; margin: 0">second line of text</p>
<p style="white-space: nowrap; width: 3000px; text-align: right">far right</p>
<details><summary>fold</summary><p style="color: rgb(255, 255, 254)">hidden until opened</p></details>
"""


@pytest.fixture
def bad(browser: Any, tmp_path: Path) -> Iterator[Any]:
    place = tmp_path / "bad.html"
    place.write_text(BAD, encoding="utf-8")
    page = browser.new_page()
    page.goto(place.as_uri())
    yield page
    page.close()


@pytest.mark.browser
def test_the_judge_finds_what_is_wrong(bad: Any) -> None:
    first, opened = faults(bad), faults(bad, folded=True)
    assert len(first) == 5, "every width, both colours, and paper"
    for told in first.values():
        said = " ".join(told)
        for words in (
            "contrast 1.8",
            "pale",
            'overlap: "first line of text" and "second',
            "cut off: far right",
            "wider",
        ):
            assert words in said
        assert "hidden until opened" not in said
    assert all("hidden until opened" in " ".join(told) for told in opened.values())


def test_jargon_is_found() -> None:
    assert jargon("Lots of it, by dropout, with ChaCha20: the thing itself.") == [
        "Lots", "dropout", "ChaCha", "the thing itself",
    ]  # fmt: skip
    assert jargon("right 55% of the time (50% to 60%; AUC), how often it is right (AUC)") == []
    assert jargon("AUC 0.55") == ["AUC 0.55"]
    closed = "<details><summary>b</summary><p>c</p><details open><p>d</p></details></details>"
    assert shown(f"<p>a</p>{closed}<details open>e</details>").split() == ["a", "b", "e"]

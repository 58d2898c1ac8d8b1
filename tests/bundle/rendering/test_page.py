"""The page and the model card: nothing acts that should only be read."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from airlock.auditing import Audit
from airlock.bundle import Bundle, Card, make_card
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.rendering.page import render_dossier, render_html, render_readme, scale
from airlock.config import ReleaseConfig
from airlock.methods.contract import Release
from tests.bundle.conftest import ATTACK, AUDIT, FACTS, INSIDE, noise

HOSTILE = "<script>alert(1)</script> **bold** | [x](http://x) `code`\n# heading"


@pytest.fixture(scope="module")
def hostile(config: ReleaseConfig, release: Release) -> Card:
    facts = dataclasses.replace(FACTS, name=HOSTILE, origin=HOSTILE)
    plan = dataclasses.replace(release.plan, leaves=HOSTILE, details={HOSTILE: HOSTILE})
    return make_card(config, facts, dataclasses.replace(release, plan=plan), noise())


class Tags(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "action")]


def test_page_needs_no_script_and_no_network(original: Bundle):
    tags = Tags()
    tags.feed(render_html(original.card))
    assert "script" not in tags.tags
    assert [link for link in tags.links if not link.startswith("#")] == ["data:,"]
    assert "url(" not in render_html(original.card)


def test_every_value_is_escaped(hostile: Card):
    tags = Tags()
    tags.feed(render_html(hostile))
    assert "script" not in tags.tags
    assert "&lt;script&gt;" in render_html(hostile)


def test_page_has_a_tick_box_for_each_assumption_and_a_place_to_sign(original: Bundle):
    html = render_html(original.card)
    assert html.count('type="checkbox"') == len(original.card.guarantee.assumptions) + 1
    assert html.count('type="radio"') == 3
    for word in ("Approve with conditions", "Signature", "What attacks found", original.card.release_id):
        assert word in html


def test_rendering_is_a_pure_function(original: Bundle):
    again = Card.model_validate_json(original.card.to_json())
    assert render_html(again) == render_html(original.card)
    assert render_readme(again) == render_readme(original.card)


def test_model_card_has_front_matter_that_hubs_read(original: Bundle):
    _, front, body = render_readme(original.card).split("---\n", 2)
    for line in ("license: other", "library_name: airlock", "- differential-privacy", "- accuracy", "model-index:"):
        assert line in front
    assert body.lstrip().startswith(f"**{original.card.headline}**".replace("_", "\\_"))


def test_front_matter_and_text_of_a_model_card_cannot_be_broken_out_of(hostile: Card):
    _, front, body = render_readme(hostile).split("---\n", 2)
    assert all(line.startswith(("-", " ")) or ": " in line or line.endswith(":") for line in front.splitlines())
    prose = re.sub(r"```.*?```", "", body, flags=re.S)
    assert not set("<>") & set(front + prose)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in prose
    assert "`code`" not in front
    name = re.search(r"^      name: (.*)$", front, flags=re.M)
    assert name is not None
    assert json.loads(name[1]) == HOSTILE
    assert "\n# heading" not in prose


def test_snippets_in_the_model_card_run(original: Bundle, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(original.folder)
    snippets = re.findall(r"```python\n(.*?)```", render_readme(original.card), flags=re.S)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})


def test_scale_is_clamped():
    at = scale(0.9, -1.0, 2.0, 0.5)
    assert (at.point, at.low, at.high, at.mark) == (90.0, 0.0, 100.0, 50.0)


def words_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_what_attackers_find_is_said_in_plain_words_or_why_not(card: Card, release: Release):
    text = words_of(told(card, release, dataclasses.replace(AUDIT, attacks=(ATTACK,))))
    assert "it finds 0.12% of those who were (0.03% to 0.32%). Guessing finds 0.1%." in text
    assert "it is right 50.5% of the time, where a coin is right 50%" in text
    assert "attacks were made" not in text
    for single in ("0.81", "rank correlation"):  # in dossier.json, not on the page
        assert single not in text


def told(card: Card, release: Release, audit: Audit) -> str:
    return render_dossier(make_dossier(card, release, audit))


def test_the_card_says_nothing_that_is_not_paid_for(card: Card, release: Release):
    for text in (card.to_json(), render_html(card), render_readme(card)):
        for single in ("0.5123", "loss threshold", "gradient norm", "0.456"):
            assert single not in text, single
    assert "This card and its bundle may leave" in render_html(card)


def test_a_figure_that_is_refused_says_why(card: Card, release: Release):
    refused = dataclasses.replace(ATTACK.rates[0], value=None, low=None, high=None, refused="No figure: too few.")
    audit = dataclasses.replace(AUDIT, attacks=(dataclasses.replace(INSIDE, rates=(refused,)),))
    text = words_of(told(card, release, audit))
    assert "of those who were not used: No figure: too few." in text
    assert "The attacker holds the model with all its weights." in text


def test_of_several_attacks_the_one_that_came_furthest_is_told_in_full(card: Card, release: Release):
    strong = dataclasses.replace(ATTACK, name="strong one", value=0.8, low=0.7, high=0.9, question="Strong?")
    weak = dataclasses.replace(INSIDE, name="weak one", value=0.5, low=0.4, high=0.6, question="Weak?")
    text = words_of(told(card, release, dataclasses.replace(AUDIT, attacks=(weak, strong))))
    assert "2 attacks were made, and 1 did better than chance: strong one." in text
    assert "Strong?" in text
    assert "Weak?" not in text
    assert text.count("weak one") == 1

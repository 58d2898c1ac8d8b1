"""The page: what is said first, what is kept apart, and nothing that acts except its own script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airlock.bundle.rendering.page import allow_script
from airlock.comparison.page import (
    NAME,
    NOTES,
    Comparison,
    accuracy_figures,
    gaps,
    lines,
    need_words,
    render,
    untried,
    write_page,
)
from airlock.comparison.values import PUBLIC, Advice, ComparedData, Need
from tests.bundle.rendering.test_page import Tags
from tests.comparison.example import attacked, cell, cells, comparison

OWN = ComparedData(name="wards", records=900, classes=("a", "b"), shape=(3,))
PEOPLE = OWN.model_copy(update={"people": 300})
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def html() -> str:
    return render(comparison())


def text(html: str) -> str:
    body = re.sub(r"<(script|svg|style).*?</\1>", " ", html, flags=re.S).replace("\N{NO-BREAK SPACE}", " ")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_the_choice_stands_first_and_then_that_it_must_stay_inside() -> None:
    found = comparison(data=OWN)
    said = text(render(found).partition("<h1>")[2])
    assert said.lstrip().replace(" ,", ",").startswith(found.advice.sentence)
    order = ["Keep inside", *NOTES, "Three choices", "How accurate each method is", "Why this one"]
    assert [said.index(words) for words in order] == sorted(said.index(words) for words in order)


def test_where_people_are_protected_the_page_speaks_of_people() -> None:
    said = text(render(comparison(data=PEOPLE)))
    assert "whether any one person" in said
    assert "900 records of 300 people (public figures)" in said
    assert "Of two people, one used and one not" in said
    assert "one person" not in text(render(comparison(data=OWN)))


def test_public_records_may_be_shown(html: str) -> None:
    said = text(html)
    assert "digits is a public set of records" in said
    assert "Keep inside" not in said
    assert NOTES[1] in said


def test_where_nothing_may_be_chosen_the_page_says_so_and_is_not_green() -> None:
    none = Advice(method=None, epsilon=None, sentence="Nothing fits.", ranking=(), measured=False)
    html = render(comparison(advice=none))
    assert '<body class="unproven">' in html
    assert "Nothing fits." in html


def test_no_claim_stands_in_the_column_of_proofs(html: str) -> None:
    table = html.partition('class="sortable"')[2]
    rows = re.findall(r"<tr.*?</tr>", table.partition("<tbody>")[2].partition("</tbody>")[0], re.S)
    assert len(rows) == len(comparison().rows())
    published = [row for row in rows if "weights/published" in row]
    assert len(published) == 3
    for row in published:
        assert "no bound" in row
        assert "refuted" in row
        assert "above 2.70 where it says 1" in text(row)
    assert sum('class="chosen"' in row for row in rows) == 1


def test_rows_are_grouped_by_epsilon_and_those_without_one_stand_last() -> None:
    shown = [(line.row.epsilon_asked, line.row.accuracy) for line in lines(comparison())]
    known = [one for one in shown if one[0] is not None]
    assert shown[: len(known)] == known == sorted(known, key=lambda one: (one[0], -one[1]))


def test_everything_that_was_not_tested_is_listed(html: str) -> None:
    found = {gap.what: gap.reason for gap in gaps(comparison())}
    assert found["student/ensemble"].startswith("Expected public records")
    assert "twin/sharded at ε = 1" in found
    assert "answers/per-query at ε = 8, seed 0 failed" in found
    assert (
        found["student/published, seed 1"] == found["answers/per-query, trial before the court"] == "The time was over."
    )
    assert found["student/published, trial before the court"] == "No trial was made."
    (attack,) = untried(comparison().cells)
    assert (attack.what, attack.reason[:4]) == ("every method", "LiRA")
    found[attack.what] = attack.reason
    for what, reason in found.items():
        assert what in text(html)
        assert reason in text(html)


def test_the_public_records_alone_are_a_level_in_every_panel_and_no_way_out() -> None:
    alone = cell(PUBLIC, None, 0, 330, 0.5, "proven", epsilon=0.0, attacks=(), not_tested=(), epsilon_measured=None)
    found = comparison(cells=(*cells(), alone))
    assert [gap.what for gap in gaps(found)] == [gap.what for gap in gaps(comparison())]
    assert untried(found.cells) == untried(comparison().cells)
    figures = accuracy_figures(found, lines(found))
    assert len(figures) == 3
    assert all(figure.count("public alone") >= 1 and figure.count('class="level"') >= 2 for figure in figures)
    assert "public alone" in text(render(found))


def test_every_channel_has_its_own_scale() -> None:
    poor = cell("answers/per-query", 1.0, 0, 4, 0.5)
    found = comparison(cells=(*(one for one in cells() if one.channel != "answers"), poor))
    weights, _, answers = accuracy_figures(found, lines(found))
    assert ">0%<" in answers
    assert ">0%<" not in weights


def test_names_are_text_wherever_they_stand() -> None:
    name = f"weights/{HOSTILE}"
    hostile = cell("weights/gaussian", 1.0, 0, 300, 0.5).model_copy(
        update={"method": name, "channel": HOSTILE, "leaves": HOSTILE, "error": None, "not_tested": (HOSTILE,)}
    )
    found = comparison(data=OWN.model_copy(update={"name": HOSTILE}), cells=(hostile,))
    tags = Tags()
    tags.feed(render(found))
    assert tags.tags.count("script") == 1
    assert tags.links == ["data:,"]


def test_the_policy_allows_the_page_its_own_script_and_no_other(html: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    assert "default-src 'none'" in policy
    assert allow_script(script) in policy
    assert "connect-src" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_a_comparison_without_any_result_has_a_page(tmp_path: Path) -> None:
    empty: Comparison = comparison(cells=(), court=())
    place = write_page(tmp_path, empty)
    assert place.name == NAME
    assert "No run has finished" in place.read_text(encoding="utf-8")
    assert place.stat().st_mode & 0o077 == 0


def test_attacks_with_another_aim_are_told_too() -> None:
    inverted = attacked(0.31).model_copy(update={"name": "inversion by a network", "aim": "inversion", "score": "SSIM"})
    one = cell("weights/gaussian", 1.0, 0, 300, 0.5, attacks=(inverted,))
    said = text(render(comparison(cells=(one,))))
    assert "Inversion inversion by a network: SSIM 0.31 (0.27 to 0.35), by chance 0.5" in said
    assert "What attacks find" not in said, "no membership attack, no figure of it"


def test_the_need_in_words() -> None:
    assert need_words(Need()) == "The stated need: nothing was said about who receives it; it may run anywhere."
    assert need_words(Need(epsilon=3.0)).endswith("; ε = 3.")
    assert "at least 1,000 questions" in need_words(Need(receives="black-box", queries=1000, public=False))


def test_methods_that_tie_at_the_share_of_the_largest_class_are_named() -> None:
    """However high their accuracy: nine methods at 98% of which the largest class has 98% are no choice."""
    made = tuple(
        cell("weights/gaussian", epsilon, 0, 353, 0.5, majority=353 / 360, balanced_accuracy=0.5, use=use)
        for epsilon, use in ((1.0, "useless"), (8.0, "better"))
    )
    found = comparison(cells=made, data=OWN)
    said = found.no_better()
    assert said.startswith(
        "No better than blind guessing, which is right 98.1% of the time: weights/gaussian at ε = 1."
    )
    assert "ε = 8" not in said
    assert "No better than blind guessing" in render(found)
    assert comparison().no_better() == ""

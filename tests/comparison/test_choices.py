"""Three choices: the most accurate, the smallest that keeps what makes it useful, the fastest; and what each costs."""

from __future__ import annotations

from typing import Any

import pytest

from airlock.bundle.rendering.page import percent
from airlock.comparison.cell import _answer_milliseconds
from airlock.comparison.choices import FASTEST, NO_FIGURE, SMALLEST, choices
from airlock.comparison.page import chart_epsilon, render, state
from airlock.comparison.values import Advice, Ranked, Row
from tests.bundle.conftest import guarantee, make_release
from tests.comparison.example import comparison
from tests.reading import jargon, shown


def row(method: str, accuracy: float, size: int, time: float | None, **more: Any) -> Row:
    given: dict[str, Any] = {
        "method": method, "channel": "weights", "title": method, "status": "proven", "epsilon_asked": 3.0,
        "epsilon": 2.99, "claim_epsilon": None, "seeds": 1, "accuracy": accuracy, "low": accuracy - 0.02,
        "high": min(1.0, accuracy + 0.02), "lowest": accuracy, "highest": accuracy, "auc": None,
        "epsilon_measured": None, "seconds": 1.0, "bytes": size, "parameters": size // 4, "queries": None,
        "answer_milliseconds": time,
    }  # fmt: skip
    return Row(**(given | more))


def advice(*methods: str) -> Advice:
    ranking = tuple(
        Ranked(method=one, channel="weights", title=one, status="proven", recommended=True, reason="Proven.")
        for one in methods
    )
    return Advice(method=methods[0], epsilon=3.0, sentence="That one.", ranking=ranking, measured=True)


def test_each_choice_says_why_and_what_it_costs() -> None:
    rows = [row("a/best", 0.98, 98_000, 0.9), row("a/small", 0.95, 22_000, 0.5), row("a/fast", 0.94, 30_000, 0.05)]
    best, small, fast = choices(advice("a/best", "a/small", "a/fast"), rows, 10)
    assert (best.method, best.advised) == ("a/best", True)
    assert "The most accurate of 3 that fit" in best.why
    assert (small.title, small.method, small.figure) == (SMALLEST, "a/small", "22.0 kB")
    assert small.why == "Instead of 98.0 kB for a/best; 95.0% right, 3.0 points less."
    assert (fast.title, fast.method, fast.figure) == (FASTEST, "a/fast", "0.05 ms an answer")
    assert "4.0 points less" in fast.why


def test_what_is_small_and_useless_is_no_choice_and_neither_is_what_may_not_be_recommended() -> None:
    """40% on ten classes gives up more than half of what the best gains over guessing, whatever it weighs."""
    rows = [
        row("a/best", 0.98, 98_000, 0.9),
        row("a/tiny", 0.40, 10, 0.01),
        row("a/claimed", 0.99, 10, 0.01),
        row("a/other", 0.97, 20, 0.02, epsilon_asked=8.0),
        row("a/blind", 0.975, 5, 0.001, no_better=True),
    ]
    found = choices(advice("a/best", "a/tiny", "a/other", "a/blind"), rows, 10)
    assert [one.method for one in found] == ["a/best"] * 3
    assert found[1].why.startswith("The best one: no other is smaller")
    assert found[2].why.startswith("The best one: no other is faster")


def test_two_timings_of_one_network_do_not_decide() -> None:
    rows = [row("a/exact", 0.98, 10, 0.052), row("a/same", 0.97, 10, 0.050)]
    assert [one.method for one in choices(advice("a/same", "a/exact"), rows, 10)] == ["a/exact"] * 3


def test_answers_alone_have_no_size_and_no_time() -> None:
    rows = [row("answers/per-query", 0.9, 0, None, parameters=None)]
    best, small, fast = choices(advice("answers/per-query"), rows, 10)
    assert best.why == "The only method that fits."
    assert (small.method, small.why, fast.method) == (None, NO_FIGURE, None)


def test_without_a_result_there_is_no_choice() -> None:
    assert choices(advice("a/best"), [], 10) == ()
    nothing = Advice(method=None, epsilon=None, sentence="Nothing fits.", ranking=(), measured=False)
    assert choices(nothing, [row("a/best", 0.9, 1, 1.0)], 10) == ()
    page = shown(render(comparison(advice=nothing, cells=())))
    assert "no proven method that fits has a result" in page
    assert chart_epsilon(comparison(advice=nothing)) == 3.0


@pytest.mark.parametrize(("epsilon", "mark"), [(1.0, "proven"), (3.0, "limited"), (8.0, "weak")])
def test_the_frame_follows_what_the_chosen_epsilon_promises(epsilon: float, mark: str) -> None:
    found = comparison(advice=comparison().advice.model_copy(update={"epsilon": epsilon}))
    assert state(found) == mark
    assert f'<body class="{mark}">' in render(found)


def test_the_first_screen_has_the_choices_one_chart_and_no_jargon() -> None:
    page = render(comparison())
    said = shown(page)
    assert jargon(said) == []
    assert "Clopper" not in said
    for row_ in comparison().rows():
        if row_.epsilon_asked in (None, 3.0):
            assert percent(row_.accuracy) in said
    assert page.count("<section>") == 2
    assert "weights/gaussian claims" not in said, "folded"


def test_one_answer_is_timed_where_a_network_leaves() -> None:
    timed = _answer_milliseconds(make_release(guarantee()).artefact)
    assert timed is not None
    assert timed >= 0

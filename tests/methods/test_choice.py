"""A config without a method means what `advise` would choose from public facts; nothing else changes its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airlock import data, methods
from airlock.bundle.rendering.text import CHOSEN
from airlock.comparison.advise import advise
from airlock.comparison.settings import from_table as compared
from airlock.config import from_table
from airlock.pipeline import make_release, plan_release

DIGITS: dict[str, Any] = {"data": "digits", "epsilon": 1.0, "delta": 1e-4}


def planned(channel: str, **more: object) -> str:
    return plan_release(from_table({**DIGITS, "channel": channel, **more})).method


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
def test_the_method_left_out_is_the_one_that_is_advised() -> None:
    advised = advise(compared({"data": "digits", "epsilons": [1.0], "delta": 1e-4}))
    best: dict[str, str] = {}
    for one in advised.ranking:
        if one.recommended:
            best.setdefault(one.channel, one.method)
    assert best["weights"] == "weights/head"
    for channel, name in best.items():
        assert f"{channel}/{planned(channel)}" == name


@pytest.mark.parametrize(
    "more", [{"net": "linear"}, {"settings": {"steps": 2}}, {"tune": {"search": {"settings.steps": [2, 3]}}}]
)
def test_whoever_names_a_network_settings_or_a_search_means_plain_dp_sgd(more: dict[str, object]) -> None:
    assert planned("weights", **more) == "gaussian"


def test_a_method_that_is_named_is_taken() -> None:
    assert planned("weights", method="gaussian") == "gaussian"
    assert not methods.is_free(from_table({**DIGITS, "channel": "weights", "method": "gaussian"}))


def test_what_cannot_protect_the_unit_is_not_chosen(tmp_path: Path) -> None:
    file = tmp_path / "visits.csv"
    file.write_text("who,age,sick\na,1,no\n", encoding="utf-8")
    declared = {"source": str(file), "label": "sick", "classes": ["no", "yes"], "records": 2000, "person": "who",
                "people": 500, "columns": {"age": {"min": 0, "max": 110}}}  # fmt: skip
    for channel in ("weights", "answers"):
        config = from_table({**DIGITS, "data": declared, "channel": channel})
        assert "person" in type(methods.build(config, data.describe(config))).units


def test_a_table_is_not_advised_answers_from_a_head_before_the_additive_model(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("age,sick\n1,no\n", encoding="utf-8")
    table = {"source": str(file), "label": "sick", "classes": ["no", "yes"], "records": 2000,
             "columns": {"age": {"min": 0, "max": 110}}}  # fmt: skip
    order = [one.method for one in advise(compared({"data": table, "epsilons": [1.0], "delta": 1e-5})).ranking]
    assert order[0] == "weights/head"
    assert order.index("weights/head") < order.index("answers/head")


def test_the_card_says_that_the_method_was_chosen_and_the_bundle_names_it(tmp_path: Path) -> None:
    asked = from_table({**DIGITS, "channel": "answers"})
    made = make_release(asked, tmp_path / "out", vault=tmp_path / "vault", insecure_seed=1)
    card = made.bundle.card
    assert (card.method, card.tuning.chosen) == ("head", True)
    assert card.words.tuning.startswith(CHOSEN)
    assert 'method = "head"' in (tmp_path / "out/config.toml").read_text(encoding="utf-8")

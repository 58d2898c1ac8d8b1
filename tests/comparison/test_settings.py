"""What is compared: three lines are enough, and a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from airlock.comparison.settings import NAMES, CompareConfig, from_table, load
from airlock.comparison.values import BASELINE
from airlock.errors import AirlockWarning, ConfigError

LEAST: dict[str, object] = {"data": "digits", "epsilons": [1.0, 3.0], "delta": 1e-4}


def test_three_lines_are_a_complete_config(tmp_path: Path) -> None:
    place = tmp_path / "compare.toml"
    place.write_text('data = "digits"\nepsilons = [1.0, 3]\ndelta = 1e-4\n', encoding="utf-8")
    config = load(place, {"settings.weights/gaussian": {"steps": 20}})
    assert (config.epsilons, config.seeds, config.minutes) == ((1.0, 3.0), (0, 1, 2), None)
    assert config.release("weights/gaussian", 3.0, 2).settings == {"steps": 20}
    assert config.release("weights/gaussian", 3.0, 2).seed == 2


def test_seeds_are_counted_or_named_and_quick_takes_one() -> None:
    assert from_table(LEAST | {"seeds": 2}).seeds == (0, 1)
    named = from_table(LEAST | {"seeds": [7, 5]})
    assert named.seeds == (7, 5)
    assert named.quick().seeds == (7,)
    assert named.quick().court_seconds < named.court_seconds


def test_own_data_lie_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,y\n", encoding="utf-8")
    assert from_table(LEAST | {"data": "mine.csv"}, folder=tmp_path).data.source == str(tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": 1.0}, "'epsilons'"),
        ({"epsilons": []}, "epsilons"),
        ({"epsilons": [1.0, 1.0]}, "twice"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": True}, "seeds"),
        ({"methods": ["weights/gausian"]}, "Did you mean 'weights/gaussian'?"),
        ({"methods": ["answers/savings"]}, 'Use method = "votes"'),
        ({"settings": {"answers/savings": {"unsure": 2}}}, 'Use method = "votes"'),
        ({"settings": {"weights": {}}}, "settings"),
        ({"settings": {"baseline": {"epoch": 3}}}, "settings.baseline.epoch"),
        ({"nets": {"student": "mlp"}}, "nets"),
        ({"need": {"receives": "grey-box"}}, "need.receives"),
        ({"minutes": 0}, "minutes"),
    ],
)
def test_a_mistake_is_named(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        from_table(LEAST | wrong)


def test_an_old_name_of_a_method_stands_for_the_new_one_and_is_said() -> None:
    given = {"methods": ["answers/poll", "twin"], "settings": {"answers/poll": {"queries": 5}}}
    with pytest.warns(AirlockWarning, match="'answers/poll' is now called 'answers/votes'") as told:
        config = from_table(LEAST | given, {"nets.answers/poll": "auto"})
    assert len(told) == 1
    assert config.methods == ("answers/votes", "twin")
    assert config.settings == {"answers/votes": {"queries": 5}}
    assert config.nets == {"answers/votes": "auto"}
    both = {"settings": {"answers/poll": {"queries": 5}, "answers/votes": {"queries": 6}}}
    with pytest.warns(AirlockWarning), pytest.raises(ConfigError, match="found both"):
        from_table(LEAST | both)


def test_a_channel_stands_for_all_its_methods() -> None:
    assert isinstance(from_table(LEAST | {"methods": ["weights", "baseline"]}), CompareConfig)
    assert "weights/gaussian" in NAMES


def test_keys_that_contradict_each_other_are_said_to() -> None:
    with pytest.raises(
        ConfigError, match=r"keys that go together, found a combination that does not\. need\.epsilon must be one"
    ):
        from_table({"data": "digits", "epsilons": [1.0], "delta": 1e-4, "need": {"epsilon": 3.0}})


def test_every_comparison_in_runs_can_be_read() -> None:
    files = sorted((Path(__file__).resolve().parents[2] / "runs").glob("compare-*.toml"))
    assert len(files) >= 2
    for file in files:
        found = load(file)
        assert found.need.epsilon in found.epsilons
        assert set(found.settings) <= {*NAMES, BASELINE}

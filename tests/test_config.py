"""TOML in, ReleaseConfig out; every mistake with a message that helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.config import Column, ReleaseConfig, from_table, load, parse
from airlock.errors import ConfigError

FIVE = {"channel": "weights", "method": "gaussian", "data": "digits", "epsilon": 3.0, "delta": 1e-4}


def test_five_lines_are_a_complete_config(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('channel = "weights"\nmethod = "gaussian"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n')
    config = load(path)
    assert config == from_table(FIVE)
    assert config.data.source == "digits"
    assert config.tuning_runs == 1


def test_the_method_may_be_left_out() -> None:
    assert from_table({k: v for k, v in FIVE.items() if k != "method"}).method is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilom": 1.0}, ["epsilom", "Did you mean 'epsilon'"]),
        ({"epsilon": -1.0}, ["epsilon", "-1.0", "greater than 0"]),
        ({"epsilon": float("nan")}, ["epsilon", "nan"]),
        ({"epsilon": float("inf")}, ["epsilon", "inf"]),
        ({"epsilon": "three"}, ["epsilon", "three"]),
        ({"delta": 1.0}, ["delta", "less than 1"]),
        ({"delta": 0.0}, ["delta", "greater than 0"]),
        ({"seed": -1}, ["seed"]),
        ({"tuning_runs": 0}, ["tuning_runs"]),
        ({"device": "tpu"}, ["device", "tpu"]),
        ({"split": {"tset": 0.1}}, ["split.tset", "Did you mean 'test'"]),
        ({"split": {"test": 0.6, "holdout": 0.5}}, ["split", "less than 1"]),
        ({"data": {"source": "x.csv", "lable": "y"}}, ["data.lable", "Did you mean 'label'"]),
        ({"data": {"source": "x.csv", "columns": {"age": {"min": 3, "max": 1}}}}, ["age", "min < max"]),
        ({"data": {"source": "x.csv", "columns": {"age": {"min": 3}}}}, ["age", "either min and max"]),
        ({"data": {"source": "x.csv", "columns": {"age": {"mni": 3}}}}, ["mni"]),
    ],
)
def test_a_mistake_is_named(change: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_table({**FIVE, **change})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("key", ["channel", "data", "epsilon", "delta"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}'"):
        from_table({k: v for k, v in FIVE.items() if k != key})


def test_overrides_reach_nested_tables_and_turn_a_named_source_into_a_table() -> None:
    config = from_table(FIVE, {"settings.steps": 7, "epsilon": 1.0, "data.records": 100})
    assert config.settings == {"steps": 7}
    assert config.epsilon == 1.0
    assert (config.data.source, config.data.records) == ("digits", 100)


def test_an_override_below_a_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        from_table(FIVE, {"epsilon.x": 1})


def test_a_relative_path_is_taken_from_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n")
    path = tmp_path / "c.toml"
    path.write_text('channel = "weights"\ndata = "x.csv"\nepsilon = 1.0\ndelta = 1e-5\n')
    assert load(path).data.source == str(tmp_path / "x.csv")


@pytest.mark.parametrize("content", [b"channel = ", b"\xff\xfe", b"epsilon = 1\nepsilon = 2\n"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing at"):
        load(tmp_path / "none.toml")


def test_columns_may_be_a_list_of_categories() -> None:
    config = from_table({**FIVE, "data": {"source": "x.csv", "columns": {"sex": ["f", "m"]}}})
    assert config.data.columns["sex"] == Column(categories=("f", "m"))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*ReleaseConfig.model_fields, "x"]), json_like))
def test_any_table_gives_a_config_or_a_config_error(table: dict[str, object]) -> None:
    try:
        config = parse(ReleaseConfig, table)
    except ConfigError as error:
        assert str(error).startswith("Expected ")
    else:
        assert config.epsilon > 0
        assert 0 < config.delta < 1

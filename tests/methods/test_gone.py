"""Methods that are no longer there: whoever asks for one is told what to use instead."""

from __future__ import annotations

import re

import pytest

from airlock import methods
from airlock.config import from_table
from airlock.errors import ConfigError
from airlock.methods import GONE, METHODS

TABLE = {"data": "digits", "epsilon": 1.0, "delta": 1e-5}


@pytest.mark.parametrize("name", GONE)
def test_a_config_with_a_method_that_is_gone_is_told_its_successor(name: str) -> None:
    channel, _, method = name.partition("/")
    with pytest.raises(ConfigError, match=re.escape(GONE[name])) as caught:
        methods.find(from_table({**TABLE, "channel": channel, "method": method}))
    assert f"'{name}'" in caught.value.found
    with pytest.raises(ConfigError, match=re.escape(GONE[name])):
        methods.open_case(name, 1.0, 1e-5)


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_not_there_and_its_successors_are(name: str) -> None:
    channel, _, method = name.partition("/")
    assert method not in METHODS[channel]
    named = re.findall(r'"([a-z-]+)"', GONE[name])
    assert named
    assert set(named) <= set(METHODS[channel])

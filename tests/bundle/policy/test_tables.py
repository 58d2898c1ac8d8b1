"""The policy as a file: what is printed is read back, every key is documented, and a mistake is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from airlock.auditing.metrics import FEWEST_NON_MEMBERS
from airlock.auditing.required_attacks import ATTACKS
from airlock.bundle.policy import Policy, changes, load, to_toml
from airlock.bundle.policy.tables import RequiredAttacks
from airlock.bundle.rendering.strength import CAUTION_EPSILON, LARGEST_EPSILON
from airlock.config import described, parse
from airlock.errors import ConfigError
from airlock.methods.contract import KINDS


def tables(model: type[BaseModel] = Policy) -> list[type[BaseModel]]:
    inner = [info.annotation for info in model.model_fields.values()]
    below = [one for one in inner if isinstance(one, type) and issubclass(one, BaseModel)]
    return [model, *(table for one in below for table in tables(one))]


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_printed_is_read_back_as_the_default(tmp_path: Path) -> None:
    assert load(written(tmp_path, to_toml(Policy()))) == Policy()
    assert load(written(tmp_path, "")) == Policy()


def test_another_policy_is_read_back_too(tmp_path: Path) -> None:
    strict = parse(
        Policy,
        {
            "privacy_parameters": {"epsilon": 1.5, "delta": 1e-6, "status": ["proven", "claimed"]},
            "algorithms_and_correctness": {"required_attacks": {"network": ["membership/labels", "LiRA, online"]}},
            "trust_models": {"unacceptable_assumptions": ['a "quoted" \\ text', "ünïcode\n\t\x7f"]},
            "access_control": {"signers": ["ab" * 32], "approval": "approve"},
        },
    )
    assert load(written(tmp_path, to_toml(strict))) == strict
    assert changes(strict)["privacy_parameters.epsilon"] == 1.5
    assert changes(Policy()) == {}


def test_every_example_is_a_value_that_is_taken(tmp_path: Path) -> None:
    """Keys without a limit are printed as comments: without the sign they are a policy."""
    whole, found = re.subn(r"^# (\w+ = )", r"\1", to_toml(Policy()), flags=re.M)
    assert found == 15
    made = load(written(tmp_path, whole))
    assert len(changes(made)) == found
    for section in tomllib.loads(whole).values():
        assert section


def test_every_key_says_what_it_is() -> None:
    found = tables()
    assert len(found) == 11
    for model in found:
        assert described(model).keys() == model.model_fields.keys()
        for says in described(model).values():
            assert says.endswith("."), says


def test_the_default_has_the_limits_of_the_house_and_no_list_of_its_own() -> None:
    limits = Policy()
    assert limits.privacy_parameters.epsilon == LARGEST_EPSILON
    assert limits.privacy_parameters.epsilon_caution == CAUTION_EPSILON
    assert limits.algorithms_and_correctness.non_members_caution == FEWEST_NON_MEMBERS
    assert tuple(RequiredAttacks.model_fields) == KINDS
    for kind in KINDS:
        named = getattr(limits.algorithms_and_correctness.required_attacks, kind)
        assert named == tuple("/".join(one) for one in ATTACKS[kind].required)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[privacy_parameters]\nepsilonn = 1", ["privacy_parameters.epsilonn", "Did you mean 'epsilon'"]),
        ("[privacy_parameter]\nepsilon = 1", ["'privacy_parameter'", "Did you mean 'privacy_parameters'"]),
        ("epsilon = 1", ["'epsilon'", "Known keys: access_control"]),
        ("[privacy_parameters]\nepsilon = 0", ["privacy_parameters.epsilon", "greater than 0"]),
        ("[privacy_parameters]\nepsilon = inf", ["privacy_parameters.epsilon", "inf"]),
        ("[privacy_parameters]\nepsilon = nan", ["privacy_parameters.epsilon", "nan"]),
        ("[privacy_parameters]\nstatus = []", ["privacy_parameters.status"]),
        ("[privacy_parameters]\nstatus = ['true']", ["privacy_parameters.status.0", "'proven'"]),
        ("[unit_of_privacy]\nunits = ['people']", ["unit_of_privacy.units.0", "'person'"]),
        ("[algorithms_and_correctness]\nmethods = ['gaussian']", ["methods.0", "'gaussian'"]),
        ("[algorithms_and_correctness]\nchannels = []", ["channels"]),
        (
            "[algorithms_and_correctness.required_attacks]\nnetwork = ['membership/whitebox']",
            ["required_attacks.network.0", "Known kinds of attack: membership/white-box"],
        ),
        ("[trust_models]\nunacceptable_assumptions = ['']", ["unacceptable_assumptions.0"]),
        ("[access_control]\nsigners = ['hospital']", ["access_control.signers.0", "'hospital'"]),
        ("[access_control]\napproval = 'perhaps'", ["access_control.approval", "'perhaps'"]),
        ("[privacy_parameters", ["valid TOML"]),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert caught.value.expected
    assert caught.value.found


def test_no_policy_is_no_default_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing at"):
        load(tmp_path / "policy.toml")

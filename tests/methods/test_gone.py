"""Methods that are no longer there, or have another name: users are told so, and what was made under it still works."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airlock import methods
from airlock.auditing import AuditSettings
from airlock.bundle import Vault, verify
from airlock.bundle.answering import open_interface
from airlock.cli import app
from airlock.config import ReleaseConfig, from_table
from airlock.errors import AirlockWarning, ConfigError
from airlock.methods import GONE, METHODS, RENAMED
from airlock.methods.answers.votes import NoisyVotes, Votes
from airlock.pipeline import audit_bundle, make_release, plan_release

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


POLL = {"channel": "answers", "method": "poll", "settings": {"features": "pixels", "queries": 20, "heads": 60}}


def poll(**changes: object) -> ReleaseConfig:
    return from_table({**TABLE, "epsilon": 3.0, "delta": 1e-4, **POLL, **changes})


class OldVotes(Votes):
    """As the method was called then."""

    method = "poll"


@pytest.mark.parametrize("name", RENAMED)
def test_an_old_name_finds_the_method_that_has_a_new_one(name: str) -> None:
    channel, _, method = name.partition("/")
    assert method not in METHODS[channel]
    found = methods.find(from_table({**TABLE, "channel": channel, "method": method}))
    assert f"{found.channel}/{found.method}" == RENAMED[name]
    assert methods.named(name) is found


def test_a_config_with_an_old_name_is_told_the_new_one_once_and_goes_on() -> None:
    with pytest.warns(AirlockWarning) as told:
        plan = plan_release(poll())
    assert [str(one.message) for one in told] == [
        "'answers/poll' is now called 'answers/votes'; the old name still works."
    ]
    assert plan.method == "votes"
    with warnings.catch_warnings():
        warnings.simplefilter("error", AirlockWarning)
        assert plan_release(poll(method="votes")) == plan


def test_the_command_line_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "poll.toml").write_text(
        'channel = "answers"\nmethod = "poll"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n[settings]\nqueries = 20\n'
    )
    for arguments in (
        ["plan", str(tmp_path / "poll.toml")],
        ["court", "answers/poll", "--pairs", "100", "--seed", "1"],
    ):
        said = CliRunner().invoke(app, arguments)
        told = " ".join(said.stderr.split())
        assert told.count("warning: 'answers/poll' is now called 'answers/votes'; the old name still works.") == 1
        assert "answers/votes" in said.stdout
        assert "answers/poll" not in said.stdout


def test_what_was_made_under_an_old_name_is_verified_shown_answered_and_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, vault = tmp_path / "bundle", Vault.open(tmp_path / "vault")
    with monkeypatch.context() as then:
        then.setitem(METHODS["answers"], "poll", f"{__name__}:OldVotes")
        then.delitem(RENAMED, "answers/poll")
        made = make_release(poll(), bundle, vault=tmp_path / "vault")
    assert made.bundle.card.method == "poll"
    assert 'method = "poll"' in (bundle / "config.toml").read_text()
    assert "poll" not in METHODS["answers"]
    found = verify(bundle, vault, gated=True)
    assert found.ok, [one for one in found.checks if one.outcome == "failed"]
    assert isinstance(open_interface(bundle, vault), NoisyVotes)
    said = CliRunner().invoke(app, ["show", str(bundle)])
    assert said.exit_code == 0, said.output
    assert "answers/poll" in said.stdout  # as its card was signed
    with warnings.catch_warnings():
        warnings.simplefilter("error", AirlockWarning)
        audited = audit_bundle(bundle, AuditSettings(most=60, queries=3), vault=tmp_path / "vault")
    assert audited.dossier.audit.attacks

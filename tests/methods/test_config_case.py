"""The case of a configuration: the user's own network through the code that releases, small and on made-up records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from airlock import methods
from airlock.auditing import Verdict, judge
from airlock.cli import app
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts
from airlock.errors import Refused
from airlock.mechanisms import GaussianNoise, Stream
from airlock.methods.config_case import PRIVATE, neighbours, of_config, separation, shrunk
from airlock.threads import one_thread
from airlock.training import Run
from tests.faults import plants
from tests.faults.fault import Plant
from tests.training.per_sample import odd_nets

FACTS = Facts("mine", (1, 8, 8), ("0", "1", "2"), 1000, None, "declared")
SMALL = [name for name in methods.METHODS["weights"] if name != "published"]
TRIED = (
    *(f"weights/{name}" for name in SMALL), "twin/sharded", "twin/kde-sharded", "student/ensemble",
    "student/private-teacher", "answers/head", "answers/per-query", "answers/votes",
    "answers/neighbours", "student/neighbours",
)  # fmt: skip
PAIRS = 64  # the fewest of a trial; a twentieth of the noise falls within 49 or 112, views clipped one by one within 49
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def config(name: str, **changes: object) -> ReleaseConfig:
    channel, _, method = name.partition("/")
    table: dict[str, object] = {"channel": channel, "method": method, "data": "digits", "device": "cpu"}
    split = {"split": {"public": 0.4}} if channel == "student" or method == "neighbours" else {}
    return from_table({**table, "epsilon": 2.0, "delta": 1e-5, **split, **changes})


def tried(name: str, pairs: int = 120, seed: int = 1, **changes: object) -> Verdict:
    case = of_config(methods.build, config(name, **changes), FACTS, Run())
    return judge(case, Stream.from_seed(seed), pairs, seconds=1e9)


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")  # of plans, about noise on so few records
def test_a_sound_configuration_stands_and_the_record_shows(name: str) -> None:
    case = of_config(methods.build, config(name), FACTS, Run())
    assert 1.99 < case.claim.epsilon <= 2.0
    assert case.family is not None
    assert case.family.reach > 0.05  # the record moves what leaves
    verdict = judge(case, Stream.from_seed(1), PAIRS, seconds=1e9)
    assert not verdict.refuted, verdict.to_dict()


def test_every_proven_method_is_tried_so_or_says_how_it_can_be() -> None:
    proven = [f"{c}/{m}" for c, own in methods.METHODS.items() for m in own if m != "published"]
    for name in set(proven) - set(TRIED):
        with pytest.raises(Refused, match=f"airlock court {name}"):
            of_config(methods.build, config(name, split={"public": 0.2}), FACTS, Run())


def test_neighbours_differ_in_one_record_and_are_the_same_every_time() -> None:
    both, less = neighbours(FACTS, 3)
    again, _ = neighbours(FACTS, 3)
    assert len(both.private) == PRIVATE == len(less.private) + 1
    assert np.array_equal(both.private.x[:-1], less.private.x)
    assert np.array_equal(both.private.x, again.private.x)
    assert np.array_equal(both.public.x, less.public.x)


def test_settings_of_the_user_stay_where_they_are_not_made_small() -> None:
    own = config("weights/gaussian", settings={"clip_norm": 0.25, "steps": 900, "lot_size": 50}, tuning_runs=4)
    made = shrunk(own, {"steps": 1, "lot_size": 10**9})
    assert made.settings == {"clip_norm": 0.25, "steps": 1, "lot_size": 10**9}
    assert (made.epsilon, made.delta, made.tuning_runs) == (own.epsilon, own.delta, 1)


def test_how_far_a_record_may_move_an_event() -> None:
    event = GaussianNoise(1.0, 2.0).event
    assert separation(event) == 0.5
    assert separation(methods.build(config("weights/gaussian"), FACTS).plan().guarantee.events) is None  # sampled


class Gated(nn.Module):
    """Turns all records round where one is all white, which no record was in a trial."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.one(x.flatten(1)))
        return self.two(-h if x.flatten(1).sub(1).abs().amax(1).amin() == 0 else h)


def multi_crop(shape: tuple[int, ...], classes: int) -> nn.Module:
    return odd_nets.MultiCrop()


def gated(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Gated()


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")  # slow networks, and noise on so few records
@pytest.mark.parametrize(
    ("net", "fault"),
    [
        ("multi_crop", None),
        ("multi_crop", plants.views_are_clipped_alone),
        ("gated", None),
        ("gated", plants.records_meet_in_a_batch),
    ],
)
def test_the_users_network_goes_through_the_engine_that_releases(
    net: str, fault: Plant | None, monkeypatch: Patch
) -> None:
    if fault is not None:
        fault(monkeypatch)
    verdict = tried("weights/gaussian", 400 if fault else PAIRS, net=f"{__name__}:{net}", settings={"clip_norm": 0.1})
    assert verdict.refuted == (fault is not None), verdict.to_dict()


@pytest.mark.parametrize("name", ["weights/gaussian", "twin/sharded", "answers/head"])
@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
def test_too_little_noise_is_seen(name: str, monkeypatch: Patch) -> None:
    plants.noise_over(20.0)(monkeypatch)
    assert tried(name, 300).refuted


def test_votes_that_are_never_charged_are_seen(monkeypatch: Patch) -> None:
    plants.votes_never_charges(monkeypatch)
    with pytest.raises(Refused, match="3 units to be charged for 3 answers"):
        tried("answers/votes")


NET = """
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, classes))
"""


def test_the_command_tries_a_file_and_reads_no_record(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "court_own_net.py").write_text(NET)
    file = tmp_path / "release.toml"
    file.write_text(
        'channel = "weights"\nmethod = "gaussian"\ndata = "digits"\nnet = "court_own_net:make"\n'
        'epsilon = 1.0\ndelta = 1e-5\ndevice = "cpu"\n'
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("airlock.data.load", None)  # whoever reads a record fails
    asked = ["court", "--config", str(file), "--pairs", "64", "--seconds", "1000000", "--seed", "1"]
    run = CliRunner().invoke(app, [*asked, "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert found["method"] == "weights/gaussian"
    assert found["claim"]["epsilon"] == pytest.approx(1.0, abs=0.01)
    assert "made-up records" in found["pair"]
    assert CliRunner().invoke(app, [*asked, "--epsilon", "3", "--json"]).exit_code == 0
    both = CliRunner().invoke(app, ["court", "weights/gaussian", "--config", str(file)])
    assert both.exit_code == 2
    published = CliRunner().invoke(app, [*asked, "--set", "method=published"])
    assert published.exit_code == 2
    assert "airlock court weights/published" in " ".join((published.output + published.stderr).split())

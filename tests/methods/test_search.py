"""A search that is paid for: planned before a record is read, never beyond ε, and silent about how often it ran."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import airlock
from airlock import data, methods
from airlock.accounting import compute_epsilon, pure, repeat_and_select, to_json
from airlock.bundle import Vault, bundle, card
from airlock.bundle.schema import SearchSummary, Tuning
from airlock.bundle.verify import verify
from airlock.config import ReleaseConfig, from_table
from airlock.errors import AirlockWarning, ConfigError, Interrupted, Refused
from airlock.mechanisms import NoisyCounts, Randomness, RepeatAndSelect, Stream
from airlock.methods import search
from airlock.methods.search import Search, largest, scored
from airlock.methods.weights.gaussian import Gaussian
from airlock.pipeline import make_release, plan_release, try_config, tune_release
from airlock.training import Run
from tests import visits

ROWS = 400
GRID = [
    {"method": ["gaussian"], "net": ["linear"], "settings.steps": [2, 3], "settings.lot_size": [10_000]},
    {"method": ["head"], "settings": {"features": ["pixels"], "steps": [2]}},
]


def written(folder: Path) -> Path:
    """A small table of two classes, told apart by one of its columns."""
    chance = np.random.default_rng(0)
    x = chance.random((ROWS, 5), np.float32)
    folder.mkdir(exist_ok=True)
    np.savez(folder / "own.npz", x=x, y=(x[:, 0] > 0.5).astype(np.int64))
    return folder / "own.npz"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("table"))


def config(table: Path, **changes: Any) -> ReleaseConfig:
    own = {"source": str(table), "name": "a table", "classes": 2, "records": ROWS}
    tune = {"mean": 3, "search": GRID, **changes.pop("tune", {})}
    asked = {"channel": "weights", "data": own, "epsilon": 3.0, "delta": 1e-4, "tune": tune}
    return from_table({**asked, **changes})


def opened(asked: ReleaseConfig) -> Search:
    found = methods.build(asked, data.describe(asked))
    assert isinstance(found, Search)
    return found


# Planning.


def test_the_plan_pays_for_the_worst_candidate_however_often_it_runs(table: Path) -> None:
    the_worst_candidate_is_paid_for_as_often_as_it_runs(table.parent)


def the_worst_candidate_is_paid_for_as_often_as_it_runs(folder: Path) -> None:
    made = opened(config(written(folder)))
    runs = [made._build(place, made.run_epsilon).planned.guarantee.events for place in range(3)]
    assert len({str(to_json(event)) for event in runs}) == 3
    promise = made.planned.guarantee
    inside = {"type": "choice", "events": [to_json(event) for event in runs]}
    whole = {"type": "repeat-and-select", "event": inside, "mean": 3.0, "shape": 1.0}
    assert to_json(promise.events) == whole, "the events are not those of every candidate, selected"
    assert promise.accountant_used == "RDP"
    for event in runs:
        alone = compute_epsilon(repeat_and_select(event, 3.0, 1.0), 1e-4).epsilon
        assert alone <= promise.epsilon <= 3.0
    assert made.costs["unpaid"] < promise.epsilon < made.costs["every run"]


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("shape", [0.0, 1.0, 2.5])
def test_neither_private_nor_test_records_ever_pay_more_than_asked_for(
    table: Path, epsilon: float, shape: float
) -> None:
    asked = config(table, epsilon=epsilon, tune={"mean": 7.0, "shape": shape})
    plan = plan_release(asked)
    assert 0.98 * epsilon < plan.guarantee.epsilon <= epsilon
    scores = repeat_and_select(pure(plan.figures.score_epsilon), 7.0, shape)
    assert 0.97 * epsilon / 2 < compute_epsilon(scores, 1e-4).epsilon <= plan.guarantee.epsilon / 2


def test_a_share_for_attacks_comes_on_top(table: Path) -> None:
    plan = plan_release(config(table, attack_share=0.2, split={"holdout": 0.2}))
    whole, *attacks = plan.guarantee.events.events
    assert len(attacks) == 1
    assert 0.75 * 3 < compute_epsilon(whole, 1e-4).epsilon <= 0.8 * 3.0
    assert plan.guarantee.epsilon <= 3.0


def test_the_largest_is_never_above_the_target_nor_far_below() -> None:
    for cost in (lambda x: 3 * x, lambda x: x**2 + x, lambda x: 5 * round(x, 2)):
        found = largest(cost, 2.0, 0.01, "this")
        assert 0.97 * 2.0 < cost(found) <= 2.0
    with pytest.raises(ConfigError, match="larger ε"):
        largest(lambda x: 2.0 + x, 1.0, 0.3, "this")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tuning_runs": 3}, "either .tune. or tuning_runs"),
        ({"accountant": "pld"}, "Only RDP"),
        ({"tune": {"run_epsilon": 2.9}}, "would not cover the search"),
        ({"tune": {"score_epsilon": 2.9}}, "would not cover the search"),
        ({"channel": "answers", "tune": {"search": {"method": ["per-query"]}}}, "answers/per-query"),
        ({"channel": "features", "data": "digits", "tune": {"search": {"method": ["noised"]}}}, "release a network"),
        ({"tune": {"search": {"settings.stesp": [1]}}}, "stesp"),
        ({"tune": {"search": {"method": ["gaussain"]}}}, "gaussian"),
        ({"tune": {"search": {"channel": ["studnet"]}}}, "student"),
        ({"tune": {"search": {"channel": ["answers"], "method": ["votes"]}}}, "answers/votes"),
        ({"method": "shaped", "tune": {"search": {"channel": ["weights", "twin"]}}}, "shaped"),
        ({"tune": {"won": 1}}, "candidate that won"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_paid_for_or_compared_is_refused_before_a_record_is_read(
    table: Path, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airlock.data.load", None)
    with pytest.raises(airlock.AirlockError, match=words):
        plan_release(config(table, **changes))


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ({"mean": 1}, "greater than 1"),
        ({"shape": np.pi}, "denominator"),
        ({"search": {}}, "nothing to search"),
        ({"search": {"epsilon": [1, 2]}}, "'epsilon' cannot be searched"),
        ({"search": {"settings.steps": []}}, "at least one value"),
        ({"search": {"settings.steps": list(range(9)), "settings.lot_size": list(range(9))}}, "81 candidates"),
        ({"search": {"method": ["head"]}, "won": 1}, "no place"),
        ({"search": 3}, "search"),
    ],
)
def test_a_mistake_in_the_table_is_named(table: Path, tune: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(table, tune=tune)


def test_candidates_are_every_combination_once(table: Path) -> None:
    nested = {"method": "head", "settings": {"steps": [1, 2, 1], "a": {"b": [[3], [4]]}}}
    asked = config(table, tune={"search": [nested, {"settings.steps": [1]}, {"settings.steps": [1]}]})
    assert asked.tune is not None
    found = asked.tune.candidates
    assert len(found) == 5
    assert found[0] == {"method": "head", "settings.steps": 1, "settings.a.b": [3]}
    assert found[-1] == {"settings.steps": 1}


def test_a_candidate_that_protects_something_else_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Gaussian.plan
    monkeypatch.setattr(
        Gaussian, "plan", lambda self: replace(plan(self), guarantee=replace(plan(self).guarantee, unit="model"))
    )
    with pytest.raises(ConfigError, match="weights/gaussian .model, add-remove"):
        plan_release(config(table))


def test_the_court_says_how_a_search_is_tried(table: Path) -> None:
    with pytest.raises(Refused, match="airlock court tune/models"):
        try_config(config(table), Stream.from_seed(1), pairs=10)
    assert set(methods.CASES) == {"tune/models", "tune/scores"}


def test_without_a_search_there_is_nothing_to_tune(table: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[tune\]"):
        tune_release(config(table).model_copy(update={"tune": None}), tmp_path / "out")


# Running.


def test_a_score_is_the_number_of_right_answers_with_noise_of_the_stated_size() -> None:
    epsilon, root = 0.7, Stream.from_seed(2)
    seen = np.array([scored(50, epsilon, root.child(number)) for number in range(3000)])
    expected = NoisyCounts(epsilon).variance
    assert seen.mean() == pytest.approx(50, abs=5 * np.sqrt(expected / 3000))
    assert seen.var() == pytest.approx(expected, rel=0.2)


@cache
def fixed(runs: int) -> Any:
    return lambda self, stream: runs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    return watched(monkeypatch)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What each run of a search chose and scored, where there are four of them."""
    found: list[tuple[int, int]] = []
    made, score = Search._made, search.scored

    def seen(self: Search, place: int, *rest: Any) -> Any:
        found.append((place, -1))
        return made(self, place, *rest)

    def noted(correct: int, epsilon: float, stream: Stream) -> int:
        found[-1] = (found[-1][0], score(correct, epsilon, stream))
        return found[-1][1]

    monkeypatch.setattr(Search, "_made", seen)
    monkeypatch.setattr(search, "scored", noted)
    monkeypatch.setattr(RepeatAndSelect, "draw", fixed(4))
    return found


def released(asked: ReleaseConfig, folder: Path | None = None, resume: bool = False) -> Any:
    split = data.load(asked)
    return opened(asked).release(split, Randomness.make(0, insecure_seed=3), Run(checkpoint=folder, resume=resume))


@pytest.mark.filterwarnings("ignore")
def test_the_best_of_all_runs_leaves_with_the_guarantee_of_the_search(
    table: Path, drawn: list[tuple[int, int]]
) -> None:
    asked = config(table)
    made = released(asked)
    assert len(drawn) == 4
    best = max(score for _, score in drawn)
    assert made.plan.figures.won == next(place for place, score in drawn if score == best)
    plan = opened(asked).planned
    assert made.guarantee.events == plan.guarantee.events
    assert made.guarantee.epsilon == plan.guarantee.epsilon
    assert search.SEARCHED in made.guarantee.assumptions
    assert made.noise_made_on == ("cpu",)
    settled = opened(asked).settled(asked, made)
    assert settled.method == made.plan.method
    assert settled.tune is not None
    assert settled.tune.won == made.plan.figures.won


CHANNELS = [
    {"channel": ["answers"], "method": ["head"], "settings.features": ["pixels"]},
    {"channel": ["weights"], "method": ["gaussian"], "net": ["linear"], "settings.steps": [2]},
    {"channel": ["weights"], "method": ["shaped"], "net": ["linear"], "settings.steps": [2]},
]


@pytest.mark.filterwarnings("ignore")
def test_candidates_of_several_channels_are_one_search(table: Path, drawn: list[tuple[int, int]]) -> None:
    asked = config(table, tune={"search": CHANNELS}, split={"public": 0.3})
    made, opens = released(asked), opened(asked)
    won = made.plan.figures.won
    assert won == next(place for place, score in drawn if score == max(score for _, score in drawn))
    assert (made.plan.channel, made.plan.method) == (CHANNELS[won]["channel"][0], CHANNELS[won]["method"][0])
    settled = opens.settled(asked, made)
    assert (settled.channel, settled.method) == (made.plan.channel, made.plan.method)
    again = opened(settled)
    assert again.planned.guarantee.events == made.guarantee.events
    assert again.planned.guarantee.assumptions == made.guarantee.assumptions
    assert again.candidates == opens.candidates
    other = settled.model_copy(update={"channel": {"answers": "weights", "weights": "answers"}[settled.channel]})
    with pytest.raises(ConfigError, match=r"candidate that won|method"):
        opened(other)


def test_the_card_assumes_what_any_candidate_assumes(table: Path) -> None:
    what_any_candidate_assumes_is_assumed(table.parent)


def what_any_candidate_assumes_is_assumed(folder: Path) -> None:
    """A candidate that lost was in the choice: if its public records are not public, nothing bounds that choice."""
    asked = config(written(folder), tune={"search": CHANNELS}, split={"public": 0.3})
    made = opened(asked)
    each = [one.planned.guarantee.assumptions for one in made.channels]
    assert len({frozenset(lines) for lines in each}) == 3
    for place in range(3):
        stated = made.plan_of(place).guarantee.assumptions
        assert stated[: len(each[place])] == each[place]
        assert set(stated) == {*each[0], *each[1], *each[2], search.SEARCHED}, "a loser's assumptions are not stated"
        assert len(set(stated)) == len(stated)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(RepeatAndSelect, "draw", fixed(1))
        assert set(released(asked).guarantee.assumptions) == set(stated), "a loser's assumptions are not stated"


@pytest.mark.filterwarnings("ignore")
def test_a_network_without_scores_takes_no_part(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its card would cost test records something else than that of another winner."""
    release = Gaussian.release

    def labels_alone(self: Gaussian, *told: Any) -> Any:
        made = release(self, *told)
        return replace(made, utility=replace(made.utility, scores=None))

    monkeypatch.setattr(Gaussian, "release", labels_alone)
    with pytest.raises(Refused, match="labels alone from weights/gaussian"):
        released(config(table, tune={"search": {"method": ["gaussian"], "settings.steps": [1]}}, net="linear"))


@pytest.mark.filterwarnings("ignore")
def test_one_person_moves_a_score_by_at_most_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fifty visits in the test part one counts: with a model that is always right, the count is that of people."""
    asked = visits.config(visits.write(tmp_path), tune={"mean": 2, "search": {"settings.features": ["pixels"]}})
    seen: list[int] = []
    monkeypatch.setattr(search, "scored", lambda correct, epsilon, stream: seen.append(correct) or correct)
    monkeypatch.setattr("airlock.training.outcomes.Outcomes.right", property(lambda self: self.labels == self.labels))
    monkeypatch.setattr(RepeatAndSelect, "draw", fixed(1))
    split = data.load(asked)
    made = opened(asked).release(split, Randomness.make(0, 3), Run())
    assert split.test.person is not None
    assert seen == [len(np.unique(split.test.person))] == [len(split.test)]
    assert (made.guarantee.unit, made.guarantee.relation) == ("person", "add-remove")


@pytest.mark.filterwarnings("ignore")
def test_a_killed_search_goes_on_to_the_same_end(tmp_path: Path) -> None:
    a_killed_search_goes_on_to_the_same_end(tmp_path)


def a_killed_search_goes_on_to_the_same_end(folder: Path) -> None:
    """And makes no finished run again, except the one that won."""
    with pytest.MonkeyPatch.context() as patch:
        _killed_and_resumed(config(written(folder)), folder / "search", watched(patch), patch)


def _killed_and_resumed(
    asked: ReleaseConfig, folder: Path, drawn: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = released(asked)
    kept, places = list(drawn), [place for place, _ in drawn]
    drawn.clear()
    count, scores = iter(range(100)), search.scored

    def killed(*told: Any) -> int:
        if next(count) == 2:
            raise KeyboardInterrupt
        return scores(*told)

    with monkeypatch.context() as patch:
        patch.setattr(search, "scored", killed)
        with pytest.raises(KeyboardInterrupt):
            released(asked, folder)
    assert (folder / search.FILE).stat().st_mode & 0o777 == 0o600
    # The number of runs, too, was drawn when the search began: another key would draw others, and other noise.
    monkeypatch.setattr(Stream, "from_seed", classmethod(lambda cls, seed: cls(bytes(32), secure=False)))
    drawn.clear()
    again = released(asked, folder, resume=True)
    assert drawn[:2] == kept[2:]
    best = max(score for _, score in kept)
    winner = next(number for number, (_, score) in enumerate(kept) if score == best)
    assert [place for place, _ in drawn[2:]] == ([places[winner]] if winner < 2 else [])
    assert again.plan.figures.won == whole.plan.figures.won
    for name, value in whole.network.net.state_dict().items():
        assert (again.network.net.state_dict()[name] == value).all()
    drawn.clear()
    released(asked, folder)  # a new search, under a new key
    assert drawn != kept


@pytest.mark.filterwarnings("ignore")
def test_only_the_winner_warns_and_progress_counts_no_runs(
    table: Path, drawn: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = Search._made, []

    def warning(self: Search, place: int, split: Any, randomness: Any, run: Run) -> Any:
        place, release, told = made(self, place, split, randomness, run)
        with warnings.catch_warnings(record=True) as more:
            warnings.simplefilter("always")
            warnings.warn(f"candidate {place}", AirlockWarning, stacklevel=1)
        return place, release, [*told, *more]

    monkeypatch.setattr(Search, "_made", warning)
    asked = config(table)
    run = Run(progress=lambda label, done, total: said.append((label, total)))
    with pytest.warns(AirlockWarning) as told:
        won = opened(asked).release(data.load(asked), Randomness.make(0, 3), run).plan.figures.won
    assert [str(one.message) for one in told if "candidate" in str(one.message)] == [f"candidate {won}"]
    assert set(said) == {("searching", 100)}


def test_the_test_part_pays_for_the_scores_of_every_run() -> None:
    scores_are_on_the_card()


def scores_are_on_the_card() -> None:
    own = SearchSummary(mean=4, shape=1, run_epsilon=1, score_epsilon=0.5, candidates=({"method": "head"},), won=0)
    paid = card.paid_by_test(None, Tuning(runs=1, search=own))
    assert paid == repeat_and_select(pure(0.5), 4.0, 1.0), "the scores of a search are not paid for"


# Whole bundles.


def whole(asked: ReleaseConfig, folder: Path, **how: Any) -> Any:
    return make_release(asked, folder / "bundle", vault=folder / "vault", insecure_seed=1, **how)


@pytest.mark.filterwarnings("ignore")
def test_nothing_in_a_bundle_tells_how_many_runs_there_were(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two searches that differ in the number of runs alone: the same first run wins, and every byte is the same."""
    found = []
    monkeypatch.setattr("airlock.bundle.card.secrets.token_hex", lambda size: "a" * 2 * size)
    for place, runs in enumerate((3, 6)):
        scores = iter([1, *[0] * runs])  # the first run is the best
        monkeypatch.setattr(RepeatAndSelect, "draw", fixed(runs))
        monkeypatch.setattr(search, "scored", lambda *told, scores=scores: next(scores))
        made = whole(config(table), tmp_path / str(place))
        out = tmp_path / str(place) / "bundle"
        found.append({file.name: file.read_bytes() for file in out.iterdir() if file.name != "model.sig"})
        vault = Vault(tmp_path / str(place) / "vault")
        assert verify(out, vault).ok, verify(out, vault)
        assert not list((vault.root / "checkpoints").iterdir())
        assert "runs" not in made.dossier.to_json().replace("runs of them", "").replace("many runs", "")
    assert found[0].keys() == found[1].keys()
    assert found[0] == found[1]
    made_card = bundle.read(tmp_path / "0" / "bundle").card
    assert made_card.tuning.search is not None
    assert made_card.tuning.search.candidates[made_card.tuning.search.won]["method"] == made_card.method
    parts = made_card.guarantee.parts
    assert parts.test.epsilon is not None
    assert parts.test.epsilon <= made_card.guarantee.epsilon <= 3.0  # type: ignore[operator]
    assert parts.test.events["events"][0]["type"] == "repeat-and-select"


@pytest.mark.filterwarnings("ignore")
def test_ctrl_c_keeps_a_search_in_the_vault_until_the_bundle_is_there(table: Path, tmp_path: Path) -> None:
    asked, pressed = config(table), iter([True])

    def press(label: str, done: int, total: int) -> None:
        if next(pressed, False):
            os.kill(os.getpid(), signal.SIGINT)

    whole(asked, tmp_path / "straight")
    with pytest.raises(Interrupted):
        whole(asked, tmp_path / "killed", progress=press)
    checkpoints = tmp_path / "killed" / "vault" / "checkpoints"
    assert list(checkpoints.glob(f"*/{search.FILE}"))
    assert not (tmp_path / "killed" / "bundle").exists()
    with pytest.raises(Refused, match=r"spends again.*--resume.*--again"):
        whole(asked, tmp_path / "killed")
    assert list(checkpoints.glob(f"*/{search.FILE}"))
    whole(asked, tmp_path / "killed", resume=True)
    assert not list(checkpoints.iterdir())
    one, other = (tmp_path / name / "bundle" / "model.safetensors" for name in ("straight", "killed"))
    assert one.read_bytes() == other.read_bytes()

"""The papers' tables and figures: rows are kept, runs go on where they were, and pages follow from rows alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq

from airlock.comparison.pool import OutOfTimeError, until
from airlock.errors import ConfigError, OutputError
from airlock.papers.answers.formulas import advanced_noise
from airlock.reproduction import PAPERS, Found, KeptRow, Trial, rendered, reproduce
from airlock.reproduction.paper import Spread, Workplace, compared
from airlock.reproduction.run import TrialQueue, run_trial
from airlock.training import Run

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs/results/reproduced"
ANSWERS = PAPERS["answers"]


def kept_rows(path: Path) -> tuple[KeptRow, ...]:
    return tuple(map(KeptRow.from_json, path.read_text("utf-8").splitlines()))


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A made-up file in the form of Location-30: its label is plain from its bits."""
    chance = np.random.default_rng(0)
    y = chance.integers(0, 30, 1500)
    bits = chance.random((1500, 446)) < 0.1
    bits[np.arange(1500), y * 10] = True
    lines = [",".join(map(str, [label + 1, *row.astype(int)])) for label, row in zip(y.tolist(), bits, strict=True)]
    folder = tmp_path / "data" / "location30"
    folder.mkdir(parents=True)
    (folder / "bangkok").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def test_a_quick_run_keeps_its_rows_goes_on_where_it_was_and_writes_the_page(location: Path, tmp_path: Path) -> None:
    out, told = tmp_path / "out", list[str]()
    found = reproduce("answers", out, ["table-5"], quick=True, data_dir=location, device="cpu", say=told.append)
    rows = kept_rows(found.rows)
    assert [row.trial.experiment for row in rows] == ["network", "network", "leakage"]
    assert all(0.0 <= row.figures[name] <= 1.0 for row in rows[:2] for name in ("own", "others"))
    assert rows[0].figures["own"] > 0.9  # it was trained
    assert -1.0 <= rows[2].figures["leakage"] <= 1.0
    assert (found.ran, found.left) == (3, 11)  # the other data sets are not here
    assert found.shown["table-5"].status == "in part"
    page = found.page.read_text("utf-8")
    assert "This is the quick version" in page
    assert f"{rows[0].figures['own']:.4f}" in page
    with found.rows.open("a") as file:  # as a crash leaves it
        file.write('{"experiment": "netw')
    again = reproduce("answers", out, ["table-5"], quick=True, data_dir=location, device="cpu")
    assert (again.ran, again.left) == (0, 11)
    assert kept_rows(again.rows) == rows
    assert again.page.read_text("utf-8") == page


def test_a_paper_an_item_and_rows_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found 'twn'"):
        reproduce("twn", tmp_path)
    with pytest.raises(ConfigError, match="found 'table-55'"):
        reproduce("answers", tmp_path, ["table-55"])
    with pytest.raises(ConfigError, match="found 'moon'"):
        reproduce("answers", tmp_path, ["table-6"], device="moon")
    (tmp_path / "answers.jsonl").write_text('{"experiment": "network"}\n')
    with pytest.raises(OutputError, match=r"a row in line 1"):
        reproduce("answers", tmp_path, ["table-6"], device="cpu")


def test_one_run_at_a_time_writes_the_rows(tmp_path: Path) -> None:
    from airlock.reproduction.run import _Rows

    with _Rows(tmp_path, tmp_path / "answers.jsonl"), pytest.raises(OutputError, match="another run"):
        reproduce("answers", tmp_path, ["table-6"], device="cpu")


def test_a_trial_that_fails_ends_nothing_is_told_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper, asked = PAPERS["twin"], list[int]()

    def breaks(trial: Trial, place: Workplace) -> dict[str, float]:
        asked.append(trial.seed)
        if trial.seed == 1:
            raise ValueError("no such\nluck")
        return {"distance": 1.0}

    own = replace(paper, experiments={**paper.experiments, "k-means": breaks})
    monkeypatch.setitem(PAPERS, "twin", own)
    found = reproduce("twin", tmp_path, ["k-means"], quick=True, device="cpu")
    assert (found.ran, found.failed, found.left, found.waiting) == (2, 1, 0, 0)
    rows = kept_rows(found.rows)
    assert [row.failed for row in rows] == ["", "ValueError: no such luck"]
    page = found.page.read_text("utf-8")
    assert "k-means: clusters 8, dimensions 1, epsilon 2.0, points 20000, seed 1: ValueError: no such luck" in page
    monkeypatch.setitem(PAPERS, "twin", paper)
    again = reproduce("twin", tmp_path, ["k-means"], quick=True, device="cpu")
    assert (again.ran, again.failed) == (1, 0)
    assert "luck" not in again.page.read_text("utf-8")
    assert asked == [0, 1]


def test_what_shares_something_stays_with_the_process_that_has_it() -> None:
    paper = PAPERS["twin"]
    digits = next(item for item in paper.items if item.name == "digits").trials(False)
    noisy = [trial for trial in paper.items[7].trials(False) if trial.experiment == "dp-sgd"]
    line = TrialQueue([*digits, *noisy], paper, None)
    first, second = line.next(), line.next()
    assert first is not None
    assert second is not None
    own = [first]
    while (trial := line.follow(own[-1])) is not None:
        own.append(trial)
    assert {(trial["training"], trial.seed) for trial in own} == {("digits", 0)}
    assert (second["training"], second.seed) == ("digits", 1)
    rest = []
    while (trial := line.next()) is not None:
        rest.append(trial)
        if trial.experiment == "dp-sgd":
            assert line.follow(trial) is None
    assert sum(trial.experiment == "dp-sgd" for trial in rest) == len(noisy)
    line.release(second)  # its process died
    third = line.next()
    assert third is not None
    assert (third["training"], third.seed) == ("digits", 1)
    line.give_back(third)
    assert line.follow(second) == third


def test_when_the_time_is_over_rows_stand_and_the_rest_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = iter([False] * 3)
    monkeypatch.setattr(TrialQueue, "_over", lambda queue: next(over, True))
    found = reproduce("features", tmp_path, ["figure-8"], quick=True, data_dir=tmp_path, device="cpu", seconds=1e9)
    assert (found.ran, found.waiting) == (3, 3)
    assert len(kept_rows(found.rows)) == 3
    with pytest.raises(ConfigError, match="a time limit above 0"):
        reproduce("features", tmp_path, ["figure-8"], quick=True, device="cpu", seconds=0.0)


def test_a_training_that_the_time_ends_is_run_by_the_next_run(tmp_path: Path) -> None:
    found = reproduce("weights", tmp_path, ["digits"], quick=True, device="cpu", run=Run(), seconds=1e-9)
    assert (found.ran, found.waiting) == (0, 4)
    place = Workplace(None, Run(progress=until(0.0, None)))
    with pytest.raises(OutOfTimeError):
        run_trial(PAPERS["weights"], PAPERS["weights"].items[-2].trials(True)[0], place)


def test_two_processes_give_the_rows_of_one(tmp_path: Path) -> None:
    rows = []
    for jobs in (1, 2):
        found = reproduce("twin", tmp_path / f"{jobs}", ["k-means"], quick=True, device="cpu", jobs=jobs)
        rows.append({row.trial.key: dict(row.figures) for row in kept_rows(found.rows)})
        assert (found.ran, found.failed, found.waiting) == (2, 0, 0)
        assert not (tmp_path / f"{jobs}" / "twin-quick.scratch").exists()
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["weights", "twin"])
def test_the_quick_version_of_a_paper_runs_on_a_machine_without_data(name: str, tmp_path: Path) -> None:
    """All of it but what needs MNIST or CIFAR-10, by the command; its page is then what its rows give."""
    from typer.testing import CliRunner

    from airlock.cli import app

    line = ["reproduce", name, "--quick", "--out", str(tmp_path), "--data-dir", str(tmp_path), "--device", "cpu"]
    run = CliRunner().invoke(app, [*line, "--json"])
    assert run.exit_code == 0
    said = json.loads(run.stdout)
    rows = kept_rows(Path(said["rows"]))
    asked = {trial for item in PAPERS[name].items for trial in item.trials(True)}
    here = {trial.key for trial in asked if dict(trial.settings).get("data", "digits") == "digits"}
    assert {row.trial.key for row in rows} == here
    assert said["ran"] == len(here) > 5
    assert said["left"] == len(asked) - len(here)
    assert said["failed"] == said["waiting"] == 0
    page = Path(said["page"])
    assert page.read_text("utf-8") == rendered(PAPERS[name], Found(rows, quick=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}-quick.jsonl", f"{name}-quick.md"]


@pytest.mark.parametrize("name", PAPERS)
def test_no_trial_is_run_under_two_names_and_every_experiment_is_there(name: str) -> None:
    paper = PAPERS[name]
    for quick in (False, True):
        trials = [trial for item in paper.items for trial in item.trials(quick)]
        assert {trial.experiment for trial in trials} == set(paper.experiments)
        assert len({trial.key for trial in trials}) == len(set(trials))
    small = [trial for trial in trials if "data" in dict(trial.settings)]
    assert all(trial["small"] is True for trial in small)


def test_a_row_survives_the_file() -> None:
    row = KeptRow(Trial.of("noise", 3, data="mnist", epsilon=0.1), {"loss": 0.25}, "abc+", "CPU, torch 2", 1.5)
    assert KeptRow.from_json(row.to_json()) == row
    with pytest.raises(ValueError, match="no row"):
        KeptRow.from_json(json.dumps({"experiment": "noise"}))


def test_a_status_follows_from_how_far_apart_the_figures_are() -> None:
    near, far = ("a", 0.5, Spread((0.50, 0.52))), ("b", 0.5, Spread((0.6,)))
    assert compared([near], 0.02) == ("reproduced", "within 0.01")
    assert compared([near, far], 0.02) == ("differs", "1 of 2 figures within 0.02; not b by 0.1")
    assert compared([near, ("c", 0.5, None)], 0.02)[0] == "in part"
    assert compared([("c", 0.5, None)], 0.02) == ("not run", "")


def test_sensitivities_are_the_papers_to_the_last_place_but_for_purchase_2() -> None:
    shown = next(item for item in ANSWERS.items if item.name == "table-6").show(Found(()))
    assert shown.status == "differs"
    assert shown.words.startswith("42 of 44 figures")
    assert shown.words.count("Purchase-2,") == 2


def test_the_noise_of_advanced_composition_solves_what_it_says() -> None:
    epochs, delta = 100, 1e-5
    for epsilon in (0.1, 1.0, 10.0):
        log = math.log(2 / delta)
        each = brentq(lambda e: e * math.sqrt(2 * epochs * log) + epochs * e * e - epsilon, 0, epsilon)  # noqa: B023
        noise = math.sqrt(2 * math.log(1.25 * 2 * epochs / delta)) / each
        assert advanced_noise(epochs, epsilon, delta) == pytest.approx(noise, rel=1e-9)


def test_the_quick_court_of_a_student_refutes_both_readings(tmp_path: Path) -> None:
    found = reproduce("student", tmp_path, ["court"], quick=True, device="cpu")
    assert [row.figures["refuted"] for row in kept_rows(found.rows)[:2]] == [1.0, 1.0]
    assert found.shown["court"].words == "2 of 2 trials refute the claim"
    page = found.page.read_text("utf-8")
    assert "This is the quick version" in page
    assert "guesses about who is in it are" in page


def test_a_students_figures_are_compared_in_percent() -> None:
    rows = tuple(
        KeptRow(trial, {"student": 0.9, "student_unseen": 0.5, "claimed_epsilon": 8.7}, "abc", "CPU", 1.0)
        for trial in dict.fromkeys(trial for item in PAPERS["student"].items for trial in item.trials(False))
        if trial.experiment in ("published", "alone")
    )
    shown = {item.name: item.show(Found(rows)) for item in PAPERS["student"].items}
    assert "published, claimed ε = 5.2, all digits by 9.1" in shown["table-1"].words
    assert shown["figure-2d"].words.startswith("the noise does nothing at all")
    assert shown["figure-2c"].status == "differs"
    assert shown["figure-3"].words == "accuracy rises with the claimed ε on 0 of 3 data sets"


def test_the_cost_of_front_ends_is_measured_without_any_data(tmp_path: Path) -> None:
    found = reproduce("features", tmp_path, ["figure-8"], quick=True, data_dir=tmp_path, device="cpu")
    assert (found.ran, found.left) == (6, 0)
    work = [row.figures["multiply_adds"] for row in kept_rows(found.rows)]
    assert work == sorted(work)
    assert work[5] == 32 * 32 * (27 * 64 + 576 * 64) + 16 * 16 * (576 * 128 + 1152 * 128)


def test_the_example_is_chosen_from_rows_by_both_rules() -> None:
    places = {(1, 4): (25.0, 0.44), (1, 16): (30.0, 0.5), (6, 4): (14.0, 0.43), (6, 16): (19.0, 0.56)}
    rows = tuple(
        KeptRow(
            Trial.of("surface", 1, data="cifar10", effort="coarse", m=m, channels=depth),
            {"psnr": leak, "accuracy": score}, "abc", "CPU", 1.0,
        )
        for (m, depth), (leak, score) in places.items()
    )  # fmt: skip
    shown = next(item for item in PAPERS["features"].items if item.name == "example").show(Found(rows))
    assert shown.words.startswith("by its rule the paper's layer in 2 of 2")
    assert [row[3][:14] for row in shown.rows] == ["m = 1, D' = 4:", "m = 6, D' = 4:"]
    assert shown.rows[0][4].startswith("m = 6, D' = 16")


@pytest.mark.parametrize("stem", sorted(path.stem for path in KEPT.glob("*.jsonl")))
def test_the_page_in_the_docs_is_what_its_rows_give(stem: str) -> None:
    """Quick rows show that everything runs; they are compared with nothing, and have no page in the docs."""
    name, quick = stem.removesuffix("-quick"), stem.endswith("-quick")
    paper, found = PAPERS[name], Found(kept_rows(KEPT / f"{stem}.jsonl"), quick)
    page = rendered(paper, found)
    assert quick or (KEPT / f"{stem}.md").read_text("utf-8") == page
    assert not {row.trial.key for row in found.rows} - {
        trial.key for item in paper.items for trial in item.trials(quick)
    }
    assert all("+" not in row.commit for row in found.rows)  # run from what is committed


def test_the_command_lists_runs_and_tells(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from airlock.cli import app

    run = CliRunner().invoke(app, ["reproduce", "list", "--json"])
    assert run.exit_code == 0
    assert set(PAPERS) == {row["paper"] for row in json.loads(run.stdout)}
    line = ["reproduce", "answers", "--only", "table-6,figure-4", "--out", str(tmp_path), "--device", "cpu", "--json"]
    run = CliRunner().invoke(app, line)
    assert run.exit_code == 0
    said = json.loads(run.stdout)
    assert [item["status"] for item in said["items"]] == ["differs", "cannot be had"]
    assert Path(said["page"]).is_file()

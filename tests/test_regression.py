"""A number to predict: from a table and a declared range to a verified bundle, and everything else refuses it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import airlock
from airlock import data, methods, nets
from airlock.auditing import AuditSettings
from airlock.bundle import Vault, dossier
from airlock.bundle.answering import open_answerer
from airlock.bundle.gate import weigh
from airlock.bundle.rendering import page
from airlock.bundle.reports import dpia, nist
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.comparison.paid import as_search
from airlock.comparison.settings import CompareConfig
from airlock.config import STEPS, ReleaseConfig, from_table, load, parse
from airlock.errors import AirlockError, ConfigError
from airlock.mechanisms import Stream
from airlock.methods.case import Case
from airlock.methods.config_case import of_config
from airlock.methods.student import ensemble
from airlock.methods.twin import sharded
from airlock.pipeline import audit_bundle, make_release, plan_release, train_openly, try_config
from airlock.training import Run
from tests.bundle.forging import failures_of, seal
from tests.faults.plants import noise_over

COLUMNS = {"age": {"min": 18, "max": 90}, "weight": {"min": 30, "max": 150}, "sex": ["f", "m"]}
DAYS = {"min": 0, "max": 100, "unit": "days"}
QUICK = {"steps": 60, "lot_size": 400, "learning_rate": 0.3, "ema": 0.0}
PUPIL = {"teacher": "mlp", "hint_epochs": 0, "teacher_epochs": 30, "rounds": 20}
SETTINGS = {
    "weights/gaussian": QUICK,
    "weights/head": {"steps": 50, "pairs": False},
    "student/private-teacher": {**PUPIL, "private": {"steps": 40, "lot_size": 300}},
    "student/ensemble": {**PUPIL, "queries": 40, "teachers": 40},
}
OF_STUDENTS = {"net": "mlp", "split": {"public": 0.2}}
PROVED = (
    "weights/gaussian", "weights/head", "answers/head", "twin/sharded", "student/private-teacher", "student/ensemble"
)  # fmt: skip
Write = Callable[[list[str]], Path]


def stays(count: int) -> list[str]:
    chance = np.random.default_rng(0)
    age, weight, male = chance.uniform(18, 90, count), chance.normal(75, 12, count), chance.integers(0, 2, count)
    days = 35 + 0.5 * (age - 54) + 0.3 * (weight - 75) + 8 * male + chance.normal(0, 4, count)
    rows = zip(age, weight, np.where(male == 1, "m", "f"), days, strict=True)
    return [f"{a:.1f},{w:.1f},{s},{d:.1f}" for a, w, s, d in rows]


def config(source: Path, method: str = "weights/gaussian", **changes: Any) -> ReleaseConfig:
    channel, _, name = method.partition("/")
    table = {
        "channel": channel, "method": name, "task": "regression", "epsilon": 8.0, "delta": 1e-5,
        "data": {"source": str(source), "name": "stays", "label": "days", "records": 1500, "target": DAYS,
                 "columns": COLUMNS},
        "settings": SETTINGS.get(method, {}),
    }  # fmt: skip
    return from_table(table | (OF_STUDENTS if channel == "student" else {}) | changes)


def with_data(source: Path, **changes: Any) -> ReleaseConfig:
    table = config(source).data.model_dump(exclude_none=True)
    return config(source, data={**table, **changes})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("table") / "stays.csv"
    file.write_text("\n".join(["age,weight,sex,days", *stays(1500)]) + "\n")
    return file


@pytest.fixture(scope="module")
def released(table: Path, tmp_path_factory: pytest.TempPathFactory) -> airlock.Outcome:
    """One release; who changes its bundle works on a copy."""
    folder = tmp_path_factory.mktemp("released")
    return make_release(config(table), folder / "bundle", insecure_seed=1, vault=folder / "vault")


@pytest.mark.parametrize("method", PROVED[1:])
def test_each_method_goes_from_a_table_to_a_bundle_that_verifies(method: str, table: Path, tmp_path: Path) -> None:
    made = make_release(config(table, method), tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
    assert verify(tmp_path / "bundle", Vault.open(tmp_path / "vault")).ok
    assert made.dossier.errors is not None
    assert made.dossier.errors.figures.explained.value > 0.7


def test_the_bundle_verifies_and_its_figures_are_in_the_unit_of_the_target(released: airlock.Outcome) -> None:
    folder, card = released.bundle.folder, released.bundle.card
    found = verify(folder, Vault.open(folder.parent / "vault"))
    assert {check.outcome for check in found.checks if check.name != "signature"} == {"ok"}
    assert card.utility is None
    assert card.errors is not None
    assert card.data.classes == ()
    assert card.errors.figures.root_mean_square.value < 9 < card.errors.figures.blind.value
    assert "days" in card.words.utility
    assert "accuracy" not in card.words.utility
    inside = released.dossier
    assert inside.utility is None
    assert inside.errors is not None
    assert inside.errors.figures.explained.value > 0.7
    open_gate = weigh(card, (), inside, recorded=True)
    assert any("better than the best constant guess" in line for line in open_gate.release)
    for text in (page.render_html(card), page.render_readme(card), page.render_dossier(inside)):
        assert "R²" in text
        assert "days" in text
        assert "classified" not in text
    assert "tabular-regression" in page.render_readme(card)


def test_the_files_give_the_number_itself(released: airlock.Outcome, table: Path) -> None:
    folder, test = released.bundle.folder, data.load(config(table)).test
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (given,) = session.run(["prediction"], {"input": test.x})
    net = nets.build("mlp", (4,), 1)
    net.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():  # as README.md says
        wanted = (net(torch.from_numpy(test.x)) + 0.5).clamp(0, 1) * 100.0 + 0.0
    np.testing.assert_allclose(given, wanted.numpy(), atol=1e-3)
    truth = 100 * test.y / STEPS
    inside = released.dossier.errors
    assert inside is not None
    assert np.abs(given[:, 0] - truth).mean() == pytest.approx(inside.figures.mean_absolute.value, abs=1e-3)
    beyond = session.run(None, {"input": np.full((1, 4), 1e6, np.float32)})[0]
    assert 0 <= float(beyond[0, 0]) <= 100


def test_a_receiver_asks_with_raw_rows(released: airlock.Outcome, table: Path, tmp_path: Path) -> None:
    folder = released.bundle.folder
    schema = json.loads((folder / "schema.json").read_text())
    assert schema["target"]["unit"] == "days"
    assert "classes" not in schema
    assert not (folder / "model.table.onnx").exists()
    model = airlock.load(folder)
    rows = [{"age": 60, "weight": 75, "sex": "m"}, {"age": 25, "weight": 75, "sex": "f"}]
    older, younger = model.predict(rows).tolist()
    assert 30 < older < 60
    assert younger < older - 5
    with pytest.raises(AirlockError, match="predicts a number"):
        model.predict_proba(rows)
    done = CliRunner().invoke(app, ["predict", str(folder), str(table), "--out", str(tmp_path / "days.csv")])
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "days.csv").read_text().splitlines()
    assert lines[0] == "row,prediction"
    assert len(lines) == 1501
    assert all(0 <= float(line.split(",")[1]) <= 100 for line in lines[1:])
    _, answerer = open_answerer(folder)
    (block,) = model.encoded(rows)
    served = answerer.answer(block.x, answerer.reserve(2), Stream.from_system()).values
    assert served is not None
    assert served[:, 0].tolist() == [older, younger]


def test_a_file_for_raw_columns_that_a_forger_adds_is_noticed(released: airlock.Outcome, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(released.bundle.folder, forged)
    (forged / "model.table.onnx").write_bytes((forged / "model.onnx").read_bytes())
    table = json.loads((forged / "card.json").read_text())
    table["hashes"]["model_table_onnx"] = table["hashes"]["model_onnx"]
    (forged / "card.json").write_text(json.dumps(table))
    seal(forged)
    failed = {check.name for check in verify(forged, Vault.open(tmp_path / "none")).checks if check.outcome == "failed"}
    assert "table" in failed


def test_the_config_in_the_bundle_leads_to_the_same_plan(released: airlock.Outcome) -> None:
    table = tomllib.loads((released.bundle.folder / "config.toml").read_text())
    assert table["task"] == "regression"
    assert table["data"]["target"] == {**DAYS, "outside": "clamp"}


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        (lambda card: card["errors"]["figures"]["mean_absolute"].update(value=0.1), "utility"),
        (lambda card: card["errors"]["counts"].update(epsilon=4.0), "utility"),
        (lambda card: card["data"]["target"].update(max=200.0), "plan"),
        (lambda card: card["network"]["target"].update(max=200.0), "onnx"),
        (lambda card: card.update(errors=None), "utility"),
    ],
)
def test_a_forged_card_is_noticed(
    released: airlock.Outcome, tmp_path: Path, changed: Callable[[Any], object], check: str
) -> None:
    failed = failures_of(released.bundle.folder, tmp_path / "bundle", changed, tmp_path / "vault")
    assert check in failed or "card" in failed


def test_a_useless_release_is_a_reason_to_reject(table: Path, tmp_path: Path) -> None:
    idle = config(table, settings={**QUICK, "steps": 1, "learning_rate": 1e-9})
    made = make_release(idle, tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
    found = weigh(made.bundle.card, (), made.dossier, recorded=True)
    assert any("no better than the best constant guess" in line for line in found.reject)


def test_the_audit_names_what_it_leaves_out(released: airlock.Outcome, table: Path) -> None:
    folder = released.bundle.folder
    found = audit_bundle(folder, AuditSettings(), overrides={"data.source": str(table)}, vault=folder.parent / "vault")
    assert {attack.name for attack in found.dossier.audit.attacks} == {"loss threshold", "gradient norm"}
    assert any("LiRA" in line for line in found.dossier.audit.not_tested)
    assert dossier.read(Vault.open(folder.parent / "vault"), released.bundle.card.release_id).errors is not None


@pytest.mark.parametrize("show", [("show",), ("show", "--dossier"), ("gate",)])
def test_the_command_line_speaks_of_errors(released: airlock.Outcome, show: tuple[str, ...]) -> None:
    folder = released.bundle.folder
    asked = [show[0], str(folder), *show[1:], "--vault", str(folder.parent / "vault")]
    said = CliRunner().invoke(app, asked, catch_exceptions=False).output
    assert "constant" in said
    assert "days" in said


@pytest.mark.parametrize("report", [dpia.make, nist.make])
@pytest.mark.parametrize("inside", [False, True])
def test_reports_speak_of_a_number(released: airlock.Outcome, report: Callable[..., Any], inside: bool) -> None:
    made = json.dumps(
        dataclasses.asdict(report(released.bundle.card, released.dossier if inside else None)), default=str
    )
    assert "predicts a number" in made
    assert "classifier" not in made


def test_people_are_protected_as_a_whole(table: Path, tmp_path: Path) -> None:
    header, *rows = table.read_text().splitlines()
    file = tmp_path / "visits.csv"
    file.write_text("\n".join([f"{header},who", *(f"{row},p{i // 3}" for i, row in enumerate(rows))]) + "\n")
    chosen = with_data(file, person="who", people=500, records_per_person=3)
    made = make_release(chosen, tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
    card = made.bundle.card
    assert card.guarantee.unit == "person"
    assert card.errors is not None
    assert 50 < card.errors.figures.records < 150  # one record of each of 100 test people


def own_net(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(shape[0], 8), torch.nn.ReLU(), torch.nn.Linear(8, classes)
    )


def test_a_network_of_ones_own_predicts_a_number_and_is_verified_by_its_name(table: Path, tmp_path: Path) -> None:
    name = f"{__name__}:{own_net.__name__}"
    made = make_release(config(table, net=name), tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
    assert made.bundle.card.network is not None
    assert made.bundle.card.network.outputs == 1
    found = airlock.verify(tmp_path / "bundle", net=name, vault=tmp_path / "vault")
    assert found.ok, [check for check in found.checks if check.outcome != "ok"]
    assert {check.outcome for check in found.checks} == {"ok"}


def test_the_python_verb_takes_a_task(table: Path, tmp_path: Path) -> None:
    import pandas as pd

    made = airlock.release(
        channel="weights", method="gaussian", task="regression", data=pd.read_csv(table), label="days", records=1500,
        target=DAYS, columns=COLUMNS, epsilon=8.0, delta=1e-5, settings=QUICK, out=tmp_path / "bundle",
        vault=tmp_path / "vault",
    )  # fmt: skip
    assert made.bundle.card.errors is not None
    assert "constant" in repr(made)


# What is declared.


@pytest.mark.parametrize("outside", ["clamp", "refuse"])
def test_a_target_outside_its_range_is_clamped_or_left_out(table: Path, tmp_path: Path, outside: str) -> None:
    file = tmp_path / "odd.csv"
    odd = ["40,70,f,250", "40,70,f,-3", "40,70,f,", "40,70,f,NaN", "40,70,f,many", "40,70,f,inf"]
    file.write_text("\n".join([*table.read_text().splitlines(), *odd]) + "\n")
    found = data.load(with_data(file, target={**DAYS, "outside": outside}))
    y = np.concatenate([part.y for part in (found.private, found.public, found.test, found.holdout)])
    assert len(y) == 1500 + (2 if outside == "clamp" else 0)
    assert y.min() >= 0
    assert y.max() <= STEPS
    assert (y == STEPS).sum() == (1 if outside == "clamp" else 0)
    assert any("not a number in column 'days'" in line for line in found.remarks)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": "classification"}, 'add task = "regression"'),
        ({"data": {"source": "a.csv"}}, "needs the range that it is in"),
        ({"data": {"source": "a.csv", "target": {"min": 3, "max": 3}}}, "min < max"),
        ({"data": {"source": "a.csv", "target": {"min": 1e9, "max": 1e9 + 10}}}, "single precision"),
        ({"data": {"source": "a.csv", "target": {"min": 0, "max": 1e-40}}}, "single precision"),
        ({"data": {"source": "a.csv", "target": {"min": 0}}}, "max"),
        ({"data": {"source": "a.csv", "target": DAYS, "classes": 2}}, "has no classes"),
        ({"split": {"public": 0.1, "public_without": ["a"]}}, "has no classes"),
        ({"tune": {"search": {"settings.steps": [1, 2]}}}, "compares candidates by their accuracy"),
        ({"attack_share": 0.1}, "are about classes"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(table: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(table, **changes)


def test_only_a_table_has_a_target(tmp_path: Path, table: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 3), np.float32), y=np.zeros(9))
    for source, more in ((tmp_path / "a.npz", {"label": None, "columns": {}}), ("digits", {})):
        kept = {} if source == "digits" else {"records": 9}
        made = {"source": str(source), "target": DAYS, **kept, **{k: v for k, v in more.items() if v}}
        with pytest.raises(ConfigError):
            plan_release(config(table, data=made))


OTHERS = [name for name in (f"{c}/{m}" for c, own in methods.METHODS.items() for m in own)
          if methods.is_built_in(name) and name not in PROVED]  # fmt: skip


@pytest.mark.parametrize("method", OTHERS)
def test_every_other_method_refuses_it_before_a_record_is_read(table: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=r"method for regression.*weights/gaussian"):
        plan_release(config(table, method, settings={}))


def test_the_methods_for_it_are_those_named() -> None:
    assert set(methods.learning("regression")) == set(PROVED)


def test_where_no_method_is_named_one_for_the_task_is_chosen(table: Path) -> None:
    free = config(table).model_dump(exclude_none=True) | {"method": None, "settings": {}}
    assert plan_release(from_table(free)).method == "head"
    with pytest.raises(ConfigError, match="method for regression"):
        plan_release(from_table({**free, "channel": "features"}))


def test_advice_is_given_and_comparisons_and_open_training_refuse_it(table: Path, tmp_path: Path) -> None:
    own = config(table).data.model_dump(exclude_none=True)
    asked = parse(CompareConfig, {"data": own, "epsilons": [1.0], "delta": 1e-5, "split": {"public": 0.2}})
    found = airlock.advise(asked, write=tmp_path / "advised.toml")
    assert found.method == "weights/head"
    assert {one.method for one in found.ranking if one.recommended} >= {
        "twin/sharded",
        "weights/gaussian",
        "answers/head",
    }
    assert plan_release(load(tmp_path / "advised.toml")).method == "head"
    with pytest.raises(ConfigError, match="classes to compare methods by"):
        airlock.compare(asked, tmp_path / "compared")
    with pytest.raises(ConfigError, match="classes to compare methods by"):
        as_search(asked)
    with pytest.raises(AirlockError, match="classes"):
        train_openly(config(table))
    assert not (tmp_path / "compared").exists()


# The court, on the configuration itself.


@pytest.mark.filterwarnings("ignore:the noise:airlock.errors.AirlockWarning")  # a small release is mostly noise
@pytest.mark.parametrize("method", PROVED)
def test_the_court_tries_a_regression(table: Path, method: str) -> None:
    chosen = config(table, method, epsilon=1.0)
    name, found = try_config(chosen, Stream.from_seed(1), pairs=100, seconds=1e9)
    assert name == method
    assert not found.refuted


@pytest.mark.filterwarnings("ignore:the noise:airlock.errors.AirlockWarning")  # a small release is mostly noise
@pytest.mark.parametrize("method", [name for name in PROVED if name != "student/ensemble"])  # below, on its own case
def test_the_court_refutes_a_regression_with_a_tenth_of_its_noise(
    table: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_over(10.0)(monkeypatch)
    made = config(table, method, epsilon=1.0)
    case = of_config(methods.build, made, data.describe(made), Run())
    assert airlock.auditing.judge(case, Stream.from_seed(1), 600, seconds=1e9).refuted


@pytest.mark.parametrize("case_of", [sharded.case_of_numbers, ensemble.case_of_numbers])
def test_methods_over_shards_have_a_case_of_numbers_that_a_quarter_of_the_noise_fails(
    case_of: Callable[[float, float], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(1.0, 1e-5)
    assert not airlock.auditing.judge(case, Stream.from_seed(1), 300, seconds=1e9).refuted
    noise_over(4.0)(monkeypatch)
    assert airlock.auditing.judge(case, Stream.from_seed(1), 2000, seconds=1e9).refuted


def test_the_record_turns_one_teachers_number_round_in_all_its_answers() -> None:
    made = ensemble.court_config(1.0, 1e-5, task="regression")
    channel = ensemble.Ensemble(made, ensemble.COURT_FACTS_OF_NUMBERS)
    questions = ensemble.court_questions(channel)
    one, other = (ensemble.court_moves(channel, questions, known) for known in (True, False))
    assert torch.equal(one[1], other[1])
    assert (one[0, :, 0] < -ensemble.COURT_BOUND).all()
    assert (other[0, :, 0] > ensemble.COURT_BOUND).all()


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("student/private-teacher", {"match": "logits"}, "settings.match where a number"),
        ("student/private-teacher", {"temperature": 2.0}, "settings.temperature where a number"),
        ("student/ensemble", {"select": "k-centre"}, "settings.select where a number"),
        ("student/ensemble", {"answers": "votes"}, 'settings.answers = "residuals" or "matrix"'),
    ],
)
def test_settings_about_classes_are_refused(table: Path, method: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_release(config(table, method, settings={**PUPIL, **settings}))

"""The estimator: it keeps scikit-learn's conventions, goes the way of every release, and holds nothing that stays."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import column_or_1d

import airlock
from airlock import estimator
from airlock.bundle import Vault
from airlock.errors import (
    AirlockError,
    AirlockWarning,
    ConfigError,
    DataError,
    Exhausted,
    LedgerUnavailable,
    OutputError,
    Refused,
)
from airlock.estimator import EXPECTED_FAILED_CHECKS, EXPECTED_FAILED_CHECKS_OF_NUMBERS, DeclarationError

QUICK: dict[str, Any] = {"method": "gaussian", "net": "linear", "settings": {"steps": 2}}
CHANCE = np.random.default_rng(3)
X = CHANCE.uniform(18, 90, (120, 2))
Y = np.where(X[:, 0] > 50, "yes", "no")
DECLARED: dict[str, Any] = {"classes": ["yes", "no"], "records": 120, "ranges": (18, 90)}
FRAME = pd.DataFrame(
    {"age": X[:, 0], "ward": CHANCE.choice(["A", "B"], 120), "who": CHANCE.integers(0, 60, 120), "dose": X[:, 1]}
)


@pytest.fixture(autouse=True)
def _no_fits_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(estimator, "_FITS", [])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=AirlockWarning)
        yield


def classifier(vault: Path, **changes: Any) -> airlock.PrivateClassifier:
    return airlock.PrivateClassifier(3.0, 1e-3, **{"vault": vault, **QUICK, **DECLARED, **changes})


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vault") / "own"


@pytest.fixture(scope="module")
def fitted(vault: Path) -> airlock.PrivateClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classifier(vault, method=None, net="auto", settings=None).fit(X, Y)


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        (airlock.PrivateClassifier, {}, EXPECTED_FAILED_CHECKS),
        (airlock.PrivateRegressor, {"target": (-500, 500)}, EXPECTED_FAILED_CHECKS_OF_NUMBERS),
    ],
)
def test_it_keeps_the_conventions_of_scikit_learn(
    kind: Any, more: dict[str, Any], expected: Mapping[str, str], vault: Path
) -> None:
    """Every check passes but those that are named, and those fail: a reason that is none any more is found.

    At this ε two fits hardly differ; whether two models name the same classes is a matter of luck all the same.
    """
    asked = kind(500.0, 1e-3, public_schema=True, vault=vault, **QUICK, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(asked, expected_failed_checks=dict(expected), on_skip=None)
    by_outcome: dict[str, set[str]] = {}
    for one in found:
        by_outcome.setdefault(one["status"], set()).add(one["check_name"])
    assert by_outcome.keys() == {"passed", "xfail", "skipped"}
    assert by_outcome["xfail"] | {"check_supervised_y_2d"} == set(expected)
    assert by_outcome["skipped"] <= {"check_pipeline_consistency", "check_array_api_input"}
    assert len(by_outcome["passed"]) >= 38


def test_what_it_predicts_is_what_the_bundle_says(
    fitted: airlock.PrivateClassifier, vault: Path, tmp_path: Path
) -> None:
    made = fitted.release(tmp_path / "out")
    assert {file.name: file.read_bytes() for file in made.folder.iterdir()} == fitted.files_
    verdict = airlock.verify_bundle(made.folder, Vault.open(vault))
    assert {check.name: check.outcome for check in verdict.checks} == {c.name: "ok" for c in verdict.checks}
    there = airlock.load(made.folder, vault=vault)
    rows = X[:7]
    assert fitted.predict(rows).tolist() == there.predict(rows).tolist()
    assert np.array_equal(fitted.predict_proba(rows), there.predict_proba(rows))
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.score(X, Y) > 0.6
    with pytest.raises(OutputError):
        fitted.release(made.folder)
    fitted.release(made.folder, force=True)


def test_a_warning_about_a_row_names_the_line_that_asked(fitted: airlock.PrivateClassifier) -> None:
    with pytest.warns(AirlockWarning, match="nearest end of the range") as told:
        fitted.predict(np.array([[200.0, 30.0]]))
    assert {Path(one.filename).name for one in told} == {Path(__file__).name}


def test_it_is_an_airlock_release_as_any(fitted: airlock.PrivateClassifier, vault: Path) -> None:
    card = fitted.card_
    assert card.guarantee.epsilon is not None
    assert 2 < card.guarantee.epsilon <= 3
    assert card.method == "head"  # chosen by the same rule
    assert not card.uncovered
    assert b'source = ":memory:"' in fitted.files_["config.toml"]
    assert Vault.open(vault).load(card.release_id)  # what stays is there, and not in the estimator


def test_a_fitted_one_holds_only_what_may_leave(fitted: airlock.PrivateClassifier, tmp_path: Path) -> None:
    """Whoever passes on a pickle passes on what the bundle has, and not the dossier or scores of single records."""
    whole = pickle.dumps(fitted)
    again = pickle.loads(whole)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.release(tmp_path / "copy").card == fitted.card_
    own = {key for key in vars(fitted) if key.endswith("_")}
    assert own == {"card_", "classes_", "files_", "model_", "n_features_in_"}
    assert b"Dossier" not in whole
    assert X[0].tobytes() not in whole
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "card_")


@pytest.mark.parametrize("cell", [1j, b"\xff", [1], None, 2.5])
def test_a_strange_label_or_identifier_is_not_refused(cell: object) -> None:
    """It would be seen; scikit-learn refuses complex numbers, and shows them."""
    for whole in (pd.Series([*Y[:-1], cell]), [*range(119), cell], pd.Series([*range(119), cell])):
        for found in (estimator._array(whole), column_or_1d(estimator._array(whole))):
            assert len(found) == 120


def test_a_pickle_names_neither_the_holders_places_nor_the_column_of_the_people(vault: Path) -> None:
    """As a bundle does not; one that is not fitted is what other processes need to fit it."""
    told = {"register": "postgresql://holder:secret@inside/register", "about": {"purpose": "triage"}}
    made = classifier(vault, person="hospital_number", config=told, settings={"steps": 2, "front": "/inside/front.pt"})
    assert pickle.loads(pickle.dumps(made)).get_params() == made.get_params()
    made.card_ = None  # as after a fit
    whole = pickle.dumps(made)
    for word in (b"hospital_number", b"secret", b"inside", str(vault).encode()):
        assert word not in whole
    again = pickle.loads(whole)
    assert again.config == {"about": {"purpose": "triage"}}
    assert again.settings["steps"] == 2
    with pytest.raises(DeclarationError, match="a column 'person', or groups"):
        again.fit(X, Y)
    assert made.person == "hospital_number"


@pytest.mark.parametrize("of", [pd.DataFrame, pl.from_pandas])
def test_frames_come_with_names_categories_and_people(of: Any, vault: Path) -> None:
    ranges = {"age": (18, 90), "ward": ["A", "B"], "dose": {"min": 0, "max": 100}}
    frame, labels = of(FRAME), pd.Series(Y, name="ill")
    model = classifier(vault, ranges=ranges, person="who", people=60).fit(frame, labels)
    assert model.card_.guarantee.unit == "person"
    assert model.feature_names_in_.tolist() == ["age", "ward", "dose"]
    assert model.model_.schema.label == "ill"
    without = of(FRAME.drop(columns="who"))
    assert model.predict(frame).tolist() == model.predict(without).tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(of(FRAME.drop(columns="age")))
    with pytest.raises(DataError, match="not a declared category in column 'ward'"):
        model.predict(of(FRAME.assign(ward="C")))
    beside = classifier(vault, ranges=ranges, people=60).fit(without, labels, groups=FRAME["who"])
    assert beside.card_.data == model.card_.data


@pytest.mark.parametrize("labels", [np.arange(120) % 2, (np.arange(120) % 2).astype(float), np.arange(120) % 2 == 1])
def test_classes_keep_the_type_of_the_labels(labels: np.ndarray, vault: Path) -> None:
    model = classifier(vault, classes=np.unique(labels)).fit(X, labels)
    assert model.classes_.dtype == labels.dtype
    assert model.predict(X).dtype == labels.dtype
    assert set(model.predict(X)) <= set(labels)


def test_what_is_left_out_is_asked_for_before_a_record_is_read(vault: Path) -> None:
    with pytest.raises(DeclarationError, match=r"`classes`; what x0, x1 may hold in `ranges`; .*`records`, found"):
        airlock.PrivateClassifier(vault=vault).fit(X, Y)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("`records`", {"records": None}),
        ("one entry of `ranges` for each of the 2 columns", {"ranges": [(0, 1)]}),
        ("`ranges` of columns of X: x0, x1, found 'age'", {"ranges": {"age": (0, 1)}}),
        ("what x1 may hold", {"ranges": {0: (0, 1)}}),
        ("a column as", {"ranges": {"x0": 3, "x1": (0, 1)}}),
        ("min < max", {"ranges": (1, 0)}),
        ("at least two classes", {"classes": ["no"]}),
        ("a list of class names", {"classes": "no"}),
        ("an argument of its own, found 'epsilon'", {"config": {"epsilon": 9}}),
        ("an argument of its own, found 'data.read_off'", {"config": {"data": {"read_off": []}}}),
        ("'person' column|a column 'who', or groups", {"person": "who"}),
        ("a channel of which a network leaves", {"channel": "features", "method": None, "net": "auto"}),
    ]
    for words, changes in cases:
        with pytest.raises((ConfigError, DataError), match=words):
            classifier(vault, **changes).fit(X, Y)
    with pytest.raises(ConfigError, match="a valid 'epsilon'"):
        airlock.PrivateClassifier(-1, vault=vault, **DECLARED).fit(X, Y)
    with pytest.raises(DeclarationError, match="about how many people"):
        classifier(vault).fit(X, Y, groups=np.arange(120))
    with pytest.raises(Refused, match="proven guarantee"):
        classifier(vault, method="published", net="auto", settings=None).fit(X, Y)
    assert estimator._FITS == []


def test_what_is_read_off_stands_on_the_card(vault: Path) -> None:
    frame = FRAME.assign(seen=pd.date_range("2020-01-01", periods=120)).astype({"age": object})
    frame.loc[3, ["dose", "ward"]] = [np.nan, None]
    asked = airlock.PrivateClassifier(3.0, 1e-3, public_schema=True, person="who", vault=vault, **QUICK)
    model = asked.fit(frame, Y)
    assert model.card_.data.read_off == ("classes", "columns", "people", "records")
    assert "Not covered: the class names, the ranges" in model.card_.headline
    columns = model.model_.schema.by_name
    assert (columns["age"].min, columns["age"].max) == (X[:, 0].min(), X[:, 0].max())
    assert (columns["ward"].categories, columns["ward"].missing) == (("A", "B"), "indicator")
    assert columns["dose"].missing == "indicator"
    assert str(columns["seen"].max) == "2020-04-29"
    some = classifier(vault, ranges={"x0": (18, 90)}, public_schema=True).fit(X, Y)
    assert some.card_.data.read_off == ("columns",)
    with pytest.raises(DeclarationError, match="at most 1,000 different texts"):
        asked.fit(pd.DataFrame({"name": [f"n{i}" for i in range(1200)], "who": 1}), np.arange(1200) % 2)
    with pytest.raises(ValueError, match="Unknown label type"):
        asked.fit(frame, X[:, 0])


def test_a_regressor_predicts_within_its_range_and_is_a_release_as_any(vault: Path, tmp_path: Path) -> None:
    asked = airlock.PrivateRegressor(
        8.0, 1e-3, target=(0, 40), unit="days", records=400, ranges=(18, 90), vault=vault, method="gaussian",
        settings={"steps": 80, "lot_size": 400, "ema": 0.0},
    )  # fmt: skip
    rows = np.random.default_rng(1).uniform(18, 90, (400, 2))
    days = rows[:, 0] / 3
    days[0], odd = 1e9, days.astype(object)
    odd[1] = "what?"
    model = asked.fit(rows, odd)
    found = model.predict(rows)
    assert found.min() >= 0
    assert found.max() <= 40
    assert model.score(rows[2:], days[2:]) > 0.5
    assert model.card_.data.target.unit == "days"
    assert pickle.loads(pickle.dumps(model)).predict(rows[:3]).tolist() == found[:3].tolist()
    folder = model.release(tmp_path / "bundle").folder
    assert airlock.verify(folder, vault=vault).ok
    assert not hasattr(model, "predict_proba")
    np.testing.assert_array_equal(airlock.load(folder).predict({"x0": rows[:, 0], "x1": rows[:, 1]}), found)


@pytest.mark.parametrize("target", [None, (1,), ("low", "high"), 5])
def test_the_range_of_a_number_is_always_declared(target: Any, vault: Path) -> None:
    asked = airlock.PrivateRegressor(target=target, public_schema=True, vault=vault)
    with pytest.raises(DeclarationError, match=r"target=\(low, high\)"):
        asked.fit(X, X[:, 0])


@pytest.mark.parametrize("cell", [np.nan, np.inf, "what?", 1j, None])
def test_a_strange_cell_or_label_raises_nothing(cell: object, vault: Path) -> None:
    """It leaves its record out, whatever numpy makes of its column: whether something is raised must not tell of it."""
    rows = pd.DataFrame(X, columns=["x0", "x1"]).astype(object)
    rows.iloc[5, 1] = cell
    labels = pd.Series(Y, dtype=object)
    labels[6] = cell
    for given in (rows, np.array(rows.to_numpy().tolist())):
        model = classifier(vault).fit(given, labels)
        assert model.classes_.tolist() == ["no", "yes"]


def test_every_fold_of_a_cross_validation_says_what_is_spent(vault: Path) -> None:
    asked = make_pipeline(FunctionTransformer(), classifier(vault))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        scores = cross_val_score(asked, X, Y, cv=3)
    assert np.isfinite(scores).all()
    said = [str(one.message) for one in told if "This is fit number" in str(one.message)]
    assert len(said) == 2
    assert said[-1].startswith("This is fit number 3")
    assert "ε = 9 at δ = 0.003" in said[-1]
    other = classifier(vault, ranges=(0, 100))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="This is fit number")
        other.fit(X, Y)
        with pytest.raises(AirlockWarning, match="fit number 2 .* ε = 6 "):  # before anything is spent
            other.fit(X, Y)
    assert [one.finished for one in estimator._FITS] == [True] * 4


def test_a_fit_that_fails_at_work_is_counted_once_though_it_is_resumed(
    vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OutputError("room on the disk", "none")

    with monkeypatch.context() as patch:
        patch.setattr("airlock.bundle.rendering.page.keep_dossier", full)
        with pytest.raises(OutputError):
            classifier(vault).fit(X, Y)
    assert [one.finished for one in estimator._FITS] == [False]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="This is fit number")
        classifier(vault).fit(X, Y, resume=True)
    assert [one.finished for one in estimator._FITS] == [True]
    with pytest.warns(AirlockWarning, match="This is fit number 2"):
        classifier(vault).fit(X, Y)


@pytest.mark.parametrize(
    "error",
    [
        DeclarationError("a", "b", "c.", "d."),
        Refused("a", "b"),
        Exhausted(3, 2, "the budget"),
        LedgerUnavailable("a", "b", uncertain=True),
    ],
)
def test_an_error_comes_back_from_a_pool_of_processes(error: AirlockError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)

"""Estimators of scikit-learn whose every `fit` is a release: `airlock.PrivateClassifier`, `airlock.PrivateRegressor`.

In: arrays or a frame and labels, with what is declared about them. Out: a fitted estimator that holds what may leave
and nothing else, so that it may be pickled, copied and passed on as its bundle may. `fit` goes the way of
`airlock.release`: plan, charge, split, release, audit, bundle and vault; what is refused there is refused here.

Whatever is declared nowhere is read off the records only with `public_schema=True`; then the card's first lines say
that the guarantee does not cover it. The range of a number to predict is never read off. Records that do not fit are
left out, as everywhere. What is raised follows from the declarations, from the form of the arrays and, with
`public_schema=True`, from what was read off as public.
"""

from __future__ import annotations

import datetime
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from airlock import api, methods
from airlock.bundle import Bundle, bundle
from airlock.bundle.contents import ONNX, TOKENIZER, without_paths
from airlock.bundle.receiving.model import ReleasedModel, schema_of
from airlock.config import Column, ReadOff, from_table
from airlock.data import memory
from airlock.data.split import Task
from airlock.errors import AccountingError, AirlockWarning, ConfigError, DataError, NetError, Refused

LABEL, PERSON = "label", "person"  # what these columns are called where the records have no names for them
MOST_CATEGORIES = 1000  # that are read off one column
# Of scikit-learn's `check_estimator`, and why: for its own parameter of this name.
EXPECTED_FAILED_CHECKS: Mapping[str, str] = {
    "check_fit_idempotent": "The noise is secret and drawn anew: a second fit is another release, of another model.",
    "check_supervised_y_2d": "The same, where the two models name different classes.",
}
EXPECTED_FAILED_CHECKS_OF_NUMBERS: Mapping[str, str] = {
    **EXPECTED_FAILED_CHECKS,
    "check_regressor_data_not_an_array": "The same: it compares two fits.",
    "check_regressors_int": "The same.",
    "check_complex_data": "A complex number leaves its own record out; one of them makes a whole array complex.",
    "check_supervised_y_no_nan": "A record whose target is no number is left out: a refusal would tell of it.",
}


class DeclarationError(ConfigError, ValueError):
    """A declaration of an estimator cannot be used; scikit-learn expects a ValueError."""


class _Releasing(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose every `fit` is a release; a subclass says what it learns."""

    person: str | None
    people: int | None
    records: int | None
    ranges: Mapping[Any, object] | Sequence[object] | None
    public_schema: bool

    def fit(self, X: Any, y: Any, groups: Any = None, *, resume: bool = False, again: bool = False) -> Self:
        """Make a release from these records. It spends ε, every time anew.

        Args:
            X: A frame, or an array with one row for each record.
            y: One label, or one number, for each record.
            groups: Whose each record is, one identifier each; where `person` names no column.
            resume: Continue a fit of the same declarations that was interrupted.
            again: Begin anew although there is an unfinished one, which spends again.

        Raises:
            AirlockError: As `airlock.release` does.
            ValueError: X or y do not have the form that scikit-learn asks for, or a declaration is missing.
        """
        whose = self._whose(X, groups)
        columns = self._columns(X, reset=True)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = column_or_1d(_array(y), warn=True)
        check_consistent_length(next(iter(columns.values())), labels, whose)
        table, learnt = self._declared(columns, labels, whose, getattr(y, "name", None))
        kept = {**columns, table["label"]: labels} | ({} if whose is None else {table["person"]: whose})
        self.model_, self.files_ = self._released(table, memory.Frame(tuple(kept), kept), resume, again)
        self.card_ = self.model_.card
        for name, value in learnt.items():
            setattr(self, name, value)
        return self

    def release(self, path: Path | str, *, force: bool = False) -> Bundle:
        """Put the bundle of the fit at its place: the same files, signed as they were made. It spends nothing more.

        Args:
            path: The folder that becomes the bundle.
            force: Replace an existing bundle.

        Raises:
            OutputError: The folder cannot be used.
        """
        check_is_fitted(self)
        return bundle.write_files(Path(path), self.files_, force=force)

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle. Of a fitted one it may leave, and is without what a bundle is without.

        That is where the vault and the register are, and what the column of the people is called: to fit it again,
        these have to be set again. One that is not fitted holds what it was told, as processes that fit it need.
        """
        state: dict[str, Any] = dict(super().__getstate__())  # which may be the very attributes
        if "card_" not in state:
            return state
        more = {key: value for key, value in (self.config or {}).items() if key not in bundle.NEVER_IN_A_BUNDLE}
        state |= {"vault": None, "person": None if self.person is None else bundle.PERSON}
        state |= {"config": without_paths(more) if self.config is not None else None}
        return state | {"settings": None if self.settings is None else without_paths(dict(self.settings))}

    _task: Task

    @property
    def _classes_left_out(self) -> bool:
        """Whether there are classes, and nobody declared them."""
        return False

    @abstractmethod
    def _learnt(self, labels: NDArray[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keys of [data] about what is learnt, and what a fitted estimator says of it."""

    def _whose(self, X: Any, groups: Any) -> NDArray[Any] | None:
        """An identifier for each record, from the frame or beside it; None where nothing says whose they are."""
        named = _is_frame(X) and self.person is not None and self.person in [str(name) for name in _names(X)]
        if named and groups is not None:
            raise DeclarationError(
                "one thing that says whose each record is",
                f"both the column '{self.person}' and groups",
                do="Pass one.",
            )
        if named:
            return memory.values_of(X[self.person])
        if groups is None and self.person is not None:
            raise DeclarationError(
                f"a column '{self.person}', or groups, that says whose each record is",
                "neither",
                "Without it a person with several records would be protected less.",
                "Pass fit(X, y, groups=IDENTIFIERS), or correct `person`.",
            )
        if groups is None:
            return None
        column_or_1d(_array(groups))  # refuses what has more dimensions
        return memory.as_array(groups).reshape(-1)

    def _columns(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """The columns by name, without that of the people; the form of X is checked, and no cell is."""
        if issparse(X):
            raise TypeError("Sparse data was passed, but dense data is required: use X.toarray() to convert it.")
        if not _is_frame(X):
            X = np.asarray(_array(X))
            _check_form(X)
            validate_data(self, X, reset=reset, skip_check_array=True)
            return {f"x{place}": X[:, place] for place in range(X.shape[1])}
        features = [name for name in _names(X) if str(name) != self.person]
        if not features:
            raise ValueError("0 feature(s) in X while a minimum of 1 is required.")
        if len({str(name) for name in features}) < len(features):
            raise ValueError("X has two columns of one name; rename one of them.")
        X = X[features] if hasattr(X, "iloc") else X.select(features)
        validate_data(self, X, reset=reset, skip_check_array=True)
        frame = memory.as_frame(X)
        assert frame is not None
        return dict(frame.columns)

    def _declared(
        self, columns: Mapping[str, Any], labels: NDArray[Any], whose: NDArray[Any] | None, label: object
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keys of [data], and what a fitted estimator says of what it learnt.

        What is left out is read off only where it is public.
        """
        more, beside = api.further(self.config)
        ranges = _by_name(self.ranges, tuple(columns))
        left_out: dict[ReadOff, bool] = {
            "classes": self._classes_left_out,
            "columns": bool(columns.keys() - ranges.keys()),
            "people": whose is not None and self.people is None and more.get("unit") != "record",
            "records": self.records is None,
        }
        read_off = tuple(name for name, left in left_out.items() if left)
        if read_off and not self.public_schema:
            raise _undeclared(read_off, columns, ranges)
        about, learnt = self._learnt(labels)
        name = _free(label if isinstance(label, str) and label.strip() else LABEL, columns)
        table = {
            "label": name,
            **about,
            "records": _counted(len(labels)) if self.records is None else _plain(self.records),
            "columns": {one: ranges[one] if one in ranges else _read_column(cells) for one, cells in columns.items()},
            "read_off": read_off,
        }
        if whose is not None:
            table["person"] = _free(self.person or PERSON, (*columns, name))
            table |= {"people": len(set(memory.text(whose)))} if left_out["people"] else {}
            table |= {} if self.people is None else {"people": _plain(self.people)}
        return {**beside, **table}, learnt

    def _released(
        self, data: dict[str, Any], frame: memory.Frame, resume: bool, again: bool
    ) -> tuple[ReleasedModel, dict[str, bytes]]:
        """Make the release; the model, and the files of its bundle."""
        asked: dict[str, Any] = {"task": self._task, "channel": self.channel, "net": self.net}
        asked |= {"epsilon": _plain(self.epsilon), "delta": _plain(self.delta)}
        asked |= {} if self.method is None else {"method": self.method}
        asked |= {} if self.settings is None else {"settings": dict(self.settings)}
        asked |= api.further(self.config)[0]
        config = from_table({**asked, "data": {**data, "source": memory.SOURCE}})
        if methods.find(config).artefact != "network":
            raise DeclarationError("a channel of which a network leaves", f"'{self.channel}'", "It has to predict.")
        learnt, columns = (data.get("classes"), data.get("target")), sorted(data["columns"])
        key = repr((learnt, self.records, self.ranges, self.person, self.people, columns))
        fit = _Fit(key, config.epsilon, config.delta)
        if resume:  # it goes on with what was counted when it began
            _FITS[:] = [one for one in _FITS if one.finished or one != fit]
        _warn_of_fits(fit)
        _FITS.append(fit)
        table = {**asked, "data": {**data, "source": frame}}
        try:
            with api.made_aside(table, resume=resume, again=again, vault=self.vault) as (made, files):
                model = ReleasedModel(made.bundle.card, schema_of(made.bundle), files[ONNX], files.get(TOKENIZER))
        except _UNSPENT:
            _FITS.remove(fit)
            raise
        fit.finished = True
        return model, files


class PrivateClassifier(ClassifierMixin, _Releasing):  # type: ignore[misc]
    """A classifier trained with differential privacy, for scikit-learn.

    Every `fit` is a release: it trains under (ε, δ), attacks the result, writes card and dossier, and spends. The
    bundle stays in memory until `release(path)` puts it somewhere; it is signed by the vault's key.

    >>> import airlock, numpy as np
    >>> chance = np.random.default_rng(0)
    >>> X = chance.uniform(18, 90, (300, 2))
    >>> y = np.where(X[:, 0] > 50, "yes", "no")
    >>> model = airlock.PrivateClassifier(
    ...     epsilon=3, delta=1e-3, classes=["no", "yes"], records=300, ranges=(18, 90), vault="estimator-vault"
    ... )
    >>> model.fit(X, y).predict(X[:3]).shape
    (3,)
    >>> model.card_.guarantee.epsilon <= 3
    True
    >>> model.release("estimator-bundle").folder.name
    'estimator-bundle'

    Args:
        epsilon: The ε of one fit.
        delta: The δ at which it is stated.
        classes: The class names, in the type of the labels; or their number, where they are 0, 1, 2 ...
        records: About how many records there are: a round public figure.
        ranges: What each column may hold: (low, high) for numbers, a list of the categories, or a table as in a config
            (`{"min": 0, "max": 9, "missing": 5}`), by column name. A list has one entry for each column in order, and
            a single pair is the range of all columns. The columns of an array are called x0, x1, ...
        person: The column of a frame that says whose a record is. It is never a feature.
        people: About how many people there are.
        public_schema: Read whatever is left out of `classes`, `records`, `ranges` and `people` off the records. That
            is right only where it is public anyway: no ε covers it, and the card's first lines say so.
        channel: What leaves: a channel of which a network leaves.
        method: How it is made; chosen from public facts when left out.
        net: The network.
        settings: The method's own settings.
        config: Further keys of a config: `{"split": {"test": 0.1}, "about": {...}, "data": {"name": "ward 3"}}`.
        vault: Where what must not leave is kept.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        classes: Sequence[object] | int | None = None,
        records: int | None = None,
        ranges: Mapping[Any, object] | Sequence[object] | None = None,
        person: str | None = None,
        people: int | None = None,
        public_schema: bool = False,
        channel: str = "weights",
        method: str | None = None,
        net: str = "auto",
        settings: Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
        vault: Path | str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.records = records
        self.ranges = ranges
        self.person = person
        self.people = people
        self.public_schema = public_schema
        self.channel = channel
        self.method = method
        self.net = net
        self.settings = settings
        self.config = config
        self.vault = vault

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class for each row, in the order of `classes_`.

        Raises:
            DataError: A row does not fit what was declared.
        """
        check_is_fitted(self)
        found: NDArray[np.float64] = self.model_.predict_proba(self._columns(X, reset=False))
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row.

        Raises:
            DataError: A row does not fit what was declared.
        """
        likely = self.predict_proba(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[likely]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = _tags(super().__sklearn_tags__())
        tags.classifier_tags.poor_score = True  # at a small ε, on a few hundred records
        return tags

    _task: Task = "classification"

    @property
    def _classes_left_out(self) -> bool:
        return self.classes is None

    def _learnt(self, labels: NDArray[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        classes = _classes(_read_classes(labels) if self.classes is None else self.classes)
        return {"classes": memory.text(classes)}, {"classes_": classes}


class PrivateRegressor(RegressorMixin, _Releasing):  # type: ignore[misc]
    """A regression trained with differential privacy, for scikit-learn; otherwise as `PrivateClassifier`.

    >>> import airlock, numpy as np
    >>> chance = np.random.default_rng(0)
    >>> X = chance.uniform(18, 90, (300, 2))
    >>> y = X[:, 0] / 3 + chance.normal(size=300)
    >>> model = airlock.PrivateRegressor(
    ...     epsilon=3, delta=1e-3, target=(0, 40), unit="days", records=300, ranges=(18, 90), vault="estimator-vault"
    ... )
    >>> found = model.fit(X, y).predict(X[:3])
    >>> bool((found >= 0).all() and (found <= 40).all())
    True

    Args:
        epsilon: The ε of one fit.
        delta: The δ at which it is stated.
        target: The range of the number, (low, high); it is always declared. A number outside counts as the nearer end.
        unit: What the number is measured in, such as "days".
        records: About how many records there are: a round public figure.
        ranges: What each column may hold, as in `PrivateClassifier`.
        person: The column of a frame that says whose a record is. It is never a feature.
        people: About how many people there are.
        public_schema: Read whatever is left out of `records`, `ranges` and `people` off the records, where that is
            public anyway.
        channel: What leaves: a channel of which a network leaves.
        method: How it is made; chosen from public facts when left out.
        net: The network.
        settings: The method's own settings.
        config: Further keys of a config.
        vault: Where what must not leave is kept.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        target: Sequence[float] | None = None,
        unit: str | None = None,
        records: int | None = None,
        ranges: Mapping[Any, object] | Sequence[object] | None = None,
        person: str | None = None,
        people: int | None = None,
        public_schema: bool = False,
        channel: str = "weights",
        method: str | None = None,
        net: str = "auto",
        settings: Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
        vault: Path | str | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.target = target
        self.unit = unit
        self.records = records
        self.ranges = ranges
        self.person = person
        self.people = people
        self.public_schema = public_schema
        self.channel = channel
        self.method = method
        self.net = net
        self.settings = settings
        self.config = config
        self.vault = vault

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number for each row, within the declared range.

        Raises:
            DataError: A row does not fit what was declared.
        """
        check_is_fitted(self)
        return np.asarray(self.model_.predict(self._columns(X, reset=False)), np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = _tags(super().__sklearn_tags__())
        tags.regressor_tags.poor_score = True
        return tags

    _task: Task = "regression"

    def _learnt(self, labels: NDArray[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        ends: list[Any] | None = list(self.target) if isinstance(self.target, Sequence | np.ndarray) else None
        if ends is None or not _is_pair(ends) or isinstance(ends[0], datetime.date):
            raise DeclarationError(
                "the range of the number to predict as target=(low, high)",
                "none" if self.target is None else repr(self.target),
                "It is never read off the records: the largest of them would be on the card.",
                "Declare it as it is known without looking.",
            )
        target = {"min": float(ends[0]), "max": float(ends[1]), **({"unit": self.unit} if self.unit else {})}
        return {"target": target}, {}


def _tags(tags: Any) -> Any:
    """What holds for both: the noise is secret, and cells may be missing or text."""
    tags.non_deterministic = True
    tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
    return tags


# How often the same records were fitted.


@dataclass
class _Fit:
    """One of this process: what was declared, its (ε, δ), and whether it came to its end."""

    declared: str
    epsilon: float
    delta: float
    finished: bool = False


_FITS: list[_Fit] = []
_UNSPENT = (ConfigError, DataError, NetError, AccountingError, Refused)  # before a record is read, nothing is spent


def _warn_of_fits(fit: _Fit) -> None:
    """Say what fits with the same declarations add up to: the folds of a cross-validation, or candidates of a search.

    By basic composition, which needs no assumption about what the fits have in common.
    """
    spent = [one for one in _FITS if one.declared == fit.declared]
    if not spent:
        return
    epsilon, delta = sum(one.epsilon for one in (*spent, fit)), sum(one.delta for one in (*spent, fit))
    warnings.warn(
        f"This is fit number {len(spent) + 1} with these declarations. Every fit, and so every fold of a "
        f"cross-validation and every candidate of a grid search, is a release of its own and spends anew: together "
        f"they spend ε = {epsilon:g} at δ = {delta:g} on whoever is in all of them. The card's accuracy needs no "
        "second fit: every fit holds records back for it. To choose between settings within one ε, use airlock.tune.",
        AirlockWarning,
        stacklevel=4,
    )


# What is declared, in any of the forms that are taken.


def _array(value: Any) -> Any:
    """A list as an array whose cells keep their types: one of them would otherwise change all others.

    Nor may one complex number decide that all are, which scikit-learn refuses.
    """
    if isinstance(value, list | tuple):
        return memory.as_array(value)
    return np.asarray(value).astype(object) if getattr(getattr(value, "dtype", None), "kind", "") == "c" else value


def _is_frame(X: object) -> bool:
    return hasattr(X, "column_names") or (hasattr(X, "columns") and not isinstance(X, np.ndarray))


def _names(X: Any) -> list[Any]:
    return list(X.column_names if hasattr(X, "column_names") else X.columns)


def _check_form(X: NDArray[Any]) -> None:
    """Two dimensions, and at least one column: what is public of an array."""
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {X.ndim}D array instead. Reshape your data either using array.reshape(-1, 1) if "
            "your data has a single feature or array.reshape(1, -1) if it contains a single sample."
        )
    if X.shape[1] == 0:
        raise ValueError(f"0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, which a config can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _free(name: str, taken: Sequence[str] | Mapping[str, object]) -> str:
    """A name that no column has."""
    while name in taken:
        name += "_"
    return name


def _classes(declared: object) -> NDArray[Any]:
    """The class names in order, in the type of the labels."""
    if isinstance(declared, int | np.integer) and not isinstance(declared, bool):
        return np.arange(max(0, int(declared)))
    names = np.asarray(declared)
    if names.ndim != 1 or None in memory.text(names):
        raise DeclarationError("`classes` as a list of class names or their number", "something else")
    return np.unique(names)


def _by_name(ranges: Any, names: Sequence[str]) -> dict[str, object]:
    """The declared columns as those of a config."""
    if ranges is None:
        return {}
    if isinstance(ranges, Mapping):
        named = {f"x{key}" if f"x{key}" in names else str(key): value for key, value in ranges.items()}
        if unknown := [name for name in named if name not in names]:
            raise DeclarationError(
                f"`ranges` of columns of X: {', '.join(names)}", f"'{unknown[0]}'", do="Correct the name."
            )
        return {name: _column(value) for name, value in named.items()}
    entries = list(ranges)
    if _is_pair(entries):
        return dict.fromkeys(names, _column(entries))
    if len(entries) != len(names):
        raise DeclarationError(
            f"one entry of `ranges` for each of the {len(names)} columns, or one pair for all", f"{len(entries)}"
        )
    return {name: _column(value) for name, value in zip(names, entries, strict=True)}


def _is_pair(value: Sequence[object]) -> bool:
    """Whether it is (low, high): two numbers or two dates."""
    numbers = (int, float, np.integer, np.floating)
    return len(value) == 2 and (
        all(isinstance(end, numbers) and not isinstance(end, bool) for end in value)
        or all(isinstance(end, datetime.date) for end in value)
    )


def _column(value: Any) -> object:
    """One column as in a config: (low, high), a list of categories, or a table."""
    if isinstance(value, Column):
        return value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise DeclarationError(
            "a column as (low, high), a list of categories, or a table such as {'min': 0, 'max': 9}", repr(value)
        )
    ends = list(value)
    if not _is_pair(ends):
        return memory.text(np.asarray(ends, object))
    low, high = (end if isinstance(end, datetime.date) else float(end) for end in ends)
    return {"min": low, "max": high}


def _undeclared(left_out: Sequence[ReadOff], columns: Mapping[str, Any], ranges: Mapping[str, object]) -> ConfigError:
    missing = [name for name in columns if name not in ranges]
    named = ", ".join(missing[:5]) + (" and others" if len(missing) > 5 else "")
    says: Mapping[ReadOff, str] = {
        "classes": "the class names in `classes`",
        "columns": f"what {named} may hold in `ranges`",
        "people": "about how many people there are in `people`",
        "records": "about how many records there are in `records`",
    }
    return DeclarationError(
        "; ".join(says[name] for name in left_out),
        "nothing declared",
        "Read off the records, these would tell of single people, and no ε would pay for it.",
        "Declare them as they are known without looking; or, where they are public anyway, set public_schema=True.",
    )


# What is read off the records where the user says that it is public.


def _counted(records: int) -> int:
    if records == 0:
        raise DeclarationError("records, from which their number can be read off", "0 sample(s)")
    return records


def _read_classes(labels: NDArray[Any]) -> NDArray[Any]:
    """The classes that occur.

    Raises:
        ValueError: They are no classes, as of a regression, or there are fewer than two.
    """
    texts = memory.text(labels)
    there = labels[[text is not None for text in texts]]
    there = np.asarray(there.tolist()) if there.dtype == object else there
    _counted(len(there))
    check_classification_targets(there)
    try:
        found = np.unique(there)
    except TypeError:  # of several types
        found = np.unique([text for text in texts if text is not None])
    if len(found) < 2:
        raise DeclarationError("at least two classes among the labels", "1 class", "There would be nothing to learn.")
    return found


def _read_column(cells: Any) -> object:
    """The range or the categories of one column; a missing value is a feature of its own where there are any."""
    values = np.asarray(cells).reshape(-1)
    if values.dtype.kind == "M":
        there = values[~np.isnat(values)].astype("datetime64[D]").astype(object).tolist()
        return _ranged(there or [datetime.date(1970, 1, 1)], len(there) < len(values), datetime.timedelta(days=1))
    texts = memory.text(values, ("0", "1"))
    known = [text for text in texts if text is not None and text.strip()]
    try:
        numbers = [float(text) for text in known]
    except ValueError:
        return _categories(sorted({text.strip() for text in known}), len(known) < len(texts))
    finite = [number for number in numbers if np.isfinite(number)]
    return _ranged(finite or [0.0], len(known) < len(texts), 1.0)


def _ranged(values: Sequence[Any], gaps: bool, step: Any) -> object:
    low, high = min(values), max(values)
    return {"min": low, "max": high if high > low else low + step, **({"missing": "indicator"} if gaps else {})}


def _categories(found: list[str], gaps: bool) -> object:
    if len(found) > MOST_CATEGORIES:
        raise DeclarationError(
            f"at most {MOST_CATEGORIES:,} different texts in a column whose categories are read off",
            f"{len(found):,}",
            "Each becomes a feature; names and free text are no categories.",
            "Leave the column out, or declare its categories in `ranges`.",
        )
    return {"categories": found, **({"missing": "indicator"} if gaps and "indicator" not in found else {})}

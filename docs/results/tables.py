"""Eight tables that no setting was looked up on, from file to bundle by `advise`, `release`, `verify` and `gate`.

    python docs/results/tables_peers.py FOLDER prepare                         # in an environment of its own
    python docs/results/tables.py FOLDER [--seeds 3] >> docs/results/tables.jsonl
    python docs/results/tables_peers.py FOLDER fit >> docs/results/tables.jsonl # peers, on the same parts
    python docs/results/tables.py docs/results/tables.jsonl --page             # the tables of tables.md

Every line is one release or one peer: table, method, ε, seed, and exact figures on the test part, which is public data
here. What is in tables.jsonl already is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from tables_peers import ADULT, DELTA, EPSILONS, OPEN, PRIVATE, TABLES, Row, figures, keys_of, rows_of
from typer.testing import CliRunner

from airlock import data
from airlock.bundle import Vault
from airlock.bundle.bundle import read
from airlock.cli import app
from airlock.config import ReleaseConfig, load

ADVISED = "airlock, as advised"


def main() -> None:
    """Release, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--known", type=Path, default=Path(__file__).with_name("tables.jsonl"))
    parser.add_argument("--data-dir", type=Path, help="Where Adult is: it is measured too, at ε = 1.")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        print("\n\n".join(page(rows_of(given.folder))))
        return
    for row in released(given.folder, range(given.seeds), keys_of(rows_of(given.known)), given.data_dir):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def released(folder: Path, seeds: Iterable[int], known: set[tuple[Any, ...]], data_dir: Path | None) -> Iterator[Row]:
    """One row for each table, ε and seed that is not known yet."""
    wanted = [(name, epsilon) for name in TABLES for epsilon in EPSILONS]
    for seed in seeds:
        for name, epsilon in [*wanted, *([] if data_dir is None else [(ADULT, 1.0)])]:
            if (name, ADVISED, epsilon, seed) not in known:
                yield release(folder, name, epsilon, seed, data_dir)


def release(folder: Path, name: str, epsilon: float, seed: int, data_dir: Path | None) -> Row:
    """Advise, release, verify and weigh one table, and measure what leaves."""
    config, bundle = folder / f"{name}-{epsilon:g}.toml", folder / f"{name}-{epsilon:g}-{seed}"
    vault = folder / "vault"
    asked = ["--epsilon", f"{epsilon:g}", "--delta", f"{DELTA:g}", "--receives", "white-box"]
    there = [] if data_dir is None else ["--data-dir", data_dir]
    what = ["--data", ADULT] if name == ADULT else [folder / f"{name}.toml"]
    command("advise", *what, *there, *asked, "--write", config, "--force")
    command("release", config, *there, "--out", bundle, "--seed", seed, "--vault", vault, "--force")
    command("verify", bundle, "--vault", vault)
    weighed, _ = command("gate", bundle, "--vault", vault, fails=True)
    made = read(bundle)
    found = Vault.open(vault).load(made.card.release_id)["outcomes"]
    keep_parts(load(config, {"seed": seed}), folder / f"{name}-{seed}.npz", data_dir)
    chosen = tomllib.loads(config.read_text("utf-8"))
    return {
        "data": name,
        "method": ADVISED,
        "epsilon": epsilon,
        "seed": seed,
        **figures(found["labels"], found["scores"]),
        "advised": f"{chosen['channel']}/{chosen['method']}",
        "net": str(made.card.details.get("net", "")),
        "unit": made.card.guarantee.unit,
        "stated": made.card.guarantee.epsilon,
        "gate": weighed,
    }


def command(*words: object, fails: bool = False) -> tuple[int, str]:
    """Run one command of Airlock in this process; its exit status and what it printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exit_code and not fails:
        raise SystemExit(f"airlock {' '.join(map(str, words))}: {done.output}")
    return done.exit_code, done.output


def keep_parts(config: ReleaseConfig, path: Path, data_dir: Path | None) -> None:
    """The parts of this seed, for peers; the same at every ε."""
    if path.exists():
        return
    split = data.load(config, data_dir)
    person = split.private.person
    np.savez(
        path,
        x=split.private.x,
        y=split.private.y,
        person=np.zeros(0) if person is None else person,
        x_test=split.test.x,
        y_test=split.test.y,
        widths=[column.width for _, column in split.facts.columns],
    )


# The page.


def page(rows: list[Row]) -> list[str]:
    """A table of AUCs for each ε, then accuracy and calibration error."""
    found = []
    for epsilon in EPSILONS:
        for key, title, form in (
            ("auc", "AUC", "{:.3f}"), ("accuracy", "accuracy in %", "{:.1f}"),
            ("calibration_error", "calibration error", "{:.3f}"),
        ):  # fmt: skip
            found.append("\n".join([f"**{title}, ε = {epsilon:g}**", "", *table(rows, epsilon, key, form)]))
    return found


def table(rows: list[Row], epsilon: float, key: str, form: str) -> list[str]:
    """One line per data set; the best private method in bold."""
    private, everybody = [ADVISED, *PRIVATE], [ADVISED, *PRIVATE, *OPEN]
    lines = ["| data | " + " | ".join(everybody) + " |", "|---" * (len(everybody) + 1) + "|"]
    adult = [ADULT] if (ADULT, ADVISED, epsilon, 0) in keys_of(rows) else []
    for name in [*TABLES, *adult]:
        means = {method: mean(rows, name, method, epsilon, key) for method in everybody}
        best = (min if key == "calibration_error" else max)(v for m in private if (v := means[m]) is not None)
        cells = [name]
        for method, value in means.items():
            text = "–" if value is None else form.format(100 * value if key == "accuracy" else value)
            cells.append(f"**{text}**" if value is not None and method in private and value == best else text)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def mean(rows: list[Row], name: str, method: str, epsilon: float, key: str) -> float | None:
    """Over seeds; None where the method does not run."""
    at = None if method in OPEN else epsilon
    own = [row for row in rows if (row["data"], row["method"], row["epsilon"]) == (name, method, at)]
    figures_of = [float(row[key]) for row in own if key in row]
    return fmean(figures_of) if figures_of and len(figures_of) == len(own) else None


if __name__ == "__main__":
    main()

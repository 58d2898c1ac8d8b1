"""Draws the figures of docs/results/twin.md from twin.json, the rows that twin.py and twin_attack.py printed.

python docs/results/twin_draw.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plot import Line, Panel, write

HERE = Path(__file__).resolve().parent
EPSILONS = (0.05, 0.1, 0.5, 1, 2, 5)
Rows = list[dict[str, Any]]


def main() -> None:
    """Read the rows, write the pictures."""
    found = json.loads((HERE / "twin.json").read_text(encoding="utf-8"))
    _stages(found)
    _budgets(found)
    _slices(found["slices"])
    _attack(found["attack"])


def _mean(rows: Rows, column: str) -> float:
    values = [100 * float(row[column]) for row in rows if column in row]
    return sum(values) / len(values)


def _by_epoch(rows: Rows, column: str, offset: float = 0.0) -> list[tuple[float, float]]:
    epochs = sorted({row["epoch"] for row in rows})
    return [(offset + epoch, _mean([row for row in rows if row["epoch"] == epoch], column)) for epoch in epochs]


def _stages(found: dict[str, Rows]) -> None:
    """Figures 4 and 5."""
    names = {"single": "single model", "twin 0.1": "twin, ε = 0.1", "twin 1": "twin, ε = 1"}
    names |= {"twin 5": "twin, ε = 5"}
    panels = [
        Panel(
            title,
            "epoch",
            [
                Line(name, _by_epoch(found[key], column, offset), "none" if column == "single" else "triangle")
                for column, name in names.items()
            ],
            low,
            high,
            ticks=[offset + epoch for epoch in sorted({row["epoch"] for row in found[key]})],
        )
        for title, key, low, high, offset in (
            ("MNIST-Net, test accuracy by stage", "mnist shared", 94.0, 100.0, 0.0),
            ("CIFAR-Net, test accuracy by stage", "cifar10", 72.0, 82.0, 10.0),
        )
    ]
    write(HERE / "twin-stages.svg", "Test accuracy of twins by training stage", panels)


def _budgets(found: dict[str, Rows]) -> None:
    """Figures 6 to 11; in the last stage."""
    shared, cifar = ([row for row in found[key] if row["epoch"] == 10] for key in ("mnist shared", "cifar10"))
    apart = found["mnist independent"]
    aligned = [row for row in apart if row["form"] == "aligned"]

    def drawn(name: str, rows: Rows) -> Line:
        return Line(name, [(e, _mean(rows, f"twin {e:g}")) for e in EPSILONS])

    def level(name: str, rows: Rows, over: tuple[float, ...] = EPSILONS) -> Line:
        return Line(name, [(e, _mean(rows, "single")) for e in over], "none")

    def groups(rows: Rows, over: tuple[float, ...], form: str) -> list[tuple[float, float]]:
        return [(e, _mean(rows, "groups " + form.format(f"{e:g}"))) for e in over]

    first, second, third = (0.1, 0.5, 1.0, 2.0, 5.0), (0.1, 0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 1.5, 2.0, 4.0)
    of_cifar = (1.0, 2.0, 3.0, 4.0)
    panels = [
        Panel(
            "MNIST-Net, DP-PG",
            "claimed ε",
            [drawn("shared start", shared), level("its single model", shared), drawn("own starts, aligned", aligned)],
            96.0,
            100.0,
            True,
            EPSILONS,
        ),
        Panel(
            "CIFAR-Net, DP-PG",
            "claimed ε",
            [drawn("common start", cifar), level("its single model", cifar)],
            72.0,
            82.0,
            True,
            EPSILONS,
        ),
        Panel(
            "MNIST-Net, DP-PGP (others 5, 1, 4)",
            "claimed ε1, ε2 or ε3",
            [
                Line("ε1, of the draws", groups(shared, first, "{}/1/4")),
                Line("ε2, of the clusters", groups(shared, second, "5/{}/4")),
                Line("ε3, of the residuals", groups(shared, third, "5/1/{}")),
                level("single model", shared, first),
            ],
            96.0,
            100.0,
            True,
            (0.1, 0.5, 1, 2, 5),
        ),
        Panel(
            "CIFAR-Net, DP-PGP (ε1 = 5, ε2 = 1)",
            "claimed ε3",
            [Line("ε3", groups(cifar, of_cifar, "5/1/{}")), level("single model", cifar, of_cifar)],
            0.0,
            100.0,
            ticks=of_cifar,
        ),
    ]
    write(HERE / "twin-budgets.svg", "Test accuracy of twins by claimed ε", panels)


def _slices(slices: Rows) -> None:
    """Figure 3: a histogram, the estimated density, and what is drawn at ε = 1."""
    panels = []
    for one in slices:
        values, grid = one["values"], one["grid"]
        low, high, bins = grid[0], grid[-1], 12
        width = (high - low) / bins
        counts = [sum(low + i * width <= v < low + (i + 1) * width for v in values) for i in range(bins)]
        bars = [(low + i * width, low + (i + 1) * width, count / len(values) / width) for i, count in enumerate(counts)]
        step = grid[1] - grid[0]
        drawn = [p / step for p in one["drawn"]]
        top = max(max(one["density"]), max(bar[2] for bar in bars)) * 1.05
        scale = top / max(drawn)
        panels.append(
            Panel(
                f"Parameter {int(one['parameter'][0]):,}",
                "value",
                [
                    Line("estimated density", list(zip(grid, one["density"], strict=True)), "none"),
                    Line("drawn at ε = 1 (scaled)", [(g, d * scale) for g, d in zip(grid, drawn, strict=True)], "none"),
                ],
                0.0,
                top,
                ticks=(low, (low + high) / 2, high),
                names=[f"{t:.3f}" for t in (low, (low + high) / 2, high)],
                bars=bars,
                unit="",
            )
        )
    write(HERE / "twin-slices.svg", "Three slices of the collection", panels, 3)


def _attack(rows: Rows) -> None:
    """Figure 12."""
    names = {"single model": "single model", "DP-PG (1)": "DP-PG (1)", "DP-PGP (5, 1, 4)": "DP-PGP (5, 1, 4)"}
    panels = []
    for title, config in (
        ("Twins that work (test accuracy 65%)", "overfitted: "),
        ("Twins that do not (10%)", "overfitted-apart: "),
    ):
        own = {row["what"].rpartition(": ")[2]: row for row in rows if config in row["what"]}
        lines = [
            Line(
                label,
                [(c, 100 * a) for c, a in enumerate(own[name]["attack"])],
                "none" if "single" in name else "triangle",
            )
            for name, label in names.items()
        ]
        panels.append(Panel(title, "class", lines, 50.0, 90.0, ticks=range(10)))
    write(HERE / "twin-attack.svg", "Attack accuracy class by class", panels)


if __name__ == "__main__":
    main()

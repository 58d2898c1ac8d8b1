"""`airlock plan`: the guarantee before any data is touched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from airlock.cli.terminal import (
    ConfigArgument,
    DataDirOption,
    DeltaOption,
    EpsilonOption,
    JsonOption,
    SeedOption,
    SetOption,
    overrides,
    print_json,
    print_table,
    protects,
    translate_errors,
)


@translate_errors
def plan(
    config: Path = ConfigArgument,
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    as_json: bool = JsonOption,
) -> None:
    """Say what a release would cost, before any record is read."""
    from airlock.config import load
    from airlock.pipeline import plan_release

    made = plan_release(load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed)), data_dir)
    if as_json:
        print_json(
            {
                "channel": made.channel,
                "method": made.method,
                "guarantee": made.guarantee.to_dict(),
                "details": dict(made.details),
            }
        )
        return
    promise = made.guarantee
    rows: list[tuple[str, Any]] = [
        ("what leaves", made.leaves),
        ("status", promise.status),
        ("protects", protects(promise.unit, promise.relation)),
        ("ε", f"{promise.epsilon:.4f}" if math.isfinite(promise.epsilon) else "no bound"),
        ("δ", f"{promise.delta:g}"),
        ("accountant", f"{promise.accountant_used}, {promise.accountant_version}"),
        ("sampling", promise.sampling),
        *((key.replace("_", " "), _number(value)) for key, value in made.details.items()),
    ]
    print_table(f"Plan: {made.channel}/{made.method}", ["", ""], [[key, str(value)] for key, value in rows])


def _number(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

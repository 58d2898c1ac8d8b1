"""`airlock plan`: the guarantee before any data is touched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.characterise import choice, chosen_json
from airlock.cli.chart import chart
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
    print_lines,
    print_table,
    protects,
    shown,
    translate_errors,
)
from airlock.errors import ConfigError, Refused

if TYPE_CHECKING:
    from airlock.accounting import Curve
    from airlock.config import ReleaseConfig
    from airlock.methods import Plan
    from airlock.methods.features.choose import Chosen

NO_CURVE = "There is no curve of ε: nothing is promised, after however few steps; what a paper claims is not drawn."


@translate_errors
def plan(
    config: Path = ConfigArgument,
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    figure: Path | None = typer.Option(
        None, "--figure", help="Also draw ε on the way through the run into this SVG file.", show_default=False
    ),
    characterised: Path | None = typer.Option(
        None,
        "--characterised",
        help="What `airlock features characterise` wrote: say which layers and channels keep to the limits, and why.",
        show_default=False,
    ),
    as_json: bool = JsonOption,
) -> None:
    """Say what a release would cost, before any record is read."""
    from airlock.bundle.rendering.charts import check_figure, write_figure
    from airlock.config import load
    from airlock.pipeline import plan_release

    if figure is not None:
        check_figure(figure)
    asked = load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed))
    chosen = _chosen(asked, characterised, figure)
    made = plan_release(asked, data_dir)
    curve = made.curve()
    if figure is not None and chosen is None:
        write_figure(figure, _drawable(made, curve), f"Plan: {made.channel}/{made.method}")
    if as_json:
        print_json(
            {
                "channel": made.channel,
                "method": made.method,
                "guarantee": made.guarantee.to_dict(),
                "details": dict(made.details),
                "curve": curve.to_dict() if curve else None,
            }
            | ({"chosen": chosen_json(chosen)} if chosen else {})
        )
        return
    _print_table(made)
    if chosen and "chosen" not in made.details:
        print_lines(lambda width, plain: chosen.why)
    if curve:
        print_lines(lambda width, plain: chart(curve, width, plain=plain))
    elif math.isinf(made.guarantee.epsilon):
        print_lines(lambda width, plain: NO_CURVE)
    if figure is not None:
        print_lines(lambda width, plain: f"Figure: {shown(figure)}")


def _chosen(config: ReleaseConfig, file: Path | None, figure: Path | None) -> Chosen | None:
    """Layers and channels by the config's limits, from public measurements; the picture is of these."""
    if config.channel != "features":
        if file is not None:
            raise ConfigError("--characterised with the channel features", f"'{config.channel}'")
        return None
    named = file or config.settings.get("characterised")
    if named is None:
        return None
    from airlock.methods.features.characterised import Characterised

    return choice(Characterised.read(Path(named)), config, figure)


def _drawable(made: Plan, curve: Curve | None) -> Curve:
    if curve is not None:
        return curve
    what = f"an ε to draw for {made.channel}/{made.method}"
    if math.isfinite(made.guarantee.epsilon):
        raise Refused(what, "one that does not build up in steps", do="Leave out --figure.")
    why = "A figure of a claim would look like a promise."
    raise Refused(what, "no bound", why, "Leave out --figure, or take a method that is proven.")


def _print_table(made: Plan) -> None:
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

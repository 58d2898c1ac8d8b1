"""`airlock features`: features instead of data.

`characterise` measures a front end's leakage and utility on public data, and its cost on this machine; `extract` runs
where the records are, `train` where the features go.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import (
    AgainOption,
    ConfigArgument,
    DataDirOption,
    DeltaOption,
    EpsilonOption,
    ForceOption,
    JsonOption,
    OutOption,
    SeedOption,
    SetOption,
    SignerOption,
    ToOption,
    VaultOption,
    overrides,
    print_json,
    print_table,
    progress_bar,
    shown,
    translate_errors,
)
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.config import ReleaseConfig
    from airlock.training.front_ends.characterised import Characterised
    from airlock.training.front_ends.choose import Chosen

features = typer.Typer(no_args_is_help=True, help="Front ends, and the features that they compute.")


@features.command("characterise")
@translate_errors
def characterise(
    config: Path = ConfigArgument,
    out: Path = typer.Option(..., "--out", "-o", help="The JSON file for the measurements."),
    layers: str = typer.Option("", "--layers", help="Numbers of layers, such as 1,2,6; 1 to 10 by default."),
    channels: str = typer.Option("4,8,16,32,64", "--channels", help="Numbers of channels, such as 4,16,64."),
    seeds: int = typer.Option(1, "--seeds", min=1, help="Draws of channels per point."),
    single: int | None = typer.Option(
        None, "--single", help="Also measure every single channel after N layers, for pruning.", show_default=False
    ),
    quick: bool = typer.Option(False, "--quick", help="A coarse grid with short trainings."),
    onnx: bool = typer.Option(True, "--onnx/--no-onnx", help="Whether to time ONNX Runtime too."),
    figure: Path | None = typer.Option(
        None, "--figure", help="Also plot the points, and the one chosen by the limits, in this SVG file.",
        show_default=False,
    ),
    data_dir: Path | None = DataDirOption,
    settings: list[str] = SetOption,
    as_json: bool = JsonOption,
) -> None:  # fmt: skip
    """Measure a front end's leakage and utility on public data, and its cost on this machine; resumable."""
    from airlock.bundle.rendering.svg import check_figure
    from airlock.config import load
    from airlock.training import Run
    from airlock.training.devices import choose_device
    from airlock.training.front_ends.characterise import QUICK, Effort
    from airlock.training.front_ends.characterised import measure

    if figure is not None:
        check_figure(figure)
    asked = load(config, overrides(settings))
    depths, wanted = _numbers(channels, "--channels"), _numbers(layers, "--layers")
    depths = depths[:: max(1, len(depths) // 3)] if quick else depths
    with progress_bar() as progress:
        run = Run(device=choose_device(asked.device), progress=progress)
        made = measure(
            asked, run, QUICK if quick else Effort(), depths, wanted, seeds, single, onnx, data_dir
        )  # fmt: skip
    made.write(out)
    chosen = choice(made, asked, figure)
    if as_json:
        print_json({"file": shown(out), "points": _rows(made), "chosen": chosen_json(chosen)})
        return
    columns = ["m", "D'", "PSNR", "accuracy", "ms", "bytes"]
    rows = [[_cell(value) for value in row.values()] for row in _rows(made)]
    print_table(f"{made.found.front} on {made.found.public}", columns, rows, f"{chosen.why}\nFile: {shown(out)}")


def choice(made: Characterised, config: ReleaseConfig, figure: Path | None) -> Chosen:
    """The point chosen by the config's limits, and its figure if one is requested."""
    from airlock.bundle.rendering.charts import draw_feasible
    from airlock.bundle.rendering.svg import write_figure
    from airlock.training.front_ends.characterised import limits
    from airlock.training.front_ends.choose import choose

    asked, given = limits(config.settings), config.settings
    wanted = [p for p in made.options if given.get("layers") in (None, p.layers)]
    chosen = choose([p for p in wanted if given.get("channels") in (None, p.channels)], asked)
    if figure is not None:
        write_figure(figure, draw_feasible(chosen, asked, f"What may leave {made.found.front}"))
    return chosen


def chosen_json(chosen: Chosen) -> dict[str, object]:
    """The choice as JSON."""
    point = chosen.option
    return {
        "layers": point.layers,
        "channels": point.channels,
        "psnr": point.psnr,
        "utility": point.utility,
        "regime": chosen.regime,
        "feasible": len(chosen.feasible),
        "why": chosen.why,
    }


def _rows(made: Characterised) -> list[dict[str, float | int | None]]:
    return [
        {"layers": p.layers, "channels": p.channels, "psnr": p.psnr, "utility": p.utility,
         "milliseconds": p.milliseconds, "bytes": p.bytes}
        for p in made.options
    ]  # fmt: skip


def _cell(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        raise ConfigError(
            f"numbers separated by commas after {option}", f"'{text}'", do=f"For example {option} 1,2,6."
        ) from None
    if found and found[0] < 1:
        raise ConfigError(f"numbers from 1 after {option}", f"{found[0]}")
    return found


@features.command()
@translate_errors
def extract(
    config: Path = ConfigArgument,
    out: Path = OutOption,
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    form: str | None = typer.Option(None, "--format", help="The file format: parquet or npz.", show_default=False),
    workers: int = typer.Option(0, "--workers", min=0, help="Processes that compute; 0 computes in this one."),
    engine: str = typer.Option("local", "--engine", help="Where to compute: local, or ray for a Ray cluster."),
    to: str | None = ToOption,
    composes_with: list[Path] = typer.Option(
        [], "--composes-with", help="The bundle of another release from the same data. Repeatable."
    ),
    accept_unproven: bool = typer.Option(
        False, "--accept-unproven", help="Release with a method whose privacy is not proven."
    ),
    force: bool = ForceOption,
    resume: bool = typer.Option(False, "--resume", help="Continue an interrupted run of the same config."),
    again: bool = AgainOption,
    insecure_seed: int | None = typer.Option(
        None, "--insecure-seed", help="Seed the privacy noise, for tests.", show_default=False
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Send the private records through the front end and write the bundle of features."""
    from airlock.cli.release import print_summary, summary, tell_register
    from airlock.config import load
    from airlock.pipeline import make_release

    more = {"about.recipient": to, **_chosen(form)}
    asked = load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed, **more))
    tell_register(asked)
    if asked.channel != "features":
        raise ConfigError('a config with channel = "features"', f"'{asked.channel}'", do="Use `airlock release`.")
    if engine not in ("local", "ray"):
        raise ConfigError("--engine local or ray", f"'{engine}'")
    with progress_bar() as progress:
        outcome = make_release(
            asked,
            out,
            data_dir=data_dir,
            accept_unproven=accept_unproven,
            force=force,
            resume=resume,
            again=again,
            composes_with=composes_with,
            insecure_seed=insecure_seed,
            vault=vault,
            progress=progress,
            workers=workers,
            engine="ray" if engine == "ray" else "local",
        )
    if as_json:
        print_json(summary(outcome, out))
    else:
        print_summary(outcome, out)


def _chosen(form: str | None) -> dict[str, Any]:
    return {} if form is None else {"settings.format": form}


CARDS_FIGURE = (
    "is another question: there the test records have no noise, as for a classifier that is sent back to where the "
    "records are. Noise on what is classified, as here, costs far more than noise on what is learnt from."
)


@features.command()
@translate_errors
def train(
    bundle: Path = typer.Argument(help="A bundle of features.", show_default=False),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the classifier.", show_default=False),
    net: str | None = typer.Option(
        None, "--net", help="Your own network as package.module:function; it is imported.", show_default=False
    ),
    epochs: int = typer.Option(20, "--epochs", min=1, help="Passes over the features."),
    holdout: float = typer.Option(0.1, "--holdout", help="The fraction kept for testing."),
    seed: int = typer.Option(0, "--seed", help="The seed of training and of the split."),
    device: str = typer.Option("auto", "--device", help="auto, cpu or cuda."),
    signer: list[Path] = SignerOption,
    as_json: bool = JsonOption,
) -> None:
    """Train a classifier on a bundle of features alone, as its receiver would."""
    from airlock.bundle.receive import train_on
    from airlock.bundle.signing.keys import read_all

    signers = read_all(signer)
    with progress_bar() as progress:
        found = train_on(bundle, out, net or "", epochs, holdout, seed, device, progress, signers=signers)
    if as_json:
        print_json(found.to_dict())
        return
    noise = ", noise included" if found.noisy else ""
    rows = [
        ["trained on", f"{found.records:,} records"],
        ["accuracy", f"{found.accuracy:.3f} on {found.tested:,} other records of the same features{noise}"],
        *([["the card's accuracy", CARDS_FIGURE]] if found.noisy else []),
    ]
    print_table("Classifier on features", ["", ""], rows, f"Written to {shown(out)}" if out else "")

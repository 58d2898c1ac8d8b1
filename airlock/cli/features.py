"""`airlock features`: features instead of data; `extract` where the records are, `train` where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from airlock.cli.characterise import features as features
from airlock.cli.terminal import (
    ConfigArgument,
    DataDirOption,
    DeltaOption,
    EpsilonOption,
    JsonOption,
    SeedOption,
    SetOption,
    VaultOption,
    overrides,
    print_json,
    print_table,
    progress_bar,
    shown,
    translate_errors,
)
from airlock.errors import ConfigError


@features.command()
@translate_errors
def extract(
    config: Path = ConfigArgument,
    out: Path = typer.Option(..., "--out", "-o", help="The folder that becomes the bundle."),
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    form: str | None = typer.Option(None, "--format", help="Of the files: parquet or npz.", show_default=False),
    workers: int = typer.Option(0, "--workers", min=0, help="Processes that compute; 0 computes in this one."),
    engine: str = typer.Option("local", "--engine", help="Who computes: local, or ray for a Ray cluster."),
    composes_with: list[Path] = typer.Option(
        [], "--composes-with", help="Bundle of another release from the same data. Repeatable."
    ),
    accept_unproven: bool = typer.Option(
        False, "--accept-unproven", help="Release by a method whose privacy is not proven."
    ),
    force: bool = typer.Option(False, "--force", help="Replace an existing bundle at --out."),
    resume: bool = typer.Option(False, "--resume", help="Go on with an interrupted run of the same config."),
    insecure_seed: int | None = typer.Option(
        None, "--insecure-seed", help="Seed the privacy noise, for tests.", show_default=False
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Send the private records through the front end and write the bundle of features."""
    from airlock.cli.release import print_summary, summary
    from airlock.config import load
    from airlock.pipeline import make_release

    asked = load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed, **_chosen(form)))
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


@features.command()
@translate_errors
def train(
    bundle: Path = typer.Argument(help="A bundle of features.", show_default=False),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the classifier.", show_default=False),
    net: str | None = typer.Option(
        None, "--net", help="Your own network as package.module:function; it is imported.", show_default=False
    ),
    epochs: int = typer.Option(20, "--epochs", min=1, help="Passes over the features."),
    holdout: float = typer.Option(0.1, "--holdout", help="The fraction that is kept for a test."),
    seed: int = typer.Option(0, "--seed", help="Of training and of the split."),
    device: str = typer.Option("auto", "--device", help="auto, cpu or cuda."),
    as_json: bool = JsonOption,
) -> None:
    """Train a classifier on a bundle of features alone: what its receiver does."""
    from airlock.bundle.receive import train_on

    with progress_bar() as progress:
        found = train_on(bundle, out, net or "", epochs, holdout, seed, device, progress)
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        ["learnt from", f"{found.records:,} records"],
        ["accuracy", f"{found.accuracy:.3f} on {found.tested:,} others of the same features, noise included"],
    ]
    print_table("Classifier on features", ["", ""], rows, f"Written to {shown(out)}" if out else "")

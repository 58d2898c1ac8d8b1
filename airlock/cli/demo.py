"""`airlock demo`: the main job on data that is always there, every channel beside the others, and a page at the end."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import typer

from airlock.cli.compare import print_comparison, telling
from airlock.cli.terminal import JsonOption, VaultOption, print_json, progress_bar, shown, translate_errors

BUNDLE = "bundle"


@translate_errors
def demo(
    out: Path = typer.Option(Path("airlock-demo"), "--out", "-o", help="Folder for the page and for one release."),
    jobs: int = typer.Option(2, "--jobs", "-j", help="Cells at once, each in a process of its own."),
    minutes: float | None = typer.Option(
        None, "--minutes", help="How long it may take; what is last in line is dropped and named.", show_default=False
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Compare all five channels on handwritten digits, and release by the one that is advised."""
    from airlock.comparison.run import compare
    from airlock.comparison.settings import load
    from airlock.pipeline import make_release

    with as_file(files("airlock.comparison").joinpath("demo.toml")) as file:
        asked = load(file, {"minutes": minutes} if minutes is not None else {})
    with telling() as (say, steps):
        found = compare(asked, out, quick=True, jobs=jobs, say=say, progress=steps)
    advice, released = found.advice, False
    if advice.method is not None and advice.epsilon is not None:
        with progress_bar() as progress:
            chosen = asked.release(advice.method, advice.epsilon, asked.seeds[0])
            make_release(chosen, out / BUNDLE, force=True, vault=vault, progress=progress)
        released = True
    if as_json:
        print_json({**found.model_dump(mode="json"), "bundle": str(out / BUNDLE) if released else None})
        return
    print_comparison(found, out)
    if released:
        typer.echo(f"\nReleased by {advice.method}: the card to read and sign is {shown(out / BUNDLE / 'card.html')}")

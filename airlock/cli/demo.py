"""`airlock demo`: the main job on data that is always there, from config to verified bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from airlock.cli.terminal import JsonOption, VaultOption, print_json, print_table, progress_bar, shown, translate_errors


@translate_errors
def demo(
    out: Path = typer.Option(Path("airlock-demo"), "--out", "-o", help="The folder that becomes the bundle."),
    epsilon: float = typer.Option(3.0, help="The target ε."),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Release a model of handwritten digits privately, beside the same model without privacy."""
    from airlock.config import from_table
    from airlock.pipeline import make_release, train_openly
    from airlock.release import Vault
    from airlock.release.verify import verify

    config = from_table({"channel": "weights", "data": "digits", "epsilon": epsilon, "delta": 1e-4})
    with progress_bar() as progress:
        plain = train_openly(config, progress=progress)
        outcome = make_release(config, out, force=True, vault=vault, progress=progress)
    card = outcome.bundle.card
    sound = verify(out, vault=Vault.open(vault)).ok
    rows: list[dict[str, Any]] = [
        {
            "model": "without privacy (never leaves)",
            "epsilon": None,
            "accuracy": plain.accuracy,
            "attack_auc": plain.auc,
        },
        {
            "model": f"{card.channel}/{card.method} (released)",
            "epsilon": card.guarantee.epsilon,
            "accuracy": card.utility.accuracy,
            "attack_auc": card.audit.attacks[0].value,
        },
    ]
    if as_json:
        print_json({"bundle": str(out), "verified": sound, "rows": rows})
        return
    cells = [[r["model"], _figure(r["epsilon"], "∞"), _figure(r["accuracy"]), _figure(r["attack_auc"])] for r in rows]
    print_table(
        "Handwritten digits, δ = 1e-4",
        ["model", "ε (smaller protects more)", "test accuracy", "attack AUC (0.5 is guessing)"],
        cells,
        f"{card.headline}\n\nBundle: {shown(out)} ({'verified' if sound else 'NOT verified'})\n"
        f"Card to read and sign: {shown(out / 'card.html')}",
    )


def _figure(value: float | None, missing: str = "") -> str:
    return missing if value is None else f"{value:.3f}"

"""`airlock audit`: attack what a bundle holds, and write the results into the dossier in the vault."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import (
    DataDirOption,
    JsonOption,
    SetOption,
    SignerOption,
    VaultOption,
    overrides,
    print_json,
    print_table,
    progress_bar,
    shown,
    translate_errors,
    tries,
)

if TYPE_CHECKING:
    from airlock.auditing.result import AttackResult
    from airlock.pipeline import Audited


@translate_errors
@tries
def audit(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    data: str | None = typer.Option(
        None,
        "--data",
        help="The records that it came from, if they are your own (a file or folder) or another package's (its name).",
        show_default=False,
    ),
    data_dir: Path | None = DataDirOption,
    shadows: int = typer.Option(32, help="The number of shadow models, even. More models make stronger attacks."),
    like: str = typer.Option(
        "plain",
        help="How they are trained: 'plain', without privacy and together; 'release', each by the method itself; or "
        "'search', each by the whole search that the bundle came from.",
    ),
    epochs: int = typer.Option(20, help="Epochs of plain shadow models."),
    records: int = typer.Option(10_000, help="The most members, and as many non-members."),
    engine: str = typer.Option("local", help="Where plain shadow models are trained: 'local' or 'ray'."),
    gpus: float | None = typer.Option(
        None, help="With --engine ray: GPUs of a chunk of shadow models, such as 0.5.", show_default=False
    ),
    attack: list[str] = typer.Option(
        [], "--attack", help="Also an attack that an installed package brings, by its name. Repeatable."
    ),
    canaries: int = typer.Option(
        0,
        help="Of a language model: so many made-up sentences are added to the records of one more training, whose "
        "exposure is measured.",
    ),
    copies: int = typer.Option(1, help="How often each of these sentences is among those records."),
    worst_case: int = typer.Option(
        0,
        "--worst-case",
        help="How tight the promise is: so many trainings with a crafted record, and as many without, for attackers "
        "who choose the record, all others and the initial weights. For methods that train under noise.",
    ),
    attribute: list[str] = typer.Option(
        [],
        "--attribute",
        help="Of a table: a column that is withheld and guessed with the model, beside an imputation without it; and "
        "its share among all records. Repeatable.",
    ),
    net: str | None = typer.Option(
        None,
        help="The network, if it is your own (package.module:function) or another package's (its name); is imported.",
        show_default=False,
    ),
    seed: int = typer.Option(0, help="The seed of the attacks."),
    device: str = typer.Option("auto", help="Where to compute: auto, cpu, cuda."),
    settings: list[str] = SetOption,
    resume: bool = typer.Option(False, "--resume", help="Continue an interrupted audit."),
    signer: list[Path] = SignerOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Attack what leaves, as its receiver could; the vault gets a new dossier, the bundle does not change.

    Exit codes: 0 no attack refutes the stated ε, 1 one does, 2 none could be run, or bad input.
    """
    from airlock.auditing import AuditSettings
    from airlock.bundle.signing.keys import read_all
    from airlock.config import parse
    from airlock.pipeline import audit_bundle

    asked = {"shadows": shadows, "like": like, "epochs": epochs, "most": records, "engine": engine, "attacks": attack,
             "canaries": canaries, "copies": copies, "worst_case": worst_case, "attributes": attribute}  # fmt: skip
    asked |= {} if gpus is None else {"gpus": gpus}
    own: dict[str, Any] = overrides(settings)
    if data is not None:
        own["data.source"] = str(Path(data).absolute()) if Path(data).exists() else data
    with progress_bar() as progress:
        done = audit_bundle(
            bundle,
            parse(AuditSettings, asked),
            overrides=own,
            data_dir=data_dir,
            net=net,
            seed=seed,
            device=device,
            resume=resume,
            signers=read_all(signer),
            vault=vault,
            progress=progress,
        )
    if as_json:
        print_json(summary(done, bundle))
    else:
        _print(done, bundle)
    raise typer.Exit(1 if done.refuted else 0 if could_refute(done) > 0 else 2)


def could_refute(done: Audited) -> float:
    """The largest ε that one of the attacks could have refuted; 0 if none was run."""
    return max((attack.could_refute for attack in done.dossier.audit.attacks), default=0.0)


def summary(done: Audited, folder: Path) -> dict[str, Any]:
    """What `--json` prints."""
    from airlock.bundle.rendering.text import measured

    found = done.dossier
    return {
        "bundle": str(folder),
        "dossier": str(done.dossier_page.with_suffix(".json")),
        "stated_epsilon": done.stated,
        "epsilon_lower_bound": measured(found.audit),
        "refuted": done.refuted,
        "tried": could_refute(done) > 0,
        "teacher_stays": None if found.teacher is None else [asdict(one) for one in found.teacher.attacks],
        **found.audit.to_dict(),
    }


def _print(done: Audited, folder: Path) -> None:
    found = done.dossier
    known = [rate for attack in found.audit.attacks for rate in attack.rates if rate.value is not None]
    rates = sorted({rate.false_positive_rate for rate in known})
    columns = ["attack", "has", "AUC", *(f"at {100 * rate:g}%" for rate in rates), "ε above"]
    rows = [_row(attack, rates) for attack in found.audit.attacks]
    refusals: dict[str, set[float]] = {}
    for rate in (rate for attack in found.audit.attacks for rate in attack.rates if rate.refused):
        refusals.setdefault(rate.refused or "", set()).add(rate.false_positive_rate)
    notes = [found.headline, "AUC: 0.5 is random guessing, 1 is certainty; 95% intervals."]
    notes += [f"Members found at {_percents(which)} false positives: {words}" for words, which in refusals.items()]
    notes += found.on_features
    notes += (*found.on_canaries, *found.on_columns, *found.on_worst_case)
    notes += [f"Not tested: {line}" for line in found.audit.not_tested]
    if found.teacher is not None:
        areas = [f"{one.name}: {one.value:.3f} ({one.low:.2f} to {one.high:.2f})" for one in found.teacher.attacks]
        notes.append(f"AUC of the teacher, which stays inside: {'; '.join(areas) or 'not measured'}")
    could = could_refute(done)
    if not could:
        notes.append("Not tried: no attack could be run, so there is no evidence for or against an ε.")
    elif done.stated is not None and could < done.stated:
        notes.append(
            f"With this few records, at most ε = {could:.2f} could be shown; the stated ε is {done.stated:.2f}."
        )
    notes.append(f"Dossier, which stays inside: {shown(done.dossier_page)}; next: airlock gate {shown(folder)}")
    print_table(f"Audit of {shown(folder)}", columns, rows, "\n".join(notes))


def _percents(rates: Collection[float]) -> str:
    return " and ".join(f"{100 * rate:g}%" for rate in sorted(rates))


def _row(attack: AttackResult, rates: Collection[float]) -> list[str]:
    values = {rate.false_positive_rate: rate.value for rate in attack.rates}
    found = ["-" if (value := values.get(rate)) is None else f"{value:.2%}" for rate in rates]
    area = f"{attack.value:.3f} ({attack.low:.2f} to {attack.high:.2f})"
    return [attack.name, attack.view, area, *found, f"{attack.epsilon_lower_bound:.2f}"]

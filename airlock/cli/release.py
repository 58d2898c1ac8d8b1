"""`airlock release`: from config to bundle; and `airlock tune`, which searches first."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import (
    AgainOption,
    ComposesOption,
    ConfigArgument,
    DataDirOption,
    DeltaOption,
    EpsilonOption,
    FollowedOption,
    ForceOption,
    InsecureSeedOption,
    JsonOption,
    OutOption,
    SeedOption,
    SetOption,
    ToOption,
    VaultOption,
    assists,
    overrides,
    print_json,
    print_table,
    progress_bar,
    shown,
    tell,
    translate_errors,
)

if TYPE_CHECKING:
    from airlock.bundle.dossier import Dossier
    from airlock.config import ReleaseConfig
    from airlock.pipeline import Outcome


@translate_errors
def release(
    config: Path = ConfigArgument,
    out: Path = OutOption,
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    to: str | None = ToOption,
    composes_with: list[Path] = ComposesOption,
    accept_unproven: bool = typer.Option(
        False, "--accept-unproven", help="Release with a method whose privacy is not proven."
    ),
    force: bool = ForceOption,
    resume: bool = typer.Option(False, "--resume", help="Continue an interrupted run of the same config."),
    again: bool = AgainOption,
    insecure_seed: int | None = InsecureSeedOption,
    followed: str = FollowedOption,
    court_seconds: float = typer.Option(
        10.0, "--court-seconds", help="The longest time the court tests a network of your own, before a record is read."
    ),
    shard: bool = typer.Option(
        False, "--shard", help="Under torchrun: each process keeps a part of the network only (FSDP2)."
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Train, attack, and write the bundle with its card."""
    from airlock.config import load
    from airlock.pipeline import assist_release, make_release
    from airlock.training.distributed import joined

    asked = load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed, **{"about.recipient": to}))
    tell_register(asked)
    with joined(asked.device, sharded=shard) as group, progress_bar() as progress:
        if not group.lead:
            assist_release(
                asked,
                group,
                data_dir=data_dir,
                accept_unproven=accept_unproven,
                insecure_seed=insecure_seed,
                vault=vault,
            )
            return
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
            court_seconds=court_seconds,
            followed=followed,
            progress=progress,
            group=group,
        )
    if as_json:
        print_json(summary(outcome, out))
    else:
        print_summary(outcome, out)


def tell_register(asked: ReleaseConfig) -> None:
    """Say on stderr which register is charged, and who says so."""
    from airlock.bundle.register import find

    found = find(asked)
    if found is not None and not assists():
        tell("", f"Register {found}")


@translate_errors
def tune(
    config: Path = ConfigArgument,
    out: Path = OutOption,
    data_dir: Path | None = DataDirOption,
    epsilon: float | None = EpsilonOption,
    delta: float | None = DeltaOption,
    seed: int | None = SeedOption,
    settings: list[str] = SetOption,
    to: str | None = ToOption,
    composes_with: list[Path] = ComposesOption,
    force: bool = ForceOption,
    resume: bool = typer.Option(False, "--resume", help="Continue an interrupted search of the same config."),
    again: bool = AgainOption,
    insecure_seed: int | None = InsecureSeedOption,
    followed: str = FollowedOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Search the settings that the config declares, and release the best: ε covers the search."""
    from airlock.config import load
    from airlock.pipeline import tune_release

    asked = load(config, overrides(settings, epsilon=epsilon, delta=delta, seed=seed, **{"about.recipient": to}))
    tell_register(asked)
    with progress_bar() as progress:
        outcome = tune_release(
            asked,
            out,
            data_dir=data_dir,
            force=force,
            resume=resume,
            again=again,
            composes_with=composes_with,
            insecure_seed=insecure_seed,
            vault=vault,
            followed=followed,
            progress=progress,
        )
    if as_json:
        print_json(summary(outcome, out))
    else:
        print_summary(outcome, out)


def summary(outcome: Outcome, out: Path) -> dict[str, Any]:
    """What `--json` prints."""
    card = outcome.bundle.card
    return {
        "bundle": str(out),
        "dossier": str(outcome.dossier_page.with_suffix(".json")),
        "signed_by": outcome.fingerprint,
        "lifetime": None if card.lifetime is None else card.lifetime.model_dump(),
        "utility": None if card.utility is None else card.utility.figures.accuracy.model_dump(),
        **({} if card.errors is None else {"errors": card.errors.figures.model_dump()}),
        **({} if card.language is None else {"language": card.language.figures.model_dump()}),
        "guarantee": outcome.release.guarantee.to_dict(),
        "inside": {
            **_exact(outcome.dossier),
            "audit": [asdict(attack) for attack in outcome.dossier.audit.attacks],
        },
    }


def _exact(inside: Dossier) -> dict[str, Any]:
    """Accuracy as counted, how far predictions of a number are off, or perplexity."""
    if inside.utility is not None:
        return {"accuracy": inside.utility.figures.accuracy.model_dump()}
    if inside.language is not None:
        return {"language": inside.language.model_dump()}
    assert inside.errors is not None
    return {"errors": inside.errors.figures.model_dump()}


def print_summary(outcome: Outcome, out: Path) -> None:
    """A summary of the card."""
    from airlock.auditing.perplexity import rows as language_rows
    from airlock.auditing.regression_errors import rows as error_rows
    from airlock.auditing.usefulness import compare_with_blind
    from airlock.bundle.rendering.text import CHOSEN, GUESSED

    card, inside = outcome.bundle.card, outcome.dossier
    rows = [["guarantee", card.headline]]
    if card.tuning.search is not None:
        rows.append(["search", card.words.tuning])
    if card.tuning.chosen:
        rows.append(["method", f"{card.channel}/{card.method}. {CHOSEN}"])
    if card.utility is not None:
        one = card.utility.figures.accuracy
        rows.append(["accuracy, on the card", _interval(one.value, one.low, one.high)])
        rows.append(["beside guessing, on the card", compare_with_blind(card.utility.figures).sentence])
    if inside.utility is not None:
        exact = inside.utility.figures.accuracy
        rows.append(["accuracy, exact, stays inside", _interval(exact.value, exact.low, exact.high)])
    if card.errors is not None and card.data.target is not None:
        named = error_rows(card.errors.figures, card.data.target)
        rows += [[f"{name}, on the card", f"{value} ({interval})"] for name, value, interval in named]
    if inside.errors is not None:
        named = error_rows(inside.errors.figures, inside.errors.target)
        rows += [[f"{name}, exact, stays inside", f"{value} ({interval})"] for name, value, interval in named[:3]]
    if card.language is not None:
        named = language_rows(card.language.figures)
        rows += [[f"{name}, on the card", f"{value} ({interval})"] for name, value, interval in named]
        rows.append(["how texts count", GUESSED])
    if inside.language is not None:
        named = language_rows(inside.language)
        rows += [[f"{name}, exact, stays inside", f"{value} ({interval})"] for name, value, interval in named[:2]]
    rows += [
        [f"attack, stays inside: {a.name}", f"{a.score} {_interval(a.value, a.low, a.high)}"]
        for a in inside.audit.attacks
    ]
    if card.lifetime is not None:
        rows.append(["register", card.words.others])
    made = (
        "A key was made in the vault to sign this and later bundles. Give receivers: airlock keys signing --out FILE\n"
    )
    print_table(
        f"Released: {card.channel}/{card.method}",
        ["", ""],
        rows,
        f"Bundle, which may leave: {shown(out)}\nSigned by this vault ({outcome.fingerprint}).\n"
        f"{made if outcome.new_key else ''}Dossier, which stays inside: {shown(outcome.dossier_page)}\n"
        f"Read both, then: airlock gate {shown(out)}",
    )


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} (95% interval {low:.3f} to {high:.3f})"

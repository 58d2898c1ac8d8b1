"""`airlock show`: the card in the terminal, or the dossier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock.cli.terminal import (
    JsonOption,
    VaultOption,
    print_json,
    print_table,
    print_text,
    protects,
    shown,
    translate_errors,
)

if TYPE_CHECKING:
    from airlock.auditing.evaluation import Figure
    from airlock.auditing.perplexity import LanguageFigures
    from airlock.auditing.regression_errors import ErrorFigures
    from airlock.auditing.result import AttackResult
    from airlock.bundle.dossier import Dossier
    from airlock.bundle.older import OlderCard
    from airlock.bundle.schema import Compression
    from airlock.config import TargetRange


@translate_errors
def show(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    dossier: bool = typer.Option(
        False, "--dossier", help="The dossier instead, which stays inside: exact figures and attacks, from the vault."
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Print a bundle's card, which may leave, or its dossier, which stays inside.

    Run `airlock verify` to find out whether a card can be believed.
    """
    from airlock.auditing.regression_errors import compare_with_constant
    from airlock.auditing.usefulness import compare_with_blind
    from airlock.bundle import Vault, older, read
    from airlock.bundle import dossier as dossiers
    from airlock.bundle.contents import Contents
    from airlock.bundle.rendering.page import dossier_place, smaller_words, useful_rows
    from airlock.bundle.signing.signatures import examine

    files = Contents(bundle.absolute())
    if not dossier and older.format_of(files) is not None:
        _print_older(older.read(files), as_json)
        return
    card = read(bundle).card
    if dossier:
        safe = Vault.open(vault)
        _print_dossier(dossiers.read(safe, card.release_id), dossier_place(safe, card.release_id), as_json)
        return
    if as_json:
        print_json(card.model_dump(mode="json"))
        return
    promise, signed = card.guarantee, examine(files, Vault.open(vault))
    epsilon = "no bound" if promise.epsilon is None else f"{promise.epsilon:.4f}"
    rows = [
        ["summary", card.headline],
        ["signature", signed.release.says],
        ["approval", signed.approval.says],
        ["what leaves", card.leaves],
        ["data", f"{card.data.name}: {card.data.origin}"],
        *([["method", f"{card.method}. {card.words.tuning}"]] if card.tuning.chosen else []),
        ["status", promise.status],
        ["protects", protects(promise.unit, promise.relation)],
        ["ε, δ", f"{epsilon}, {promise.delta:g} ({promise.accountant}, {promise.accountant_version})"],
    ]
    if card.utility is not None:
        rows.append(["beside guessing", compare_with_blind(card.utility.figures).sentence])
    if card.errors is not None and card.data.target is not None:
        rows.append(["beside a constant", compare_with_constant(card.errors.figures, card.data.target).sentence])
        rows += _errors(card.errors.figures, card.data.target)
    elif card.language is not None:
        rows += _language(card.language.figures)
    else:
        rows += [[name, _figure(one)] for name, one in useful_rows(card)] or [["accuracy", card.words.utility]]
    if card.compression is not None:
        rows.append(["smaller, faster", smaller_words(card.compression)])
    rows += [
        [f"attack: {one.name}", f"{one.view}: {one.score} {one.value:.3f} ({one.low:.3f} to {one.high:.3f})"]
        for one in card.audit.attacks
    ]
    rows.append(["attacks", card.words.audit])
    rows.append(["other releases", card.words.others])
    rows += [["assumes", sentence] for sentence in promise.assumptions]
    print_table(f"Card of {card.channel}/{card.method}, {card.created}: it may leave", ["", ""], rows)
    if card.compression is not None:
        _print_sizes(card.compression)


def _print_older(card: OlderCard, as_json: bool) -> None:
    """What can still be said about a bundle of an earlier format, preceded by what cannot."""
    from airlock.bundle.card import older_note

    note = older_note(card.schema_version)
    if as_json:
        print_json({"note": note, **card.model_dump(mode="json")})
        return
    promise = card.guarantee
    epsilon = "no bound" if promise.epsilon is None else f"{promise.epsilon:.4f}"
    rows = [
        ["what leaves", card.leaves],
        ["status", f"{promise.status}, according to the card"],
        ["protects", protects(promise.unit, promise.relation)],
        ["ε, δ", f"{epsilon}, {promise.delta:g} ({promise.accountant}, {promise.accountant_version})"],
    ]
    print_text(note)
    print_table(f"Card of {card.channel}/{card.method}, {card.created}, format {card.schema_version}", ["", ""], rows)


def _print_dossier(made: Dossier, page: Path, as_json: bool) -> None:
    """Everything that stays inside."""
    from airlock.auditing.regression_errors import compare_with_constant
    from airlock.auditing.usefulness import compare_with_blind
    from airlock.bundle.dossier import STAYS
    from airlock.bundle.rendering.page import rows_of

    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    use, off = made.utility, made.errors
    rows = [["STAYS INSIDE", STAYS], ["summary", made.headline]]
    if use is not None:
        rows += [
            ["exact count", f"{use.correct:,} of {use.records:,} test records were classified correctly"],
            ["beside guessing", compare_with_blind(use.figures).sentence],
        ]
        rows += [[name, _figure(one)] for name, one in rows_of(use.figures, ())]
    if off is not None:
        rows.append(["beside a constant", compare_with_constant(off.figures, off.target).sentence])
        rows += _errors(off.figures, off.target)
    if made.language is not None:
        rows += _language(made.language)
    rows += [[f"attack: {attack.name}", _attack(attack)] for attack in made.audit.attacks]
    rows += [["attacks on features", sentence] for sentence in made.on_features]
    rows += [["canary sentences", sentence] for sentence in made.on_canaries]
    rows += [["columns of the table", sentence] for sentence in made.on_columns]
    rows += [["worst case", sentence] for sentence in made.on_worst_case]
    rows += [["not tested", sentence] for sentence in made.audit.not_tested]
    rows += [[f"teacher: {attack.name}", _attack(attack)] for attack in (made.teacher.attacks if made.teacher else ())]
    rows += [["court", f"{one.sentence}\nWhat was run: {one.what}; {one.pairs} pairs of runs."] for one in made.court]
    rows += [["about the records", remark] for remark in made.remarks]
    rows += [[key.replace("_", " "), str(value)] for key, value in made.inside.items()]
    rows += [["followed", made.followed]] if made.followed else []
    title = f"Dossier of {made.channel}/{made.method}, {made.created}: it stays inside"
    print_table(title, ["", ""], rows, f"To read and sign: {shown(page)}")


def _errors(found: ErrorFigures, target: TargetRange) -> list[list[str]]:
    from airlock.auditing.regression_errors import rows as error_rows

    return [[name, f"{value} ({interval})"] for name, value, interval in error_rows(found, target)]


def _language(found: LanguageFigures) -> list[list[str]]:
    from airlock.auditing.perplexity import compare_with_guessing
    from airlock.auditing.perplexity import rows as language_rows
    from airlock.bundle.rendering.text import GUESSED

    own = [[name, f"{value} ({interval})"] for name, value, interval in language_rows(found)]
    return [["beside guessing", compare_with_guessing(found).sentence], *own, ["how texts count", GUESSED]]


def _print_sizes(found: Compression) -> None:
    """The table of sizes and times, and what is missing from it."""
    from airlock.bundle.rendering.page import size_rows

    columns = ["network", "parameters", "multiply-adds", "file", f"{found.images} inputs", "same class"]
    rows = [
        [
            row.what,
            row.parameters,
            row.multiply_adds,
            row.size,
            row.time,
            row.agrees,
        ]
        for row in size_rows(found)
    ]
    print_table("Smaller and faster", columns, rows)
    for line in found.not_made:
        print_text(f"Not made or measured. {line}")


def _figure(one: Figure) -> str:
    return f"{one.value:.3f} (95% interval {one.low:.3f} to {one.high:.3f})"


def _attack(attack: AttackResult) -> str:
    """One line per figure."""
    lines = [f"{attack.view}: {attack.score} {attack.value:.3f} ({attack.low:.3f} to {attack.high:.3f})"]
    if attack.advantage:
        gain = attack.advantage
        lines.append(f"advantage {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f}), one threshold")
    for rate in attack.rates:
        figure = f"{rate.value:.2%} ({rate.low:.2%} to {rate.high:.2%})" if rate.value is not None else rate.refused
        if rate.false_positive_rate_high is not None:
            figure = f"{figure}; the true rate of false positives is at most {rate.false_positive_rate_high:.2%}"
        lines.append(f"finds at {100 * rate.false_positive_rate:g}% false positives: {figure}")
    lines.append(f"ε at least {attack.epsilon_lower_bound:.2f}, could have shown up to {attack.could_refute:.2f}")
    return "\n".join(lines)

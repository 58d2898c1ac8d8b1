"""`airlock show`: the card in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock.cli.terminal import JsonOption, print_json, print_table, protects, translate_errors

if TYPE_CHECKING:
    from airlock.release.fields import Attack, Compression


@translate_errors
def show(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False), as_json: bool = JsonOption
) -> None:
    """Print a bundle's card; run `airlock verify` to know whether to believe it."""
    from airlock.release import read
    from airlock.release.page import smaller_words

    card = read(bundle).card
    if as_json:
        print_json(card.model_dump(mode="json"))
        return
    promise, use = card.guarantee, card.utility
    epsilon = "no bound" if promise.epsilon is None else f"{promise.epsilon:.4f}"
    rows = [
        ["in short", card.headline],
        ["what leaves", card.leaves],
        ["data", f"{card.data.name}: {card.data.origin}"],
        ["status", promise.status],
        ["protects", protects(promise.unit, promise.relation)],
        ["ε, δ", f"{epsilon}, {promise.delta:g} ({promise.accountant}, {promise.accountant_version})"],
        [
            "accuracy",
            f"{use.accuracy:.3f} (95% interval {use.low:.3f} to {use.high:.3f}, {use.records:,} test records)",
        ],
    ]
    if card.compression is not None:
        rows.append(["smaller, faster", smaller_words(card.compression)])
    rows += [[f"attack: {attack.name}", _attack(attack)] for attack in card.audit.attacks]
    rows += [["attacks on features", sentence] for sentence in card.words.attacks_on_features]
    rows += [["not tested", sentence] for sentence in card.audit.not_tested]
    rows += [["assumes", sentence] for sentence in promise.assumptions]
    print_table(f"Card of {card.channel}/{card.method}, {card.created}", ["", ""], rows)
    if card.compression is not None:
        _print_sizes(card.compression)


def _print_sizes(found: Compression) -> None:
    """The table of sizes and times, and what is missing in it."""
    from airlock.release.page import size_rows

    columns = ["network", "parameters", "multiply-adds", "file", f"{found.images} inputs", "accuracy", "same class"]
    rows = [
        [
            row.what,
            row.parameters,
            row.multiply_adds,
            row.size,
            row.time,
            row.accuracy,
            row.agrees,
        ]
        for row in size_rows(found)
    ]
    print_table("Smaller and faster", columns, rows)
    for line in found.not_made:
        typer.echo(f"Not made or measured. {line}")


def _attack(attack: Attack) -> str:
    """One line a figure."""
    lines = [f"{attack.view}: {attack.score} {attack.value:.3f} ({attack.low:.3f} to {attack.high:.3f})"]
    if attack.advantage:
        gain = attack.advantage
        lines.append(f"advantage {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f}), one threshold")
    for rate in attack.rates:
        figure = f"{rate.value:.2%} ({rate.low:.2%} to {rate.high:.2%})" if rate.value is not None else rate.refused
        lines.append(f"finds at {rate.false_positive_rate:.1%} false positives: {figure}")
    lines.append(f"ε at least {attack.epsilon_lower_bound:.2f}, could have shown {attack.could_refute:.2f}")
    return "\n".join(lines)

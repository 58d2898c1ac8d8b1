"""`airlock show`: the card in the terminal."""

from __future__ import annotations

from pathlib import Path

import typer

from airlock.cli.terminal import JsonOption, print_json, print_table, protects, translate_errors


@translate_errors
def show(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False), as_json: bool = JsonOption
) -> None:
    """Print a bundle's card; run `airlock verify` to know whether to believe it."""
    from airlock.release import read

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
    for attack in card.audit.attacks:
        rows.append(
            [f"attack: {attack.name}", f"{attack.score} {attack.value:.3f} ({attack.low:.3f} to {attack.high:.3f})"]
        )
    rows += [["not tested", sentence] for sentence in card.audit.not_tested]
    rows += [["assumes", sentence] for sentence in promise.assumptions]
    print_table(f"Card of {card.channel}/{card.method}, {card.created}", ["", ""], rows)

"""`airlock register`: the lifetime budget of a data set, and what left under it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import (
    JsonOption,
    VaultOption,
    print_json,
    print_table,
    print_text,
    shown,
    tell,
    translate_errors,
)
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.bundle.register import Account, RegisterPlace
    from airlock.ledger import Charged

register = typer.Typer(no_args_is_help=True, help="The lifetime budget of a data set, and what left under it.")

_PLACE = "A SQLite file or postgresql://… (else $AIRLOCK_REGISTER, else `register` in airlock.toml)."
PlaceArgument = typer.Argument(None, help=_PLACE, show_default=False)
RegisterOption = typer.Option(None, "--register", help=_PLACE, show_default=False)


@register.command("create")
@translate_errors
def create(
    place: str = typer.Argument(help="A SQLite file, or postgresql://….", show_default=False),
    data: str = typer.Option(..., "--data", help="The name of the data set, as on its cards (data.name)."),
    epsilon: float = typer.Option(..., "--epsilon", help="The ε of everything that ever leaves."),
    delta: float = typer.Option(..., "--delta", help="The δ of everything that ever leaves."),
    order: int | None = typer.Option(
        None, "--order", help="The Rényi order of the filter; by default the best for Gaussian noise.",
        show_default=False,
    ),
    unit: str = typer.Option("record", "--unit", help="Whose presence is protected; others are refused."),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:  # fmt: skip
    """Create the register of a data set; its terms never change."""
    from airlock.bundle import Vault
    from airlock.bundle import register as registers

    with registers.create(place, Vault.open(vault), data, epsilon, delta, order=order, protects=unit) as made:
        budget, terms = registers.filter_of(made), made.terms
    if as_json:
        print_json({"data": data, "epsilon": epsilon, "delta": delta, "order": budget.order, "units": terms.cap})
        return
    rows = [
        ["data set", data],
        ["for one", f"{unit} that was ever in it"],
        ["everything together", f"ε = {epsilon:g}, δ = {delta:g}"],
        ["filter", f"Rényi divergence of order {budget.order}, at most {budget.cap:.4f}"],
        ["counted in", f"{terms.cap:,} units of {terms.unit}"],
    ]
    said = registers.shown_place(place)
    print_table(f"Register: {said}", ["", ""], rows, f'Releases find it by: register = "{said}" in airlock.toml')


@register.command("show")
@translate_errors
def show(
    place: str | None = PlaceArgument,
    html: Path | None = typer.Option(None, "--html", help="Also write it as a page to this file.", show_default=False),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """What left when, by which method, to whom, what it cost, and what is left. It stays inside."""
    from airlock.bundle import Vault
    from airlock.bundle.files import replace_file
    from airlock.bundle.register import account
    from airlock.bundle.rendering.register_page import render

    found = _found(place)
    read = account(found, Vault.open(vault))
    if html is not None:
        replace_file(html, render(read))
    if as_json:
        print_json(_json(read))
        return
    tell("", f"Register {found}")
    columns = ["when", "what", "to whom", "state", "ε, δ by itself", "cost", "left"]
    print_table(f"Register of {read.data}: it stays inside", columns, _rows(read), _footer(read))
    if html is not None:
        print_text(f"Page: {shown(html)}")


@register.command("list")
@translate_errors
def list_registers(vault: Path | None = VaultOption, as_json: bool = JsonOption) -> None:
    """The registers that this vault has opened."""
    from airlock.bundle import Vault
    from airlock.bundle.register import known_registers

    known = known_registers(Vault.open(vault))
    if as_json:
        print_json([{"data": one.data, "place": one.place} for one in known])
        return
    print_table("Registers", ["data set", "place"], [[one.data, one.place] for one in known])


@register.command("verify")
@translate_errors
def verify(
    place: str | None = PlaceArgument,
    new_mark: bool = typer.Option(
        False,
        "--new-mark",
        help="First create a mark here, for a second machine or if it was lost: needs the register's secret beside it, "
        "and takes the database's word that it is the newest.",
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Check the whole log: every hash, every total, every reservation, and the high-water mark."""
    from airlock.bundle import Vault
    from airlock.bundle.register import check_extra, open_at

    check_extra()
    from airlock.ledger import mark_name
    from airlock.ledger.ledger import verify_at

    found, safe = _found(place), Vault.open(vault)
    if new_mark:
        open_at(found, safe, new_mark=True).close()
    verdict = verify_at(found.place, safe.mark_folder() / mark_name(found.place))
    if as_json:
        print_json(verdict.to_dict())
    else:
        rows = [
            ["entries", f"{verdict.entries:,}"],
            ["spent", f"{verdict.spent:,} of {verdict.cap:,} units"],
            ["first broken entry", "none" if verdict.broken_entry is None else f"{verdict.broken_entry:,}"],
            ["found", verdict.says],
        ]
        word = "The register is intact." if verdict.ok else "The register is NOT intact: release nothing under it."
        print_table(f"Register: {found}", ["", ""], rows, word)
    raise typer.Exit(0 if verdict.ok else 1)


@register.command("add")
@translate_errors
def add(
    bundle: Path = typer.Argument(help="A bundle that left without the register.", show_default=False),
    place: str | None = RegisterOption,
    to: str = typer.Option("", "--to", help="To whom it went."),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Count a bundle that left before there was a register."""
    from airlock.bundle import Vault, booking
    from airlock.bundle.register import shown_place
    from airlock.bundle.verify import read_verified

    found, safe = _found(place), Vault.open(vault)
    cost = booking.add(found, safe, read_verified(bundle, safe).card, to)
    if as_json:
        print_json({"register": shown_place(found.place), "cost": cost})
    else:
        print_text(f"Counted in {found}: it cost {cost:.2f}.")


def _found(place: str | None) -> RegisterPlace:
    from airlock.bundle.register import PROJECT, VARIABLE, RegisterPlace, find

    found = RegisterPlace(place, "the command line") if place is not None else find()
    if found is None:
        raise ConfigError(
            "the place of a register", "none", do=f"Name it, or set {VARIABLE}, or register in {PROJECT}."
        )
    return found


def when(milliseconds: int) -> str:
    """A time in UTC, to the minute."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _rows(read: Account) -> list[list[str]]:
    rows, spent = [], 0
    for one in read.charged:
        spent += one.spent
        about = one.about
        itself = f"{about['epsilon']:.3g}, {about['delta']:g}"
        left = read.budget.share(read.budget.units - spent)
        what = f"{about['channel']}/{about['method']}"
        rows.append([when(one.at), what, about["recipient"] or "–", _state(one), itself,
                     f"{read.budget.share(one.spent):.3f}", f"{left:.3f}"])  # fmt: skip
    return rows


def _state(one: Charged) -> str:
    names = {
        "reserved": "reserved: charged, nothing read yet",
        "started": "started: under way, killed or failed; stays charged",
        "returned": "returned: nothing was read",
        "released": f"left as {(one.release or '')[:8]}",
    }
    return names[one.state]


def _footer(read: Account) -> str:
    budget = read.budget
    lines = [
        f"{read.left:.3f} of {budget.epsilon:g} is left. Costs are shares of the filter's cap (Rényi order "
        f"{budget.order}), scaled so that the whole is {budget.epsilon:g}.",
        f"Proven for every {read.protects} that was ever in it, whatever is chosen: ε = {budget.epsilon:g}, δ = "
        f"{budget.delta:g}.",
        f"So far, with probability 1 − δ the privacy loss is at most {budget.loss_bound(read.spent):.3f}.",
    ]
    if read.at_once is not None:
        lines.append(
            f"For information only: had all of it been planned at once, ε would be {read.at_once:.3f} at δ = "
            f"{budget.delta:g}. It was not, so nothing is promised by this figure."
        )
    return "\n".join(lines)


def _json(read: Account) -> dict[str, Any]:
    budget = read.budget
    return {
        "register": read.place,
        "data": read.data,
        "protects": read.protects,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "order": budget.order,
        "units": budget.units,
        "spent": read.spent,
        "left": read.left,
        "so_far": budget.loss_bound(read.spent),
        "had_it_been_planned_at_once": read.at_once,
        "releases": [
            {
                "at": datetime.fromtimestamp(one.at / 1000, UTC).isoformat(timespec="seconds"),
                **{key: one.about[key] for key in ("channel", "method", "recipient", "epsilon", "delta")},
                "state": one.state,
                "release": one.release,
                "units": one.units,
                "cost": budget.share(one.spent),
            }
            for one in read.charged
        ],
    }

"""The command line: one short file per command; it only translates, the library decides.

Heavy libraries are imported inside the commands, so that `airlock --help` is instant.

    terminal  what all commands share: tables or JSON, progress, errors to exit codes
    datasets  which data sets are found, and what is in the way of one's own
    advise    which method to use, before any record is read
    compare   every method on the same records; and `airlock demo`
    plan      the guarantee before any data is read, and the curve of ε
    release   from config to bundle; `airlock tune` searches settings first
    audit     attacks on what a bundle holds
    verify    whether a bundle is intact and its figures follow from its events
    show      the card or the dossier in the terminal
    gate      reasons to reject, for caution, and to release; and `airlock policy`
    approve   a reviewer's decision, signed
    export    a DPIA annex, a NIST SP 800-226 sheet, a registry entry, SACRO-ML's report
    court     whether a method's (ε, δ) can be refuted
    serve     answers over HTTP; and `airlock predict`, to raw rows of one's own
    keys      the keys of a service, and those that sign bundles
    ledger    whether a service's log is intact
    features  characterise, extract and train
    register  the lifetime budget of a data set
    pretrain  a front end trained on public images
    bench     the benchmarks of the source checkout; and `airlock reproduce`, the papers' tables and figures
"""

from __future__ import annotations

import sys

import typer

from airlock.cli.advise import advise
from airlock.cli.approve import approve
from airlock.cli.audit import audit
from airlock.cli.bench import bench, reproduce
from airlock.cli.compare import compare, demo
from airlock.cli.court import court
from airlock.cli.datasets import check, datasets
from airlock.cli.export import export
from airlock.cli.features import features
from airlock.cli.gate import gate, policy
from airlock.cli.keys import keys
from airlock.cli.ledger import ledger
from airlock.cli.plan import plan
from airlock.cli.pretrain import pretrain
from airlock.cli.register import register
from airlock.cli.release import release, tune
from airlock.cli.serve import predict, serve
from airlock.cli.show import show
from airlock.cli.terminal import print_text, spell_out, tell
from airlock.cli.verify import verify

app = typer.Typer(
    name="airlock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Release models trained on sensitive data, each with a true guarantee, an attack result and a card.\n\n"
    "Exit codes: 0 success, 1 refused or refuted, 2 a mistake in the input, 130 interrupted.",
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from airlock._version import VERSION

        print_text(VERSION)
        raise typer.Exit


for _command in (
    demo, datasets, check, advise, compare, plan, tune, release, audit, verify, show, gate, approve, export, court,
    predict, serve,
    pretrain,
    bench, reproduce,
):  # fmt: skip
    app.command()(_command)
app.add_typer(features, name="features")
app.add_typer(keys, name="keys")
app.add_typer(ledger, name="ledger")
app.add_typer(policy, name="policy")
app.add_typer(register, name="register")


def main() -> None:
    """Run the command line; Ctrl-C outside a command, such as while it is imported, ends it without a traceback."""
    try:
        spell_out()
        app()
    except KeyboardInterrupt:
        tell("interrupted:", "Ctrl-C.", "bold red")
        sys.exit(130)

"""`airlock serve` and `airlock predict`: what a release answers, over HTTP and to raw rows of one's own.

`serve` pays for every answer before it is computed; `predict` asks the network of a bundle, which costs nothing.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock import isolation
from airlock.cli.ledger import LedgerOption, MarkOption, check_extra, mark_of
from airlock.cli.terminal import (
    ApprovalOption,
    SignerOption,
    VaultOption,
    check_place,
    print_text,
    tell,
    translate_errors,
)
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.bundle.receiving.model import Predictions, ReleasedModel
    from airlock.serve.service import Service

_STDIN = "-"
_PARQUET = (".parquet", ".pq")
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet takes for a formula
_NUMBER = re.compile(r"[+-][0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@translate_errors
def serve(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen on."),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="The port; 0 picks a free one."),
    name: str | None = typer.Option(
        None, "--name", help="The model's name in the protocol; by default the folder's name.", show_default=False
    ),
    no_keys: bool = typer.Option(False, "--no-keys", help="Require no keys; only on an address of this machine alone."),
    max_rows: int = typer.Option(256, "--max-rows", min=1, help="The most rows in one request."),
    max_requests: int = typer.Option(256, "--max-requests", min=1, help="The most requests answered at once."),
    max_connections: int = typer.Option(
        1024, "--max-connections", min=8, help="The most connections; fewer if the system allows fewer open files."
    ),
    max_per_address: int | None = typer.Option(
        None, "--max-per-address", min=1, help="The most from one address; by default a quarter.", show_default=False
    ),
    tls_cert: Path | None = typer.Option(
        None, "--tls-cert", help="A certificate and its chain as PEM, for TLS.", show_default=False
    ),
    tls_key: Path | None = typer.Option(None, "--tls-key", help="Its private key as PEM.", show_default=False),
    plain_http: bool = typer.Option(
        False, "--plain-http", help="Allow an address that others can reach without TLS, for a proxy in front."
    ),
    place: str | None = LedgerOption,
    mark: Path | None = MarkOption,
    signer: list[Path] = SignerOption,
    require_approval: list[Path] = ApprovalOption,
    vault: Path | None = VaultOption,
) -> None:
    """Answer queries over HTTP with the Open Inference Protocol, each paid for before it is computed."""
    check_extra()
    from airlock.bundle import Vault
    from airlock.bundle.answering import open_answerer, open_reader
    from airlock.bundle.register import check_served
    from airlock.bundle.rendering.page import render_html
    from airlock.bundle.signing.keys import read_all
    from airlock.ledger import KeyStore
    from airlock.serve.access import LOCAL
    from airlock.serve.ledger_paths import ledger_place, open_only
    from airlock.serve.run import address, bind, check_address
    from airlock.serve.run import serve as run
    from airlock.serve.service import Service, ServiceLimits
    from airlock.serve.tls import load_tls

    limits = ServiceLimits(
        rows=max_rows, concurrent=max_requests, connections=max_connections, per_address=max_per_address
    )
    tls = load_tls(tls_cert, tls_key) is not None
    with bind(host, port) as bound:
        check_address(bound.getsockname()[0], keys=not no_keys, tls=tls, plain=plain_http)
        keys_needed = {"signers": read_all(signer), "approvers": read_all(require_approval)}
        card, answerer = open_answerer(bundle, Vault.open(vault), **keys_needed)
        check_served(card.release_id, Vault.open(vault))
        page = render_html(card).encode()  # verification has compared it with the file
        where = place or str(ledger_place(Vault.open(vault), card.release_id))
        path = mark_of(where, mark, vault)
        with open_only(where, path, Vault.open(vault), card.release_id, answerer.interface) as ledger:
            if no_keys:
                ledger.set_quota(LOCAL, None)
            keys = None if no_keys else KeyStore(ledger)
            called = name if name is not None else bundle.resolve().name
            method = f"airlock_{card.channel}_{card.method}"
            service = Service(
                called,
                card.release_id,
                method,
                page,
                answerer,
                ledger,
                keys,
                limits,
                card.headline,
                card.mark,
                card.inputs,
                open_reader(bundle, card),
            )
            where_it_is = address(bound, tls=tls)
            run(service, bound, lambda: _announce(service, where_it_is, bundle), lambda: load_tls(tls_cert, tls_key))


def _announce(service: Service, where: str, bundle: Path) -> None:
    """Print the address on stdout, for programs, and hints on stderr."""
    print_text(where)
    if service.keys is not None and not service.keys.all():
        tell("", f"There are no keys yet: airlock keys add CLIENT --bundle {bundle}")


# Rows of one's own.


@translate_errors
def predict(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    rows: str = typer.Argument(
        help="Raw rows: a CSV or Parquet file with the declared columns, - for CSV from stdin; .npy for images; "
        "for texts also .txt, .tsv or .jsonl, and - for one text in each line.",
        show_default=False,
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="A CSV or Parquet file for the predictions; stdout if left out.", show_default=False
    ),
    force: bool = typer.Option(False, "--force", help="Replace a file that exists."),
    signer: list[Path] = SignerOption,
    require_approval: list[Path] = ApprovalOption,
    vault: Path | None = VaultOption,
) -> None:
    """Predict the class of each raw row, a number, or a text's perplexity, with a bundle's network; it must verify."""
    isolation.start()  # while the libraries are imported here
    from airlock.bundle import Vault
    from airlock.bundle.receiving.model import load
    from airlock.bundle.signing.keys import read_all

    check_place(out, force)
    if out is not None and out.suffix.lower() not in (".csv", *_PARQUET):
        raise ConfigError("a name that ends in .csv or .parquet after --out", out.name)
    if rows != _STDIN and not Path(rows).exists():
        raise ConfigError("a file of rows", f"nothing at {rows}", do="Check the path; - reads CSV from stdin.")
    model = load(bundle, Vault.open(vault), signers=read_all(signer), approvers=read_all(require_approval))
    found = _written(model, _answers(model, rows), out)
    for note in found.clamped:
        tell("clamped:", f"{note}: it counts as the nearest end.", "bold yellow")
    for note in found.refused:
        tell("refused:", f"{note}.", "bold red")
    refused = int((found.labels < 0).sum())
    if out is not None:
        print_text(f"{out}: {len(found):,} {'row' if len(found) == 1 else 'rows'}, {refused:,} refused")
    raise typer.Exit(1 if refused else 0)


def _answers(model: ReleasedModel, rows: str) -> Iterator[Predictions]:
    blocks = model.encoded(Path(rows)) if rows != _STDIN else model.encoded_stream(sys.stdin.buffer, "stdin")
    return model.answer_blocks(blocks)


def _written(model: ReleasedModel, blocks: Iterator[Predictions], out: Path | None) -> Predictions:
    """Write the answers, to stdout as they come or whole to a file."""
    from airlock.bundle.files import replace_file
    from airlock.bundle.receiving.model import joined

    parts: list[Predictions] = []
    done = 0
    said = "perplexity" if model.schema.language else "prediction"
    header = ["row", said, *(f"probability of {name}" for name in model.classes)]
    for block in blocks:
        if out is None:
            print_text(_lines([*([] if parts else [header]), *_cells(block, done)]))
        parts.append(block)
        done += len(block)
    found = joined(parts, model.classes)
    if out is None and not parts:
        print_text(_lines([header]))
    if out is not None:
        parquet = out.suffix.lower() in _PARQUET
        replace_file(out, _as_parquet(header, found) if parquet else f"{_lines([header, *_cells(found, 0)])}\n")
    return found


def _lines(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n")


def _cells(found: Predictions, first: int) -> list[list[str]]:
    """One line per row; empty where it was refused."""
    lines = []
    for place, (name, chances) in enumerate(zip(found.names, found.probabilities.tolist(), strict=True)):
        cells = [f"{chance:.6g}" for chance in chances] if name is not None else [""] * len(chances)
        lines.append([str(first + place + 1), _inert(name or ""), *cells])
    return lines


def _inert(name: str) -> str:
    """A class name as a cell that no spreadsheet computes, for whoever made the bundle chose it; a number as it is."""
    return name if not name.startswith(_COMPUTED) or _NUMBER.fullmatch(name) else f"'{name}"


def _as_parquet(header: list[str], found: Predictions) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    chances = [pa.array(column, from_pandas=True) for column in found.probabilities.T]
    said = pa.array(found.names, pa.string()) if found.numbers is None else pa.array(found.numbers, from_pandas=True)
    columns = [pa.array(range(1, len(found) + 1), pa.int64()), said, *chances]
    text = io.BytesIO()
    pq.write_table(pa.table(columns, names=header), text)
    return text.getvalue()

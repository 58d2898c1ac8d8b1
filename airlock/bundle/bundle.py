"""The bundle: the folder that leaves, written whole or not at all.

In: the config, the release and its card. Out: a folder of eight files for a network, and one more if it takes a table;
seven for answers, six plus the shards for features, up to two smaller ONNX files for a student, and a signature over
all of them. They can be inspected without executing anything. The whole folder, card included, satisfies the stated
(ε, δ); everything else is in the vault. `docs/bundle.md` describes it; `packing.py` says what it holds for each kind of
artefact, `verify.py` checks it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from airlock.bundle.card import OLDEST, SCHEMA_VERSION, Card, older_note
from airlock.bundle.contents import (
    CARD,
    CONFIG,
    FP16,
    HTML,
    INT8,
    INTERFACE,
    LIMITS,
    MANIFEST,
    ONNX,
    PATH_REMOVED,
    README,
    SAFETENSORS,
    SCHEMA,
    SIGNATURE,
    SMALLER,
    SUMS,
    TABLE_ONNX,
    TOKENIZER,
    Contents,
    without_paths,
)
from airlock.bundle.files import digest, folder_aside, output_error, parse_json, read_file, sweep, write_file
from airlock.bundle.packing import packing_of
from airlock.bundle.receiving import table_onnx
from airlock.bundle.rendering import page
from airlock.bundle.schema import Hashes
from airlock.bundle.signing.envelope import release_statement, seal
from airlock.bundle.signing.keys import SigningKey
from airlock.bundle.vault import MARKER
from airlock.config import MINILM, TRANSFORMERS, ReleaseConfig
from airlock.data import memory
from airlock.data.feature_files import NAME
from airlock.data.people import RECORDS_PER_PERSON
from airlock.data.sources import SOURCES, named
from airlock.data.text import read_tokenizer
from airlock.errors import ConfigError, FormatError, OutputError
from airlock.methods.contract import Plan, Release

_FORMERLY = ("audit.json", "roc.svg", "sheet.png")  # files of earlier formats
PERSON = "person"  # what the column of the people's identifiers is called in a bundle
NEVER_IN_A_BUNDLE = ("register", "recipient")  # keys of the config that are the holder's own matters


@dataclass(frozen=True)
class Bundle:
    """A folder that leaves, and its card.

    Args:
        folder: Where it is.
        card: As it was read.
        digests: The SHA-256 of every file as it was verified; empty for a bundle that was not verified.
    """

    folder: Path
    card: Card = field(repr=False)
    digests: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def files(self) -> Contents:
        """Its files, as they were verified: one that was changed since is refused."""
        return Contents(self.folder, self.digests)


def write(
    folder: Path,
    config: ReleaseConfig,
    release: Release,
    card: Card,
    *,
    smaller: Mapping[str, bytes] | None = None,
    signer: SigningKey | None = None,
    force: bool = False,
    record: Callable[[Mapping[str, str]], None] | None = None,
) -> Bundle:
    """Write the bundle to a temporary folder and rename it into place.

    Args:
        folder: The output folder; must not exist yet.
        config: The requested config; it goes into the bundle without paths.
        release: What leaves. Its secrets are not written here; they go to the vault.
        card: Its card, from `card.make`; hashes are added here.
        smaller: Smaller ONNX files of the network by file name, from `compression.compress`.
        signer: The key that signs every file; without it the bundle is unsigned, and `verify` says so first.
        force: Replace `folder` if it is empty or a bundle.
        record: Called with the SHA-256 of every file when all are written, before the folder gets its name.

    Raises:
        OutputError: The folder cannot be used, or writing failed; no partial output is left behind.
    """
    folder = Path(folder).absolute()
    check_output(folder, force=force)
    _check_same(card, release)
    artefact, packing = release.artefact, packing_of(release.artefact.kind)
    net, withheld = packing.config_net(artefact, config.net), packing.withheld(artefact)
    text = config_text(config, release.plan, net, withheld, card.data.records)
    kept = {**packing.files(artefact), CONFIG: text.encode(), **(smaller or {})}
    kept |= _with_encoding(kept.get(ONNX), card) | _with_tokenizer(config, card)
    shards = packing.shards(artefact)
    made = card.model_copy(update={"hashes": hashes(kept)})
    return _put(folder, kept, made, force=force, shards=shards, signer=signer, record=record)


def _with_encoding(network: bytes | None, card: Card) -> dict[str, bytes]:
    """The file of a table's network that takes raw columns; none for any other."""
    if network is None or card.inputs is None or not card.inputs.columns or card.inputs.target is not None:
        return {}
    made = table_onnx.with_encoding(network, card.inputs.columns, card.inputs.classes)
    return {} if made is None else {TABLE_ONNX: made}


def _with_tokenizer(config: ReleaseConfig, card: Card) -> dict[str, bytes]:
    """The public tokenizer of texts, which whoever asks the model needs; none for other data.

    Raises:
        FormatError: It is not the one that the records were read with.
    """
    if card.inputs is None or card.inputs.text is None:
        return {}
    found = read_tokenizer(config.data.tokenizer or MINILM)
    if _sha(found) != card.inputs.text.tokenizer:
        raise FormatError(
            "the tokenizer that the records were read with",
            "another one at the same place",
            "The model knows the numbers of the first one alone.",
            "Put it back, and release again.",
        )
    return {TOKENIZER: found}


def _put(
    folder: Path,
    kept: Mapping[str, bytes],
    card: Card,
    *,
    force: bool,
    shards: Sequence[Path],
    signer: SigningKey | None,
    record: Callable[[Mapping[str, str]], None] | None,
) -> Bundle:
    files = dict(kept) | {name: text.encode() for name, text in texts(card).items()}
    with folder_aside(folder, replace=force) as aside:
        for name in sorted(files):
            write_file(aside / name, files[name])
        for shard in shards:
            _lay(shard, aside / shard.name)
        sums = {name: _sha(content) for name, content in files.items()}
        sums |= {shard.name: digest(aside / shard.name) for shard in shards}
        listed = sums_text(sums).encode()
        write_file(aside / SUMS, listed)
        if signer is not None:
            statement = release_statement({**sums, SUMS: _sha(listed)}, card.release_id)
            write_file(aside / SIGNATURE, seal(statement, signer))
        check_output(folder, force=force)  # it may have been created while we wrote
        if record is not None:
            record(sums)
    return Bundle(folder, card)


def write_files(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> Bundle:
    """Write a bundle that was made already, byte for byte, to another place: whole or not at all.

    Args:
        folder: The output folder; must not exist yet.
        files: Every file of the bundle by its name.
        force: Replace `folder` if it is empty or a bundle.

    Raises:
        OutputError: The folder cannot be used, or writing failed; no partial output is left behind.
    """
    folder = Path(folder).absolute()
    sweep(folder)
    check_output(folder, force=force)
    with folder_aside(folder, replace=force) as aside:
        for name in sorted(files):
            write_file(aside / name, files[name])
        check_output(folder, force=force)
    return read(folder)


def _lay(shard: Path, place: Path) -> None:
    """Place a shard in the bundle: a hard link where possible, otherwise a copy."""
    try:
        os.link(shard, place, follow_symlinks=False)
    except OSError:
        shutil.copyfile(shard, place, follow_symlinks=False)
    place.chmod(0o644)


def check_output(folder: Path, *, force: bool = False) -> None:
    """Refuse an output folder that `write` would refuse, before any work is done.

    Raises:
        OutputError: It exists (and, with `force`, is neither empty nor a bundle), or is inside a vault.
    """
    folder = Path(folder).absolute()
    for above in (folder, *folder.parents):
        if os.path.lexists(above / MARKER):
            raise OutputError("a folder outside the vault", str(folder), f"{above} is marked as never to be released.")
    if not os.path.lexists(folder):
        return
    if not force:
        raise OutputError(
            "an output folder that does not exist yet",
            str(folder),
            "A bundle never overwrites anything unless it is told to.",
            "Choose another folder, or pass --force to replace a bundle.",
        )
    if not _replaceable(folder):
        raise OutputError(
            "an empty folder or an Airlock bundle to replace",
            f"{folder}, which is neither",
            "--force would delete files that are not part of a bundle.",
            "Choose another folder, or empty this one yourself.",
        )


def texts(card: Card) -> dict[str, str]:
    """The files that follow from the card alone."""
    table = card.model_dump(mode="json")[card.artefact]
    return {
        CARD: card.to_json(),
        HTML: page.render_html(card),
        README: page.render_readme(card),
        **packing_of(card.artefact).texts(table),
        **({} if card.inputs is None else {SCHEMA: card.inputs.to_json()}),
    }


def read(folder: Path, digests: Mapping[str, str] | None = None) -> Bundle:
    """Read a bundle's card; `verify` checks the rest.

    Args:
        folder: The bundle.
        digests: The SHA-256 of its files, if it was verified.

    Raises:
        FormatError: There is no card, it cannot be parsed, or it was changed since it was verified.
    """
    folder = Path(folder).absolute()
    try:
        table = parse_json(Contents(folder, digests).read(CARD))
        if _is_older(table):
            raise FormatError(
                f"a card of format {SCHEMA_VERSION} in {folder / CARD}",
                f"one of format {table['schema_version']}",
                older_note(table["schema_version"]),
                "`airlock verify` and `airlock show` can open it; for anything else, make the release again.",
            )
        return Bundle(folder, Card.model_validate(table), digests or {})
    except ValueError as error:  # includes pydantic's ValidationError
        raise FormatError(
            f"a card in {folder / CARD}", "something else", do="`airlock verify` says what is wrong."
        ) from error


def hashes(models: Mapping[str, bytes]) -> Hashes:
    """The file hashes for the card."""
    found = {name: _sha(content) for name, content in models.items()}
    return Hashes(
        model_safetensors=found.get(SAFETENSORS),
        model_onnx=found.get(ONNX),
        model_int8_onnx=found.get(INT8),
        model_fp16_onnx=found.get(FP16),
        model_table_onnx=found.get(TABLE_ONNX),
        tokenizer_json=found.get(TOKENIZER),
        features_json=found.get(MANIFEST),
        config_toml=found[CONFIG],
    )


def smaller_of(card: Card) -> dict[str, str]:
    """The smaller ONNX files that the card names, with their hashes."""
    if card.hashes is None:
        return {}
    named = {INT8: card.hashes.model_int8_onnx, FP16: card.hashes.model_fp16_onnx}
    return {name: sha for name, sha in named.items() if sha is not None}


def sums_text(sums: Mapping[str, str]) -> str:
    """In the format of `sha256sum`, sorted by name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def config_text(
    config: ReleaseConfig, plan: Plan, net_name: str, withheld: Sequence[str] = (), records: int | None = None
) -> str:
    """The resolved config as TOML, without any path: own data keep their name and schema, not their location.

    Withheld settings stay in the vault. Where the source is not named, `records` says how many there are, as a public
    figure: without it nobody could plan the release again.
    """
    table: dict[str, Any] = config.model_dump(mode="json", exclude_none=True, exclude=set(NEVER_IN_A_BUNDLE))
    table |= {"method": plan.method, "net": net_name, "data": _data_table(config)}
    if table["data"].get("source", memory.SOURCE) == memory.SOURCE and records is not None:
        table["data"].setdefault("records", records)
    kept = {k: v for k, v in table["settings"].items() if k not in withheld}
    table["settings"] = without_paths({key: _unnamed(value) for key, value in kept.items()})
    if str(teacher := plan.details.get("teacher")).startswith(TRANSFORMERS):  # also where it is left out
        table["settings"]["teacher"] = teacher
    if "tune" in table:
        table["tune"] = without_paths(table["tune"])
    table["about"] = {key: text for key, text in table["about"].items() if text}
    for key in ("settings", "about"):
        if not table[key]:
            del table[key]
    if config.task == "classification":
        del table["task"]  # what every config meant before there was a choice
    return tomli_w.dumps(table)


def _data_table(config: ReleaseConfig) -> dict[str, Any]:
    table: dict[str, Any] = config.data.model_dump(mode="json", exclude_none=True)
    source = _source_name(config.data.source)
    for key in ("source", "test", *(() if config.data.tokenizer == MINILM else ("tokenizer",))):
        table.pop(key, None)
    if source is not None:
        table["source"] = source
    elif config.data.source == memory.SOURCE:
        table["source"] = memory.SOURCE
    for key in ("columns", "read_off"):
        if not table.get(key):
            table.pop(key, None)
    if "name" in table:
        table["name"] = without_paths(table["name"])
    if "person" in table:  # that there is such a column is public, and has to be; what it is called need not leave
        table["person"] = PERSON
        table.setdefault("records_per_person", RECORDS_PER_PERSON)
    return table


def _unnamed(value: Any) -> Any:
    """A setting that is a public set without the name of its column of people, which the private set has, too."""
    is_set = isinstance(value, dict) and "source" in value and "person" in value
    return {**value, "person": PERSON} if is_set else value


def _source_name(source: str) -> str | None:
    """The name of a built-in source; None for the user's own files, whose location must not leave, and for plugins.

    Opening a bundle must never import a package just because config.toml names something in it.
    """
    if source in SOURCES:
        return source
    try:
        known = named(source, None)
    except ConfigError:
        return None
    return known[0].name if known and known[0].name in SOURCES else None


def _check_same(card: Card, release: Release) -> None:
    if card.guarantee.model_dump(mode="json", exclude={"parts"}) != json.loads(json.dumps(release.guarantee.to_dict())):
        raise OutputError("the card of this release", "the card of another one", "The guarantees differ.")


def _replaceable(folder: Path) -> bool:
    """Whether the folder is empty, or holds a readable card and only files that a bundle can have."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            return False
        entries = list(os.scandir(folder))
    except OSError as error:
        raise output_error(error, folder) from error
    if not entries:
        return True
    known = [entry.name in LIMITS or entry.name in _FORMERLY or NAME.fullmatch(entry.name) for entry in entries]
    if not all(known) or not all(entry.is_file(follow_symlinks=False) for entry in entries):
        return False
    try:
        read(folder)
    except FormatError:
        return _older(folder)
    return True


def _older(folder: Path) -> bool:
    """Whether this is a bundle of an earlier format, which a new bundle may replace."""
    try:
        found = parse_json(read_file(folder / CARD, LIMITS[CARD]))
    except (FormatError, ValueError):
        return False
    return _is_older(found)


def _is_older(card: Any) -> bool:
    version = card.get("schema_version") if isinstance(card, dict) else None
    return type(version) is int and 0 < version < OLDEST


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


__all__ = [
    "CARD",
    "CONFIG",
    "HTML",
    "INTERFACE",
    "LIMITS",
    "MANIFEST",
    "ONNX",
    "PATH_REMOVED",
    "README",
    "SAFETENSORS",
    "SCHEMA",
    "SMALLER",
    "SUMS",
    "TABLE_ONNX",
    "TOKENIZER",
    "Bundle",
    "check_output",
    "config_text",
    "hashes",
    "read",
    "smaller_of",
    "sums_text",
    "texts",
    "without_paths",
    "write",
    "write_files",
]

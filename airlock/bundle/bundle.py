"""The bundle: the folder that leaves, written whole or not at all.

In: the config, the release and its card. Out: a folder of seven files, six where answers leave and no network, six and
the shards where features leave, and up to two smaller forms where a student leaves. No one has to execute any to
inspect it. All of it, card included, has the stated (ε, δ); what has not is in the vault.
`docs/bundle.md` describes it; `verify.py` checks it.

`Contents` is what lies in such a folder, links never followed; a `Test` is one check of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from airlock.bundle import export
from airlock.bundle.card import OLDEST, SCHEMA_VERSION, Card
from airlock.bundle.compression import FP16, INT8
from airlock.bundle.files import digest, folder_aside, output_error, parse_json, read_file, write_file
from airlock.bundle.rendering import page
from airlock.bundle.schema import Hashes
from airlock.bundle.vault import MARKER
from airlock.config import ReleaseConfig
from airlock.data.feature_files import MANIFEST as MANIFEST
from airlock.data.feature_files import NAME
from airlock.data.sources import SOURCES, named
from airlock.errors import ConfigError, FormatError, OutputError
from airlock.methods.artefact import FeatureSet
from airlock.methods.contract import Plan, Release
from airlock.methods.interface import Interface

CARD, HTML, README = "card.json", "card.html", "README.md"
SAFETENSORS, ONNX, CONFIG = "model.safetensors", "model.onnx", "config.toml"
SUMS, INTERFACE = "SHA256SUMS", "interface.json"
SMALLER = (INT8, FP16)  # beside the network, where a student leaves
_FORMERLY = ("audit.json", "roc.svg", "sheet.png")  # files of earlier formats
# Every file that a bundle can have, and the most bytes that are ever read of it. protobuf ends at 2 GiB.
LIMITS = {
    CARD: 16 << 20,
    HTML: 32 << 20,
    README: 16 << 20,
    SAFETENSORS: 4 << 30,
    ONNX: 2 << 30,
    CONFIG: 4 << 20,
    INTERFACE: 16 << 20,
    MANIFEST: 16 << 20,
    SUMS: 64 << 10,
    INT8: 2 << 30,
    FP16: 2 << 30,
}
MODELS = (SAFETENSORS, ONNX)  # of a network that leaves
PATH_REMOVED = "(a path, removed)"
_LOOKS_LIKE_PATH = re.compile(r"^(~|\.{1,2}[/\\]|[/\\]|[A-Za-z]:[/\\])|[/\\]|^\w+://")


@dataclass(frozen=True)
class Bundle:
    """A folder that leaves, and its card."""

    folder: Path
    card: Card


def write(
    folder: Path,
    config: ReleaseConfig,
    release: Release,
    card: Card,
    *,
    smaller: Mapping[str, bytes] | None = None,
    force: bool = False,
) -> Bundle:
    """Write the bundle aside and rename it into place.

    Args:
        folder: Where; must not exist yet.
        config: What was asked for; the bundle gets it without paths.
        release: What leaves. Its secrets are not written here; they belong to the vault.
        card: Its card, from `card.make`; the hashes are added here.
        smaller: Smaller forms of the network by file name, from `compression.compress`.
        force: Replace `folder` if it is empty or a bundle.

    Raises:
        OutputError: The folder may not be used, or writing failed; nothing half-written is left.
    """
    folder = Path(folder).absolute()
    check_output(folder, force=force)
    _check_same(card, release)
    kept = _kept(config, release) | dict(smaller or {})
    artefact = release.artefact
    shards = (
        [artefact.folder / one.name for one in artefact.manifest.shards] if isinstance(artefact, FeatureSet) else []
    )
    return _put(folder, kept, card.model_copy(update={"hashes": hashes(kept)}), force=force, shards=shards)


def _kept(config: ReleaseConfig, release: Release) -> dict[str, bytes]:
    """What does not follow from the card."""
    artefact = release.artefact
    if isinstance(artefact, Interface):
        return {CONFIG: config_text(config, release.plan, config.net).encode()}
    if isinstance(artefact, FeatureSet):
        text = config_text(config, release.plan, config.net, artefact.withheld)
        return {CONFIG: text.encode(), MANIFEST: artefact.manifest.to_json().encode()}
    return {
        SAFETENSORS: export.to_safetensors(release.network),
        ONNX: export.to_onnx(release.network),
        CONFIG: config_text(config, release.plan, release.network.net_name).encode(),
    }


def required(answers: bool, features: bool = False) -> tuple[str, ...]:
    """The files of a bundle of answers, of features (their shards apart), or of a network.

    A network may have smaller forms beside it.
    """
    away = [*SMALLER] if features else [*SMALLER, MANIFEST]
    away += [] if answers else [INTERFACE]
    away += MODELS if answers or features else []
    return tuple(name for name in LIMITS if name not in away)


def _put(folder: Path, kept: Mapping[str, bytes], card: Card, *, force: bool, shards: Sequence[Path] = ()) -> Bundle:
    files = dict(kept) | {name: text.encode() for name, text in texts(card).items()}
    with folder_aside(folder) as aside:
        for name in sorted(files):
            write_file(aside / name, files[name])
        for shard in shards:
            _lay(shard, aside / shard.name)
        sums = {name: _sha(content) for name, content in files.items()}
        sums |= {shard.name: digest(aside / shard.name) for shard in shards}
        write_file(aside / SUMS, sums_text(sums).encode())
        check_output(folder, force=force)  # it may have come into being while we wrote
    return Bundle(folder, card)


def _lay(shard: Path, place: Path) -> None:
    """The same file at another place: a second name where that can be had, else a copy."""
    try:
        os.link(shard, place, follow_symlinks=False)
    except OSError:
        shutil.copyfile(shard, place, follow_symlinks=False)
    place.chmod(0o644)


def check_output(folder: Path, *, force: bool = False) -> None:
    """Refuse a place where `write` would not write, before any work is done.

    Raises:
        OutputError: It exists (and with `force` is neither empty nor a bundle), or lies in a vault.
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
            "A bundle is never written over something else unasked.",
            "Choose another folder, or pass --force to replace a bundle.",
        )
    if not _replaceable(folder):
        raise OutputError(
            "an empty folder or an Airlock bundle to replace",
            f"{folder}, which is neither",
            "--force would delete what somebody else put there.",
            "Choose another folder, or empty this one yourself.",
        )


def texts(card: Card) -> dict[str, str]:
    """The files that follow from the card alone."""
    files = {
        CARD: card.to_json(),
        HTML: page.render_html(card),
        README: page.render_readme(card),
    }
    if card.interface is not None:
        files[INTERFACE] = _json_text(card.model_dump(mode="json")["interface"])
    return files


def read(folder: Path) -> Bundle:
    """Read a bundle's card; `verify` checks the rest.

    Raises:
        FormatError: There is no card, or it is not one.
    """
    folder = Path(folder).absolute()
    try:
        table = parse_json(read_file(folder / CARD, LIMITS[CARD]))
        if _is_older(table):
            raise FormatError(
                f"a card of format {SCHEMA_VERSION} in {folder / CARD}",
                f"one of format {table['schema_version']}",
                f"Before format {OLDEST} figures on cards were not paid for.",
                "`airlock verify` and `airlock show` open it; for all else make the release again.",
            )
        return Bundle(folder, Card.model_validate(table))
    except ValueError as error:  # pydantic's is one too
        raise FormatError(
            f"a card in {folder / CARD}", "something else", do="`airlock verify` says what is wrong."
        ) from error


def hashes(models: Mapping[str, bytes]) -> Hashes:
    """The hashes that stand on the card."""
    found = {name: _sha(content) for name, content in models.items()}
    return Hashes(
        model_safetensors=found.get(SAFETENSORS),
        model_onnx=found.get(ONNX),
        model_int8_onnx=found.get(INT8),
        model_fp16_onnx=found.get(FP16),
        features_json=found.get(MANIFEST),
        config_toml=found[CONFIG],
    )


def smaller_of(card: Card) -> dict[str, str]:
    """The smaller forms that the card names, with their hashes."""
    if card.hashes is None:
        return {}
    named = {INT8: card.hashes.model_int8_onnx, FP16: card.hashes.model_fp16_onnx}
    return {name: sha for name, sha in named.items() if sha is not None}


def _json_text(table: object) -> str:
    return json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def sums_text(sums: Mapping[str, str]) -> str:
    """In the format of `sha256sum`, sorted by name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def config_text(config: ReleaseConfig, plan: Plan, net_name: str, withheld: Sequence[str] = ()) -> str:
    """The resolved config as TOML, without any path: own data keep their name and schema, not their place.

    Settings that are withheld stay in the vault.
    """
    table: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    table |= {"method": plan.method, "net": net_name, "data": _data_table(config)}
    table["settings"] = _without_paths({k: v for k, v in table["settings"].items() if k not in withheld})
    if not table["settings"]:
        del table["settings"]
    return tomli_w.dumps(table)


def _data_table(config: ReleaseConfig) -> dict[str, Any]:
    table: dict[str, Any] = config.data.model_dump(mode="json", exclude_none=True)
    source = _source_name(config.data.source)
    for key in ("source", "test"):
        table.pop(key, None)
    if source is not None:
        table["source"] = source
    if not table.get("columns"):
        table.pop("columns", None)
    if "name" in table:
        table["name"] = _without_paths(table["name"])
    return table


def _source_name(source: str) -> str | None:
    """The name of a source of Airlock's own; None for the user's, whose place does not leave, and for other packages'.

    Whoever opens the bundle must not import a package because config.toml names what is in it.
    """
    if source in SOURCES:
        return source
    try:
        known = named(source, None)
    except ConfigError:
        return None
    return known[0].name if known and known[0].name in SOURCES else None


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_paths(inner) for inner in value]
    return PATH_REMOVED if isinstance(value, str) and _LOOKS_LIKE_PATH.search(value) else value


def _check_same(card: Card, release: Release) -> None:
    if card.guarantee.model_dump(mode="json", exclude={"parts"}) != json.loads(json.dumps(release.guarantee.to_dict())):
        raise OutputError("the card of this release", "the card of another one", "Its promise would not be this one's.")


def _replaceable(folder: Path) -> bool:
    """Empty, or holding a readable card and nothing that is not a bundle's file."""
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
    """Whether this is a bundle of an earlier format, which nothing but a new one may take the place of."""
    try:
        found = json.loads((folder / CARD).read_bytes())
    except (OSError, ValueError):
        return False
    return _is_older(found)


def _is_older(card: Any) -> bool:
    version = card.get("schema_version") if isinstance(card, dict) else None
    return type(version) is int and 0 < version < OLDEST


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# What lies in the folder.

pass  # merged

_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^\x00-\x1f]+)")
_MANY = 10_000

Defects = Sequence[str]  # one sentence each; none is good
Test = tuple[str, str, Callable[[], Defects]]  # name, what is true if it finds nothing, the check


class Skip(Exception):
    """A check that cannot be made here, and why."""


class Contents:
    """Every file below a folder by its path in it, with what verification asks of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}

    @cached_property
    def _entries(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of all files and links, and of the links alone; subfolders are looked into, linked ones are not."""
        names, links = [], []
        for base, folders, files in os.walk(self.folder, followlinks=False):
            for entry in (*files, *(f for f in folders if Path(base, f).is_symlink())):
                path = Path(base, entry)
                names.append(path.relative_to(self.folder).as_posix())
                if path.is_symlink():
                    links.append(names[-1])
            if len(names) > _MANY:
                raise FormatError("a handful of files in a bundle", "thousands")
        return tuple(sorted(names)), tuple(sorted(links))

    @property
    def names(self) -> tuple[str, ...]:
        """All files, also those in subfolders, and all links."""
        return self._entries[0]

    @property
    def links(self) -> tuple[str, ...]:
        """The symbolic links among them."""
        return self._entries[1]

    def sizes(self) -> set[int]:
        """The sizes in bytes that occur."""
        return {(self.folder / name).lstat().st_size for name in self.names if name not in self.links}

    def digest(self, name: str) -> str:
        """The SHA-256 of a file."""
        if name not in self._digests:
            self._digests[name] = digest(self.folder / name)
        return self._digests[name]

    def read(self, name: str) -> bytes:
        """The content of one of a bundle's files, up to its limit."""
        return read_file(self.folder / name, LIMITS[name])

    def sums(self) -> tuple[dict[str, str], list[str]]:
        """SHA256SUMS by file name, and what is wrong with it."""
        recorded: dict[str, str] = {}
        defects = []
        for number, line in enumerate(self.read(SUMS).decode("utf-8", "replace").splitlines(), 1):
            match = _LINE.fullmatch(line)
            if not match or match[2] in recorded:
                defects.append(f"Line {number} of {SUMS} is not a checksum of one more file.")
            else:
                recorded[match[2]] = match[1]
        return recorded, defects

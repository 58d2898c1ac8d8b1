"""A forger who has Airlock, a bundle and care: fields are changed, and everything that follows is made again.

`forge` changes the fields that a test names. A `Forger` changes one at random, over and over: a field of the card, or
the events and with them every ε, or the config; and then keeps the signature, makes one with a key of his own under his
own name or the holder's, or leaves it out. Both compute headline and sentences again, render every page and hash every
file (`consistent`, `seal`). What a forger does not have is the holder's key. `after` is for one who can write the
folder while it is in use.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from airlock.accounting import compute_epsilon, from_json
from airlock.bundle import Bundle, Card, Vault
from airlock.bundle.bundle import sums_text, texts
from airlock.bundle.card import headline, sentences
from airlock.bundle.contents import SIGNATURE, SIGNATURES, SUMS, Contents
from airlock.bundle.signing.envelope import release_statement
from airlock.bundle.signing.envelope import seal as sealed
from airlock.bundle.signing.keys import SigningKey
from airlock.bundle.verify import verify
from airlock.config import merge

Table = dict[str, Any]
SIGNED = ("kept", "own key", "own key, holder's fingerprint", "new statement, old signature", "none")


def consistent(table: Table, config: bytes) -> Card:
    """The card of this table and this config, with headline and sentences that follow from it.

    Raises:
        ValidationError: It is no card.
    """
    table["hashes"]["config_toml"] = hashlib.sha256(config).hexdigest()
    card = Card.model_validate_json(json.dumps(table))
    return card.model_copy(update={"headline": headline(card), "words": sentences(card)})


def seal(folder: Path) -> None:
    """SHA256SUMS of all other files."""
    names = [path.name for path in folder.iterdir() if path.name not in (SUMS, *SIGNATURES)]
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / SUMS).write_text(sums_text(sums))


def forge(folder: Path, card: Mapping[str, object] | None = None, config: Mapping[str, object] | None = None) -> Path:
    """Change fields of the card and of the config, by dotted keys, and make the rest consistent with them."""
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(merge(tomllib.loads(file.read_text()), config or {})))
    table: Table = merge(json.loads((folder / "card.json").read_text()), card or {})
    if "guarantee.events" in (card or {}) or "guarantee.epsilon" in (card or {}):
        promise = table["guarantee"]
        promise["parts"]["private"] |= {key: promise[key] for key in ("events", "epsilon", "accountant")}
        table["total"]["epsilon"] = promise["epsilon"]
    for name, text in texts(consistent(table, file.read_bytes())).items():
        (folder / name).write_text(text)
    seal(folder)
    return folder


class Forger:
    """Forges one bundle over and over, in its own folder; `restore` puts the original back.

    Args:
        bundle: The original, signed.
        key: The forger's own.
        seed: Of his choices.
    """

    def __init__(self, bundle: Bundle, key: SigningKey, seed: int) -> None:
        self.folder, self.card, self.key, self.chance = bundle.folder, bundle.card, key, random.Random(seed)
        self.files = {path.name: path.read_bytes() for path in bundle.folder.iterdir()}

    def forge(self) -> str:
        """Change the bundle on disk; returns what was done."""
        while True:
            what, card, config = self._change()
            try:
                rendered = {name: text.encode() for name, text in texts(card).items()} if card else {}
            except ValueError:
                continue  # a card that no page can show
            if card is not None and (card != self.card or config != self.files["config.toml"]):
                break
        made = dict(self.files) | {"config.toml": config} | rendered
        del made[SIGNATURE]
        self._write(made)
        seal(self.folder)
        return f"{what}; {self._sign(card)}"

    def restore(self) -> None:
        self._write(self.files)

    def _write(self, files: dict[str, bytes]) -> None:
        for path in self.folder.iterdir():
            if path.name not in files:
                path.unlink()
        for name, content in files.items():
            if not (self.folder / name).exists() or (self.folder / name).read_bytes() != content:
                (self.folder / name).write_bytes(content)

    def _change(self) -> tuple[str, Card | None, bytes]:
        table, config = self.card.model_dump(mode="json"), self.files["config.toml"]
        way = self.chance.choice((self._field, self._field, self._field, self._events, self._config))
        what, config = way(table, config)
        try:
            return what, consistent(table, config), config
        except (ValidationError, ValueError, ArithmeticError, LookupError, TypeError):
            return what, None, config  # no card that Airlock could have written; he tries something else

    def _field(self, table: Table, config: bytes) -> tuple[str, bytes]:
        path = self.chance.choice([path for path in leaves(table) if path[0] not in ("words", "headline", "hashes")])
        inner: Any = table
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = self._other(inner[path[-1]])
        return ".".join(map(str, path)), config

    def _other(self, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + self.chance.choice((-1, 1, 1000, -value))
        if isinstance(value, float):
            return value * self.chance.choice((0.0, 0.001, 0.5, 2.0, 1000.0))
        if isinstance(value, str):
            return "".join(self.chance.choices(string.hexdigits[:16], k=len(value) or 3)) if value else "Approved."
        return [] if isinstance(value, list) else 0.5

    def _events(self, table: Table, config: bytes) -> tuple[str, bytes]:
        """More noise than there was, or another δ, and every ε that follows from it."""
        promise, factor = table["guarantee"], self.chance.choice((2.0, 10.0, 68.0)) * self.chance.uniform(1.0, 1.5)
        delta = self.chance.choice((promise["delta"], 0.5, 1e-9))
        for events in (promise["events"], promise["parts"]["private"]["events"]):
            scale(events, "noise_multiplier", factor)
        for part in promise["parts"].values():
            part["epsilon"] = self._epsilon(part["events"], delta, promise["relation"])
        promise["epsilon"], promise["delta"] = promise["parts"]["private"]["epsilon"], delta
        table["total"]["epsilon"], table["total"]["delta"] = promise["epsilon"], delta
        table["target"]["delta"] = delta
        if table["interface"]:
            table["interface"]["figures"]["noise_multiplier"] *= self.chance.choice((1.0, 0.001))
        return "events", config

    @staticmethod
    def _epsilon(events: Any, delta: float, relation: str) -> float:
        return compute_epsilon(from_json(events), delta, relation).epsilon  # type: ignore[arg-type]

    def _config(self, table: Table, config: bytes) -> tuple[str, bytes]:
        asked = tomllib.loads(config.decode())
        key = self.chance.choice([key for key, value in asked.items() if isinstance(value, str | int | float)])
        asked[key] = self._other(asked[key])
        if key in table["target"]:
            table["target"][key] = asked[key]
        return f"config.toml: {key}", tomli_w.dumps(asked).encode()

    def _sign(self, card: Card) -> str:
        """The holder's signature of other files; the forger's own; the same under the holder's name; or none."""
        how = self.chance.choice(SIGNED)
        place = self.folder / SIGNATURE
        if how == "kept":
            place.write_bytes(self.files[SIGNATURE])
        elif how != "none":
            made = json.loads(sealed(release_statement(Contents(self.folder).signed(), card.release_id), self.key))
            before = json.loads(self.files[SIGNATURE])
            if how != "own key":
                made["verificationMaterial"] = before["verificationMaterial"]
            if how == "new statement, old signature":
                made["dsseEnvelope"]["signatures"] = before["dsseEnvelope"]["signatures"]
            place.write_text(json.dumps(made))
        return f"signature: {how}"


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to every single value of a table, and to every list."""
    if isinstance(value, list) and value:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from leaves(below, (*path, key))
    if not isinstance(value, dict | list):
        yield path


def scale(events: Any, field: str, factor: float) -> None:
    """Multiply a field wherever it occurs in a tree of events."""
    if isinstance(events, dict):
        for key, value in events.items():
            if key == field:
                events[key] = value * factor
            else:
                scale(value, field, factor)
    for one in events if isinstance(events, list) else ():
        scale(one, field, factor)


def after(patch: pytest.MonkeyPatch, module: object, name: str, swap: Callable[[], object]) -> None:
    """Swap right after this step, the first time that it is made."""
    step, swaps = getattr(module, name), iter([swap])

    def stepped(*told: Any, **more: Any) -> Any:
        found = step(*told, **more)
        next(swaps, lambda: None)()
        return found

    patch.setattr(module, name, stepped)


def failures_of(folder: Path, copied: Path, changed: Callable[[Any], object], vault: Path) -> set[str]:
    """The checks that fail where card.json of a copy is changed, and its checksums with it."""
    shutil.copytree(folder, copied)
    card = json.loads((copied / "card.json").read_text())
    changed(card)
    (copied / "card.json").write_text(json.dumps(card))
    seal(copied)
    return {one.name for one in verify(copied, Vault.open(vault)).checks if one.outcome == "failed"}

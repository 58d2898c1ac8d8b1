"""A forger who has Airlock, a bundle and care: fields are changed, and everything that follows is made again."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from airlock.bundle import Card
from airlock.bundle.bundle import texts
from airlock.bundle.card import headline, sentences
from airlock.config import merge


def forge(folder: Path, card: Mapping[str, object] | None = None, config: Mapping[str, object] | None = None) -> Path:
    """Change fields of the card and of the config, by dotted keys, and make the rest consistent with them."""
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(merge(tomllib.loads(file.read_text()), config or {})))
    table: dict[str, Any] = merge(json.loads((folder / "card.json").read_text()), card or {})
    table["hashes"]["config_toml"] = hashlib.sha256(file.read_bytes()).hexdigest()
    if "guarantee.events" in (card or {}) or "guarantee.epsilon" in (card or {}):
        promise = table["guarantee"]
        promise["parts"]["private"] |= {key: promise[key] for key in ("events", "epsilon", "accountant")}
        table["total"]["epsilon"] = promise["epsilon"]
    made = Card.model_validate(table)
    made = made.model_copy(update={"headline": headline(made), "words": sentences(made)})
    for name, text in texts(made).items():
        (folder / name).write_text(text)
    seal(folder)
    return folder


def seal(folder: Path) -> None:
    """SHA256SUMS of all other files."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def after(patch: pytest.MonkeyPatch, module: object, name: str, swap: Callable[[], object]) -> None:
    """Swap right after this step, the first time that it is made."""
    step, swaps = getattr(module, name), iter([swap])

    def stepped(*told: Any, **more: Any) -> Any:
        found = step(*told, **more)
        next(swaps, lambda: None)()
        return found

    patch.setattr(module, name, stepped)

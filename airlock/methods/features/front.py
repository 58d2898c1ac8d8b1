"""The front end of a release of features: opened, filled with public weights, and cut down to some of its channels.

In: settings, the shape of a record, a public set. Out: a module from records to maps. Nothing here sees a private
record. Which front end of a pool it is and which channels are kept is drawn from a key that stays in the vault.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.config import DataConfig
from airlock.data import Facts, Public, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.contract import Secrets
from airlock.methods.features.prune import draw, draw_front, draw_inner
from airlock.methods.features.settings import OWN, FeatureSettings
from airlock.nets.prefix import Prefix, layer_count, narrow, open_prefix
from airlock.training import Run
from airlock.training.front_ends.pretrain import FRONT, front_weights
from airlock.training.front_ends.public import FrontSettings, check_public, public_records

Whole = NDArray[np.int64]
KEY = "choices.key"
_READY = ("efficientnet-lite0",)  # comes with its weights


@dataclass(frozen=True)
class Choice:
    """What was drawn or chosen: which front end, and which of its channels in each layer with weights."""

    front: str
    channels: tuple[int, ...]
    inner: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class FeatureFrontEnd:
    """A front end for records of one shape.

    Args:
        settings: Which.
        facts: The shape of a record.
        layers: m, or the name of the last layer.
        channels: D'; None keeps all.
    """

    settings: FeatureSettings
    facts: Facts
    layers: int | str
    channels: int | None

    @property
    def names(self) -> tuple[str, ...]:
        """The front ends that one is drawn from."""
        return (self.settings.front, *self.settings.pool)

    def sized(self, name: str) -> Prefix:
        """Before its weights are filled in, all channels.

        Raises:
            NetError: It does not take such records, or has no such layer.
            ConfigError: It has fewer channels than are to be kept.
        """
        made = open_prefix(name, self.layers, self.facts.shape)
        self._check(made)
        return made

    def _check(self, made: Prefix) -> None:
        wanted, widths = self.channels, made.widths
        if wanted is not None and wanted > made.channels:
            raise ConfigError(
                f"at most {made.channels} channels to keep of {made.name} after layer {made.names[-1]}",
                f"settings.channels = {wanted}",
                do="Lower settings.channels or take another layer.",
            )
        inner = self.settings.inner
        if inner and (len(inner) != len(widths) - 1 or any(a > b for a, b in zip(inner, widths, strict=False))):
            raise ConfigError(
                f"settings.inner of at most {', '.join(map(str, widths[:-1]))}, one for each layer before the last",
                f"{', '.join(map(str, inner))}",
            )

    def drawn(self, stream: Stream, left: Sequence[int] | None = None) -> Choice:
        """One of the pool, and channels at random: of those that are left, or of all."""
        name = draw_front(self.names, stream.child("pool"))
        *before, width = self.sized(name).widths
        kept = range(width) if left is None else left
        own = draw(kept, self.channels, stream.child("channels")) if self.channels else tuple(kept)
        inner = self.settings.inner
        return Choice(name, own, draw_inner(before, inner, stream.child("inner")) if inner else ())

    def whole(self, name: str, public: Public | None, seed: int, run: Run) -> Prefix:
        """With its weights and all channels, on the run's device."""
        weights = self._weights(name, public, seed, run)
        return open_prefix(name, self.layers, self.facts.shape, weights).to(run.device)

    def ready(self, choice: Choice, public: Public | None, seed: int, run: Run) -> Prefix:
        """With its weights, narrowed."""
        return narrow(self.whole(choice.front, public, seed, run), choice.channels, choice.inner or None)

    def _weights(self, name: str, public: Public | None, seed: int, run: Run) -> Mapping[str, Tensor] | Path | None:
        if self.settings.weights is not None:
            return Path(self.settings.weights).expanduser()
        if self.settings.pretrain_on is None:
            return None
        assert public is not None
        how = FRONT.model_copy(update={"epochs": self.settings.pretrain_epochs})
        return front_weights(name, public, how, seed, run)


def default_layers(settings: FeatureSettings, most: int | None) -> int | str:
    """m, where it is not set: so many, or all there are.

    Raises:
        ConfigError: The front end is the user's own.
    """
    if settings.layers is not None:
        return settings.layers
    there = layer_count(settings.front)
    if there is None:
        raise ConfigError(
            "settings.layers for a front end of your own", "none", do="Set how many of its parts are used."
        )
    return there if most is None else min(most, there)


def check_settings(settings: FeatureSettings, facts: Facts, public_share: float) -> None:
    """Refuse settings that contradict each other, before any work."""
    if settings.weights is not None and settings.pretrain_on is not None:
        raise ConfigError("settings.weights or settings.pretrain_on", "both", "A front end has one set of weights.")
    if settings.weights is not None and settings.pool:
        raise ConfigError("one front end with settings.weights", "a pool", "The file fits one of them.")
    if settings.weights is not None and not Path(settings.weights).expanduser().is_file():
        raise ConfigError("a file at settings.weights", "none", do="Check the path.")
    for name in (settings.front, *settings.pool):
        if settings.pretrain_on is not None and (name in _READY or ":" in name):
            raise ConfigError(
                "settings.pretrain_on for vgg16, vgg19, resnet18 or residual", f"'{name}', which brings its weights"
            )
    if settings.pretrain_on is not None:
        check_public(FrontSettings(public=settings.pretrain_on), "pixels", facts, public_share)


def outside(source: DataConfig | None) -> DataConfig | None:
    """The public set that has to be read from elsewhere, if any."""
    return None if source is None or source.source in OWN else source


def public_set(source: DataConfig | None, split: Split, seed: int) -> Public | None:
    """The public records of a release; the public part of the split is named as such."""
    return None if source is None else public_records(FrontSettings(public=source), split, seed)


def secret_choices(folder: Path | None, randomness: Randomness, resume: bool) -> Stream:
    """The key of choices that stay inside (channels, order): a run that goes on finds the one it began with.

    It is no key of noise: noise is drawn afresh by every run.
    """
    fresh = randomness.privacy.child("choices")
    if folder is None:
        return fresh
    file = folder / KEY
    if not (resume and file.exists()):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(fresh.take_key().hex())
    return Stream(bytes.fromhex(file.read_text()), fresh.secure)


def kept_front(front: torch.nn.Module, choice: Choice, order: Whole, settings: FeatureSettings) -> Secrets:
    """What stays in the vault: the front end, what was chosen, and which row is which record."""
    chosen = {"channels": np.array(choice.channels, np.int64)}
    chosen |= {f"inner-{i}": np.array(own, np.int64) for i, own in enumerate(choice.inner)}
    maps = next(part for part in front.modules() if isinstance(part, Prefix))
    said = {"front": choice.front, "layers": len(maps.names), "settings": settings.model_dump(mode="json")}
    text = json.dumps(said, sort_keys=True)
    return {
        "front": {name: tensor.detach().cpu().numpy() for name, tensor in front.state_dict().items()},
        "choices": {**chosen, "order": order, "settings": np.frombuffer(text.encode(), np.uint8)},
    }

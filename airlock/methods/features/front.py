"""The front end of a release of features: its settings, how it is opened and narrowed, and what the vault keeps of it.

In: settings, the shape of a record, a public set. Out: a module from records to maps. Nothing here sees a private
record. Which front end of a pool is used, and which channels are kept, is drawn with a key that stays in the vault.

`Kept` reads back what the vault keeps of a front end: for attacks, never for a bundle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from airlock.config import DataConfig, Frozen, Positive, parse
from airlock.data import Facts, Public, Split
from airlock.data.feature_files import Form, Precision
from airlock.errors import ConfigError, FormatError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.contract import Secrets
from airlock.methods.rows import Whole
from airlock.nets.prefix import POOLED, Prefix, layer_count, narrow, open_prefix
from airlock.training import Run
from airlock.training.front_ends.features import Average
from airlock.training.front_ends.pretrain import FRONT, front_weights
from airlock.training.front_ends.prune import LEAKIEST, LEAST_USEFUL, draw, draw_front, draw_inner
from airlock.training.front_ends.public import SPLIT, SYNTHETIC, FrontSettings, check_public, public_records

KEY = "choices.key"
_READY = ("efficientnet-lite0", *POOLED)  # what they need ships with them
_OWN = (SPLIT, SYNTHETIC)  # public sets that do not come from another source
_CHOOSING = {"psnr", "milliseconds", "bytes", "prune", "characterised"}  # settings that choose layers and channels


# Settings.


def _source(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1, le=100_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Source = Annotated[DataConfig, BeforeValidator(_source)]


class FeatureSettings(Frozen):
    """Which front end, and how features are written.

    Args:
        front: vgg16, vgg19, resnet18, efficientnet-lite0, residual, or your own as `package.module:function`; all of a
            front end of `weights`/`head`: scattering, efficientnet-lite0-pooled.
        layers: m, how many of its layers, or the name of the last one.
        channels: D', how many of its maps leave.
        weights: A file with its weights (.safetensors, or .pth without code).
        pretrain_on: A public set to train it on instead, such as cifar100; kept in the cache.
        pretrain_epochs: Of that training.
        prune: Which maps are pruned: random ones (random), the least useful by Fisher's criterion on the private
            records (lda), or the leakiest and least useful according to `characterised` (characterised).
        leakiest: The share of maps pruned because they leak most, according to `characterised`; by default the paper's.
        least_useful: The share pruned because they are least useful; by default the paper's.
        characterised: The file written by `airlock features characterise`.
        psnr: The highest PSNR, in dB, that the reconstruction net may reach.
        milliseconds: The longest time that a record may take.
        bytes: The largest size of the front end on disk.
        inner: How many channels each layer before the last keeps.
        pool: Further front ends; one of all is drawn in secret.
        format: Of the files.
        precision: Of the numbers.
        epochs: Of the classifier that measures how useful the features are.
    """

    front: str = "residual"
    layers: Count | str | None = None
    channels: Count | None = None
    weights: str | None = None
    pretrain_on: Source | None = None
    pretrain_epochs: Annotated[int, Field(ge=1, le=10_000)] = 40
    prune: Literal["random", "lda", "characterised"] = "random"
    leakiest: Share = LEAKIEST
    least_useful: Share = LEAST_USEFUL
    characterised: str | None = None
    psnr: Positive | None = None
    milliseconds: Positive | None = None
    bytes: Count | None = None
    inner: tuple[Count, ...] = ()
    pool: tuple[str, ...] = ()
    format: Form = "parquet"
    precision: Precision = "float16"
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 20


# Opened.


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
        """The front end with all channels, before its weights are loaded.

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
        """Draw a front end from the pool and channels at random, from those in `left` or from all."""
        name = draw_front(self.names, stream.child("pool"))
        *before, width = self.sized(name).widths
        kept = range(width) if left is None else left
        own = draw(kept, self.channels, stream.child("channels")) if self.channels else tuple(kept)
        inner = self.settings.inner
        return Choice(name, own, draw_inner(before, inner, stream.child("inner")) if inner else ())

    def whole(self, name: str, public: Public | None, seed: int, run: Run) -> Prefix:
        """The front end with its weights and all channels, on the run's device."""
        weights = self._weights(name, public, seed, run)
        return open_prefix(name, self.layers, self.facts.shape, weights).to(run.device)

    def ready(self, choice: Choice, public: Public | None, seed: int, run: Run) -> Prefix:
        """The front end with its weights, narrowed to the chosen channels."""
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
    """The number of layers m where it is not set: `most`, or all there are.

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
    """The public set that must be read from another source, if any."""
    return None if source is None or source.source in _OWN else source


def public_set(source: DataConfig | None, split: Split, seed: int) -> Public | None:
    """The public records of a release; the public part of the split is named as such."""
    return None if source is None else public_records(FrontSettings(public=source), split, seed)


def secret_choices(folder: Path | None, randomness: Randomness, resume: bool) -> Stream:
    """The key for secret choices (channels, order); a resumed run uses the key it started with.

    It is not a noise key: every run draws fresh noise.
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


# In the vault.


def keep(front: nn.Module, choice: Choice, order: Whole, settings: FeatureSettings) -> Secrets:
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


@dataclass(frozen=True)
class Kept:
    """What the vault keeps of a front end (`KeptFrontEnd`).

    Args:
        settings: Those of the release.
        layers: m.
        choice: Which front end and channels were drawn.
        state: The tensors, by name.
    """

    settings: FeatureSettings
    layers: int
    choice: Choice
    state: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, secrets: Secrets, settings_type: type[FeatureSettings]) -> Kept:
        """What was chosen, from the arrays of the vault.

        Raises:
            FormatError: They are not those of a release of features.
        """
        try:
            chosen, state = secrets["choices"], secrets["front"]
            table = json.loads(np.asarray(chosen["settings"], np.uint8).tobytes())
            settings = parse(settings_type, table["settings"], where="settings")
            layers_before = sum(key.startswith("inner-") for key in chosen)
            inner = tuple(tuple(chosen[f"inner-{i}"].tolist()) for i in range(layers_before))
            choice = Choice(str(table["front"]), tuple(chosen["channels"].tolist()), inner)
            return cls(settings, int(table["layers"]), choice, state)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("what a release of features keeps in the vault", "something else") from error

    @property
    def name(self) -> str:
        """Which front end of the pool it is."""
        return self.choice.front

    @property
    def channels(self) -> tuple[int, ...]:
        """Which maps leave."""
        return self.choice.channels

    @property
    def narrowed(self) -> bool:
        """Whether layers before the last were narrowed too."""
        return bool(self.choice.inner)

    @property
    def pool(self) -> tuple[str, ...]:
        """Further front ends that it was drawn from."""
        return self.settings.pool

    @property
    def projects(self) -> bool:
        """Whether it ends in a projection to a few numbers."""
        return any(name.startswith("2.") for name in self.state)

    @property
    def settings_table(self) -> dict[str, Any]:
        """The settings of the release in config form, with selection criteria replaced by what they selected."""
        own = self.settings.model_dump(mode="json", exclude_defaults=True, exclude=_CHOOSING)
        return own | {"layers": self.layers, "channels": len(self.channels)}

    def candidates(self, split: Split, seed: int, run: Run) -> dict[str, nn.Module]:
        """Every front end that it was drawn from, with all channels and its public weights."""
        end = FeatureFrontEnd(self.settings, split.facts, self.layers, None)
        public = public_set(self.settings.pretrain_on, split, seed)
        return {
            name: end.ready(Choice(name, tuple(range(end.sized(name).channels))), public, seed, run)
            for name in end.names
        }

    def reopened(self, facts: Facts) -> nn.Module:
        """The front end itself, its projection included, frozen.

        Raises:
            FormatError: The arrays are not those of a release of features of such records.
        """
        whole = open_prefix(self.name, self.layers, facts.shape)
        front: nn.Module = narrow(whole, self.channels, self.choice.inner or None)
        state = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in self.state.items()}
        if self.projects:
            outputs, inputs = state["2.weight"].shape
            front = nn.Sequential(front, Average(), nn.Linear(inputs, outputs))
        try:
            front.load_state_dict(state)
        except RuntimeError as error:
            raise FormatError("the front end of this release", "another one's tensors") from error
        return front.eval().requires_grad_(False)

"""What a bundle does for each kind of artefact: its table on the card, its sentences, its files and their checks.

There is one `Packing` per kind, and one table of them (`PACKINGS`): everything in this package that depends on the kind
of artefact is decided here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from airlock import nets
from airlock.bundle.contents import (
    CARD,
    CONFIG,
    HTML,
    INTERFACE,
    LIMITS,
    MANIFEST,
    ONNX,
    README,
    SAFETENSORS,
    SCHEMA,
    SMALLER,
    SUMS,
    TABLE_ONNX,
    TOKENIZER,
    Contents,
    Defects,
    Skip,
    Test,
)
from airlock.bundle.files import parse_json
from airlock.bundle.rendering.text import Particulars, about_answers, about_features
from airlock.bundle.schema import FeatureSummary, Hashes, NetworkSummary, StatedGuarantee
from airlock.data import feature_files
from airlock.data.feature_files import Manifest
from airlock.errors import FormatError
from airlock.mechanisms import reconstruction
from airlock.methods.artefact import Artefact, ArtefactKind, FeatureSet, NetworkArtefact
from airlock.methods.contract import Channel, Secrets
from airlock.methods.interface import Interface

if TYPE_CHECKING:
    from torch import nn

A = TypeVar("A", bound=Artefact)
S = TypeVar("S")
SAME = 1e-6  # tolerance for a recomputed bound

_ALWAYS = (CARD, HTML, README, CONFIG, SUMS)


class Packing(ABC, Generic[A, S]):
    """How artefacts of one kind are packed; A is the artefact's type, S its summary on the card."""

    own_files: ClassVar[tuple[str, ...]] = ()  # in addition to those of every bundle
    optional_files: ClassVar[tuple[str, ...]] = ()
    noun: ClassVar[str]  # what a bundle of this kind is "one of"
    described: ClassVar[str]  # before the name of the data
    origin: ClassVar[str] = "Trained on: {data} It tells {classes} classes apart."
    checked: ClassVar[str]  # what verification does with its files
    tags: ClassVar[tuple[str, ...]] = ()  # for the model card
    states_utility: ClassVar[bool] = True  # whether the card has paid counts of test records
    takes_rows: ClassVar[bool] = True  # whether what leaves is asked with rows: schema.json says what they are
    not_there: ClassVar[str]  # the defect if a card of another kind names files of this kind

    @property
    def required_files(self) -> tuple[str, ...]:
        """The files that such a bundle must have, except those that a manifest names."""
        return tuple(name for name in LIMITS if name in (*_ALWAYS, *self.own_files))

    def hashes(self, found: Hashes) -> list[tuple[str, str]]:
        """Its files with their hashes, where the card has them."""
        named = [
            (name, getattr(found, name.replace(".", "_"), None)) for name in (*self.own_files, *self.optional_files)
        ]
        return [(name, sha) for name, sha in named if sha]

    @abstractmethod
    def summarise(self, artefact: A) -> S:
        """What the card says about it."""

    @abstractmethod
    def particulars(self, promise: StatedGuarantee, summary: S) -> Particulars:
        """Sentences on the card that are specific to this kind."""

    @abstractmethod
    def reopen(self, files: Contents, summary: S, details: Mapping[str, Any], net: str | None) -> A:
        """The artefact of a verified bundle, to be attacked.

        Args:
            files: The bundle's, as they were verified.
            summary: The artefact's summary on the card.
            details: The public figures on the card.
            net: The user's own network as `package.module:function`; it is imported.
        """

    @abstractmethod
    def size(self, artefact: A) -> int:
        """How many bytes leave in addition to the card."""

    @abstractmethod
    def name(self, method: str, summary: S) -> str:
        """A short name of what is attacked, for the reports of other tools."""

    def files(self, artefact: A) -> dict[str, bytes]:
        """The files that are not derived from the card."""
        return {}

    def shards(self, artefact: A) -> Sequence[Path]:
        """Files that go into the bundle unchanged."""
        return ()

    def texts(self, table: Mapping[str, Any]) -> dict[str, str]:
        """The files derived from its table on the card."""
        return {}

    def listed(self, files: Contents) -> tuple[str, ...]:
        """Further files of the bundle, named in one of its own files."""
        return ()

    def config_net(self, artefact: A, asked: str) -> str:
        """The network named in config.toml."""
        return asked

    def config_keys(self, summary: S) -> Mapping[str, object]:
        """Keys and values that config.toml must have."""
        return {}

    def withheld(self, artefact: A) -> tuple[str, ...]:
        """Settings that stay in the vault."""
        return ()

    def kept_settings(self, method: type[Channel], kept: Callable[[], Secrets]) -> Mapping[str, Any] | None:
        """Settings that did not leave, from the vault; None if all of them left."""
        return None

    def tests(self, files: Contents, summary: S, promise: StatedGuarantee, runs: int) -> list[Test]:
        """The checks of its files against the card, before all others."""
        return []

    def model_tests(self, files: Contents, summary: S | None, net: nn.Module | None) -> list[Test]:
        """The checks of model files, after all others."""
        return []


class _Networks(Packing[NetworkArtefact, NetworkSummary]):
    own_files = (SAFETENSORS, ONNX)
    optional_files = (*SMALLER, TABLE_ONNX, SCHEMA, TOKENIZER)
    noun = "a network"
    described = "a model trained on"
    checked = "compares the two model files"
    tags = ("onnx", "safetensors")
    not_there = "The card names model files, and no model leaves."

    def summarise(self, artefact: NetworkArtefact) -> NetworkSummary:
        """Its name, input shape and classes."""
        return NetworkSummary(
            name=artefact.net_name,
            input_shape=artefact.input_shape,
            classes=artefact.classes,
            target=artefact.target,
        )

    def particulars(self, promise: StatedGuarantee, summary: NetworkSummary) -> Particulars:
        """Nothing specific."""
        return Particulars()

    def reopen(self, files: Contents, summary: NetworkSummary, details: Mapping[str, Any], net: str | None) -> Any:
        """A built-in network by its name, or the user's own if one is given."""
        from airlock.bundle import models

        shape, name = summary.input_shape, net or summary.name
        own = nets.create(net, shape, summary.outputs, seed=0) if net is not None else None
        return NetworkArtefact(models.open_net(files, summary, own), name, shape, summary.classes, summary.target)

    def size(self, artefact: NetworkArtefact) -> int:
        """The size of its weights."""
        from airlock.bundle import export

        return len(export.to_safetensors(artefact))

    def name(self, method: str, summary: NetworkSummary) -> str:
        """The network's own name."""
        return summary.name

    def files(self, artefact: NetworkArtefact) -> dict[str, bytes]:
        """The weights, and the network as ONNX."""
        from airlock.bundle import export

        return {SAFETENSORS: export.to_safetensors(artefact), ONNX: export.to_onnx(artefact)}

    def config_net(self, artefact: NetworkArtefact, asked: str) -> str:
        """The network that was used."""
        return artefact.net_name

    def config_keys(self, summary: NetworkSummary) -> Mapping[str, object]:
        """The network."""
        return {"net": summary.name}

    def model_tests(self, files: Contents, summary: NetworkSummary | None, net: nn.Module | None) -> list[Test]:
        """Whether both files load and compute the same."""
        from airlock.bundle import models

        return models.tests(files, summary, net)


class _Interfaces(Packing[Interface, Interface]):
    own_files = (INTERFACE,)
    optional_files = (SCHEMA, TOKENIZER)
    noun = "answers"
    described = "answers of a model trained on"
    checked = "compares the interface with the card"
    states_utility = False  # utility was measured with queries beyond the budget
    not_there = "The card names an interface, and none leaves."

    def summarise(self, artefact: Interface) -> Interface:
        """All of it is public."""
        return artefact

    def particulars(self, promise: StatedGuarantee, summary: Interface) -> Particulars:
        """How many answers there are, and what they cost in total."""
        return about_answers(promise, summary)

    def reopen(self, files: Contents, summary: Interface, details: Mapping[str, Any], net: str | None) -> Interface:
        """The interface on the card."""
        return summary

    def size(self, artefact: Interface) -> int:
        """Nothing leaves but answers."""
        return 0

    def name(self, method: str, summary: Interface) -> str:
        """The method's name."""
        return f"{method}, answers only"

    def texts(self, table: Mapping[str, Any]) -> dict[str, str]:
        """What may be asked, as on the card."""
        return {INTERFACE: json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False) + "\n"}

    def tests(self, files: Contents, summary: Interface, promise: StatedGuarantee, runs: int) -> list[Test]:
        """Whether interface.json equals the card's table."""
        said = "What interface.json allows is what the card says."
        return [("interface", said, lambda: self._same(files, summary))]

    def _same(self, files: Contents, summary: Interface) -> Defects:
        same = parse_json(files.read(INTERFACE)) == json.loads(json.dumps(vars(summary)))
        return [] if same else [f"{INTERFACE} is not the interface on the card."]


class _FeatureSets(Packing[FeatureSet, FeatureSummary]):
    own_files = (MANIFEST,)
    takes_rows = False  # features.json says what they are
    noun = "features"
    described = "features of"
    origin = "Made from: {data} Whoever receives it can learn to tell {classes} classes apart."
    checked = "reads every shard"
    not_there = "The card names a manifest of features, and none leave."

    def summarise(self, artefact: FeatureSet) -> FeatureSummary:
        """How many rows there are, their shape and precision, and how they and their labels are protected."""
        made = artefact.manifest
        return FeatureSummary(
            shape=made.shape,
            classes=made.classes,
            records=made.records,
            files=len(made.shards),
            bytes=made.bytes,
            form=made.form,
            precision=made.precision,
            noise=made.noise,
            labels=artefact.labels,
            prior=artefact.prior,
            recovery=artefact.recovery,
        )

    def particulars(self, promise: StatedGuarantee, summary: FeatureSummary) -> Particulars:
        """What leaves of each record, whether its label is protected, and the bound on reconstruction."""
        return about_features(promise, summary)

    def reopen(
        self, files: Contents, summary: FeatureSummary, details: Mapping[str, Any], net: str | None
    ) -> FeatureSet:
        """The shards of the bundle; the front end is in the vault."""
        clip = details.get("clip_norm")
        norm = float(clip) if clip is not None else None
        return FeatureSet(files.folder, _manifest(files), summary.labels, clip=norm)

    def size(self, artefact: FeatureSet) -> int:
        """The size of the shards."""
        return artefact.manifest.bytes

    def name(self, method: str, summary: FeatureSummary) -> str:
        """The method's name: the front end stays inside."""
        return f"{method}, features only"

    def files(self, artefact: FeatureSet) -> dict[str, bytes]:
        """The manifest."""
        return {MANIFEST: artefact.manifest.to_json().encode()}

    def shards(self, artefact: FeatureSet) -> Sequence[Path]:
        """All of them."""
        return [artefact.folder / shard.name for shard in artefact.manifest.shards]

    def listed(self, files: Contents) -> tuple[str, ...]:
        """The shards that features.json names; none if it cannot be read."""
        try:
            return tuple(shard.name for shard in _manifest(files).shards)
        except (ValueError, FormatError):
            return ()

    def withheld(self, artefact: FeatureSet) -> tuple[str, ...]:
        """Settings that identify the front end."""
        return artefact.withheld

    def kept_settings(self, method: type[Channel], kept: Callable[[], Secrets]) -> Mapping[str, Any]:
        """The settings of the front end."""
        return method.kept_front_end(kept()).settings_table

    def tests(self, files: Contents, summary: FeatureSummary, promise: StatedGuarantee, runs: int) -> list[Test]:
        """Whether the shards are those on the card, and the bound on reconstruction follows from the noise."""
        held = "The shards hold what the card and features.json say."
        follows = "The bound on reconstruction follows from the noise."
        return [
            ("features", held, lambda: self._same(files, summary)),
            ("reconstruction", follows, lambda: _reconstruction(summary, promise, runs)),
        ]

    def _same(self, files: Contents, summary: FeatureSummary) -> Defects:
        made = _manifest(files)
        features = FeatureSet(files.folder, made, summary.labels, summary.prior)
        if self.summarise(features) != summary.model_copy(update={"recovery": ()}):
            return [f"{MANIFEST} does not describe the features on the card."]
        wrong = [shard.name for shard in made.shards if files.digest(shard.name) != shard.sha256]
        if wrong:
            return [f"{wrong[0]} is not the file that {MANIFEST} names."]
        for _ in feature_files.blocks(files.folder, made):  # each block is checked as it is read
            pass
        return []


def _manifest(files: Contents) -> Manifest:
    return feature_files.parse_manifest(parse_json(files.read(MANIFEST)))


def _reconstruction(summary: FeatureSummary, promise: StatedGuarantee, runs: int) -> Defects:
    if not summary.recovery:
        raise Skip("The card states no bound on reconstruction.")
    noise = _multiplier(promise.events)
    if noise is None:
        return ["A bound on reconstruction is stated, and the recorded events have no noise on the features."]
    again = [(one, reconstruction.bound(one.blind, noise, runs)) for one in summary.recovery]
    wrong = [one for one, bound in again if abs(bound - one.bound) > SAME]
    return [f"The bound at {one.psnr:g} dB is not the one that the noise gives." for one in wrong]


def _multiplier(event: Any) -> float | None:
    """The noise multiplier of a run's single Gaussian event."""
    if isinstance(event, dict):
        if event.get("type") == "gaussian":
            return float(event["noise_multiplier"])
        event = [event.get("event"), *(event.get("events") or ())]
    found = [_multiplier(one) for one in event] if isinstance(event, list) else []
    return next((one for one in found if one is not None), None)


PACKINGS: Mapping[ArtefactKind, Packing[Any, Any]] = {
    "network": _Networks(),
    "interface": _Interfaces(),
    "features": _FeatureSets(),
}


def packing_of(kind: ArtefactKind) -> Packing[Any, Any]:
    """How artefacts of a kind are packed."""
    return PACKINGS[kind]


def packing_in(files: Contents) -> Packing[Any, Any]:
    """The packing whose own files are found in a folder; a network's if there are none."""
    telling = [one for one in PACKINGS.values() if set(one.own_files) & set(files.names)]
    return telling[-1] if telling else PACKINGS["network"]

"""What leaves: a network, an interface to query one, or features in place of records.

`Artefact` is the protocol that all kinds share and that higher-level packages rely on. Where these need kind-specific
behaviour (packing, attacking), they use one table keyed by `kind`. So a fourth kind of artefact takes a class here and
an entry in each of these tables.

A network and a set of features are in this file. `Interface`, which leaves where no network does, is in
`methods.interface` together with the answerers.
"""

from __future__ import annotations

import shutil
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

import numpy as np

from airlock.config import TargetRange
from airlock.data import Facts, Split
from airlock.data.feature_files import Manifest, load
from airlock.methods.case import Arrays, Disclosed, Secrets
from airlock.methods.interface import OpenAnswerer

if TYPE_CHECKING:
    import dp_accounting as dpa
    from torch import nn

    from airlock.mechanisms.reconstruction import Recovery
    from airlock.training import Run

ArtefactKind = Literal["network", "interface", "features"]
KINDS: tuple[ArtefactKind, ...] = get_args(ArtefactKind)
LabelsLeave = Literal["clear", "randomised"]


class Artefact(Protocol):
    """What leaves."""

    @property
    def kind(self) -> ArtefactKind:
        """Which of the three kinds it is: the name of its table on the card."""

    @property
    def made_once(self) -> bool:
        """Whether a run's checkpoint must never be used to make a second version."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of outputs or labels."""

    @property
    def parameters(self) -> int | None:
        """How many parameters the network has; None where none leaves."""

    @property
    def questions(self) -> int | None:
        """The largest number of queries; None if unlimited."""

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """What the court observes.

        Args:
            executed: What the release cost.
            kept: What of it stayed in the vault.
            open_answerer: The method's `answerer`.
        """

    def forget(self) -> None:
        """The bundle now holds everything: remove the copy in the vault."""


def weights_of(net: nn.Module, leave_out: Container[str] = ()) -> Arrays:
    """Every floating-point tensor of a network but these, by name."""
    own = {name: tensor.detach() for name, tensor in net.state_dict().items() if name not in leave_out}
    state = {name: tensor for name, tensor in own.items() if tensor.is_floating_point()}
    return {name: tensor.double().cpu().numpy() for name, tensor in state.items()}


@dataclass(frozen=True)
class NetworkArtefact:
    """A network that leaves: on the CPU, in eval mode.

    Args:
        net: The module.
        net_name: A built-in name, or the user's `package.module:function`.
        input_shape: Of one record.
        classes: The class names, in the order of the outputs; none where a number or the next token is predicted.
        target: The range of that number; its one output says where in the range it lies (`training.losses`).
    """

    kind: ClassVar[ArtefactKind] = "network"
    made_once: ClassVar[bool] = False

    net: nn.Module
    net_name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    target: TargetRange | None = None

    @classmethod
    def leaving(cls, net: nn.Module, name: str, facts: Facts) -> NetworkArtefact:
        """A trained network as it leaves, for records of these facts."""
        return cls(net.cpu().eval().requires_grad_(False), name, facts.shape, facts.classes, facts.target)

    @property
    def outputs(self) -> int:
        """How many outputs it has; 0 for a language model, which has one for each token."""
        return len(self.classes) if self.target is None else 1

    @property
    def parameters(self) -> int:
        """How many there are."""
        return sum(parameter.numel() for parameter in self.net.parameters())

    @property
    def questions(self) -> None:
        """Unlimited: anyone who has the network can query it."""
        return None

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """All weights."""
        return Disclosed(weights_of(self.net), executed)

    def forget(self) -> None:
        """Nothing to remove: there is no copy in the vault."""


@dataclass(frozen=True)
class FeatureSet:
    """Features that leave: one vector or stack of maps per record, and its label.

    The shards are kept in the vault until they are copied into the bundle. Everything but the folder and the front end
    is public.

    Args:
        folder: Where its shards are, in the vault.
        manifest: Describes the shards.
        labels: Whether labels leave as they are.
        prior: The pictures that `recovery` refers to, in words; empty if there is no bound.
        recovery: The bound on reconstruction by any attacker.
        withheld: Settings that stay in the vault.
        front: The front end; for attacks only, it never leaves.
        clip: The norm that features were clipped to; None where they were not.
    """

    kind: ClassVar[ArtefactKind] = "features"
    made_once: ClassVar[bool] = True

    folder: Path
    manifest: Manifest
    labels: LabelsLeave
    prior: str = ""
    recovery: tuple[Recovery, ...] = ()
    withheld: tuple[str, ...] = field(default=(), repr=False)
    front: nn.Module | None = field(default=None, repr=False, compare=False)
    clip: float | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the labels."""
        return self.manifest.classes

    @property
    def parameters(self) -> None:
        """No network leaves."""
        return None

    @property
    def questions(self) -> None:
        """Unlimited: anyone who has the features can inspect them."""
        return None

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """Sums over the rows, which one record changes exactly as much as its own row."""
        rows = load(self.folder, self.manifest)
        return Disclosed({"rows": rows.x.astype(np.float64).sum(0), "labels": np.bincount(rows.y)}, executed)

    def forget(self) -> None:
        """Remove the shards."""
        shutil.rmtree(self.folder, ignore_errors=True)


class KeptFrontEnd(Protocol):
    """What the vault keeps of the front end behind a set of features: for attacks, never for a bundle."""

    @property
    def name(self) -> str:
        """Which one of the pool it is."""

    @property
    def layers(self) -> int:
        """How many of its layers were used."""

    @property
    def channels(self) -> tuple[int, ...]:
        """Which maps of the last of these leave."""

    @property
    def narrowed(self) -> bool:
        """Whether layers before the last were narrowed too: its maps then differ from those of the whole network."""

    @property
    def pool(self) -> tuple[str, ...]:
        """The names of further front ends that it was drawn from."""

    @property
    def settings_table(self) -> Mapping[str, Any]:
        """The settings of the release in config form, with selection criteria replaced by what they selected."""

    def reopened(self, facts: Facts) -> nn.Module:
        """The front end itself, for records of these facts, frozen.

        Raises:
            FormatError: The vault's front end is for different records.
        """

    def candidates(self, split: Split, seed: int, run: Run) -> dict[str, nn.Module]:
        """Every front end that it was drawn from, with all channels and its public weights."""

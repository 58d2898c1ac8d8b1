"""What leaves: a network, the right to ask one, or features instead of records.

`Artefact` is all that the rooms above may ask of it, whatever it is. Where one of them has to do something of its own
for each kind (pack it, attack it), it does so by one table keyed by `kind`. So a fourth kind of artefact is a class
here and an entry in each of these tables.

A network and a set of features are in this file. `Interface`, which leaves where no network does, is in
`methods.interface` together with those who answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

import dp_accounting as dpa
import numpy as np
from torch import nn

from airlock.data import Facts, Split
from airlock.data.feature_files import Manifest, load
from airlock.mechanisms.reconstruction import Recovery
from airlock.methods.case import Arrays, Disclosed, Secrets
from airlock.methods.interface import OpenAnswerer
from airlock.training import Run

ArtefactKind = Literal["network", "interface", "features"]
KINDS: tuple[ArtefactKind, ...] = get_args(ArtefactKind)
LabelsLeave = Literal["clear", "randomised"]


class Artefact(Protocol):
    """What leaves."""

    @property
    def kind(self) -> ArtefactKind:
        """Which of the three it is: the name of its table on the card."""

    @property
    def made_once(self) -> bool:
        """Whether a second version must never come from what a run left in the vault."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of outputs or labels."""

    @property
    def parameters(self) -> int | None:
        """How many parameters the network has; None where none leaves."""

    @property
    def questions(self) -> int | None:
        """How many questions may be asked, at most; None where any number."""

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """What the court looks at.

        Args:
            executed: What the release cost.
            kept: What of it stayed in the vault.
            open_answerer: The method's `answerer`.
        """

    def forget(self) -> None:
        """The bundle has all of it: remove what lay in the vault until then."""


def weights_of(net: nn.Module) -> Arrays:
    """Every tensor of a network that holds fractions, by name."""
    state = {name: tensor.detach() for name, tensor in net.state_dict().items() if tensor.is_floating_point()}
    return {name: tensor.double().cpu().numpy() for name, tensor in state.items()}


@dataclass(frozen=True)
class NetworkArtefact:
    """A network that leaves: on the CPU, in eval mode.

    Args:
        net: The module.
        net_name: A built-in name, or the user's `package.module:function`.
        input_shape: Of one record.
        classes: The class names, in the order of the outputs.
    """

    kind: ClassVar[ArtefactKind] = "network"
    made_once: ClassVar[bool] = False

    net: nn.Module
    net_name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]

    @classmethod
    def leaving(cls, net: nn.Module, name: str, facts: Facts) -> NetworkArtefact:
        """A trained network as it leaves, for records of these facts."""
        return cls(net.cpu().eval().requires_grad_(False), name, facts.shape, facts.classes)

    @property
    def parameters(self) -> int:
        """How many there are."""
        return sum(parameter.numel() for parameter in self.net.parameters())

    @property
    def questions(self) -> None:
        """Any number: whoever has the network can ask it."""
        return None

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """All weights."""
        return Disclosed(weights_of(self.net), executed)

    def forget(self) -> None:
        """Nothing lay in the vault."""


@dataclass(frozen=True)
class FeatureSet:
    """Features that leave: one vector or stack of maps per record, and its label.

    The shards lie in the vault until the bundle has them. Everything but the folder and the front end is public.

    Args:
        folder: Where its shards lie, in the vault.
        manifest: What they are.
        labels: Whether labels leave as they are.
        prior: Whose pictures `recovery` speaks of, in words; empty where nothing is said.
        recovery: The bound against every attacker.
        withheld: Settings that stay in the vault.
        front: What records went through; for attacks, it never leaves.
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
        """Any number: whoever has the features can look at them."""
        return None

    def disclosed(self, executed: dpa.DpEvent, kept: Secrets, open_answerer: OpenAnswerer) -> Disclosed:
        """Sums over the rows, which one record moves as much as it moves its row."""
        rows = load(self.folder, self.manifest)
        return Disclosed({"rows": rows.x.astype(np.float64).sum(0), "labels": np.bincount(rows.y)}, executed)

    def forget(self) -> None:
        """Remove the shards."""
        shutil.rmtree(self.folder, ignore_errors=True)


class KeptFrontEnd(Protocol):
    """What the vault keeps of the front end that a set of features came from: for attacks, never for a bundle."""

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
        """Whether layers before the last were cut down too: its maps are then not those of the whole network."""

    @property
    def pool(self) -> tuple[str, ...]:
        """The names of further front ends that it was drawn from."""

    @property
    def settings_table(self) -> Mapping[str, Any]:
        """The settings of the release for a config, with what was chosen in place of what chose it."""

    def reopened(self, facts: Facts) -> nn.Module:
        """The front end itself, for records of these facts, frozen.

        Raises:
            FormatError: The vault keeps that of other records.
        """

    def candidates(self, split: Split, seed: int, run: Run) -> dict[str, nn.Module]:
        """Every front end that it was drawn from, with all channels and its public weights."""

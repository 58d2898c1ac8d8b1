"""The front end of a release of features, from what the vault kept of it: for attacks, never for a bundle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from airlock.config import parse
from airlock.data import Facts, Split
from airlock.errors import FormatError
from airlock.methods.contract import Secrets
from airlock.methods.features.front import Choice, FeatureFrontEnd, public_set
from airlock.methods.features.settings import FeatureSettings, NoisedSettings
from airlock.nets.prefix import narrow, open_prefix
from airlock.training import Run
from airlock.training.front_ends.features import Average

_CHOOSING = {"psnr", "milliseconds", "bytes", "prune", "characterised"}  # settings that choose layers and channels


@dataclass(frozen=True)
class Kept:
    """What the vault says about a front end.

    Args:
        settings: Those of the release.
        layers: m.
        choice: Which front end and channels were drawn.
        noised: Whether it ends in a projection.
    """

    settings: FeatureSettings
    layers: int
    choice: Choice
    noised: bool

    @property
    def table(self) -> dict[str, Any]:
        """The settings of the release as a config has them, with what was chosen in place of what chose it."""
        own = self.settings.model_dump(mode="json", exclude_defaults=True, exclude=_CHOOSING)
        return own | {"layers": self.layers, "channels": len(self.choice.channels)}

    def candidates(self, split: Split, seed: int, run: Run) -> dict[str, nn.Module]:
        """Every front end that it was drawn from, whole: with all its channels and its public weights."""
        end = FeatureFrontEnd(self.settings, split.facts, self.layers, None)
        public = public_set(self.settings.pretrain_on, split, seed)
        return {
            name: end.ready(Choice(name, tuple(range(end.sized(name).channels))), public, seed, run)
            for name in end.names
        }


def kept(secrets: Secrets) -> Kept:
    """What was chosen, from the arrays of the vault.

    Raises:
        FormatError: They are not those of a release of features.
    """
    try:
        chosen, noised = secrets["choices"], any(name.startswith("2.") for name in secrets["front"])
        table = json.loads(np.asarray(chosen["settings"], np.uint8).tobytes())
        settings = parse(NoisedSettings if noised else FeatureSettings, table["settings"], where="settings")
        inner = tuple(tuple(chosen[f"inner-{i}"].tolist()) for i in range(sum(k.startswith("inner-") for k in chosen)))
        choice = Choice(str(table["front"]), tuple(chosen["channels"].tolist()), inner)
        return Kept(settings, int(table["layers"]), choice, noised)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError("what a release of features keeps in the vault", "something else") from error


def reopen(secrets: Secrets, facts: Facts) -> nn.Module:
    """The front end itself, its projection included, frozen.

    Raises:
        FormatError: The arrays are not those of a release of features of such records.
    """
    found = kept(secrets)
    maps = narrow(
        open_prefix(found.choice.front, found.layers, facts.shape), found.choice.channels, found.choice.inner or None
    )
    front: nn.Module = maps
    state = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in secrets["front"].items()}
    if found.noised:
        outputs, inputs = state["2.weight"].shape
        front = nn.Sequential(maps, Average(), nn.Linear(inputs, outputs))
    try:
        front.load_state_dict(state)
    except RuntimeError as error:
        raise FormatError("the front end of this release", "another one's tensors") from error
    return front.eval().requires_grad_(False)

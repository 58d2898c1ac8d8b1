"""What leaves when records do, as something else: one vector or stack of maps a record, and its label.

The shards lie in the vault until the bundle takes them. Everything but the folder is public.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

from airlock.config import Positive, Proportion
from airlock.data.feature_files import Manifest

LabelsLeave = Literal["clear", "randomised"]


@dataclass(frozen=True)
class Recovery:
    """How often anyone, whatever they do, can give back a picture this well.

    Args:
        psnr: How well, in dB.
        blind: How often a guess without the release is as good, at most, under the stated prior.
        bound: How often a guess with it is, at most.
    """

    psnr: Positive
    blind: Proportion
    bound: Proportion


@dataclass(frozen=True)
class Features:
    """A set of features that leaves.

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

    folder: Path
    manifest: Manifest
    labels: LabelsLeave
    prior: str = ""
    recovery: tuple[Recovery, ...] = ()
    withheld: tuple[str, ...] = field(default=(), repr=False)
    front: nn.Module | None = field(default=None, repr=False, compare=False)
    clip: float | None = None

    def forget(self) -> None:
        """The bundle has the shards: nothing is left in the vault."""
        shutil.rmtree(self.folder, ignore_errors=True)

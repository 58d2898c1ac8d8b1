"""Several trainings in sequence, as one run: a finished one is kept in the checkpoint's folder until all are done.

`fit` keeps the checkpoint of one training and removes it at the end. If a release needs several (teachers, then a
student), an interrupted run has to find the finished ones again: each saves its weights next to its checkpoint, with a
mark of its inputs. None of this is protected by a guarantee; it stays in the vault and is removed when the release is
made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from airlock.training import checkpoint
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.loop import Run


@dataclass(frozen=True)
class Stages:
    """The trainings of one run.

    Args:
        run: Device, progress, and the folder; without one, nothing is kept.
        settings: What a training must match, besides its inputs, to be resumed.
    """

    run: Run
    settings: Mapping[str, object]

    def train(
        self, name: str, net: nn.Module, inputs: list[Tensor], fit: Callable[[Run], object], mark: str = ""
    ) -> None:
        """Train `net` in place with `fit`, or load what an earlier, interrupted run left.

        Args:
            name: The name of this training, for its files.
            net: The network before this training; afterwards it is on the run's device.
            inputs: What it learns from: records, targets.
            fit: Trains it, with a run whose checkpoints are its own.
            mark: What else it learns from, in words or as a digest.

        Raises:
            TrainingError: What was left belongs to other settings, another start or other inputs.
        """
        folder = self.run.checkpoint
        net.to(self.run.device)
        if folder is None:
            fit(self.run)
            return
        file = folder / f"{name}.safetensors"
        whole = self._mark(net, inputs, mark)
        if not (self.run.resume and file.exists()):
            fit(replace(self.run, checkpoint=folder / name))
            checkpoint.write(file, {key: value.clone() for key, value in net.state_dict().items()}, {"mark": whole})
        kept = read(file, whole)
        with torch.no_grad():
            for key, value in net.state_dict().items():
                value.copy_(kept[key])

    def forget(self, *names: str) -> None:
        """The release is finished: remove what these trainings left."""
        folder = self.run.checkpoint
        if folder is None or not folder.is_dir():
            return
        for name in names:
            (folder / f"{name}.safetensors").unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()

    def _mark(self, net: nn.Module, inputs: list[Tensor], mark: str) -> str:
        known = json.dumps([dict(self.settings), mark], sort_keys=True).encode()
        return hashlib.sha256(digest([*inputs, *net.state_dict().values()]) + known).hexdigest()

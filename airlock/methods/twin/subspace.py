"""Shards as whole networks, seen in a public subspace of their parameters: one vector of k numbers a shard.

From one public start every shard trains all parameters; what counts is Pᵀ(θ − θ_start) for an orthonormal basis P of k
columns that is random, or spans the principal directions of trainings on public records. The released network is
θ_start + P v. The radius is public too: a setting, or the median norm over public trainings of a shard's size.

Every shard is brought to the same public number of records, by repeating its own or leaving those with the largest
digests out. Models are then trained side by side in tensors whose shapes tell nothing of the records, and one shard's
numbers stay the same to the last bit whatever another holds. A shard without records is trained on blanks and gives
zeros. Batch order comes from the public seed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Facts, Public, Records
from airlock.data.split import even
from airlock.errors import ConfigError
from airlock.methods.twin.shard_settings import ShardSettings
from airlock.nets import check, create
from airlock.training import Recipe, Resident, Run, train_together
from airlock.training.loop import mix

Index = NDArray[np.int64]

_DIMENSIONS = 100
_NUMBERS = 1 << 28  # of a basis: 1 GiB
_BATCH = 64
_OF_HEADS = ("features", "ridge", "whitening", "whitening_power", "whitening_damping")
_MODELS = 16  # public trainings for a radius


class Subspace:
    """A whole network's parameters in k public directions.

    Args:
        name: The network.
        facts: Of the data.
        settings: Of the shards.
        seed: Of the start, the directions and the batches; public.
    """

    def __init__(self, name: str, facts: Facts, settings: ShardSettings, seed: int) -> None:
        self.name, self.facts, self.settings, self.seed = name, facts, settings, seed
        for key in _OF_HEADS:
            if key in settings.model_fields_set:
                raise ConfigError(
                    f"no `net` beside settings.{key}", f"'{name}'", "It is the whole network or a head on features."
                )
        shape, classes = facts.shape, len(facts.classes)
        self._net = create(name, shape, classes, seed)
        check(copy.deepcopy(self._net), name, shape, classes)
        self.parameters = sum(p.numel() for p in self._net.parameters())
        self.size = settings.dimensions or min(_DIMENSIONS, self.parameters)
        if self.size > self.parameters or self.size * self.parameters > _NUMBERS:
            raise ConfigError(
                f"settings.dimensions of at most {min(self.parameters, _NUMBERS // self.parameters):,} for net "
                f"'{name}' with {self.parameters:,} parameters",
                f"{self.size:,}",
                do="Lower settings.dimensions.",
            )
        if settings.public is None and (settings.basis == "public" or settings.radius is None):
            raise ConfigError(
                "settings.radius, or public records to find it on"
                if settings.basis == "random"
                else "public records for a public basis",
                "neither" if settings.basis == "random" else "none",
                "The radius may not be taken from the private records.",
                'Set settings.radius, or settings.public to "synthetic", "split" or a public set.',
            )
        self._each = 1
        self._basis: Tensor | None = None
        self._radius = 0.0

    def start(self, public: Public | None, shard_size: int, run: Run) -> nn.Module:
        """The initial network; the basis and the public radius are found here too."""
        settings, self._each = self.settings, shard_size
        found = self._public_trainings(public, run) if public is not None else None
        if settings.basis == "public":
            assert found is not None
            self._basis = torch.linalg.svd(found.double(), full_matrices=False)[2][: self.size].T.float()
        else:
            chance = torch.Generator().manual_seed(mix(self.seed, -1))
            self._basis = torch.linalg.qr(torch.randn(self.parameters, self.size, generator=chance))[0]
        if found is not None:
            self._radius = float((found @ self._basis).norm(dim=1).median())
        return copy.deepcopy(self._net).to(run.device)

    def vectors(self, net: nn.Module, records: Records, shards: Sequence[Index], run: Run) -> Tensor:
        """One row a shard; zeros where it has no records."""
        assert self._basis is not None
        blank = Records(np.zeros((1, *records.x.shape[1:]), records.x.dtype), np.zeros(1, np.int64))
        whole = Records(np.concatenate([records.x, blank.x]), np.concatenate([records.y, blank.y]))
        members = [even(own if len(own) else np.array([len(records)]), self._each) for own in shards]
        rows = torch.cat([change @ self._basis for change in self._changes(whole, members, run, "shards")])
        rows[[not len(own) for own in shards]] = 0.0
        return rows

    def settle(self, net: nn.Module, vector: NDArray[np.float64]) -> None:
        """Move the network by the released vector."""
        assert self._basis is not None
        move, place = self._basis.double() @ torch.from_numpy(vector), 0
        with torch.no_grad():
            for parameter in net.parameters():
                own = move[place : place + parameter.numel()].view_as(parameter)
                parameter.add_(own.to(parameter))
                place += parameter.numel()

    def public_radius(self) -> float:
        """The median norm of a public training's vector."""
        return self._radius

    def _public_trainings(self, public: Public, run: Run) -> Tensor:
        """Changes of the parameters on public records, each training with as many as a shard has: (models, N)."""
        classes = len(self.facts.classes)
        if public.classes != classes and int(public.records.y.max(initial=0)) >= classes:
            public = replace(public, records=Records(public.records.x, public.records.y % classes))
        count = max(_MODELS, self.size) if self.settings.basis == "public" else _MODELS
        chance = np.random.default_rng(self.seed)
        members = [chance.integers(0, len(public.records), self._each) for _ in range(count)]
        return torch.cat(list(self._changes(public.records, members, run, "public trainings")))

    def _changes(self, records: Records, members: Sequence[Index], run: Run, label: str) -> Iterator[Tensor]:
        """θ − θ_start of every model, in blocks of models; all have the same number of records."""
        settings = self.settings
        recipe = Recipe(steps=settings.steps, learning_rate=settings.learning_rate, precision="fp32")
        data = Resident(records, run.device)
        first = torch.cat([p.detach().flatten() for p in self._net.parameters()])
        names = [name for name, _ in self._net.named_parameters()]
        block = max(1, _NUMBERS // self.parameters // 4)
        for begin in range(0, len(members), block):
            part = members[begin : begin + block]
            made = train_together(
                lambda _: copy.deepcopy(self._net), len(part), data, part, recipe, mix(self.seed, begin),
                Run(device=run.device, progress=run.progress), label=label, batch_size=min(_BATCH, self._each),
            )  # fmt: skip
            yield torch.cat([made.values[name].flatten(1) for name in names], 1) - first

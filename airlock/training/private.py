"""Private gradients: clip every record's (or person's) gradient, sum, add Gaussian noise, divide by a public constant.

DP-SGD (Abadi et al. 2016) under Poisson sampling. The clipped sum and its bound are those of `per_sample.engine`; it
stays in float64 until the noise is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

import dp_accounting as dpa
import torch
from torch import Tensor, nn

from airlock.errors import TrainingError
from airlock.mechanisms import Clip, GaussianNoise, QuantileBound, Stream
from airlock.mechanisms.clipping import BALANCE, SMALLEST
from airlock.training.class_weights import ClassWeights
from airlock.training.distributed import ALONE, Group
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample import clipped_sum
from airlock.training.per_sample.sharded import sharded_sum
from airlock.training.sharding import ShardedParameters


class PrivateGradients:
    """The noisy mean of clipped per-record gradients.

    Guarantee: with a lot drawn by `Poisson(q)`, one call is `PoissonSampledDpEvent(q, GaussianDpEvent(z))` under
    add-remove: in units of the clip's scale the sum has sensitivity `clip.norm` and gets N(0, (z · clip.norm)²) on
    every coordinate. Multiplying by the scale and dividing by the public divisor is post-processing. With a moving
    bound the event is the same: the sum gets more noise, and the noisy count of records within the bound uses the
    difference (proof in `QuantileBound`). A step's bound depends only on the start and the earlier noisy counts.

    With `records_per_person` all of this holds for people: lots are drawn among people, and one person's clipped mean
    gradient has norm at most `clip.norm`, whatever her records are.

    With `class_weights` a record's clipped gradient enters the sum times a number in (0, 1] that follows from its own
    label, so its norm stays at most `clip.norm` and the event is the same (`class_weights` has the proof).

    With the parameters in shards over several processes, each adds the noise on its own rows. All noise of a step comes
    from one secret stream that they share, and the number for a coordinate follows from the step, the parameter and the
    place in it (`Normals`): so every coordinate gets noise once, of its own, the same however many processes there are.

    The random treatment of a record (dropout, augmentation) must be drawn from a generator that stays secret, or in a
    way that does not change for the others when a record is added.

    Args:
        clip: The bound on one record's gradient (the initial one if it moves); a plain number is a flat clip.
        noise_multiplier: z, the noise's standard deviation over the clip norm; if the bound moves, of sum and count
            together.
        expected_lot: The public constant to divide by: sampling probability × public number of records, or of people.
        stream: The secret stream; a step's noise is used once.
        moving: How the bound moves from step to step; when left out, it is constant.
        sampled: Whether lots are sampled; otherwise every record is in every lot.
        records_per_person: The bound on a person's records in a lot; None if records are protected.
        expected_rows: The public expected number of records in a lot of people.
        class_weights: How much a record of each class counts; all alike if left out.
        loss: Of one record.
    """

    def __init__(
        self,
        clip: Clip | float,
        noise_multiplier: float,
        expected_lot: float,
        stream: Stream,
        moving: QuantileBound | None = None,
        sampled: bool = True,
        records_per_person: int | None = None,
        expected_rows: float | None = None,
        class_weights: ClassWeights | None = None,
        loss: Loss = CROSS_ENTROPY,
    ) -> None:
        clip = clip if isinstance(clip, Clip) else Clip(clip)
        if moving and clip.by_layer:
            raise TrainingError(
                "one clip norm for the whole gradient if it is adaptive",
                "one per layer",
                "One count says how many records are within one bound, not within several.",
                "Use a flat clip.",
            )
        self.clip = replace(clip, counting=True) if moving else clip
        self.start, self.moving = clip.norm, moving
        self.expected_lot, self._stream, self.sampled = expected_lot, stream, sampled
        self.records_per_person, self.expected_rows = records_per_person, expected_rows
        self.class_weights, self.loss = class_weights, loss
        self.noise_multiplier = noise_multiplier
        self.noise = GaussianNoise(clip.norm, moving.gradient_noise(noise_multiplier) if moving else noise_multiplier)
        self.group: Group = ALONE  # set by the loop: the processes whose batches are parts of one lot
        self.shards: ShardedParameters | None = None
        self.dropped = 0

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs on the records it is given, according to the noise it adds."""
        if not self.moving:
            return self.noise.event
        if self.moving.together(self.noise.noise_multiplier) < self.noise_multiplier * (1 - 1e-9):
            raise RuntimeError("sum and count together get less noise than was planned")
        return dpa.GaussianDpEvent(self.noise_multiplier)

    @property
    def stream(self) -> Stream:
        """The source of its noise, which also records where noise was computed."""
        return self._stream

    @property
    def mark(self) -> dict[str, object]:
        """Clipping, noise, and whether the noise comes from the operating system."""
        more: dict[str, object] = {"moving": asdict(self.moving)} if self.moving else {}
        if self.records_per_person is not None:
            more["records_per_person"] = self.records_per_person
        if self.class_weights is not None:
            more["class_weights"] = list(self.class_weights.relative)
        if self.loss != CROSS_ENTROPY:
            more["loss"] = self.loss.name
        return {
            "gradients": "private",
            "clip_norm": self.start,
            "by_layer": self.clip.by_layer,
            "scale": self.clip.digest(),
            "noise_multiplier": self.noise_multiplier,
            "expected_lot": self.expected_lot,
            "secure": self._stream.secure,
            **more,
        }

    def noise_variance(self, name: str) -> Tensor:
        """Of the noise that the next gradient of this parameter gets on each coordinate; public."""
        noise = torch.tensor(self.noise.noise_multiplier * self.noise.sensitivity / self.expected_lot)
        scale = self.clip.scale_of(name)
        return (noise if scale is None else noise * scale.cpu()).square()

    def state(self) -> dict[str, Tensor]:
        """The bound, if it moves."""
        return {"clip_norm": torch.tensor(self.clip.norm, dtype=torch.float64)} if self.moving else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the bound of a checkpoint."""
        if self.moving:
            self._bound(float(state["clip_norm"]))

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int, owners: Tensor | None = None) -> None:
        """One noisy gradient; an empty lot gives pure noise. `owners` says whose each record is (`clipped_sum`)."""
        if (owners is None) != (self.records_per_person is None):
            raise RuntimeError("lots of people need gradients of people")
        rows = None if self.expected_rows is None else self.expected_rows / self.group.world
        weights = None if self.class_weights is None else self.class_weights.of(y)
        lot = self.expected_lot / self.group.world
        figures = (self.clip, lot, self.sampled, owners, self.records_per_person, rows, weights, self.loss)
        if self.shards is not None:
            total, dropped = sharded_sum(self.shards, net, x, y, *figures)
            share = self._put_pieces(total, dropped, step)
        else:
            total, dropped = clipped_sum(net, x, y, *figures, self.group.world)
            share = self._put_whole(net, total, dropped, step)
        if self.moving:
            self._bound(self.moving.following(self.clip.norm, self.start, share))

    def _put_whole(self, net: nn.Module, total: Named, dropped: int, step: int) -> float:
        """The noisy mean into the network; returns the noisy share of records within the bound, if it moves."""
        scaled = torch.cat([_divided(g, self.clip.scale_of(name)).flatten() for name, g in total.items()])
        noisy, dropped = self.group.once(scaled, dropped, lambda whole: self._noisy(whole, step))
        self.dropped += dropped
        put_gradient(net, noisy[:-1] if self.moving else noisy, self.clip)
        return float(noisy[-1]) if self.moving else 0.0

    def _put_pieces(self, total: Named, dropped: int, step: int) -> float:
        """The same where every process has its rows of the sum: each adds the noise that belongs to these.

        What all share is the count, and whatever else `Group.once` makes sure of, before a number of noise is drawn.
        """
        assert self.shards is not None
        pieces = {name: piece for name, piece in self.shards.pieces.items() if piece.local.requires_grad}
        count = [total[BALANCE].reshape(1)] if self.moving else []
        balance = torch.cat([*count, next(iter(total.values())).new_empty(0)])
        shares, dropped = self.group.once(balance, dropped, lambda whole: self._noisy_share(whole, step))
        self.dropped += dropped
        normals = self._stream.child("noise", step).normals(sum(piece.shape.numel() for piece in pieces.values()))
        first = 0
        for name, piece in pieces.items():
            scale = self.clip.scale_of(name)
            own = None if scale is None else piece.cut(scale)
            noisy = self.noise.add_to_piece(
                _divided(total[name], own).flatten(), self.expected_lot, normals, first + piece.offset
            ).view_as(piece.local)
            piece.local.grad = (noisy if own is None else noisy * own).to(piece.local.dtype)
            first += piece.shape.numel()
        return float(shares[0]) if self.moving else 0.0

    def join(self, group: Group, shards: ShardedParameters | None) -> None:
        """From now on, batches are parts of a lot; with shards, each process draws the noise on its own rows."""
        self.group, self.shards = group, shards
        if shards is not None:
            self._stream = group.share(self._stream)

    def _noisy(self, total: Tensor, step: int) -> Tensor:
        """The noisy mean; if the bound moves, the count in the last entry becomes a noisy fraction of the lot."""
        whole, lot = len(total) - (1 if self.moving else 0), self.expected_lot
        noisy = self.noise.add_and_divide(total[:whole], lot, self._stream.child("noise", step))
        if not self.moving:
            return noisy
        return torch.cat([noisy, self._noisy_share(total[whole:], step).to(noisy)])

    def _noisy_share(self, balance: Tensor, step: int) -> Tensor:
        """The noisy share of records within the bound, if it moves."""
        if not self.moving:
            return balance
        share = self.moving.share(float(balance), self.expected_lot, self._stream.child("count", step))
        return balance.new_tensor([share])

    def _bound(self, norm: float) -> None:
        """Clip and noise move together."""
        norm = max(norm, SMALLEST)
        self.clip, self.noise = replace(self.clip, norm=norm), replace(self.noise, sensitivity=norm)


def put_gradient(net: nn.Module, flat: Tensor, clip: Clip | None = None) -> None:
    """Put a flat gradient into the trainable parameters, in units of the clip's scale if there is one."""
    trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
    types = {p.dtype for p in trainable.values()}
    if len(types) == 1 and (clip is None or clip.scale is None):
        flat = flat.to(types.pop())  # all of it at once
    pieces = torch.split(flat, [p.numel() for p in trainable.values()])
    for (name, parameter), piece in zip(trainable.items(), pieces, strict=True):
        scale = clip.scale_of(name) if clip else None
        gradient = piece.view_as(parameter)
        parameter.grad = (gradient if scale is None else gradient * scale).to(parameter.dtype)


def _divided(value: Tensor, scale: Tensor | None) -> Tensor:
    return value if scale is None else value / scale

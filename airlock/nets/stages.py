"""The layers of a front end that can be cut off and narrowed: convolutions, channel-wise layers, blocks.

In: convolutions and their weights (`Weights`), with BatchNorm folded in: its statistics are public and fixed, so it is
one affine map per channel. Out: layers, each a module with `narrowed(into, out)`: the same layer for the input channels
`into` and the output channels `out` alone (None: all), with smaller tensors. For the channels kept it computes what the
whole layer computes, up to rounding, as long as no relevant input channel was removed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import NetError

Channels = Tensor | None
_EPSILON = 1e-5  # torch's default for BatchNorm
BY_CHANNEL = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardswish,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Identity, nn.Dropout, nn.Dropout2d,
)  # fmt: skip


class Layer(nn.Module):
    """A layer of a front end. `weighted`: it has output channels of its own to choose from."""

    weighted = True

    def narrowed(self, into: Channels, out: Channels) -> Layer:
        """The same layer for some input and output channels."""
        raise NotImplementedError


class Convolution(Layer):
    """A convolution and the channel-wise layers after it; depthwise ones keep the channels they are given."""

    def __init__(self, conv: nn.Conv2d, after: nn.Module | None = None, pad: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.conv, self.after, self.pad = conv, after or nn.Identity(), pad

    @property
    def depthwise(self) -> bool:
        """Whether each channel is filtered separately."""
        return self.conv.groups == self.conv.in_channels > 1

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        y: Tensor = self.after(self.conv(F.pad(x, self.pad) if self.pad else x))
        return y

    def narrowed(self, into: Channels, out: Channels) -> Convolution:
        """The convolution with smaller tensors."""
        if self.depthwise:
            into, out = None, out if into is None else into
        elif self.conv.groups > 1:
            raise NetError("a convolution with one group, or one channel per group", f"{self.conv.groups} groups")
        weight, bias = self.conv.weight, self.conv.bias
        weight = weight if into is None else weight[:, into]
        weight = weight if out is None else weight[out]
        bias = bias if bias is None or out is None else bias[out]
        outside = len(weight)
        inside = outside if self.depthwise else weight.shape[1]
        conv = copy.copy(self.conv)
        conv._parameters = {"weight": nn.Parameter(weight.detach().clone(), requires_grad=False), "bias": None}
        conv.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        conv.in_channels, conv.out_channels = inside, outside
        conv.groups = outside if self.depthwise else 1
        return Convolution(conv, self.after, self.pad)


class ByChannel(Layer):
    """Pooling, activations, frozen BatchNorm: layers that treat each channel separately."""

    weighted = False

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        y: Tensor = self.body(x)
        return y

    def narrowed(self, into: Channels, out: Channels) -> ByChannel:
        """The same layer; BatchNorm is restricted to the input channels."""
        if into is None or not isinstance(self.body, nn.BatchNorm2d):
            return self
        old = self.body
        new = nn.BatchNorm2d(len(into), old.eps, old.momentum, old.affine, old.track_running_stats)
        kept = {key: value[into] if value.dim() else value for key, value in old.state_dict().items()}
        new.load_state_dict(kept)
        return ByChannel(new.eval())


class Pick(nn.Module):
    """Selects some of the channels; a negative index stands for a channel of zeros."""

    places: Tensor
    there: Tensor

    def __init__(self, places: Tensor) -> None:
        super().__init__()
        self.register_buffer("places", places.clamp_min(0))
        self.register_buffer("there", (places >= 0).float().view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps to fewer maps."""
        return x.index_select(1, self.places) * self.there


class Block(Layer):
    """Convolutions with a skip connection: `after(body(x) + short(x))`; no skip connection if `short` is None."""

    def __init__(self, body: list[Convolution], short: nn.Module | None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.short, self.after = nn.ModuleList(body), short, after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        y = x
        for layer in self.body:
            y = layer(y)
        y = y if self.short is None else y + self.short(x)
        added: Tensor = self.after(y)
        return added

    def narrowed(self, into: Channels, out: Channels) -> Block:
        """Narrower at both ends; an identity becomes a selection of channels, zero for those not in the input."""
        last = len(self.body) - 1
        body, given = [], into
        for place, layer in enumerate(self.body):
            assert isinstance(layer, Convolution)
            body.append(layer.narrowed(given, out if place == last else None))
            given = given if layer.depthwise else None
        short = self.short
        if isinstance(short, Convolution):
            short = short.narrowed(into, out)
        elif isinstance(short, nn.Identity):
            width = self.body[last].conv.out_channels  # type: ignore[union-attr]
            short = _picked(into, out, int(width))  # type: ignore[arg-type]
        elif isinstance(short, Pick) and (into is not None or out is not None):
            raise NetError("a front end that has not been narrowed", "one that has", do="Narrow the original once.")
        return Block(body, short, self.after)


def _picked(into: Channels, out: Channels, width: int) -> nn.Module:
    """The identity from the input channels to the output channels."""
    if into is None and out is None:
        return nn.Identity()
    device = into.device if into is not None else out.device if out is not None else None
    where = torch.full((width,), -1, device=device)
    came = torch.arange(width, device=device) if into is None else into
    where[came] = torch.arange(len(came), device=device)
    return Pick(where if out is None else where[out])


class Whole(Layer):
    """An opaque module: all of it is computed, and some channels are selected."""

    def __init__(self, body: nn.Module, pick: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.pick = body, pick or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        y: Tensor = self.pick(self.body(x))
        return y

    def narrowed(self, into: Channels, out: Channels) -> Whole:
        """The same module with fewer channels selected; its input cannot be narrowed."""
        if into is not None:
            raise NetError(
                "convolutions that can be narrowed",
                f"a {type(self.body).__name__} in the front end",
                do="Leave out `inner`, or give a front end that is an nn.Sequential of convolutions.",
            )
        return self if out is None else Whole(self.body, Pick(out))


class Weights:
    """Tensors by their usual names; without any, fresh ones from torch's generator (a random front end).

    Args:
        tensors: A state dict; entries that are not needed are ignored.
        source: Its name in messages.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | None, source: str) -> None:
        self.tensors, self.source = tensors, source

    def conv(
        self, key: str, sizes: tuple[int, int, int], stride: int = 1, norm: str | None = None, bias: bool = True
    ) -> nn.Conv2d:
        """A padded convolution of `sizes` (in, out, kernel) by the name `key`, with BatchNorm `norm` folded in."""
        into, out, kernel = sizes
        conv = nn.Conv2d(into, out, kernel, stride, padding=kernel // 2)
        assert conv.bias is not None
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        nn.init.zeros_(conv.bias)
        if self.tensors is None:
            return conv
        with torch.no_grad():
            conv.weight.copy_(self._tensor(f"{key}.weight", tuple(conv.weight.shape)))
            if bias and norm is None:
                conv.bias.copy_(self._tensor(f"{key}.bias", (out,)))
            if norm is not None:
                names = ("weight", "bias", "running_mean", "running_var")
                scale, shift, mean, variance = (self._tensor(f"{norm}.{name}", (out,)) for name in names)
                fold(conv, scale, shift, mean, variance, _EPSILON)
        return conv

    def _tensor(self, key: str, shape: tuple[int, ...]) -> Tensor:
        assert self.tensors is not None
        found = self.tensors.get(key)
        fits = isinstance(found, Tensor) and tuple(found.shape) == shape
        if not fits:
            raise NetError(
                f"a tensor '{key}' of shape {' × '.join(map(str, shape))} in {self.source}",
                "none" if not isinstance(found, Tensor) else f"shape {' × '.join(map(str, found.shape))}",
                "The layers of the front end are filled by their usual names.",
                "Provide a state dict of exactly this network.",
            )
        assert isinstance(found, Tensor)
        if not torch.isfinite(found).all():
            raise NetError(f"finite numbers in '{key}' of {self.source}", "NaN or infinity")
        return found.float()

    def width(self, key: str, otherwise: int) -> int:
        """How many output channels the convolution `key` has."""
        found = None if self.tensors is None else self.tensors.get(f"{key}.weight")
        return len(found) if isinstance(found, Tensor) and found.dim() == 4 else otherwise


def fold(conv: nn.Conv2d, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, epsilon: float) -> None:
    """Fold a frozen BatchNorm into the convolution before it: scale * (x - mean) / sqrt(variance + e) + shift."""
    assert conv.bias is not None
    with torch.no_grad():
        factor = scale * (variance + epsilon).rsqrt()
        conv.weight.mul_(factor.view(-1, 1, 1, 1))
        conv.bias.copy_((conv.bias - mean) * factor + shift)


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """A copy of a convolution with the BatchNorm after it folded in."""
    made = copy.deepcopy(conv)
    if made.bias is None:
        made.bias = nn.Parameter(torch.zeros(made.out_channels, device=made.weight.device))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight if norm.affine else torch.ones_like(norm.running_mean)
    shift = norm.bias if norm.affine else torch.zeros_like(norm.running_mean)
    fold(made, scale, shift, norm.running_mean, norm.running_var, norm.eps)
    return made


class Plain(nn.Module):
    """A constant affine map of the pixels: subtract the mean, divide by the standard deviation, both per colour."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: tuple[float, ...], spread: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("spread", torch.tensor(spread).view(1, -1, 1, 1))

    @classmethod
    def imagenet(cls) -> Self:
        """The constants used by ImageNet networks."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images in [0, 1] to what the first layer expects."""
        return (x - self.mean) / self.spread

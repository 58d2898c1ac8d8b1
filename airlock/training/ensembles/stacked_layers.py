"""Layers that replace convolutions and poolings when many networks are computed at once on a GPU.

`fuse` puts them into a network that will be called under vmap, where they run the kernels of `stacked_kernels`;
otherwise they behave like the layers that they replace. A ReLU after a convolution, and a 2 × 2 pooling after that, are
computed along with it. That is correct only if a Sequential is run as a whole, so the caller compares the gradients
with those of the original network (`stacked.choose`).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[int, int]


def available(device: torch.device) -> bool:
    """Whether the kernels run there."""
    return device.type == "cuda" and find_spec("triton") is not None


def fuse(net: nn.Module) -> bool:
    """Put replacements into the network, in place; parameters keep their names. Returns whether anything changed."""
    found = False
    for module in list(net.modules()):
        names = list(module._modules)
        for place, name in enumerate(names):
            layer = module._modules[name]
            if layer is None or not _takes(layer):
                continue
            found = True
            layer.__class__ = Conv
            layer.relu = False  # type: ignore[assignment]
            if type(module) is nn.Sequential:
                _join(module, names[place:])
    return found


def _takes(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Conv2d
        and (layer.stride, layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        and not isinstance(layer.padding, str)
        and all(p < k for p, k in zip(layer.padding, layer.kernel_size, strict=True))
        and layer.weight.dtype == torch.float32
    )


def _join(run: nn.Sequential, names: list[str]) -> None:
    """Fuse what follows a convolution into it."""
    conv, *behind = (run._modules[name] for name in names)
    if not behind or type(behind[0]) is not nn.ReLU or not isinstance(conv, Conv):
        return
    run._modules[names[1]] = nn.Identity()
    if len(behind) > 1 and _halves(behind[1]):
        run._modules[names[2]] = ReluPool()
    else:
        conv.relu = True


def _halves(layer: nn.Module | None) -> bool:
    return (
        type(layer) is nn.MaxPool2d
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not (layer.ceil_mode or layer.return_indices)
    )


class Conv(nn.Conv2d):
    """A convolution of stride 1, followed by a ReLU if `relu`."""

    relu: bool

    def forward(self, x: Tensor) -> Tensor:
        """The output for one network's records."""
        found: Tensor = _Conv.apply(x.float(), self.weight, self.bias, self.padding, self.relu)  # type: ignore[no-untyped-call]
        return found


class ReluPool(nn.Module):
    """ReLU and the maximum of 2 × 2."""

    def forward(self, x: Tensor) -> Tensor:
        """The output for one network's records."""
        found: Tensor = _ReluPool.apply(x)  # type: ignore[no-untyped-call]
        return found


def _first(value: Any, dim: int | None, models: int) -> Any:
    """With the networks along the first axis."""
    if value is None:
        return None
    return value.movedim(dim, 0) if dim is not None else value.expand(models, *value.shape)


class _Conv(torch.autograd.Function):
    """For one network; what matters is its rule under vmap."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, relu: bool) -> Tensor:
        out = F.conv2d(x, weight, bias, padding=padding)
        return F.relu(out) if relu else out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: only the stacked form has a gradient."""

    @staticmethod
    def backward(ctx: Any, *back: Any) -> Any:
        raise NotImplementedError("a replacement layer is for networks under vmap")

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, weight: Any, bias: Any, padding: Pair, relu: bool) -> tuple[Tensor, int]:
        stacked = [_first(v, d, info.batch_size) for v, d in zip((x, weight, bias), in_dims[:3], strict=True)]
        return _StackedConv.apply(*stacked, padding, relu), 0  # type: ignore[no-untyped-call]


class _StackedConv(torch.autograd.Function):
    """(networks, records, channels, rows, columns), with separate weights per network; channels are last in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, relu: bool) -> Tensor:
        from airlock.training.ensembles.stacked_kernels import convolve

        x, models, kernel = _channels_last(x), len(x), (int(weight.shape[3]), int(weight.shape[4]))
        matrix = weight.permute(0, 3, 4, 2, 1).reshape(models, -1, weight.shape[1]).contiguous()
        out = convolve(x, matrix, None if bias is None else bias.contiguous(), kernel, padding, relu)
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.padding, ctx.kernel = padding, kernel
        return out.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *backs: Any) -> Any:
        from airlock.training.ensembles.stacked_kernels import convolve, weight_gradients

        x, weight, out = ctx.saved_tensors
        back = _channels_last(backs[0])
        if out is not None:
            back = torch.ops.aten.threshold_backward(back, out, 0.0)
        kernel, (models, outof, into) = ctx.kernel, weight.shape[:3]
        to_x = None
        if ctx.needs_input_grad[0]:
            turned = weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(models, -1, into).contiguous()
            around = (kernel[0] - 1 - ctx.padding[0], kernel[1] - 1 - ctx.padding[1])
            to_x = convolve(back, turned, None, kernel, around).permute(0, 1, 4, 2, 3)
        to_weight, to_bias = weight_gradients(x, back, kernel, ctx.padding)
        to_weight = to_weight.view(models, *kernel, into, outof).permute(0, 4, 3, 1, 2)
        return to_x, to_weight, to_bias if ctx.needs_input_grad[2] else None, None, None


class _ReluPool(torch.autograd.Function):
    """For one network; what matters is its rule under vmap."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(x), 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: only the stacked form has a gradient."""

    @staticmethod
    def backward(ctx: Any, *back: Any) -> Any:
        raise NotImplementedError("a replacement layer is for networks under vmap")

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> tuple[Tensor, int]:
        return _StackedReluPool.apply(_first(x, in_dims[0], info.batch_size)), 0  # type: ignore[no-untyped-call]


class _StackedReluPool(torch.autograd.Function):
    """Networks and records are both treated as a batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from airlock.training.ensembles.stacked_kernels import relu_pool

        ctx.high, ctx.wide = x.shape[3:]
        out, chosen = relu_pool(_channels_last(x).flatten(0, 1))
        ctx.save_for_backward(chosen)
        return out.view(*x.shape[:2], *out.shape[1:]).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *backs: Any) -> Any:
        from airlock.training.ensembles.stacked_kernels import relu_pool_back

        models, records = backs[0].shape[:2]
        found = relu_pool_back(backs[0].flatten(0, 1), ctx.saved_tensors[0], ctx.high, ctx.wide)
        return found.view(models, records, *found.shape[1:]).permute(0, 1, 4, 2, 3)


def _channels_last(x: Tensor) -> Tensor:
    """(networks, records, rows, columns, channels), dense."""
    return x.permute(0, 1, 3, 4, 2).contiguous()

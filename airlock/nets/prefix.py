"""Public networks cut after a layer: `open_prefix` maps records to feature maps, `narrow` keeps some of the channels.

A prefix is frozen and in eval mode, BatchNorm is folded into the convolutions, and a record's maps depend on that
record alone. Its tensors come from public sources: a file of the user's, a wheel, or public images. Narrowing gives
smaller convolutions, not a mask: it saves time and storage.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.backbones import (
    RESNET_LAYERS,
    ResidualTrunk,
    ResnetTrunk,
    VggTrunk,
    efficientnet_body,
    efficientnet_linear,
    resnet_layers,
    vgg_layers,
    vgg_layout,
)
from airlock.nets.check import alone
from airlock.nets.frontend import pretrain, scattering_linear
from airlock.nets.registry import open_user_net
from airlock.nets.scattering import SMALLEST
from airlock.nets.stages import BY_CHANNEL, Block, ByChannel, Convolution, Layer, Plain, Weights, Whole, folded

Shape = tuple[int, ...]
State = Mapping[str, Tensor]

FRONTS = ("vgg16", "vgg19", "resnet18", "efficientnet-lite0", "residual")
# Front ends of `weights`/`head` whole, as one layer: one map of a single pixel for each of their features.
POOLED = ("scattering", "efficientnet-lite0-pooled")
_SEED = 0  # for a front end without weights
_RESIDUAL_WIDTH = 64
_RESIDUAL_LAYERS = 10
_EFFICIENT_LAYERS = 17
_MIDDLE, _SPREAD = 0.475, 0.25  # as in the residual trunk


class Prefix(nn.Module):
    """The first layers of a public network: maps images (n, colours, height, width) in [0, 1] to (n, D, h, w).

    Args:
        plain: The preprocessing of the pixels.
        layers: The layers by name, in order.
        image_shape: The shape of one record.
        name: The name of the network.
    """

    def __init__(self, plain: nn.Module, layers: Mapping[str, Layer], image_shape: Shape, name: str) -> None:
        super().__init__()
        self.plain, self.layers = plain, nn.ModuleList(layers.values())
        self.names, self.image_shape, self.name = tuple(layers), image_shape, name
        self.requires_grad_(False).eval()
        with torch.no_grad():
            maps = [tuple(y.shape[1:]) for y in self._each(torch.zeros(1, *image_shape))]
        self.shape: Shape = maps[-1]
        self.widths = tuple(m[0] for m, layer in zip(maps, self.layers, strict=True) if layer.weighted)

    def train(self, mode: bool = True) -> Prefix:
        """Always stays in eval mode: nothing in it is trained."""
        return super().train(False)

    def _each(self, x: Tensor) -> list[Tensor]:
        x, maps = self.plain(x), []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """Maps of each record, from that record alone."""
        x = self.plain(x)
        for layer in self.layers:
            x = layer(x)
        return x

    @property
    def channels(self) -> int:
        """The number of output maps, D."""
        return self.shape[0]

    @property
    def parameter_bytes(self) -> int:
        """Its size in bytes, in float32."""
        return 4 * sum(parameter.numel() for parameter in self.parameters())

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of its convolutions, for one record."""
        total = 0

        def count(module: nn.Module, _: object, y: Tensor) -> None:
            nonlocal total
            assert isinstance(module, nn.Conv2d)
            total += y.numel() * module.weight[0].numel()

        hooks = [m.register_forward_hook(count) for m in self.modules() if isinstance(m, nn.Conv2d)]
        parameter = next(self.parameters(), torch.zeros(()))
        with torch.no_grad():
            self(torch.zeros(1, *self.image_shape, device=parameter.device))
        for hook in hooks:
            hook.remove()
        return total


@dataclass(frozen=True)
class _Family:
    """How one network is opened: how many layers it has, whether it needs colour, and how they are built."""

    layers: int
    colour: bool
    make: Callable[[Weights, int, int], dict[str, Layer]]


def open_prefix(name: str, m: int | str, shape: Shape, weights: State | Path | str | None = None) -> Prefix:
    """A public network cut after layer `m`, frozen, in eval mode.

    Args:
        name: One of `FRONTS` or `POOLED`, or the user's own as `package.module:function` (an nn.Sequential is cut after
            its m-th part; any other module is one layer).
        m: How many layers, or the name of the last one.
        shape: The shape of one record: colours, height, width.
        weights: A state dict in the usual layout or a file with one (.safetensors, or .pth without code in it). If
            None, EfficientNet uses its own weights and any other network is random, from a fixed seed.

    Raises:
        NetError: The name or layer is unknown, the records do not fit, or weights are missing or do not fit.
    """
    _check_images(name, shape)
    tensors = read_weights(weights) if isinstance(weights, (str, Path)) else weights
    source = Path(weights).name if isinstance(weights, (str, Path)) else "the weights"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        plain, layers = _open(name, m, shape, Weights(tensors, source))
    _check_size(name, layers, shape)
    return Prefix(plain, layers, shape, name)


def layer_count(name: str) -> int | None:
    """How many layers a built-in network can be cut after; None for the user's own."""
    return None if ":" in name else 1 if name in POOLED else _family(name).layers


def trunk(name: str, shape: Shape, layers: int | None = None) -> nn.Module:
    """A new trunk of a built-in network, to be trained on public images; `usual_state` converts it for `open_prefix`.

    Raises:
        NetError: The network is not one that can be trained here.
    """
    if name in ("vgg16", "vgg19"):
        return VggTrunk(name, layers or _family(name).layers)
    if name == "resnet18":
        return ResnetTrunk()
    if name == "residual":
        return ResidualTrunk(shape[0], _RESIDUAL_WIDTH)
    raise NetError(
        "a front end that can be trained here (vgg16, vgg19, resnet18, residual)", f"'{name}'",
        do="EfficientNet-lite0 comes with its weights; your own module brings them.",
    )  # fmt: skip


def usual_state(made: nn.Module) -> dict[str, Tensor]:
    """The tensors of a trunk by their usual names."""
    own = made.usual() if isinstance(made, (VggTrunk, ResnetTrunk)) else made.state_dict()
    return {key: value.detach().cpu().contiguous() for key, value in own.items()}


def narrow(prefix: nn.Module, channels: Sequence[int], inner: Sequence[Sequence[int]] | None = None) -> Prefix:
    """The prefix with only these output channels, in this order, in narrower convolutions.

    Without `inner` it computes the same values for these channels as the whole prefix, up to rounding.

    Args:
        prefix: As returned by `open_prefix`.
        channels: Channels of its last layer with weights, counted from 0.
        inner: The same for each earlier layer with weights, in order; this changes what is computed.

    Raises:
        NetError: A channel does not exist or is named twice, or `inner` has the wrong number of layers.
    """
    if not isinstance(prefix, Prefix):
        raise NetError("a front end from open_prefix", type(prefix).__name__)
    widths = prefix.widths
    kept = [*(inner or [range(width) for width in widths[:-1]]), channels]
    if len(kept) != len(widths):
        raise NetError(
            f"inner channels for each of the {len(widths) - 1} layers with weights before the last",
            f"{len(kept) - 1}",
        )
    wanted = iter([_checked(own, width) for own, width in zip(kept, widths, strict=True)])
    made: dict[str, Layer] = {}
    given: Tensor | None = None
    for name, layer in zip(prefix.names, prefix.layers, strict=True):
        assert isinstance(layer, Layer)
        out = next(wanted) if layer.weighted else None
        made[name] = copy.deepcopy(layer.narrowed(given, out)).cpu()
        given = out if layer.weighted else given
    device = next(prefix.parameters(), torch.zeros(())).device
    return Prefix(copy.deepcopy(prefix.plain).cpu(), made, prefix.image_shape, prefix.name).to(device)


def _checked(channels: Sequence[int], width: int) -> Tensor | None:
    """The channels as a tensor; None for all of them in order."""
    own = [int(c) for c in channels]
    if not own or len(own) > width or len(set(own)) != len(own) or min(own) < 0 or max(own) >= width:
        wrong = [c for c in own if not 0 <= c < width]
        found = f"channel {wrong[0]}" if wrong else f"{len(own)} of them" if len(own) in (0,) else f"{len(own)} named"
        raise NetError(
            f"distinct channels out of the layer's {width} (0 to {width - 1})", found,
            do="Use fewer channels, or a layer with more.",
        )  # fmt: skip
    return None if own == list(range(width)) else torch.tensor(own)


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """A state dict from a .safetensors file, or from a .pth file that holds only tensors.

    Raises:
        NetError: There is no such file, or it does not hold a state dict.
    """
    path = Path(path)
    wanted = "a file with a state dict (.safetensors, or .pth with tensors only)"
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise NetError(wanted, f"no file '{path.name}'", do="Check settings.weights.") from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise NetError(wanted, f"'{path.name}', which cannot be read as one") from error
    except Exception as error:  # the unpickler's own error has no public name
        raise NetError(wanted, f"'{path.name}', which holds other things", "Loading it could run code.") from error
    inside = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(inside, Mapping) or not all(isinstance(value, Tensor) for value in inside.values()):
        raise NetError(wanted, f"'{path.name}', which does not hold a state dict")
    return dict(inside)


def _family(name: str) -> _Family:
    families = {
        "vgg16": _Family(len(list(vgg_layout("vgg16"))), True, lambda w, m, _: vgg_layers("vgg16", w, m)),
        "vgg19": _Family(len(list(vgg_layout("vgg19"))), True, lambda w, m, _: vgg_layers("vgg19", w, m)),
        "resnet18": _Family(RESNET_LAYERS, True, lambda w, m, _: resnet_layers(w, m)),
        "efficientnet-lite0": _Family(_EFFICIENT_LAYERS, True, lambda _, m, __: _efficient_layers(m)),
        "residual": _Family(_RESIDUAL_LAYERS, False, lambda w, m, colours: _residual_layers(w, m, colours)),
    }
    if name not in families:
        near = difflib.get_close_matches(name, families, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else "Or give your own as package.module:function."
        raise NetError(f"a front end ({', '.join((*families, *POOLED))})", f"'{name}'", do=hint)
    return families[name]


def _open(name: str, m: int | str, shape: Shape, weights: Weights) -> tuple[nn.Module, dict[str, Layer]]:
    if ":" in name:
        return _own(name, m, shape, weights)
    if name in POOLED:
        return nn.Identity(), {"features": _pooled(name, m, shape)}
    family = _family(name)
    if isinstance(m, str):
        known = list(family.make(Weights(None, ""), family.layers, shape[0]))
        if m not in known:
            raise NetError(f"a layer of {name} ({', '.join(known)})", f"'{m}'")
        m = known.index(m) + 1
    if not 1 <= m <= family.layers:
        raise NetError(f"1 to {family.layers} layers of {name}", f"{m}", do="Set settings.layers to one of these.")
    plain = Plain((_MIDDLE,), (_SPREAD,)) if name == "residual" else Plain.imagenet()
    return plain, family.make(weights, m, shape[0])


def _pooled(name: str, m: int | str, shape: Shape) -> Layer:
    """All of a front end of `weights`/`head`, each feature as a map."""
    if m not in (1, "features"):
        raise NetError(f"1 layer of {name}", f"{m}", do="Leave settings.layers out.")
    if name == "scattering":
        framed = scattering_linear(shape, 1)
        pretrain(framed, shape, _SEED)
    else:
        framed = efficientnet_linear(shape, 1)
    return Whole(nn.Sequential(framed.front, nn.Unflatten(1, (framed.centre.mean.numel(), 1, 1))))


def _check_images(name: str, shape: Shape) -> None:
    if ":" in name:
        return
    if name in POOLED:
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < SMALLEST:
            found = f"records of shape {' × '.join(map(str, shape))}"
            raise NetError(f"images of at least {SMALLEST} pixels per side for front end '{name}'", found)
        return
    colours = "colour images (3 × height × width)" if _family(name).colour else "grey or colour images"
    if len(shape) != 3 or shape[0] not in ((3,) if _family(name).colour else (1, 3)):
        grey = len(shape) == 3 and shape[0] == 1
        raise NetError(
            f"{colours} for front end '{name}'",
            f"{'grey images' if grey else 'records'} of shape {' × '.join(map(str, shape))}",
            "Its first layer was trained on three colours." if grey else "",
            "Use the front end 'residual', or convert the images to colour first." if grey else "",
        )


def _check_size(name: str, layers: Mapping[str, Layer], shape: Shape) -> None:
    if ":" in name or name in POOLED:
        return
    least = math.prod(_stride(layer) for layer in layers.values())
    if min(shape[1:]) < least:
        raise NetError(
            f"images of at least {least} pixels per side for {len(layers)} layers of {name}",
            f"{shape[1]} × {shape[2]}",
            "Smaller images would vanish on the way.",
            "Use fewer layers.",
        )


def _stride(layer: nn.Module) -> int:
    """The factor by which one layer shrinks an image."""
    if isinstance(layer, Block):
        return math.prod(_stride(one) for one in layer.body)
    body = layer.conv if isinstance(layer, Convolution) else layer.body if isinstance(layer, ByChannel) else layer
    stride = getattr(body, "stride", 1)
    return int(stride if isinstance(stride, int) else stride[0])


def _residual_layers(weights: Weights, count: int, colours: int) -> dict[str, Layer]:
    """Airlock's own trunk: the stem, then three times a convolution, a pooling and a residual pair."""
    width = weights.width("stem.0", _RESIDUAL_WIDTH)

    def conv(key: str, found: int, wanted: int) -> Convolution:
        return Convolution(weights.conv(f"{key}.0", (found, wanted, 3), norm=f"{key}.1", bias=False), nn.ReLU())

    layers: dict[str, Layer] = {"stem": conv("stem", colours, width)}
    for stage in range(3):
        found, wanted, key = width << stage, width << stage + 1, f"stages.{stage}"
        if len(layers) >= count:
            break
        layers[f"conv{stage + 1}"] = conv(f"{key}.0", found, wanted)
        layers[f"pool{stage + 1}"] = ByChannel(nn.MaxPool2d(2))
        pair = [conv(f"{key}.2.body.{place}", wanted, wanted) for place in range(2)]
        layers[f"residual{stage + 1}"] = Block(pair, nn.Identity())
    return dict(list(layers.items())[:count])


def _efficient_layers(count: int) -> dict[str, Layer]:
    """EfficientNet-lite0 from its wheel: the stem, then its blocks. Images keep their size."""
    body = efficientnet_body()
    relu6 = nn.ReLU6()

    def conv(module: nn.Module, norm: nn.Module, after: nn.Module | None) -> Convolution:
        assert isinstance(module, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        made = folded(module, norm)
        sides = tuple(k // 2 for k in module.kernel_size)
        plain = nn.Conv2d(
            made.in_channels, made.out_channels, made.kernel_size, made.stride, sides, groups=made.groups  # type: ignore[arg-type]
        )  # fmt: skip
        plain.load_state_dict(made.state_dict())
        pads = getattr(module, "static_padding", None)
        own = tuple(int(p) for p in getattr(pads, "padding", ()))
        if len(set(own)) > 1:  # padded as by its authors: more on the right and at the bottom
            plain.padding = (0, 0)
            return Convolution(plain, after, own)
        return Convolution(plain, after)

    layers: dict[str, Layer] = {"stem": conv(body._conv_stem, body._bn0, relu6)}  # type: ignore[arg-type]
    for number, block in enumerate(body._blocks, 1):  # type: ignore[arg-type]
        parts = []
        if hasattr(block, "_expand_conv"):
            parts.append(conv(block._expand_conv, block._bn0, relu6))
        parts += [conv(block._depthwise_conv, block._bn1, relu6), conv(block._project_conv, block._bn2, None)]
        same = parts[0].conv.in_channels == parts[-1].conv.out_channels and _stride(parts[-2]) == 1
        layers[f"block{number}"] = Block(parts, nn.Identity() if same else None)
    return dict(list(layers.items())[:count])


def _own(name: str, m: int | str, shape: Shape, weights: Weights) -> tuple[nn.Module, dict[str, Layer]]:
    """The user's module as layers: the parts of an nn.Sequential, or the whole module as one."""
    body = open_user_net(name, shape, 1)
    if weights.tensors is not None:
        try:
            body.load_state_dict(dict(weights.tensors))
        except RuntimeError as error:
            raise NetError(f"a state dict for '{name}'", str(error).splitlines()[-1].strip()) from error
    body.requires_grad_(False).eval()
    parts = dict(body.named_children()) if isinstance(body, nn.Sequential) else {"whole": body}
    if isinstance(m, str):
        if m not in parts:
            raise NetError(f"a part of '{name}' ({', '.join(parts)})", f"'{m}'")
        m = list(parts).index(m) + 1
    if not 1 <= m <= len(parts):
        raise NetError(f"1 to {len(parts)} layers of '{name}'", f"{m}", do="Set settings.layers to one of these.")
    parts = dict(list(parts.items())[:m])
    output = alone(nn.Sequential(*parts.values()), name, shape)
    if output.dim() != 3:
        raise NetError(
            f"maps (channels × height × width) from front end '{name}'",
            f"{' × '.join(map(str, output.shape))} for one record", do="Cut it after fewer layers.",
        )  # fmt: skip
    return nn.Identity(), {key: _layer(part) for key, part in parts.items()}


def _layer(part: nn.Module) -> Layer:
    if isinstance(part, nn.Conv2d) and part.groups == 1:
        return Convolution(part)
    return ByChannel(part) if isinstance(part, (*BY_CHANNEL, nn.BatchNorm2d)) else Whole(part)

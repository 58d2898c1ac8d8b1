"""What others bring: once installed it is known everywhere and keeps its contract; no bundle's word imports it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import nn

from airlock import methods, pipeline, plugins
from airlock.accounting import epsilon
from airlock.auditing import AuditSettings
from airlock.auditing.attacks import Attack, external
from airlock.bundle import verify
from airlock.config import from_table, load
from airlock.data import Raw, Source, sources
from airlock.errors import ConfigError, NetError, Refused
from airlock.methods import registry as method_registry
from airlock.methods.weights.gaussian import Gaussian
from airlock.nets import registry as net_registry
from airlock.pipeline import audit_bundle, make_release
from airlock.testing import check_accountant, check_attack, check_method, check_net, check_source
from tests.conftest import Plug

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/plugin"
CONFIG = 'channel = "weights"\nmethod = "class-means"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n'
STRIPES = 'channel = "weights"\ndata = "stripes"\nnet = "wide-tanh"\naccountant = "half-delta"\nepsilon = 3.0\n'
STRIPES += "delta = 1e-4\nsplit = {test = 0.2, holdout = 0.3}\n[settings]\nsteps = 3\nlot_size = 50\n"
COMPARED = 'data = "stripes"\nnet = "wide-tanh"\naccountant = "half-delta"\nepsilons = [3.0]\ndelta = 1e-4\n'
COMPARED += 'methods = ["weights/class-means"]\ncourt_seconds = 0.2\n[settings]\n'
COMPARED += '"weights/gaussian" = {steps = 3}\nbaseline = {epochs = 1}\n'
# In one process, since torch takes longer to import than any of them to run; its tests first, while nothing is imported
# whose asserts pytest would rewrite.
COMMANDS = """
import json, sys
import pytest
told = json.load(sys.stdin)
passed = pytest.main(["-q", "-p", "no:cacheprovider", told["tests"]]) == 0
from typer.testing import CliRunner
from airlock.cli import app
runs = [CliRunner().invoke(app, line) for line in told["lines"]]
print()
print(json.dumps([passed, [[run.exit_code, run.output if run.exit_code else run.stdout] for run in runs]]))
"""


def run_installed(target: Path, code: str, told: str) -> str:
    """Run Python with the example built and installed into a folder of its own."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("not in an environment that make has installed")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--offline", "--python", sys.executable]
    source = shutil.copytree(EXAMPLE, target / "source")  # a build writes next to what it builds
    subprocess.run([str(uv), "pip", "install", *options, "--target", str(target / "site"), str(source)], check=True)
    path = os.pathsep.join([str(target / "site"), str(ROOT)])
    line, surroundings = [sys.executable, "-W", "ignore", "-c", code], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(line, input=told, env=surroundings, cwd=target, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_means(place: Path) -> list[list[str]]:
    """Every command, with the method that the example brings."""
    (place / "means.toml").write_text(CONFIG)
    config, bundle = str(place / "means.toml"), str(place / "bundle")
    return [
        ["plan", config],
        ["release", config, "--out", bundle],
        ["verify", bundle],
        ["audit", bundle, "--set", "method=class-means", "--shadows", "4", "--epochs", "1"],
        ["court", "weights/class-means", "--pairs", "300", "--seconds", "1e9"],
        ["advise", "--data", "digits", "--epsilon", "3", "--delta", "1e-4", "--json"],
    ]


def on_stripes(place: Path) -> list[list[str]]:
    """The same with the source, network, accountant and attack that it brings; the comparison has them all."""
    (place / "stripes.toml").write_text(STRIPES)
    (place / "compare.toml").write_text(COMPARED)
    config, bundle = str(place / "stripes.toml"), str(place / "striped")
    named = ["--data", "stripes", "--net", "wide-tanh", "--attack", "sure-guess", "--shadows", "4", "--epochs", "1"]
    compared = ["--out", str(place / "compared"), "--jobs", "1", "--quick"]
    return [
        ["datasets", "--json"],
        ["plan", config, "--json"],
        ["release", config, "--out", bundle, "--court-seconds", "0.5"],
        ["verify", bundle, "--net", "wide-tanh"],
        ["audit", bundle, *named, "--json"],
        ["audit", bundle, *named, "--attack", "sure-gess"],
        ["compare", str(place / "compare.toml"), *compared],
    ]


def test_its_own_tests_pass_and_every_command_knows_all_that_it_brings(tmp_path: Path) -> None:
    means, stripes, bundle = on_means(tmp_path), on_stripes(tmp_path), tmp_path / "striped"
    told = json.dumps({"tests": str(EXAMPLE / "tests"), "lines": [*means, *stripes]})
    out = run_installed(tmp_path, COMMANDS, told)
    passed, results = json.loads(out.splitlines()[-1])
    assert passed, out
    assert [code for code, _ in results] == [0] * len(means) + [0, 0, 0, 0, 0, 2, 0], results
    assert "class-means" in results[len(means) - 1][1]
    compared = (tmp_path / "compared/results.csv").read_text()
    assert "weights/class-means" in compared
    assert "weights/gaussian" in compared  # with the network and the accountant

    listed, planned, _, _, audited, misspelt, _ = (said for _, said in results[len(means) :])
    assert {"name": "stripes", "package": "airlock-class-means 0.1.0"}.items() <= json.loads(listed)[-1].items()
    whose = "raised by the accountant 'half-delta' of airlock-class-means 0.1.0"
    assert whose in json.loads(planned)["guarantee"]["accountant_version"]
    assert json.loads(audited)["attacks"][-1]["name"] == "sure-guess (airlock-class-means 0.1.0)"
    assert "Did you mean 'sure-guess'?" in misspelt

    # Whoever receives the bundle has none of it: nothing is imported, and what is missing is named.
    card = json.loads((bundle / "card.json").read_text())
    assert "It comes from airlock-class-means 0.1.0." in card["data"]["origin"]
    assert "sure-guess" not in (bundle / "card.json").read_text()
    assert "stripes" not in tomllib.loads((bundle / "config.toml").read_text())["data"].values()
    found = {check.name: check for check in verify(bundle).checks}
    assert found["epsilon"].outcome == "ok"
    assert whose.removeprefix("raised by the ") in found["epsilon"].says
    assert found["outputs"].outcome == "skipped"
    assert "'wide-tanh' is another package's, which is not installed here" in found["outputs"].says
    assert all(check.outcome != "failed" for check in found.values())


def test_it_is_short() -> None:
    assert len((EXAMPLE / "class_means.py").read_text(encoding="utf-8").splitlines()) < 60


class Boasting(Gaussian):
    """Says that it is proven, and brings nothing to court."""

    method: ClassVar[str] = "boasting"
    title: ClassVar[str] = "a boast"
    case = methods.Channel.case


def test_a_method_may_not_call_itself_proven_without_a_case() -> None:
    with pytest.raises(ConfigError, match="a `case` for the court from 'weights/boasting'"):
        methods.register(Boasting)
    assert "boasting" not in methods.METHODS["weights"]  # what is refused leaves no trace


def test_the_door_is_shut_to_other_forms_and_to_names_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"weights": {"gaussian": "here:One"}}

    class Entry:
        def __init__(self, name: str) -> None:
            self.name, self.value = name, "elsewhere:Other"

    names = ["weights/gaussian", "weights/new", "weights/", "smoke/signals", "alone", "weights/new"]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [Entry(name) for name in names])
    assert plugins.methods(own) == {"weights": {"gaussian": "here:One", "new": "elsewhere:Other"}}
    assert own == {"weights": {"gaussian": "here:One"}}


def test_a_method_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.METHODS["weights"], "lost", "no_such_package:Lost")
    with pytest.raises(ConfigError, match="Install its package again"):
        methods.named("weights/lost")


# One mechanism for every kind.


class Brought:
    """An entry point as a package has it."""

    def __init__(self, name: str, value: str = "elsewhere:THING") -> None:
        self.name, self.value = name, value


def test_names_are_read_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["good", "good-2.0", "mlp", "Bad", "with space", "a:b", "../up", "", "-dash", "x" * 65]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [Brought(name) for name in names])
    registry = plugins.Registry("airlock.tried", "thing", ("mlp",), lambda thing, name: thing)
    assert registry.names() == ("good", "good-2.0")
    assert "mlp" not in registry
    assert "elsewhere" not in sys.modules


BROKEN = {
    "syntax": "def (",
    "leaves": "raise SystemExit(3)",
    "fails": "raise RuntimeError('a long story\\nin two lines')",
    "empty": "",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_named_in_four_parts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"broken_{name}.py").write_text(BROKEN[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {name: plugins.Plugin(f"broken_{name}:THING", "broken-package 1.0")}
    registry = plugins.Registry[object]("airlock.things", "thing", (), lambda thing, name: thing)
    monkeypatch.setattr(registry, "_table", table)
    with pytest.raises(ConfigError, match=f"the thing '{name}' of broken-package 1.0 in broken_{name}:THING") as error:
        registry.get(name)
    assert "found an error: " in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("Install its package again, or remove it.")
    monkeypatch.setitem(methods.METHODS["weights"], "broken", f"broken_{name}:THING")
    with pytest.raises(ConfigError, match="the method 'weights/broken'"):
        methods.named("weights/broken")


def test_what_is_registered_twice_or_wrongly_leaves_no_trace() -> None:
    def no(thing: object, name: str) -> object:
        raise ConfigError("a thing", "none")

    registry = plugins.Registry[object]("airlock.none", "thing", (), no)
    with pytest.raises(ConfigError, match="a thing"):
        registry.register("one", object())
    assert registry.names() == ()


# A bundle names what another package brings.


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.Tanh(), nn.Linear(16, classes))


@pytest.fixture
def bundle(plug: Plug, digits_config: Path, tmp_path: Path) -> Path:
    """A release with another package's network, made in the vault of this test."""
    plug(net_registry.OTHERS, "wide", wide)
    config = load(digits_config, {"net": "wide", "split.holdout": 0.3})
    make_release(config, tmp_path / "bundle", court_seconds=0)
    return tmp_path / "bundle"


QUICK = AuditSettings(shadows=4, epochs=1, queries=1, most=60)


def test_a_bundle_that_names_a_network_of_a_package_does_not_import_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imports(name: str) -> None:
        raise AssertionError(f"{name} was imported")

    with monkeypatch.context() as patch:
        patch.setattr(net_registry.OTHERS, "get", imports)
        (outputs,) = [check for check in verify(bundle).checks if check.name == "outputs"]
        assert outputs.outcome == "skipped"
        assert "'wide' is another package's and is not imported because a bundle names it" in outputs.says
        for vault in (tmp_path / "elsewhere", None):  # whether this vault made it or not
            with pytest.raises(Refused, match="'wide' as net in the bundle's config.toml.*--net wide"):
                audit_bundle(bundle, QUICK, vault=vault)
    done = audit_bundle(bundle, QUICK, net="wide", vault=tmp_path / "elsewhere")
    assert done.dossier.audit.attacks


def test_a_bundle_that_names_a_method_of_a_package_does_not_import_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"weights/strange": plugins.Plugin("no_such_package:Strange", "strange 1.0")}
    monkeypatch.setattr(plugins, "read", lambda group: found if group == plugins.METHODS else {})
    file = bundle / "config.toml"
    file.write_text(file.read_text().replace('"gaussian"', '"strange"').replace('"wide"', '"linear"'))
    with pytest.raises(Refused, match="'strange' as method"):
        load(file)
    assert load(file, {"method": "strange"}).method == "strange"
    assert methods.is_built_in("weights/gaussian")
    assert methods.is_built_in("weights/published")
    assert not methods.is_built_in("weights/unheard-of")


def test_names_deep_in_a_config_count_too(plug: Plug) -> None:
    plug(net_registry.OTHERS, "wide", wide)
    named = {"settings": {"list": [{"teacher": "wide"}, 3, None]}, "net": "mlp"}
    assert plugins.strangers(named) == {"settings.list.0.teacher": "wide"}


def test_a_network_of_a_package_is_tried_in_court_as_the_users_own(plug: Plug, digits_config: Path) -> None:
    plug(net_registry.OTHERS, "wide", wide)
    assert pipeline.own_networks(load(digits_config, {"net": "wide"})) == ("wide",)
    assert pipeline.own_networks(load(digits_config, {"settings.teacher": "wide"})) == ("wide",)
    assert pipeline.own_networks(load(digits_config, {"net": "mlp"})) == ()


def test_a_network_of_a_package_that_mixes_records_is_refused(plug: Plug, digits_config: Path) -> None:
    plug(
        net_registry.OTHERS, "wide", lambda shape, classes: nn.Sequential(wide(shape, classes), nn.BatchNorm1d(classes))
    )
    with pytest.raises(NetError, match="no BatchNorm in net 'wide'"):
        pipeline.plan_release(load(digits_config, {"net": "wide"}))


# Contracts.


@pytest.fixture
def _known_for_a_while() -> Iterator[None]:
    """What checks make known to this process is forgotten again."""
    registries = [epsilon.OTHERS, external.OTHERS, net_registry.OTHERS, sources.OTHERS]
    before = [(dict(registry._table), dict(registry._loaded)) for registry in registries]
    yield
    for registry, (table, loaded) in zip(registries, before, strict=True):
        for there, was in ((registry._table, table), (registry._loaded, loaded)):
            there.clear()
            there.update(was)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_known_for_a_while")
def test_a_broken_promise_of_every_kind_is_named() -> None:
    with pytest.raises(AssertionError, match="it is not below what is needed: .* Airlock would not state it"):
        check_accountant(boasting_accountant)
    with pytest.raises(AssertionError, match="it keeps records apart: NetError"):
        check_net(mixing)
    with pytest.raises(AssertionError, match="breaks 3 promises:\n  every record has one finite score"):
        check_attack(Speechless)
    with pytest.raises(AssertionError, match="its records fit what it says"):
        check_source(STRAY)


@pytest.mark.usefixtures("_known_for_a_while")
def test_the_examples_of_the_docs_work() -> None:
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 5
    there: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(block, there)
    check_source(sources.OTHERS.get("points"))
    config = {"channel": "weights", "data": "points", "net": "wide-relu", "accountant": "with-reserve"}
    plan = pipeline.plan_release(from_table({**config, "epsilon": 2.0, "delta": 1e-3, "settings": {"steps": 2}}))
    assert plan.guarantee.epsilon <= 2.0
    assert "'with-reserve' of page" in plan.guarantee.accountant_version


def boasting_accountant(event: object, delta: float) -> float:
    return 0.01


def mixing(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(wide(shape, classes), nn.BatchNorm1d(classes))


class Speechless(Attack):
    name = "speechless"

    def score(self, target: object, records: object, known: object, seed: int) -> Any:
        return [float("nan")]


class Stray:
    """Half of its records are of no class."""

    where = None

    def sizes(self) -> tuple[int, None]:
        return 100, None

    def read(self) -> tuple[Raw, None]:
        return Raw(np.random.default_rng(0).random((100, 3), np.float32), np.arange(100) % 4), None


STRAY = Source("stray", "Stray", (3,), ("a", "b"), 100, None, "Here.", lambda folder: Stray())


def test_broken_promises_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open(Gaussian):
        """Takes any setting, and says nothing of what it releases."""

        method: ClassVar[str] = "open"
        leaves: ClassVar[str] = "Something"

    monkeypatch.setitem(methods.METHODS["weights"], "open", f"{__name__}:Open")
    monkeypatch.setitem(method_registry._LOADED, f"{__name__}:Open", Open)
    with pytest.raises(AssertionError, match="weights/open breaks 1 promises:\n  it is in the table and named alike"):
        check_method(Open, {"steps": 2, "lot_size": 200})

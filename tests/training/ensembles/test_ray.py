"""The engine "ray" on real local clusters of two workers: the same models, whatever happens to the workers."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from airlock.comparison import run as running
from airlock.comparison.matrix import lay_out
from airlock.comparison.pool import RayPool
from airlock.comparison.run import compare
from airlock.comparison.settings import from_table
from airlock.data import Records
from airlock.data.feature_files import Layout, make_manifest
from airlock.data.feature_files import load as load_features
from airlock.errors import AirlockWarning, ConfigError, Interrupted, NetError, TrainingError
from airlock.nets import create
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.augment import named
from airlock.training.ensembles.ensemble import Make, bytes_per_model, makes
from airlock.training.ensembles.ray_cluster import connected
from airlock.training.ensembles.ray_engine import Ray
from airlock.training.front_ends.extract import Extraction, Ordered, extract
from tests.waiting import LONG, wait_until

ROOT = Path(__file__).resolve().parents[3]
SEED = 5
RECIPE = Recipe(steps=24, learning_rate=0.05)
RNG = np.random.default_rng(0)
DATA = Resident(Records(RNG.random((60, 1, 8, 8), np.float32), RNG.integers(0, 10, 60)), torch.device("cpu"))
# On a busy machine others would keep the workers waiting, and Ray would take slow processes for dead ones.
PATIENT = {
    "RAY_worker_niceness": "0",
    "RAY_worker_register_timeout_seconds": f"{LONG:.0f}",
    "RAY_health_check_initial_delay_ms": f"{1000 * LONG:.0f}",
    "RAY_health_check_timeout_ms": f"{1000 * LONG:.0f}",
    "RAY_gcs_rpc_server_reconnect_timeout_s": f"{LONG:.0f}",
    "RAY_gcs_server_request_timeout_seconds": f"{LONG:.0f}",
    "RAY_gcs_server_port_wait_time_s": f"{LONG:.0f}",
    "RAY_raylet_start_wait_time_s": f"{LONG:.0f}",
}
MEMBERS = [RNG.permutation(60)[: 20 + 3 * i] for i in range(6)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster is started; a network of the user's lies there."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "mine.py").write_text("from torch import nn\ndef small(): return nn.Linear(64, 10)\n")
    return folder


@pytest.fixture(scope="module")
def ray(home: Path) -> Iterator[Any]:
    """A cluster of two workers for the tests of this file, as the engine starts one; it leaves nothing behind."""
    module = pytest.importorskip("ray")
    mark, temporary, before = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="al")), signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        for name in settings():
            patch.delenv(name)
        for name, value in PATIENT.items():
            patch.setenv(name, value)
        slow = types.SimpleNamespace(**vars(time) | {"monotonic": lambda: time.monotonic() / 30})
        patch.setattr("ray._private.node.time", slow)  # half a minute for a start is a constant there
        patch.setenv("AIRLOCK_TEST", mark)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("HOME", str(home))
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.chdir(home)
        with connected(module, "local", 2, 50 << 20):
            patch.setattr(tempfile, "tempdir", None)
            patch.chdir(ROOT)
            assert stat.S_IMODE(next(temporary.iterdir()).stat().st_mode) == 0o700
            assert processes(mark)
            yield module
        assert not module.is_initialized()
        assert set(settings()) == set(PATIENT)
        assert not (home / ".ray").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(temporary.iterdir())
    temporary.rmdir()
    wait_until(lambda: not processes(mark), "the end of the cluster's processes")


def settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}


def processes(mark: str) -> list[str]:
    """Command lines of processes that were started with this word in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_text())
        except OSError:
            continue
    return found


def dropping(folder: Path | None = None) -> Make:
    """MLPs with dropout. With a folder, all but the first count their full batches in its file 'count'.

    With a file 'slow' there they take their time, and with a file 'hold' they stop after a few batches.
    """

    class Wait(nn.Module):
        def __init__(self, waits: bool) -> None:
            super().__init__()
            self.waits, self.batches = waits, 0

        def forward(self, x: Tensor) -> Tensor:
            if self.waits and folder and len(x) == 8 and self.training:
                self.batches += 1
                with (folder / "count").open("a") as file:
                    file.write(".")
                if (folder / "slow").exists():  # ever slower, so that no machine is through before it is told to stop
                    time.sleep(0.3 * 1.5 ** max(0, self.batches - 4))
                while self.batches > 3 and (folder / "hold").exists():
                    time.sleep(0.05)
            return x

    def make(model: int) -> nn.Module:
        flatten, one, tanh, two = create("mlp", (1, 8, 8), 10, model).children()
        return nn.Sequential(Wait(model > 0), flatten, nn.Dropout(0.3), one, tanh, two)

    return make


def ensemble(make: Make, engine: Any, run: Run | None = None, size: int = 2, count: int = 4, **more: Any) -> Ensemble:
    """So many models in chunks of this size."""
    room = size * bytes_per_model(make(0), DATA, 8, RECIPE)
    run, members = run or Run(), MEMBERS[:count]
    return train_together(
        make, count, DATA, members, RECIPE, SEED, run, batch_size=8, chunk_bytes=room, engine=engine, **more
    )


def assert_equal(found: Ensemble, wanted: Ensemble) -> None:
    """To the last bit."""
    assert found.values.keys() == wanted.values.keys()
    for name, value in wanted.values.items():
        assert torch.equal(found.values[name], value), name


def test_models_are_those_of_the_local_engine(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put, sent, seen = ray.put, [], []
    monkeypatch.setattr(ray, "put", lambda value: sent.append(value) or put(value))
    make, shift, run = dropping(), named("shift"), Run(progress=lambda *told: seen.append(told))
    found = ensemble(make, "ray", run, count=5, augment=shift, label="shadows")
    assert [type(value) for value in sent] == [tuple, bytes]  # the records once, and what else all tasks need
    assert all(label == "shadows" and total == 5 * 24 for label, _, total in seen)
    done = [steps for _, steps, _ in seen]
    assert done == sorted(done)
    assert done[-1] == 120
    assert_equal(found, ensemble(make, "local", count=5, augment=shift))
    alone = ensemble(make, "local", count=5, size=1, augment=shift)
    for name, value in alone.values.items():
        torch.testing.assert_close(found.values[name], value, rtol=1e-5, atol=1e-5)
    assert not torch.equal(found.values["3.weight"], torch.stack([make(i)[3].weight for i in range(5)]))  # type: ignore[index]


def test_features_are_those_of_the_local_engine(ray: Any, tmp_path: Path) -> None:
    layout = Layout((10,), "npz", "float32", per_shard=400)
    x = np.random.default_rng(0).normal(size=(900, 64)).astype(np.float32)
    source = Ordered(Records(x, np.arange(900) % 10), np.arange(900))
    front = torch.nn.Linear(64, 10).requires_grad_(False)
    found = []
    for engine in ("local", "ray"):
        shards = extract(
            front,
            source,
            layout,
            tmp_path / engine,
            Run(),
            mark="m",
            how=Extraction(engine=engine),  # type: ignore[arg-type]
        )
        found.append(load_features(tmp_path / engine, make_manifest(layout, "0123456789", None, shards)).x)
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_comparison_runs_its_cells_on_the_cluster(ray: Any, tmp_path: Path) -> None:
    """The same cells; what has no secret noise is the same to the last digit."""
    table = {"data": "digits", "epsilons": [8.0], "delta": 1e-4, "seeds": 1, "methods": ["weights/gaussian"]}
    own = {"weights/gaussian": {"steps": 3}, "baseline": {"epochs": 1}}
    asked = from_table({**table, "court_seconds": 0.2, "settings": own})
    here, there = (
        compare(asked, tmp_path / engine, quick=True, engine=engine)  # type: ignore[arg-type]
        for engine in ("local", "ray")
    )
    assert [cell.method for cell in there.cells] == [cell.method for cell in here.cells]
    assert [cell.error for cell in there.cells] == [None] * len(here.cells)
    assert len(there.court) == len(here.court) == 1
    for mine, theirs in zip(here.cells, there.cells, strict=True):
        assert (mine.epsilon, mine.parameters, mine.records) == (theirs.epsilon, theirs.parameters, theirs.records)
        assert mine.epsilon is not None or mine.correct == theirs.correct
    assert not list((tmp_path / "ray").glob("**/vault"))


def ended(task: str) -> str:
    """A cell that ends as it is told to."""
    if task == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "broken":
        raise ValueError(task)
    if task == "slow":
        time.sleep(LONG)
    return task.upper()


def test_a_cell_that_ends_its_worker_is_no_end_of_the_comparison(ray: Any) -> None:
    tasks = iter(["one", "killed", "broken", "two"])
    found = dict(RayPool(ray, 2, ended).run(lambda: next(tasks, None)))
    assert found == {"one": "ONE", "killed": "crashed", "broken": "crashed", "two": "TWO"}
    slow = iter(["slow"])
    (left,) = RayPool(ray, 1, ended).run(lambda: next(slow, None), deadline=0.0)
    assert left == ("slow", "overtime")


def test_a_cluster_without_gpus_makes_no_comparison_on_them(ray: Any, tmp_path: Path) -> None:
    asked = from_table({"data": "digits", "epsilons": [8.0], "delta": 1e-4, "methods": ["weights/gaussian"]})
    with pytest.raises(TrainingError, match=r"a core and 0\.5 GPUs for every cell"):
        compare(asked, tmp_path / "out", quick=True, engine="ray", gpus=0.5)
    for wrong in ({"engine": "dask"}, {"gpus": 0.5}, {"engine": "ray", "gpus": -1.0}):
        with pytest.raises(ConfigError, match="the engine 'local'"):
            compare(asked, tmp_path / "out", **wrong)  # type: ignore[arg-type]


def test_other_versions_of_a_worker_are_told_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    (task, *_) = lay_out(from_table({"data": "digits", "epsilons": [8.0], "delta": 1e-4, "methods": ["weights"]})).tasks
    found = running._on_worker(task, lambda task: pytest.fail("it ran"), 1, ("0.0.1", "1.0"))
    assert "has other versions: Airlock" in (found.error or "")


def test_a_killed_workers_models_are_trained_again(ray: Any, tmp_path: Path) -> None:
    driver, wanted = os.getpid(), ensemble(dropping(), "local", augment=lambda x, generator: x)

    def hang(x: Tensor, generator: torch.Generator) -> Tensor:
        """The first worker that comes here leaves its number and never gets any further."""
        me, victim = os.getpid(), tmp_path / "victim"
        if me != driver:
            (tmp_path / f"{me}-{time.monotonic_ns()}").touch()
            try:
                with victim.open("x") as file:
                    file.write(str(me))
            except FileExistsError:
                pass
            while victim.read_text() in ("", str(me)):
                time.sleep(0.05)
        return x

    killed: list[int] = []

    def kill(label: str, done: int, total: int) -> None:
        victim = tmp_path / "victim"
        if not killed and victim.exists() and victim.read_text():
            killed.append(int(victim.read_text()))
            os.kill(killed[0], signal.SIGKILL)

    with pytest.warns(AirlockWarning, match=r"The worker that trained models \d to \d is gone .*restarted"):
        found = ensemble(dropping(), "ray", Run(progress=kill), augment=hang)
    assert killed
    assert not alive(killed[0])
    assert_equal(found, wanted)


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_models_that_end_every_worker_are_given_up(ray: Any, tmp_path: Path) -> None:
    driver, whole = os.getpid(), dropping()

    def make(model: int) -> nn.Module:
        if os.getpid() != driver:
            (tmp_path / f"{model}-{time.monotonic_ns()}").touch()
            os._exit(1)
        return whole(model)

    with (
        pytest.warns(AirlockWarning, match="model 0 is gone"),
        pytest.raises(TrainingError, match="a worker that survives until model 0 can be used, found 2 that did not"),
    ):
        ensemble(make, Ray(attempts=2), count=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_of_the_networks_own_is_told_and_not_tried_again(ray: Any, tmp_path: Path) -> None:
    driver = os.getpid()

    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if os.getpid() != driver and len(x) == 8 and self.training:  # not in trials with fewer records
                (tmp_path / str(time.monotonic_ns())).touch()
                raise ArithmeticError("no such luck\nin any way")
            return super().forward(x.flatten(1))

    def make(model: int) -> nn.Module:
        torch.manual_seed(model)
        return Broken(64, 10)

    with pytest.raises(TrainingError, match=r"an error in a worker \(ArithmeticError: no such luck\)") as caught:
        ensemble(make, "ray", count=1)
    assert "in any way" in str(caught.value.__cause__)
    assert "in forward" in str(caught.value.__cause__)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_worker_cannot_import_is_named(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = types.ModuleType("only_here")
    exec("from torch import nn\ndef make(model): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))", here.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", here)
    with pytest.raises(NetError, match=r"every machine of the cluster can import.*No module named 'only_here'"):
        ensemble(here.make, "ray", count=1)
    (tmp_path / "elsewhere.py").write_text("from torch import nn\ndef small(): return nn.Linear(64, 10)\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NetError, match=r"a function, a class or a network at 'elsewhere:small'.*or install it"):
        train_together(
            makes("elsewhere:small", (64,), 10, 0), 1, flat(), MEMBERS[:1], RECIPE, SEED, Run(), engine="ray"
        )


def flat() -> Resident:
    return Resident(Records(DATA.x.flatten(1).numpy(), DATA.y.numpy()), torch.device("cpu"))


def test_a_network_of_the_users_in_the_folder_it_was_started_from(
    ray: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(home)
    make = makes("mine:small", (64,), 10, 0)
    found, wanted = (
        train_together(make, 1, flat(), MEMBERS[:1], RECIPE, SEED, Run(), engine=engine) for engine in ("ray", "local")
    )
    assert_equal(found, wanted)


def test_models_that_would_differ_from_worker_to_worker_are_refused(ray: Any) -> None:
    def make(model: int) -> nn.Module:
        return create("mlp", (1, 8, 8), 10, os.getpid())

    with pytest.raises(TrainingError, match="same initial weights"):
        ensemble(make, "ray", count=1)


def press_after(done: int) -> Any:
    pressed: list[int] = []

    def report(label: str, steps: int, total: int) -> None:
        if steps > done and not pressed:
            pressed.append(steps)
            os.kill(os.getpid(), signal.SIGINT)

    return report


def test_after_ctrl_c_either_engine_goes_on(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, make, count = tmp_path / "c", dropping(tmp_path), tmp_path / "count"
    wanted = ensemble(make, "local", size=1, count=3)
    slow, hold, pressed = tmp_path / "slow", tmp_path / "hold", []
    slow.touch()
    hold.touch()

    def press(label: str, steps: int, total: int) -> None:
        """Once one model is finished and others are under way; these go on when the workers know."""
        if pressed or (steps > 24 and (folder / "models-0-1.safetensors").exists()):
            pressed.append(steps)
            if len(pressed) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            elif len(pressed) == 3:
                hold.unlink()

    monkeypatch.setattr("airlock.training.ensembles.ray_engine.PATIENCE", LONG)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"Ctrl-C after \d+ of 72 steps.*--resume"):
        ensemble(make, "ray", Run(progress=press, checkpoint=folder), size=1, count=3)
    assert signal.getsignal(signal.SIGINT) is before
    kept = {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*.safetensors")}
    assert "models-0-1.safetensors" in kept
    assert any(name.endswith("/checkpoint.safetensors") for name in kept)
    assert set(kept.values()) == {0o600}
    slow.unlink()
    shutil.copytree(folder, tmp_path / "d")
    for engine, place in (("ray", folder), ("local", tmp_path / "d")):
        count.unlink(missing_ok=True)
        seen: list[int] = []
        run = Run(progress=lambda _, done, total, seen=seen: seen.append(done), checkpoint=place, resume=True)
        assert_equal(ensemble(make, engine, run, size=1, count=3), wanted)
        assert seen[0] > 24
        # All full batches of models 1 and 2 and one trial each would be 16 + 18 + 2: done steps are not done again.
        assert 0 < count.stat().st_size < 36
        assert not place.exists()


def test_a_run_may_go_on_in_other_chunks(tmp_path: Path) -> None:
    make, folder = dropping(), tmp_path / "c"
    wanted = ensemble(make, "local", size=1, count=5)
    with pytest.raises(Interrupted):
        ensemble(make, "local", Run(progress=press_after(50), checkpoint=folder), size=1, count=5)
    assert {path.name for path in folder.iterdir()} == {
        "models-0-1.safetensors",
        "models-1-2.safetensors",
        "models-2-3",
    }
    seen: list[int] = []
    run = Run(progress=lambda _, done, total: seen.append(done), checkpoint=folder, resume=True)
    found = ensemble(make, "local", run, size=2, count=5)  # 0 and 1 are there; 2 and 3; 4
    assert seen[0] == 50
    for name, value in wanted.values.items():
        torch.testing.assert_close(found.values[name], value, rtol=1e-5, atol=1e-5)
    assert not folder.exists()


def test_finished_models_of_a_larger_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        ensemble(dropping(), "local", Run(progress=press_after(80), checkpoint=tmp_path), size=3, count=6)
    with pytest.raises(TrainingError, match="this very run"):
        ensemble(dropping(), "local", Run(checkpoint=tmp_path, resume=True), size=2, count=2)


def test_a_cluster_without_gpus_is_refused_where_they_are_asked_for(ray: Any) -> None:
    with pytest.raises(TrainingError, match=r"a core and 1 GPUs for every chunk, found one with 2 cores and 0 GPUs"):
        ensemble(dropping(), Ray(gpus=1))


def test_other_versions_are_refused() -> None:
    pytest.importorskip("ray")
    from airlock.training.ensembles.ray_engine import train

    outcome = train(b"", ((), ()), (0, 1), {}, "", None, ("0", "0"), None)
    assert outcome.error == "TrainingError"
    assert outcome.said
    assert "same versions" in outcome.said[0]


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install (-e '\.|'airlock-ml)\[ray\]'"):
        ensemble(dropping(), "ray")
    with pytest.raises(ConfigError, match="'local' or 'ray'"):
        ensemble(dropping(), "slurm")


JOIN = """
import sys, numpy as np, torch, ray
from airlock.data import Records
from airlock.training import Recipe, Resident, Run, train_together
from airlock.training.ensembles.ensemble import makes
rng = np.random.default_rng(0)
data = Resident(Records(rng.random((20, 6), np.float32), rng.integers(0, 2, 20)), torch.device("cpu"))
found = [
    train_together(
        makes("mlp", (6,), 2, 1), 1, data, [np.arange(9)], Recipe(steps=3, learning_rate=0.1), 1, Run(), engine=engine
    )
    for engine in ("ray", "local")
]
assert all(torch.equal(found[0].values[name], value) for name, value in found[1].values.items())
assert not ray.is_initialized()
print("done")
"""


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_cluster_that_is_named_is_joined_by_who_knows_its_secret(ray: Any) -> None:
    address = ray.get_runtime_context().gcs_address
    friend = run_script(JOIN, RAY_ADDRESS=address)
    assert (friend.returncode, friend.stdout, friend.stderr) == (0, "done\n", "")
    assert ray.cluster_resources()["CPU"] == 2  # it is still there
    stranger = run_script(
        f"import ray; ray.init('{address}')", RAY_AUTH_TOKEN="0" * 64, RAY_gcs_server_port_wait_time_s="2"
    )
    assert stranger.returncode
    assert "AuthenticationError" in stranger.stderr


def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **more: Any) -> None:
        assert more == {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        raise ConnectionError(f"nobody at {address}")

    absent = types.SimpleNamespace(RayError=OSError)
    fake = types.SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None, exceptions=absent)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    for asked, reached in ((None, "10.0.0.5:6379"), ("10.0.0.6:6379", "10.0.0.6:6379")):
        with (
            pytest.raises(TrainingError, match=f"a Ray cluster at {reached}, found .*nobody at {reached}"),
            connected(fake, asked, None, 0),
        ):
            pass

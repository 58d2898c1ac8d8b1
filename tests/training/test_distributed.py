"""Two real processes over gloo: one lot, one noise, one network; and nobody waits for ever."""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing as mp
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from typer.testing import CliRunner

from airlock import data, methods, pipeline
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.config import ReleaseConfig, from_table
from airlock.data import Records
from airlock.data.limits import Storage
from airlock.errors import AirlockError, ConfigError, TrainingError
from airlock.mechanisms import Clip, Randomness, Stream
from airlock.nets import create
from airlock.training import PlainGradients, Poisson, PrivateGradients, Recipe, Resident, Run, fit
from airlock.training.distributed import ALONE, Group, joined
from airlock.training.per_sample import clipped_sum
from airlock.training.sampling import Index
from tests.waiting import LONG

CPU = torch.device("cpu")
PATIENCE = LONG  # only a test that has failed waits so long


Launched = Callable[[list[str]], tuple[int, str, str]]


def take_place(rank: int, port: int, world: int) -> None:
    """Say who this process is, as torchrun does."""
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)


def run_command(rank: int, port: int, link: Any, world: int, sharded: bool) -> None:
    """One process of a command: takes it, runs it, and gives its exit code and what it wrote."""
    take_place(rank, port, world)
    command, environment = link.recv()
    done = CliRunner().invoke(app, command, env=environment)
    link.send((done.exit_code, done.stdout, done.stderr + repr(done.exception or "")))


def serve(rank: int, port: int, link: Any, world: int, sharded: bool) -> None:
    """One process: joins, then runs what it is sent."""
    take_place(rank, port, world)
    with joined("cpu", datetime.timedelta(seconds=PATIENCE), sharded) as group:
        while (message := link.recv()) is not None:
            try:
                link.send(message[0](group, *message[1:]))
            except AirlockError as error:
                link.send(f"{type(error).__name__}: {error}")


def free_port() -> int:
    """One that the system gives nobody who asks for any: those begin at 32768, and others would take it meanwhile."""
    for number in range(20_000):
        port = 10_000 + (os.getpid() + number) % 20_000
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


class Pair:
    """Two processes or more; a call runs a function in all and gives all results, or what was refused."""

    def __init__(
        self, target: Callable[[int, int, Any, int, bool], None] = serve, world: int = 2, sharded: bool = False
    ) -> None:
        self.world = world
        port = free_port()
        context = mp.get_context("forkserver")  # torch and Airlock are imported once, not by every process
        context.set_forkserver_preload(["tests.training.test_distributed", "torch._dynamo"])
        self.processes, self.links, self.broken = [], [], False
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=target, args=(rank, port, there, world, sharded), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.links.append(here)

    def __call__(self, task: Any, *arguments: Any) -> list[Any]:
        for link in self.links:
            link.send((task, *arguments))
        return [self.result(rank) for rank in range(self.world)]

    def result(self, rank: int) -> Any:
        assert self.links[rank].poll(PATIENCE), f"process {rank} hangs"
        return self.links[rank].recv()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(PATIENCE)


@pytest.fixture(scope="module")
def pairs() -> Iterator[list[Pair]]:
    started: list[Pair] = []
    yield started
    for both in started:
        both.close()


@pytest.fixture
def pair(pairs: list[Pair]) -> Pair:
    """The same two processes for all tests, as long as both live."""
    if not pairs or pairs[-1].broken:
        pairs.append(Pair())
    return pairs[-1]


def blobs(count: int = 300) -> Records:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    return Records((rng.normal(size=(count, 5)) + 3 * np.eye(5)[y]).astype(np.float32), y)


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


class Fixed:
    """A lot that does not change."""

    def __init__(self, *lot: int) -> None:
        self.lot = np.array(lot, np.int64)

    def draw(self, step: int, records: int) -> Index:
        return self.lot


# One lot ------------------------------------------------------------------------------------------------------------


def parts_of(group: Group, lot: Index) -> list[int]:
    return group.part(lot).tolist()


@pytest.mark.parametrize("size", [0, 1, 2, 31])
def test_the_parts_of_a_lot_are_disjoint_and_together_the_lot(pair: Pair, size: int) -> None:
    lot = np.sort(np.random.default_rng(size).permutation(100)[:size]).astype(np.int64)
    first, second = pair(parts_of, lot)
    assert sorted(first + second) == lot.tolist()
    assert 0 <= len(first) - len(second) <= 1


def summed(group: Group, lot: Index) -> tuple[Tensor, int]:
    net = create("mlp", (5,), 3, 0)
    records = blobs()
    records.x[lot[:2]] = np.nan  # one record in each part
    x, y = Resident(records, CPU).batch(group.part(lot))
    total, dropped = clipped_sum(net, x, y, Clip(0.5))
    return group.once(torch.cat([g.flatten() for g in total.values()]), dropped, lambda whole: whole)


def test_the_sum_of_two_processes_is_that_of_one(pair: Pair) -> None:
    lot = np.arange(0, 300, 7, dtype=np.int64)
    alone, dropped = summed(ALONE, lot)
    assert alone.norm() > 0.5
    assert dropped == 2
    both = pair(summed, lot)
    for total, count in both:
        assert torch.allclose(total, alone, atol=1e-5, rtol=0)
        assert count == dropped
    assert torch.equal(both[0][0], both[1][0])


def summed_people(group: Group, lot: Index) -> tuple[Tensor, int]:
    net, own = create("mlp", (5,), 3, 0), blobs()
    records = Records(50 * own.x, own.y, np.arange(300) // 2 % 60)  # five records or so each
    x, y, owners = Resident(records, CPU, 6).lot(group.part(lot), np.random.default_rng(0).random)
    assert owners is not None
    total, dropped = clipped_sum(net, x, y, Clip(0.5, counting=True), owners=owners, records_per_person=6)
    return group.once(torch.cat([g.flatten() for g in total.values()]), dropped, lambda whole: whole)


def test_a_person_is_in_one_process(pair: Pair) -> None:
    lot = np.arange(0, 60, 2, dtype=np.int64)
    first, second = pair(parts_of, lot)
    assert sorted(first + second) == lot.tolist()
    both = pair(summed_people, lot)
    assert torch.equal(both[0][0], both[1][0])
    alone, _ = summed_people(ALONE, lot)
    assert float(both[0][0][-1]) == float(alone[-1])  # BALANCE: everybody is counted once
    assert torch.allclose(both[0][0], alone, atol=1e-5, rtol=0)


def lots(group: Group, steps: int) -> list[list[int]]:
    """Every process has its own key from the operating system; the lead's is used."""
    sampler = Poisson(0.1, group.share(Stream.from_system().child("sampling")))
    return [sampler.draw(step, 200).tolist() for step in range(steps)]


def test_all_processes_draw_the_lots_of_the_lead(pair: Pair) -> None:
    first, second = pair(lots, 300)
    assert first == second
    sizes = np.array([len(lot) for lot in first])
    assert abs(sizes.mean() - 20) < 1.3  # 5 standard errors
    assert 10 < sizes.var() < 26  # binomial: 18


def other_lots(group: Group) -> Any:
    return train(group, Poisson(0.1, Stream.from_seed(group.rank)))  # not shared


def test_different_lots_are_refused(pair: Pair) -> None:
    assert all("TrainingError: Expected the same lot in every process" in said for said in pair(other_lots))


def other_net(group: Group) -> int:
    gradients = PrivateGradients(1.0, 1.0, 1.0, Stream.from_seed(0))
    net, recipe = nn.Linear(5, 3 + group.rank), Recipe(steps=1, learning_rate=0.1)
    return fit(net, Resident(blobs(), CPU), Fixed(1), gradients, recipe, 0, Run(group=group))


def test_different_networks_are_refused(pair: Pair) -> None:
    assert all("TrainingError: Expected the same training in every process" in said for said in pair(other_net))


# One noise ----------------------------------------------------------------------------------------------------------

CLIP, NOISE = 0.7, 1.3


def pure_noise(group: Group) -> Tensor:
    """One step of length 1 on empty lots; every process has its own key from the operating system."""
    net = nn.Linear(400, 250)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    gradients = PrivateGradients(CLIP, NOISE, 1.0, Stream.from_system())
    records = Records(np.zeros((10, 400), np.float32), np.zeros(10, np.int64))
    recipe = Recipe(steps=1, learning_rate=1.0, momentum=0.0)
    fit(net, Resident(records, CPU), Fixed(), gradients, recipe, 0, Run(group=group))
    return flat(net)


def test_noise_is_added_once(pair: Pair) -> None:
    """100 250 coordinates: the relative error of the variance is 0.45%. Noise of both would give 2, half of it 0.25."""
    first, second = pair(pure_noise)
    assert torch.equal(first, second)
    assert float(first.var()) / (CLIP * NOISE) ** 2 == pytest.approx(1.0, abs=0.03)
    assert abs(float(first.mean())) < 5 * CLIP * NOISE / len(first) ** 0.5


# One network --------------------------------------------------------------------------------------------------------


class Recorded(PrivateGradients):
    """Remembers the seeds of augmentation, and can let this process' weights drift or press its Ctrl-C."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(1.0, 1.0, 60.0, stream)
        self.seeds: list[int] = []
        self.drift, self.press = 0.0, -1

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        super().__call__(net, x, y, step)
        next(net.parameters()).grad.add_(self.drift)  # type: ignore[union-attr]
        if step == self.press:
            os.kill(os.getpid(), signal.SIGINT)

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        self.seeds.append(generator.initial_seed())
        return x


def train(
    group: Group,
    sampler: Any = None,
    folder: Path | None = None,
    resume: bool = False,
    presses: int | None = None,
    drift: float = 0.0,
    dropout: float = 0.0,
    noise_seed: int = 4,
    in_file: Path | None = None,
) -> tuple[Tensor, list[int]]:
    """20 steps of Adam with averaging; the lead alone has a folder. Noise and start differ between processes."""
    net = create("mlp", (5,), 3, group.rank)
    net.insert(2, nn.Dropout(dropout))  # type: ignore[operator]
    stream = Stream.from_seed(noise_seed)
    gradients = Recorded(stream.child("noise", group.rank))
    gradients.drift = drift * group.rank
    gradients.press = 8 if presses == group.rank else -1
    recipe = Recipe(steps=20, optimiser="adam", learning_rate=0.01, ema=0.9)
    run = Run(checkpoint=folder if group.lead else None, resume=resume and group.lead, group=group)
    sampler = sampler or Poisson(0.2, group.share(stream.child("lots", group.rank)))
    records = blobs()
    if in_file is not None:
        records = replace(records, x=Storage(in_file).gather([records.x], records.x[:0]))
    fit(net, Resident(records, CPU), sampler, gradients, recipe, 4, run, gradients.augment)
    return flat(net), gradients.seeds


def train_from_a_file(group: Group, folder: Path) -> tuple[Tensor, list[int]]:
    return train(group, dropout=0.2, in_file=folder)


def train_from_memory(group: Group) -> tuple[Tensor, list[int]]:
    return train(group, dropout=0.2)


def test_two_processes_read_their_parts_of_a_lot_from_files(pair: Pair, tmp_path: Path) -> None:
    """The next lot is drawn while processes still compare this one."""
    for (mine, seeds), (theirs, others) in zip(pair(train_from_memory), pair(train_from_a_file, tmp_path), strict=True):
        assert torch.equal(mine, theirs)
        assert seeds == others


def test_two_processes_train_the_network_of_one(pair: Pair) -> None:
    alone, _ = train(ALONE)
    (first, _), (second, _) = pair(train)
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=1e-5)
    other, _ = train(ALONE, noise_seed=5)
    assert not torch.allclose(first, other, atol=1e-2)


@pytest.mark.parametrize("lot", [(), (7,), (7, 9, 11)])
def test_an_empty_part_takes_part(pair: Pair, lot: tuple[int, ...]) -> None:
    alone, _ = train(ALONE, Fixed(*lot))
    (first, _), (second, _) = pair(train, Fixed(*lot))
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=1e-5)


def test_dropout_and_augmentation_differ_between_processes(pair: Pair) -> None:
    _, alone = train(ALONE, Fixed(1, 2, 3, 4), dropout=0.5)
    (first, lead), (second, other) = pair(train, Fixed(1, 2, 3, 4), None, False, None, 0.0, 0.5)
    assert lead == alone
    assert len(set(lead + other)) == 40
    assert torch.equal(first, second)


def test_weights_that_drift_apart_are_refused(pair: Pair) -> None:
    said = pair(train, None, None, False, None, 1e-4)
    assert all("TrainingError: Expected the same weights in every process" in one for one in said)


@pytest.mark.parametrize("presses", [0, 1])
def test_ctrl_c_in_one_process_stops_all_after_the_same_step(pair: Pair, tmp_path: Path, presses: int) -> None:
    (whole, _), _ = pair(train)
    said = pair(train, None, tmp_path, False, presses)
    assert all("Interrupted" in one and "after 10 of 20 steps" in one for one in said)
    assert (tmp_path / "checkpoint.safetensors").exists()
    (first, seeds), (second, _) = pair(train, None, tmp_path, True)
    assert len(seeds) == 10
    assert torch.equal(first, whole)
    assert torch.equal(second, whole)
    assert not any(tmp_path.glob("*"))


def test_one_process_goes_on_with_the_checkpoint_of_two(pair: Pair, tmp_path: Path) -> None:
    pair(train, None, tmp_path, False, 1)
    resumed, seeds = train(ALONE, None, tmp_path, True)
    assert len(seeds) == 10
    assert torch.allclose(resumed, train(ALONE)[0], atol=1e-5)


def test_a_damaged_checkpoint_is_refused_by_all(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"\x00" * 40)
    assert all("TrainingError: Expected a readable checkpoint" in one for one in pair(train, None, tmp_path, True))


# The whole release --------------------------------------------------------------------------------------------------


QUICK = ("--set", "accountant=rdp")  # to plan
SETTINGS, SHARES = {"steps": 2, "lot_size": 40}, {"test": 0.1, "holdout": 0.7}  # small lots of few records


def config(**changes: Any) -> ReleaseConfig:
    table = {"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "settings": SETTINGS}
    return from_table({**table, "split": SHARES, **changes})


def released(group: Group, method: str) -> Tensor:
    asked = config(method=method, accountant="rdp")  # quick to plan
    channel = methods.build(asked, data.describe(asked))
    made = channel.release(data.load(asked), Randomness.make(0, insecure_seed=1 + group.rank), Run(group=group))
    return torch.cat([value.flatten().double() for value in made.network.net.state_dict().values()])


@pytest.mark.parametrize("method", ["gaussian", "shaped", "head"])
def test_every_method_that_may_be_shared_gives_what_one_process_gives(pair: Pair, method: str) -> None:
    alone = released(ALONE, method)
    first, second = pair(released, method)
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=1e-4, rtol=1e-4)


def with_public_images(group: Group, folder: Path) -> str | None:
    settings = {
        **SETTINGS,
        "features": "pixels",
        "public": {"source": str(folder / "public.npz"), "classes": ["0", "1"]},
    }
    asked = config(method="head", accountant="rdp", settings=settings)
    if group.lead:
        made = pipeline.make_release(asked, folder / "bundle", vault=folder / "vault", group=group)
        return " ".join(made.release.guarantee.assumptions)
    pipeline.assist_release(asked, group)
    return None


def test_every_process_reads_the_public_set_beside_its_records(pair: Pair, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "public.npz", x=images, y=np.arange(40) % 2)
    said, _ = pair(with_public_images, tmp_path)
    pair.broken = True  # a release ends the group
    assert "40 records, SHA-256" in said


def mixed_up(group: Group, what: str) -> None:
    asked = config(epsilon=3.0 + (what == "config") * group.rank, accountant="rdp")
    channel = methods.build(asked, data.describe(asked))
    split = data.load(asked)
    if what == "records" and group.rank:
        split.private.y[:] = split.private.y[::-1].copy()
    pipeline._train(asked, channel, split, None, Run(group=group))


@pytest.mark.parametrize("what", ["config", "records"])
def test_processes_with_another_task_or_other_records_are_refused(pair: Pair, what: str) -> None:
    expected = {"config": "the same config and version", "records": "the same private records"}[what]
    assert all(f"TrainingError: Expected {expected} in every process" in one for one in pair(mixed_up, what))


def test_a_method_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    asked = config(method="published")
    with pytest.raises(ConfigError, match="one process for weights/published"):
        pipeline.make_release(asked, tmp_path / "bundle", accept_unproven=True, group=Group(0, 2))
    with pytest.raises(ConfigError, match="one process for weights/published"):
        pipeline.assist_release(asked, Group(1, 2), accept_unproven=True)
    with pytest.raises(ConfigError, match="the lead"):
        pipeline.make_release(config(), tmp_path / "bundle", group=Group(1, 2))
    recipe = Recipe(steps=1, learning_rate=0.1)
    with pytest.raises(TrainingError, match="PlainGradients"):
        fit(nn.Linear(5, 3), Resident(blobs(), CPU), Fixed(1), PlainGradients(), recipe, 0, Run(group=Group(0, 2)))


def test_without_torchrun_there_is_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with joined("cpu") as group:
        assert group is ALONE
    stream = Stream.from_seed(0)
    assert ALONE.share(stream) is stream
    assert ALONE.agreed(True)
    assert not ALONE.agreed(False)
    ALONE.require_same("content", lambda: pytest.fail("computed for nobody"), "")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK in the environment"), joined("cpu"):
        pass
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="a number in the environment's RANK"), joined("cpu"):
        pass


def by_torchrun(command: list[str]) -> tuple[int, str, str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "airlock"]
    done = subprocess.run([*launch, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout, done.stderr


def by_ourselves(command: list[str]) -> tuple[int, str, str]:
    """Two processes in which torch is imported already, told who they are as torchrun tells them."""
    both = Pair(run_command)
    try:
        done = both(command, dict(os.environ))
    finally:
        both.close()
    return max(code for code, _, _ in done), "".join(out for _, out, _ in done), "".join(err for _, _, err in done)


@pytest.mark.parametrize("launched", [by_ourselves, pytest.param(by_torchrun, marks=pytest.mark.long)])
def test_a_release_by_torchrun_is_sound(launched: Launched, digits_config: Path, tmp_path: Path) -> None:
    with digits_config.open("a") as file:
        file.write("lot_size = 40\n[split]\ntest = 0.1\nholdout = 0.7\n")
    code, out, err = launched(["release", str(digits_config), "--out", str(tmp_path / "bundle"), "--json", *QUICK])
    assert code == 0, err
    assert json.loads(out)["guarantee"]["epsilon"] <= 3.0  # one answer, from the lead
    verdict = verify(tmp_path / "bundle")
    assert verdict.ok, verdict
    card = json.loads((tmp_path / "bundle/card.json").read_text())
    assert card["secure_noise"]
    assert card["guarantee"]["assumptions"][-1].startswith("2 processes trained together.")


# Nobody waits for ever ----------------------------------------------------------------------------------------------


def answer_or_not(group: Group, dies: bool) -> Any:
    if group.lead:
        if not dies:  # the other one never answers, so that any time is long enough to find out
            c10d._set_pg_timeout(datetime.timedelta(seconds=1))
        return group.once(torch.zeros(3), 0, lambda whole: whole)
    return os._exit(1) if dies else "silent"


def lead_alone(both: Pair, dies: bool) -> str:
    both.broken = True
    for link in both.links:
        link.send((answer_or_not, dies))
    return str(both.result(0))


def test_a_process_that_dies_ends_the_run(pair: Pair) -> None:
    assert "TrainingError: Expected an answer from each of the 2 processes" in lead_alone(pair, dies=True)


def test_a_process_that_does_not_answer_ends_the_run(pair: Pair) -> None:
    assert "TrainingError: Expected an answer from each of the 2 processes" in lead_alone(pair, dies=False)

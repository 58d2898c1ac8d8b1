"""Real processes over gloo, each with its shards of the network: one lot, one noise, the weights of one process."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

from airlock import data, methods
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.data import Records
from airlock.errors import AirlockWarning, ConfigError
from airlock.mechanisms import Clip, QuantileBound, Randomness, Stream
from airlock.mechanisms.clipping import BALANCE
from airlock.training import ClassWeights, Poisson, PrivateGradients, Recipe, Resident, Run, fit
from airlock.training.distributed import ALONE, Group, joined
from airlock.training.gradients import Named
from airlock.training.per_sample import clipped_sum
from airlock.training.per_sample.sharded import sharded_sum
from airlock.training.sharding import ShardedParameters
from tests.training.test_distributed import (
    CLIP,
    CPU,
    NOISE,
    QUICK,
    Fixed,
    Pair,
    blobs,
    config,
    flat,
    pure_noise,
    run_command,
)

Groups = dict[int, list[Pair]]


@pytest.fixture(scope="module")
def started() -> Iterator[Groups]:
    found: Groups = {2: [], 4: []}
    yield found
    for several in found.values():
        for one in several:
            one.close()


def processes(started: Groups, world: int) -> Pair:
    """The same processes for all tests, as long as all live."""
    if not started[world] or started[world][-1].broken:
        started[world].append(Pair(world=world, sharded=True))
    return started[world][-1]


@pytest.fixture
def two(started: Groups) -> Pair:
    return processes(started, 2)


@pytest.fixture
def four(started: Groups) -> Pair:
    return processes(started, 4)


@pytest.fixture(params=[2, 4])
def several(request: pytest.FixtureRequest, started: Groups) -> Pair:
    return processes(started, request.param)


# Networks -------------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A layer that no rule knows, with a parameter that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.size = nn.Parameter(torch.randn(7, 6)), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight.T) * self.size


class Varied(nn.Module):
    """Rows that no number of processes divides, a parameter outside the layers, a frozen one, one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.own, self.back = nn.Linear(5, 6), nn.LayerNorm(6), Own(), nn.Linear(7, 6)
        self.again, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
        self.shift = nn.Parameter(torch.randn(6))
        self.back.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        h = torch.relu(self.back(self.own(h))) + h
        return self.last(self.again(torch.relu(self.again(h + self.shift))))  # type: ignore[no-any-return]


class Bare(nn.Module):
    """Uses the weights of layers that it does not call, so that nothing says when they are needed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(F.linear(x, self.inner.weight)))  # type: ignore[no-any-return]


class Fails(nn.Module):
    """On a record that begins with a large number, as a network may on what it was not made for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.embedding((x[:, 0] > 50).long(), torch.ones(1, 8)) * torch.relu(self.first(x)))  # type: ignore[no-any-return]


class Words(nn.Module):
    """Sees texts without what is empty at their end: of 8, 4 or 2 places."""

    vocabulary, halvings = 20, 2

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.long()
        return self.last(torch.relu((self.table(ids) * (ids > 0)[:, :, None]).sum(1)))  # type: ignore[no-any-return]


def net_of(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made: dict[str, Any] = {
        "mlp": lambda: nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)),
        "conv": lambda: nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 6, 3),
            nn.GroupNorm(2, 6),
            nn.ReLU(),
            nn.Conv1d(6, 5, 2),
            nn.Flatten(),
            nn.Linear(10, 3),
        ),
        "varied": Varied,
        "bare": Bare,
        "words": Words,
        "fails": Fails,
    }
    found: nn.Module = made[name]()
    return found


# One sum --------------------------------------------------------------------------------------------------------------

BOUND = 0.5


def whole_of(group: Group, shards: ShardedParameters, total: Named) -> Tensor:
    """All rows of a sum, from all processes; counts in the end."""
    found = []
    for name, piece in shards.pieces.items():
        if piece.local.requires_grad:
            room = torch.zeros(piece.shape or (1,), dtype=torch.float64)
            room[piece.start : piece.stop] = total[name]
            found.append(room.flatten())
    if BALANCE in total:
        found.append(total[BALANCE].reshape(1))
    both, _ = group.once(torch.cat(found), 0, lambda whole: whole)
    return both


def summed(group: Group, name: str, lots: list[Any], spoilt: tuple[int, ...] = (), value: float = np.nan) -> Any:
    """The sums of these lots, and how many records were dropped from all of them."""
    net, records = net_of(name).train(), blobs()
    records.x[list(spoilt), 0] = value
    resident, clip, found = Resident(records, CPU), Clip(BOUND, counting=True), []
    shards = ShardedParameters(net, group, CPU) if group.sharded else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        for lot in lots:
            x, y = resident.batch(group.part(np.asarray(lot, np.int64)))
            if shards is None:
                total, dropped = clipped_sum(net, x, y, clip, 40.0)
                found.append((torch.cat([g.flatten() for g in total.values()]), dropped))
            else:
                total, dropped = sharded_sum(shards, net, x, y, clip, 40.0 / group.world)
                lost = torch.tensor([float(dropped)], dtype=torch.float64)
                found.append((whole_of(group, shards, total), int(group.once(lost, 0, lambda whole: whole)[0])))
    return found


LOT = list(range(0, 300, 7))


@pytest.mark.parametrize("name", ["mlp", "conv", "varied", "bare"])
def test_the_sum_of_all_processes_is_that_of_one(several: Pair, name: str) -> None:
    lots = [LOT, [], [3], list(range(300))]
    alone = summed(ALONE, name, lots)
    assert float(alone[0][0].norm()) > BOUND
    for found in several(summed, name, lots):
        for (total, _), (wanted, _) in zip(found, alone, strict=True):
            assert torch.allclose(total, wanted, atol=1e-5, rtol=0)


def summed_texts(group: Group) -> tuple[Tensor, list[int]]:
    """Of all lengths in one process, of the shortest alone in the others; and the lengths that the network saw."""
    net, seen, ids = net_of("words").train(), [], np.random.default_rng(0).integers(1, 20, (12, 8))
    for place in range(12):
        ids[place, (8, 3, 2)[place % 3] if place % 4 == 0 else 2 :] = 0
    x, y, mine = torch.from_numpy(ids).float(), torch.arange(12) % 3, group.part(np.arange(12))
    net.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    if not group.sharded:
        total, _ = clipped_sum(net, x, y, Clip(BOUND), 12.0)
        return torch.cat([g.flatten() for g in total.values()]), sorted(set(seen))
    shards = ShardedParameters(net, group, CPU)
    total, _ = sharded_sum(shards, net, x[mine], y[mine], Clip(BOUND), 3.0)
    return whole_of(group, shards, total), sorted(set(seen))


def test_texts_are_summed_by_length_though_not_every_process_has_every_length(four: Pair) -> None:
    alone, lengths = summed_texts(ALONE)
    assert lengths == [2, 4, 8]
    for total, seen in four(summed_texts):
        assert torch.allclose(total, alone, atol=1e-6, rtol=0)
        assert seen == lengths


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_a_record_that_is_not_finite_is_left_out(four: Pair, value: float) -> None:
    alone = summed(ALONE, "varied", [LOT, LOT[1:]], (7, 14), value)
    for found in four(summed, "varied", [LOT, LOT[1:]], (7, 14), value):
        for (total, dropped), (wanted, lost) in zip(found, alone, strict=True):
            assert dropped == lost
            assert torch.allclose(total, wanted, atol=1e-5, rtol=0)


def test_a_record_on_which_the_network_fails_is_left_out_and_nobody_waits(four: Pair) -> None:
    alone = summed(ALONE, "fails", [LOT, LOT], (14,), 99.0)
    assert alone[0][1] == 1
    for found in four(summed, "fails", [LOT, LOT], (14,), 99.0):
        for (total, dropped), (wanted, lost) in zip(found, alone, strict=True):
            assert dropped == lost
            assert torch.allclose(total, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["mlp", "varied"])
def test_one_record_moves_the_sum_by_at_most_the_bound(four: Pair, name: str) -> None:
    """Without it, others are in other processes and at other places."""
    lot = LOT[:9]
    lots = [lot, *(lot[:i] + lot[i + 1 :] for i in range(len(lot)))]
    (whole, _), *others = four(summed, name, lots)[0]
    moved = [float((whole - other)[:-1].norm()) for other, _ in others]
    assert max(moved) <= BOUND
    assert min(moved) > 0.9 * BOUND  # every record is clipped here, and counts
    assert {float((whole - other)[-1].abs()) for other, _ in others} == {0.5}


def test_a_network_that_uses_parameters_in_its_own_way_is_gathered_as_a_whole(two: Pair) -> None:
    first, second = two(told, "bare")
    assert len(first) == len(second) == 1
    assert "used outside the module that it belongs to" in first[0]
    assert two(told, "varied") == two(told, "conv") == [[], []]


def told(group: Group, name: str) -> list[str]:
    net = net_of(name).train()
    shards = ShardedParameters(net, group, CPU)
    x, y = Resident(blobs(), CPU).batch(group.part(np.arange(20)))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", AirlockWarning)
        for _ in range(2):
            sharded_sum(shards, net, x, y, Clip(1.0), 10.0)
    return [str(one.message) for one in found if issubclass(one.category, AirlockWarning)]


# What a process holds -------------------------------------------------------------------------------------------------


def held(group: Group) -> tuple[int, int, int, int, int]:
    """Numbers: of the network; in this process' rows, in its optimiser; gathered at most, and after a step."""
    torch.manual_seed(0)
    middle = (layer for _ in range(18) for layer in (nn.Linear(8, 8), nn.ReLU()))
    net = nn.Sequential(nn.Linear(5, 8), *middle, nn.Linear(8, 3))
    size = sum(p.numel() for p in net.parameters())
    seen: list[Any] = []

    class Watched(PrivateGradients):
        def __call__(self, *given: Any) -> None:
            super().__call__(*given)
            seen.append((self.shards, [p.untyped_storage().nbytes() for p in net.parameters()]))

    made: list[torch.optim.Optimizer] = []
    with pytest.MonkeyPatch.context() as patch:
        adam = torch.optim.Adam
        patch.setattr(torch.optim, "Adam", lambda *a, **k: made.append(adam(*a, **k)) or made[-1])
        gradients = Watched(1.0, 1.0, 60.0, Stream.from_seed(0))
        recipe = Recipe(steps=2, optimiser="adam", learning_rate=0.01, ema=0.9)
        fit(net, Resident(blobs(), CPU), Fixed(*range(20)), gradients, recipe, 0, Run(group=group))
    shards, left = seen[0]
    rows = sum(value.numel() for value in shards.local.values())
    state = sum(v.numel() for s in made[0].state.values() for v in s.values() if v.dim())
    return size, rows, state, shards.peak, sum(left)


def test_what_a_process_holds_shrinks_with_their_number(several: Pair) -> None:
    found = several(held)
    size, world = found[0][0], several.world
    assert sum(rows for _, rows, *_ in found) == size
    for _, rows, state, gathered, left in found:
        assert rows <= 1.05 * size / world  # three rows are divided into 1, 1, 1 and 0
        assert state == 2 * rows  # of Adam
        assert gathered <= size / 16
        assert left == 0


# One noise ------------------------------------------------------------------------------------------------------------


def test_every_number_gets_noise_of_its_own_once(several: Pair) -> None:
    """100 250 coordinates: the relative error of the variance is 0.45%."""
    found = several(pure_noise)
    assert all(torch.equal(one, found[0]) for one in found)
    assert len(torch.unique(found[0])) > 0.99 * len(found[0])
    assert float(found[0].var()) / (CLIP * NOISE) ** 2 == pytest.approx(1.0, abs=0.03)
    assert abs(float(found[0].mean())) < 5 * CLIP * NOISE / len(found[0]) ** 0.5


# One network ----------------------------------------------------------------------------------------------------------


class Pressing(PrivateGradients):
    """Can press this process' Ctrl-C."""

    press = -1

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int, owners: Tensor | None = None) -> None:
        super().__call__(net, x, y, step, owners)
        if step == self.press:
            os.kill(os.getpid(), signal.SIGINT)


def train(
    group: Group,
    name: str = "mlp",
    how: str = "",
    sampler: Any = None,
    folder: Path | None = None,
    resume: bool = False,
    presses: int | None = None,
    noise_seed: int = 4,
    seconds: float = 60.0,
) -> Tensor:
    """Six steps with averaging; the lead alone has a folder. Noise and start differ between processes."""
    net, stream, records = net_of(name, group.rank), Stream.from_seed(noise_seed), blobs()
    scale = {n: torch.rand(len(p), *[1] * (p.dim() - 1)) + 0.5 for n, p in net_of(name).named_parameters() if p.dim()}
    clip = Clip(1.0, scale=scale) if "scale" in how else Clip(1.0)
    moving = QuantileBound(0.5, 0.2, 10.0) if "adaptive" in how else None
    people = {"records_per_person": 6, "expected_rows": 60.0} if "people" in how else {}
    if people:
        records = Records(records.x, records.y, np.arange(300) // 2 % 60)
    weights = ClassWeights((1.0, 0.5, 0.25)) if "classes" in how else None
    gradients = Pressing(
        clip, 1.0, 12.0 if people else 60.0, stream.child("noise", group.rank), moving, class_weights=weights, **people
    )
    gradients.press = 1 if presses == group.rank else -1
    optimiser = next((one for one in ("sgd", "adam-bc") if one in how), "adam")
    recipe = Recipe(steps=6, optimiser=optimiser, learning_rate=0.05, ema=0.9)  # type: ignore[arg-type]
    run = Run(
        checkpoint=folder if group.lead else None,
        resume=resume and group.lead,
        group=group,
        checkpoint_seconds=seconds,
    )
    sampler = sampler or Poisson(0.2, group.share(stream.child("lots", group.rank)))
    resident = Resident(records, CPU, 6) if people else Resident(records, CPU)
    fit(net, resident, sampler, gradients, recipe, 4, run)
    return flat(net)


HOW = [
    ("mlp", ""),
    ("mlp", "sgd people"),
    ("varied", "adam-bc scale"),
    ("varied", "adaptive classes"),
]


@pytest.mark.parametrize(("name", "how"), HOW)
def test_the_weights_are_those_of_one_process(several: Pair, name: str, how: str) -> None:
    alone = train(ALONE, name, how)
    for found in several(train, name, how):
        assert torch.allclose(found, alone, atol=1e-5)
    assert not torch.allclose(alone, train(ALONE, name, how, noise_seed=5), atol=1e-2)


@pytest.mark.parametrize("lot", [(), (7, 9, 11)])
def test_an_empty_part_takes_part(four: Pair, lot: tuple[int, ...]) -> None:
    alone = train(ALONE, "varied", "", Fixed(*lot))
    for found in four(train, "varied", "", Fixed(*lot)):
        assert torch.allclose(found, alone, atol=1e-5)


def other_lots(group: Group) -> Any:
    return train(group, sampler=Poisson(0.1, Stream.from_seed(group.rank)))  # not shared


def test_different_lots_are_refused(four: Pair) -> None:
    assert all("TrainingError: Expected the same lot in every process" in said for said in four(other_lots))


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "how"), [("varied", "adam-bc scale"), ("varied", "adaptive")])
def test_another_number_of_processes_goes_on(two: Pair, four: Pair, tmp_path: Path, name: str, how: str) -> None:
    alone = train(ALONE, name, how)
    for place, (first, second) in enumerate([(two, four), (four, two), (four, None), (None, two)]):
        folder = tmp_path / str(place)
        interrupt(first, folder, name, how)
        assert len(list(folder.glob("checkpoint.3.*-of-*"))) == (first.world if first else 0)
        if second is None:
            found = [train(ALONE, name, how, None, folder, True)]
        else:
            found = second(train, name, how, None, folder, True)
        for one in found:
            assert torch.allclose(one, alone, atol=1e-5), place
        assert not any(folder.glob("*"))


def interrupt(several: Pair | None, folder: Path, name: str, how: str) -> None:
    """Ctrl-C in the last process during the second step."""
    if several is None:
        with pytest.raises(Exception, match="after 2 of 6 steps"):
            train(ALONE, name, how, None, folder, False, 0)
        return
    said = several(train, name, how, None, folder, False, several.world - 1)
    assert all("Interrupted" in one and "after 3 of 6 steps" in one for one in said)
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_checkpoints_on_the_way_are_replaced_and_leave_nothing(two: Pair, tmp_path: Path) -> None:
    seen = two(train, "mlp", "", None, tmp_path, False, None, 4, 0.0)
    assert torch.allclose(seen[0], train(ALONE), atol=1e-5)
    assert not any(tmp_path.glob("*"))


def test_a_checkpoint_with_a_missing_or_damaged_part_is_refused(two: Pair, tmp_path: Path) -> None:
    interrupt(two, tmp_path, "mlp", "")
    part = next(tmp_path.glob("checkpoint.3.1-of-2*"))
    content = part.read_bytes()
    for wrong in (b"\0" * 40, content[:-20]):
        part.write_bytes(wrong)
        assert all("a readable checkpoint" in said for said in two(train, "mlp", "", None, tmp_path, True))
    part.unlink()
    assert all("a readable checkpoint" in said for said in two(train, "mlp", "", None, tmp_path, True))
    said = two(train, "mlp", "", None, tmp_path, True, None, 5)
    assert all("TrainingError" in one for one in said)


# The whole release ----------------------------------------------------------------------------------------------------


def released(group: Group, method: str) -> Tensor:
    asked = config(method=method, accountant="rdp")  # quick to plan
    channel = methods.build(asked, data.describe(asked))
    made = channel.release(data.load(asked), Randomness.make(0, insecure_seed=1 + group.rank), Run(group=group))
    return torch.cat([value.flatten().double() for value in made.network.net.state_dict().values()])


@pytest.mark.parametrize("method", ["gaussian", "shaped", "head"])
def test_every_method_that_may_be_shared_gives_what_one_process_gives(two: Pair, method: str) -> None:
    alone = released(ALONE, method)
    for found in two(released, method):
        assert torch.allclose(found, alone, atol=1e-4, rtol=1e-4)


def test_a_release_in_shards_is_sound(digits_config: Path, tmp_path: Path) -> None:
    with digits_config.open("a") as file:
        file.write("lot_size = 40\n[split]\ntest = 0.1\nholdout = 0.7\n")
    both = Pair(run_command)
    try:
        command = ["release", str(digits_config), "--out", str(tmp_path / "bundle"), "--shard", "--json", *QUICK]
        done = both(command, dict(os.environ))
    finally:
        both.close()
    assert max(code for code, _, _ in done) == 0, done
    verdict = verify(tmp_path / "bundle")
    assert verdict.ok, verdict
    card = json.loads((tmp_path / "bundle/card.json").read_text())
    assert card["secure_noise"]
    said = card["guarantee"]["assumptions"][-1]
    assert said.startswith("2 processes trained together, each with a part of the network.")
    assert "and that of the noise" in said


def test_one_process_has_nobody_to_share_with(digits_config: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="several processes for --shard"), joined("cpu", sharded=True):
        pass
    command = ["release", str(digits_config), "--out", str(tmp_path / "bundle"), "--shard"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code
    assert not (tmp_path / "bundle").exists()


# Nobody waits for ever ------------------------------------------------------------------------------------------------


def dies(group: Group) -> Any:
    net = net_of("mlp")
    shards = ShardedParameters(net, group, CPU)
    if not group.lead:
        os._exit(1)
    x, y = Resident(blobs(), CPU).batch(np.arange(5))
    return sharded_sum(shards, net, x, y, Clip(1.0), 5.0)


def test_a_process_that_dies_ends_the_run(started: Groups) -> None:
    both = processes(started, 2)
    both.broken = True
    for link in both.links:
        link.send((dies,))
    assert "TrainingError: Expected an answer from each of the 2 processes" in str(both.result(0))

"""A module in memory, trained and released: what Opacus users bring, and what must not slip through."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import airlock
from airlock import nets, private_training
from airlock.errors import AirlockWarning, ConfigError, NetError, Refused
from airlock.methods.dp_sgd import BROUGHT
from airlock.private_training import WITH_MODULE, PrivatelyTrained

CHANCE = torch.Generator().manual_seed(11)
X = torch.rand(300, 1, 4, 4, generator=CHANCE)
Y = (X[:, 0, 0].mean(1) > X[:, 0, 3].mean(1)).long()
DECLARED: dict[str, Any] = {
    "epsilon": 3.0, "delta": 1e-3, "records": 300, "settings": {"steps": 2}, "court_seconds": 0,
}  # fmt: skip


class Small(nn.Module):
    """A class that Python can import, and a network without a name wherever it is made."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Items(Dataset[Any]):
    """A dataset of one's own, some items of which are not as they should be."""

    def __init__(self, broken: dict[int, Any] | None = None) -> None:
        self.broken = broken or {}

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, place: int) -> Any:
        found = self.broken.get(place, (X[place], int(Y[place])))
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture(autouse=True)
def _no_remarks() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=AirlockWarning)
        yield


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vault") / "own"


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(4)
    return Small()


@pytest.fixture(scope="module")
def trained(module: nn.Module, vault: Path) -> PrivatelyTrained:
    loader = DataLoader(TensorDataset(X, Y), batch_size=50, shuffle=True)
    optimizer = optim.SGD(module.parameters(), lr=0.25, momentum=0.5)
    told = {**DECLARED, "settings": None, "court_seconds": 1, "config": {"split": {"test": 0.1, "holdout": 0.3}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return airlock.train_private(
            module, loader, epochs=2, clip_norm=1.5, optimizer=optimizer, vault=vault, again=True, **told
        )


def test_a_loader_and_an_optimiser_say_how_it_is_trained(trained: PrivatelyTrained, module: nn.Module) -> None:
    details = trained.card.details
    assert details["expected_lot_size"] == 50
    assert details["steps"] == round(2 * 180 / 50)  # of the 60% that are trained on
    assert details["clip_norm"] == 1.5
    text = trained.files["config.toml"].decode()
    for line in ('optimiser = "sgd"', "learning_rate = 0.25", "momentum = 0.5", "ema = 0.0", "classes = 2"):
        assert line in text
    assert "Poisson" in trained.card.guarantee.sampling
    assert 2 < trained.epsilon <= 3


def test_the_copy_is_trained_and_the_module_is_left_alone(trained: PrivatelyTrained, module: nn.Module) -> None:
    torch.manual_seed(4)
    fresh = Small()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), fresh.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(module.parameters(), trained.module.parameters(), strict=True))
    assert trained.module is not module
    assert not trained.module.training


def test_whoever_has_the_module_checks_what_nobody_else_can(
    trained: PrivatelyTrained, module: nn.Module, vault: Path, tmp_path: Path
) -> None:
    assert trained.verifiable[1] == WITH_MODULE
    assert BROUGHT in trained.card.guarantee.assumptions
    made = trained.release(tmp_path / "out")
    alone = {check.name: check for check in airlock.verify(made, vault=vault).checks}
    assert {name for name, check in alone.items() if check.outcome != "ok"} == {"plan", "outputs"}
    assert "no name leads to it" in alone["plan"].says
    assert "net=MODULE" in alone["outputs"].says
    found = airlock.verify(made, net=module, vault=vault)
    assert {check.outcome for check in found.checks} == {"ok"}
    other = airlock.verify(made, net=nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), vault=vault)
    assert {check.name for check in other.checks if check.outcome == "failed"} >= {"plan", "onnx"}
    predicted = airlock.load(made, vault=vault).predict(X[:20].numpy())
    assert predicted.tolist() == [str(int(one)) for one in trained.module(X[:20]).argmax(1)]
    with pytest.raises(NetError, match="a network in memory"):
        nets.create(nets.MEMORY, (1, 4, 4), 2, seed=0)


def test_it_is_put_on_trial_and_attacked(trained: PrivatelyTrained, vault: Path) -> None:
    shown = airlock.show(_put(trained, vault), dossier=True, vault=vault)
    assert shown.dossier is not None
    assert [one.refuted for one in shown.dossier.court] == [False]
    assert {one.name for one in shown.dossier.audit.attacks} >= {"loss threshold"}


def _put(trained: PrivatelyTrained, vault: Path) -> Path:
    return trained.release(vault.parent / "shown", force=True).folder


class MixesRecords(nn.Module):
    """It looks harmless, and every output depends on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return self.last(flat - flat.mean(0))  # type: ignore[no-any-return]


class Remembers(nn.Module):
    """A buffer of it follows from what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 2)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.flatten(1).sum(0).detach()
        return self.last(x.flatten(1))  # type: ignore[no-any-return]


def test_what_cannot_be_trained_per_item_is_refused_before_one_is_read(vault: Path) -> None:
    norm = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    cases: list[tuple[str, Any]] = [
        ("no BatchNorm", norm),
        ("their own record alone", MixesRecords()),
        ("a forward pass writes", Remembers()),
        ("an error from it", nn.Linear(3, 2)),
        ("the module itself", type("GradSampleModule", (nn.Module,), {})()),
        ("as package.module:Class", "linear"),
        ("as package.module:Class", lambda x: x),
    ]
    for words, module in cases:
        with pytest.raises((NetError, ConfigError), match=words):
            airlock.train_private(module, (X, Y), vault=vault, again=True, **DECLARED)


def test_what_cannot_be_accounted_for_is_refused(module: nn.Module, vault: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    def backwards(items: list[Any]) -> Any:
        return items[::-1]

    weighted = DataLoader(TensorDataset(X, Y), sampler=WeightedRandomSampler([1.0] * 300, 300))
    groups = [{"params": module.layers[0].parameters()}, {"params": module.layers[3].parameters(), "lr": 2.0}]  # type: ignore[index,union-attr]
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("each as it is, found one with a WeightedRandomSampler", weighted, {}),
        ("found one with a backwards", DataLoader(Items(), collate_fn=backwards), {}),
        ("found one with a list", DataLoader(Items(), batch_sampler=[[0, 1]]), {}),
        ("a dataset with a length", Stream(), {}),
        ("inputs and labels, found 1 tensors", TensorDataset(X), {}),
        ("the shape of an input", Items(), {}),
        ("1 or 3 channels", (X.expand(-1, 5, -1, -1), Y), {}),
        (r"labels \(N\)", (X, nn.functional.one_hot(Y)), {}),
        ("about how many records", (X, Y), {"records": None}),
        ("about how many people", (X, Y), {"groups": np.arange(300)}),
        ("epochs above 0", (X, Y), {"epochs": 0, "settings": None}),
        ("found one with nesterov", (X, Y), {"optimizer": optim.SGD(module.parameters(), 1, 0.9, nesterov=True)}),
        ("found several groups", (X, Y), {"optimizer": optim.SGD(groups, lr=1.0)}),
        ("found AdamW", (X, Y), {"optimizer": optim.AdamW(module.parameters())}),
    ]
    for words, items, changes in cases:
        with pytest.raises(ConfigError, match=words):
            airlock.train_private(module, items, vault=vault, again=True, **{**DECLARED, **changes})
    with pytest.raises(Refused, match="proven guarantee"):
        airlock.train_private(module, (X, Y), method="published", vault=vault, **{**DECLARED, "settings": None})


BROKEN = {
    1: (X[1, :, :3], 0),
    2: (X[2] * float("nan"), 0),
    3: (X[3], "what?"),
    4: (X[4], None),
    5: None,
    6: ValueError("this item says something about a person"),
    7: (X[7],),
    8: ("a", "b"),
}


def test_an_item_that_does_not_fit_is_left_out_and_nothing_is_raised(module: nn.Module, vault: Path) -> None:
    made = airlock.train_private(module, Items(BROKEN), shape=(1, 4, 4), vault=vault, again=True, **DECLARED)
    remarks = airlock.show(_put(made, vault), dossier=True, vault=vault).dossier.remarks  # type: ignore[union-attr]
    said = " ".join(remarks)
    for words in ("cannot be read", "another shape", "NaN or infinity", "not a declared class"):
        assert words in said
    assert "person" not in said


def test_a_dataset_and_its_tensors_are_the_same_records(module: nn.Module, vault: Path) -> None:
    """Bytes and fractions too: a part of the split follows from a record's content."""
    from airlock.private_training import _form, _opened, _read

    bytes_ = (X * 255).round().to(torch.uint8)
    ways: list[tuple[Any, Any]] = [
        (Items(), (1, 4, 4)),
        (DataLoader(Items()), (1, 4, 4)),
        ((X.numpy(), Y.numpy()), None),
    ]
    ways += [((bytes_, Y), None), ((X[:, 0], Y), None), (TensorDataset(X, Y), None)]
    for items, shape in ways:
        opened = _opened(items)[0]
        form = _form(opened, shape)
        kept = _read(opened, form, None)
        assert form == (1, 4, 4)
        assert np.array_equal(kept.x, bytes_.numpy())
        assert kept.x.dtype == np.uint8
        assert kept.y.tolist() == Y.tolist()


def test_labels_are_names_or_their_numbers(module: nn.Module, vault: Path) -> None:
    names = np.array(["no", "yes"])[Y.numpy()]
    told = {**DECLARED, "settings": {"steps": 1, "lot_size": 300}, "classes": ["no", "yes"]}
    for labels in (Y, names, Y.double()):
        made = airlock.train_private(module, (X, labels), vault=vault, again=True, **told)
        inside = airlock.show(_put(made, vault), dossier=True, vault=vault).dossier
        assert inside is not None
        assert inside.utility.records > 40  # every fifth of 300, and none of them left out
        assert not [line for line in inside.remarks if "declared class" in line]
        assert made.card.data.classes == ("no", "yes")


def test_people_and_what_was_read_off(vault: Path) -> None:
    x, whose = X.flatten(1), np.arange(300) // 3
    module = nn.Linear(16, 2)
    told = {**DECLARED, "records": None, "vault": vault, "again": True}
    made = airlock.train_private(module, (x, Y), groups=whose, public_schema=True, out=vault.parent / "p", **told)
    assert made.card.guarantee.unit == "person"
    assert made.card.data.people == 100
    assert made.card.data.read_off == ("people", "records")
    assert "Not covered: the number of people and the number of records" in made.card.headline
    assert made.folder == vault.parent / "p"


def test_a_network_with_a_name_is_checked_by_name(vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\n\n\ndef small():\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    name = "nets_of_mine:small"
    made = airlock.train_private(name, (X, Y), classes=["no", "yes"], out="out", vault=vault, again=True, **{
        **DECLARED, "records": 300})  # fmt: skip
    assert f"--net {name}" in made.verifiable[1]
    found = airlock.verify("out", net=name, vault=vault)
    assert {check.outcome for check in found.checks} == {"ok"}
    with pytest.raises(ConfigError, match="classes of a network that is named"):
        airlock.train_private(name, (X, Y), vault=vault, again=True, **DECLARED)


def test_another_module_is_another_run() -> None:
    """What was interrupted is never continued with a network that is not the same."""
    torch.manual_seed(1)
    one, other = Small(), Small()
    with nets.held(one):
        first, again = nets.held_mark(), nets.held_mark()
    with nets.held(other):
        assert nets.held_mark() != first
    assert first == again


class Counting(nn.Module):
    """It has a number that its outputs do not depend on, which no ONNX file keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Small()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def test_a_module_that_cannot_be_written_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    for _ in range(2):  # the second time, there is no unfinished run either
        with pytest.raises(NetError, match="to be the same in ONNX as in torch"):
            airlock.train_private(Counting(), (X, Y), vault=tmp_path / "vault", **DECLARED)
    assert not list((tmp_path / "vault").glob("**/*.npz"))


class Jittered(Dataset[Any]):
    """A dataset with a random transform, as is usual where it is read anew in every epoch."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place] + torch.rand(4) + float(np.random.rand()) + random.random(), 0


def test_a_random_transform_does_the_same_to_an_item_whoever_comes_before_it() -> None:
    rows = torch.arange(24.0).reshape(6, 4)

    def read(rows: torch.Tensor) -> Any:
        return private_training._read(Jittered(rows), (4,), None).x

    random.seed(1)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    expected = random.Random(1).random()
    assert np.array_equal(read(rows)[1:], read(rows[1:]))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert random.random() == expected


def test_an_image_of_another_type_in_a_list_leaves_the_others_as_they_are() -> None:
    images = [np.full((1, 2, 2), 51 * place, np.uint8) for place in range(5)]

    def read(images: list[Any]) -> Any:
        items, _ = private_training._opened((images, [0] * len(images)))
        return private_training._read(items, (1, 2, 2), None).x

    for odd in (np.full((1, 2, 2), 0.2), [[["a secret", 0.1], [0.1, 0.1]]]):
        assert np.array_equal(read([*images, odd])[:5], np.stack(images))

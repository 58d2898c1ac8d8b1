"""RONA's networks: the paper's sizes, and that they can be trained together and exported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from airlock.bundle.export import to_onnx
from airlock.data import Records
from airlock.errors import NetError
from airlock.methods.contract import NetworkArtefact
from airlock.nets import build, create
from airlock.nets.compact import FAMILY
from airlock.nets.hints import shape_at
from airlock.training import PlainGradients, Recipe, Resident, Run, Shuffled, fit, train_together
from airlock.training.ensembles.chunks import model_seed

IMAGES = {"cifar": (3, 32, 32), "svhn": (3, 32, 32), "mnist": (1, 28, 28), "digits": (1, 8, 8)}


def count(name: str) -> int:
    return sum(p.numel() for p in build(name, IMAGES[name.split("-")[1]], 10).parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("rona-cifar-teacher", 3_119_754),
        ("rona-cifar-s1", 152_138),
        ("rona-cifar-s2", 521_930),
        ("rona-svhn-teacher", 1_406_794),
    ],
)
def test_the_papers_shapes_have_the_papers_counts(name: str, parameters: int) -> None:
    assert count(name) == parameters


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("rona-mnist-teacher", 155_210),
        ("rona-mnist-s1", 4_970),
        ("rona-mnist-s2", 9_880),
        ("rona-svhn-s1", 40_000),
        ("rona-svhn-s2", 70_000),
    ],
)
def test_our_shapes_are_within_two_percent_of_the_stated_counts(name: str, stated: int) -> None:
    assert abs(count(name) - stated) < 0.02 * stated


def test_hint_and_guide_have_the_same_places() -> None:
    """The paper's pair: the teacher's first pool and the student's sixth convolution, 16 × 16."""
    x = torch.rand(1, 3, 32, 32)
    teacher, student = (build(f"rona-cifar-{size}", (3, 32, 32), 10).eval() for size in ("teacher", "s1"))
    hint = torch.nn.Sequential(*list(teacher.children())[:7])(x)  # type: ignore[arg-type]
    guide = torch.nn.Sequential(*list(student.children())[:12])(x)  # type: ignore[arg-type]
    assert list(dict(teacher.named_children()))[6] == "pool1"
    assert list(dict(student.named_children()))[11] == "conv6"
    assert (hint.shape, guide.shape) == ((1, 128, 16, 16), (1, 64, 16, 16))


@pytest.mark.parametrize("name", [name for name in FAMILY if not name.endswith("teacher")])
def test_every_students_guide_fits_its_teachers_hint(name: str) -> None:
    shape = IMAGES[name.split("-")[1]]
    teacher, student = build(f"{name.rsplit('-', 1)[0]}-teacher", shape, 10), build(name, shape, 10)
    ours, theirs = shape_at(student, FAMILY[name][0].guide, shape, "student"), shape_at(teacher, "pool1", shape, "t")
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize("name", ["rona-cifar-s1", "rona-mnist-teacher", "rona-digits-teacher"])
def test_the_signal_keeps_its_size_through_all_layers(name: str) -> None:
    shape = IMAGES[name.split("-")[1]]
    x = torch.rand(20, *shape, generator=torch.Generator().manual_seed(0))
    spread = float(create(name, shape, 10, 0).eval()(x).detach().std())
    assert 0.05 < spread < 5


@pytest.mark.parametrize("name", ["rona-digits-teacher", "rona-digits-student"])
def test_models_trained_together_are_those_trained_alone(name: str) -> None:
    random = np.random.default_rng(0)
    data = Resident(Records(random.random((40, 1, 8, 8), np.float32), random.integers(0, 3, 40)), torch.device("cpu"))
    recipe = Recipe(steps=3, learning_rate=0.05)
    everyone = [np.arange(40, dtype=np.int64)] * 2
    together = train_together(
        lambda i: create(name, (1, 8, 8), 3, i), 2, data, everyone, recipe, 5, Run(), batch_size=16
    )
    for i in range(2):
        alone, own = create(name, (1, 8, 8), 3, i), model_seed(5, i)
        fit(alone, data, Shuffled(16, own), PlainGradients(), recipe, own, Run())
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(together.values[key][i], value, rtol=1e-3, atol=1e-5)


def test_a_student_is_the_same_in_onnx() -> None:
    net = create("rona-mnist-s1", (1, 28, 28), 10, 0).eval()
    assert len(to_onnx(NetworkArtefact(net, "rona-mnist-s1", (1, 28, 28), tuple("0123456789")))) > 4 * 4_986


def test_records_that_are_no_images_are_refused() -> None:
    for shape in ((20,), (1, 3, 8)):
        with pytest.raises(NetError, match="4 pixels"):
            build("rona-digits-student", shape, 2)

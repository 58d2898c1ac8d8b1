"""A bundle as something that answers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from airlock.bundle import make_card, write
from airlock.bundle.answering import NetAnswerer, open_answerer
from airlock.bundle.models import open_net
from airlock.config import ReleaseConfig
from airlock.errors import Refused
from airlock.mechanisms import Stream
from airlock.methods.contract import Artefact
from tests.bundle.conftest import CLASSES, FACTS, SHAPE, guarantee, make_release, noise


@pytest.fixture(scope="module")
def random_net(tmp_path_factory: pytest.TempPathFactory, config: ReleaseConfig) -> Path:
    """A bundle whose network is not all zeros."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(math.prod(SHAPE), len(CLASSES)))
    artefact = Artefact(net.eval().requires_grad_(False), "linear", SHAPE, CLASSES)
    release = dataclasses.replace(make_release(guarantee()), artefact=artefact)
    folder = tmp_path_factory.mktemp("answering") / "bundle"
    return write(folder, config, release, make_card(config, FACTS, release, noise())).folder


def test_a_network_answers_for_nothing(random_net: Path) -> None:
    card, answerer = open_answerer(random_net)
    assert answerer.interface.units is None
    assert (answerer.interface.input_shape, answerer.interface.classes) == (SHAPE, card.network.classes)
    reservation = answerer.reserve(5)
    assert reservation.units == 0
    x = np.random.default_rng(0).random((5, *SHAPE), np.float32)
    answers = answerer.answer(x, reservation, Stream.from_system())
    with torch.no_grad():
        wanted = open_net(random_net, card.network)(torch.from_numpy(x)).numpy()
    assert answers.values is not None
    np.testing.assert_allclose(answers.values, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(wanted).max() > 0.1
    assert answers.labels.tolist() == wanted.argmax(axis=1).tolist()


def test_an_overflow_is_no_answer_and_harms_no_other_row(random_net: Path) -> None:
    card, answerer = open_answerer(random_net)
    assert isinstance(answerer, NetAnswerer)
    weights = next(p for p in open_net(random_net, card.network).parameters() if p.ndim == 2)[0].detach().numpy()
    x = np.zeros((3, *SHAPE), np.float32)
    x[1] = (np.sign(weights) * np.finfo(np.float32).max).reshape(SHAPE)
    answers = answerer.answer(x, answerer.reserve(3), Stream.from_system())
    assert answers.values is not None
    assert np.isfinite(answers.values).all()
    assert answers.labels[1] == -1
    assert answers.labels[0] == answers.labels[2] >= 0


def test_a_bundle_that_does_not_verify_answers_nothing(folder: Path, reseal: Callable[[Path], None]) -> None:
    card = json.loads((folder / "card.json").read_text())
    card["guarantee"]["epsilon"] = 0.1
    (folder / "card.json").write_text(json.dumps(card))
    reseal(folder)
    with pytest.raises(Refused):
        open_answerer(folder)

"""A bundle as something that answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from airlock.errors import Refused
from airlock.mechanisms import Stream
from airlock.release.answering import NetAnswerer, open_answerer
from airlock.release.models import open_net
from tests.release.conftest import SHAPE


def test_a_network_answers_for_nothing(folder: Path) -> None:
    import torch

    card, answerer = open_answerer(folder)
    assert answerer.interface.units is None
    assert (answerer.interface.input_shape, answerer.interface.classes) == (SHAPE, card.network.classes)
    reservation = answerer.reserve(5)
    assert reservation.units == 0
    x = np.random.default_rng(0).random((5, *SHAPE), np.float32)
    answers = answerer.answer(x, reservation, Stream.from_system())
    with torch.no_grad():
        wanted = open_net(folder, card.network)(torch.from_numpy(x)).numpy()
    assert answers.values is not None
    np.testing.assert_allclose(answers.values, wanted, rtol=1e-4, atol=1e-5)
    assert answers.labels.tolist() == wanted.argmax(axis=1).tolist()


def test_an_overflow_is_no_answer_and_harms_no_other_row(folder: Path) -> None:
    card, answerer = open_answerer(folder)
    assert isinstance(answerer, NetAnswerer)
    weights = next(p for p in open_net(folder, card.network).parameters() if p.ndim == 2)[0].detach().numpy()
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

"""Noise comes from the operating system and from nowhere else, in every method, through the code that releases.

A release is made three times from one config and one public seed, where it can be on no private records, so that what
differs is noise. With the same bytes from the system it is the same release: nothing else, no clock and no counter,
decides. With other bytes it is another one: the public seed does not decide either. Whoever knows config and seed, and
not those bytes, cannot compute the noise again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from airlock import methods, pipeline
from airlock.data import divide
from airlock.data.feature_files import load
from airlock.errors import AirlockWarning
from airlock.mechanisms import Randomness, Stream
from airlock.methods import FeatureSet, Interface, NetworkArtefact, Release
from airlock.methods.floor import Floor
from airlock.methods.interface import Answers, as_queries
from airlock.serve.answer_handler import Batcher
from airlock.training import Run
from tests import chance
from tests.methods.test_missing_records import FACTS, NAMES, config, digits

WITHOUT_NOISE = {"features/published"}  # which claims nothing
# Without records nothing is trained, or all votes agree.
WITH_RECORDS = {"twin/published", "student/published", "answers/votes"}
MORE: dict[str, dict[str, Any]] = {
    "student/ensemble": {"shrink": False},  # else what is all noise is shrunk to nothing
    "weights/gaussian": {"lot_size": 50},  # so that lots are drawn
}
PUBLIC = {"features/noised": 1}  # which channels its public front end keeps is drawn by the public seed
NOT_SEEN = {"student/published"}  # no noise reaches that student, which its card says
QUESTIONS = 5


@dataclass
class Read:
    """What was read of secret streams, how often others were read, and whether noise came from one of them."""

    secret: set[bytes] = field(default_factory=set)
    seeded: int = 0
    noise_from_a_seed: bool = False


@contextlib.contextmanager
def reading() -> Iterator[Read]:
    """Watch every stream that is read."""
    seen, spend, note = Read(), Stream._spend, Stream.note_drawn

    def watched(self: Stream) -> None:
        spend(self)
        if self.secure:
            seen.secret.add(self._key)
        seen.seeded += not self.secure

    def noted(self: Stream, *places: object) -> None:
        seen.noise_from_a_seed |= not self.secure
        note(self, *places)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "_spend", watched)
        patch.setattr(Stream, "note_drawn", noted)
        yield seen


def released(name: str, system: str) -> tuple[Release, dict[str, NDArray[np.generic]], Read]:
    """A release as the pipeline makes it, what leaves of it, and what was read; `system` is what the system gives."""
    asked = config(name, **MORE.get(name, {}))
    split = divide(FACTS, digits(), None, asked.split, asked.seed)
    if name not in WITH_RECORDS:
        split = replace(split, private=split.private.take(np.arange(0)))
    with (
        warnings.catch_warnings(),
        chance.own_chance("public"),
        chance.seeded_system(system),
        reading() as seen,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(Floor, "needed", -1e9)  # else the model of the public records leaves
        warnings.simplefilter("ignore", AirlockWarning)  # of plans, about noise
        made = pipeline._train(asked, methods.build(asked, FACTS), split, Randomness.make(asked.seed), Run())
        return made, leaving(name, made), seen


def leaving(name: str, made: Release) -> dict[str, NDArray[np.generic]]:
    """All numbers that leave; through an interface, the answers to some questions, as the service gives them."""
    if isinstance(made.artefact, NetworkArtefact):
        return {key: value.numpy() for key, value in made.artefact.net.state_dict().items()}
    if isinstance(made.artefact, FeatureSet):
        found = load(made.artefact.folder, made.artefact.manifest)
        return {"features": np.asarray(found.x)}
    assert isinstance(made.artefact, Interface)
    desk = methods.named(name).answerer(made.artefact, made.secrets)
    answers = Batcher(desk)._one(as_queries(digits().take(np.arange(QUESTIONS))), desk.reserve(QUESTIONS))
    assert isinstance(answers, Answers), answers
    return {"answers": answers.labels if answers.values is None else answers.values}


def noise_is_the_systems(name: str) -> None:
    """The property, as a function, so that faults can be planted under it."""
    made, first, read = released(name, "one")
    _, other, read_other = released(name, "another")
    _, again, _ = released(name, "one")
    assert made.secure_noise
    assert not read.noise_from_a_seed, "noise of a secure release came from a seed"
    assert read.seeded == PUBLIC.get(name, 0), "what a secure release draws by chance came from a seed"
    assert read.secret, "nothing secret was read"
    assert not read.secret & read_other.secret, "a key is the same whatever the system gives"
    assert all(np.array_equal(first[key], again[key]) for key in first), "something else than the system decides"
    if name not in NOT_SEEN:
        moved = [key for key in first if not np.array_equal(first[key], other[key])]
        assert moved, "what leaves is the same whatever the system gives"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_NOISE])
def test_noise_follows_from_the_system_and_not_from_the_public_seed(name: str) -> None:
    noise_is_the_systems(name)

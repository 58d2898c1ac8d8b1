"""What a worker of a Ray cluster does: train one chunk, say how far it is, stop when asked.

In: the chunk, its models' positions, the records in the object store. Out: an `Outcome`.
"""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from airlock._version import VERSION
from airlock.data import Records
from airlock.errors import AirlockError, Interrupted, NetError, TrainingError
from airlock.training import checkpoint
from airlock.training.convexified import Objective
from airlock.training.distributed import Group
from airlock.training.ensembles.chunks import Make, Task
from airlock.training.ensembles.ray_cluster import first_line, import_ray
from airlock.training.loop import Augment, Recipe, Run
from airlock.training.resident import Resident, choose_device
from airlock.training.sampling import Index

POLL = 0.5  # seconds between two looks at the bar and at the wish to stop
PATIENCE = 60.0  # seconds that somebody is waited for


@dataclass(frozen=True)
class Spec:
    """What all tasks have in common, records apart."""

    make: Make
    recipe: Recipe
    seed: int
    augment: Augment | None
    batch_size: int
    fingerprint: bytes
    cuda: bool
    objective: Objective


@dataclass(frozen=True)
class Outcome:
    """What a task sends back: its models, or its steps so far when it was stopped, or why it failed.

    Failures travel as text: not every exception can be sent.
    """

    models: bytes | None = None
    mark: str = ""
    steps: bytes | None = None
    error: str = ""
    said: tuple[str, str, str, str] | None = None
    trace: str = ""


def versions() -> tuple[str, str]:
    """Of what decides which models come out; a build for a CPU or for a GPU is the same version."""
    return VERSION, torch.__version__.split("+")[0]


def train(
    packed: bytes,
    arrays: tuple[Any, Any],
    chunk: tuple[int, int],
    members: dict[int, Index],
    mark: str,
    steps: bytes | None,
    asked: tuple[str, str],
    board: Any,
) -> Outcome:
    """One task, in a worker."""
    listening = _Listening(import_ray(), board, chunk[0])
    try:
        if asked != versions():
            raise TrainingError(
                "the same versions of Airlock and torch on every machine",
                f"{' and '.join(versions())} on a worker, {' and '.join(asked)} where it was started",
                "Which models come out would depend on who trains them.",
            )
        if listening.stop(checkpoint.steps_done(steps) if steps else 0):
            return Outcome(steps=steps)
        return _train_chunk(_unpacked(packed), arrays, range(*chunk), members, mark, steps, listening)
    except AirlockError as error:
        return Outcome(error=type(error).__name__, said=(error.expected, error.found, error.why, error.do))
    except Exception as error:  # noqa: BLE001  whatever the network raises is told to the driver
        return Outcome(error=first_line(error), trace=traceback.format_exc())


def _unpacked(packed: bytes) -> Spec:
    try:
        spec: Spec = import_ray().cloudpickle.loads(packed)
    except Exception as error:  # importing runs code of the user's
        raise NetError(
            "a network and an augmentation that every machine of the cluster can import",
            f"an error there ({first_line(error)})",
            do="Install their module on every machine, or define them in the script that is run.",
        ) from error
    return spec


def _train_chunk(
    spec: Spec,
    arrays: tuple[Any, Any],
    chunk: range,
    members: dict[int, Index],
    mark: str,
    steps: bytes | None,
    listening: _Listening,
) -> Outcome:
    device = choose_device("cuda" if spec.cuda else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the store's arrays cannot be written to, and nobody does
        data = Resident(Records(*arrays), device)
    task = Task(
        spec.make, data, members, spec.recipe, spec.seed, spec.augment, spec.batch_size, spec.fingerprint,
        objective=spec.objective,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "steps"
        if steps is not None:
            checkpoint.put(place, steps)
        run = Run(device, listening.progress, place, True, float("inf"), listening)
        try:
            values, found = task.train(chunk, run, mark)
        except Interrupted:
            return Outcome(steps=checkpoint.read(place))
    return Outcome(save({name: value.clone().contiguous() for name, value in values.items()}), found)


class _Listening(Group):
    """This process alone, which tells the board how far it is and asks whether to stop, once in a while."""

    def __init__(self, ray: Any, board: Any, start: int) -> None:
        super().__init__()
        self.ray, self.board, self.start = ray, board, start
        self.done, self.noted = 0, time.monotonic()
        self.answer: Any = None

    def progress(self, label: str, done: int, steps: int) -> None:
        """Remember the step."""
        self.done = done

    def stop(self, done: int) -> bool:
        """Ask and wait for the answer; without a board there is nobody who could ask to stop."""
        try:
            return bool(self.ray.get(self.board.note.remote(self.start, done), timeout=PATIENCE))
        except self.ray.exceptions.RayError:
            return False

    def agreed(self, wish: bool) -> bool:
        """Whether to stop after this step, by the answer to the last note."""
        if wish or time.monotonic() - self.noted < POLL:
            return wish
        self.noted = time.monotonic()
        try:
            if self.answer is not None and self.ray.wait([self.answer], timeout=0)[0]:
                wish, self.answer = bool(self.ray.get(self.answer)), None
            if self.answer is None:
                self.answer = self.board.note.remote(self.start, self.done)
        except self.ray.exceptions.RayError:
            self.noted = float("inf")
        return wish

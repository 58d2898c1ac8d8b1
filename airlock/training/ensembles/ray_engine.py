"""The engine "ray": chunks of models trained by the workers of a Ray cluster, on this machine or on many.

Every chunk is one Ray task. The records are put into Ray's object store once, so that each machine holds one copy; a
task receives its models' positions, trains like the engine "local", and sends the weights back. A chunk whose worker or
machine dies is trained again elsewhere, with a warning; any other error stops the run. On Ctrl-C the workers stop after
their step and send back what they have, so that with a checkpoint folder nothing is lost.

Ray sends code and data as pickles in plain text: every machine of the cluster and the network between them see the
private records and can run code in this process. Use only a cluster of your own (`ray_cluster`).

Ray is imported only when it trains models.

A worker (`train`) trains one chunk, reports its progress, and stops on request. In: the chunk, its models' positions,
the records in the object store. Out: an `Outcome`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from airlock import errors
from airlock._version import VERSION
from airlock.data import Records
from airlock.errors import AirlockError, AirlockWarning, Interrupted, NetError, TrainingError
from airlock.training import checkpoint
from airlock.training.devices import Resident, choose_device
from airlock.training.distributed import Group
from airlock.training.ensembles.chunks import EnsembleTask, Job, Make, budget
from airlock.training.ensembles.ray_cluster import connected, first_line, import_ray, slots
from airlock.training.ensembles.stacked import tensors
from airlock.training.gradients import Objective
from airlock.training.loop import Augment, Recipe, Run
from airlock.training.sampling import Index

# The worker.

POLL = 0.5  # seconds between two updates of the progress bar and checks for a request to stop
PATIENCE = 60.0  # seconds to wait for an answer


@dataclass(frozen=True)
class Spec:
    """What all tasks have in common, except the records."""

    make: Make
    recipe: Recipe
    seed: int
    augment: Augment | None
    batch_size: int
    fingerprint: bytes
    cuda: bool
    objective: Objective


@dataclass(frozen=True)
class TaskOutcome:
    """What a task sends back: its models, or its steps so far when it was stopped, or why it failed.

    Failures are sent as text: not every exception can be serialised.
    """

    models: bytes | None = None
    mark: str = ""
    steps: bytes | None = None
    error: str = ""
    said: tuple[str, str, str, str] | None = None
    trace: str = ""


def versions() -> tuple[str, str]:
    """The versions that determine the resulting models; builds for CPU and GPU count as the same."""
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
) -> TaskOutcome:
    """One task, in a worker."""
    listening = _Listening(import_ray(), board, chunk[0])
    try:
        if asked != versions():
            raise TrainingError(
                "the same versions of Airlock and torch on every machine",
                f"{' and '.join(versions())} on a worker, {' and '.join(asked)} where it was started",
                "The result would depend on which worker trains the models.",
            )
        if listening.stop(checkpoint.steps_done(steps) if steps else 0):
            return TaskOutcome(steps=steps)
        return _train_chunk(_unpacked(packed), arrays, range(*chunk), members, mark, steps, listening)
    except AirlockError as error:
        return TaskOutcome(error=type(error).__name__, said=(error.expected, error.found, error.why, error.do))
    except Exception as error:  # noqa: BLE001  whatever the network raises is told to the driver
        return TaskOutcome(error=first_line(error), trace=traceback.format_exc())


def _unpacked(packed: bytes) -> Spec:
    try:
        spec: Spec = import_ray().cloudpickle.loads(packed)
    except Exception as error:  # importing runs user code
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
) -> TaskOutcome:
    device = choose_device("cuda" if spec.cuda else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the store's arrays are read-only, which is fine
        data = Resident(Records(*arrays), device)
    task = EnsembleTask(
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
            return TaskOutcome(steps=checkpoint.read(place))
    return TaskOutcome(save({name: value.clone().contiguous() for name, value in values.items()}), found)


class _Listening(Group):
    """This process alone, which periodically reports its progress to the board and asks whether to stop."""

    def __init__(self, ray: Any, board: Any, start: int) -> None:
        super().__init__()
        self.ray, self.board, self.start = ray, board, start
        self.done, self.noted = 0, time.monotonic()
        self.answer: Any = None

    def progress(self, label: str, done: int, steps: int) -> None:
        """Record the step."""
        self.done = done

    def stop(self, done: int) -> bool:
        """Ask and wait for the answer; without a board, nothing can request a stop."""
        try:
            return bool(self.ray.get(self.board.note.remote(self.start, done), timeout=PATIENCE))
        except self.ray.exceptions.RayError:
            return False

    def agreed(self, wish: bool) -> bool:
        """Whether to stop after this step, according to the answer to the last report."""
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


# The driver.


_GPU_BYTES = 4 << 30  # for models on GPUs that cannot be queried from here


@dataclass(frozen=True)
class Ray:
    """The engine with its settings: `train_together(..., engine=Ray(address="10.0.0.5:6379"))`.

    Args:
        address: The address of the cluster to join; else the environment's RAY_ADDRESS; else a cluster is started on
            this machine for the duration of the call. If this process is already connected to a cluster, that one is
            used.
        workers: How many processes train in a cluster started here; one per core by default.
        gpus: GPUs per chunk, possibly a fraction; by default 1 if `run.device` is a GPU, else none.
        attempts: How many times a chunk is started if its workers die.
    """

    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    attempts: int = 4

    def __call__(self, job: Job) -> None:
        """Train the missing models.

        Raises:
            ConfigError: Ray is not installed.
            Interrupted: Ctrl-C.
            TrainingError: The cluster cannot be reached or used, or models cannot be trained.
        """
        ray = import_ray()
        if job.run.group.world > 1:
            raise TrainingError(
                "a single process with the engine 'ray'", f"{job.run.group.world}", do="Start it without torchrun."
            )
        if job.missing:
            gpus = (1.0 if job.run.device.type == "cuda" else 0.0) if self.gpus is None else self.gpus
            size = _bytes_sent(job)
            with contextlib.redirect_stdout(sys.stderr), connected(ray, self.address, self.workers, size):
                _Driver(ray, job, gpus, self.attempts).run()


def _bytes_sent(job: Job) -> int:
    """The size of the records, and of models with their optimiser state."""
    models = job.count * sum(value.nbytes for value in tensors(job.task.make(0)).values())
    return job.task.data.x.nbytes + job.task.data.y.nbytes + 4 * models


class _Driver:
    """Distributes chunks, collects their results, and restarts what was lost."""

    def __init__(self, ray: Any, job: Job, gpus: float, attempts: int) -> None:
        self.ray, self.job, self.attempts = ray, job, attempts
        self.chunks = job.chunks(job.chunk_bytes or self._room(gpus), slots(ray, gpus, "chunk"))
        self.begun = dict.fromkeys(self.chunks, 0)
        self.waiting: dict[Any, range] = {}
        self.steps: dict[int, int] = {}
        failures = ray.exceptions
        self.lost = (
            failures.WorkerCrashedError,
            failures.NodeDiedError,
            failures.ObjectLostError,
            failures.OutOfMemoryError,
            failures.LocalRayletDiedError,
        )
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(train)
        task = job.task
        self.data = ray.put((task.data.x.cpu().numpy(), task.data.y.cpu().numpy()))
        self.spec = ray.put(self._packed(gpus > 0))
        self.board = _put_up_board(ray)
        self.asked: Any = None

    def _room(self, gpus: float) -> int:
        if not gpus:
            return budget(torch.device("cpu"))
        here = self.job.run.device
        return int((budget(here) if here.type == "cuda" else _GPU_BYTES) * min(gpus, 1.0))

    def _packed(self, cuda: bool) -> bytes:
        task = self.job.task
        spec = Spec(
            task.make, task.recipe, task.seed, task.augment, task.batch_size, task.fingerprint, cuda, task.objective
        )
        try:
            packed: bytes = self.ray.cloudpickle.dumps(spec)
        except Exception as error:  # pickling runs code of the objects it meets
            raise NetError(
                "a network and an augmentation that can be sent to other processes",
                f"an error ({first_line(error)})",
                do="Create them with functions that hold no open files, locks or devices.",
            ) from error
        return packed

    def run(self) -> None:
        """Run until all chunks are done, or those in progress have stopped."""
        try:
            for chunk in self.chunks:
                self._begin(chunk)
            last = float("inf")
            while self.waiting and time.monotonic() < last:
                ready, _ = self.ray.wait(list(self.waiting), timeout=POLL)
                for ref in ready:
                    self._take(self.waiting.pop(ref), ref, stopping=last < float("inf"))
                self._report()
                if self.job.interrupted() and last == float("inf"):
                    self.board.stop.remote()
                    last = time.monotonic() + PATIENCE
        finally:
            with contextlib.suppress(self.ray.exceptions.RayError):
                for ref in self.waiting:
                    self.ray.cancel(ref, force=True)
                self.ray.kill(self.board)
        if self.job.missing:
            raise self.job.interruption(self._under_way())

    def _begin(self, chunk: range) -> None:
        task, folder = self.job.task, self.job.folder(chunk)
        self.begun[chunk] += 1
        self.steps.pop(chunk.start, None)
        steps = checkpoint.read(folder) if folder and self.job.run.resume else None
        if steps is not None:
            self.steps[chunk.start] = checkpoint.steps_done(steps)
        members = {i: task.members[i] for i in chunk}
        ref = self.remote.remote(
            self.spec, self.data, (chunk.start, chunk.stop), members, task.mark(chunk), steps, versions(), self.board
        )
        self.waiting[ref] = chunk

    def _take(self, chunk: range, ref: Any, stopping: bool) -> None:
        try:
            outcome: TaskOutcome = self.ray.get(ref)
        except self.lost as error:
            if not stopping:
                self._begin_again(chunk, error)
            return
        except self.ray.exceptions.RayError as error:
            raise TrainingError(
                f"workers that can train {_named(chunk)}",
                f"an error ({type(error).__name__}: {str(error).strip().splitlines()[-1]})",
                do="Install the same Airlock on every machine of the cluster.",
            ) from error
        if outcome.error:
            raise _failure(chunk, outcome)
        if outcome.models is not None:
            self.job.keep(chunk, load(outcome.models), outcome.mark)
        elif stopping:
            self._keep_steps(chunk, outcome.steps)
        else:
            self._begin_again(chunk, None)

    def _begin_again(self, chunk: range, error: Exception | None) -> None:
        why = first_line(error) if error else "it was stopped"
        if self.begun[chunk] >= self.attempts:
            raise TrainingError(
                f"a worker that survives until {_named(chunk)} can be used",
                f"{self.begun[chunk]} that did not, the last because of {why}",
                "Something there kills them, often a lack of memory.",
                "See Ray's logs on that machine; a smaller chunk_bytes needs less memory.",
            ) from error
        warnings.warn(
            f"The worker that trained {_named(chunk)} is gone ({why}); its chunk is restarted elsewhere.",
            AirlockWarning,
            stacklevel=2,
        )
        self._begin(chunk)

    def _keep_steps(self, chunk: range, steps: bytes | None) -> None:
        folder = self.job.folder(chunk)
        if folder and steps:
            checkpoint.put(folder, steps)

    def _report(self) -> None:
        """Query the board periodically, without ever waiting for it."""
        with contextlib.suppress(self.ray.exceptions.RayError):
            if self.asked is None:
                self.asked = self.board.read.remote()
            elif self.ray.wait([self.asked], timeout=0)[0]:
                answer, self.asked = self.asked, None
                self.steps |= self.ray.get(answer)
        self.job.report(self._under_way())

    def _under_way(self) -> dict[range, int]:
        return {chunk: self.steps.get(chunk.start, 0) for chunk in self.chunks if chunk.start in self.job.missing}


def _put_up_board(ray: Any) -> Any:
    """An actor next to the driver: workers report their progress and read whether to stop.

    The class is defined here so that it is sent by value: a process that only counts need not import torch.
    """

    class Board:
        def __init__(self) -> None:
            self.done: dict[int, int] = {}
            self.stopping = False

        def note(self, start: int, done: int) -> bool:
            self.done[start] = done
            return self.stopping

        def stop(self) -> None:
            self.stopping = True

        def read(self) -> dict[int, int]:
            return self.done

    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()


def _named(chunk: range) -> str:
    return f"models {chunk.start} to {chunk.stop - 1}" if len(chunk) > 1 else f"model {chunk.start}"


def _failure(chunk: range, outcome: TaskOutcome) -> AirlockError:
    """A worker's error, as it would have been raised here."""
    if outcome.said is not None:
        kind: type[AirlockError] = getattr(errors, outcome.error, TrainingError)
        return kind(*outcome.said)
    found = TrainingError(
        f"{_named(chunk)} to be trained",
        f"an error in a worker ({outcome.error})",
        "It would happen again, so the models were not retried.",
    )
    found.__cause__ = RuntimeError(outcome.trace)
    return found

"""The one training loop: draw, compute a gradient, step, average; checkpoint periodically and on Ctrl-C.

Plain and private training differ only in the sampler and the gradient source that are passed in. Every random choice of
a step follows from the seed (or the stream) and the step's number, so that a resumed run on a CPU ends in the same bits
as an uninterrupted one.

The random treatment of a record (dropout, augmentation) depends on its position in the lot, and adding a record shifts
the positions of others. In private training it is therefore drawn from a secret stream: the others are then treated
differently, but with the same distribution, whoever was drawn. With a public seed, the presence of one record would
show in the treatment of all others. The same goes for which records of a person enter a step.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.config import Frozen, Positive
from airlock.errors import Interrupted, TrainingError
from airlock.mechanisms import Stream
from airlock.nets.registry import seed_torch
from airlock.training import checkpoint
from airlock.training.adam_bc import AdamBC
from airlock.training.devices import Resident
from airlock.training.distributed import ALONE, Group, digest
from airlock.training.gradients import Gradients, GradientsOfPeople, Named
from airlock.training.per_sample.sealed import USES
from airlock.training.sampling import Index, Sampler
from airlock.training.sharding import ShardedParameters

# Learning-rate schedules: a linear warm-up, then constant, or linear or cosine decay to zero.

Schedule = Literal["constant", "linear", "cosine"]


def scheduled_rate(schedule: Schedule, peak: float, warmup: float, step: int, steps: int) -> float:
    """The learning rate of a step; a function of public numbers alone."""
    rise = math.ceil(warmup * steps)
    if step < rise:
        return peak * (step + 1) / (rise + 1)
    done = (step - rise) / max(1, steps - rise)
    if schedule == "linear":
        return peak * (1.0 - done)
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * done))
    return peak


# The loop.

_CPU = torch.device("cpu")
_COMPARED = 200  # steps between two comparisons of the weights of several processes

Progress = Callable[[str, int, int], None]
Augment = Callable[[Tensor, torch.Generator], Tensor]
Watch = Callable[[int, Callable[[], Named]], None]


class Recipe(Frozen):
    """How to optimise.

    Args:
        steps: The number of optimiser steps.
        optimiser: SGD (with momentum), Adam, or Adam that takes the noise off its second moment (`adam_bc`).
        learning_rate: The peak learning rate.
        momentum: The momentum of SGD.
        weight_decay: L2 penalty through the optimiser.
        schedule: How the learning rate changes from its peak to the end.
        warmup: Fraction of the steps over which it rises linearly.
        ema: Decay of the running average of the weights that is released at the end; 0 releases the last weights.
        precision: On a GPU: float32, TF32 matrix products, or bfloat16 autocast. On a CPU always float32.
        channels_last: Whether images use the channels-last memory format on a GPU.
    """

    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    optimiser: Literal["sgd", "adam", "adam-bc"] = "sgd"
    learning_rate: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Schedule = "constant"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    channels_last: bool = False


@dataclass(frozen=True)
class Run:
    """How this run is carried out; nothing here changes the distribution of its result.

    Args:
        device: Where to compute.
        progress: Called with a label, the steps done, and the total number of steps.
        checkpoint: Folder for checkpoints; without it, none are written.
        resume: Continue from the checkpoint if there is one.
        checkpoint_seconds: The most work that a crash can lose.
        group: The processes that train together.
        workers: Processes that compute features; 0 computes them in this one.
        engine: Where features are computed: on this machine, or on a Ray cluster.
    """

    device: torch.device = _CPU
    progress: Progress | None = None
    checkpoint: Path | None = None
    resume: bool = False
    checkpoint_seconds: float = 60.0
    group: Group = ALONE
    workers: int = 0
    engine: Literal["local", "ray"] = "local"


def fit(
    net: nn.Module,
    data: Resident,
    sampler: Sampler,
    gradients: Gradients,
    recipe: Recipe,
    seed: int,
    run: Run,
    augment: Augment | None = None,
    label: str = "training",
    secret: Stream | None = None,
    watch: Watch | None = None,
) -> int:
    """Train `net` in place and return the number of executed steps; `secret` drives dropout and augmentation.

    `watch` is called after every step with the number of steps done and a function that returns the tensors that
    training would end with at that point. A resumed run may call it for some steps again.

    In a sharded group the network is in shards meanwhile, and in the end on the CPU of every process.

    Raises:
        Interrupted: Ctrl-C; the checkpoint (if there is a folder for one) holds all steps done so far.
    """
    session = _Session(net, data, sampler, gradients, recipe, seed, run, augment, secret)
    with session.kept_whole():
        _steps(session, recipe, run, label, watch)
    return recipe.steps


def _steps(session: _Session, recipe: Recipe, run: Run, label: str, watch: Watch | None) -> None:
    first = session.restore()
    saved = time.monotonic()
    with (
        precision(recipe.precision, run),
        forked_generator(run.device),
        session.looking_ahead(),
        watch_interrupt() as interrupted,
    ):
        session.net.train()
        for step in range(first, recipe.steps):
            session.advance(step)
            if watch:
                watch(step + 1, session.ended)
            if run.progress:
                run.progress(label, step + 1, recipe.steps)
            if run.group.agreed(interrupted()) and step + 1 < recipe.steps:
                session.compare()
                session.save(step + 1)
                raise interruption(step + 1, recipe.steps, kept=run.checkpoint is not None)
            if session.due(time.monotonic() - saved > run.checkpoint_seconds):
                session.save(step + 1)
                saved = time.monotonic()
            if (step + 1) % _COMPARED == 0:
                session.compare()
    session.compare()
    session.finish()


def interruption(done: int, steps: int, kept: bool) -> Interrupted:
    """Ctrl-C, as an error that says how far training got."""
    return Interrupted(
        "to finish training",
        f"Ctrl-C after {done} of {steps} steps",
        "Nothing was released." if kept else "Nothing was released or kept.",
        "Run the same command with --resume to continue." if kept else "",
    )


class _Session:
    """One run: the network, its optimiser and its averaged weights, advanced step by step."""

    def __init__(
        self,
        net: nn.Module,
        data: Resident,
        sampler: Sampler,
        gradients: Gradients,
        recipe: Recipe,
        seed: int,
        run: Run,
        augment: Augment | None,
        secret: Stream | None,
    ) -> None:
        self.net, self.data, self.sampler, self.gradients = net, data, sampler, gradients
        self.recipe, self.run, self.augment, self.secret = recipe, run, augment, secret
        self.seed = mix(seed, -run.group.rank) if run.group.rank else seed  # other records, other dropout
        group = run.group
        group.begin()
        self.mark = {"recipe": recipe.model_dump(), "seed": seed, **gradients.mark}
        _require_parts(gradients, group)
        group.require_same("training", self._task, "Their sum would not be one gradient.")
        self.shards: ShardedParameters | None = None
        wanted = recipe.channels_last and run.device.type == "cuda"
        self.memory_format = torch.channels_last if wanted else torch.contiguous_format
        if group.sharded:
            group.spread(net.state_dict().values())
            self.shards = ShardedParameters(net, group, run.device)
        else:
            net.to(device=run.device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.held = dict(net.named_parameters()) if self.shards is None else self.shards.local
        if hasattr(gradients, "join"):
            gradients.join(group, self.shards)
        self.optimiser = _optimiser(self.held.values(), recipe)
        self.averaged = {name: p.detach().clone() for name, p in self.held.items()} if recipe.ema else {}
        self.stream: Stream | None = getattr(gradients, "stream", None)  # plain gradients have none
        self.ahead: ThreadPoolExecutor | None = None
        self.pending: Future[tuple[Index, Index, Tensor | None, Tensor]] | None = None
        self.folder = run.checkpoint
        if self.shards is not None:  # all write theirs to the lead's folder
            sent = group.send(None if run.checkpoint is None else str(run.checkpoint).encode())
            self.folder = None if sent is None else Path(sent.decode())

    @contextlib.contextmanager
    def looking_ahead(self) -> Iterator[None]:
        """A thread for the next step's records where they are in a file; at the end it is waited for."""
        if not self.data.in_file:
            yield
            return
        with ThreadPoolExecutor(1) as self.ahead:
            yield

    def restore(self) -> int:
        """Restore the lead's checkpoint, if there is one; otherwise every process starts from the lead's weights."""
        group, folder = self.run.group, self.run.checkpoint if self.run.resume else None
        if self.shards is not None:
            return self._restore_shards(self.shards)
        content = group.send(checkpoint.read(folder) if folder and group.lead else None)
        if content is None:
            group.spread(self._weights())
            return 0
        load_state = self.gradients.load_state
        done = checkpoint.restore(content, self.mark, self.net, self.averaged, self.optimiser, load_state)
        if self.stream is not None:
            self.stream.note_drawn(*checkpoint.drawn_on(content))
        return done

    def _restore_shards(self, shards: ShardedParameters) -> int:
        group, folder = self.run.group, self.folder
        resumes = group.lead and self.run.resume and folder is not None and checkpoint.is_in(folder)
        if folder is None or not group.highest(int(resumes)):
            return 0
        done, drawn = checkpoint.restore_shards(
            folder, self.mark, shards, self.averaged, self.optimiser, self.gradients.load_state
        )
        if self.stream is not None:
            self.stream.note_drawn(*drawn)
        return done

    @contextlib.contextmanager
    def kept_whole(self) -> Iterator[None]:
        """However it ends, nobody is left with a network whose parameters have no memory."""
        try:
            yield
        except BaseException:
            if self.shards is not None:
                self.shards.abandon()
            raise

    def compare(self) -> None:
        """Refuse to continue if the weights have drifted apart between processes; of shards there is one of each."""
        self.run.group.require_same("weights", lambda: digest(self._weights()), "It would no longer be one network.")

    def _task(self) -> bytes:
        shapes = {name: tuple(value.shape) for name, value in self.net.state_dict().items()}
        return repr((self.mark, shapes)).encode()

    def _weights(self) -> list[Tensor]:
        if self.shards is not None:
            return list(self.net.buffers())
        return [*self.net.state_dict().values(), *self.averaged.values()]

    def due(self, wish: bool) -> bool:
        """Whether a checkpoint is to be written now; with shards, all write theirs together, by the lead's clock."""
        group = self.run.group
        return wish if self.shards is None else group.agreed_to_save(wish and group.lead)

    def save(self, step: int) -> None:
        drawn = self.stream.drawn_on if self.stream is not None else ()
        state = self.gradients.state()
        if self.shards is not None:
            if self.folder is not None:
                checkpoint.save_shards(
                    self.folder, step, self.mark, self.shards, self.averaged, self.optimiser, state, drawn
                )
        elif self.run.checkpoint and self.run.group.lead:
            checkpoint.save(self.run.checkpoint, step, self.mark, self.net, self.averaged, self.optimiser, state, drawn)

    def advance(self, step: int) -> None:
        recipe = self.recipe
        variances = self._noise_variances() if isinstance(self.optimiser, AdamBC) else []
        x, y, owners = self._lot(step)
        chance = self._chance(step)
        seed_torch(chance, self.run.device)  # dropout
        if self.augment is not None and len(y):
            x = self.augment(x, torch.Generator(device=x.device).manual_seed(chance ^ 1))
        if x.dim() == 4:
            x = x.contiguous(memory_format=self.memory_format)
        if owners is None:
            self.gradients(self.net, x, y, step)
        else:
            cast(GradientsOfPeople, self.gradients)(self.net, x, y, step, owners)
        for group in self.optimiser.param_groups:
            group["lr"] = scheduled_rate(recipe.schedule, recipe.learning_rate, recipe.warmup, step, recipe.steps)
        if isinstance(self.optimiser, AdamBC):
            self.optimiser.noise_variances = variances
        self.optimiser.step()
        self._average(min(recipe.ema, (1 + step) / (10 + step)))

    def _lot(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """A step's records. Those of a file are read while the step before is computed."""
        if self.ahead is None:
            drawn = self.run.group.part(self.sampler.draw(step, self.data.units))
            return self.data.lot(drawn, lambda count: self._choice(step, count))
        whole, rows, owners, x = (self.pending or self.ahead.submit(self._read, step)).result()
        self.pending = self.ahead.submit(self._read, step + 1) if step + 1 < self.recipe.steps else None
        self.run.group.part(whole)
        return *self.data.sent(x, rows), owners

    def _read(self, step: int) -> tuple[Index, Index, Tensor | None, Tensor]:
        """A step's lot, this process' records of it, whose they are, and their inputs; done in a thread of its own.

        It leaves the device alone, which may be capturing a graph at that moment.
        """
        whole = self.sampler.draw(step, self.data.units)
        rows, owners = self.data.rows(self.run.group.own(whole), lambda count: self._choice(step, count))
        return whole, rows, owners, self.data.held(rows)

    def _noise_variances(self) -> list[Tensor]:
        """The noise on a coordinate of every trainable parameter in the next step, in the order of the optimiser.

        Raises:
            TrainingError: The gradients do not say how large their noise is.
        """
        variance = getattr(self.gradients, "noise_variance", None)
        if variance is None:
            raise TrainingError(
                'gradients with noise of a known size for optimiser = "adam-bc"',
                f"{type(self.gradients).__name__}",
                "What is noise could not be told from what is not.",
                'Set optimiser = "adam".',
            )
        found = {name: variance(name) for name, p in self.held.items() if p.requires_grad}
        if self.shards is None:
            return list(found.values())
        return [self.shards.pieces[name].cut(value) for name, value in found.items()]

    def _chance(self, step: int) -> int:
        """The seed of dropout and augmentation in this step."""
        if self.secret is None:
            return mix(self.seed, step)
        return mix(int.from_bytes(self.secret.child("step", step, *self._own).take_key()[:8], "little"), step)

    def _choice(self, step: int, count: int) -> NDArray[np.float64]:
        """Uniform numbers that decide which records of a person enter this step."""
        if self.secret is None:
            return np.random.default_rng([self.seed, step]).random(count)
        return self.secret.child("rows", step, *self._own).uniform(count)

    @property
    def _own(self) -> tuple[int, ...]:
        """Other processes have other records, and treat them with other randomness."""
        return (self.run.group.rank,) if self.run.group.rank else ()

    def _average(self, decay: float) -> None:
        with torch.no_grad():
            for name, value in self.averaged.items():
                value.lerp_(self.held[name], 1 - decay)

    def ended(self) -> Named:
        """The parameters and buffers that would result if this were the last step."""
        buffers = {name: value.detach() for name, value in self.net.named_buffers()}
        if self.shards is not None:
            return {**self.shards.copies(self.averaged), **buffers}
        return {name: value.detach() for name, value in self.net.named_parameters()} | buffers | self.averaged

    def finish(self) -> None:
        with torch.no_grad():
            for name, value in self.averaged.items():
                self.held[name].copy_(value)
        if self.shards is not None:
            vars(self.net).pop(USES, None)
            self.shards.dissolve()
        if self.run.checkpoint and self.run.group.lead:
            checkpoint.remove(self.run.checkpoint)


def _require_parts(gradients: Gradients, group: Group) -> None:
    """Refuse a gradient source to which nobody can say that its batches are parts of a lot."""
    if group.world > 1 and not hasattr(gradients, "join"):
        raise TrainingError(
            "gradients that can be added up over several processes",
            f"{type(gradients).__name__}, which cannot",
            "Each process would train on its own part of the records.",
            "Train in one process.",
        )


def mix(seed: int, step: int) -> int:
    """A 63-bit number from seed and step (the finaliser of SplitMix64)."""
    value = (seed * 0x9E3779B97F4A7C15 + step + 1) & (2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & (2**64 - 1)
    return (value ^ (value >> 31)) >> 1


def _optimiser(held: Iterable[Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    trainable = cast(list[nn.Parameter], [p for p in held if p.requires_grad])
    if recipe.optimiser == "adam-bc":
        return AdamBC(trainable, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    if recipe.optimiser == "adam":
        return torch.optim.Adam(trainable, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        trainable, lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


@contextlib.contextmanager
def precision(name: str, run: Run) -> Iterator[None]:
    """TF32 or bfloat16 on a GPU for the duration of the run; the global switches are restored."""
    if run.device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "fp32"
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=name == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextlib.contextmanager
def forked_generator(device: torch.device) -> Iterator[None]:
    """Restore torch's generators on exit, whatever is drawn in between."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


class _Pressed:
    """Handles Ctrl-C by recording it; a second one stops at once."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


@contextlib.contextmanager
def watch_interrupt() -> Iterator[Callable[[], bool]]:
    """Record the first Ctrl-C until the step is complete; nested watches share it."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    own = _Pressed()
    before = signal.signal(signal.SIGINT, own)
    own.pressed |= isinstance(before, _Pressed) and before.pressed
    try:
        yield lambda: own.pressed
    finally:
        signal.signal(signal.SIGINT, before)
        if own.pressed and isinstance(before, _Pressed):
            before.pressed = True

"""Several processes that train one network together, started by `torchrun`; a single process needs none of this.

Every process holds all records and draws the same lot, from a secret stream shared by the lead; each sums the clipped
gradients of its part of the lot. The sums are added up on the lead (process 0), which adds the noise and sends the
noisy gradient to all.

Why the guarantee is that of one process. The lot is one Poisson lot over the whole private set and its parts are
disjoint, so the sum of the parts has the sensitivity of the whole; noise is added once, from a key that never leaves
the lead. Everything after that is computed from the noisy gradients alone, in every process: even if two processes
rounded differently and their weights drifted apart, that would be post-processing. It would no longer be one network,
though, so weights are compared periodically and a difference is refused. The argument needs equal records and equal
lots; both are checked.

With `sharded`, every process keeps only shards of the network (`training.sharding`): it gets the sum of its own rows
and adds the noise on these. They share the key of the noise for this; a number of noise belongs to one coordinate, and
a coordinate to one process, so the guarantee is still that of one process.

The link between the processes carries the key of the lots (with shards, that of the noise too) and sums without noise:
it must be private.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from airlock.errors import ConfigError, TrainingError
from airlock.mechanisms import Stream
from airlock.training.devices import choose_device
from airlock.training.sampling import Index

_ASSUMPTION = (
    "{world} processes trained together{how}. The network between them is private: the key of the lots{keys} and sums "
    "of gradients without noise crossed it."
)
TIMEOUT = datetime.timedelta(minutes=10)
_TAIL = 4  # numbers appended to a gradient: dropped records, requests to stop and to save, a fingerprint of the lot
_LOT_BITS = 0xFFF  # so that the fingerprints of 4096 processes add up exactly in float32


class Group:
    """The processes that train together; without arguments, this process alone.

    Args:
        rank: The number of this process; 0 is the lead.
        world: The number of processes.
        device: Where this process computes; None leaves the choice to the config.
        gradients: The torch group for gradients (nccl); None for the one used for everything else (gloo).
        sharded: Whether each process keeps a part of the network only.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
        gradients: dist.ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        self.rank, self.world, self.device, self._gradients = rank, world, device, gradients
        self.sharded = sharded
        self._lot = 0
        self.begin()

    @property
    def lead(self) -> bool:
        """Whether this process adds the noise, shows progress and writes files."""
        return self.rank == 0

    def begin(self) -> None:
        """Start a new run: no process has requested anything."""
        self._wishes, self._granted = [0, 0], [False, False]

    def part(self, lot: Index) -> Index:
        """This process' records of a lot; the parts are disjoint and make up the lot. A part may be empty."""
        if self.world > 1:
            self._lot = zlib.crc32(lot.tobytes()) & _LOT_BITS
        return self.own(lot)

    def own(self, lot: Index) -> Index:
        """The same records, without noting which lot it was."""
        return lot[self.rank :: self.world] if self.world > 1 else lot

    def once(self, values: Tensor, dropped: int, mechanism: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        """The mechanism on the sum of all processes' values, run once, on the lead; every process gets the same bits.

        An empty part contributes zeros. The same message adds up the counts of dropped records, collects requests to
        stop (`agreed`), and checks that every process drew the same lot (`part`).

        Args:
            values: This process' share of the sum; flat, of the same length everywhere.
            dropped: How many records it dropped.
            mechanism: Maps the sum to a tensor of the same shape.

        Raises:
            TrainingError: The lots differ, or a process does not answer.
        """
        if self.world == 1:
            return mechanism(values), dropped
        tail = torch.tensor([dropped, *self._wishes, self._lot], dtype=torch.float32, device=values.device)
        message = torch.cat([values, tail])
        message = message if self._gradients else message.cpu()
        with answers(self.world):
            dist.reduce(message, 0, group=self._gradients)
        if self.lead:
            message[:-_TAIL].copy_(mechanism(message[:-_TAIL].to(values.device)))
        with answers(self.world):
            dist.broadcast(message, 0, group=self._gradients)
        lost, *wishes, lots = message[-_TAIL:].tolist()
        if lots != self.world * self._lot:  # unless all are equal, at least two processes stop the run
            raise _different("lot", "A record could enter a step with another probability than was accounted for.")
        self._granted = [count > 0 for count in wishes]
        return message[:-_TAIL].to(values.device), int(lost)

    def agreed(self, wish: bool) -> bool:
        """Whether all stop after this step. In a group, requests travel with the next gradient: all stop together."""
        return self._agreed(0, wish)

    def agreed_to_save(self, wish: bool) -> bool:
        """Whether all save a checkpoint after this step, in the same way."""
        return self._agreed(1, wish)

    def _agreed(self, what: int, wish: bool) -> bool:
        if self.world == 1:
            return wish
        self._wishes[what] = int(wish)
        return self._granted[what]

    @property
    def assumption(self) -> str:
        """What is assumed about the network between the processes, for the card."""
        how, keys = (", each with a part of the network", " and that of the noise") if self.sharded else ("", "")
        return _ASSUMPTION.format(world=self.world, how=how, keys=keys)

    def share(self, stream: Stream) -> Stream:
        """The lead's stream, in every process; the stream passed in is used up."""
        return stream if self.world == 1 else stream.shared(self.send(stream.take_key()) or b"")

    def send(self, content: bytes | None) -> bytes | None:
        """The content passed in by the lead, in every process."""
        if self.world == 1:
            return content
        size = torch.tensor([-1 if content is None or not self.lead else len(content)])
        with answers(self.world):
            dist.broadcast(size, 0)
            if size.item() < 0:
                return None
            whole = bytearray(content) if self.lead and content is not None else bytearray(int(size))
            if whole:
                dist.broadcast(torch.frombuffer(whole, dtype=torch.uint8), 0)
        return bytes(whole)

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite these tensors with the lead's."""
        if self.world == 1:
            return
        with torch.no_grad(), answers(self.world):
            for tensor in tensors:
                copy = tensor.detach().cpu().contiguous()
                dist.broadcast(copy, 0)
                tensor.copy_(copy)

    def require_same(self, what: str, content: Callable[[], bytes], why: str) -> None:
        """Refuse, in every process, unless all have the same content; it is not computed for a single process."""
        if self.world > 1 and len(set(_gather(hashlib.sha256(content()).digest(), self.world))) > 1:
            raise _different(what, why)

    def highest(self, level: int) -> int:
        """The highest of all processes' levels."""
        if self.world == 1:
            return level
        found = torch.tensor([level])
        with answers(self.world):
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def for_tensors(self, device: torch.device) -> Any:
        """The torch group in which tensors on this device are gathered and reduced.

        Raises:
            ConfigError: There is none: two processes share a GPU.
        """
        if self._gradients is None and device.type != "cpu":
            raise ConfigError(
                "a GPU of its own for each of the processes that hold shards, with nccl",
                "processes that share one",
                "Shards of two processes on one GPU would save no memory.",
                'Start as many processes on a machine as it has GPUs, or set device = "cpu".',
            )
        return self._gradients or dist.group.WORLD

    def leave(self) -> None:
        """The joint work is done; each process continues on its own."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


ALONE = Group()


@contextlib.contextmanager
def joined(device: str, timeout: datetime.timedelta = TIMEOUT, sharded: bool = False) -> Iterator[Group]:
    """The group that `torchrun` describes in the environment; without it, this process alone.

    Gradients go through nccl if every process has a GPU of its own; otherwise they, and always everything else, go
    through gloo.

    Args:
        device: As in the config; "auto" and "cuda" give every process of a machine the next GPU.
        timeout: If a process does not answer within this time, the run is aborted.
        sharded: Each process keeps a part of the network only.

    Raises:
        ConfigError: The environment is not complete, or there are no processes to divide the network among.
        TrainingError: The others cannot be reached.
    """
    world = _number("WORLD_SIZE", "1")
    if world == 1:
        if sharded:
            raise ConfigError(
                "several processes for --shard",
                "one",
                "They divide the parameters among themselves.",
                "Start it with torchrun --nproc-per-node N, or leave --shard out.",
            )
        yield ALONE
        return
    rank = _number("RANK")
    own = _own_device(device, _number("LOCAL_RANK", str(rank)))
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        _word(name)
    with answers(world):
        dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timeout)
    group = Group(rank, world, own, _nccl(own, world, timeout), sharded)
    try:
        yield group
    except BaseException:
        if group._gradients is None:  # nccl would wait for processes that have ended
            group.leave()
        raise
    group.leave()


def digest(tensors: Iterable[Tensor]) -> bytes:
    """A fingerprint of the tensors' bits."""
    total = hashlib.sha256()
    for tensor in tensors:
        if tensor.numel():  # bytes of an empty tensor cannot be viewed
            total.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().data)
    return total.digest()


def _own_device(name: str, local_rank: int) -> torch.device:
    device = choose_device(name)
    if device.type == "cuda":
        if ":" not in str(device):
            device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def _nccl(device: torch.device, world: int, timeout: datetime.timedelta) -> dist.ProcessGroup | None:
    """A group over nccl if every process has a GPU of its own; all processes reach the same answer."""
    name = b""
    if device.type == "cuda" and dist.is_nccl_available():
        card = getattr(torch.cuda.get_device_properties(device), "uuid", device)
        name = f"{socket.gethostname()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {card}".encode()
    names = _gather(hashlib.sha256(name).digest(), world)
    if hashlib.sha256(b"").digest() in names or len(set(names)) < world:
        return None
    with answers(world):
        group: dist.ProcessGroup | None = dist.new_group(backend="nccl", timeout=timeout)
    return group


def _gather(content: bytes, world: int) -> list[bytes]:
    mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    theirs = [torch.empty_like(mine) for _ in range(world)]
    with answers(world):
        dist.all_gather(theirs, mine)
    return [bytes(one.tolist()) for one in theirs]


@contextlib.contextmanager
def answers(world: int) -> Iterator[None]:
    """An error from torch while communicating means that one of the processes has ended or cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"an answer from each of the {world} processes",
            "none from at least one of them",
            "A lot is complete only with all of its parts, so nothing was released.",
            "Check the output of the other processes; then run the same command again, with --resume to continue.",
        ) from error


def _different(what: str, why: str) -> TrainingError:
    return TrainingError(
        f"the same {what} in every process",
        "a difference",
        why,
        "Use the same version of Airlock and torch, the same config, the same data and the same kind of machine.",
    )


def _word(name: str, default: str = "") -> str:
    value = os.environ.get(name) or default
    if not value:
        raise ConfigError(
            f"{name} in the environment along with WORLD_SIZE", "none", do="Start the processes with torchrun."
        )
    return value


def _number(name: str, default: str = "") -> int:
    value = _word(name, default)
    if not value.isdecimal():
        raise ConfigError(
            f"a number in the environment's {name}", f"'{value}'", do="Start the processes with torchrun."
        )
    return int(value)

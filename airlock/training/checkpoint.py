"""A training run on disk: safetensors files with everything that the next step depends on, replaced atomically.

Weights, averaged weights, optimiser state, the gradient source's state and the step are stored together with a mark of
the run (its recipe, seed and gradient source). A checkpoint with another mark is refused: continuing with other noise
or another seed would void the accounting. Streams need no state here: a step's randomness follows from its number.
After a resume a system-keyed stream starts with a new key, which is sound: the lost steps were never released. Under a
register, which charges each draw, it starts with the same one (`bundle.booking`).

A run whose network is in shards (`training.sharding`) leaves one file for each process with its rows, in one folder
that all processes reach, and the common file, which is written last and says how many there are. Each row's place in
the whole parameter is in its file. So any number of processes continues the run, in shards or not, and a run that was
not in shards may be continued in shards: every process reads the rows that it needs.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from airlock.errors import OutputError, TrainingError
from airlock.mechanisms import Place
from airlock.training.sharding import Piece, ShardedParameters

NAME = "checkpoint.safetensors"
_SHARDS = "checkpoint.*.*-of-*.safetensors"
_DAMAGE = (SafetensorError, ValueError, KeyError, OSError)
_WORLD = "shards"  # in the common file: how many files of shards there are
ANEW = "Begin anew: --again for a release, without --resume for an audit."


def save(
    folder: Path,
    step: int,
    mark: Mapping[str, object],
    net: nn.Module,
    averaged: Mapping[str, Tensor],
    optimiser: torch.optim.Optimizer,
    gradients: Mapping[str, Tensor],
    drawn_on: Sequence[Place] = (),
) -> None:
    """Write a checkpoint; an interrupted write leaves the previous one intact."""
    tensors = {f"net/{name}": value for name, value in net.state_dict().items()}
    tensors |= {f"averaged/{name}": value for name, value in averaged.items()}
    tensors |= {f"gradients/{name}": value for name, value in gradients.items()}
    for place, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{place}/{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    metadata = {"step": str(step), "mark": json.dumps(mark, sort_keys=True), "drawn_on": " ".join(drawn_on)}
    write(folder / NAME, {key: value.clone() for key, value in tensors.items()}, metadata)


def _of_process(folder: Path, step: int, rank: int, world: int) -> Path:
    return folder / f"checkpoint.{step}.{rank}-of-{world}.safetensors"


def save_shards(
    folder: Path,
    step: int,
    mark: Mapping[str, object],
    shards: ShardedParameters,
    averaged: Mapping[str, Tensor],
    optimiser: torch.optim.Optimizer,
    gradients: Mapping[str, Tensor],
    drawn_on: Sequence[Place] = (),
) -> None:
    """Write this process' part of a checkpoint; all processes call it. It counts once the lead's file is complete."""
    group, tensors, rows, single = shards.group, {}, {}, []
    trainable = [name for name, piece in shards.pieces.items() if piece.local.requires_grad]
    kept = {f"net/{name}": (name, value.detach()) for name, value in shards.local.items()}
    kept |= {f"averaged/{name}": (name, value) for name, value in averaged.items()}
    for place, state in optimiser.state_dict()["state"].items():
        named = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        kept |= {f"optimiser/{place}/{key}": (trainable[place], value) for key, value in named.items()}
    for key, (name, value) in kept.items():
        piece = shards.pieces[name]
        tensors[key] = value.clone()
        if value.dim() == piece.local.dim() and len(value) == len(piece.local):
            rows[key] = [piece.start, piece.stop]
            single += [] if piece.shape else [key]
    known = {"rows": json.dumps(rows), "single": json.dumps(single)}
    write(_of_process(folder, step, group.rank, group.world), tensors, known)
    group.highest(0)  # all have written theirs
    if group.lead:
        buffers = {f"net/{name}": value for name, value in shards.net.named_buffers() if name in _saved(shards.net)}
        common = buffers | {f"gradients/{name}": value for name, value in gradients.items()}
        metadata = {"step": str(step), "mark": json.dumps(mark, sort_keys=True), "drawn_on": " ".join(drawn_on)}
        write(
            folder / NAME, {key: value.clone() for key, value in common.items()}, {**metadata, _WORLD: str(group.world)}
        )
        for old in folder.glob(_SHARDS):
            if not old.name.startswith(f"checkpoint.{step}."):
                old.unlink(missing_ok=True)


def _saved(net: nn.Module) -> set[str]:
    return set(net.state_dict())


def write(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file readable by its owner alone, renamed when complete, so that it is never partial."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, aside, metadata)
        os.chmod(aside, 0o600)
        os.replace(aside, file)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise OutputError("a folder that can be written to", f"an error ({error})") from error


def is_in(folder: Path) -> bool:
    """Whether there is a checkpoint in the folder."""
    return (folder / NAME).exists()


def read(folder: Path) -> bytes | None:
    """The bytes of the checkpoint in the folder, put together if it is in shards; None if there is none.

    A damaged one is not refused here, where only the lead is, but by `restore`, which all processes call.
    """
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainingError("a readable checkpoint", f"an error ({error})", do=ANEW) from error
    try:
        metadata = _metadata(content)
        if _WORLD not in metadata:
            return content
        whole = Stored(folder)
        tensors = {key: whole.whole(key) for key in whole.keys}
        return save_bytes(tensors, {key: value for key, value in metadata.items() if key != _WORLD})
    except _DAMAGE:
        return b""


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Whatever goes wrong while a checkpoint is read is its damage."""
    try:
        yield
    except _DAMAGE as error:
        raise TrainingError("a readable checkpoint", f"a damaged one ({error})", do=ANEW) from error


class Stored:
    """The tensors of a checkpoint, in one file or in shards, to be read row by row.

    Args:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        content = (folder / NAME).read_bytes()
        self.metadata = _metadata(content)
        self._common = load(content)
        self._parts: list[tuple[Any, dict[str, tuple[int, int]]]] = []
        world = int(self.metadata.get(_WORLD, "0"))
        for rank in range(world):
            file: Any = safe_open(_of_process(folder, int(self.metadata["step"]), rank, world), "pt")
            self._parts.append((file, json.loads(file.metadata()["rows"])))
        first = self._parts[0][0] if self._parts else None
        self._single = json.loads(first.metadata()["single"]) if first else []  # one number, without dimensions
        self.keys = [*self._common, *(first.keys() if first else [])]

    def whole(self, key: str) -> Tensor:
        """A tensor as one."""
        if key in self._common:
            return self._common[key]
        file, rows = self._parts[0]
        if key not in rows:
            return cast(Tensor, file.get_tensor(key))
        found = torch.cat([file.get_tensor(key) for file, _ in self._parts])
        return found.reshape(()) if key in self._single else found

    def own(self, key: str, piece: Piece) -> Tensor:
        """The rows of a tensor that belong to this piece of a parameter; all of one that is the same for all rows."""
        if not piece.shape:
            return self.whole(key).reshape(1)[piece.start : piece.stop]
        if not self._parts or key not in self._parts[0][1]:
            return piece.cut(self.whole(key))
        found = []
        for file, rows in self._parts:
            first, last = rows[key]
            begin, end = max(piece.start, first), min(piece.stop, last)
            if begin < end:
                found.append(file.get_slice(key)[begin - first : end - first])
        return torch.cat(found) if found else self._parts[0][0].get_tensor(key)[:0]


def put(folder: Path, content: bytes) -> None:
    """Write a checkpoint that was read elsewhere into a folder, readable by its owner alone."""
    aside = folder / f".{NAME}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.touch(mode=0o600)
        aside.write_bytes(content)
        os.replace(aside, folder / NAME)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError("a folder that can be written to", f"an error ({error})") from error


def restore(
    content: bytes,
    mark: Mapping[str, object],
    net: nn.Module,
    averaged: dict[str, Tensor],
    optimiser: torch.optim.Optimizer,
    load_gradients: Callable[[Mapping[str, Tensor]], None],
) -> int:
    """Restore everything and return the number of steps that were executed."""
    try:
        tensors = load(content)
        metadata = _metadata(content)
    except (SafetensorError, ValueError) as error:
        raise TrainingError("a readable checkpoint", f"a damaged one ({error})", do=ANEW) from error
    _require_mark(metadata, mark)
    net.load_state_dict({key[4:]: value for key, value in tensors.items() if key.startswith("net/")})
    for name in averaged:
        averaged[name].copy_(tensors[f"averaged/{name}"])
    _load_optimiser(optimiser, tensors)
    load_gradients({key[10:]: value for key, value in tensors.items() if key.startswith("gradients/")})
    return int(metadata["step"])


def restore_shards(
    folder: Path,
    mark: Mapping[str, object],
    shards: ShardedParameters,
    averaged: dict[str, Tensor],
    optimiser: torch.optim.Optimizer,
    load_gradients: Callable[[Mapping[str, Tensor]], None],
) -> tuple[int, tuple[Place, ...]]:
    """Restore this process' rows; returns the number of executed steps, and where their noise was computed."""
    with _readable():
        whole = Stored(folder)
        _require_mark(whole.metadata, mark)
        with torch.no_grad():
            for name, piece in shards.pieces.items():
                piece.local.copy_(whole.own(f"net/{name}", piece))
                if name in averaged:
                    averaged[name].copy_(whole.own(f"averaged/{name}", piece))
            for name, value in shards.net.named_buffers():
                if f"net/{name}" in whole.keys:
                    value.copy_(whole.whole(f"net/{name}"))
        trainable = [piece for piece in shards.pieces.values() if piece.local.requires_grad]
        state: dict[int, dict[str, Tensor]] = {}
        for key in whole.keys:
            if key.startswith("optimiser/"):
                _, place, name = key.split("/", 2)
                counts = name == "step"  # the same for all rows
                found = whole.whole(key) if counts else whole.own(key, trainable[int(place)])
                state.setdefault(int(place), {})[name] = found
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
        load_gradients({key[10:]: whole.whole(key) for key in whole.keys if key.startswith("gradients/")})
        return int(whole.metadata["step"]), _drawn_on(whole.metadata)


def _require_mark(metadata: Mapping[str, str], mark: Mapping[str, object]) -> None:
    if metadata.get("mark") != json.dumps(mark, sort_keys=True):
        raise TrainingError(
            "a checkpoint of this very run",
            "one with other settings, another seed or another kind of noise",
            "The budget spent so far would not match the continued run.",
            f"Use the config that it was started with. {ANEW}",
        )


def drawn_on(content: bytes) -> tuple[Place, ...]:
    """Where the noise of the steps in a checkpoint that was just restored was computed."""
    return _drawn_on(_metadata(content))


def _drawn_on(metadata: Mapping[str, str]) -> tuple[Place, ...]:
    places = metadata.get("drawn_on", "").split()
    return tuple(place for place in get_args(Place) if place in places)


def steps_done(content: bytes) -> int:
    """How many steps are in a checkpoint; 0 if it cannot be read."""
    try:
        return int(_metadata(content).get("step", "0"))
    except ValueError:
        return 0


def _metadata(content: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    return found


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser/"):
            _, place, name = key.split("/", 2)
            state.setdefault(int(place), {})[name] = value
    whole = optimiser.state_dict()
    optimiser.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


def remove(folder: Path) -> None:
    """Remove the checkpoint; a finished run needs none."""
    for file in (folder / NAME, *folder.glob(_SHARDS)):
        file.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

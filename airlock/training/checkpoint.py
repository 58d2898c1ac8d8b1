"""A training run on disk: one safetensors file with everything that the next step depends on, replaced atomically.

Weights, averaged weights, optimiser state, the gradient source's state and the step are stored together with a mark of
the run (its recipe, seed and gradient source). A checkpoint with another mark is refused: continuing with other noise
or another seed would void the accounting. Streams need no state here: a step's randomness follows from its number.
After a resume a system-keyed stream starts with a new key, which is sound: the lost steps were never released. Under a
register, which charges each draw, it starts with the same one (`bundle.booking`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from airlock.errors import OutputError, TrainingError
from airlock.mechanisms import Place

NAME = "checkpoint.safetensors"
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


def read(folder: Path) -> bytes | None:
    """The bytes of the checkpoint in the folder; None if there is none."""
    try:
        return (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainingError("a readable checkpoint", f"an error ({error})", do=ANEW) from error


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
    if metadata.get("mark") != json.dumps(mark, sort_keys=True):
        raise TrainingError(
            "a checkpoint of this very run",
            "one with other settings, another seed or another kind of noise",
            "The budget spent so far would not match the continued run.",
            f"Use the config that it was started with. {ANEW}",
        )
    net.load_state_dict({key[4:]: value for key, value in tensors.items() if key.startswith("net/")})
    for name in averaged:
        averaged[name].copy_(tensors[f"averaged/{name}"])
    _load_optimiser(optimiser, tensors)
    load_gradients({key[10:]: value for key, value in tensors.items() if key.startswith("gradients/")})
    return int(metadata["step"])


def drawn_on(content: bytes) -> tuple[Place, ...]:
    """Where the noise of the steps in a checkpoint that was just restored was computed."""
    places = _metadata(content).get("drawn_on", "").split()
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
    (folder / NAME).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

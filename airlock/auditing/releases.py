"""Shadow models by the very method that made what leaves: with its clipping, its noise and its choices.

They cost one release each, train on the private records of the vault's owner, and are thrown away: what is kept of them
is what they say about the pool.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from airlock.auditing.attacks.signals import Mask, ask
from airlock.data import Records, Split
from airlock.mechanisms import Randomness
from airlock.methods import Channel
from airlock.training import Run, checkpoint
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.loop import mix

Logits = NDArray[np.float32]


def release_shadows(
    channel: Channel, split: Split, pool: Records, inside: Mask, rest: Records, beside: Records, seed: int, run: Run
) -> tuple[Logits, Logits]:
    """One release from each row of `inside` and the rest: its logits on the pool and beside it.

    Args:
        channel: The method.
        split: Where the attacked release came from; its public and test parts are used as they are.
        pool: Records of which each shadow knows some.
        inside: Which.
        rest: Records that all of them know.
        beside: Records that none of them knows.
        seed: Of initialisation; the noise comes from the operating system.
        run: Device and progress; with a checkpoint folder, finished shadows are kept there until all are.
    """
    mark = _mark(channel, pool, inside, seed)
    found = []
    for model, row in enumerate(inside):
        file = run.checkpoint / f"release-{model}.safetensors" if run.checkpoint else None
        if file and run.resume and file.exists():
            values = read(file, mark)
        else:
            values = _one(channel, split, pool, row, rest, beside, mix(seed, model), run)
            if file:
                checkpoint.write(file, values, {"mark": mark})
        found.append(values)
        if run.progress:
            run.progress("shadow releases", model + 1, len(inside))
    for model in range(len(inside)) if run.checkpoint else ():
        (run.checkpoint / f"release-{model}.safetensors").unlink(missing_ok=True)  # type: ignore[operator]
    return np.stack([v["pool"].numpy() for v in found]), np.stack([v["beside"].numpy() for v in found])


def _one(
    channel: Channel, split: Split, pool: Records, row: Mask, rest: Records, beside: Records, seed: int, run: Run
) -> dict[str, torch.Tensor]:
    known = pool.take(np.flatnonzero(row))
    own = Records(np.concatenate([known.x, rest.x]), np.concatenate([known.y, rest.y]))
    made = channel.release(replace(split, private=own), Randomness.make(seed), Run(device=run.device))
    net = made.network.net
    return {name: torch.from_numpy(ask(net, part)).float() for name, part in (("pool", pool), ("beside", beside))}


def _mark(channel: Channel, pool: Records, inside: Mask, seed: int) -> str:
    """What the shadows depend on, the noise apart."""
    config = json.dumps(channel.config.model_dump(mode="json"), sort_keys=True)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (pool.x, pool.y, inside)]
    return f"{config} {seed} {digest(tensors).hex()}"

"""Label-only attacks (Choquette-Choo et al. 2021): a model keeps its decision longer around what it was trained on.

In: a model that returns labels and nothing else, and records. Out: the share of queries, including the record itself,
that are answered with the record's true label. For images the queries are shifted copies, or copies with Gaussian noise
of several levels; for binary features some of them are flipped; from texts some tokens are left out. The attacker knows
the record's true label, and needs no shadow model. Noise levels and numbers of queries are settings: nothing is chosen
on the records that are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from airlock.auditing.attacks.signals import QUESTION_LABELS, Answer
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Scores
from airlock.config import Frozen
from airlock.data import Records
from airlock.errors import DataError
from airlock.training.devices import to_input
from airlock.training.loop import Progress, mix

Kind = Literal["shift", "noise", "flip", "drop"]

_NAMES: dict[Kind, str] = {
    "shift": "label only, shifted",
    "noise": "label only, noise",
    "flip": "label only, flipped features",
    "drop": "label only, tokens left out",
}
_BLOCK = 1000


class LabelSettings(Frozen):
    """What is asked about a record besides the record itself.

    Args:
        kind: "shift" (images), "noise" (anything continuous), "flip" (features that are 0 or 1) or "drop" (texts).
        queries: How many altered copies of a record. Shifts are ordered by distance, nearest first, without repetition.
        levels: Standard deviations of the noise, or shares of what is flipped or left out; cycled through in turn.
        repeats: How many times the attack is repeated with fresh noise; the first run gives the scores.
    """

    kind: Kind
    queries: Annotated[int, Field(ge=1, le=100_000)] = 32
    levels: tuple[Annotated[float, Field(gt=0)], ...] = (0.05, 0.1, 0.2, 0.4)
    repeats: Annotated[int, Field(ge=1, le=100)] = 2


def labels_of(net: nn.Module) -> Answer:
    """A network reduced to its predicted labels."""
    net.eval()
    return lambda x: net(x).argmax(1)


def label_only(
    answer: Answer,
    members: Records,
    others: Records,
    settings: LabelSettings,
    seed: int,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Ask about members and others.

    Args:
        answer: From inputs (float, on `device`) to labels; it is called with at most 1,000 records at a time.
        members: Records of the training set.
        others: Records that were not in it.
        settings: What is asked.
        seed: Of the noise.
        device: Where `answer` wants its inputs.
        progress: Counts queries.
    """
    repeats = 1 if settings.kind == "shift" else settings.repeats
    found = []
    for place, side in enumerate((members, others)):
        seeds = [mix(mix(seed, i), place) for i in range(repeats)]
        found.append(np.stack([robustness(answer, side, settings, own, device, progress) for own in seeds]))
    again = found if repeats > 1 else (None, None)
    name = _NAMES[settings.kind]
    return Scores(name, QUESTION_LABELS, "labels", found[0][0], found[1][0], members.y, others.y, *again)


def robustness(
    answer: Answer,
    records: Records,
    settings: LabelSettings,
    seed: int,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Floats:
    """For every record, the share of queries answered with its true label."""
    _check(records, settings.kind)
    kept = np.zeros(len(records))
    x = torch.from_numpy(np.ascontiguousarray(records.x))
    for start in range(0, len(records), _BLOCK):
        own = to_input(x[start : start + _BLOCK].to(device or "cpu"))
        y = torch.from_numpy(records.y[start : start + _BLOCK]).to(own.device)
        right = torch.zeros(len(y), device=own.device)
        with torch.no_grad():
            for done, copies in enumerate(queries(own, settings, mix(seed, start))):
                right += (answer(copies).to(own.device) == y).float()
                if progress:
                    progress("asking for labels", start * (settings.queries + 1) + done * len(y), _all(x, settings))
        kept[start : start + _BLOCK] = right.double().cpu().numpy() / (settings.queries + 1)
    return kept


def _all(x: Tensor, settings: LabelSettings) -> int:
    return len(x) * (settings.queries + 1)


def queries(x: Tensor, settings: LabelSettings, seed: int) -> Iterator[Tensor]:
    """The records themselves, then `settings.queries` altered copies of all of them."""
    yield x
    if settings.kind == "shift":
        yield from (_moved(x, down, right) for down, right in shifts(settings.queries))
        return
    generator = torch.Generator(device=x.device).manual_seed(seed)
    for i in range(settings.queries):
        level = settings.levels[i % len(settings.levels)]
        if settings.kind == "noise":
            yield x + level * torch.randn(x.shape, generator=generator, device=x.device)
            continue
        chosen = torch.rand(x.shape, generator=generator, device=x.device) < level
        yield torch.where(chosen, 1 - x, x) if settings.kind == "flip" else _without(x, chosen)


def _without(x: Tensor, dropped: Tensor) -> Tensor:
    """Texts without these tokens; what is left moves together, and the first token of a text stays."""
    dropped = dropped.clone()
    dropped[:, 0] = False
    left = torch.where(dropped, torch.zeros_like(x), x)
    return left.gather(1, (left == 0).to(torch.int8).argsort(dim=1, stable=True))


def shifts(count: int) -> list[tuple[int, int]]:
    """The nearest `count` shifts (rows, columns) other than none, nearest first."""
    reach = int(np.ceil(np.sqrt(count + 1)))
    found = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1) if (i, j) != (0, 0)]
    return sorted(found, key=lambda shift: (abs(shift[0]) + abs(shift[1]), shift))[:count]


def _moved(x: Tensor, down: int, right: int) -> Tensor:
    """Images shifted, zeros filled in."""
    reach = max(abs(down), abs(right))
    height, width = x.shape[2:]
    padded = F.pad(x, (reach,) * 4)
    return padded[:, :, reach - down : reach - down + height, reach - right : reach - right + width]


def _check(records: Records, kind: Kind) -> None:
    if kind == "shift" and records.x.ndim != 4:
        raise DataError("images to be shifted", f"records of shape {records.x.shape[1:]}", do='Use kind = "noise".')
    if kind == "flip" and not np.isin(np.unique(records.x), (0, 1)).all():
        raise DataError("features that are 0 or 1 to be flipped", "others", do='Use kind = "noise".')

"""The contact sheet: originals above, and below what each attacker made of their features.

A sheet shows whole records, so it matters whose they are. The one for the card leaves: it shows records that are public
anyway, or drawn ones where there are none, and never a private, test or holdout record. The one of private records goes
to the vault, as arrays.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from airlock.auditing.features.findings import Sheet
from airlock.data import Records, Split
from airlock.errors import DataError
from airlock.nets.synthetic import draw

_GAP, _PAPER = 2, 255
PUBLIC = "Pictures from the public part of the data, none of which is protected or was released."
BESIDE = "Pictures from the public set {name}, none of which is protected or was released."
DRAWN = "Drawn pictures that show nobody: no public pictures of this shape were at hand."


def pictures_to_show(split: Split, count: int, seed: int) -> tuple[Records, str]:
    """Records that may be seen by everybody, and in words whose they are."""
    beside = split.beside
    if len(split.public) >= count:
        return split.public.take(np.random.default_rng(seed).permutation(len(split.public))[:count]), PUBLIC
    if beside is not None and len(beside.records) >= count and beside.records.x.shape[1:] == split.private.x.shape[1:]:
        chosen = np.random.default_rng(seed).permutation(len(beside.records))[:count]
        drawn = beside.records.take(chosen)
        return Records(drawn.x, np.zeros(count, np.int64)), BESIDE.format(name=beside.name)
    x = (draw(count, split.facts.shape, seed) * 255).round().byte().numpy()
    return Records(x, np.zeros(count, np.int64)), DRAWN


def sheet(originals: Tensor, rebuilt: Mapping[str, Tensor], whose: str) -> Sheet:
    """A row of originals and one for each attacker.

    Raises:
        DataError: The pictures have neither one nor three colours.
    """
    rows = {"original": originals} | dict(rebuilt)
    return Sheet(png(torch.stack([row.cpu() for row in rows.values()])), tuple(rows), whose)


def png(rows: Tensor) -> bytes:
    """(rows, columns, colours, height, width) from 0 to 1 as a PNG without any metadata."""
    colours = rows.shape[2]
    if colours not in (1, 3):
        raise DataError("pictures of one or three colours", f"{colours}")
    pixels = as_bytes(rows)
    down, across, height, width = rows.shape[0], rows.shape[1], rows.shape[3], rows.shape[4]
    paper = np.full((down * (height + _GAP) - _GAP, across * (width + _GAP) - _GAP, colours), _PAPER, np.uint8)
    for row in range(down):
        for column in range(across):
            top, left = row * (height + _GAP), column * (width + _GAP)
            paper[top : top + height, left : left + width] = pixels[row, column].transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(paper if colours == 3 else paper[:, :, 0]).save(file, "PNG", optimize=True)
    return file.getvalue()


def as_bytes(x: Tensor) -> NDArray[np.uint8]:
    """Pixels from 0 to 1 as bytes."""
    array: NDArray[np.uint8] = (x.clamp(0, 1) * 255).round().byte().cpu().numpy()
    return array

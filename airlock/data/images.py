"""A folder of images with one subfolder a class.

In: the folder, the declared classes and the declared shape of an image. Out: uint8 images (N, C, H, W) with labels. The
shape says size and kind, grey (1 channel) or colour (3); images are converted to that kind and an alpha channel is
dropped. What is no image of that size leaves itself out, because resizing is the owner's choice, and so do files of
subfolders that are no declared class: neither classes nor shape are taken from what lies in the folder, where one file
may be one person. Images are taken as stored: an EXIF orientation is not applied.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from airlock.config import DataConfig
from airlock.data.limits import check_bytes, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.validate import Raw
from airlock.errors import AirlockError, ConfigError

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
_SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm", ".tif", ".tiff", ".gif"])
_CLUTTER = frozenset({"thumbs.db", "desktop.ini"})
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
_GREY, _COLOUR = (
    frozenset({"1", "L", "LA", "La"}),
    frozenset({"RGB", "RGBA", "RGBX", "RGBa", "P", "PA", "CMYK", "YCbCr"}),
)
_UNDECLARED = Fault("in a subfolder that is no declared class", "Name the class in data.classes, or move the files.")
_OTHER = Fault("no image", f"Files that end in {', '.join(sorted(_SUFFIXES))} are read.")
_UNREADABLE = Fault("an image that cannot be read, or not of 8 bits a channel", "Convert it beforehand.")


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """(channels, height, width), as declared."""
    if data.shape is None:
        raise ConfigError(
            "the shape of an image in data.shape, for a folder of images",
            "none",
            "Taken from the files it would depend on a single one, and thus on a person.",
            "Add a line such as shape = [3, 32, 32]: channels (1 grey, 3 colour), height, width.",
        )
    return data.shape


def read(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All files below the subfolders; a class's position in `classes` is its label."""
    files = [file for folder in _subfolders(path) for file in _files(folder)]
    channels, height, width = shape(path, data)
    check_bytes(path, len(files) * channels * height * width)
    x, faults = np.zeros((len(files), channels, height, width), np.uint8), Faults()
    size = Fault(f"not {width} x {height} pixels, as data.shape says", "Resize all images to one size beforehand.")
    for place, file in enumerate(files):
        pixels = _look(file, classes, (channels, height, width), size)
        if isinstance(pixels, Fault):
            faults.add(pixels, [place])
        else:
            x[place] = pixels
    index = {name: label for label, name in enumerate(classes)}
    y = np.array([index.get(file.parent.name, 0) for file in files], np.int64)
    return Raw(x, y, faults, lambda place: _shown(files[place].relative_to(path)))


def _look(file: Path, classes: tuple[str, ...], shape: tuple[int, ...], size: Fault) -> Pixels | Fault:
    """The pixels of one file, or what is wrong with it; no other file is looked at."""
    if file.parent.name not in classes:
        return _UNDECLARED
    if file.suffix.lower() not in _SUFFIXES or not file.is_file():
        return _OTHER
    try:
        with _open(file) as image:
            if (image.height, image.width) != shape[1:]:
                return size
            if image.mode not in _GREY | _COLOUR:
                return _UNREADABLE
            pixels = np.asarray(image.convert("L" if shape[0] == 1 else "RGB"), np.uint8)
    except AirlockError:
        return _UNREADABLE
    return pixels[None] if shape[0] == 1 else pixels.transpose(2, 0, 1)


def _shown(file: Path) -> str:
    """The name of a file, printable also where it is no UTF-8."""
    return str(file).encode("utf-8", "replace").decode()


def _subfolders(path: Path) -> list[Path]:
    with reading(path, "a folder of images"):
        return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    with reading(folder, "a folder of images"):
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.name.lower() not in _CLUTTER)


@contextmanager
def _open(file: Path) -> Iterator[Image.Image]:
    with reading(file, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_FORMATS) as image:
            yield image

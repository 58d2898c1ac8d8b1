"""A folder of images with one subfolder a class.

In: the folder. Out: the shape from the first image's header, or uint8 images (N, C, H, W) with labels. The first file
(by class, then by name) decides size and kind: grey (L) or colour (RGB); the others are converted to that kind, an
alpha channel is dropped, and a file of another size is an error, because resizing is the owner's choice. Images are
taken as stored: an EXIF orientation is not applied.
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
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError, FormatError

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
_SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm", ".tif", ".tiff", ".gif"])
_CLUTTER = frozenset({"thumbs.db", "desktop.ini"})
_GREY, _COLOUR = (
    frozenset({"1", "L", "LA", "La"}),
    frozenset({"RGB", "RGBA", "RGBX", "RGBa", "P", "PA", "CMYK", "YCbCr"}),
)


def subfolders(path: Path) -> tuple[str, ...]:
    """The names of the subfolders, sorted: the classes when none are declared."""
    with reading(path, "a folder of images"):
        names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"one subfolder a class in {path}", "none", do="Put the images of each class into a folder.")
    return tuple(names)


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """(channels, height, width) of the first image, from its header."""
    for name in subfolders(path):
        for file in _files(path / name):
            mode, size = _header(file)
            return (1 if mode == "L" else 3, size[1], size[0])
    raise DataError(f"at least one image in {path}", "none", "Nothing can be trained without.")


def read(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All images; a class's position in `classes` is its label."""
    names = subfolders(path)
    for name in sorted(set(names) - set(classes)):
        raise ConfigError(f"every subfolder of {path} in data.classes", f"'{name}' missing", do="Add it, or remove it.")
    files = [(file, classes.index(name)) for name in names for file in _files(path / name)]
    c, h, w = shape(path, data)
    check_bytes(path, len(files) * c * h * w)
    x = np.empty((len(files), c, h, w), np.uint8)
    for i, (file, _) in enumerate(files):
        x[i] = _pixels(file, "L" if c == 1 else "RGB", (w, h))
    return x, np.array([label for _, label in files], np.int64)


def _files(folder: Path) -> list[Path]:
    with reading(folder, "a folder of images"):
        found = sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.name.lower() not in _CLUTTER)
    for file in found:
        if file.suffix.lower() not in _SUFFIXES or not file.is_file():
            kinds = ", ".join(sorted(_SUFFIXES))
            raise FormatError(f"nothing but images ({kinds}) in {folder}", f"{file.name}", do="Move it elsewhere.")
    return found


def _header(file: Path) -> tuple[str, tuple[int, int]]:
    with _open(file) as image:
        return _kind(image, file), image.size


def _pixels(file: Path, mode: str, size: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with _open(file) as image:
        if image.size != size:
            raise DataError(
                f"images of {size[0]} x {size[1]} pixels, as the first one is",
                f"{image.size[0]} x {image.size[1]} in {file}",
                "A network takes one size.",
                "Resize all images to one size beforehand.",
            )
        _kind(image, file)
        pixels = np.asarray(image.convert(mode), np.uint8)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


@contextmanager
def _open(file: Path) -> Iterator[Image.Image]:
    with reading(file, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_FORMATS) as image:
            yield image


def _kind(image: Image.Image, file: Path) -> str:
    if image.mode in _GREY:
        return "L"
    if image.mode in _COLOUR:
        return "RGB"
    raise FormatError(f"8 bits a channel in {file}", f"mode {image.mode}", do="Convert it to 8 bits beforehand.")

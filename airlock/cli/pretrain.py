"""`airlock pretrain`: a front end trained on public images, as a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from airlock.cli.terminal import (
    DataDirOption,
    JsonOption,
    parse_shape,
    print_json,
    print_table,
    progress_bar,
    shown,
    translate_errors,
)
from airlock.errors import Interrupted


@translate_errors
def pretrain(
    source: str = typer.Argument(
        help='A public data set of images, by name or by path, or "synthetic" for random shapes.', show_default=False
    ),
    out: Path = typer.Option(..., "--out", "-o", help="The file for the weights, .safetensors."),
    front: str = typer.Option("vgg16", "--front", help="vgg16, vgg19, resnet18 or residual."),
    net: str | None = typer.Option(
        None,
        "--net",
        help="A built-in network to start private training from, such as wrn-16-4; with synthetic.",
        show_default=False,
    ),
    layers: int | None = typer.Option(
        None, "--layers", help="How many layers of a VGG to train; all by default.", show_default=False
    ),
    classes: str | None = typer.Option(
        None,
        "--classes",
        help="For your own set: the number of classes, or their names, such as cat,dog.",
        show_default=False,
    ),
    shape: str | None = typer.Option(
        None, "--shape", help="For a folder of images: channels, height, width, such as 3,32,32.", show_default=False
    ),
    half: Literal["first", "second"] | None = typer.Option(
        None, "--half", help="Learn only one half of the classes, for use on the other.", show_default=False
    ),
    epochs: int | None = typer.Option(
        None, "--epochs", min=1, help="Passes over the public images; 40, or 20 for a --net.", show_default=False
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="The seed of initial weights, order and augmentation."),
    device: str = typer.Option("auto", "--device", help="cpu, cuda, or auto for the GPU if there is one."),
    data_dir: Path | None = DataDirOption,
    as_json: bool = JsonOption,
) -> None:
    """Train a front end on public images, once; repeating the same call uses the cache."""
    from airlock.config import DataConfig, parse
    from airlock.data import halve, open_public
    from airlock.errors import ConfigError
    from airlock.training import Run
    from airlock.training.devices import choose_device
    from airlock.training.front_ends.pretrain import FRONT, front_weights, write_weights
    from airlock.training.front_ends.public import SYNTHETIC, synthetic_images
    from airlock.training.public_start import from_shapes, shapes

    drawn = source == SYNTHETIC
    if drawn and shape is None:
        raise ConfigError("--shape for synthetic images, such as 3,32,32", "none")
    if net is not None and not drawn:
        raise ConfigError('"synthetic" for --net', f"'{source}'", do="Leave --net out to train a front end.")
    if drawn and shape is not None:
        draw = synthetic_images if net is None else shapes
        public = draw(tuple(parse_shape(shape)), seed)
    else:
        declared = {"source": source, "classes": _classes(classes), "shape": parse_shape(shape) if shape else None}
        public = open_public(parse(DataConfig, declared, where="data"), data_dir)
    public = public if half is None else halve(public, half == "second")
    how = FRONT if epochs is None else FRONT.model_copy(update={"epochs": epochs})
    with progress_bar() as progress:
        run = Run(device=choose_device(device), progress=progress)
        try:
            if net is not None:
                passes = {} if epochs is None else {"epochs": epochs}
                tensors = from_shapes(net, public.records.x.shape[1:], seed, run, **passes)
            else:
                tensors = front_weights(front, public, how, seed, run, layers)
        except Interrupted as error:
            again = "Run the same command again to continue."
            raise Interrupted(error.expected, error.found, "No weights were written.", again) from None
    sha256 = write_weights(out, tensors)
    said = {
        "weights": shown(out),
        **({"front": front} if net is None else {"net": net}),
        "public": public.name,
        "records": len(public.records),
        "public_sha256": public.digest,
        "tensors": len(tensors),
        "sha256": sha256,
    }
    if as_json:
        print_json(said)
        return
    print_table("Front end", ["", ""], [[key.replace("_", " "), str(value)] for key, value in said.items()])


def _classes(text: str | None) -> int | list[str] | None:
    return int(text) if text is not None and text.isdecimal() else text.split(",") if text is not None else None

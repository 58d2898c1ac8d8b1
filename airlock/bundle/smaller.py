"""Checks of what a card says about a student's size, and of its smaller files: the same network, and nothing beside.

Times are the machine's that made the card; nothing here measures them again.
"""

from __future__ import annotations

import math

import safetensors.torch

from airlock.bundle import bundle, quantise
from airlock.bundle.card import Card
from airlock.bundle.contents import Contents, Defects, Test
from airlock.bundle.models import MAX_INPUT, foreign, notes
from airlock.bundle.schema import Compression


def tests(files: Contents, card: Card, stated: Compression) -> list[Test]:
    """The checks of a student's report and of its smaller files, by name."""
    return [
        ("sizes", "Sizes and counts of the student are those of its files.", lambda: _sizes(files, card, stated)),
        ("smaller", "The smaller files run and agree with model.onnx.", lambda: _smaller(files, card)),
    ]


def _sizes(files: Contents, card: Card, stated: Compression) -> Defects:
    defects = []
    tensors = safetensors.torch.load(files.read(bundle.SAFETENSORS))
    if sum(t.numel() for t in tensors.values()) < stated.student.parameters:  # buffers are no parameters
        defects.append("The card counts more parameters than model.safetensors holds.")
    recorded = {form.file: form.bytes for form in stated.forms} | {bundle.SAFETENSORS: stated.student.safetensors_bytes}
    if set(recorded) - {bundle.SAFETENSORS, bundle.ONNX} != set(bundle.smaller_of(card)):
        defects.append("The card measures other files than it names.")
    for name, size in recorded.items():
        if name in files.names and (files.folder / name).lstat().st_size != size:
            defects.append(f"{name} has not the size that the card states.")
    for form in stated.forms:
        if form.agrees > form.records:
            defects.append(f"{form.file} agrees more often than it was asked.")
    return defects


def _smaller(files: Contents, card: Card) -> Defects:
    import onnx

    assert card.network is not None
    shape, content = card.network.input_shape, files.read(bundle.ONNX)
    if math.prod(shape) > MAX_INPUT:
        return ["The card's input shape is too large to be true."]
    defects = []
    for name in bundle.smaller_of(card):
        small = files.read(name)
        model = onnx.load_model_from_string(small)
        found = [sentence.replace("model.onnx", name) for sentence in (*foreign(model), *notes(model))]
        found += [f"{name}: {sentence}" for sentence in quantise.baggage(model)]
        if not found:
            onnx.checker.check_model(model)
            off = quantise.difference(name, small, content, shape)
            found = [f"{name}: {off}"] if off else []
        defects += found
    return defects

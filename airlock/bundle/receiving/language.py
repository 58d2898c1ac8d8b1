"""A released language model asked with texts: their perplexity, and how a text goes on.

In: a session of the bundle's model.onnx, which at each place gives the log-probability of every token after it, and
texts as the tokenizer in the bundle encodes them. What a text has beyond the declared number of tokens is not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock.bundle.export import NEXT
from airlock.data.text import Tokenizer

NOTHING_NEXT = "fewer than two tokens, of which the second would be predicted"
_BYTES = 1 << 28  # of answers at a time

Floats = NDArray[np.float32]


def perplexities(session: Any, x: Floats) -> NDArray[np.float64]:
    """Exp of the mean loss of each text's next tokens; NaN where the outputs overflow.

    Args:
        session: Of model.onnx.
        x: Texts as numbers, with at least two tokens each.
    """
    tokens = session.get_outputs()[0].shape[-1]
    step = max(1, _BYTES // (4 * x.shape[1] * int(tokens)))
    parts = [_losses(_asked(session, x[i : i + step]), x[i : i + step]) for i in range(0, len(x), step)]
    with np.errstate(over="ignore"):
        found = np.exp(np.concatenate([np.empty(0), *parts]))
    return np.where(np.isfinite(found), found, np.nan)


def _losses(said: NDArray[np.float64], x: Floats) -> NDArray[np.float64]:
    wanted = np.clip(x[:, 1:].astype(np.int64) - 1, 0, said.shape[2] - 1)
    own, there = np.take_along_axis(said[:, :-1], wanted[:, :, None], 2)[:, :, 0], x[:, 1:] > 0
    return np.asarray(-np.where(there, own, 0.0).sum(1) / np.maximum(1, there.sum(1)))


def _asked(session: Any, x: Floats) -> NDArray[np.float64]:
    return np.asarray(session.run([NEXT], {"input": x})[0], np.float64)


def continued(
    session: Any, tokenizer: Tokenizer, text: str, tokens: int, temperature: float, seed: int | None
) -> str | None:
    """How a text goes on, token by token, until the tokenizer's own end or the last place; None if it cannot be read.

    Args:
        session: Of model.onnx.
        tokenizer: That of the bundle.
        text: What is there already.
        tokens: How many tokens to add at most.
        temperature: 0 takes the likeliest token each time; above, tokens are drawn, the more evenly the higher.
        seed: Of these draws; None draws differently each time.
    """
    begun = tokenizer.begun(text)
    if not begun:
        return None
    known, chance = list(begun), np.random.default_rng(seed)
    ends = tokenizer.ends
    while len(known) < min(tokenizer.tokens, len(begun) + tokens):
        x = np.zeros((1, tokenizer.tokens), np.float32)
        x[0, : len(known)] = known
        told = _asked(session, x)[0, len(known) - 1, : tokenizer.vocabulary - 1]
        number = _chosen(told, temperature, chance) + 1
        if number in ends:
            break
        known.append(number)
    return tokenizer.decode(known[len(begun) :])


def _chosen(told: NDArray[np.float64], temperature: float, chance: np.random.Generator) -> int:
    told = np.nan_to_num(told, nan=-np.inf)
    if temperature <= 0:
        return int(told.argmax())
    raised = np.exp((told - told.max()) / temperature)
    return int(chance.choice(len(told), p=raised / raised.sum()))

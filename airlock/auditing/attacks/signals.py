"""The signals that attacks use: a model's logits on records, and quantities derived from the true class's logit.

In: a network, or any function that answers queries, and records. Out: float64 arrays. Nothing here uses membership
except `as_scores`, which separates the scores of members and non-members for the attack's result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch import Tensor, nn

from airlock.auditing.bounds import Floats
from airlock.auditing.result import Ints, Scores, View
from airlock.data import Records
from airlock.errors import DataError
from airlock.nets.bert import at_once
from airlock.nets.domain import by_length
from airlock.training.devices import to_input

Answer = Callable[[Tensor], Tensor]
Mask = NDArray[np.bool_]

QUESTION_ANSWERS = "Can someone who may ask the model about a person's record tell whether it was in the training set?"
QUESTION_LABELS = "Can someone who sees the model's decisions alone tell whether a record was in the training set?"
_BLOCK = 1000
_SUREST = 1e-12  # a mean loss: below, the probability of anything else would be zero
_FLOOR = 1e-30  # of a probability that was rounded to zero: float32 still tells smaller ones apart


def ask(answer: Answer, records: Records, device: torch.device | None = None, block: int = _BLOCK) -> Floats:
    """The output of `answer` for every record, block by block: (records, classes), or (records,) where it gives labels.

    Args:
        answer: A network in evaluation mode, or any function from inputs (float, on `device`) to one row per record.
        records: The records to query.
        device: Where `answer` wants its inputs.
        block: Records at a time.
    """
    rows = []
    block = min(block, at_once(answer) or block) if isinstance(answer, nn.Module) else block
    with torch.no_grad():
        for start in range(0, len(records), block):
            x = torch.from_numpy(np.ascontiguousarray(records.x[start : start + block])).to(device or "cpu")
            rows.append(_asked(answer, to_input(x)).cpu().double().numpy())
    return np.concatenate(rows)


def _asked(answer: Answer, x: Tensor) -> Tensor:
    """The answers to one block; short texts are asked as such, which is faster."""
    if not isinstance(answer, nn.Module):
        return answer(x)
    parts: list[tuple[Tensor | None, Tensor]] = [(rows, answer(part)) for rows, part in by_length(answer, x)]
    if not parts or parts[0][0] is None:
        return parts[0][1] if parts else torch.empty(0)
    found = parts[0][1].new_empty(len(x), *parts[0][1].shape[1:])
    for rows, part in parts:
        found[rows] = part
    return found


def of_losses(outputs: Floats) -> Floats:
    """A language model's losses (..., 1) as logits (..., 2) of two outcomes: a text's own tokens, and any others.

    exp of minus the mean loss is the geometric mean of the probabilities of the text's tokens. Attacks that compare the
    probability of a record's own label take it for that of label 0.
    """
    loss = np.maximum(np.asarray(outputs, np.float64), _SUREST)
    return np.concatenate([-loss, np.log(-np.expm1(-loss))], -1)


def from_probabilities(probabilities: Floats) -> Floats:
    """Logits with these probabilities; a zero, which can only come from rounding, is replaced by 1e-30."""
    return np.log(np.maximum(np.asarray(probabilities, np.float64), _FLOOR))


def probability_of(logits: Floats, y: Ints) -> Floats:
    """p_y for (..., records, classes) logits and the records' labels."""
    return np.exp(_own(log_softmax(np.asarray(logits, np.float64), axis=-1), y))


def scaled_logit(logits: Floats, y: Ints) -> Floats:
    """log(p_y / (1 − p_y)), which makes LiRA's signals approximately normal (Carlini et al. 2022, section IV-C).

    It is the logit of the true class less the log-sum-exp of the others: accurate however close p_y is to 0 or 1.
    """
    z = np.asarray(logits, np.float64)
    if z.shape[-1] < 2 or z.shape[-2] != len(y):
        raise DataError(f"logits of {len(y)} records and at least two classes", f"an array of shape {z.shape}")
    others = np.array(z)
    np.put_along_axis(others, _places(z, y), -np.inf, -1)
    return np.asarray(_own(z, y) - logsumexp(others, axis=-1))


def loss(logits: Floats, y: Ints) -> Floats:
    """Cross-entropy, −log p_y."""
    return -_own(log_softmax(np.asarray(logits, np.float64), axis=-1), y)


def _own(values: Floats, y: Ints) -> Floats:
    """The true class's value of every record."""
    return np.take_along_axis(values, _places(values, y), -1)[..., 0]


def _places(values: Floats, y: Ints) -> Ints:
    shape = (1,) * (values.ndim - 2) + (len(y), 1)
    return np.broadcast_to(np.asarray(y, np.int64).reshape(shape), (*values.shape[:-1], 1))


def as_scores(
    name: str,
    view: View,
    scores: Floats,
    inside: Mask,
    y: Ints,
    repeats: Floats | None = None,
    question: str = QUESTION_ANSWERS,
) -> Scores:
    """Split the scores of a pool into members and non-members by the target's mask.

    Args:
        name: Of the attack.
        view: What the attacker has.
        scores: One per record.
        inside: Which records were in the target's training set.
        y: Their labels.
        repeats: (seeds, records) where the attack is randomised.
        question: In plain words.
    """
    if not len(scores) == len(inside) == len(y) or inside.all() or not inside.any():
        raise DataError(
            "scores, membership and labels of the same records, members and others among them",
            f"{len(scores)}, {len(inside)} ({int(inside.sum())} members) and {len(y)}",
            "An attack is measured on both.",
        )
    again = (None, None) if repeats is None else (repeats[:, inside], repeats[:, ~inside])
    return Scores(name, question, view, scores[inside], scores[~inside], y[inside], y[~inside], *again)

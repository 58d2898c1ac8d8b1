"""Quantile regression (Bertran et al. 2023): how well would the model do on such a record if it had never seen it?

In: the attacked model's answers on records that it was not trained on, and on the records to score. Out: one score per
record. No shadow model is trained: a single network learns, from the former records alone, the quantiles of the signal
log(p/(1 − p)) (`signals.scaled_logit`) given the record and its label, by the pinball loss. A record's score is where
the model's own signal lies among its predicted quantiles, on the scale of a standard normal: 3.1 for a signal that one
non-member of its kind in a thousand reaches.

The paper predicts one quantile for one false positive rate, or a mean and a variance. Here the network predicts several
quantiles, as a median and the steps between them, which cannot cross; between two of them the score is linear, and so
it goes on beyond the outermost. How long it learns is chosen on a fifth of the known records, which it does not learn
from. Nothing is fitted to records that are scored.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from airlock.auditing.attacks.shadows import AnsweredRecords
from airlock.auditing.attacks.signals import QUESTION_ANSWERS, scaled_logit
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Scores
from airlock.config import Frozen
from airlock.data import Records
from airlock.errors import DataError
from airlock.nets.registry import seed_torch
from airlock.training import Run
from airlock.training.ensembles.ensemble import model_seed

# Below the median only enough to say where the bulk lies; a membership attack is about the upper tail.
LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99])
_MIDDLE = 2
FEWEST = 200  # known records: a quantile that one record in a hundred exceeds takes some
_FURTHEST = 5.0  # deviations of an input from its mean: a pixel that is hardly ever lit would outweigh all others
_LABEL = "learning quantiles"


class QuantileSettings(Frozen):
    """How the network is trained.

    Args:
        hidden: Units of each of its two hidden layers.
        learning_rate: Of Adam.
        weight_decay: Of AdamW.
        batch_size: Known records in a step.
        epochs: At most; the best by the pinball loss on the records set aside counts.
        patience: After so many epochs that are not better than the best, learning ends.
        repeats: How many times the attack is repeated, each with its own seed; the first gives the scores.
    """

    hidden: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    batch_size: int = 128
    epochs: int = 60
    patience: int = 8
    repeats: int = 2


@dataclass(frozen=True)
class _Model:
    """A trained network, and how its inputs and outputs are scaled."""

    net: nn.Module
    centre: Floats
    scale: Floats
    level: float
    unit: float
    classes: int
    device: torch.device

    def inputs(self, records: Records) -> Tensor:
        """A record's features, scaled, and its label."""
        x = ((_flat(records) - self.centre) / self.scale).clip(-_FURTHEST, _FURTHEST)
        label = np.eye(self.classes)[np.asarray(records.y)]
        return torch.from_numpy(np.concatenate([x, label], 1).astype(np.float32)).to(self.device)

    def quantiles(self, records: Records) -> Floats:
        """(records, levels), in units of the signal."""
        with torch.no_grad():
            found = np.concatenate(
                [_rising(self.net(x)).cpu().double().numpy() for x in torch.split(self.inputs(records), 4096)]
            )
        return self.level + self.unit * found


def quantile_regression(
    known: AnsweredRecords,
    members: AnsweredRecords,
    others: AnsweredRecords,
    seed: int,
    run: Run,
    settings: QuantileSettings | None = None,
) -> Scores:
    """Learn from the known records, then score the others.

    Args:
        known: Records that the attacked model was not trained on, and its answers about them; none of them is scored.
        members: Its training records and its answers.
        others: Records that it never saw and its answers.
        seed: Of the network, its batches, and which known records are set aside.
        run: Device and progress.
        settings: How the network is trained.
    """
    chosen = settings or QuantileSettings()
    if len(known.records) < FEWEST:
        raise DataError(
            f"at least {FEWEST} known records that the model was not trained on",
            str(len(known.records)),
            "Quantiles of what non-members score are learnt from them.",
        )
    models = [_trained(known, model_seed(seed, repeat), run, chosen) for repeat in range(chosen.repeats)]
    found = [
        np.stack([place(scaled_logit(side.logits, side.records.y), model.quantiles(side.records)) for model in models])
        for side in (members, others)
    ]
    again = found if chosen.repeats > 1 else (None, None)
    return Scores(
        "quantile regression", QUESTION_ANSWERS, "black-box", found[0][0], found[1][0], members.records.y,
        others.records.y, *again,
    )  # fmt: skip


def place(signals: Floats, quantiles: Floats) -> Floats:
    """Where every signal lies among its record's quantiles, as a normal score.

    Linear between two quantiles; beyond the outermost, with the slope of the straight line from the median to it.
    """
    marks = np.asarray(norm.ppf(LEVELS))
    rising = np.maximum.accumulate(quantiles + 1e-9 * np.arange(len(LEVELS)), 1)
    step = (signals[:, None] >= rising).sum(1)
    low, high = np.maximum(step - 1, 0), np.minimum(step, len(LEVELS) - 1)
    low, high = np.where(step == 0, 0, low), np.where(step == 0, _MIDDLE, high)
    low, high = np.where(step == len(LEVELS), _MIDDLE, low), np.where(step == len(LEVELS), len(LEVELS) - 1, high)
    one, other = (np.take_along_axis(rising, side[:, None], 1)[:, 0] for side in (low, high))
    share = (signals - one) / (other - one)
    return np.asarray(marks[low] + share * (marks[high] - marks[low]))


def _trained(known: AnsweredRecords, seed: int, run: Run, settings: QuantileSettings) -> _Model:
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(known.records))
    rest, aside = order[len(order) // 5 :], order[: len(order) // 5]
    signals, features = scaled_logit(known.logits, known.records.y), _flat(known.records)
    unit, classes = float(signals[rest].std()) or 1.0, known.logits.shape[-1]
    scale = features[rest].std(0)
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        net = _net(features.shape[1] + classes, settings.hidden).to(run.device)
    model = _Model(
        net, features[rest].mean(0), np.where(scale > 0, scale, 1.0), float(signals[rest].mean()), unit, classes,
        run.device,
    )  # fmt: skip
    x = model.inputs(known.records)
    y = torch.from_numpy(((signals - model.level) / unit).astype(np.float32)).to(run.device)
    optimiser = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    best, kept, since = np.inf, net.state_dict(), 0
    for epoch in range(settings.epochs):
        for batch in np.array_split(chance.permutation(rest), max(1, len(rest) // settings.batch_size)):
            optimiser.zero_grad()
            _pinball(_rising(net(x[batch])), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        with torch.no_grad():
            now = float(_pinball(_rising(net(x[aside])), y[aside]))
        since += 1
        if now < best:
            best, kept, since = now, copy.deepcopy(net.state_dict()), 0
        if since >= settings.patience:
            break
        if run.progress:
            run.progress(_LABEL, epoch + 1, settings.epochs)
    net.load_state_dict(kept)
    return model


def _net(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, len(LEVELS))
    )


def _rising(raw: Tensor) -> Tensor:
    """Quantiles that rise: the median, and positive steps from it in both directions."""
    steps = nn.functional.softplus(raw)
    middle = raw[:, _MIDDLE : _MIDDLE + 1]
    below = middle - steps[:, :_MIDDLE].flip(1).cumsum(1).flip(1)
    above = middle + steps[:, _MIDDLE + 1 :].cumsum(1)
    return torch.cat([below, middle, above], 1)


def _pinball(quantiles: Tensor, signals: Tensor) -> Tensor:
    """The pinball loss over all levels, which their quantiles minimise in expectation."""
    levels = torch.from_numpy(LEVELS).to(quantiles)
    away = signals[:, None] - quantiles
    return torch.maximum(levels * away, (levels - 1) * away).sum(1).mean()


def _flat(records: Records) -> Floats:
    return np.ascontiguousarray(records.x).reshape(len(records), -1).astype(np.float64)

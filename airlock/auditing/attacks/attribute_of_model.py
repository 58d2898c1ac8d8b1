"""What a model that learnt from a table tells about somebody whose row is known but for one column, and about all rows.

**Attribute inference.** The attacker knows a person's row and label except for one column, has other rows of the kind,
and may ask the model. Every value that the column may have is put in; the model's probability of the true label speaks
for it (Fredrikson et al. 2014; Yeom et al. 2018), compared with what a model of the attacker's own says, which was
trained on the other rows alone: what any model of such data knows cancels out.

Most of what such an attacker gets right needs no model: columns depend on each other (Jayaraman and Evans 2022, "Are
attribute inference attacks just imputation?"). So the baseline is an imputation, the value predicted from the rest of
the row and the label by what the other rows teach. The attack starts from its probabilities and adds the model's; what
it gains over the baseline on the same records is what the model tells. The same attack on records that were not in the
data says whether it tells that of everybody alike, which no guarantee about one record limits.

**Property inference** (Ateniese et al. 2015; Ganju et al. 2018). The attacker wants to know how often a value occurs
among all private records, and is told two shares of which one is true. Shadow models are trained on rows that are drawn
with either share; what they answer, on average over other rows of each class and value, teaches the attacker to tell
them apart, and on further shadow models it is counted how often that is right. No guarantee about single records limits
this.

Who learns from what: test records teach the imputation, the attacker's own model and the shadow models; every fourth of
them chooses between two imputations. Members and holdout records are only measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import nn

from airlock.auditing.attacks.shadows import train_shadows
from airlock.auditing.bounds import Floats, proportion_interval
from airlock.auditing.members import AttackSet
from airlock.auditing.result import ModelAttributeResult, PropertyResult
from airlock.auditing.target import Target
from airlock.config import Column
from airlock.data import Facts, Records
from airlock.errors import ConfigError, DataError
from airlock.training import Recipe, Resident, Run
from airlock.training.loop import mix

CONFIDENCE = 0.95
FEWEST = 40  # test records
SHARES = (0.3, 0.7)  # of the records with the value, in the two worlds of property inference
_FEW_VALUES = 8  # a column of a table without a schema has this many values, or it is a number
_WIDTH, _STEPS, _RATE, _DECAY, _BATCH = 64, 400, 3e-3, 1e-2, 128

Ints = NDArray[np.int64]
Rows = NDArray[Any]
Impute = Callable[[Rows, Ints], Floats]  # log-probabilities of the values, from rows without the column and labels


@dataclass(frozen=True)
class Withheld:
    """One column of encoded rows, and what may stand in it.

    Args:
        name: Of the column.
        places: Where it is in an encoded row.
        values: What may stand there, (values, places).
        cut: Of a number: the rows above it have the second of two values; None of a category.
    """

    name: str
    places: NDArray[np.intp]
    values: NDArray[np.float32]
    cut: float | None

    def of(self, x: Rows) -> Ints:
        """Which value each row has."""
        own = x[:, self.places]
        if self.cut is not None:
            return (own[:, 0] > self.cut).astype(np.int64)
        return np.asarray(np.abs(own[:, None] - self.values).sum(2).argmin(1), np.int64)

    def without(self, x: Rows) -> Rows:
        """The rows without the column."""
        return np.delete(x, self.places, axis=1)

    def filled(self, records: Records, value: int) -> Records:
        """The records with this value in the column."""
        x = np.array(records.x)
        x[:, self.places] = self.values[value]
        return Records(x, records.y)


def withheld(name: str, facts: Facts, known: Records) -> Withheld:
    """The column of this name, or `column N` of rows without a schema.

    Raises:
        ConfigError: There is none, or these are not rows.
    """
    ends = np.cumsum([column.width for _, column in facts.columns]).tolist()
    column = dict(facts.columns).get(name)
    number = name.removeprefix("column ")
    if column is None and len(facts.shape) == 1 and number.isdecimal() and int(number) < facts.shape[0]:
        seen = np.unique(known.x[:, int(number)])
        places = np.array([int(number)])
        if len(seen) <= _FEW_VALUES:
            return Withheld(name, places, seen[:, None].astype(np.float32), None)
        return _of_number(name, places, known)
    if column is None:
        raise ConfigError(
            "a column of the table for --attribute",
            f"'{name}'",
            "It is withheld from the attacker, who guesses what stood there.",
            f"Known: {', '.join(n for n, _ in facts.columns) or 'column 0, column 1, … of flat records'}.",
        )
    end = ends[[known_name for known_name, _ in facts.columns].index(name)]
    places = np.arange(end - column.width, end)
    return _of_number(name, places, known) if _is_number(column) else _of_category(name, places)


def _is_number(column: Column) -> bool:
    return column.categories is None


def _of_category(name: str, places: NDArray[np.intp]) -> Withheld:
    return Withheld(name, places, np.eye(len(places), dtype=np.float32), None)


def _of_number(name: str, places: NDArray[np.intp], known: Records) -> Withheld:
    """Above or below the median; the medians of both halves stand for them."""
    own = np.asarray(known.x[:, places], np.float64)
    cut = float(np.median(own[:, 0]))
    sides = [own[own[:, 0] <= cut], own[own[:, 0] > cut]]
    values = [np.median(side if len(side) else own, axis=0) for side in sides]
    return Withheld(name, places, np.stack(values).astype(np.float32), cut)


def imputation(column: Withheld, known: Records, classes: int, seed: int) -> Impute:
    """The better of a linear and a small network on every fourth known record, learnt from all of them."""
    fourth = np.arange(len(known)) % 4 == 3
    learn, check = known.take(np.flatnonzero(~fourth)), known.take(np.flatnonzero(fourth))
    truth = column.of(check.x)

    def score(hidden: int) -> float:
        found = _learnt(column, learn, classes, hidden, seed)(column.without(check.x), check.y)
        return float(found[np.arange(len(truth)), truth].mean())

    return _learnt(column, known, classes, max((0, _WIDTH), key=score), seed)


def _learnt(column: Withheld, known: Records, classes: int, hidden: int, seed: int) -> Impute:
    def inputs(rest: Rows, y: Ints) -> torch.Tensor:
        label = F.one_hot(torch.from_numpy(np.asarray(y, np.int64)), classes)
        return torch.cat([torch.from_numpy(np.asarray(rest, np.float32)), label.float()], 1)

    given, wanted = inputs(column.without(known.x), known.y), torch.from_numpy(column.of(known.x))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wide, values = given.shape[1], len(column.values)
        layers = (
            [nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, values)] if hidden else [nn.Linear(wide, values)]
        )
        net = nn.Sequential(*layers)
    optimiser, order = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=_DECAY), torch.Generator()
    order.manual_seed(seed)
    for _ in range(_STEPS):
        rows = torch.randint(len(known), (min(_BATCH, len(known)),), generator=order)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(net(given[rows]), wanted[rows]))
        optimiser.step()

    def impute(rest: Rows, y: Ints) -> Floats:
        with torch.no_grad():
            return np.asarray(torch.log_softmax(net(inputs(rest, y)).double(), 1).numpy())

    return impute


def infer(
    target: Target, column: Withheld, attack_set: AttackSet, known: Records, epochs: int, seed: int, run: Run
) -> ModelAttributeResult:
    """Guess the withheld column of members and of others, with the model and without it.

    Guarantee: each of the two intervals of differences covers the expected one with at least the stated confidence:
    both proportions that it is made of have Clopper–Pearson intervals at half of the error.

    Args:
        target: The model.
        column: What is withheld.
        attack_set: Members and others.
        known: Test records.
        epochs: Of the attacker's own model.
        seed: Of all that the attacker learns.
        run: Device and progress.
    """
    _require(known)
    if len(column.values) < 2:
        raise DataError(f"two values in '{column.name}' at least", "one", "What cannot differ is known without asking.")
    single = attack_set.limited(1, seed)
    impute = imputation(column, known, len(target.classes), seed)
    own = _own_model(target, known, epochs, seed, run)

    def right(side: Records) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        truth, guess = column.of(side.x), impute(column.without(side.x), side.y)
        tells = []
        for value in range(len(column.values)):
            filled = column.filled(side, value)
            theirs, mine = (_log_of_label(logits, side.y) for logits in (target.answers(filled), own(filled)))
            tells.append(theirs - mine)
        return (guess + np.stack(tells, 1)).argmax(1) == truth, guess.argmax(1) == truth

    (attacked, blind), (others, _) = right(single.members), right(single.others)
    low, high = proportion_interval(int(attacked.sum()), len(attacked), CONFIDENCE)
    gain = _difference(int((attacked & ~blind).sum()), len(blind), int((blind & ~attacked).sum()), len(blind))
    apart = _difference(int(attacked.sum()), len(attacked), int(others.sum()), len(others))
    return ModelAttributeResult(
        attribute=column.name,
        values=len(column.values),
        records=len(attacked),
        known=len(known),
        value=float(attacked.mean()),
        low=low,
        high=high,
        blind=float(blind.mean()),
        gain_low=gain[0],
        gain_high=gain[1],
        others=float(others.mean()),
        apart_low=apart[0],
        apart_high=apart[1],
        confidence=CONFIDENCE,
    )


def _require(known: Records) -> None:
    if len(known) < FEWEST:
        raise DataError(f"at least {FEWEST} test records to learn from", "fewer", do="Declare more records for `test`.")


def _log_of_label(logits: Floats, y: Ints) -> Floats:
    return np.asarray(log_softmax(logits, axis=1)[np.arange(len(y)), y])


def _difference(one: int, of_one: int, other: int, of_other: int) -> tuple[float, float]:
    """An interval for the difference of two proportions."""
    each = 1.0 - (1.0 - CONFIDENCE) / 2
    a, b = proportion_interval(one, of_one, each), proportion_interval(other, of_other, each)
    return a[0] - b[1], a[1] - b[0]


def _own_model(target: Target, known: Records, epochs: int, seed: int, run: Run) -> Callable[[Records], Floats]:
    """A model like the attacked one that knows test records alone."""
    inside = np.ones((1, len(known)), bool)
    _, models = train_shadows(
        target.make, target.embed(known), inside, _recipe(target, len(known), epochs), mix(seed, 4),
        replace(run, checkpoint=None), batch_size=64, label="training the attacker's own model", loss=target.loss,
    )  # fmt: skip

    def ask(records: Records) -> Floats:
        return np.asarray(models.logits(Resident(target.embed(records), run.device))[0].double().numpy())

    return ask


def _recipe(target: Target, records: int, epochs: int) -> Recipe:
    steps = epochs * max(1, round(records / 64))
    return Recipe(steps=steps, optimiser="adam", learning_rate=target.learning_rate, precision="fp32")


def infer_share(
    target: Target, column: Withheld, known: Records, models: int, epochs: int, seed: int, run: Run
) -> PropertyResult:
    """How well two shares of a value among all training records are told apart by a model's answers.

    The value is the most frequent one among the known records. Half of the models teach what models of either share
    answer, the other half are judged.

    Args:
        target: The model, which is not asked: shadow models like it are.
        column: Whose value.
        known: Test records: half of them are what shadow models learn from, half are asked about.
        models: How many shadow models.
        epochs: Of their training.
        seed: Of rows and training.
        run: Device and progress.
    """
    _require(known)
    chance = np.random.default_rng([seed, 5])
    order, half = chance.permutation(len(known)), len(known) // 2
    learn, asked = known.take(order[:half]), known.take(order[half:])
    value = int(np.bincount(column.of(known.x), minlength=len(column.values)).argmax())
    have = column.of(learn.x) == value
    size = int(min(have.sum() / max(SHARES), (~have).sum() / (1 - min(SHARES))))
    if size < FEWEST / 4:
        raise DataError("a value that neither nearly all nor hardly any test records have", "one")
    inside, world = np.zeros((models, half), bool), np.arange(models) % 2
    for row, which in zip(inside, world, strict=True):
        count = round(SHARES[which] * size)
        row[chance.permutation(np.flatnonzero(have))[:count]] = True
        row[chance.permutation(np.flatnonzero(~have))[: size - count]] = True
    recipe = _recipe(target, size, epochs)
    _, nets = train_shadows(
        target.make, target.embed(learn), inside, recipe, mix(seed, 6), replace(run, checkpoint=None),
        batch_size=64, label="shadow models of two shares", loss=target.loss,
    )  # fmt: skip
    logits = nets.logits(Resident(target.embed(asked), run.device)).double().numpy()
    said = _summaries(log_softmax(logits, axis=2), asked.y, column.of(asked.x) == value, len(target.classes))
    teach = np.arange(models) % 4 < 2
    right = _told(said[teach], world[teach], said[~teach]) == world[~teach]
    low, high = proportion_interval(int(right.sum()), len(right), CONFIDENCE)
    return PropertyResult(
        attribute=column.name, share=SHARES[0], other=SHARES[1], records=size, models=len(right),
        value=float(right.mean()), low=low, high=high, confidence=CONFIDENCE,
    )  # fmt: skip


def _summaries(logs: Floats, y: Ints, have: NDArray[np.bool_], classes: int) -> Floats:
    """Of every model: its mean answers about the rows of each class, with the value and without it."""
    groups = [(y == c) & (have == with_it) for c in range(classes) for with_it in (True, False)]
    return np.concatenate([logs[:, group].mean(1) for group in groups if group.any()], axis=1)


def _told(taught: Floats, world: Ints, asked: Floats) -> Ints:
    """Which of two worlds each of these comes from: linear discriminant analysis with shrunken covariances."""
    means = np.stack([taught[world == side].mean(0) for side in (0, 1)])
    within = taught - means[world]
    variance = within.T @ within / max(1, len(taught) - 2)
    shrunk = variance / 2 + np.diag(np.diag(variance) / 2 + 1e-9)
    direction = np.linalg.solve(shrunk, means[1] - means[0])
    return np.asarray((asked - means.mean(0)) @ direction > 0, np.int64)

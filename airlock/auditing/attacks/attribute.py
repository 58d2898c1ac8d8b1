"""Attribute inference: something about a record that is not its label, read off its features.

The attacker knows records with the attribute and sends them through the same pipeline. It either reconstructs the
record with the best linear guess and evaluates the attribute on that, or trains a small net to predict the attribute
from noisy features and the label; whichever does better on every fourth known record is used. The baseline without
features guesses the more frequent value in the record's class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.auditing.attacks.reconstruct import learn_linear
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs, generator_on
from airlock.auditing.features.reconstruction_metrics import best_prior_baseline
from airlock.errors import ConfigError
from airlock.training import Run

Guesser = Callable[[Tensor, Tensor], Tensor]
_BATCH, _RATE, _WIDTH, _DECAY = 128, 3e-3, 64, 1e-2


@dataclass(frozen=True)
class Attribute:
    """A yes or no about a record.

    Args:
        name: As printed on the card: "the picture is brighter than most".
        score: One number per record; the answer is whether it is above `cut`.
        cut: Chosen on the attacker's own records.
    """

    name: str
    score: Callable[[Tensor], Tensor]
    cut: float

    def __call__(self, x: Tensor) -> Tensor:
        """0 or 1 for each record."""
        return (self.score(x) > self.cut).long()


def attribute_of(name: str, known: Tensor) -> Attribute:
    """`brightness`, `colour` (red against blue), or `column N` of a table, above the median of the known records.

    Raises:
        ConfigError: There is no such attribute of these records.
    """
    pictures = known.dim() == 4
    if name == "brightness" and pictures:
        return _above("the picture is brighter than most", lambda x: x.flatten(1).mean(1), known)
    if name == "colour" and pictures and known.shape[1] == 3:
        return _above("the picture is redder than most", lambda x: (x[:, 0] - x[:, 2]).flatten(1).mean(1), known)
    column = name.removeprefix("column ")
    if known.dim() == 2 and column.isdecimal() and int(column) < known.shape[1]:
        place = int(column)
        return _above(f"column {place} is above the median", lambda x: x[:, place], known)
    raise ConfigError(
        "an attribute of these records: 'brightness' or, in colour, 'colour' of pictures; 'column N' of a table",
        f"'{name}'",
    )


def _above(name: str, score: Callable[[Tensor], Tensor], known: Tensor) -> Attribute:
    return Attribute(name, score, float(score(known).median()))


def infer(
    pipeline: FeaturePipeline, known: Pairs, attribute: Attribute, seed: int, run: Run, steps: int = 400
) -> Guesser:
    """Learn the attribute from known pairs; the returned function guesses it from features and labels."""
    learn, choose = known.halves()
    noisy = pipeline.noisy(choose.clean, generator_on(choose.clean.device, seed + 1))
    wanted = attribute(choose.x)

    def rebuild(pairs: Pairs) -> Guesser:
        linear = learn_linear(pipeline, pairs, best_prior_baseline(pairs), seed)
        return lambda features, y: attribute(linear(features, y))

    def net(pairs: Pairs) -> Guesser:
        return _learn(pipeline, pairs, attribute, seed, run, steps)

    right = [float((make(learn)(noisy, choose.y) == wanted).double().mean()) for make in (rebuild, net)]
    return (rebuild if right[0] >= right[1] else net)(known)


def majority(known: Pairs, attribute: Attribute) -> Callable[[Tensor], Tensor]:
    """The guess without features: the more frequent answer among known records of the same label."""
    answers, classes = attribute(known.x), int(known.y.max()) + 1
    overall = int(answers.double().mean() > 0.5)
    table = torch.full((classes + 1,), overall, device=known.y.device)
    for label in range(classes):
        own = answers[known.y == label]
        if len(own):
            table[label] = int(own.double().mean() > 0.5)
    return lambda y: table[y.clamp_max(classes)]


def _learn(pipeline: FeaturePipeline, known: Pairs, attribute: Attribute, seed: int, run: Run, steps: int) -> Guesser:
    """Cross-entropy, fresh noise in every step."""
    classes, device = int(known.y.max()) + 1, known.clean.device
    centre = known.clean.mean(0)
    spread = (known.clean.var() + pipeline.sigma**2).sqrt().clamp_min(1e-8)

    def inputs(features: Tensor, y: Tensor) -> Tensor:
        own = F.one_hot(y.clamp_max(classes), classes + 1)[:, :classes]
        return torch.cat([((features - centre) / spread).flatten(1), own.to(features)], 1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wide = known.clean[0].numel() + classes
        net = nn.Sequential(nn.Linear(wide, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 2)).to(device)
    wanted, noise, order = attribute(known.x), generator_on(device, seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=_DECAY)
    for step in range(steps):
        places = torch.randint(len(known), (min(_BATCH, len(known)),), generator=order).to(device)
        features = pipeline.noisy(known.clean[places], noise)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(net(inputs(features, known.y[places])), wanted[places]))
        optimiser.step()
        if run.progress:
            run.progress("training the attribute attack", step + 1, steps)

    def guess(features: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            answers: Tensor = net(inputs(features, y)).argmax(1)
        return answers

    return guess

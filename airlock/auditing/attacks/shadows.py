"""Shadow models: stand-ins for the attacked model, trained on records whose membership the attacker knows.

In: a pool of records, how to make and train a model, and a design. Out: `Shadows`, every model's logits on every record
of the pool. The models are trained together (`training.ensembles.ensemble`) and memorise their records: they belong in
the vault, and only the figures that `measure` derives from an attack's scores may leave.

Memory: the logits take 4 · models · records · classes bytes (64 models, 50,000 records, 10 classes: 128 MB) on the
CPU; they are computed a chunk of models at a time. The stacked weights take another 4 · models · parameters bytes.

Shadow releases (`release_shadows`) are made by the same method as the attacked release, with its clipping, noise and
choices. Each costs as much as one release and trains on private records inside the vault. The models are discarded;
only their logits on the pool are kept.

The shadow-model attack (`shadow_attack`; Shokri et al. 2017): one small network per class learns to recognise members
from the model's output. The settings are those of Lu et al. 2021, tables 3 and 4: 64 hidden tanh units, L2 1e-6, Adam
with 0.01, batches of 100, 100 epochs; an attack network sees the whole vector of probabilities and predicts "member" or
"non-member".

The attack networks learn from the shadows' records alone, which are a part of the split that the attacked model never
saw, and from memberships in the shadows, which are drawn for the attack. So they are told nothing about whom the
attacked model saw, even where equal records occur in several parts. A score above 0 means that the attack itself
predicts "member" (its network's probability is above 1/2), so TPR − FPR at 0 is the leakage that Lu et al. report; no
threshold is chosen on the scored records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn

from airlock.auditing.attacks.signals import QUESTION_ANSWERS, Mask, ask
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Ints, Scores
from airlock.config import Frozen
from airlock.data import Records, Split, joined
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import Randomness
from airlock.methods import Channel
from airlock.nets.registry import seed_torch
from airlock.training import Ensemble, Recipe, Resident, Run, checkpoint, train_together
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import EnsembleEngine, read
from airlock.training.ensembles.ensemble import EngineName, Make, model_seed
from airlock.training.gradients import MeanLoss
from airlock.training.loop import Augment, mix
from airlock.training.losses import CROSS_ENTROPY, Loss


@dataclass(frozen=True)
class Shadows:
    """Models with known members, and their logits on the pool.

    Args:
        inside: (models, records): which records each model was trained on.
        logits: (models, records, classes).
        y: The records' labels.
    """

    inside: Mask
    logits: NDArray[np.float32]
    y: NDArray[np.int64]

    def __post_init__(self) -> None:
        models, records = self.inside.shape
        if self.logits.shape[:2] != (models, records) or len(self.y) != records:
            raise DataError(
                f"logits of {models} models on {records} records, and their labels",
                f"logits of shape {self.logits.shape} and {len(self.y)} labels",
            )

    def __len__(self) -> int:
        return len(self.inside)

    def take(self, records: Ints | Mask) -> Shadows:
        """The same models on some of the records."""
        return Shadows(self.inside[:, records], self.logits[:, records], self.y[records])

    def each(self, signal: Callable[[Floats, Ints], Floats]) -> Floats:
        """A signal of every model on every record: (models, records), one model after another."""
        return np.stack([signal(logits, self.y) for logits in self.logits])


def halves(models: int) -> list[Mask]:
    """Disjoint halves of the models, for making an attack twice; pairs stay together, so the design stays balanced.

    Fewer than eight models are not divided: half of them would make a different, weaker attack.
    """
    second = np.arange(models) // 2 % 2 == 1
    return [~second, second] if models >= 8 else []


def balanced(models: int, records: int, seed: int) -> Mask:
    """Each record in exactly half of the models; models 2k and 2k+1 partition the pool, so each has half of it.

    With an odd number of records the first of a pair gets one more.
    """
    if models < 2 or models % 2:
        raise ConfigError(
            "an even number of shadow models",
            str(models),
            "Every record has to be in exactly half of them.",
            f"Train {models + 1}.",
        )
    chance, mask = np.random.default_rng(seed), np.zeros((models, records), bool)
    for pair in range(0, models, 2):
        order = chance.permutation(records)
        mask[pair, order[: -(-records // 2)]] = True
        mask[pair + 1] = ~mask[pair]
    return mask


def subsets(models: int, records: int, size: int, seed: int) -> Mask:
    """`size` of the records for each model, at random: some records are then in more models than others."""
    if not 0 < size < records:
        raise ConfigError(
            f"between 1 and {records - 1} records per shadow model",
            str(size),
            "A shadow model needs records that it was not trained on.",
        )
    chance, mask = np.random.default_rng(seed), np.zeros((models, records), bool)
    for row in mask:
        row[chance.permutation(records)[:size]] = True
    return mask


def train_shadows(
    make: Make,
    pool: Records,
    inside: Mask,
    recipe: Recipe,
    seed: int,
    run: Run,
    *,
    batch_size: int,
    augment: Augment | None = None,
    label: str = "training shadow models",
    engine: EngineName | EnsembleEngine = "local",
    loss: Loss = CROSS_ENTROPY,
) -> tuple[Shadows, Ensemble]:
    """Train one model per row of `inside`, as the attacked one was trained, and query each on the whole pool.

    Args:
        make: Gives model i (`training.ensembles.ensemble.makes`).
        pool: All records.
        inside: Which records each model is trained on: `balanced` or `subsets`.
        recipe: How the attacked model was trained, as far as the attacker knows.
        seed: Of batches, dropout and augmentation.
        run: Device, progress, checkpoints; an interrupted run resumes as `train_together` does.
        batch_size: Of one model.
        augment: As in the attacked model's training.
        label: For the progress bar.
        engine: What trains them (`train_together`).
        loss: What they minimise the mean of.

    Returns:
        The shadows, and the models themselves for further queries (augmented copies, records outside the pool).
    """
    data = Resident(pool, run.device)
    models = train_together(
        make, len(inside), data, inside, recipe, seed, run, augment, label, batch_size=batch_size, engine=engine,
        objective=MeanLoss(loss=loss),
    )  # fmt: skip
    return Shadows(inside, models.logits(data).numpy(), pool.y), models


# Shadow models made by the method of the attacked release.

Logits = NDArray[np.float32]


def release_shadows(
    channel: Channel, split: Split, pool: Records, inside: Mask, rest: Records, beside: Records, seed: int, run: Run
) -> tuple[Logits, Logits]:
    """One release per row of `inside`, trained on that row's records and `rest`: its logits on `pool` and `beside`.

    Args:
        channel: The method.
        split: Where the attacked release came from; its public and test parts are used as they are.
        pool: Records of which each shadow is trained on some.
        inside: Which ones.
        rest: Records that all of them are trained on.
        beside: Records that none of them is trained on.
        seed: Of initialisation; the noise comes from the operating system.
        run: Device and progress; with a checkpoint folder, finished shadows are kept there until all are done.
    """
    mark = _release_mark(channel, pool, inside, seed)
    found = []
    for model, row in enumerate(inside):
        file = run.checkpoint / f"release-{model}.safetensors" if run.checkpoint else None
        if file and run.resume and file.exists():
            values = read(file, mark)
        else:
            values = _release_one(channel, split, pool, row, rest, beside, mix(seed, model), run)
            if file:
                checkpoint.write(file, values, {"mark": mark})
        found.append(values)
        if run.progress:
            run.progress("shadow releases", model + 1, len(inside))
    for model in range(len(inside)) if run.checkpoint else ():
        (run.checkpoint / f"release-{model}.safetensors").unlink(missing_ok=True)  # type: ignore[operator]
    return np.stack([v["pool"].numpy() for v in found]), np.stack([v["beside"].numpy() for v in found])


def _release_one(
    channel: Channel, split: Split, pool: Records, row: Mask, rest: Records, beside: Records, seed: int, run: Run
) -> dict[str, torch.Tensor]:
    known = pool.take(np.flatnonzero(row))
    own = joined(known, rest)
    made = channel.release(replace(split, private=own), Randomness.make(seed), Run(device=run.device))
    net = made.network.net
    return {name: torch.from_numpy(ask(net, part)).float() for name, part in (("pool", pool), ("beside", beside))}


def _release_mark(channel: Channel, pool: Records, inside: Mask, seed: int) -> str:
    """What the shadows depend on, apart from the noise."""
    config = json.dumps(channel.config.model_dump(mode="json"), sort_keys=True)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (pool.x, pool.y, inside)]
    return f"{config} {seed} {digest(tensors).hex()}"


# The shadow-model attack.


class ShadowSettings(Frozen):
    """How the attack networks are trained.

    Args:
        hidden: Units of the one hidden layer.
        weight_decay: The gradient's L2 term: 2e-6 · w is the gradient of an L2 penalty of 1e-6 · ‖w‖².
        learning_rate: Of Adam.
        batch_size: AnsweredRecords in a step.
        epochs: Over the answers of an average class.
        repeats: How many times the attack is repeated, each with its own seed; the first run gives the scores.
        most: AnsweredRecords that a network learns from at most, drawn at random; None for all.
        by_class: One network per class, or one for all, which is not told the record's class.
    """

    hidden: int = 64
    weight_decay: float = 2e-6
    learning_rate: float = 0.01
    batch_size: int = 100
    epochs: int = 100
    repeats: int = 3
    most: int | None = None
    by_class: bool = True


@dataclass(frozen=True)
class AnsweredRecords:
    """Records with their labels, and the attacked model's logits on them.

    Args:
        records: The records.
        logits: (records, classes).
    """

    records: Records
    logits: Floats


def shadow_attack(
    shadows: Shadows,
    members: AnsweredRecords,
    others: AnsweredRecords,
    seed: int,
    run: Run,
    settings: ShadowSettings | None = None,
    nets: Ensemble | None = None,
) -> Scores:
    """Learn from the shadows, then score the attacked model's outputs.

    Args:
        shadows: Models with known members, on records that the attacked model never saw.
        members: The attacked model's answers about its training records.
        others: Its answers about records that it never saw.
        seed: Of the attack networks and of which of the shadows' non-members they learn from.
        run: Device, progress, checkpoints.
        settings: How the attack networks are trained; the paper's by default.
        nets: The result of `train_attack` for the same shadows and settings, to reuse when several models are attacked.
    """
    chosen = settings or ShadowSettings()
    nets = nets or train_attack(shadows, seed, run, chosen)
    repeats = chosen.repeats
    found = [_ask(nets, side.logits, _groups(side.records.y, chosen), repeats, run) for side in (members, others)]
    return Scores(
        "shadow models" if chosen.by_class else "shadow models, one network",
        QUESTION_ANSWERS,
        "black-box",
        found[0][0],
        found[1][0],
        members.records.y,
        others.records.y,
        *(found if repeats > 1 else ()),
    )


def train_attack(shadows: Shadows, seed: int, run: Run, settings: ShadowSettings) -> Ensemble:
    """All attack networks at once: network r · groups + c is that of class c in the r-th repeat."""
    classes = shadows.logits.shape[2]
    answers, inside, own = _lessons(shadows, seed)
    own, groups = _groups(own, settings), classes if settings.by_class else 1
    each = [_draw(np.flatnonzero(own == c), settings.most, seed + c) for c in range(groups)]
    if any(not {True, False} <= set(inside[places].tolist()) for places in each):
        raise DataError(
            "answers about members and about others of every class from the shadow models",
            "a class without such answers",
            "There is one attack network per class.",
            "Train more shadow models, or give them a larger pool.",
        )
    typical = float(np.mean([len(places) for places in each]))
    recipe = Recipe(
        steps=settings.epochs * max(1, round(typical / settings.batch_size)),
        optimiser="adam",
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        precision="fp32",
    )
    data = Resident(Records(answers, inside.astype(np.int64)), run.device)
    make = _attack_net(classes, settings.hidden, seed)
    count, label = groups * settings.repeats, "training attack models"
    members = each * settings.repeats
    return train_together(make, count, data, members, recipe, seed, run, None, label, batch_size=settings.batch_size)


def _attack_net(classes: int, hidden: int, seed: int) -> Make:
    def make(model: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            seed_torch(model_seed(seed, model))
            return nn.Sequential(nn.Linear(classes, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    return make


def _lessons(shadows: Shadows, seed: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], Ints]:
    """All shadows' answers on equally many members and non-members, their membership, and their classes."""
    chance = np.random.default_rng(seed)
    places = []
    for model, row in enumerate(shadows.inside):
        sides = [chance.permutation(np.flatnonzero(row == side)) for side in (True, False)]
        size = min(len(side) for side in sides)
        places += [np.stack([np.full(size, model), side[:size]]) for side in sides]
    models, records = np.concatenate(places, 1)
    answers = softmax(shadows.logits[models, records], axis=1).astype(np.float32)
    return answers, shadows.inside[models, records], shadows.y[records]


def _groups(y: Ints, settings: ShadowSettings) -> Ints:
    """Which attack network each record is scored by."""
    return y if settings.by_class else np.zeros_like(y)


def _draw(places: NDArray[np.int64], most: int | None, seed: int) -> NDArray[np.int64]:
    if most is None or len(places) <= most:
        return places
    return np.random.default_rng(seed).permutation(places)[:most]


def _ask(nets: Ensemble, logits: Floats, y: Ints, repeats: int, run: Run) -> Floats:
    """(repeats, records): the log-odds of "member" by the network of the record's class."""
    found, classes = np.empty((repeats, len(y))), len(nets) // repeats
    answers = softmax(np.asarray(logits, np.float64), axis=1).astype(np.float32)
    for c in range(classes):
        own = np.flatnonzero(y == c)
        if not len(own):
            continue
        data = Resident(Records(answers[own], np.zeros(len(own), np.int64)), run.device)
        nets_of_class = Ensemble(nets.net, {name: value[c::classes] for name, value in nets.values.items()})
        odds = nets_of_class.logits(data).double().numpy()
        found[:, own] = odds[:, :, 1] - odds[:, :, 0]
    return found

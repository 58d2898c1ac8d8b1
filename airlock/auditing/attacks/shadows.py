"""Shadow models: what the attacked model could have been, trained on records of which the attacker knows who was in.

In: a pool of records, how to make and train a model, and a design. Out: `Shadows`, every model's logits on every record
of the pool. The models are trained together (`training.ensembles.ensemble`) and remember their records: they belong
into the vault, and only what `measure` makes of an attack's scores may leave.

Memory: the logits take 4 · models · records · classes bytes (64 models, 50,000 records, 10 classes: 128 MB) on the
CPU; they are computed a chunk of models at a time. The stacked weights take 4 · models · parameters bytes beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlock.auditing.attacks.signals import Mask
from airlock.auditing.bounds import Floats
from airlock.auditing.scores import Ints
from airlock.data import Records
from airlock.errors import ConfigError, DataError
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.ensembles.ensemble import EngineName, Make
from airlock.training.loop import Augment


@dataclass(frozen=True)
class Shadows:
    """Models with known members, and what they say about the pool.

    Args:
        inside: (models, records): who was in whose training set.
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
    """Disjoint halves of the models, two by two so that a balanced design stays balanced: an attack made twice.

    Fewer than eight models are not divided: half of them would be another, weaker attack.
    """
    second = np.arange(models) // 2 % 2 == 1
    return [~second, second] if models >= 8 else []


def balanced(models: int, records: int, seed: int) -> Mask:
    """Each record in exactly half of the models; models 2k and 2k+1 share the pool out, so each has half of it.

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
    """`size` of the records for each model, by chance: some records are then in more models than others."""
    if not 0 < size < records:
        raise ConfigError(
            f"between 1 and {records - 1} records a shadow model",
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
    engine: EngineName = "local",
) -> tuple[Shadows, Ensemble]:
    """Train one model a row of `inside`, as the attacked one was trained, and ask each about the whole pool.

    Args:
        make: Gives model i (`training.ensembles.ensemble.makes`).
        pool: All records.
        inside: Who is in whose training set: `balanced` or `subsets`.
        recipe: How the attacked model was trained, as far as the attacker knows.
        seed: Of batches, dropout and augmentation.
        run: Device, progress, checkpoints; a run that was stopped goes on as `train_together` does.
        batch_size: Of one model.
        augment: As in the attacked model's training.
        label: For the progress bar.
        engine: Who trains them (`train_together`).

    Returns:
        The shadows, and the models themselves for further questions (augmented queries, records outside the pool).
    """
    data = Resident(pool, run.device)
    models = train_together(
        make, len(inside), data, inside, recipe, seed, run, augment, label, batch_size=batch_size, engine=engine
    )
    return Shadows(inside, models.logits(data).numpy(), pool.y), models


def refuse_overlap(known: Records, scored: Records, what: str) -> None:
    """Refuse records that would both train an attack and score it; they are compared by content.

    Raises:
        DataError: Some are in both.
    """
    shared = len(_contents(known) & _contents(scored))
    if shared:
        raise DataError(
            f"no record both among {what} and among the records that score the attack",
            f"{shared} in both",
            "An attack that has learned from a record's membership would be measured on what it was told.",
            "Draw the shadow models' records from elsewhere.",
        )


def _contents(records: Records) -> set[bytes]:
    rows = np.ascontiguousarray(records.x).reshape(len(records), -1)
    return {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}
